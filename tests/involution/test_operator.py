"""The operator `torch.ops.extending_pytorch.involution2d` under every transformation."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck

from helpers.ops.involution import Involution2d, RedNet, cpu, involution2d, operator
from helpers.ops.involution.benchmark import unfold_involution
from tests.involution.reference import (
    TOLERANCE,
    images_channels_last,
    make_geometry,
    random_geometries,
    random_tensors,
    window,
)
from tests.needs import needs_compiler

ops = torch.ops.extending_pytorch
FOLDER = Path(operator.__file__).parent


def calls(geometry, input, weight, grad_output):
    """The three operators, each with its arguments."""
    s = geometry
    size, rest = (s.kernel_height, s.kernel_width), window(s).values()
    return {
        ops.involution2d.default: (input, weight, *rest),
        ops.involution2d_grad_input.default: (grad_output, weight, (s.height, s.width), *rest),
        ops.involution2d_grad_weight.default: (grad_output, input, s.groups, size, *rest),
    }


def tensors(*sizes, **options):
    generator = torch.Generator().manual_seed(0)
    options = {"dtype": torch.float64} | options
    return [torch.randn(size, generator=generator, **options).requires_grad_() for size in sizes]


SIZES = (2, 4, 5, 6), (2, 2, 3, 3, 5, 6)


def function(input, weight):
    return involution2d(input, weight, padding=1)


def loss(input, weight):
    return function(input, weight).pow(3).sum()


def reference_loss(input, weight):
    return unfold_involution(input, weight).pow(3).sum()


def assert_all_close(actual, expected, **options):
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, **options)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Registration


def test_the_schema_and_what_is_registered():
    assert str(ops.involution2d.default._schema) == (
        "extending_pytorch::involution2d(Tensor input, Tensor weight, SymInt[2] stride,"
        " SymInt[2] padding, SymInt[2] dilation) -> Tensor"
    )
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in operator.OPERATORS:
        for key in ("CPU", "CUDA", "Meta", "FuncTorchBatched", "Autograd"):
            assert has_kernel(f"extending_pytorch::{name}", key), (name, key)
    for key in ("AutocastCPU", "AutocastCUDA"):
        assert has_kernel("extending_pytorch::involution2d", key)


CHEAP = ("test_schema", "test_autograd_registration", "test_faketensor")
EMPTY = make_geometry(0, 4, 2, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_opcheck(dtype):
    """In every layout. The last of the four checks takes half a second each."""
    for seed, geometry in enumerate([*random_geometries(2, seed=str(dtype)), EMPTY]):
        case = random_tensors(geometry, dtype, seed)
        for layout in (lambda t: t, images_channels_last, lambda t: t.mT.contiguous().mT):
            tensors = [layout(t).detach().requires_grad_() for t in case]
            for op, arguments in calls(geometry, *tensors).items():
                torch.library.opcheck(op, arguments, test_utils=CHEAP)
                on_meta = [a.to("meta") if torch.is_tensor(a) else a for a in arguments]
                assert op(*on_meta).stride() == op(*arguments).stride()
                if seed == 0 and layout is images_channels_last and dtype == torch.float64:
                    torch.library.opcheck(op, arguments, test_utils="test_aot_dispatch_dynamic")


def test_bad_arguments_do_not_reach_a_kernel(monkeypatch):
    geometry = make_geometry(2, 4, 2, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    input, weight, grad_output = random_tensors(geometry, torch.float32, seed=0)
    monkeypatch.setattr(operator, "implementation", None)
    pair, odd, few = (1, 1), grad_output[..., 1:], grad_output[:, 1:]
    gradients = ops.involution2d_grad_input, ops.involution2d_grad_weight
    for op, arguments, error, message in (
        (ops.involution2d, (input, weight[:1], pair, pair, pair), ValueError, "one batch size"),
        (ops.involution2d, (input, weight.double(), pair, pair, pair), TypeError, "one dtype"),
        (ops.involution2d, (input, weight, (0, 1), pair, pair), ValueError, "stride must be two"),
        (ops.involution2d, (input, weight, (1, 1, 1), pair, pair), ValueError, "two ints"),
        (gradients[0], (grad_output, weight, (9, 9), pair, pair, pair), ValueError, "output pixel"),
        (gradients[0], (odd, weight, (5, 6), pair, pair, pair), ValueError, r"got \(2, 4, 5, 5\)"),
        (gradients[1], (grad_output, input, 3, (3, 3), pair, pair, pair), ValueError, "3 groups"),
        (gradients[1], (grad_output, input, 2, (5, 3), pair, pair, pair), ValueError, "a kernel"),
        (gradients[1], (few, input, 2, (3, 3), pair, pair, pair), ValueError, "grad_output must"),
    ):
        with pytest.raises(error, match=message):
            op(*arguments)


# Derivatives


def test_the_gradients_are_operators_with_derivatives():
    geometry = make_geometry(1, 2, 1, (3, 4), (2, 3), (1, 2), (0, 1), (1, 1))
    case = [t.requires_grad_() for t in random_tensors(geometry, torch.float64, seed=0)]
    for op, arguments in calls(geometry, *case).items():
        first, second, *rest = arguments
        at = partial(lambda op, rest, a, b: op(a, b, *rest), op, rest)
        assert gradcheck(at, (first, second), check_forward_ad=True, fast_mode=True)
        assert gradgradcheck(at, (first, second), fast_mode=True)


def test_nested_transforms_agree_with_autograd():
    input, weight = (t.detach() for t in tensors((1, 2, 3, 3), (1, 1, 3, 3, 3, 3)))
    jacrev, jacfwd = torch.func.jacrev, torch.func.jacfwd
    expected = torch.autograd.functional.hessian(reference_loss, (input, weight))
    for outer in (jacrev, jacfwd):
        for inner in (jacrev, jacfwd):
            actual = outer(inner(loss, (0, 1)), (0, 1))(input, weight)
            for row, expected_row in zip(actual, expected, strict=True):
                assert_all_close(row, expected_row)

    def thrice(f):
        for _ in range(3):
            f = torch.func.grad(lambda x, w, f=f: f(x, w).pow(2).sum())
        return f

    third = thrice(function)(input, weight)
    torch.testing.assert_close(third, thrice(unfold_involution)(input, weight))
    with torch.no_grad():
        torch.testing.assert_close(thrice(function)(input, weight), third)


def test_vmap_over_a_batch_of_none():
    input, weight = torch.ones(0, 2, 4, 5, 6), torch.ones(2, 2, 3, 3, 5, 6)
    assert torch.vmap(function, (0, None))(input, weight).shape == (0, 2, 4, 5, 6)
    slope = torch.vmap(torch.func.grad(lambda x, w: function(x, w).sum()), (0, None))
    assert slope(input, weight).shape == input.shape


def test_autocast_is_the_operators_own():
    input, weight = tensors(*SIZES, dtype=torch.float32)
    arguments = (1, 1), (1, 1), (1, 1)
    expected = ops.involution2d(input.bfloat16(), weight.bfloat16(), *arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ops.involution2d(input, weight, *arguments)
        in_double = ops.involution2d(input.double(), weight.double(), *arguments)
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)(input, weight)
    assert in_double.dtype == torch.float64
    assert output.dtype == torch.bfloat16 and output.equal(expected)
    assert compiled.dtype == torch.bfloat16 and compiled.equal(expected)
    assert grad(output.sum(), input)[0].dtype == torch.float32


# torch.compile, torch.export


@pytest.mark.parametrize(
    "backend, dynamic",
    [
        ("aot_eager", False),
        ("aot_eager", True),
        pytest.param("inductor", True, marks=needs_compiler),
    ],
)
def test_compile(backend, dynamic):
    from torch._inductor import config  # slow to import

    compilations = []

    def counted(graph, inputs):
        compilations.append(graph)
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(loss, backend=counted, fullgraph=True, dynamic=dynamic)
    # Inductor puts headers into the temporary folder, so that every run would compile them: 8 s.
    config.cpp_cache_precompile_headers = False
    # No two sizes are equal: the tracer would take them for one.
    for batch, height, width in ((5, 6, 7), (6, 9, 8), (7, 8, 11)):
        sizes = (batch, 4, height, width), (batch, 2, 3, 3, height, width)
        case = tensors(*sizes)
        assert_all_close(grad(compiled(*case), case), grad(reference_loss(*case), case))
    assert len(compilations) == (1 if dynamic else 3)


def test_compile_names_a_bad_argument():
    input, weight = tensors(*SIZES)
    compiled = torch.compile(involution2d, backend="aot_eager")
    with pytest.raises(Exception, match="weight must hold a kernel for each of the 3 x 4"):
        compiled(input, weight)


def test_rednet_is_exported_saved_and_loaded(tmp_path, monkeypatch):
    monkeypatch.setitem(RedNet.BLOCKS, 26, (1, 1, 1, 1))
    torch.manual_seed(0)
    model = RedNet(26, num_classes=3).eval()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (torch.randn(2, 3, 32, 33),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "rednet.pt2")
    loaded = torch.export.load(tmp_path / "rednet.pt2")
    targets = [node.target for node in loaded.graph.nodes]
    involutions = sum(isinstance(m, Involution2d) for m in model.modules())
    assert targets.count(ops.involution2d.default) == involutions
    images = torch.randn(3, 3, 32, 33)
    torch.testing.assert_close(loaded.module()(images), model(images))


# Copies of the folder, where there is nothing but torch, and no warning either

COPIES = """
import gc, sys
sys.modules.update(helpers=None, cupy=None)  # importing them raises ImportError
import torch, one, other
from one import benchmark, cuda
compiler = sys.modules[one.cpu.find_compiler.__module__]
compiler.find_spec = lambda name: None  # no ziglang either
x = torch.ones(1, 1, 2, 2, requires_grad=True)
w = torch.ones(1, 1, 1, 1, 2, 2)
for copy in (one, other):
    print(torch.autograd.grad(copy.involution2d(x, w).sum(), x)[0].sum().item())
one.Involution2d(16, 3).train()(torch.randn(1, 16, 4, 4)).sum().backward()
print(*one.backend(), sep="|")
compiler.find_compiler.cache_clear()
for failing in (cuda.find_cupy, compiler.find_compiler):
    try:
        failing()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

for name in [n for n in sys.modules if n.split(".")[0] == "one"]:
    del sys.modules[name]
del one, copy, benchmark, cuda, compiler
gc.collect()
print(torch.func.grad(lambda x: other.involution2d(x, w).sum())(x.detach()).sum().item())
"""


def test_two_copies_in_one_process(tmp_path):
    for name in ("one", "other"):
        shutil.copytree(FOLDER, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PATH": "", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    environment |= {k: v for k, v in os.environ.items() if k.startswith(("OMP", "MKL"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", COPIES],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    one, other, backend, cupy, compiler, after = done.stdout.splitlines()
    assert (one, other, after) == ("4.0", "4.0", "4.0")
    assert backend.startswith("plain|no C++ compiler was found")
    assert cupy.startswith("ImportError: involution2d of CUDA tensors needs CuPy: pip install")
    assert compiler.startswith("CompilerNotFoundError: ") and "`pip install ziglang`" in compiler


@pytest.mark.skipif(not cpu.available(), reason=cpu.reason())
def test_a_graph_calls_the_kernel_of_the_moment(monkeypatch):
    """A compiled function holds the operator, not what it ran on when it was compiled."""
    case = [t.detach() for t in tensors(*SIZES)]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    expected = compiled(*case)
    monkeypatch.setattr(cpu, "forward", lambda *arguments: 2 * expected)
    torch.testing.assert_close(compiled(*case), 2 * expected)
