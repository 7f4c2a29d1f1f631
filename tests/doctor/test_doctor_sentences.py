"""What the doctor says is so, of all elements and for other numbers, too."""

import re

import pytest
import torch
from torch.autograd import Function
from torch.nn import functional as F

from helpers.doctor import examine
from helpers.doctor.where import indices
from helpers.lessons.patients.patient import Square, draw, matrix, vector
from tests.common import random


def wrong(forward, backward):
    """The `apply` of a Function with these two; backward(grad_output, the arguments)."""

    class Wrong(Function):
        @staticmethod
        def forward(ctx, *arguments):
            ctx.arguments = arguments
            return forward(*arguments)

        @staticmethod
        def backward(ctx, *grad_outputs):
            found = backward(*grad_outputs, *ctx.arguments)
            found = found if isinstance(found, tuple) else (found,)
            return found + (None,) * (len(ctx.arguments) - len(found))

    return Wrong.apply


def told(fn, *inputs):
    return next(f for f in examine(fn, *inputs).findings if f.severity != "note")


# --- numbers that were given ----------------------------------------------------------------------


def bent(x, beta, limit):
    return torch.where(beta * x > limit, 3 * x, x.exp())


def bent_backward(grad_output, x, beta, limit):
    return grad_output * torch.where(beta * x > limit, 3.0, x.exp() * x)


def huber(a, b, beta):
    d = a - b
    return torch.where(d.abs() < beta, d * d / 2 / beta, d.abs() - beta / 2).sum()


def huber_backward(grad_output, a, b, beta):
    d = a - b
    grad = grad_output * torch.where(d.abs() < beta, d, d.sign())
    return grad, -grad


def test_where_two_numbers_may_be_the_bound_others_are_tried():
    message = told(wrong(bent, bent_backward), 3 * draw((60,))[0], 2.0, 4.0).message
    assert "below `arguments[2]` / `arguments[1]` = 2, it is wrong" in message


def test_a_bound_may_be_that_of_a_difference_and_a_factor_have_a_name():
    message = told(wrong(huber, huber_backward), *draw((20,), (20,)), 0.7).message
    where = "where the magnitude of `arguments[0]` - `arguments[1]` is below `arguments[2]` = 0.7"
    assert f"{where}, it is multiplied by 0.7 = `arguments[2]`." in message


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda x, c: c * x, "lacks the factor `arguments[1]` = 3"),
        (lambda x, c: c * c * x / 3, "is right, but multiplied by 0.333"),
        (lambda x, c: 3 * x + c, "is right, but multiplied by 0.333"),
    ],
    ids=["it is", "its square is", "it is not"],
)
def test_a_number_is_the_factor_if_another_one_changes_it(forward, words):
    assert words in told(wrong(forward, lambda g, x, c: g), *vector(), 3.0).message


@pytest.mark.parametrize(
    ("forward", "name"),
    [(lambda x, c: c * x, " = `arguments[1]`"), (lambda x, c: 2 * x + c, "")],
    ids=["it is", "it is not"],
)
def test_a_factor_in_part_has_a_name_if_another_number_changes_it(forward, name):
    def right_above_0(x, c):
        return torch.where(x > 0, x, forward(x, c))

    def backward(grad_output, x, c):
        slope = forward(1.0, c) - forward(0.0, c)
        return grad_output * torch.where(x > 0, 1.0, slope * slope)

    message = told(wrong(right_above_0, backward), *draw((20,)), 2.0).message
    assert message.endswith(f"where `arguments[0]` is below 0, it is multiplied by 2{name}.")


class Scaled(torch.nn.Module):
    """A sum where a mean belongs, or a factor 1/4 that is missing? Both fit."""

    class Scale(Function):
        @staticmethod
        def forward(ctx, x, weight, scale):
            ctx.save_for_backward(x, weight)
            ctx.scale = scale
            return scale * x @ weight

        @staticmethod
        def backward(ctx, grad_output):
            x, weight = ctx.saved_tensors
            return ctx.scale * grad_output @ weight.t(), x.t() @ grad_output, None

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(*draw((3, 2)))

    def forward(self, x):
        return self.Scale.apply(x, self.weight, 0.25)


def test_where_a_size_and_a_number_fit_both_are_said():
    finding = told(Scaled(), *draw((4, 3)))
    assert finding.code == "sum-for-mean" and "But 4 = 1 / `ctx.scale`, too." in finding.message


# --- places and bounds ----------------------------------------------------------------------------


def test_an_error_that_shrinks_has_no_bound():
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)
    fn = wrong(lambda x: x + x**8, lambda g, x: g * (1 + x**7))
    assert told(fn, x).code == "derivative-wrong"


def test_a_bound_that_the_places_explain_as_well_is_none():
    def both(x):
        return torch.cat([x.sin(), 9 + x.exp()], 1).sum(0)

    def backward(grad_output, x):
        sine, exp = grad_output.chunk(2)
        return sine * x.cos() + 2 * exp * x.exp()

    message = told(wrong(both, backward), *matrix()).message
    assert "at index 4 to 7 of dimension 0 it is multiplied by 2" in message


def interpolated(table, at):
    i = at.floor().long()
    return table[i] * (1 - at + i) + table[i + 1] * (at - i)


def left_alone(grad_output, table, at):
    i = at.floor().long()
    grad = torch.zeros_like(table).index_add(0, i, (1 - at + i) * grad_output)
    return grad, grad_output * (table[i + 1] - table[i])


def test_places_that_hang_on_the_values_are_said_to():
    at = torch.tensor([0.9, 2.95, 4.9], dtype=torch.float64)
    message = told(wrong(interpolated, left_alone), *draw((7,)), at).message
    assert "at every odd index of dimension 0 (for these values) it is zero." in message


def gated(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def test_places_are_those_of_all_elements_where_few_are_examined():
    def backward(grad_output, x, exchanged):
        a, b = x.chunk(2, -1)
        s = a.sigmoid()
        grads = [grad_output * b * s * (1 + a * (1 - s) * exchanged), grad_output * a * s]
        return torch.cat(grads[::-1] if exchanged else grads, -1)

    (x,) = draw((100, 128))
    message = told(wrong(gated, lambda g, x: backward(g, x, 0)), x).message
    assert "index 0 to 63 of dimension 1 it is wrong" in message
    message = told(wrong(gated, lambda g, x: backward(g, x, 1)), x).message
    assert "shifted by 64 along dimension 1: its halves are exchanged" in message


def test_what_lies_between_examined_places_is_not_known():
    assert indices([0, 1, 2, 5], 20, [6, 7, 19]) == "index 0 to 5"
    assert indices([0, 1, 2, 5], 20, [7, 19]) == "about index 0 to 5"
    assert indices([1, 3, 7], 20, [0, 2, 6]) == "every odd index"


def test_a_spectrum_may_be_reversed():
    def backward(grad_output, x):
        return 2 * torch.fft.fft(grad_output * torch.fft.fft(x)).real

    fn = wrong(lambda x: torch.fft.fft(x).abs().square(), backward)
    (x,) = draw((8,))
    assert "right, but reversed, all but index 0, along dimension 0" in told(fn, x).message


# --- for which grad_outputs it is right -----------------------------------------------------------


@pytest.mark.parametrize(
    ("mixed", "words"),
    [
        (lambda g: g.mean((0, 1), True).expand_as(g), "the same all along dimensions 0 and 1"),
        (lambda g: (g + g.mT) / 2, "symmetric in dimensions 1 and 2"),
        (lambda g: g.mean().expand_as(g), "all ones, as it is after `.sum()`"),
    ],
)
def test_for_which_grad_outputs_it_is_right(mixed, words):
    (m,) = draw((3, 3))
    fn = wrong(lambda x: x @ m, lambda g, x: mixed(g) @ m.t())
    message = told(fn, *draw((2, 3, 3))).message
    assert f"is right where grad_output is {words}, but not in general" in message


def test_what_a_mask_should_keep_from_a_sum_is_named():
    def backward(grad_output, x, scale):
        inside = (x * scale).abs() < 1
        return grad_output * scale * inside, (grad_output * x).sum(0)

    fn = wrong(lambda x, scale: (x * scale).clamp(-1, 1), backward)
    message = told(fn, *draw((8, 3)), torch.tensor([0.9, 1.1, 1.3], dtype=torch.float64)).message
    assert "where the magnitude of the output is above" in message
    assert message.endswith("it should be zero.")


# --- where there is no Function -------------------------------------------------------------------


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x):
        return (x - x.mean(-1, keepdim=True).detach()) / self.scale.item()


def test_without_a_function_the_remedy_speaks_of_forward():
    findings = [f for f in examine(Normed(), *matrix()).findings if f.severity == "error"]
    assert [f.input for f in findings] == ["x", "scale"]
    assert all(".detach()" in f.remedy and "backward" not in f.remedy for f in findings)


def test_a_parameter_that_is_not_used_is_not_accused():
    class Half(torch.nn.Linear):
        def forward(self, x):
            return x @ self.weight.t()

    assert examine(Half(4, 3).double(), *matrix()).findings == []


class Counted(Function):
    """The mean over a batch of two, and an argument that is 2."""

    @staticmethod
    def forward(ctx, x, b, stride):
        return stride * x + b

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output, grad_output.mean(0), None


def test_a_number_that_a_size_has_is_not_taken_for_an_argument():
    found = told(Counted, random(2, 3), random(3), 2)
    assert found.code == "scaled" and "`grad_output.sum(0)`" in found.change


class Chain(Function):
    """The gradient of b is made from, so it is needed for that of a alone."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.linalg.solve(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        of_b = torch.linalg.solve(a.mT, grad_output)
        return -of_b @ torch.linalg.solve(a, b).mT, of_b


def test_what_another_gradient_is_made_of_is_not_computed_in_vain():
    a = random(4, 4) + 4 * torch.eye(4, dtype=torch.float64)
    found = [f for f in examine(Chain, a, random(4, 2)).findings if f.severity == "warning"]
    assert [(f.code, f.input) for f in found] == [("needs-input-grad-ignored", "b")]


def leaves(x):
    """A product leaves autograd."""
    inner = torch.tensor((x.detach() * 2).numpy())
    return inner.cumsum(0).sin() * x.flip(0) + Chain.apply(torch.diag(x.detach()), x.detach())


def test_what_leaves_autograd_is_shown_beside_a_function():
    found = told(leaves, random(4))
    assert re.fullmatch(
        r"what leaves autograd: `x.detach\(\)` \(line \d+, in `leaves`\).*", found.remedy
    )


class Detached(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x.detach()


def test_what_is_detached_in_backward_is_shown():
    found = told(Detached, random(4))
    assert found.change == "right if: `x.detach()` kept its gradient"
