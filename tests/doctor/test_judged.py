"""What was judged, and what was not: "nothing found" is a promise."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.autograd import Function

from helpers.doctor import examine, rounds
from helpers.doctor.program import bounds
from helpers.lessons.patients.patient import Square, draw, function
from tests.doctor.cases import errors, ones
from tests.doctor.programs import Half, leaf


def codes(report):
    return [finding.code for finding in errors(report)]


# --- inputs that require no gradient --------------------------------------------------------------


class RMSNorm(Function):
    """Its gradient of x lacks what x does to the others by the mean."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = (x * x).mean(-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, g):
        x, weight, scale = ctx.saved_tensors
        return g * weight * scale, (g * x * scale).sum(0)


class OfWeightOnly(RMSNorm):
    @staticmethod
    def backward(ctx, g):
        return None, RMSNorm.backward(ctx, g)[1]


class RefusesX(OfWeightOnly):
    @staticmethod
    def backward(ctx, g):
        if ctx.needs_input_grad[0]:
            raise NotImplementedError("no gradient of x")
        return OfWeightOnly.backward(ctx, g)


def frozen_beside_weight():
    (x,) = draw((3, 4))
    return x, ones(4).requires_grad_()


def test_a_gradient_of_a_frozen_input_is_judged():
    report = examine(RMSNorm, *frozen_beside_weight(), lines=False)
    assert codes(report) == ["term-missing"] and report.findings[0].input == "x"
    with rounds() as found:
        RMSNorm.apply(*frozen_beside_weight())
    assert not found.ok


@pytest.mark.parametrize(
    ("fn", "why", "meant"),
    [(OfWeightOnly, "backward returns None", True), (RefusesX, "fails once it does", False)],
)
def test_a_frozen_input_without_a_gradient_is_no_error(fn, why, meant):
    report = examine(fn, *frozen_beside_weight(), lines=False)
    assert report.ok, report
    weight, x = sorted(report.judged, key=lambda one: one.input)
    assert (weight.input, weight.points, weight.order) == ("weight", 3, 2)
    assert (x.input, x.points, x.order, x.meant) == ("x", 0, 0, meant) and why in x.why
    assert "not judged: `x` (it requires no gradient, and" in str(report)
    assert json.loads(report.to_json())["judged"][0]["why"] == report.judged[0].why
    with rounds() as found:
        fn.apply(*frozen_beside_weight())
    assert ("not judged: `x`" in str(found)) != meant
    assert bool(found.visits[0].missed) != meant


# --- sparse inputs --------------------------------------------------------------------------------


class SparseProduct(Function):
    @staticmethod
    def forward(ctx, matrix, x):
        ctx.save_for_backward(matrix, x)
        return matrix @ x

    @staticmethod
    def backward(ctx, g):
        matrix, x = ctx.saved_tensors
        return (g @ x.t()).sparse_mask(matrix), matrix.t() @ g


class NegatedSparse(SparseProduct):
    @staticmethod
    def backward(ctx, g):
        of_matrix, of_x = SparseProduct.backward(ctx, g)
        return -of_matrix, of_x


def sparse(layout):
    (x,) = draw((3, 2))
    dense = torch.tensor([[0, 0, 3], [4, 0, 5]], dtype=torch.float64)
    return dense.to_sparse(layout=layout).requires_grad_(), x.requires_grad_()


LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
@pytest.mark.parametrize("layout", LAYOUTS[:2])  # sparse_mask knows these
def test_the_values_of_a_sparse_input_are_judged(layout):
    right = examine(SparseProduct, *sparse(layout), lines=False)
    assert right.ok and "gradient-for-index" not in str(right), right
    assert {one.input: (one.points, one.order) for one in right.judged} == {
        "matrix": (3, 1), "x": (3, 1)
    }  # fmt: skip
    wrong = examine(NegatedSparse, *sparse(layout), lines=False)
    assert codes(wrong) == ["negated"] and wrong.findings[0].input == "matrix"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operations_on_what_is_sparse_are_right(layout):
    report = examine(lambda matrix, x: matrix @ x, *sparse(layout), lines=False)
    assert report.ok and all(one.points == 3 for one in report.judged), report


# --- elements at a jump ---------------------------------------------------------------------------


def imputed(x):
    known = x != 0
    return torch.where(known, x, (x * known).sum(0) / known.sum(0))


def test_an_element_at_a_jump_hides_no_other():
    """Where one value is missing, moving it changes the mean of all: the others hold it still."""
    fn = function(imputed, lambda g, x: g * (x != 0), "Impute")
    (x,) = draw((5, 1))
    x[1, 0] = 0
    report = examine(fn, x, lines=False)
    assert report.findings[0].severity == "error" and "right at the given" not in str(report)
    right = examine(imputed, x, lines=False)
    assert right.ok and right.judged[0].points == 3, right


def test_what_is_judged_at_no_point_says_so():
    report = examine(lambda x: (x.bfloat16() ** 2).double(), *draw((4,)), lines=False)
    (one,) = report.judged
    assert (one.points, one.order) == (0, 0) and report.ok
    assert "not judged: `x` (numbers are too coarse for differences)" in str(report)


# --- what is saved in low precision ---------------------------------------------------------------


def saving(change):
    class Saves(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(change(x))
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * x.to(g.dtype)

    return Saves


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["bfloat16", "half", "float", "clone"])
def test_a_copy_that_is_saved_has_no_second_derivative(kind, dtype):
    (x,) = draw((3, 4), dtype=dtype)
    report = examine(saving(getattr(torch.Tensor, kind)), x, lines=False)
    if (kind, dtype) != ("float", torch.float32):  # which is no copy, except in the float64 copy
        assert codes(report) == ["double-backward-wrong"], report


@pytest.mark.parametrize("kind", ["bfloat16", "half"])
def test_a_linear_function_in_low_precision_has_none_to_miss(kind):
    def forward(ctx, x, w):
        ctx.save_for_backward(getattr(w.detach(), kind)())
        return x * w.detach()

    def backward(ctx, g):
        return g * ctx.saved_tensors[0].to(g.dtype), None

    linear = type("Linear", (Function,), {
        "forward": staticmethod(forward), "backward": staticmethod(backward)
    })  # fmt: skip
    x, w = draw((3, 4), (3, 4))
    report = examine(linear, x.requires_grad_(), w, lines=False)
    assert "double-backward-wrong" not in codes(report), report


# --- in a program ---------------------------------------------------------------------------------


LOG = function(lambda x: x.log(), lambda g, x: g / x)  # right, until its input is negative


def test_a_later_call_with_nan_is_seen_with_more():
    def program():
        for shift in (0, 0.1, -0.7, 0.2):
            LOG.apply((leaf(3) + shift).detach().requires_grad_())

    with rounds() as found:
        program()
    assert "none wrong" in str(found).split("\n")[0] and "nan" not in str(found)
    with rounds(more=True) as found:
        program()
    (visit,) = found.visits
    assert (visit.calls, visit.patterns) == (4, 1)
    assert "Rounds: 1 Function, none wrong, 1 warned of" in str(found)
    assert "Forward makes nan or inf" in str(found)


class HalfLater(Square):
    """Wrong where the first element is above 1."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (1 if x.reshape(-1)[0] > 1 else 2) * g * x


def test_the_last_call_is_seen_with_more():
    def program():
        for shift in (-0.3, 1.0):
            HalfLater.apply((leaf(3) + shift).detach().requires_grad_())

    for more in (False, True):
        with rounds(more=more) as found:
            program()
        assert found.ok != more


def test_one_input_alone_may_be_unfaithful():
    Quantize = function(
        lambda x, scale: (x / scale).round() * scale,
        lambda g, x, scale: (g, (g * 2).sum()),  # the learned scale is wrong
        "Quantize",
    )
    x, scale = draw((6,), ())
    given = x, scale.abs() + 0.3
    assert examine(Quantize, *given, faithful=False, lines=False).ok
    report = examine(Quantize, *given, faithful={"x": False}, lines=False)
    assert {f.input for f in errors(report)} == {"scale"}
    for name, wrong in (("Quantize", False), ("Quantize(x)", True)):
        with rounds(faithful=[f"*{name}"]) as found:
            Quantize.apply(*[t.requires_grad_() for t in given])
        assert found.ok != wrong


def test_a_name_that_no_function_has_is_said():
    with rounds(skip=["Halve"], faithful=["Sqare(x)", "Half"]) as found:
        Half.apply(leaf(3))
    assert found.unmatched == ["Halve", "Sqare(x)"]
    assert "no Function is called Halve" in str(found)


POOL = ThreadPoolExecutor(1)


class InThreads(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return POOL.submit(torch.square, x).result()  # a child process has no such thread


def test_what_waits_for_threads_is_examined_here_when_asked():
    InThreads.apply(leaf(3))
    with rounds(seconds=2) as found:
        InThreads.apply(leaf(3))
    assert found.ok and "examine it here: `child=False`" in found.visits[0].missed
    with rounds(seconds=20, child=False) as found:
        InThreads.apply(leaf(3))
    assert found.visits[0].examined and not found.visits[0].missed, found


def test_what_has_started_threads_of_numba_is_examined_here(monkeypatch):
    module = type(torch)("numba.np.ufunc.parallel")
    module._is_initialized = True
    assert bounds.can_fork()
    monkeypatch.setitem(bounds.sys.modules, module.__name__, module)
    assert not bounds.can_fork()
