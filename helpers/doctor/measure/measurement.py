"""One gradient, element by element, as backward gives it and as differences of forward say."""

import contextlib
import copy
import functools
import math

import torch

from ..function.subject import of_fewer, with_other_arguments
from ..function.surroundings import CallError
from ..function.tensors import Dice, as_vector, largest, position, scale, shaped
from ..name.where import relation
from .by_autograd import by_autograd
from .slopes import slopes_along

INTEGERS = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8
SIZES = 4  # at which it is examined, at most
FEW = 24  # elements, of many, that tell whether it is right elsewhere, too


class Point:
    """The function at one point, with three v for every output: two random, one of ones.

    suspects: elements of another point that are wrong; factors: of the random ones, vectors.
    """

    def __init__(self, subject, values, dice, suspects=None, factors=None):
        self.subject, self.values, self.dice = subject, values, dice
        run = subject.run(values)
        self.names, self.outputs = run.names, [o.detach() for o in run.outputs]
        self.y0 = [as_vector(o) for o in self.outputs]
        self.vs = [[dice.normal(o), dice.normal(o), torch.ones_like(o)] for o in self.outputs]
        for vs, factor in zip(self.vs, factors or (), strict=bool(factors)):
            vs[:2] = [v * shaped(factor, v) for v in vs[:2]]
        self.known, self.returned = {}, {}  # by input, by output
        self.suspects = {} if suspects is None else suspects  # of another point, by both
        self.scales = [scale(value).reshape(-1) for value in values]
        self.limit = min(
            512, max(16, int(7e6 / sum(len(as_vector(t)) for t in self.outputs + values)))
        )

    def vjp(self, vs):
        """All gradients of the sum of v · output o, for {o: v}; other outputs receive zeros."""
        full = [torch.zeros_like(t) for t in self.outputs]  # not None
        for o, v in vs.items():
            like = full[o]
            full[o] = v if v.shape == like.shape and v.dtype == like.dtype else shaped(v, like)
        return self.subject.gradients(self.values, full)

    def slopes(self, i, u):
        moves = {i: u.reshape(self.values[i].shape)}
        return slopes_along(self.subject.forward, self.values, moves, self.y0, self.subject.eps)

    def units(self, i, s):
        """The moves of element s of input i alone, and of its imaginary part; and their size."""
        value = self.values[i]
        step = self.scales[i][s].item()
        for unit in (1, 1j) if value.is_complex() else (1,):
            u = torch.zeros(value.numel(), dtype=value.dtype, device=value.device)
            u[s] = step * unit
            yield unit, u, step

    def expected(self, i):
        """Elements of input i (a sample, if many), and for each output what its gradients are.

        That is (value, error, trusted, Jacobian or None), the first two of shape (3, elements).
        """
        if i in self.known:
            return self.known[i]
        n = self.values[i].numel()
        elements = list(range(n))
        if n > self.limit:
            sides = borders(self.values[i].shape)
            number = max(self.limit // 2, self.limit - len(sides))
            drawn = torch.randint(n, (number,), generator=self.dice.generator).tolist()
            for o in range(len(self.outputs)):
                if (i, o) not in self.suspects:
                    self.suspects[i, o] = self.suspect(i, o)
                drawn.append(self.suspects[i, o])
            elements = sorted({*drawn, *sides})
        elements = torch.tensor(elements, device=self.values[i].device)
        self.known[i] = elements, by_autograd(self, i, elements) or self.by_differences(i, elements)
        return self.known[i]

    def by_differences(self, i, elements):
        n, weights, rounding = self.values[i].numel(), self.weights, self.rounding
        columns = [[] for _ in self.outputs]
        for s in elements.tolist():
            sums = [[0, 0, True, None] for _ in self.outputs]
            for unit, u, step in self.units(i, s):
                for o, slope in enumerate(self.slopes(i, u)):
                    error = 10 * (weights[o].abs() @ slope.error) + rounding[o]
                    sums[o][0] = sums[o][0] + unit * (weights[o] @ slope.value) / step
                    sums[o][1] = sums[o][1] + error / step
                    sums[o][2] &= bool(slope.trusted.all())
                    sums[o][3] = slope.value / step if n * len(slope.value) <= 4096 else None
            for column, total in zip(columns, sums, strict=True):
                column.append(total)
        found = []
        for column in columns:
            value, error, trusted, jacobian = zip(*column, strict=True)
            jacobian = torch.stack(jacobian, 1) if jacobian[0] is not None else None
            trusted = torch.tensor(trusted, device=value[0].device)
            found.append((torch.stack(value, 1), torch.stack(error, 1), trusted, jacobian))
        return found

    @property
    def weights(self):
        """Of each output, the v as vectors."""
        return [torch.stack([as_vector(v) for v in vs]) for vs in self.vs]

    @property
    def rounding(self):
        """Of each output, what v · output may be off by."""
        return [1e-11 * (w * y).norm(dim=1) for w, y in zip(self.weights, self.y0, strict=True)]

    def given(self, o):
        """The gradients of the three v of output o: three lists, one entry for each input."""
        if o not in self.returned:
            self.returned[o] = [self.vjp({o: v}) for v in self.vs[o]]
        return self.returned[o]

    def suspect(self, i, o):
        """By bisection, an element of input i whose gradient is wrong, if one is."""
        value, v = self.values[i], as_vector(self.vs[o][0])
        grad = self.given(o)[0][i]
        given = as_vector(value) * 0 if grad is None else as_vector(grad)
        move = self.dice.direction(value).reshape(-1)
        low, high = 0, value.numel()
        while high - low > 1:
            middle = (low + high) // 2
            u = torch.zeros_like(move)
            u[low:middle] = move[low:middle]
            slope = self.slopes(i, u)[o]
            expected = torch.where(slope.trusted, v * slope.value, 0.0)
            products = given * as_vector(u)
            error = torch.where(slope.trusted, v.abs() * slope.error, 0.0).sum()
            limit = 10 * error.item() + 1e-5 * max(products.norm().item(), expected.norm().item())
            wrong = abs(expected.sum().item() - products.sum().item()) > limit
            low, high = (low, middle) if wrong else (middle, high)
        return low


class Measurement:
    """The gradient of output o with respect to input i at one point, as given and as expected.

    given: (3, all elements of the input), a row for each v; sampled: the same for those elements
    that `expected` and `limit` have.
    """

    def __init__(self, point, i, o, tolerance):
        self.point, self.i, self.o, self.tolerance = point, i, o, tolerance
        self.x, self.y, self.vs = point.values[i], point.outputs[o], point.vs[o]
        self.subject, self.shape = point.subject, tuple(self.x.shape)
        self.input, self.output = self.subject.inputs[i], point.names[o]
        rows = [grads[i] for grads in point.given(o)]
        self.none = all(row is None for row in rows)
        self.given = torch.stack([self.row(row) for row in rows])
        self.elements, found = point.expected(i)
        self.expected, error, trusted, self.jacobian = found[o]
        self.sampled = self.given[:, self.elements]
        self.trusted = trusted & (self.sampled.isfinite() & self.expected.isfinite()).all(0)
        # A change too small to show beside numbers of the size of 1 may be lost inside forward.
        change = self.sampled.abs() * scale(self.x).reshape(-1)[self.elements]
        self.trusted &= ~((self.expected == 0) & (change > 0) & (change < 1e-14)).any(0)
        self.sparse = len(self.elements) < self.x.numel()
        self.whole = not self.sparse and bool(self.trusted.all())
        self.floor = tolerance * largest(self.expected[:, self.trusted])
        self.limit = error + self.floor
        exact = 0.1 if tolerance <= 1e-5 else 1.0  # what mends it is more than nearly right
        self.close = error + exact * self.floor
        self.right = self.trusted & ((self.sampled - self.expected).abs() <= self.limit).all(0)
        self.wrong = self.trusted & ~self.right
        self.identity = self.shape == tuple(self.y.shape) and bool((self.x == self.y).all())

    def row(self, grad):
        dtype = torch.complex128 if self.x.is_complex() else torch.float64
        grad = torch.zeros_like(self.x) if grad is None else grad.detach()
        return grad.to(self.x.device, dtype).reshape(-1)

    def rows_of(self, run, vs=None):
        """The gradients that this run gives, for one v after the other."""
        for v in self.vs if vs is None else vs:
            vs = [v if o == self.o else torch.zeros_like(t) for o, t in enumerate(run.outputs)]
            yield self.row(self.subject.backward(run, vs, retain=True)[self.i])

    def vjp(self, v):
        return self.row(self.point.vjp({self.o: v})[self.i])

    def fits(self, candidate, mask=True):
        """Is `candidate`, of shape (3, sample), what is expected?"""
        near = ((candidate - self.expected).abs() <= self.limit).all(0)
        mask = self.trusted & mask
        return bool(mask.any()) and bool(near[mask].all())

    def fits_to(self, part):
        """Is it right but for this part of the largest?"""
        off, rows = (self.sampled - self.expected).abs(), self.expected.abs().amax(1, keepdim=True)
        return bool((off <= self.limit + part * rows)[:, self.trusted].all())

    def with_vs(self, made):
        """The same for made(v) in place of each v."""
        point = copy.copy(self.point)
        point.vs = [[made(v) for v in vs] if o == self.o else vs for o, vs in enumerate(point.vs)]
        point.known, point.returned = {}, {}
        point.limit = min(point.limit, FEW) if self.sparse else point.limit
        return Measurement(point, self.i, self.o, self.tolerance)

    @property
    def is_right(self):
        return self.fits(self.sampled)

    @property
    def for_ones(self):
        """Is the gradient right, and not zero, if grad_output is all ones?"""
        if (self.expected[2].abs() <= self.limit[2]).all():
            return False
        return self.fits(torch.stack([*self.expected[:2], self.sampled[2]]))

    @functools.cached_property
    def tensors(self):
        """{in words: tensor} of its input, of all, differentiated or not, and of the output.

        Vectors, too, as they are multiplied along a dimension that is not the last.
        """
        names = self.input, *self.subject.names, *self.subject.inputs
        values = self.x, *self.subject.tensors, *self.point.values
        found = {f"`{name}`": t for name, t in zip(names, values, strict=True)}
        along = {f"{name} along dimension {d}": t.reshape(-1, *[1] * (like.dim() - d - 1))
                 for like in (self.x, self.y) for name, t in found.items() if t.dim() == 1
                 for d in range(like.dim() - 1) if len(t) == like.shape[d] > 1}  # fmt: skip
        return found | along | {self.output: self.y}

    def fits_scaled(self, name, made):
        """Is it right for a grad_output that is multiplied by made(the tensor of this name)?"""
        try:
            t = made(self.tensors[name]).to(self.y.dtype).expand(self.y.shape)
        except RuntimeError:
            return False
        if not t.isfinite().all() or (t == t.reshape(-1)[0]).all():
            return False
        return self.fits_rows(self.vjp(v * t) for v in self.vs)

    def fits_with(self, j, value):
        """Is it right with another value of input j?"""
        point = copy.copy(self.point)
        point.values = [value if k == j else v for k, v in enumerate(point.values)]
        try:
            return self.fits_rows(self.row(point.vjp({self.o: v})[self.i]) for v in self.vs)
        except (CallError, RuntimeError):
            return False

    def fits_rows(self, rows):
        """fits, for the gradients of one v after the other, until one does not."""
        rows = zip(rows, self.expected, self.close, strict=False)
        near = (((row[self.elements] - e).abs() <= limit)[self.trusted] for row, e, limit in rows)
        return bool(self.trusted.any()) and all(t.all() for t in near)

    def fit_of(self, j, given, at):
        """Are the gradients `given` for input `at` those of input j, summed to its shape?"""
        x, other = self.point.values[at], self.point.values[j]
        if other.numel() > self.point.limit or x.is_complex() != other.is_complex():
            return False
        if x.dim() > other.dim() or any(
            n not in (1, m) for n, m in zip(x.shape[::-1], other.shape[::-1], strict=False)
        ):
            return False
        expected, _, trusted, _ = self.point.expected(j)[1][self.o]
        sums = [row.reshape(other.shape).sum_to_size(x.shape).reshape(-1) for row in expected]
        limit = self.tolerance * largest(expected) * other.numel() / x.numel()
        near = ((given - torch.stack(sums)).abs() <= limit).all() and trusted.all()
        return bool(near) and any(largest(t) > limit for t in sums)

    def is_returned_for(self, j):
        """Is what is returned for input j what belongs here?"""
        rows = [grads[j] for grads in self.point.given(self.o)]
        if any(row is None for row in rows):
            return False
        return self.fit_of(self.i, torch.stack([self.row(row) for row in rows]), j)

    def is_through(self, o):
        """Is what belongs through output o given through this one?"""
        vs, (expected, error, *_) = self.point.vs[o], self.point.expected(self.i)[1][o]
        if vs[0].shape != self.y.shape or vs[0].dtype != self.y.dtype:
            return False
        off = (torch.stack([self.vjp(v) for v in vs])[:, self.elements] - expected).abs()
        limit = error + self.tolerance * largest(expected)
        return bool((off <= limit)[:, self.trusted].all() and (expected.abs() > limit).any())

    @functools.cached_property
    def passed(self):
        """grad_output itself, summed or expanded to the input's shape, a row for each; or None."""
        try:
            vs = [v.expand(self.shape) if v.dim() < len(self.shape) or v.numel() < self.x.numel()
                  else v.sum_to_size(self.shape) for v in self.vs]  # fmt: skip
        except RuntimeError:
            return None
        return torch.stack([self.row(v) for v in vs])

    @property
    def passes(self):
        """Is the gradient grad_output itself?"""
        if self.passed is None:
            return False
        return all(same(row, v) for row, v in zip(self.given, self.passed, strict=True))

    @functools.cached_property
    def evidence(self):
        """The worst element and the angle; both Jacobians, if they are small."""
        off = torch.where(self.trusted, (self.sampled - self.expected).abs(), -1.0)
        # The first of those that are about the worst, lest rounding should choose.
        k, s = divmod(int((off >= 0.99 * off.max()).reshape(-1).nonzero()[0]), off.shape[1])
        given, expected = self.sampled[k, s].item(), self.expected[k, s].item()
        expected = expected if abs(expected) > self.limit[k, s] else 0.0
        seen = {"at": position(self.elements[s], self.shape), "given": given, "expected": expected}
        if expected:
            seen["ratio"] = given / expected
        a, b = self.sampled[:, self.trusted].reshape(-1), self.expected[:, self.trusted].reshape(-1)
        if a.any() and b.norm() > self.limit.max():
            cosine = (torch.vdot(a, b).real / (a.norm() * b.norm())).clamp(-1, 1).item()
            seen["angle"] = f"{math.degrees(math.acos(cosine)):.0f}°"
        if self.jacobian is not None and not self.x.is_complex() and not self.y.is_complex():
            jacobian = {"given_jacobian": self.given_jacobian()}
            seen |= jacobian | {"expected_jacobian": self.jacobian}
        return seen

    def given_jacobian(self):
        """The gradient of each output alone, of one forward if that makes no difference."""
        one_hot = torch.eye(self.y.numel(), dtype=self.y.dtype, device=self.y.device)
        vs = one_hot.unflatten(1, self.y.shape) if self.y.dim() else one_hot[0]
        with contextlib.suppress(CallError):
            found = torch.stack([*self.rows_of(self.subject.run(self.point.values), vs)])
            if same(as_vector(self.vs[0]) @ found, self.given[0]):
                return found
        return torch.stack([self.vjp(v) for v in vs])

    def how(self, tried=False):
        """In words, what the gradient is where it is wrong, and so with other numbers, too."""
        t = [t[:, self.wrong] for t in (self.sampled, self.expected, self.limit)]
        passed = None if self.passed is None else self.passed[:, self.elements][:, self.wrong]
        how = relation(*t, self.subject.numbers, passed)
        what, _, name = how.partition(" = ")
        others = [v for v in self.varied() if v.wrong.any()] if name and not tried else ()
        return how if all(v.how(True).endswith(f" = {name}") for v in others) else what

    def at(self, subject, values, elements=None):
        """The same at another point; elements: at most so many of them."""
        point = Point(subject, values, Dice())
        point.limit = min(point.limit, elements or point.limit)
        return Measurement(point, self.i, self.o, self.tolerance)

    def varied(self, elements=None):
        """The same with another value of each argument that is a number."""
        others = with_other_arguments(self.subject, lambda: self.subject.only_computes)
        for subject in others:
            with contextlib.suppress(CallError, RuntimeError):
                yield self.at(subject, self.point.values, elements)

    def of_other_sizes(self):
        """The same for inputs of one row, or one column, less, so that no size fits by chance."""
        whole = [t for t in self.subject.tensors if not t.is_floating_point() and t.numel()]
        last = max((int(t.max()) for t in whole if t.dtype in INTEGERS), default=0)
        shapes = self.shape, *(t.shape for t in self.point.values)
        sizes = dict.fromkeys(n for shape in shapes for n in sorted(shape))
        sizes = [n for n in sizes if n > max(2, last + 1)]  # what it points at stays there
        most = 0 if self.sparse else 1 if self.subject.is_slow else SIZES
        for size in sizes[:most]:
            for subject in of_fewer(self.subject, size):
                with contextlib.suppress(CallError, RuntimeError):
                    yield self.at(subject, subject.values, FEW)


def borders(shape):
    """The first and the last element; the middle, and from there the two next to each side."""
    numbers, middle = torch.arange(math.prod(shape)).reshape(shape), [n // 2 for n in shape]
    found = [0, numbers.numel() - 1, numbers[tuple(middle)].item()]
    for d in range(len(shape)):
        line = numbers[(*middle[:d], slice(None), *middle[d + 1 :])]
        found += torch.cat([line[:2], line[-2:]]).tolist()
    return found


def same(a, b):
    return bool(((a - b).abs() <= 1e-9 * largest(b) + 1e-300).all())
