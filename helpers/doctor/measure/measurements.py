"""One wrong gradient at the points at which it is wrong, and what several causes ask of it."""

import contextlib
import copy
import functools
import itertools

import torch

from ..function.subject import of_sizes
from ..function.surroundings import CallError
from ..function.tensors import largest, of_the_same_kind
from .measurement import FEW

CORNER = 5, 6, 8, 12  # the size of a dimension, where forward permits it


class Measurements(tuple):
    """One wrong gradient at those points, one or two, at which it is wrong: `Measurement`s.

    elsewhere: is it right at the given point?
    wrong_through: the numbers (input, output) of all gradients that are wrong
    whole: those of which this is a corner
    """

    elsewhere, wrong_through, whole = False, (), ()

    def multiple(self, made, rest=False):
        """The number by which made(m) gives the right gradient, the same at all points; or None.

        made(m): of shape (3, elements); rest: is it the rest that it gives, beside what is given?
        """
        found = []
        for m in self:
            base = m.given if rest else torch.zeros_like(m.given)
            try:
                rows = made(m)
            except (CallError, RuntimeError):  # of another shape, say
                return None
            a, b = (t[:, m.elements][:, m.trusted].reshape(-1) for t in (rows, base))
            due = m.expected[:, m.trusted].reshape(-1) - b
            found.append((torch.vdot(a.to(due.dtype), due) / a.norm() ** 2).item())
            if not found[-1] or not m.fits(base + found[-1] * rows):
                return None
        return found[0] if all(abs(f / found[0] - 1) <= 1e-4 for f in found) else None

    @functools.cached_property
    def factor(self):
        """What the gradient is multiplied by, if that is all, everywhere; otherwise None."""
        number = self.multiple(lambda m: m.given)
        return number and 1 / number

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


def in_a_corner(ms):
    """The same gradient for inputs of few elements, if it is wrong there, too; otherwise None.

    A size is changed wherever it occurs, or else of rows only; what forward insists on stays.
    """
    subject, few = copy.copy(ms[0].subject), {}
    for n in sorted(
        {n for t in subject.tensors for n in t.shape if n > CORNER[0] + 1}, reverse=True
    ):
        for m in CORNER[len(few) % 2 :: 2]:
            if m < n and (cut := of_sizes(ms[0].subject, few | {n: m})):
                few[n], subject = m, cut
                break
    with contextlib.suppress(CallError, RuntimeError, IndexError, ValueError, TypeError):
        corner = Measurements([ms[0].at(subject, subject.values)])
        corner.wrong_through, corner.whole = ms.wrong_through, ms
        return corner if few and corner[0].wrong.any() else None
    return None
