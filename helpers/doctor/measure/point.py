"""What the gradients should be at one point, element by element."""

import functools

import torch

from ..function.tensors import Dice, as_vector, largest, scale, shaped
from .slopes import agrees, slopes_along

FEW = 6  # elements, of many, that tell whether it is right elsewhere, too


class Point:
    """The function at one point, with three v for each output: two random, one of ones.

    factors: of the v, a vector for each output
    """

    def __init__(self, subject, dice, values=None, factors=None):
        values = subject.values if values is None else values
        self.subject, self.values, self.dice = subject, values, dice
        run = subject.run(values)
        self.forward, self.eps = subject.forward, subject.eps
        self.tolerance = subject.tolerance
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

    def vjp(self, vs, create=False):
        """All gradients of the sum of v · output o, for {o: v}.

        Other outputs receive zeros.
        """
        full = [torch.zeros_like(t) for t in self.outputs]  # not None
        for o, v in vs.items():
            full[o] = shaped(v, full[o])
        return self.subject.gradients(full, self.values, create)

    def given(self, o):
        """The gradients of the three v of output o: three lists, one entry an input."""
        if o not in self.returned:
            self.returned[o] = [self.vjp({o: v}) for v in self.vs[o]]
        return self.returned[o]

    def slopes(self, i, u):
        """The `Slope` of each output along the move u of input i."""
        moves = {i: u.reshape(self.values[i].shape)}
        return slopes_along(self, moves)

    def units(self, i, s):
        """The moves of element s of input i, its imaginary part's, and their size."""
        value, step = self.values[i], self.scales[i][s].item()
        for unit in (1 + 0j, 1j) if value.is_complex() else (1,):
            u = torch.zeros_like(value.reshape(-1))
            u[s] = step * unit
            yield unit, u, step

    def expected(self, i):
        """Elements of input i, and for each output what its gradients are.

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
        """The same point of the reference."""
        other = Point(self.subject.referred, Dice(), self.values)
        other.vs = self.vs
        return other

    def by_reference(self, i, elements):
        """What `expected` says of each output, as the reference gives it."""
        x, found = self.values[i], []
        for o, y in enumerate(self.outputs):
            rows = [row_of(grads[i], x) for grads in self.referred.given(o)]
            value = torch.stack(rows)[:, elements]
            # Before anything cancels, it may have been as large as y / x.
            size = largest(value) + 64 * largest(y) / (largest(x) or 1)
            error = torch.zeros_like(value.real) + self.eps * size
            trusted = torch.ones(len(elements), dtype=torch.bool, device=value.device)
            found.append((value, error, trusted, value[:0]))
        return found

    def sample(self, i):
        """The numbers of elements of input i.

        They are all; or some of many, and those that are suspect.
        """
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
        given = as_vector(row_of(self.given(o)[0][i], move))
        low, high = 0, len(move)
        while high - low > 1:
            u, middle = torch.zeros_like(move), (low + high) // 2
            u[low:middle] = move[low:middle]
            right = agrees(v, self.slopes(i, u)[o], given * as_vector(u), 1e-5, 0.0)
            low, high = (middle, high) if right else (low, middle)
        return low

    def by_differences(self, i, elements):
        """What `expected` says of each output, by moving element after element."""
        weights = [torch.stack([as_vector(v) for v in vs]) for vs in self.vs]
        noise = max(1e-11, 16 * self.eps)
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


def row_of(grad, x):
    """A gradient of x as a vector of the precision of `expected`; None is zeros."""
    dtype = torch.complex128 if x.is_complex() else torch.float64
    grad = torch.zeros_like(x) if grad is None else grad.detach()
    return grad.to(x.device, dtype).reshape(-1)
