"""When `fixed_point` stops, and when it says that it cannot."""

import pytest
import torch
from torch.autograd import grad

from helpers.ops.fixed_point import NotConvergedError, fixed_point


def test_no_convergence_is_an_error_with_the_residual():
    x = torch.full((2,), 2.0, requires_grad=True)
    with pytest.raises(NotConvergedError) as caught:
        fixed_point(lambda z, x: x - z, torch.zeros(2), x, max_steps=7)
    assert str(caught.value) == (
        "the fixed point did not converge in 7 steps: the last one changed it by 2, about inf is "
        "still to go, and its largest element is 2 (tol=1e-06)"
    )
    with pytest.raises(NotConvergedError, match="diverged: step 8 .* by inf"):
        fixed_point(lambda z, x: x + z**2, torch.zeros(2), x)
    with pytest.raises(NotConvergedError, match="diverged: step 1 .* by nan"):
        fixed_point(lambda z, x: torch.log(z - 1), torch.zeros(2), x)
    assert issubclass(NotConvergedError, RuntimeError)


def test_steps_are_counted():
    def halves(z):
        return z / 2 + 1

    calls = []
    with torch.no_grad():
        z = fixed_point(lambda z: calls.append(0) or halves(z), torch.zeros(1), tol=2**-5)
    assert z.item() == 2 - 2**-5 and len(calls) == 6
    assert fixed_point(halves, torch.zeros(1), tol=2**-5, max_steps=6) == z
    assert fixed_point(halves, z * 0 + 2, max_steps=1).item() == 2
    with pytest.raises(NotConvergedError, match="in 5 steps"):
        fixed_point(halves, torch.zeros(1), tol=2**-5, max_steps=5)
    with pytest.raises(NotConvergedError, match="in 200 steps"):
        fixed_point(torch.neg, torch.ones(1))


def test_at_most_the_tolerance_is_still_to_go():
    start, rest = torch.tensor([4.0, 0.0]), torch.tensor([2.0, 1.0])
    z = fixed_point(lambda z: z / 2 + rest, start, tol=2**-6)
    assert z.tolist() == [4, 2 - 4 * 2**-6]


def test_steps_within_the_rounding_are_not_questioned():
    eps = torch.finfo(torch.float32).eps
    for apart, ends in ((4, True), (5, False)):  # for ever between 1 and a number a little below
        below = torch.tensor([1 - apart * eps])

        def turns(z, below=below):
            return torch.where(z == 1, below, torch.ones(1))

        if ends:
            assert fixed_point(turns, torch.ones(1), tol=1e-5).item() == 1
        else:
            with pytest.raises(NotConvergedError, match="about inf is still to go"):
                fixed_point(turns, torch.ones(1), tol=1e-5)


def test_slow_steps_are_not_taken_for_small_errors():
    """At the rate 0.99 a hundred times the last step is still to go."""

    def slow(z, x):
        return 0.99 * z + 0.01 * x

    x = torch.ones((), dtype=torch.float64, requires_grad=True)
    start = torch.zeros_like(x)
    with pytest.raises(NotConvergedError, match="by 0.0037, about 0.37 is still to go"):
        fixed_point(slow, start, x, tol=0.01, max_steps=100)
    z = fixed_point(slow, start + 0.9, x, tol=0.01, max_steps=300)  # its first step is a small one
    assert 0.989 < z.item() < 1
    for tol in (1e-2, 1e-6):
        z = fixed_point(slow, start, x, tol=tol, max_steps=1500)
        (slope,) = grad(z, x)
        assert tol / 2 < 1 - z.item() < 1.1 * tol and tol / 2 < 1 - slope.item() < 1.1 * tol
    assert fixed_point(slow, z.detach() * 0 + 1 - 1e-15, x, tol=1e-14, max_steps=1).item() < 1


def test_a_tolerance_near_the_resolution_is_kept():
    start = torch.zeros(1, dtype=torch.bfloat16)
    z = fixed_point(lambda z: z / 2 + 1, start, tol=torch.finfo(torch.bfloat16).eps)
    assert z.item() >= 2 - 2**-6


def test_steps_that_shrink_by_turns_are_judged_by_two():
    def turns(z):
        return torch.stack((8 * z[1], z[0] / 16)) + 1  # the rate of two steps is a half

    for tol in (1e-2, 7e-3, 5e-3, 3e-3):
        z = fixed_point(turns, torch.zeros(2, dtype=torch.float64), tol=tol)
        assert 0 < (z - torch.tensor([18.0, 2.125])).abs().max() <= 18 * tol


def test_a_ring_of_three_or_four_in_which_most_steps_are_tiny():
    for size in (3, 4):
        scale = torch.full((size,), 1e-3, dtype=torch.float64)
        scale[0] = 0.9 * 1e3 ** (size - 1)
        rest = torch.eye(size, dtype=torch.float64)[0].requires_grad_()
        z = fixed_point(
            lambda z, rest, s=scale: rest + s * z.roll(1), 0 * rest, rest, max_steps=999
        )
        right = 10 * torch.tensor([1e-3**n for n in range(size)], dtype=torch.float64)
        torch.testing.assert_close(z.detach(), right, rtol=1e-4, atol=0)
        assert grad(z[0], rest)[0][0].item() == pytest.approx(10, rel=1e-4)


def test_a_solution_that_repels_has_no_gradient():
    x = torch.zeros((), requires_grad=True)
    z = fixed_point(lambda z, x: z**2 + x, torch.ones(()), x)
    assert z.item() == 1
    with pytest.raises(NotConvergedError, match="the gradient diverged"):
        z.backward()
    z = fixed_point(lambda z, x: z**2 + x, torch.tensor(0.5), x + 0.1, max_steps=300)
    z.backward()  # the other solution
    assert x.grad.item() == pytest.approx(1 / (1 - 2 * z.item()), rel=1e-5)
