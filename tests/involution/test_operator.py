"""The operator `torch.ops.extending_pytorch.involution2d` under every transformation."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import grad, gradcheck, gradgradcheck

from helpers.ops.involution import Bottleneck, Involution2d, involution2d, operator
from helpers.ops.involution.benchmark import unfold_involution
from tests.involution.reference import (
    SMALL,
    images_channels_last,
    make_geometry,
    random_tensors,
    window,
)
from tests.needs import NO_COMPILER

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


def function(input, weight):
    return involution2d(input, weight, padding=1)


def loss(input, weight):
    return function(input, weight).pow(3).sum()


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_opcheck(dtype):
    """In every layout. The last of the four checks takes half a second each."""
    cheap = "test_schema", "test_autograd_registration", "test_faketensor"
    small = SMALL["same size"]
    for geometry in (small, SMALL["all options"], small._replace(batch=0)):
        case = random_tensors(geometry, dtype)
        for layout in (lambda t: t, images_channels_last, lambda t: t.mT.contiguous().mT):
            tensors = [layout(t).detach().requires_grad_() for t in case]
            for op, arguments in calls(geometry, *tensors).items():
                torch.library.opcheck(op, arguments, test_utils=cheap)
                on_meta = [a.to("meta") if torch.is_tensor(a) else a for a in arguments]
                assert op(*on_meta).stride() == op(*arguments).stride()
                if geometry is small and layout is images_channels_last and dtype == torch.float64:
                    torch.library.opcheck(op, arguments, test_utils="test_aot_dispatch_dynamic")


def test_bad_arguments_do_not_reach_a_kernel(monkeypatch):
    input, weight, grad_output = random_tensors(SMALL["same size"])
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
    geometry = make_geometry(1, 2, 1, (3, 4), (2, 3), (1, 2), (0, 1))
    case = [t.requires_grad_() for t in random_tensors(geometry, torch.float64)]
    for op, arguments in calls(geometry, *case).items():
        first, second, *rest = arguments
        at = partial(lambda op, rest, a, b: op(a, b, *rest), op, rest)
        assert gradcheck(at, (first, second), check_forward_ad=True, fast_mode=True)
        assert gradgradcheck(at, (first, second), fast_mode=True)


def test_third_derivatives():
    """Those of first and second order are in tests/ops/test_table.py."""
    geometry = make_geometry(1, 2, 1, (3, 3), (3, 3), padding=(1, 1))
    input, weight, _ = random_tensors(geometry, torch.float64)

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


# torch.compile, torch.export


def test_one_graph_for_every_size():
    from torch._dynamo.backends.registry import (
        lookup_backend,  # both are slow to import
    )
    from torch._inductor import config

    backend, compilations = lookup_backend("aot_eager" if NO_COMPILER else "inductor"), []

    def counted(graph, inputs):
        compilations.append(graph)
        return backend(graph, inputs)

    compiled = torch.compile(loss, backend=counted, fullgraph=True, dynamic=True)
    # Inductor puts headers into the temporary folder, so that every run would compile them: 8 s.
    config.cpp_cache_precompile_headers = False
    # No two sizes are equal: the tracer would take them for one.
    for batch, height, width in ((5, 6, 7), (6, 9, 8), (7, 8, 11)):
        geometry = make_geometry(batch, 4, 2, (height, width), (3, 3), padding=(1, 1))
        case = [t.requires_grad_() for t in random_tensors(geometry, torch.float64)[:2]]
        expected = unfold_involution(*case).pow(3).sum()
        torch.testing.assert_close(grad(compiled(*case), case), grad(expected, case))
    assert len(compilations) == 1


def test_compile_names_a_bad_argument():
    input, weight, _ = random_tensors(SMALL["same size"])
    compiled = torch.compile(involution2d, backend="aot_eager")
    with pytest.raises(Exception, match="weight must hold a kernel for each of the 3 x 4"):
        compiled(input, weight)


def test_a_network_is_exported_saved_and_loaded(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Involution2d(16, 3, stride=2), Bottleneck(16, 64)).eval()
    images, more = torch.randn(2, 16, 8, 9), torch.randn(3, 16, 8, 9)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "network.pt2")
    loaded = torch.export.load(tmp_path / "network.pt2")
    targets = [node.target for node in loaded.graph.nodes]
    assert targets.count(ops.involution2d.default) == 2
    torch.testing.assert_close(loaded.module()(more), model(more))


# Two copies of the folder, where there is nothing but torch; and no warning either

COPIES = """
import gc, sys
sys.modules.update(helpers=None, cupy=None, ziglang=None)  # importing them raises ImportError
import torch, one, other
from one import benchmark, cuda
x = torch.ones(1, 1, 2, 2)
w = torch.ones(1, 1, 1, 1, 2, 2)
def slope(copy):
    return torch.func.grad(lambda x: copy.involution2d(x, w).sum())(x).sum().item()
print(slope(one), slope(other), *one.backend(), sep="|")
for name in [n for n in sys.modules if n.split(".")[0] == "one"]:
    del sys.modules[name]
del one, benchmark, cuda
gc.collect()
print(slope(other))
"""


def test_two_copies_in_one_process(tmp_path):
    for name in ("one", "other"):
        shutil.copytree(FOLDER, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PATH": "", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    environment |= {k: v for k, v in os.environ.items() if k.startswith(("OMP", "MKL"))}
    command = [sys.executable, "-W", "error", "-c", COPIES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    both, after = done.stdout.splitlines()
    assert both.startswith("4.0|4.0|plain|no C++ compiler was found") and after == "4.0"
