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
