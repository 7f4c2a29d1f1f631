import weakref

import pytest
import torch
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck

from helpers.doctor import examine
from helpers.ops.fixed_point import NotConvergedError, fixed_point
from tests.common import FLOATS, TOLERANCE, Does, assert_raises, random


def f(z, x, weight):
    return torch.tanh(z @ weight.t() + x)


def arguments(dtype=torch.float64):
    weight = (0.25 * random(3, 3, seed=1)).to(dtype).detach().requires_grad_()
    return random(2, 3, dtype=dtype), weight


def solved(x, weight, tol=1e-14):
    return fixed_point(f, torch.zeros_like(x), x, weight, tol=tol)


def unrolled(x, weight):
    z = torch.zeros_like(x)
    for _ in range(60):
        z = f(z, x, weight)
    return z


def entangled(solve):
    """Every argument depends on every leaf, so that a partial derivative is not a total one."""
    return lambda x, weight: solve(x + weight.sum(), weight * x.mean())


# Values and derivatives


@pytest.mark.parametrize("dtype", FLOATS)
def test_agrees_with_unrolling_in_every_dtype(dtype):
    x, weight = arguments(dtype)
    ours = solved(x, weight, tol=max(1e-14, 2 * torch.finfo(dtype).eps))
    theirs = unrolled(x.double(), weight.double())
    tolerance = {name: 5 * number for name, number in TOLERANCE[dtype].items()}
    torch.testing.assert_close(ours, theirs.to(dtype), **tolerance)
    slopes = (grad(z.sum(), (x, weight)) for z in (ours, theirs))
    torch.testing.assert_close(*slopes, **tolerance)


def test_gradcheck_gradgradcheck_and_the_doctor():
    function = entangled(solved)
    assert gradcheck(function, arguments()) and gradgradcheck(function, arguments())
    report = examine(function, *arguments())
    # The solver converges here, so the lines for when it does not are not reached.
    assert not report.findings, report


def test_a_closed_form_of_every_order():
    """z = (z + a / z) / 2 is the square root."""
    a = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    y = fixed_point(lambda z, a: (z + a / z) / 2, torch.ones_like(a), a, tol=1e-14)
    right = [0.5 * 5**-0.5, -0.25 * 5**-1.5, 0.375 * 5**-2.5]
    for derivative in right:
        (y,) = grad(y, a, create_graph=True)
        assert y.item() == pytest.approx(derivative, rel=1e-12)


def test_where_it_began_and_how_long_it_took_do_not_matter():
    x, weight = arguments()
    right = grad(unrolled(x, weight).sum(), (x, weight))
    solution = solved(x, weight).detach()
    for z0 in (solution, 5 * torch.ones_like(x), torch.ones_like(x, requires_grad=True)):
        z = fixed_point(f, z0, x, weight, tol=1e-14)
        torch.testing.assert_close(grad(z.sum(), (x, weight)), right)
        assert z0.grad is None


# What f brings along


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, dtype=torch.float64)
        with torch.no_grad():
            self.linear.weight.mul_(0.3)

    def forward(self, z, x=0):
        return torch.tanh(self.linear(z) + x)


@pytest.mark.parametrize("wrapped", [False, True], ids=["module", "lambda around it"])
def test_parameters_get_their_gradients(wrapped):
    layer, (x, _) = Layer(), arguments()
    ours = fixed_point((lambda z, x: layer(z, x)) if wrapped else layer, x * 0, x, tol=1e-14)
    theirs, results = torch.zeros_like(x), []
    for _ in range(60):
        theirs = layer(theirs, x)
    for z in (ours, theirs):
        slopes = grad(z.square().sum(), (x, *layer.linear.parameters()), create_graph=True)
        weight = layer.linear.weight
        results.append([*slopes])
        results[-1] += [grad(s.square().sum(), weight, retain_graph=True)[0] for s in slopes]
    torch.testing.assert_close(*results)


def test_frozen_parameters_constant_inputs_and_inference_get_none():
    layer, (x, weight) = Layer().requires_grad_(False), arguments()
    assert not fixed_point(layer, torch.zeros_like(x), x.detach()).requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not solved(x, weight).requires_grad
    solved(x.detach(), weight).sum().backward()
    assert weight.grad is not None and x.grad is None


def test_a_tensor_with_a_history_must_be_an_input():
    x, weight = arguments()
    doubled = 2 * x
    with pytest.raises(ValueError, match=r"a history \(MulBackward0\) that is not among its inp"):
        fixed_point(lambda z: f(z, doubled, weight), torch.zeros_like(x))


def test_inputs_need_not_be_tensors():
    x, weight = arguments()
    with torch.no_grad():
        x.mul_(2)  # what was changed before does no harm
    z = fixed_point(lambda z, n, x, name: f(z, n * x, weight), torch.zeros_like(x), 2, x, "name")
    (given,) = grad(z.sum(), x)
    torch.testing.assert_close(given, grad(unrolled(2 * x, weight).sum(), x)[0], rtol=1e-5, atol=0)


def test_a_function_may_leave_its_arguments_unused():
    x = random(3)
    for f, first, second in (
        (lambda z, x: x**2, 2 * x, 8 * x),
        (lambda z, x: torch.round(z / 4 + x), 0 * x, 0 * x),  # its gradient depends on nothing
    ):
        (given,) = grad(fixed_point(f, torch.zeros_like(x), x).sum(), x, create_graph=True)
        torch.testing.assert_close(given, first)
        torch.testing.assert_close(grad(given.square().sum(), x)[0], second)
    assert not fixed_point(lambda z, x: torch.ones_like(z), x, x).requires_grad


# Memory


_, WEIGHT = arguments()


def closing_over(z, x):
    return f(z, x, WEIGHT)


def descending(z, x):
    with torch.enable_grad():  # as a step of gradient descent does
        z = z if z.requires_grad else z.detach().requires_grad_()
        (slope,) = grad((z - x.sin()).square().sum() / 4, z, create_graph=True)
        return z - slope


@pytest.mark.parametrize(
    "step, numbers", [(closing_over, [6, 6, 6, 6, 9, 9]), (descending, [6] * 5)]
)
def test_what_is_kept_does_not_grow_with_the_steps(step, numbers):
    for tol, least, most in ((0.1, 1, 10), (1e-14, 15, 60)):
        alive = weakref.WeakSet()

        class Kept:
            def __init__(self, tensor, alive=alive):
                self.tensor = tensor.detach()  # without its history, which would hold it
                alive.add(self)

        x, calls = random(2, 3), []
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            z = fixed_point(lambda *a, c=calls: c.append(0) or step(*a), x * 0, x, tol=tol)
        assert (
            sorted(kept.tensor.numel() for kept in alive) == numbers
        )  # z, x, the weight; and f's own
        called = len(calls)
        assert least < called < most
        z.sum().backward()
        assert len(calls) == called
    if step is descending:
        torch.testing.assert_close(x.grad, x.cos())


def test_backward_frees_what_it_made_and_may_be_repeated():
    x, weight = arguments()
    z = solved(x, weight)
    first = grad(z.sum(), (x, weight), retain_graph=True)
    torch.testing.assert_close(grad(z.sum(), (x, weight)), first)
    alive = weakref.ref(z)
    del z
    assert alive() is None


# Errors instead of wrong answers


def test_small_numbers_count_as_much_as_large_ones():
    """A tolerance that is not relative would take the first step for the last."""
    x, weight = (1e-9 * arguments()[0]).detach().requires_grad_(), arguments()[1]
    torch.testing.assert_close(solved(x, weight), unrolled(x, weight), rtol=1e-9, atol=0)
    given = grad(1e-30 * solved(x, weight).sum(), (x, weight))
    right = grad(1e-30 * unrolled(x, weight).sum(), (x, weight))
    torch.testing.assert_close(given, right, rtol=1e-9, atol=0)


def test_a_second_derivative_that_does_not_converge_is_an_error():
    x, weight = arguments()
    z = fixed_point(f, torch.zeros_like(x), x, weight, tol=1e-14, max_steps=40)
    (first,) = grad(z.sum(), x, create_graph=True)
    grad(first.sum(), x)
    z = fixed_point(f, solved(x, weight).detach(), x, weight, tol=1e-14, max_steps=3)
    with pytest.raises(NotConvergedError, match="the gradient did not converge in 3 steps"):
        grad(z.sum(), x)


def test_a_gradient_that_arrives_as_inf_leaves_as_nan():
    """GradScaler looks for one, and skips the step."""
    x, weight = arguments()
    weights = torch.zeros_like(x)
    weights[0, 0] = torch.inf
    (gradient,) = grad(solved(x, weight), x, weights)
    assert gradient.isnan().all()


@pytest.mark.parametrize(
    "change, kind, words",
    [
        ({"f": 3}, TypeError, "f must be callable, got int"),
        ({"z0": 1.0}, TypeError, "z0 must be a torch.Tensor, got float"),
        ({"z0": torch.ones(2).int()}, TypeError, "z0 must be floating-point, got torch.int32"),
        (
            {"z0": torch.ones(2).to(torch.float8_e5m2)},
            TypeError,
            "16 bits or more, got torch.float8",
        ),
        ({"z0": torch.ones(2).to_sparse()}, TypeError, "z0 must be dense, got torch.sparse_coo"),
        (
            {"z0": torch.ones(2, device="meta")},
            ValueError,
            "z0 must hold numbers, got one on the d",
        ),
        ({"tol": "1e-6"}, TypeError, "tol must be a Python number, got str"),
        ({"tol": True}, TypeError, "got bool"),
        ({"tol": 1e-8}, ValueError, "between 1.2e-07, the resolution of torch.float32, and 1, got"),
        ({"tol": 1.0}, ValueError, "got 1.0"),
        ({"tol": float("nan")}, ValueError, "got nan"),
        ({"z0": torch.ones(2).half()}, ValueError, "the resolution of torch.float16"),
        ({"max_steps": 2.0}, TypeError, "max_steps must be an int, got float"),
        ({"max_steps": True}, TypeError, "got bool"),
        ({"max_steps": 0}, ValueError, "max_steps must be 1 or more, got 0"),
        ({"f": lambda z: 1.0}, TypeError, "f must return a torch.Tensor, got float"),
        ({"f": lambda z: z[:1]}, ValueError, "the shape of z, torch.Size([2]), got torch.Size([1"),
        ({"f": lambda z: z.half()}, TypeError, "the dtype of z, torch.float32, got torch.float16"),
        ({"f": lambda z: z.to("meta")}, ValueError, "the device of z, cpu, got meta"),
        ({"f": lambda z: z.mul_(0.5)}, ValueError, "f must not change z"),
    ],
)
def test_bad_input_is_named(change, kind, words):
    good = {"f": lambda z: z / 2 + 1, "z0": torch.zeros(2), "tol": 1e-6, "max_steps": 30}
    fixed_point(**good)
    assert_raises(kind, words, lambda: fixed_point(**(good | change)))


def test_an_input_that_f_changes_is_named():
    spoils = lambda z, x: z / 2 + x.mul_(0.5)  # noqa: E731
    for x in (random(2), random(2).detach()):
        assert_raises(ValueError, "in place", fixed_point, spoils, torch.zeros(2).double(), x)


def test_what_f_saves_and_then_changes_is_named():
    def spoils(z, x):
        y = x * 2
        result = z / 2 + y.sin()
        y.zero_()
        return result

    assert_raises(ValueError, "in place", fixed_point, spoils, torch.zeros(2).double(), random(2))
    fixed_point(spoils, torch.zeros(2).double(), random(2).detach())  # without a gradient it may


def test_a_start_is_left_alone_also_where_f_is_refused():
    z0 = torch.ones(2)
    assert_raises(ValueError, "must not change z", fixed_point, lambda z: z.mul_(0.5), z0)
    assert z0.equal(torch.ones(2))


def test_what_backward_needs_and_was_changed_is_named():
    factor, x = torch.full((3,), 0.5, dtype=torch.float64), random(3)
    for change in ("input", "closed over", "result"):
        given = [factor] if change == "input" else []
        f = lambda z, x, *given: (*given, factor)[0] * z + x + z.square() / 100  # noqa: E731
        z = fixed_point(f, torch.zeros_like(x), x / 10, *given, max_steps=400)
        loss = z.square().sum()
        (z if change == "result" else factor).detach().add_(0.1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_empty_tensors():
    x = torch.zeros(0, 3, requires_grad=True)
    z = fixed_point(lambda z, x: z + x, torch.zeros(0, 3), x)
    z.sum().backward()
    assert z.shape == x.grad.shape == (0, 3)


# Circumstances


def test_autocast_is_the_same_in_backward():
    torch.manual_seed(0)
    layer, dtypes = torch.nn.Linear(3, 3), set()
    x = torch.randn(2, 3)

    def step(z, x):
        output = layer(z)
        dtypes.add(output.dtype)
        return torch.tanh(output.float() / 2 + x)

    with torch.autocast("cpu", torch.float16):
        assert_raises(TypeError, "the dtype of z", fixed_point, lambda z: layer(z), x)
        z = fixed_point(step, torch.zeros_like(x), x, tol=1e-3)
    z.sum().backward()  # outside
    assert dtypes == {torch.float16}
    assert layer.weight.grad.abs().min() > 0  # not lost in the cache of what is cast without grad


def test_a_device_without_autocast(monkeypatch):
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda device: False)
    monkeypatch.delattr(torch, "get_autocast_dtype")
    solved(*arguments()).sum().backward()


def test_what_is_not_supported_raises():
    x, weight = arguments()
    for transform in (torch.func.grad, torch.func.vmap, torch.func.jacfwd):
        with pytest.raises(RuntimeError, match="fixed_point does not work under torch.func"):
            transform(lambda x: solved(x, weight).sum())(x.detach())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), x.detach())
        with pytest.raises(NotImplementedError, match="no forward mode"):
            solved(dual, weight)
        with pytest.raises(NotImplementedError, match="no forward mode"):  # not an input
            fixed_point(lambda z: f(z, dual, weight), torch.zeros_like(x))


def test_compile_goes_on_around_it_or_raises():
    x, weight = arguments()

    def around(x, weight):
        return 2 * solved(2 * x, weight)

    torch.compiler.reset()
    pair = around, torch.compile(around, backend="aot_eager")
    torch.testing.assert_close(*(grad(g(x, weight).sum(), (x, weight)) for g in pair))
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="the number of steps depends on the numbers"):
        torch.compile(around, backend="aot_eager", fullgraph=True)(x, weight)


def test_export_raises():
    settles = Does(lambda x: fixed_point(lambda z, x: z / 2 + x, torch.zeros(1), x))
    with pytest.raises(RuntimeError, match="the number of steps depends on the numbers"):
        torch.export.export(settles, (torch.ones(1),))


def test_a_gradient_that_float16_does_not_hold_is_infinite_for_a_loss_scaler():
    x = torch.ones(2, dtype=torch.float16, requires_grad=True)
    z = fixed_point(lambda z, x: 0.75 * z + x, torch.zeros_like(x), x, tol=1e-3)
    for size, right in ((1e-3, 4e-3), (1e4, 4e4), (3e4, float("inf"))):
        weight = torch.tensor([size, 0.0], dtype=torch.float16)
        (slope,) = grad(z, x, weight, retain_graph=True)
        assert slope.tolist() == [pytest.approx(right, rel=0.1), 0]
