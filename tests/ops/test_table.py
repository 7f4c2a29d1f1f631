"""Every operation of `helpers/ops`, by its row in table.py."""

import doctest
import gc
import importlib
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from helpers.doctor import examine
from helpers.lessons.function_transforms import COMPILABLE, TRANSFORMS, together
from helpers.lessons.memory import Alive
from helpers.ops.fixed_point import fixed_point
from helpers.ops.gradient_reversal import GradientReversalLayer
from helpers.ops.linear import Linear
from helpers.ops.linear_cross_entropy import LinearCrossEntropyLoss
from helpers.ops.recompute import ReversibleSequential, recompute
from helpers.ops.softplus import SoftplusLayer
from tests.common import (
    TOLERANCE,
    as_it_is,
    assert_agree,
    assert_refused,
    compiled,
    random,
)
from tests.ops.table import NOT_IN_THE_TABLE, OPS, TORCH

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for path in (ROOT / "helpers" / "ops").iterdir()
    if path.name not in ("__init__.py", "__pycache__")
)

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def in_every(dtypes, but=None):
    """A mark: every sample of every operation but some, in its dtypes."""
    return pytest.mark.parametrize(
        "op, sample, dtype",
        [
            pytest.param(op, sample, dtype, id=f"{name}-{sample}-{str(dtype)[6:]}")
            for name, op in OPS.items()
            for dtype in op.dtypes
            if dtypes is None or dtype in dtypes
            for sample in op.samples(dtype)
            if but is None or not sample.startswith(but)
        ],
    )


@each_file
def test_every_file_has_a_row(path):
    with_a_row = {
        (op.wraps or op.function).__module__.split(".")[2] for op in OPS.values()
    }
    write = f"write a row for {path.stem} into tests/ops/table.py, or say why not there"
    assert path.name in NOT_IN_THE_TABLE or path.stem in with_a_row, write
    assert path.name in TORCH, f"write {path.name} into TORCH in tests/ops/table.py"


def test_every_row_has_a_file():
    assert {*NOT_IN_THE_TABLE, *TORCH} <= {path.name for path in FILES}


def is_differentiable(argument):
    return isinstance(argument, torch.Tensor) and argument.requires_grad


# Values and derivatives


@in_every(None)
def test_agrees_with_pytorch(op, sample, dtype):
    assert_agree(op.function, op.reference, op.samples(dtype)[sample], dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@each_op
def test_agrees_with_pytorch_on_a_cuda_device(op):
    for dtype in op.dtypes:
        for arguments in op.samples(dtype).values():
            on_device = tree_map_only(torch.Tensor, torch.Tensor.cuda, arguments)
            assert_agree(op.function, op.reference, on_device, dtype)


@in_every((torch.float64, torch.complex128), but="far")  # differences are too coarse
def test_gradcheck_and_gradgradcheck(op, sample, dtype):
    arguments = [
        a.detach().clone().requires_grad_() if is_differentiable(a) else a
        for a in op.samples(dtype)[sample]
    ]
    torch.manual_seed(0)  # fast_mode compares random projections of the Jacobians
    options = {"fast_mode": sample not in op.small}
    if "unfaithful" not in op.remarks:
        assert gradcheck(op.function, arguments, check_forward_ad=True, **options)
    elif arguments[0].numel():
        with pytest.raises(GradcheckError):
            gradcheck(op.function, arguments, **options)
    assert gradgradcheck(op.function, arguments, check_fwd_over_rev=True, **options)


def second_derivatives(function, arguments):
    leaves = list(filter(is_differentiable, arguments))
    result = function(*arguments)
    weight = random(*result.shape, dtype=result.dtype, seed=1)
    slopes = torch.autograd.grad(result, leaves, weight, create_graph=True)
    slopes = [slope for slope in slopes if slope.requires_grad]
    weights = [random(*s.shape, dtype=s.dtype, seed=2) for s in slopes]
    if not slopes:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(slopes, leaves, weights, materialize_grads=True)


@each_op
def test_second_derivatives_agree_far_out(op):
    for name, arguments in op.samples(torch.float64).items():
        if name.startswith("far"):
            pair = (
                second_derivatives(f, arguments) for f in (op.function, op.reference)
            )
            torch.testing.assert_close(*pair, **TOLERANCE[torch.float64])


@each_op
def test_the_doctor_agrees(op):
    for dtype in {torch.float64, torch.complex128} & set(op.dtypes):
        codes = set()
        for sample in op.small:
            arguments = op.samples(dtype)[sample]
            faithful = "unfaithful" not in op.remarks
            report = examine(op.function, *arguments, faithful=faithful)
            codes |= {finding.code for finding in report.findings}
            assert codes <= set(op.remarks), str(report)  # pytest would cut its repr
            assert report.ok and examine(op.function, *arguments).ok == faithful
        assert codes == set(op.remarks)


# Memory

# What is saved for backward, in its order: an argument, the result, or an intermediate
SAVED = {
    "attention": [0, 1, 2],
    "exp": ["result"],
    "gradient_reversal": [],
    "involution": [0, 1],
    "linear": [0, 1],
    "linear_cross_entropy": [0, 1, 2, 4, *["intermediate"] * 5],
    "mul_constant": [],
    "round_straight_through": [0, "intermediate"],
    "sign_straight_through": [0, "intermediate"],
    "sinh": ["intermediate"] * 2,
    "softplus": [0],
    "spike": ["intermediate"] * 3,
}


@pytest.mark.parametrize("name", OPS)
def test_keeps_what_backward_needs_and_nothing_else(name):
    assert name in SAVED, f"write into SAVED what {name} saves for backward"
    op, kept = OPS[name], []
    arguments = op.samples(torch.float64)[op.small[0]]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t) or t, lambda t: t
    ):
        result = op.function(*arguments)
    places = {a.data_ptr(): n for n, a in enumerate(arguments) if torch.is_tensor(a)}
    places[result.data_ptr()] = "result"
    assert [places.get(t.data_ptr(), "intermediate") for t in kept] == SAVED[name]


def root(z, a):
    return (z + a / z) / 2


TWOS = torch.full((3, 4), 2.0, dtype=torch.float64, requires_grad=True)
CALLS = {
    name: (op.function, op.samples(torch.float64)[op.small[0]])
    for name, op in OPS.items()
} | {
    "fixed_point": (lambda a: fixed_point(root, torch.ones_like(a), a), [TWOS]),
    "recompute": (lambda x: recompute(lambda x: x.sin().exp(), x), [TWOS]),
    "reversible": (ReversibleSequential([(torch.nn.Tanh(),) * 2]), [TWOS] * 2),
}


def derive(function, arguments, order):
    leaves = [a for a in arguments if is_differentiable(a)]
    outputs = function(*arguments)
    for _ in range(order):
        loss = sum(y.abs().square().sum() for y in tree_leaves(outputs))
        outputs = torch.autograd.grad(loss, leaves, create_graph=True)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_nothing_stays_alive_without_the_collector(call, order):
    derive(*CALLS[call], order)  # what is made once
    gc.collect()
    gc.disable()
    try:
        with Alive() as alive:
            derive(*CALLS[call], order)
        assert alive.now == 0
    finally:
        gc.enable()


# Transforms


def functions_of_tensors(op, sample, dtype=torch.float64):
    """The operation and its reference as functions of the tensors alone."""
    arguments = op.samples(dtype)[sample]
    tensors = tuple(a.detach() for a in arguments if is_differentiable(a))
    rest = arguments[len(tensors) :]
    ours, theirs = (lambda *t, f=f: f(*t, *rest) for f in (op.function, op.reference))
    return ours, theirs, tensors


def transformed(make):
    return lambda f, tensors, through: through(make(f))(*tensors)


def forward_over_vmap(f):
    return TRANSFORMS["jvp"](
        lambda *t: vmap(f)(*(torch.stack([one, one / 2]) for one in t))
    )


def backward(f, tensors, through):
    leaves = [t.clone().requires_grad_() for t in tensors]
    output = through(f)(*leaves)
    return [output, *torch.autograd.grad(output.square().sum(), leaves)]


class Holds(torch.nn.Module):
    def __init__(self, f, tensors):
        super().__init__()
        self.f, self.held = f, torch.nn.ParameterList(t.clone() for t in tensors)

    def forward(self):
        return self.f(*[2 * t for t in self.held])


def trained(f, tensors, through):
    """Two steps down, and where they lead."""
    module = through(Holds(f, tensors))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        module().abs().square().sum().backward()
        optimizer.step()
    return list(module.parameters())


def exported(module):
    return torch.export.export(module, ()).module()


# (what is done with the function and its tensors, and through which tracer)
USES = {
    **{name: (transformed(make), as_it_is) for name, make in TRANSFORMS.items()},
    "jvp(vmap)": (transformed(forward_over_vmap), as_it_is),
    "compile, dynamic shapes": (backward, partial(compiled, dynamic=True)),
    "compile(vmap(grad))": (transformed(COMPILABLE["vmap(grad)"]), compiled),
    "export": (trained, exported),
}


ON_2_11 = torch.__version__.startswith("2.11.")


@pytest.mark.parametrize("use", USES)
@each_op
def test_transforms(op, use):
    apply, through = USES[use]
    by_decision = "unfaithful" in op.remarks
    if ON_2_11 and by_decision and use == "compile(vmap(grad))":
        pytest.skip("torch 2.11 raises, say the docstrings")
    for sample in op.small:
        ours, theirs, tensors = functions_of_tensors(op, sample)
        torch.compiler.reset()
        right, given = apply(theirs, tensors, as_it_is), apply(ours, tensors, through)
        torch.testing.assert_close(given, right)


@pytest.mark.skipif(
    torch.__version__.startswith("2.10."), reason="lost there, say the docstrings"
)
@pytest.mark.parametrize(
    "name, dtype, strict, decompositions",
    [
        ("gradient_reversal", torch.float64, True, {}),
        ("gradient_reversal", torch.bfloat16, False, None),
        ("gradient_reversal", torch.complex64, False, {}),
        ("round_straight_through", torch.float32, True, None),
        ("round_straight_through", torch.float32, False, {}),
    ],
)
def test_a_slope_by_decision_survives_decompositions(
    name, dtype, strict, decompositions
):
    ours, theirs, tensors = functions_of_tensors(OPS[name], OPS[name].small[0], dtype)

    def through(module):
        program = torch.export.export(module, (), strict=strict)
        return program.run_decompositions(decompositions).module()

    right, given = trained(theirs, tensors, as_it_is), trained(ours, tensors, through)
    torch.testing.assert_close(given, right)


def every_other(f):
    """All that can be compiled, except vmap(grad), which has a test of its own."""
    others = {
        name: made(f) for name, made in COMPILABLE.items() if name != "vmap(grad)"
    }
    return lambda *tensors: {
        name: transformed(*tensors) for name, transformed in others.items()
    }


@pytest.mark.skipif(
    ON_2_11, reason="one that torch 2.11 does not compile makes all of them fail"
)
def test_all_compiled():
    """Every other transform of every operation, in one graph."""
    ours, theirs = [], []
    for op in OPS.values():
        one, other, tensors = functions_of_tensors(op, op.small[0])
        ours.append((one, tensors))
        theirs.append((other, tensors))
    scale = torch.tensor(0.7, dtype=torch.float64)
    torch.compiler.reset()
    f = torch.compile(every_other(together(*ours)), backend="eager", fullgraph=True)
    torch.testing.assert_close(f(scale), every_other(together(*theirs))(scale))


# Bad input


class NothingRuns(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} ran before the arguments were checked")


@pytest.mark.parametrize(
    "op, change, words",
    [
        pytest.param(op, *bad, id=f"{name}-{number}-{' '.join(bad[0])}")
        for name, op in OPS.items()
        for number, bad in enumerate(op.bad)
    ],
)
def test_bad_input_is_named(op, change, words):
    good = op.good()
    op.function(**good)
    with NothingRuns():
        assert_refused(words, partial(op.function, **(good | change)))


loss = partial(LinearCrossEntropyLoss, 3, 4)


@pytest.mark.parametrize(
    "module, arguments, words",
    [
        (GradientReversalLayer, (-1.0,), "scale must be finite and not negative, got"),
        (SoftplusLayer, (-1.0,), "beta must be finite and larger than 0, got -1.0"),
        (Linear, (3.0, 5), "in_features must be an int, got float"),
        (Linear, (3, True), "out_features must be an int, got bool"),
        (Linear, (-1, 5), "in_features must not be negative, got -1"),
        (
            partial(Linear, dtype=torch.cfloat),
            (3, 5),
            "floating-point torch.dtype, got to",
        ),
        (
            partial(Linear, dtype=torch.float8_e5m2),
            (3, 5),
            "16 bits or more, got torch",
        ),
        (partial(loss, softcap=-1.0), (), "softcap must be finite and not negative"),
    ],
)
def test_a_module_refuses_its_options_at_once(module, arguments, words):
    assert_refused(words, module, *arguments)


# The files


@each_file
def test_works_when_copied_alone(path, tmp_path, monkeypatch):
    """Its usage example, without `helpers`, and under another name if it is a folder.

    It also works beside the first copy, which has registered what it registers, with
    DTensor, too.
    """
    importlib.import_module("torch.distributed.tensor")
    importlib.import_module(f"helpers.ops.{path.stem}")
    name = "renamed" if path.is_dir() else path.stem
    if path.is_dir():
        shutil.copytree(
            path, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    else:
        shutil.copy(path, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = dict(sys.modules)
    for out_of_reach in [n for n in loaded if n.split(".")[0] == "helpers"] + [
        "helpers",
        "cupy",
    ]:
        sys.modules[out_of_reach] = None  # importing it raises ImportError
    try:
        result = doctest.testmod(importlib.import_module(name))
    finally:
        for copied in sys.modules.keys() - loaded.keys():
            del sys.modules[copied]
        sys.modules.update(loaded)
    assert result.attempted, f"the docstring of {path.name} has no usage example"
    assert not result.failed, f"the usage example of {path.name} prints something else"


@each_file
def test_is_in_the_readme_and_documented(path):
    link = f"](helpers/ops/{path.name}{'/' * path.is_dir()})"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [
        line for line in readme.splitlines() if line.startswith("| [") and link in line
    ]
    assert len(rows) == 1, (
        f"write one row for {path.name} into the README's table of what to copy"
    )
    torch_of_row, known = rows[0].split("|")[3].strip(), TORCH.get(path.name)
    assert torch_of_row == known, (
        "write the same torch into the README's row and into TORCH"
    )
    source = path / "__init__.py" if path.is_dir() else path
    docstring = source.read_text(encoding="utf-8").split('"""')[1]
    assert ">>> " in docstring, "no usage example"
    assert "https://" in docstring, "no source"
    sentence = f"Needs torch {known} or later."
    assert sentence in docstring, f"write `{sentence}` into its docstring"
