"""What the doctor says of what it has not examined."""

import subprocess
import sys

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from helpers.doctor import examine, rounds
from helpers.lessons.patients.innocent import ClampsWhatIsLarge, LogDetOfSymmetric, symmetric
from helpers.lessons.patients.patient import Linear, Matmul, Square, affine, draw, vector


def said(report, code):
    return [f.message for f in report.findings if f.code == code]


# --- lines that no call reaches -------------------------------------------------------------------


def test_a_line_that_no_call_reaches_is_named():
    (message,) = said(examine(ClampsWhatIsLarge, *vector()), "not-reached")
    assert "innocent.py:" in message and "in backward" in message
    assert "`grad_output = grad_output.clamp(-1, 1)`, so that nothing" in message
    number = int(message.split("innocent.py:")[1].split()[0])
    with open(sys.modules[ClampsWhatIsLarge.__module__].__file__) as file:
        assert "grad_output.clamp(-1, 1)" in file.readlines()[number - 1]


class BothBranches(Square):
    """Every line is reached by one trial or another, or only raises."""

    @staticmethod
    def forward(ctx, x, y):
        if x.shape != y.shape:
            shapes = f"{x.shape} and {y.shape}"
            raise ValueError(
                f"x and y must have one shape, got {shapes}",
            )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_product, grad_sum):
        x, y = ctx.saved_tensors
        grad_x = grad_y = None
        if grad_product is not None:
            if ctx.needs_input_grad[0]:
                grad_x = grad_product * y
            else:
                assert ctx.needs_input_grad[1]
            if ctx.needs_input_grad[1]:
                grad_y = grad_product * x
        if grad_sum is None:
            return grad_x, grad_y
        return tuple(grad_sum if g is None else g + grad_sum for g in (grad_x, grad_y))


@pytest.mark.parametrize(
    ("fn", "inputs"), [(Linear, affine()), (BothBranches, (*vector(), 1 + vector()[0]))]
)
def test_where_every_line_is_reached_nothing_is_said(fn, inputs):
    report = examine(fn, *inputs)
    assert report.ok and not said(report, "not-reached"), str(report)


def test_a_jvp_and_a_second_derivative_reach_lines_of_their_own():
    class Cube(Square):
        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            if torch.is_grad_enabled():
                return grad_output * 3 * x * x
            return grad_output * x.square() * 3

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x**3

        @staticmethod
        def jvp(ctx, tangent):
            (x,) = ctx.saved_tensors
            return 3 * x * x * tangent

    report = examine(Cube, *vector())
    assert report.ok and not said(report, "not-reached"), str(report)


def test_a_debugger_goes_on_and_rounds_say_nothing():
    def trace(*_):
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert not said(examine(ClampsWhatIsLarge, *vector()), "not-reached")
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    with rounds() as found:
        ClampsWhatIsLarge.apply(vector()[0].requires_grad_())
    assert found.visits[0].findings == [] and sys.gettrace() is before


# --- points that it does not take -----------------------------------------------------------------


class TwiceLogDetOfSymmetric(LogDetOfSymmetric):
    @staticmethod
    def backward(ctx, grad_output):
        return 2 * LogDetOfSymmetric.backward(ctx, grad_output)


@pytest.mark.parametrize(
    ("fn", "codes"), [(LogDetOfSymmetric, []), (TwiceLogDetOfSymmetric, ["gradient-wrong"])]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_takes_symmetric_matrices_only_is_judged_along_these(fn, codes, dtype):
    report = examine(fn, symmetric()[0].to(dtype))
    assert [f.code for f in report.findings if f.severity == "error"] == codes, str(report)


def test_a_matrix_is_symmetric_though_rounded():
    class Form(Function):
        @staticmethod
        def forward(ctx, matrix, x):
            ctx.save_for_backward(matrix, x)
            return (x * (matrix @ x)).sum(0)

        @staticmethod
        def backward(ctx, grad_output):
            matrix, x = ctx.saved_tensors
            return grad_output * x @ x.t(), 2 * grad_output * (matrix @ x)

    (matrix,) = symmetric()
    matrix[0, 1] *= 1 + 1e-9
    assert examine(Form, matrix, *draw((4, 3))).ok


def test_a_transposed_gradient_is_named_though_the_input_is_symmetric():
    class Transposed(Matmul):
        @staticmethod
        def backward(ctx, grad_output):
            grad_input, grad_weight = Matmul.backward(ctx, grad_output)
            return grad_input, grad_weight.t()

    report = examine(Transposed, *draw((3, 4)), *symmetric())
    assert report.findings[0].code == "transposed", str(report)


def test_an_exception_at_a_point_that_nobody_gave_is_no_finding():
    class OnlyHere(Square):
        @staticmethod
        def forward(ctx, x):
            if x.sum() != 6:
                raise ValueError("x must have the sum 6")
            return Square.forward(ctx, x)

    report = examine(OnlyHere, torch.ones(6, dtype=torch.float64))
    assert report.ok, str(report)
    assert "forward raises near the given point" in said(report, "not-examined")[0]


# --- second derivatives ---------------------------------------------------------------------------


class Hooked(torch.nn.Linear):
    """Right, but its hook takes a part of the gradient for a constant."""

    def forward(self, x):
        y = super().forward(x).sin()
        y.register_hook(lambda g: g.detach() + 0 * g)
        return y


class Reentrant(torch.nn.Linear):
    def forward(self, x):
        return (
            checkpoint(lambda x: super(Reentrant, self).forward(x).sin(), x, use_reentrant=True)
            + x.sum()
        )


def test_where_there_is_no_function_the_remedy_speaks_of_none():
    findings = [f for f in examine(Hooked(3, 2), *draw((4, 3))).findings if f.severity == "error"]
    assert {f.code for f in findings} == {"double-backward-wrong"}
    assert all("`y.register_hook(lambda g: g.detach() + 0 * g)`" in f.remedy for f in findings)


def test_what_pytorchs_own_checkpoint_cannot_is_a_note():
    report = examine(Reentrant(3, 2), *draw((4, 3), dtype=torch.float32))
    (finding,) = [f for f in report.findings if f.code == "double-backward-wrong"]
    assert report.ok and finding.severity == "note", str(report)


# --- memory that backward frees -------------------------------------------------------------------


class Frees(Square):
    """Right, once: what was saved is gone afterwards."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = 2 * x * grad_output
        x.untyped_storage().resize_(0)
        return grad


class FreesAndForgets(Frees):
    @staticmethod
    def backward(ctx, grad_output):
        return Frees.backward(ctx, grad_output) * grad_output.exp()


@pytest.mark.parametrize("function", [Frees, FreesAndForgets])
def test_what_backward_has_freed_is_not_read(function):  # which would end Python
    codes = [f.code for f in examine(function, *vector()).findings]
    assert "backward-only-once" in codes
    assert ("not-linear" in codes) == (function is FreesAndForgets)


PROGRAM = """
import sys, torch
from helpers.doctor import examine
from helpers.ops.exp import Exp

assert examine(Exp, torch.rand(3)).ok and "torch._dynamo" not in sys.modules
compiled = torch.compile(lambda x: x.sin() * x, backend="eager", fullgraph=True)
assert examine(compiled, torch.rand(3)).ok and "torch._dynamo" in sys.modules
assert examine(Exp, torch.rand(3)).ok and compiled(torch.rand(3)).numel() == 3
"""


def test_the_compiler_is_not_imported_only_to_examine():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
