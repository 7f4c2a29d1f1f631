"""Derivatives from differences of forward, with error bars."""

import itertools
from dataclasses import dataclass

import torch

from ..function.tensors import largest, position
from ..report import brief, note

KINK = note(
    "kink",
    "Forward has a kink or a jump in {x} at the given point, where differences prove nothing; the "
    "other elements were judged.",
)
NOT_JUDGED = note(
    "not-judged",
    "At some elements of {x}, differences of forward are lost in rounding, or there is a kink "
    "nearby; the other elements were judged.",
)
PART = 0.29  # of a step. Where a function moves in steps of its own, 1/2 and 1/4 agree by chance.


@dataclass
class Slope:
    """J · u for one output: value, error bar, and which elements to believe.

    moved: the elements of the output that move at all; left, right: their one-sided slopes.
    """

    value: torch.Tensor
    error: torch.Tensor
    moved: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor
    trusted: torch.Tensor | None = None


def slopes_along(f, values, moves, y0, eps):
    """J · u for every output of `f`, a list of `Slope`.

    moves: {i: u}, the changes of some inputs; y0: f(values); eps: of the numbers that f computes.
    Central differences at two steps are extrapolated; smaller ones are tried where the two do not
    agree. A kink at the point itself shows in one-sided slopes whose difference does not shrink
    with h.
    """

    def at(t):
        moved = {i: torch.add(values[i], u, alpha=t) for i, u in moves.items()}
        return f([moved.get(i, v) for i, v in enumerate(values)])

    best, settled = [None] * len(y0), [None] * len(y0)
    moved = [y.isinf() for y in y0]
    # Steps must be larger where numbers are coarser, perhaps only inside of f.
    probe = at(1e-3)
    sizes = [0.0] * len(y0)  # of what moves
    if any(in_float32(t) and (y != t).any() for y, t in zip(y0, probe, strict=True)):
        eps = max(eps, torch.finfo(torch.float32).eps)
    for h in (1e-3, 1e-5, 1e-7) if eps < 1e-10 else (3e-2, 1e-2):
        steps = h, PART * h
        sides = [[probe if t == 1e-3 else at(t) for t in steps], [at(-t) for t in steps]]
        for o, y in enumerate(y0):
            for t in itertools.chain(*sides):
                moved[o] |= t[o] != y
            k = moved[o].nonzero()[:, 0]  # one in a million may be left
            few = [[t[o][k] for t in side] for side in sides]
            sizes[o] = max(largest(y[k]), largest(probe[o][k]))
            *few, left, right, fine = central(*few, y[k], steps, eps, sizes[o])
            value, error = (torch.zeros_like(y).index_put_((k,), t) for t in few)
            new = Slope(value, error, k, left, right)
            fine = torch.ones_like(moved[o]).index_put_((k,), fine)
            if old := best[o]:
                better = new.error < old.error
                new.value = torch.where(better, new.value, old.value)
                new.error = torch.where(better, new.error, old.error)
                fine = torch.where(better, fine, settled[o])
            best[o], settled[o] = new, fine
        if all(fine.all() for fine in settled):
            break
    for slope, size in zip(best, sizes, strict=True):
        value, error = slope.value[slope.moved], slope.error[slope.moved]
        size = value.abs() + 0.1 * largest(value) + 1e-5 * size
        slope.trusted = torch.ones_like(slope.value, dtype=torch.bool)
        slope.trusted[slope.moved] = error <= 1e-3 * size
    return best


def in_float32(t):
    """Could these be numbers of float32? (The first will mostly do to say no.)"""
    return all((few == few.float()).all() for few in (t[:100], t))


def central(plus, minus, y, steps, eps, size):
    """Value, error, slopes on the left and on the right, whether that is as exact as can be.

    plus, minus: the output at the two steps, the larger first; size: of the largest output.
    """
    (p, near_p), (m, near_m), (h, small) = plus, minus, steps
    first, second = (p - m) / (2 * h), (near_p - near_m) / (2 * small)
    value = (second - PART**2 * first) / (1 - PART**2)  # to a step of 0; both err with its square
    reach = torch.maximum(near_p.abs(), y.abs())
    reach = reach.clamp(min=0.1 * size) if eps > 1e-10 else reach  # what has cancelled was larger
    noise = 16 * eps * reach / h
    wide, narrow = (p + m - 2 * y).abs() / h, (near_p + near_m - 2 * y).abs() / small
    rounding = 16 * eps * size / small  # what has been summed, as in an FFT, may be as large
    kink = (narrow > 0.5 * wide) & (narrow > 1e-4 * value.abs() + 16 * noise + rounding)
    still = (p == y) & (m == y)
    lost = still & (near_p == y) & (near_m == y)  # in rounding, which may move it at random
    error = (value - second).abs() + noise
    fine = error <= 1e-6 * value.abs() + 1e-7 * largest(value) + 2 * noise + 1e-9 * size
    error = torch.where(kink | lost | ~value.isfinite(), torch.inf, error)
    left, right = (y - near_m) / small, (near_p - y) / small
    return value, error, left, right, fine & error.isfinite()


def agrees(v, slope, products, tolerance, floor):
    """Is v · J · u, by differences, the sum of the products, gradient times u, but for rounding?

    Elements of the output that differences do not show count neither here nor there. floor: what
    v · output may be off by, as a part of it.
    """
    v = torch.where(slope.trusted, v, 0.0)
    expected = torch.where(v != 0, v * slope.value, 0.0)
    error = torch.where(v != 0, v.abs() * slope.error, 0.0).sum()
    size = max(expected.norm().item(), products.norm().item())
    limit = 10 * error + tolerance * size + floor
    return abs(expected.sum().item() - products.sum().item()) <= limit.item()


def kink(point, i):
    """The note about input i: a kink, if its one-sided slopes differ for a smaller step, too."""
    x, coarse = point.subject.inputs[i], point.subject.eps > 1e-10  # so that all looks broken
    for s in range(0 if coarse else min(point.values[i].numel(), point.limit)):
        _, u, step = next(point.units(i, s))
        for o, slope in enumerate(point.slopes(i, u)):
            sides = torch.stack([slope.left, slope.right])
            gap = (sides[0] - sides[1]).abs()
            apart = gap > 1e-3 * sides.abs().amax(0) + 1e-5 * largest(point.y0[o])
            apart &= ~slope.trusted[slope.moved]
            for k in apart.nonzero()[:1, 0]:
                near, size = point.slopes(i, u / 100)[o], sides[:, k].abs().max()
                at = near.moved == slope.moved[k]
                again = 100 * torch.stack([near.left[at], near.right[at]])
                if at.any() and ((again - sides[:, k : k + 1]).abs() <= 0.1 * size).all():
                    slopes = sorted((sides[:, k] / step).tolist())
                    seen = {"at": position(s, point.values[i].shape)}
                    return KINK(x, seen=seen | {"slopes": " and ".join(map(brief, slopes))})
    return NOT_JUDGED(x)
