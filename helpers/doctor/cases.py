"""How a cause is declared, and what several causes ask of a wrong gradient."""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .report import TEXTS, Text, error
from .slopes import largest


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


class Cases(tuple):
    """One wrong gradient at those points, one or two, at which it is wrong.

    elsewhere: is it right at the given point?
    returned: what backward returned for each argument, before the engine corrected it
    wrong: the numbers of all inputs whose gradients are wrong
    """

    elsewhere, returned, wrong = False, {}, ()

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

    @functools.cached_property
    def ratios(self):
        """(elements, given / expected) of each case, if that is the same for every v, or None."""
        found = []
        for c in self:
            zero = (c.expected.abs() <= c.limit).all(0)
            keep = c.trusted & (c.expected.abs() > 1e-3 * largest(c.expected)).all(0)
            ratio = c.sampled[:, keep] / c.expected[:, keep]
            if not keep.any() or ((ratio - ratio[0]).abs() > 1e-3 * largest(ratio)).any():
                return None
            if not ratio.any() or (c.sampled.abs() > c.limit)[:, c.trusted & zero].any():
                return None
            found.append((c.elements[keep], ratio[0]))
        return found

    @functools.cached_property
    def missing(self):
        """(missing, there): the entries of the Jacobian, if only some that are there are lost."""
        seen = self[0].evidence
        if "given_jacobian" not in seen or not self[0].whole:
            return None
        given, expected = seen["given_jacobian"], seen["expected_jacobian"]
        limit = self[0].tolerance * largest(expected)
        there = expected.abs() > limit
        missing = there & (given.abs() <= limit)
        if not missing.any() or ((given - expected).abs() > limit)[~missing].any():
            return None
        # Where nothing is left of some gradients, that is simpler to say.
        return (missing, there) if (there & ~missing).any(0)[missing.any(0)].all() else None

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
        for t, ns in both:
            for many in range(2, len(ns)):
                for dims in itertools.combinations(range(len(ns)), many):
                    *first, last = map(str, dims)
                    named = f"dimensions {', '.join(first)} and {last} of {t}"
                    sizes.append((math.prod(ns[d] for d in dims), named))
        for (n, what), sign in itertools.product(sizes, (1, -1)):
            if n > 2 and fits(sign * n):
                return {"n": n, "what": what, "negated": "" if sign > 0 else " and negated"}
        return False

    def rest(self, name, power):
        """ratios / t**power, where t is the tensor called `name`; None without two of them."""
        found = []
        for c, (elements, ratio) in zip(self, self.ratios, strict=True):
            try:
                found.append(ratio / c.row(c.tensor(name).expand(c.shape))[elements] ** power)
            except RuntimeError:  # t has no value at each element
                return None
        found = torch.cat(found)
        return found if len(found) > 1 and found.isfinite().all() else None
