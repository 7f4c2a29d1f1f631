"""One wrong gradient at the points at which it is wrong, and what several causes ask of it."""

import contextlib
import functools
import itertools

import torch

from ..function.surroundings import CallError
from ..function.tensors import largest, of_the_same_kind
from .measurement import FEW


class Measurements(tuple):
    """One wrong gradient at those points, one or two, at which it is wrong: `Measurement`s.

    elsewhere: is it right at the given point?
    returned: what backward returned for each argument, before the engine corrected it
    wrong: the numbers of all inputs whose gradients are wrong; wrong_through: with the outputs'
    all: the `Measurements` of all wrong gradients; whole: those of which this is a corner
    """

    elsewhere, returned, wrong, wrong_through, all, whole = False, {}, (), (), (), ()

    @functools.cached_property
    def factor(self):
        """What the gradient is multiplied by, if that is all, everywhere; otherwise None."""
        factors = []
        for m in self:
            g, e = m.sampled[:, m.trusted].reshape(-1), m.expected[:, m.trusted].reshape(-1)
            factors.append((torch.vdot(e, g) / e.norm() ** 2).item())
            if factors[-1] == 0 or not m.fits(m.given / factors[-1]):
                return None
        agree = all(abs(f - factors[0]) <= 1e-4 * abs(factors[0]) for f in factors)
        return factors[0] if agree else None

    @functools.cached_property
    def ratios(self):
        """(elements, given / expected) of each point, if that is the same for every v, or None."""
        found = []
        for m in self:
            rows = (m.expected.abs() > m.limit)[:, m.trusted].any(1)  # ones may give zeros
            if not rows.any():
                return None
            expected = m.expected[rows]
            keep = m.trusted & (expected.abs() > 1e-3 * largest(expected)).all(0)
            ratio = m.sampled[rows][:, keep] / expected[:, keep]
            same = (ratio - ratio[:1]).abs() <= 1e-3 * largest(ratio)
            extra = (m.sampled.abs() > m.limit)[:, m.trusted & m.zero]
            if not (same.all() and (m.wrong & keep).any() and ratio.any()) or extra.any():
                return None
            found.append((m.elements[keep], ratio[0]))
        return found

    @functools.cached_property
    def jacobians(self):
        """(given, expected, limit) at the first point, of shape (outputs, inputs); or None."""
        seen = self[0].evidence
        if "given_jacobian" not in seen or not self[0].whole:
            return None
        given, expected = seen["given_jacobian"], seen["expected_jacobian"]
        return given, expected, self[0].tolerance * largest(expected)

    @functools.cached_property
    def again(self):
        """The first where the values of each input stand in the opposite order; or None."""
        m = self[0]
        if m.sparse or m.subject.is_slow:  # what fits so many elements is no chance
            return None
        turned = [v.flip(tuple(range(v.dim()))) for v in m.point.values]
        turned = [of_the_same_kind(v, t) for v, t in zip(m.point.values, turned, strict=True)]
        with contextlib.suppress(CallError, RuntimeError):
            return m.at(m.subject, turned)
        return None

    def each(self):
        """Each alone, and the first where the values stand in another order, if they can."""
        yield from (Measurements([m]) for m in self)
        yield from (Measurements([m]) for m in filter(None, [self.again]))

    @functools.cached_property
    def others(self):
        """The whole, if this is a corner, and other values, so that nothing fits by chance."""
        most = 1 if self[0].subject.is_slow else 3
        found = [*filter(None, [self.again]), *itertools.islice(self[0].varied(FEW), most)]
        found += self[0].of_other_sizes() if not self.whole else ()
        return [m for m in (*self.whole, *found) if m.trusted.any()]
