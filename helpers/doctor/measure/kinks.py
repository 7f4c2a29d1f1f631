"""Kinks and jumps of forward, where differences prove nothing."""

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


def kink(point, i):
    """Where differences prove nothing: the one-sided slopes differ, or are lost."""
    x, coarse = point.subject.inputs[i], point.subject.eps > 1e-10  # so that all looks broken
    for s in range(0 if coarse else min(point.values[i].numel(), point.limit)):
        _, u, step = next(point.units(i, s))
        for o, slope in enumerate(point.slopes(i, u)):
            sides = torch.stack([slope.left, slope.right])
            gap = (sides[0] - sides[1]).abs()
            apart = gap > 1e-3 * sides.abs().amax(0) + 1e-5 * largest(point.y0[o])
            apart &= ~slope.trusted[slope.moved]
            if apart.any() and stays(point, i, u, o, slope.moved[apart], sides[:, apart]):
                k = int(apart.nonzero()[0])
                sides = " and ".join(brief(side) for side in sorted((sides[:, k] / step).tolist()))
                seen = {"at": position(s, point.values[i].shape), "slopes": sides}
                return KINK(x, seen=seen)
    return NOT_JUDGED(x)


def stays(point, i, u, o, elements, sides):
    """Are the one-sided slopes the same for a smaller step, as they are at a kink and no pole?"""
    slope = point.slopes(i, u / 100)[o]
    for found, before in zip((slope.left, slope.right), sides, strict=True):
        whole = torch.zeros_like(slope.value).index_put_((slope.moved,), found)[elements]
        if ((100 * whole - before).abs() > 0.1 * sides.abs().amax(0)).any():
            return False
    return True
