"""The comparison behind the exercises, where no attempt at one of them shows it."""

import torch

from helpers.lessons.cases.case import function
from helpers.lessons.judge.compare import explain_difference, find_difference
from helpers.lessons.judge.numbers import near_miss

X = torch.tensor([[0.5, -1.0], [2.0, 3.0]], dtype=torch.float64)


def test_another_number_of_outputs_is_said():
    assert "3 outputs; 2 expected" in str(
        explain_difference(lambda x: (x, x**2, x), lambda x: (x, x**2), [X])
    )


def test_terms_that_cancel_may_leave_another_rounding():
    halves = lambda x: (x.exp() / 2, (-x).exp() / 2)  # noqa: E731
    by_hand = lambda x: (halves(x)[0] - halves(x)[1], sum(halves(x)))  # noqa: E731
    assert find_difference(by_hand, lambda x: (x.sinh(), x.cosh()), [X - 20]) is None


def test_none_may_stand_for_a_gradient_of_zero():
    like = lambda x, y: 2 * x.detach() - x + 0 * y  # noqa: E731
    negative = function(lambda x, y: x.clone(), lambda g, x, y: -g)
    assert explain_difference(negative.apply, like, [X, X], faithful=False) is None


def test_a_near_miss_is_said_in_the_order_of_the_table():
    misses = {"the sum of {n}": [2 * X, 3 * X], "the mean": 2 * X}
    said = [near_miss(X * k, X, misses, "another", n=4) for k in (1, 3, 2, 5, 1 + 1e-7)]
    assert said[0] is None
    assert list(map(str, said[1:4])) == ["the sum of 4", "the sum of 4", "another"]
    assert str(said[4]).startswith("another Nearly:")
