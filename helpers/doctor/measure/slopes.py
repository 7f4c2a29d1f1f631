"""Derivatives from differences of forward, with error bars."""

import functools
from typing import NamedTuple

import torch

from ..function.tensors import largest

WIDE = [k / 300 for k in (3, 5, 7, 9)]  # steps
NARROW = [3e-3 * 0.1**k for k in range(7)]
# Of a step. Where a function moves in steps of its own, 1/2 and 1/4 agree by chance.
SHORTER = 0.29


class Slope(NamedTuple):
    """J · u for one output: value, error bar, and which elements to believe."""

    value: torch.Tensor
    error: torch.Tensor
    trusted: torch.Tensor


def slopes_along(of, moves):
    """J · u for every output, a list of `Slope`.

    of:    a `Point`, or what has `forward`, `values`, `y0` and `eps` as it has
    moves: {i: u}, the changes of some inputs
    Central differences at two steps are extrapolated; smaller ones are tried where the
    two do not agree.
    """
    at, eps = functools.partial(moved_by, of, moves), of.eps
    probe = at(1e-3)
    # Steps must be larger where numbers are coarser, perhaps only inside of f.
    if any(in_float32(t) and (y != t).any() for y, t in zip(of.y0, probe, strict=True)):
        eps = max(eps, torch.finfo(torch.float32).eps)
    best = [Differences(y) for y in of.y0]
    for h in (1e-3, 1e-5, 1e-7) if eps < 1e-10 else (3e-2, 1e-2):
        steps = h, -h, SHORTER * h, -SHORTER * h
        sides = zip(*(probe if t == 1e-3 else at(t) for t in steps), strict=True)
        if all(
            [
                found.refine(each, h, eps)
                for found, each in zip(best, sides, strict=True)
            ]
        ):
            break
    return [found.slope() for found in best]


def moved_by(of, moves, t):
    """The outputs where the inputs have moved this far."""
    moved = {i: torch.add(of.values[i], u, alpha=t) for i, u in moves.items()}
    return of.forward([moved.get(i, v) for i, v in enumerate(of.values)])


def half_change(of, moves, o, h):
    """Half of what output o changes by, from one side to the other."""
    return (moved_by(of, moves, h)[o] - moved_by(of, moves, -h)[o]) / 2


def wide_slope(half):
    """J · u by steps so wide that it does not matter where a forward stops iterating.

    half(h): the `half_change` of one output at this step
    """
    return sum(h * half(h) for h in WIDE) / sum(h * h for h in WIDE)


def rest_of(half, slope):
    """By how much the output is off from that slope over narrow steps."""
    off = {h: largest(half(h) - h * slope) for h in NARROW}
    return max(
        size if size > 1e-2 * h * largest(slope) else 0.0 for h, size in off.items()
    )


def in_float32(t):
    """Could these be numbers of float32? The first will mostly do to say no."""
    return all((few == few.float()).all() for few in (t[:100], t))


class Differences:
    """An output's best slope so far: of each element that with the smallest error."""

    def __init__(self, y):
        self.y, self.moves, self.size = y, y.isinf(), 0.0
        self.value, self.error = torch.zeros_like(y), torch.full_like(y, torch.inf)

    def refine(self, sides, h, eps):
        """Take what is better at this step; is it as exact as can be?

        sides: the output at h, -h, and at a part of these
        """
        changes = torch.stack([t != self.y for t in sides]).any(0)
        self.moves |= changes
        here = self.moves.nonzero()[:, 0]  # few, perhaps, of many
        y, p, m, near_p, near_m, changes = (t[here] for t in (self.y, *sides, changes))
        reach, small = torch.maximum(near_p.abs(), y.abs()), SHORTER * h
        self.size = size = max(self.size, largest(reach))
        first, second = (p - m) / (2 * h), (near_p - near_m) / (2 * small)
        # At 0: both err with the square of their step.
        value = (second - SHORTER**2 * first) / (1 - SHORTER**2)
        if eps > 1e-10:  # what cancelled was larger
            reach = reach.clamp(min=0.1 * size)
        noise = 16 * eps * reach / h
        wide = (p + m - 2 * y).abs() / h
        narrow = (near_p + near_m - 2 * y).abs() / small
        # What has been summed, as in an FFT, may be as large.
        rounding = 16 * eps * size / small
        kink = (narrow > 0.5 * wide) & (
            narrow > 1e-4 * value.abs() + 16 * noise + rounding
        )
        # What does not move at this step is lost in rounding, which may move it at
        # random.
        bad = kink | ~changes | ~value.isfinite()
        error = torch.where(bad, torch.inf, (value - second).abs() + noise)
        better = error <= self.error[here]
        self.value[here] = torch.where(better, value, self.value[here])
        self.error[here] = error = torch.minimum(error, self.error[here])
        fine = 1e-6 * value.abs() + 1e-7 * largest(value) + 2 * noise + 1e-9 * size
        return bool((error <= fine).all())

    def slope(self):
        size = self.value.abs() + 0.1 * largest(self.value) + 1e-5 * self.size
        error = torch.where(self.moves, self.error, 0.0)
        return Slope(self.value, error, error <= 1e-3 * size)


def agrees(v, slope, products, tolerance, floor):
    """Is v · J · u, by differences, the sum of gradient times u?

    Elements of the output that differences do not show count neither here nor there.
    floor: what v · output may be off by, as a part of it.
    """
    there = slope.trusted & (v != 0)
    expected = (v * slope.value)[there]
    error = (v.abs() * slope.error)[there].sum()
    size = max(expected.norm().item(), products.norm().item())
    limit = 10 * error + tolerance * size + floor
    return abs(expected.sum().item() - products.sum().item()) <= limit.item()
