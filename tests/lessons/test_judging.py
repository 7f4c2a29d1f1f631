"""The comparison behind the exercises."""

import pytest
import torch
from torch.autograd import Function

from helpers.lessons.judging import difference, unlike


def attempt(forward, backward):
    class Attempt(Function):
        pass

    Attempt.forward = staticmethod(forward)
    Attempt.backward = staticmethod(backward)
    return Attempt.apply


X = torch.tensor([[0.5, -1.0], [2.0, 3.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: None, "returns None"),
        (lambda x: (x**2, x), "it returns a tuple, but a tensor is asked for"),
        (lambda x: 3.0, "the output is a float, not a tensor"),
        (lambda x: x[0] ** 2, "shape (2,), but (2, 2) is right"),
        (lambda x: x.float() ** 2, "torch.float32, but torch.float64 is right"),
        (lambda x: x**3, "the output is 27 at [1, 1], but 9 is right"),
        (lambda x: x.detach() ** 2, "requires no gradient"),
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (attempt(lambda ctx, x: x**2, lambda ctx, g: 1 / 0), "ZeroDivisionError"),
        (attempt(lambda ctx, x: x**2, lambda ctx, g: None), "missing in `backward`"),
    ],
)
def test_comparison_says_what_is_wrong(function, words):
    assert words in difference(function, lambda x: x**2, [X])


def test_comparison_of_several_outputs():
    reference = lambda x: (x, x**2)  # noqa: E731
    assert difference(reference, reference, [X]) is None
    assert "but a tuple of 2 tensors" in difference(lambda x: x, reference, [X])
    assert "3 outputs; 2 expected" in difference(lambda x: (x, x**2, x), reference, [X])
    assert "output 1 is 27" in difference(lambda x: (x, x**3), reference, [X])


def test_comparison_accepts_what_is_right():
    assert difference(lambda x: x * x, lambda x: x**2, [X]) is None
    assert difference(torch.frac, lambda x: x - x.detach().trunc(), [X]) is None


def test_terms_that_cancel_may_leave_another_rounding():
    halves = lambda x: (x.exp() / 2, (-x).exp() / 2)  # noqa: E731
    by_hand = lambda x: (halves(x)[0] - halves(x)[1], sum(halves(x)))  # noqa: E731
    assert unlike(by_hand, lambda x: (x.sinh(), x.cosh()), [X - 20]) is None


def test_gradients_that_are_no_derivatives_are_compared_with_the_reference():
    reversal = attempt(lambda ctx, x: x.clone(), lambda ctx, g: -g)
    reference = lambda x: 2 * x.detach() - x  # noqa: E731
    assert "negated" in difference(reversal, reference, [X])
    assert difference(reversal, reference, [X], faithful=False) is None
    identity = attempt(lambda ctx, x: x.clone(), lambda ctx, g: g)
    assert "the gradient is" in difference(identity, reference, [X], faithful=False)
    none_for_zero = attempt(lambda ctx, x, y: x.clone(), lambda ctx, g: (-g, None))
    of_two = lambda x, y: reference(x) + 0 * y  # noqa: E731
    assert difference(none_for_zero, of_two, [X, X], faithful=False) is None


def test_second_derivatives_count_only_where_they_are_asked_for():
    forgets = attempt(
        lambda ctx, x: ctx.save_for_backward(3 * x**2) or x**3,
        lambda ctx, g: ctx.saved_tensors[0] * g,
    )
    reference = lambda x: x**3  # noqa: E731
    assert difference(forgets, reference, [X]) is None
    assert "silently wrong" in difference(forgets, reference, [X], order=2)
    assert difference(lambda x: x * x * x, reference, [X], order=2) is None
