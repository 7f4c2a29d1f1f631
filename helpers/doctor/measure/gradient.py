"""A gradient as backward gives it and as it should be, at one point and at several."""

import functools
import itertools
import math
from dataclasses import dataclass, replace

import torch

from ..function.isolation import CallError, forgiving
from ..function.subject import of_one, of_sizes, resized, with_other_arguments
from ..function.tensors import Dice, as_vector, largest, of_the_same_kind, position
from ..words import _
from .point import FEW, Point, row_of

CORNER = 5, 6, 8, 12  # the size of a dimension, where forward permits it
HIDDEN = 3e-12  # so little of an output that differences need not show it


@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient of output o for input i at one point, as it is and as it should be.

    given:    what backward gives, of shape (3, all elements), a row for each v
    none:     is it None? Then `given` is zeros
    elements: the numbers of those that were examined
    expected: what it should be, of shape (3, examined elements)
    error:    of the same shape: how well that is known
    limit:    of the same shape: what a right one may be off by, the only tolerance
              there is
    trusted:  of shape (examined elements): where `expected` can be relied on
    jacobian: of few elements, of shape (outputs, inputs); else it has no rows
    """

    point: Point
    i: int
    o: int
    given: torch.Tensor
    none: bool
    elements: torch.Tensor
    expected: torch.Tensor
    error: torch.Tensor
    limit: torch.Tensor
    trusted: torch.Tensor
    jacobian: torch.Tensor

    # --- of what it is the gradient ---------------------------------------------------

    @property
    def subject(self):
        return self.point.subject

    @property
    def x(self):
        return self.point.values[self.i]

    @property
    def y(self):
        return self.point.outputs[self.o]

    @property
    def vs(self):
        return self.point.vs[self.o]

    @property
    def shape(self):
        return tuple(self.x.shape)

    @property
    def input(self):
        return self.subject.inputs[self.i]

    @property
    def output(self):
        return _(self.point.names[self.o])

    @property
    def is_complex(self):
        return self.x.is_complex() or self.y.is_complex()

    @property
    def is_identity(self):
        """Does forward return this input as it is?"""
        return self.x.shape == self.y.shape and bool((self.x == self.y).all())

    # --- is it right? -----------------------------------------------------------------

    @functools.cached_property
    def sampled(self):
        """What is given for the examined elements."""
        return self.given[:, self.elements]

    @functools.cached_property
    def off(self):
        """By how much that differs from what is expected."""
        return (self.sampled - self.expected).abs()

    @functools.cached_property
    def near(self):
        return self.off <= self.limit

    @functools.cached_property
    def zero(self):
        """Which should be zero."""
        return (self.expected.abs() <= self.limit).all(0)

    @functools.cached_property
    def wrong(self):
        return self.trusted & ~self.near.all(0)

    @functools.cached_property
    def right(self):
        return self.trusted & self.near.all(0)

    @property
    def sparse(self):
        """Were not all elements examined?"""
        return len(self.elements) < self.x.numel()

    @property
    def whole(self):
        return not self.sparse and bool(self.trusted.all())

    def fits(self, rows, known=None):
        """Are these gradients right?

        rows: one for each v, of shape (all elements), perhaps made one after the other,
              until one is wrong
        known: as in `fits_there`; None stands for all that are trusted
        """
        known = self.trusted if known is None else known
        return self.fits_there((row[self.elements] for row in rows), known)

    def fits_there(self, rows, known):
        """The same of rows of shape (examined elements). The only comparison there is.

        known: of this shape: the elements that count
        """
        rows = zip(rows, self.expected, self.limit, strict=False)
        return bool(known.any()) and all(
            bool(((row - e).abs() <= limit)[known].all()) for row, e, limit in rows
        )

    @property
    def is_right_for_ones(self):
        """Is it right, and not zero, for a grad_output of ones?"""
        some, ones = self.expected[2].abs() > self.limit[2], self.vs[2] == 1
        return bool(self.near[2][self.trusted].all() and some.any() and ones.all())

    def row(self, grad):
        return row_of(grad, self.x)

    def slope(self, u):
        """The `Slope` of its output along the move u of its input."""
        return self.point.slopes(self.i, u)[self.o]

    def vjp(self, v):
        return self.row(self.point.vjp({self.o: v})[self.i])

    def rows(self, seed=0):
        """The gradients that a run gives now, for one v after the other."""
        run = self.subject.run(self.point.values, seed=seed)
        for v in self.vs:
            vs = [
                v if o == self.o else torch.zeros_like(t)
                for o, t in enumerate(run.outputs)
            ]
            yield self.row(self.subject.backward(run, vs, retain=True)[self.i])

    def beside(self, i, o):
        """That of another input, or output, at this point."""
        return measured(self.point, i, o)

    def of_each(self, subjects, values=None, elements=None):
        """The same of each of these that runs, at its own values or at these.

        elements: at most so many of them
        """
        for subject in subjects:
            with forgiving():
                point = Point(subject, Dice(), values)
                point.limit = min(point.limit, elements or point.limit)
                yield measured(point, self.i, self.o)

    def varied(self, elements=None):
        """The same with another value of each argument that is a number."""
        others = with_other_arguments(self.subject)
        return self.of_each(others, self.point.values, elements)

    @functools.cached_property
    def tensors(self):
        """{in words: tensor} of all that was given, and of the output."""
        names = self.input, *self.subject.names, *self.subject.inputs
        values = self.x, *self.subject.tensors, *self.point.values
        named = {f"`{name}`": t for name, t in zip(names, values, strict=True)}
        return {name: t for name, t in named.items() if t.numel() > 1} | {
            self.output: self.y
        }

    @property
    def passes(self):
        """Is the gradient grad_output, summed or expanded to the input's shape?"""
        try:
            vs = [
                v.expand(self.shape)
                if v.dim() < len(self.shape) or v.numel() < self.x.numel()
                else v.sum_to_size(self.shape)
                for v in self.vs
            ]
        except RuntimeError:
            return False
        return nearly_equal(self.given, torch.stack([*map(self.row, vs)]))

    @functools.cached_property
    def evidence(self):
        """The worst element and the angle; both Jacobians, if they are small."""
        off = torch.where(self.trusted, self.off, -1.0)
        # The first of those that are about the worst, lest rounding should choose.
        k, s = (off >= 0.99 * off.max()).nonzero()[0].tolist()
        given, expected = self.sampled[k, s].item(), self.expected[k, s].item()
        expected = expected if abs(expected) > self.limit[k, s] else 0.0
        seen = {
            "at": position(self.elements[s], self.shape),
            "given": given,
            "expected": expected,
        }
        if expected:
            seen["ratio"] = given / expected
        both = self.sampled, self.expected
        a, b = (rows[:, self.trusted].reshape(-1) for rows in both)
        if a.any() and b.norm() > self.limit.max():
            cosine = (torch.vdot(a, b).real / (a.norm() * b.norm())).clamp(-1, 1).item()
            seen["angle"] = f"{math.degrees(math.acos(cosine)):.0f}°"
        if self.jacobian.numel() and not self.is_complex:
            one_hot = torch.eye(self.y.numel(), device=self.y.device)
            seen["given_jacobian"] = torch.stack([*map(self.vjp, one_hot)])
            seen["expected_jacobian"] = self.jacobian
        return seen


def measured(point, i, o):
    """The `Gradient` of output o for input i at this point."""
    x, rows = point.values[i], [grads[i] for grads in point.given(o)]
    elements, found = point.expected(i)
    expected, error, trusted, jacobian = found[o]
    given = torch.stack([row_of(row, x) for row in rows])
    off = (given[:, elements] - expected).abs()
    trusted = trusted & off.isfinite().all(0)
    limit = error + point.tolerance * largest(expected[:, trusted])
    # What is too small to show beside numbers of the size of 1 may be lost inside
    # forward.
    weights = as_vector(point.vs[o][0]).abs().max()
    shows = (off * point.scales[i][elements] > HIDDEN * weights).any(0)
    return Gradient(
        point,
        i,
        o,
        given,
        all(row is None for row in rows),
        elements,
        expected,
        error,
        limit,
        trusted & ((off <= limit).all(0) | shows),
        jacobian,
    )


def are_right(gradients):
    """Does the function, as it is now, give all of these as they should be?"""
    return all(one.fits(one.rows()) for one in gradients)


def right_under(circumstance, gradients):
    """Are they right there, and does nothing raise?"""
    with forgiving(), circumstance:
        return are_right(gradients)
    return False


# --- one wrong gradient at several points ---------------------------------------------


@dataclass(frozen=True, eq=False)
class WrongGradient:
    """One wrong gradient.

    at: the `Gradient`s at the points, one or two, at which it is wrong
    elsewhere: is it right at the given point?
    wrong_through: the numbers (input, output) of all gradients that are wrong
    together: of each of these that was measured, the first
    larger: those of which this is a corner
    """

    at: tuple
    elsewhere: bool = False
    wrong_through: frozenset = frozenset()
    together: tuple = ()
    larger: tuple = ()

    @property
    def here(self):
        return self.at[0]

    def multiple(self, made):
        """The factor between made(here) and the right gradient, at all points.

        made(here): of shape (3, elements)
        """
        found = []
        for here in self.at:
            try:
                rows = made(here)
            except (CallError, RuntimeError):  # of another shape, say
                return None
            a = rows[:, here.elements][:, here.trusted].reshape(-1)
            due = here.expected[:, here.trusted].reshape(-1)
            found.append((torch.vdot(a.to(due.dtype), due) / a.norm() ** 2).item())
            if not found[-1] or not here.fits(found[-1] * rows):
                return None
        return found[0] if all(abs(f / found[0] - 1) <= 1e-4 for f in found) else None

    @functools.cached_property
    def factor(self):
        """What the gradient is multiplied by, if that is all, everywhere, or None."""
        number = self.multiple(lambda here: here.given)
        return number and 1 / number

    @functools.cached_property
    def steady(self):
        """At how many elements of each point given / expected is the same for all v.

        Returns None if there is a point where it is not.
        """
        found = []
        for here in self.at:
            # Ones may give zeros.
            rows = (here.expected.abs() > here.limit)[:, here.trusted].any(1)
            if not rows.any():
                return None
            expected = here.expected[rows]
            keep = here.trusted & (expected.abs() > 1e-3 * largest(expected)).all(0)
            ratio = here.sampled[rows][:, keep] / expected[:, keep]
            same = (ratio - ratio[:1]).abs() <= 1e-3 * largest(ratio)
            extra = (here.sampled.abs() > here.limit)[:, here.trusted & here.zero]
            if (
                not (same.all() and (here.wrong & keep).any() and ratio.any())
                or extra.any()
            ):
                return None
            found.append(int(keep.sum()))
        return found

    @functools.cached_property
    def jacobians(self):
        """(given, expected, limit) at the first point, (outputs, inputs), or None."""
        seen = self.here.evidence
        if "given_jacobian" not in seen or not self.here.whole:
            return None
        given, expected = seen["given_jacobian"], seen["expected_jacobian"]
        return given, expected, self.here.point.tolerance * largest(expected)

    @functools.cached_property
    def in_reverse(self):
        """The same with each input's values in the opposite order: a list, or []."""
        here = self.here
        turned = [
            of_the_same_kind(v, v.flip(tuple(range(v.dim()))))
            for v in here.point.values
        ]
        # What fits so many elements is no chance.
        return (
            []
            if here.sparse or here.subject.is_slow
            else [*here.of_each([here.subject], turned)]
        )

    @functools.cached_property
    def others(self):
        """The whole, if this is a corner, and other values."""
        here, most = self.here, 1 if self.here.subject.is_slow else 3
        found = [*self.in_reverse, *itertools.islice(here.varied(FEW), most)]
        if not (here.sparse or self.larger):  # of one row, or one column, less
            sizes = itertools.chain(resized(here.subject), of_one(here.subject))
            found += here.of_each(sizes, elements=FEW)
        return [here for here in (*self.larger, *found) if here.trusted.any()]

    @functools.cached_property
    def negated(self):
        """The same with values of the opposite sign: a list, or [].

        They may take another branch of forward, or lie where it is not meant to be
        called, as a range that ends before it begins.
        """
        here = self.here
        if here.sparse or here.subject.is_slow:
            return []
        minus = [of_the_same_kind(v, -v) for v in here.point.values]
        found = here.of_each([here.subject], minus)
        return [here for here in found if here.trusted.any()]

    @functools.cached_property
    def of_other_sizes(self):
        """Those of the others in which a tensor has another shape."""

        def shapes(here):
            return [t.shape for t in (*here.point.values, here.y)]

        return [here for here in self.others if shapes(here) != shapes(self.here)]


def in_a_corner(wrong):
    """The same gradient for inputs of few elements, if it is wrong there, too, or None.

    A size is changed wherever it occurs, or else of rows only; what forward insists on
    stays.
    """
    subject, few = wrong.here.subject, {}
    for n in sorted(
        {n for t in subject.tensors for n in t.shape if n > CORNER[0] + 1}, reverse=True
    ):
        for less in CORNER[len(few) % 2 :: 2]:
            if less < n and (
                cut := next(of_sizes(wrong.here.subject, few | {n: less}), None)
            ):
                few[n], subject = less, cut
                break
    found = wrong.here.of_each([subject]) if few else ()
    found = tuple(here for here in found if here.wrong.any())
    return replace(wrong, at=found, elsewhere=False, larger=wrong.at) if found else None


def nearly_equal(a, b):
    """Are they equal but for rounding?"""
    same = a == b  # also where both are infinite
    limit = 1e-9 * largest(b) + 1e-300
    return bool((same | ((a - b).abs() <= limit)).all())
