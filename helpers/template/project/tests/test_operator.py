"""The operator on every device that is present: values, promises, derivatives, transforms."""

import doctest

import pytest
import torch
from my_package import COMPILED, operator, recurrence
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

OP, OP_FROM = torch.ops.my_package.recurrence.default, torch.ops.my_package.recurrence_from.default
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def samples(device="cpu", dtype=torch.float64):
    """{name: (x, decay, reverse)}: the arguments on which these tests call the operator."""

    def pair(*shape):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(*shape, generator=generator, dtype=torch.float64)
        decay = torch.rand(*shape, generator=generator, dtype=torch.float64) * 1.5
        return [t.to(device, dtype).requires_grad_() for t in (x, decay)]

    transposed = [t.detach().t().requires_grad_() for t in pair(5, 3)]
    return {
        "forward": (*pair(2, 5), False),
        "reverse": (*pair(2, 5), True),
        "vector": (*pair(4), False),
        "three dimensions": (*pair(2, 2, 3), True),
        "transposed": (*transposed, False),
        "one step": (*pair(3, 1), False),
        "no steps": (*pair(3, 0), True),
        "no rows": (*pair(0, 3), False),
    }


each_sample = pytest.mark.parametrize("sample", samples())
each_device = pytest.mark.parametrize("device", DEVICES)
each_kernel = pytest.mark.parametrize("kernel", (OP, operator._plain))
each_kernel_from = pytest.mark.parametrize("kernel", (OP_FROM, operator._plain_from))


def loop(x, decay, reverse=False):
    """The definition, step by step."""
    steps = list(zip(x.unbind(-1), decay.unbind(-1), strict=True))
    y, ys = torch.zeros_like(x[..., :1].sum(-1)), []
    for x_t, decay_t in reversed(steps) if reverse else steps:
        y = decay_t * y + x_t
        ys.append(y)
    return torch.stack(ys[::-1] if reverse else ys, -1) if ys else x * decay


def zeros(x):
    return torch.zeros_like(x[..., :1].sum(-1), dtype=torch.promote_types(x.dtype, torch.float32))


# Values


@each_device
@each_kernel
@each_sample
def test_values(kernel, sample, device):
    for dtype, tolerance in DTYPES.items():
        x, decay, reverse = samples(device, dtype)[sample]
        with torch.no_grad():
            y = kernel(x, decay, reverse)
            right = loop(x.double(), decay.double(), reverse)
        assert (y.dtype, y.shape, y.device) == (dtype, x.shape, x.device)
        torch.testing.assert_close(y.double(), right, rtol=tolerance, atol=tolerance)


@each_device
@each_kernel_from
@each_sample
def test_values_in_pieces(kernel, sample, device):
    """The state carries the sum from one piece to the next, and holds it after the last."""
    for dtype, tolerance in DTYPES.items():
        x, decay, reverse = samples(device, dtype)[sample]
        state, end = zeros(x), 0 if reverse else -1
        pieces = list(zip(x.detach().split(2, -1), decay.detach().split(2, -1), strict=True))
        ys = [kernel(*piece, state, reverse) for piece in (pieces[::-1] if reverse else pieces)]
        right = loop(x.detach().double(), decay.detach().double(), reverse)
        last = right[..., end] if x.shape[-1] else zeros(x).double()
        for given, expected in ((torch.cat(ys[::-1] if reverse else ys, -1), right), (state, last)):
            torch.testing.assert_close(given.double(), expected, rtol=tolerance, atol=tolerance)


@each_device
@each_kernel
def test_long_rows_and_many(kernel, device):
    x = torch.linspace(-1, 1, 70 * 1000, device=device, dtype=torch.float64).view(70, 1000)
    torch.testing.assert_close(kernel(x, x.cos(), True), loop(x, x.cos(), True))


@each_device
def test_arguments_broadcast(device):
    x, decay, _ = samples(device)["forward"]
    for a, b in ((x, decay[0]), (x[0], decay), (x, decay[:, :1]), (x, decay[0, 0])):
        torch.testing.assert_close(recurrence(a, b), loop(*torch.broadcast_tensors(a, b)))
    assert recurrence(x, decay, reverse=True).equal(OP(x, decay, True))


X, META = torch.ones(3), torch.ones(3, device="meta")


def test_the_example_in_the_docstring():
    assert doctest.testmod(operator).attempted and not doctest.testmod(operator).failed


@pytest.mark.parametrize(
    "x, decay, reverse, kind, words",
    [
        ([1.0], X, False, TypeError, "x must be a torch.Tensor, got list"),
        (X, 0.5, False, TypeError, "decay must be a torch.Tensor, got float"),
        (X.int(), X, False, TypeError, "x must be floating-point, got torch.int32"),
        (X, X.cfloat(), False, TypeError, "decay must be floating-point, got torch.complex64"),
        (X, X.double(), False, TypeError, "decay must be torch.float32 as x is, got torch.float64"),
        (X, X, 1, TypeError, "reverse must be a bool, got int"),
        (X, META, False, ValueError, "decay must be on cpu as x is, got meta"),
        (X, X[:2], False, ValueError, "must broadcast, got (3,) and (2,)"),
        (X[0], X[0], False, ValueError, "shape (..., steps), got ()"),
    ],
)
def test_bad_input(x, decay, reverse, kind, words):
    with pytest.raises(kind) as caught:
        recurrence(x, decay, reverse=reverse)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "state, kind, words",
    [
        ([0.0], TypeError, "state must be a torch.Tensor, got list"),
        (X, ValueError, "must have shape, dtype and device (2,), torch.float32, cpu, got (3,),"),
        (X[:2].half(), ValueError, "got (2,), torch.float16, cpu"),
        (META[:2], ValueError, "got (2,), torch.float32, meta"),
        (X[::2], ValueError, "state must be contiguous, got strides (2,)"),
        (X[:2].clone().requires_grad_(), NotImplementedError, "where it writes into a state"),
    ],
)
def test_bad_state(state, kind, words):
    with pytest.raises(kind) as caught:
        recurrence(torch.ones(2, 3), X, state=state)
    assert words in str(caught.value)


@each_device
@pytest.mark.parametrize("kernel", (OP, operator._plain, operator._fake))
def test_kernels_refuse_what_they_would_read_wrongly(kernel, device):
    x = torch.ones(2, 3, device=device)
    for a, b in ((x, x[:1]), (x, x.double()), (x, x[0]), (x[0, 0], x[0, 0])):
        with pytest.raises(RuntimeError):
            kernel(a, b)


@each_device
@pytest.mark.parametrize("kernel", (OP_FROM, operator._plain_from, operator._fake_from))
def test_kernels_refuse_a_state_that_they_would_read_wrongly(kernel, device):
    x, state = torch.ones(2, 3, device=device), torch.ones(3, device=device)
    for wrong in (state, state[:2].double(), state[::2]):
        with pytest.raises(RuntimeError):
            kernel(x, x, wrong)


# Promises: the schemas, the fake kernels and the kernels say the same.


@each_device
@each_sample
def test_opcheck(sample, device):
    x, decay, reverse = samples(device)[sample]
    opcheck(OP, (x, decay, reverse))
    x, decay = x.detach(), decay.detach()
    opcheck(OP, (x, decay, reverse))
    opcheck(OP_FROM, (x, decay, zeros(x), reverse))


def test_schemas():
    """Saved programs contain them. Add arguments at the end, with defaults; change nothing."""
    assert [str(op._schema).partition("::")[2] for op in (OP, OP_FROM)] == [
        "recurrence(Tensor x, Tensor decay, bool reverse=False) -> Tensor",
        "recurrence_from(Tensor x, Tensor decay, Tensor(a!) state, bool reverse=False) -> Tensor",
    ]


# Derivatives


@each_device
@each_sample
def test_gradients(sample, device):
    x, decay, reverse = samples(device)[sample]
    right = torch.autograd.grad(loop(x, decay, reverse).square().sum(), (x, decay))
    both = torch.autograd.grad(OP(x, decay, reverse).square().sum(), (x, decay))
    one = torch.autograd.grad(OP(x, decay.detach(), reverse).square().sum(), x)
    other = torch.autograd.grad(OP(x.detach(), decay, reverse).square().sum(), decay)
    torch.testing.assert_close(both + one + other, right + right)


def test_what_is_not_needed_is_not_kept():
    x, decay, _ = samples()["forward"]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t):
        OP(x, decay.detach())
    assert [t.data_ptr() for t in kept] == [decay.data_ptr()]


@each_device
def test_autograd_sees_that_a_state_has_changed(device):
    x, decay, _ = samples(device)["forward"]
    state = zeros(x)
    loss = (state * x[:, 0]).sum()
    with torch.no_grad():
        recurrence(x, decay, state=state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        assert recurrence(x, decay, state=zeros(x)).equal(OP(x, decay))


@each_device
@pytest.mark.parametrize("sample", ["forward", "reverse"])
def test_derivatives(sample, device):
    x, decay, reverse = samples(device)[sample]
    inputs = (x, decay)
    assert gradcheck(lambda *inputs: OP(*inputs, reverse), inputs)
    assert gradgradcheck(lambda *inputs: OP(*inputs, reverse), inputs)


# Transforms


@each_device
def test_vmap(device):
    x, decay, _ = samples(device)["three dimensions"]
    for x_dim, decay_dim in ((0, 0), (1, 0), (0, 1), (None, 1), (1, None)):
        rows = [
            recurrence(
                x if x_dim is None else x.select(x_dim, i),
                decay if decay_dim is None else decay.select(decay_dim, i),
            )
            for i in range(2)
        ]
        given = torch.vmap(recurrence, (x_dim, decay_dim))(x, decay)
        torch.testing.assert_close(given, torch.stack(rows))


@each_device
def test_autocast(device):
    x, decay, _ = samples(device, torch.float32)["forward"]
    with torch.autocast(device, dtype=torch.bfloat16):
        y = recurrence(x.bfloat16(), decay)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, recurrence(x.bfloat16().float(), decay))
    with torch.autocast(device, dtype=torch.bfloat16), torch.no_grad():
        torch.testing.assert_close(recurrence(x.bfloat16(), decay, state=zeros(x)), y)
    with torch.autocast(device, dtype=torch.bfloat16), pytest.raises(TypeError, match="decay must"):
        recurrence(x.double(), decay)  # it leaves float64 alone


@each_device
def test_compiles_in_one_graph(device):
    x, decay, _ = samples(device)["forward"]
    compiled = torch.compile(recurrence, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, decay), recurrence(x, decay))
    state, same = torch.ones_like(zeros(x)), torch.ones_like(zeros(x))
    with torch.no_grad():
        y = compiled(x, decay, state=state)
        torch.testing.assert_close((y, state), (recurrence(x, decay, state=same), same))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_it_runs_on_the_current_stream():
    """A CUDA graph records what was launched on that stream, and replays it."""
    x, decay = (t.detach() for t in samples("cuda")["forward"][:2])
    expected, graph = 2 * OP(x, decay), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = OP(x, decay)
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(y, expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by torch itself
def test_forward_mode_is_refused():
    """The tangent would be zeros: register_autograd has no rule for it."""
    x, decay = (t.detach() for t in samples()["forward"][:2])
    for function, primal in (
        (lambda x: recurrence(x, decay), x),
        (lambda state: recurrence(x, decay, state=state), zeros(x)),
    ):
        with pytest.raises(NotImplementedError, match="no rule for forward mode"):
            torch.func.jvp(function, (primal,), (primal,))


@pytest.mark.parametrize("op", (OP, OP_FROM), ids=str)
def test_each_device_runs_what_was_compiled_for_it(op):
    for device in COMPILED:
        key = device.upper()
        has = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
        assert has, f"{op} has no kernel for {key}: write it, and list it in setup.py"
