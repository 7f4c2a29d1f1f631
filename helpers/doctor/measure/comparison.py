"""A gradient, element by element, as backward gives it and as it should be; at several
points."""

import copy
import functools
import itertools
import math

import torch

from ..function.isolation import CallError, forgiving
from ..function.subject import of_one, of_sizes, resized, with_other_arguments
from ..function.tensors import (
    Dice,
    as_vector,
    largest,
    of_the_same_kind,
    position,
    scale,
    shaped,
)
from .slopes import agrees, slopes_along, vector

CORNER = 5, 6, 8, 12  # the size of a dimension, where forward permits it
HIDDEN = 3e-12  # so little of an output that differences need not show it
FEW = 6  # elements, of many, that tell whether it is right elsewhere, too


class Point:
    """The function at one point, with three v for every output: two random, one of
    ones.

    factors: of the v, a vector for each output
    """

    def __init__(self, subject, values, dice, factors=None):
        self.subject, self.values, self.dice = subject, values, dice
        run = subject.run(values)
        self.names, self.outputs = run.names, [o.detach() for o in run.outputs]
        self.y0 = [as_vector(o) for o in self.outputs]
        self.vs = [
            [dice.normal(o), dice.normal(o), torch.ones_like(o)] for o in self.outputs
        ]
        for vs, factor in zip(self.vs, factors or (), strict=bool(factors)):
            vs[:] = [v * shaped(factor, v) for v in vs]
        self.known, self.returned = {}, {}  # by input, by output
        self.scales = [scale(value).reshape(-1) for value in values]
        size = sum(t.numel() for t in (*self.outputs, *values))
        self.limit = min(512, max(16, 7_000_000 // size))

    def vjp(self, vs):
        """All gradients of the sum of v · output o, for {o: v}; other outputs receive
        zeros."""
        full = [torch.zeros_like(t) for t in self.outputs]  # not None
        for o, v in vs.items():
            full[o] = shaped(v, full[o])
        return self.subject.gradients(self.values, full)

    def given(self, o):
        """The gradients of the three v of output o: three lists, one entry for each
        input."""
        if o not in self.returned:
            self.returned[o] = [self.vjp({o: v}) for v in self.vs[o]]
        return self.returned[o]

    def slopes(self, i, u):
        """The `Slope` of each output along the move u of input i."""
        moves = {i: u.reshape(self.values[i].shape)}
        return slopes_along(
            self.subject.forward, self.values, moves, self.y0, self.subject.eps
        )

    def units(self, i, s):
        """The moves of element s of input i alone, and of its imaginary part; and their
        size."""
        value, step = self.values[i], self.scales[i][s].item()
        for unit in (1 + 0j, 1j) if value.is_complex() else (1,):
            u = torch.zeros_like(value.reshape(-1))
            u[s] = step * unit
            yield unit, u, step

    def expected(self, i):
        """Elements of input i (a sample, if many), and for each output what its
        gradients are.

        That is (value, error, trusted, Jacobian), the first two of shape (3, elements);
        the Jacobian of many elements has no rows.
        """
        if i not in self.known:
            elements = torch.tensor(self.sample(i), device=self.values[i].device)
            way = self.by_reference if self.subject.reference else self.by_differences
            self.known[i] = elements, way(i, elements)
        return self.known[i]

    @functools.cached_property
    def referred(self):
        """The gradients of the three v of each output, as the reference gives them."""
        outputs, leaves = self.subject.refer(self.values)

        def gradients(output, v):
            if not output.requires_grad:
                return [torch.zeros_like(leaf) for leaf in leaves]
            options = {"retain_graph": True, "materialize_grads": True}
            return torch.autograd.grad(output, leaves, v.to(output.dtype), **options)

        pairs = zip(outputs, self.vs, strict=True)
        return [[gradients(output, v) for v in vs] for output, vs in pairs]

    def by_reference(self, i, elements):
        """What `expected` says of each output, as the reference gives it."""
        dtype = torch.complex128 if self.values[i].is_complex() else torch.float64
        found = []
        for of_output in self.referred:
            rows = [grads[i].to(dtype).reshape(-1)[elements] for grads in of_output]
            value = torch.stack(rows)
            error = torch.zeros_like(value.real) + self.subject.eps * largest(value)
            trusted = torch.ones(len(elements), dtype=torch.bool, device=value.device)
            found.append((value, error, trusted, value[:0]))
        return found

    def sample(self, i):
        """The numbers of elements of input i: all; or some of many, and those that are
        suspect."""
        n = self.values[i].numel()
        if n <= self.limit:
            return list(range(n))
        drawn = torch.randint(n, (self.limit,), generator=self.dice.generator).tolist()
        outputs = range(len(self.outputs)) if self.limit > FEW else ()
        return sorted({0, n - 1, *drawn, *(self.suspect(i, o) for o in outputs)})

    def suspect(self, i, o):
        """By bisection, an element of input i whose gradient is wrong, if one is."""
        move = self.dice.direction(self.values[i]).reshape(-1)
        v = as_vector(self.vs[o][0])
        given = vector(self.given(o)[0][i], move)
        low, high = 0, len(move)
        while high - low > 1:
            u, middle = torch.zeros_like(move), (low + high) // 2
            u[low:middle] = move[low:middle]
            right = agrees(v, self.slopes(i, u)[o], given * as_vector(u), 1e-5, 0.0)
            low, high = (middle, high) if right else (low, middle)
        return low

    def by_differences(self, i, elements):
        """What `expected` says of each output, by moving one element after the
        other."""
        weights = [torch.stack([as_vector(v) for v in vs]) for vs in self.vs]
        noise = max(1e-11, 16 * self.subject.eps)
        rounding = [
            noise * (w * y).norm(dim=1) for w, y in zip(weights, self.y0, strict=True)
        ]
        few = [self.values[i].numel() * len(y) <= 4096 for y in self.y0]
        rows, found = [[] for _ in self.outputs], []
        for s in elements.tolist():
            for unit, u, step in self.units(i, s):
                for o, slope in enumerate(self.slopes(i, u)):
                    value = unit * (weights[o] @ slope.value)
                    error = 10 * (weights[o].abs() @ slope.error) + rounding[o]
                    column = slope.value / step if few[o] else slope.value[:0]  # none
                    rows[o].append(
                        (value / step, error / step, slope.trusted.all(), column)
                    )
        for row in rows:
            value, error, trusted, jacobian = map(torch.stack, zip(*row, strict=True))
            # Of a complex element, the two parts are added.
            value, error = (
                t.reshape(len(elements), -1, 3).sum(1).T for t in (value, error)
            )
            trusted = trusted.reshape(len(elements), -1).all(1)
            found.append((value, error, trusted, jacobian.T))
        return found


class Comparison:
    """The gradient of output o with respect to input i at one point; it never changes.

    given:    what backward gives, of shape (3, all elements), a row for each v; None is
              zeros
    elements: the numbers of those that were examined; `sampled` is `given` at these
    expected: what it should be, of shape (3, examined elements)
    off:      of the same shape: by how much the two differ
    limit:    of the same shape: what a right one may be off by, the only tolerance
              there is
    trusted:  of shape (examined elements): where `expected` can be relied on
    """

    def __init__(self, point, i, o, tolerance):
        self.point, self.i, self.o, self.tolerance = point, i, o, tolerance
        self.x, self.y, self.vs = point.values[i], point.outputs[o], point.vs[o]
        self.subject, self.shape = point.subject, tuple(self.x.shape)
        self.input, self.output = self.subject.inputs[i], point.names[o]
        self.is_complex = self.x.is_complex() or self.y.is_complex()
        rows = [grads[i] for grads in point.given(o)]
        self.none = all(row is None for row in rows)
        self.given = torch.stack([self.row(row) for row in rows])
        self.elements, found = point.expected(i)
        self.expected, self.error, trusted, self.jacobian = found[o]
        self.sampled = self.given[:, self.elements]
        self.off = (self.sampled - self.expected).abs()
        self.trusted = trusted & self.off.isfinite().all(0)
        self.sparse = len(self.elements) < self.x.numel()
        self.limit = self.error + tolerance * largest(self.expected[:, self.trusted])
        self.zero = (self.expected.abs() <= self.limit).all(0)
        self.near = self.off <= self.limit
        # What is too small to show beside numbers of the size of 1 may be lost inside
        # forward.
        weights = as_vector(self.vs[0]).abs().max()
        shows = (self.off * point.scales[i][self.elements] > HIDDEN * weights).any(0)
        near = self.near.all(0)
        self.trusted &= near | shows
        self.whole = not self.sparse and bool(self.trusted.all())
        self.wrong, self.right = self.trusted & ~near, self.trusted & near
        self.is_identity = self.shape == tuple(self.y.shape) and bool(
            (self.x == self.y).all()
        )

    def fits(self, rows):
        """Are these gradients right?

        rows: one for each v, of shape (all elements), perhaps made one after the other,
              until one is wrong
        """
        return self.fits_there((row[self.elements] for row in rows), self.trusted)

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
        """A gradient of the input as a vector of the precision of `expected`; None is
        zeros."""
        dtype = torch.complex128 if self.x.is_complex() else torch.float64
        grad = torch.zeros_like(self.x) if grad is None else grad.detach()
        return grad.to(self.x.device, dtype).reshape(-1)

    def vjp(self, v):
        return self.row(self.point.vjp({self.o: v})[self.i])

    def rows_of(self, run):
        """The gradients that this run gives, for one v after the other."""
        for v in self.vs:
            vs = [
                v if o == self.o else torch.zeros_like(t)
                for o, t in enumerate(run.outputs)
            ]
            yield self.row(self.subject.backward(run, vs, retain=True)[self.i])

    def beside(self, i, o):
        """That of another input, or output, at this point."""
        return Comparison(self.point, i, o, self.tolerance)

    def at_each(self, pairs, elements=None):
        """The same for each pair (subject, values) for which the function runs.

        elements: at most so many of them
        """
        for subject, values in pairs:
            with forgiving():
                point = Point(subject, values, Dice())
                point.limit = min(point.limit, elements or point.limit)
                yield Comparison(point, self.i, self.o, self.tolerance)

    def varied(self, elements=None):
        """The same with another value of each argument that is a number."""
        others = with_other_arguments(self.subject)
        return self.at_each(((other, self.point.values) for other in others), elements)

    @functools.cached_property
    def tensors(self):
        """{in words: tensor} of all that it was given, differentiated or not, and of
        the output."""
        names = self.input, *self.subject.names, *self.subject.inputs
        values = self.x, *self.subject.tensors, *self.point.values
        named = {f"`{name}`": t for name, t in zip(names, values, strict=True)}
        return {name: t for name, t in named.items() if t.numel() > 1} | {
            self.output: self.y
        }

    @property
    def passes(self):
        """Is the gradient grad_output itself, summed or expanded to the input's
        shape?"""
        try:
            vs = [
                v.expand(self.shape)
                if v.dim() < len(self.shape) or v.numel() < self.x.numel()
                else v.sum_to_size(self.shape)
                for v in self.vs
            ]
        except RuntimeError:
            return False
        return same(self.given, torch.stack([*map(self.row, vs)]))

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


# --- one wrong gradient at several points ---------------------------------------------


class WrongGradient(tuple):
    """One wrong gradient at those points, one or two, at which it is wrong:
    `Comparison`s.

    elsewhere: is it right at the given point?
    wrong_through: the numbers (input, output) of all gradients that are wrong
    together: of each of these that was measured, the first
    whole: those of which this is a corner
    """

    def __new__(cls, found, elsewhere=False, wrong_through=(), together=(), whole=()):
        made = super().__new__(cls, found)
        made.elsewhere, made.wrong_through = elsewhere, wrong_through
        made.together, made.whole = together, whole
        return made

    def multiple(self, made):
        """The number by which made(m) gives the right gradient, the same at all points;
        or None.

        made(m): of shape (3, elements)
        """
        found = []
        for m in self:
            try:
                rows = made(m)
            except (CallError, RuntimeError):  # of another shape, say
                return None
            a = rows[:, m.elements][:, m.trusted].reshape(-1)
            due = m.expected[:, m.trusted].reshape(-1)
            found.append((torch.vdot(a.to(due.dtype), due) / a.norm() ** 2).item())
            if not found[-1] or not m.fits(found[-1] * rows):
                return None
        return found[0] if all(abs(f / found[0] - 1) <= 1e-4 for f in found) else None

    @functools.cached_property
    def factor(self):
        """What the gradient is multiplied by, if that is all, everywhere; otherwise
        None."""
        number = self.multiple(lambda m: m.given)
        return number and 1 / number

    @functools.cached_property
    def ratios(self):
        """(elements, given / expected) of each point, if that is the same for every v,
        or None."""
        found = []
        for m in self:
            # Ones may give zeros.
            rows = (m.expected.abs() > m.limit)[:, m.trusted].any(1)
            if not rows.any():
                return None
            expected = m.expected[rows]
            keep = m.trusted & (expected.abs() > 1e-3 * largest(expected)).all(0)
            ratio = m.sampled[rows][:, keep] / expected[:, keep]
            same = (ratio - ratio[:1]).abs() <= 1e-3 * largest(ratio)
            extra = (m.sampled.abs() > m.limit)[:, m.trusted & m.zero]
            if (
                not (same.all() and (m.wrong & keep).any() and ratio.any())
                or extra.any()
            ):
                return None
            found.append((m.elements[keep], ratio[0]))
        return found

    @functools.cached_property
    def jacobians(self):
        """(given, expected, limit) at the first point, of shape (outputs, inputs); or
        None."""
        seen = self[0].evidence
        if "given_jacobian" not in seen or not self[0].whole:
            return None
        given, expected = seen["given_jacobian"], seen["expected_jacobian"]
        return given, expected, self[0].tolerance * largest(expected)

    @functools.cached_property
    def again(self):
        """The first where the values of each input stand in the opposite order: a list,
        or []."""
        m = self[0]
        turned = [
            of_the_same_kind(v, v.flip(tuple(range(v.dim())))) for v in m.point.values
        ]
        # What fits so many elements is no chance.
        return (
            [] if m.sparse or m.subject.is_slow else [*m.at_each([(m.subject, turned)])]
        )

    @functools.cached_property
    def others(self):
        """The whole, if this is a corner, and other values, so that nothing fits by
        chance."""
        m, most = self[0], 1 if self[0].subject.is_slow else 3
        found = [*self.again, *itertools.islice(m.varied(FEW), most)]
        if not (m.sparse or self.whole):  # of one row, or one column, less
            sizes = itertools.chain(resized(m.subject), of_one(m.subject))
            found += m.at_each(((other, other.values) for other in sizes), FEW)
        return [m for m in (*self.whole, *found) if m.trusted.any()]

    @functools.cached_property
    def of_other_sizes(self):
        """Those of the others whose input or output has another shape."""
        shapes = self[0].shape, self[0].y.shape
        return [m for m in self.others if (m.shape, m.y.shape) != shapes]


def in_a_corner(ms):
    """The same gradient for inputs of few elements, if it is wrong there, too;
    otherwise None.

    A size is changed wherever it occurs, or else of rows only; what forward insists on
    stays.
    """
    subject, few = copy.copy(ms[0].subject), {}
    for n in sorted(
        {n for t in subject.tensors for n in t.shape if n > CORNER[0] + 1}, reverse=True
    ):
        for m in CORNER[len(few) % 2 :: 2]:
            if m < n and (cut := next(of_sizes(ms[0].subject, few | {n: m}), None)):
                few[n], subject = m, cut
                break
    found = ms[0].at_each([(subject, subject.values)]) if few else ()
    found = [m for m in found if m.wrong.any()]
    return found and WrongGradient(
        found, wrong_through=ms.wrong_through, whole=ms, together=ms.together
    )


def same(a, b):
    """Are they equal but for rounding?"""
    return bool(((a - b).abs() <= 1e-9 * largest(b) + 1e-300).all())
