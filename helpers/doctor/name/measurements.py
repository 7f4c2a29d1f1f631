"""How a cause is declared, and what several causes ask of a wrong gradient."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..function.surroundings import CallError
from ..function.tensors import largest, of_the_same_kind
from ..measure.measurement import FEW
from ..report import TEXTS, Text, brief, error
from .where import Spots, named, rule, sizes_of, subsets, value_of


@dataclass
class Cause:
    text: Text
    test: Callable
    before: tuple  # codes


class Causes(list):
    """The causes of one file, in the order in which they are tried."""

    def __call__(self, code, message=None, look="", before=()):
        """Register the decorated test; without a message it finds a cause that has another."""

        def register(test):
            text = error(code, message, look) if message else TEXTS[code]
            self.append(Cause(text, test, before))
            return test

        return register


class Measurements(tuple):
    """One wrong gradient at those points, one or two, at which it is wrong.

    elsewhere: is it right at the given point?
    returned: what backward returned for each argument, before the engine corrected it
    wrong: the numbers of all inputs whose gradients are wrong; wrong_through: with the outputs'
    all: the cases of all wrong gradients, these among them; whole: those of which this is a corner
    """

    elsewhere, returned, wrong, wrong_through, all, whole = False, {}, (), (), (), ()

    @functools.cached_property
    def factor(self):
        """What the gradient is multiplied by, if that is all, everywhere; otherwise None."""
        factors = []
        for c in self:
            g, e = c.sampled[:, c.trusted].reshape(-1), c.expected[:, c.trusted].reshape(-1)
            factors.append((torch.vdot(e, g) / e.norm() ** 2).item())
            if factors[-1] == 0 or not c.fits(c.sampled / factors[-1]):
                return None
        agree = all(abs(f - factors[0]) <= 1e-4 * abs(factors[0]) for f in factors)
        return factors[0] if agree else None

    def is_factor(self, f):
        return self.factor is not None and abs(self.factor - f) < 1e-4 * abs(self.factor)

    @property
    def numbers(self):
        """Those that may be the factor; it is no argument of which others are tried."""
        subject = self[0].subject
        given = {} if subject.only_computes else {int}
        return {
            a: n for a, n in subject.numbers.items()
            if type(n) in given or a[1:-1] not in subject.arguments
        }  # fmt: skip

    @functools.cached_property
    def ratios(self):
        """(elements, given / expected) of each case, if that is the same for every v, or None."""
        found = []
        for c in self:
            zero = (c.expected.abs() <= c.limit).all(0)
            rows = (c.expected.abs() > c.limit)[:, c.trusted].any(1)  # ones may give zeros
            if not rows.any():
                return None
            expected = c.expected[rows]
            keep = c.trusted & (expected.abs() > 1e-3 * largest(expected)).all(0)
            ratio = c.sampled[rows][:, keep] / expected[:, keep]
            same = (ratio - ratio[:1]).abs() <= 1e-3 * largest(ratio)
            extra = (c.sampled.abs() > c.limit)[:, c.trusted & zero]
            if not (same.all() and (c.wrong & keep).any() and ratio.any()) or extra.any():
                return None
            found.append((c.elements[keep], ratio[0]))
        return found

    @functools.cached_property
    def jacobians(self):
        """(given, expected, limit) of the first case, of shape (outputs, inputs); or None."""
        seen = self[0].evidence
        if "given_jacobian" not in seen or not self[0].whole:
            return None
        given, expected = seen["given_jacobian"], seen["expected_jacobian"]
        return given, expected, self[0].tolerance * largest(expected)

    @functools.cached_property
    def missing(self):
        """(missing, there): the entries of the Jacobian, if only some that are there are lost."""
        if not self.jacobians:
            return None
        given, expected, limit = self.jacobians
        there = expected.abs() > limit
        missing = there & (given.abs() <= limit)
        if not missing.any() or ((given - expected).abs() > limit)[~missing].any():
            return None
        return missing, there

    @functools.cached_property
    def again(self):
        """The first case where the values of each input stand in the opposite order; or None."""
        c = self[0]
        if c.sparse or c.subject.is_slow:  # what fits so many elements is no chance
            return None
        turned = [v.flip(tuple(range(v.dim()))) for v in c.point.values]
        turned = [of_the_same_kind(v, t) for v, t in zip(c.point.values, turned, strict=True)]
        with contextlib.suppress(CallError, RuntimeError):
            return c.at(c.subject, turned)
        return None

    @functools.cached_property
    def others(self):
        """The whole, if this is a corner, and other values, so that nothing fits by chance."""
        most = 1 if self[0].subject.is_slow else 3
        found = [*filter(None, [self.again]), *itertools.islice(self[0].varied(FEW), most)]
        found += self[0].of_other_sizes() if not self.whole else ()
        return [c for c in (*self.whole, *found) if c.trusted.any()]

    def each(self):
        """Each case alone, and the first where the values stand in another order, if they can."""
        yield from (Measurements([c]) for c in self)
        yield from (Measurements([c]) for c in filter(None, [self.again]))

    @functools.cached_property
    def through(self):
        """(rows, where, look): elements of the output that are passed wrongly, beside right ones.

        where and look are None where they follow no rule. False, if that is not what is wrong.
        """
        points = []
        for cases in self.each():
            if not cases.jacobians:
                break
            given, expected, limit = cases.jacobians
            there, off = expected.abs() > limit, (given - expected).abs() > limit
            right, wrong = there.any(1) & ~off.any(1), off.any(1)
            some = wrong & there.any(1)  # or all of them should be zero
            mixed = (off != there)[some].any() or some.any() and (some != wrong).any()
            if mixed or not (there[right].any(0) & off[wrong].any(0)).any():
                break
            c = cases[0]
            numbers = torch.arange(len(off), device=off.device)
            points.append(Spots(numbers, right, wrong, dict(sizes_of(c, c.y))))
        if not points:
            return False
        where, look = rule(self[0].y.shape, points) or (None, None)
        return points[0].wrong, where, look

    def moved(self, order, inner=None):
        """Is what belongs at each element found where `order` says? inner: where that is asked."""
        for c in self:
            mask = True if inner is None else inner[c.elements]
            if not (c.expected.abs() > c.limit)[:, c.trusted & mask].any():
                return False
            if not c.fits(c.given[:, order[c.elements]], mask):
                return False
        return True

    def places(self):
        """The numbers of the elements, in the shape of the input."""
        return torch.arange(self[0].x.numel(), device=self[0].x.device).reshape(self[0].shape)

    def size(self, fits):
        """The first size of the output or the input that fits, and what has it; or False."""
        c, x = self[0], f"`{self[0].input}`"
        both = ((c.output, c.y.shape), (x, c.shape))
        sizes = [(n, f"dimension {d} of {t}") for t, ns in both for d, n in enumerate(ns)]
        sizes += [(c.y.numel(), c.output), (c.x.numel(), x)]
        for k, (t, ns) in enumerate(both):
            varied = self.varied(k)
            for dims in subsets(ns):
                if 1 < len(dims) < len(ns) and (varied is None or varied.issuperset(dims)):
                    sizes.append((math.prod(ns[d] for d in dims), f"{named(dims)} of {t}"))
        for n, what, sign in ((*pair, sign) for pair in sizes for sign in (1, -1)):
            if n > 2 and fits(sign * n):
                also = value_of(self.factor, self.numbers)
                also = also and f" But {brief(self.factor)}{also}, too."
                negated = "" if sign > 0 else " and negated"
                return {"n": n, "what": what, "negated": negated, "also": also}
        return False

    def varied(self, k):
        """Dimensions of the output (k = 0) in which what one element of the input acts on differs.

        Of the input (k = 1) those in which what acts on one element of the output differs.
        """
        if not self.jacobians:
            return None
        _, expected, limit = self.jacobians
        there = expected.abs() > limit
        shape, there = ((self[0].y.shape, there.T), (self[0].shape, there))[k]
        index = torch.unravel_index(torch.arange(there.shape[1], device=there.device), shape)
        return {d for d, i in enumerate(index) if any(len(i[row].unique()) > 1 for row in there)}
