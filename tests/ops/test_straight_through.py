import math

import pytest
import torch

from helpers.ops.straight_through import (
    round_straight_through,
    sign_straight_through,
    spike,
    straight_through,
)
from tests.common import FLOATS, assert_refused, assert_same_bits, random

INF, NAN = math.inf, math.nan
each_dtype = pytest.mark.parametrize("dtype", FLOATS)


def slope(f, x):
    return torch.autograd.grad(f(x).sum(), x)[0]


def extremes(dtype):
    info = torch.finfo(dtype)
    numbers = [0.0, info.tiny, 0.3, 0.5, 1.0, 1.5, 2.5, 30.7, 1e4, info.max, INF]
    return torch.tensor(
        [*numbers, *(-n for n in numbers), NAN], dtype=dtype
    ).requires_grad_()


@each_dtype
def test_values_are_those_of_the_step_to_the_last_bit(dtype):
    x, info = extremes(dtype), torch.finfo(dtype)
    for numbers in (x, random(1000, dtype=dtype), 100 * random(1000, dtype=dtype)):
        c = numbers.detach()
        minus, one, zero = (torch.full_like(c, n) for n in (-1.0, 1.0, 0.0))
        sign = torch.where(c.isnan(), c, torch.where(c >= 0, one, minus))
        assert_same_bits(round_straight_through(numbers), torch.round(c))
        assert_same_bits(sign_straight_through(numbers), sign)
        assert_same_bits(sign_straight_through(numbers, INF), sign)
        step = torch.where(c.isnan(), c, torch.where(c > 0, one, zero))
        for steepness in (25.0, 1e-4, info.tiny, info.max):
            assert_same_bits(spike(numbers, steepness), step)


@each_dtype
def test_slopes_at_the_edges(dtype):
    x, info = extremes(dtype), torch.finfo(dtype)
    number = ~x.isnan()
    for step, right in (
        (round_straight_through, x.isfinite()),
        (lambda x: sign_straight_through(x, INF), x.isfinite()),
        *(
            (lambda x, c=c: sign_straight_through(x, c), x.abs() <= x.new_tensor(c))
            for c in (1.0, 1.5, 1e-3)
        ),
    ):
        assert torch.equal(slope(step, x)[number], right.to(dtype)[number])
    for steepness in (25.0, 0.25, 1e4):
        given = slope(lambda x, s=steepness: spike(x, s), x)[number]
        right = (1 / (1 + steepness * x.double().abs()[number]) ** 2).to(dtype)
        rtol = {torch.bfloat16: 3e-2, torch.float16: 5e-3}.get(dtype, 1e-5)
        torch.testing.assert_close(given, right, rtol=rtol, atol=2e-6)
    for steepness in (info.tiny, info.max):
        assert slope(lambda x, s=steepness: spike(x, s), x)[number].isfinite().all()


@pytest.mark.parametrize("at", [-2.0, -0.01, 0.0, 0.3])
def test_derivatives_of_every_order_of_the_spike_are_those_of_its_surrogate(at):
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    side = -1 if at < 0 else 1
    y, right = spike(x), x / (1 + side * 25 * x)
    for _ in range(4):
        y, right = (torch.autograd.grad(f, x, create_graph=True)[0] for f in (y, right))
        torch.testing.assert_close(y, right, rtol=1e-12, atol=0)


def by_quarters(x):
    return straight_through(torch.round(4 * x) / 4, torch.sin(x))


def test_a_step_of_ones_own_has_its_values_and_the_derivatives_of_the_other():
    x = random(20)
    assert_same_bits(by_quarters(x), (torch.round(4 * x) / 4).detach())
    first = torch.autograd.grad(by_quarters(x).sum(), x, create_graph=True)[0]
    torch.testing.assert_close(first, x.cos())
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], -x.sin())
    history = straight_through(x * 3, torch.sin(x))  # of the step, nothing arrives
    torch.testing.assert_close(torch.autograd.grad(history.sum(), x)[0], x.cos())


@pytest.mark.parametrize(
    "step, smooth, words",
    [
        (1.0, torch.ones(2), "step must be a torch.Tensor, got float"),
        (torch.ones(2), torch.ones(2).long(), "smooth must be floating-point"),
        (torch.ones(2), torch.ones(3), "one shape, got torch.Size([2]) and"),
        (torch.ones(2), torch.ones(2).double(), "one dtype, got torch.float32 and"),
    ],
)
def test_what_does_not_fit_together_is_named(step, smooth, words):
    assert_refused(words, straight_through, step, smooth)
