"""The test v · J · u: which derivatives are wrong."""

import functools
import math

import torch

from ..function.tensors import as_vector, largest, shaped
from .slopes import Slope, agrees, slopes_along

MANY = 16  # inputs


def is_large(values):
    """Too large, or too many, for more than the most necessary?"""
    return len(values) > 4 or sum(v.numel() for v in values) > 1e5


def screen(f, vjp, values, dice, eps, tolerance, y0=None, turns=2, symmetric=False, floor=1e-11):
    """Which derivatives are wrong, by v · J · u; vjp({o: v}) gives the gradients of output o.

    y0: f(values), if it is known. turns: the number of v and u, if that is not too much work. The
    second v gives every element of an output the same weight, however small it is. symmetric: are
    symmetric inputs to stay so? floor: what is rounding, by the size of the output. Returns
    - {(i, o): verdict} for input i and output o: "right", "wrong", "unsure", or "not finite" where
      some elements of a gradient are nan or inf though the slope is finite; "unknown" of many
      inputs where another one is wrong;
    - the inputs in which there are elements that cannot be judged;
    - the weights of the second v, a vector for each output.
    """
    y0 = f(values) if y0 is None else y0
    direction = functools.partial(dice.direction, symmetric=symmetric)
    screening = Screening(f, vjp, values, y0, eps, tolerance, max(floor, eps), direction)
    for turn in range(1 if is_large(values) else turns):
        screening.turn(dice, turn > 0)
    return screening.verdict, screening.doubts, screening.weights


class Screening:
    """First all inputs are moved at once, and one by one only where that does not agree."""

    def __init__(self, f, vjp, values, y0, eps, tolerance, floor, direction):
        self.f, self.vjp, self.values, self.y0, self.eps = f, vjp, values, y0, eps
        self.tolerance, self.floor, self.direction = tolerance, floor, direction
        self.which = list(range(len(values)))  # that are judged
        pairs = [(i, o) for i in self.which for o in range(len(y0))]
        self.verdict, self.doubts = dict.fromkeys(pairs, "right"), set()
        self.weights = [torch.ones_like(y) for y in y0]

    def turn(self, dice, weighted):
        """One v for each output, one u for each input."""
        self.moves = {i: self.direction(self.values[i]) for i in self.which}
        self.vs = [dice.normal(y) for y in self.y0]
        wrong = self.together(weighted) if len(self.moves) > 1 else None
        if wrong == []:
            return
        if wrong and len(self.which) > MANY:
            self.which = [self.one_of(wrong[0])]
            others = [(i, o) for i, o in self.verdict if i not in self.which]
            self.verdict |= dict.fromkeys(others, "unknown")
        self.each(weighted)

    def slopes(self, moves):
        return slopes_along(self.f, self.values, moves, self.y0, self.eps)

    def agree(self, v, slope, products, y):
        floor = self.floor * torch.where(slope.trusted & (v != 0), v * y, 0.0).norm()
        return agrees(v, slope, products, self.tolerance, floor)

    def each(self, weighted):
        """Judge the inputs one by one."""
        slopes = {i: self.slopes({i: self.moves[i]}) for i in self.which}
        self.doubts |= {i for i, found in slopes.items() for s in found
                        if (~s.trusted & s.value.isfinite()).any()}  # fmt: skip
        for o, v in enumerate(self.vs):
            of_inputs = {i: found[o] for i, found in slopes.items()}
            trusted = torch.stack([s.trusted for s in of_inputs.values()]).all(0)
            if not trusted.any():
                self.verdict |= {(i, o): "unsure" for i in self.which}
                continue
            if weighted:
                self.weights[o] = leveled(list(of_inputs.values()))
            v = torch.where(trusted, v * self.weights[o], 0.0)
            grads = self.vjp({o: v})
            for i, slope in of_inputs.items():
                found = self.judged(i, o, v, slope, grads[i])
                self.verdict[i, o] = found or self.verdict[i, o]

    def judged(self, i, o, v, slope, grad):
        """A verdict, or None if there is nothing against this gradient."""
        whole, verdict = self.moves[i], None
        move = as_vector(whole)
        given = torch.zeros_like(move) if grad is None else as_vector(grad)
        finite = given.isfinite()
        if not finite.all():  # what is finite is judged alone
            given, move = torch.where(finite, given, 0.0), torch.where(finite, move, 0.0)
            slope = self.slopes({i: shaped(move, whole)})[o]
            there = self.slopes({i: shaped(as_vector(whole) - move, whole)})[o]
            verdict = "not finite" if there.trusted.all() else "unsure"
            if (v[~slope.trusted] != 0).any():  # the gradient has what differences do not show
                return "unsure"
        return verdict if self.agree(v, slope, given * move, self.y0[o]) else "wrong"

    def together(self, weighted):
        """Groups of inputs (lists) of which some are wrong; None if they must be judged alone.

        In a group are those whose gradients weigh about the same, so that none hides another.
        """
        slopes = self.slopes(self.moves)
        self.y, everything = torch.cat(self.y0), joined(slopes)
        known = everything.trusted.double().mean().item()
        if not everything.value.isfinite().all() or known < (0.99 if len(self.which) > 4 else 1):
            return None
        if weighted:
            self.weights = [leveled([slope]) for slope in slopes]
        # No output hides another, either.
        sizes = [(w * s.value).norm() for w, s in zip(self.weights, slopes, strict=True)]
        vs = [v * w / (n or 1.0) for v, w, n in zip(self.vs, self.weights, sizes, strict=True)]
        self.v = torch.where(everything.trusted, torch.cat(vs), 0.0)
        grads = self.vjp(dict(enumerate(self.v.split([len(y) for y in self.y0]))))
        self.products = {i: torch.zeros_like(as_vector(u)) if grads[i] is None
                         else as_vector(grads[i]) * as_vector(u)
                         for i, u in self.moves.items()}  # fmt: skip
        if not all(p.isfinite().all() for p in self.products.values()):
            return None
        weigh = {i: p.norm().item() for i, p in self.products.items()}
        most, groups = max(weigh.values()) or 1.0, {}
        for i, size in weigh.items():
            groups.setdefault(math.ceil(math.log10(max(size / most, 1e-16))), []).append(i)
        known = [everything] if len(groups) == 1 else [None] * len(groups)
        pairs = zip(groups.values(), known, strict=True)
        return [group for group, slope in pairs if not self.group_agrees(group, slope)]

    def group_agrees(self, group, slope=None):
        slope = slope or joined(self.slopes({i: self.moves[i] for i in group}))
        return self.agree(self.v, slope, torch.cat([self.products[i] for i in group]), self.y)

    def one_of(self, group):
        """An input of this group that is wrong, by bisection."""
        while len(group) > 1:
            half = group[: len(group) // 2]
            group = group[len(half) :] if self.group_agrees(half) else half
        return group[0]


def joined(slopes):
    """The slopes of all outputs as those of one."""
    value, error, trusted = (
        torch.cat([getattr(s, name) for s in slopes]) for name in ("value", "error", "trusted")
    )
    return Slope(value, error, None, None, None, trusted)


def leveled(slopes):
    """Factors that make all elements of an output change alike; 0 for those lost in rounding."""
    size = torch.stack([s.value.abs() for s in slopes]).amax(0).nan_to_num()
    error = torch.stack([s.error for s in slopes]).amax(0)
    size = size.clamp(min=1e-6 * largest(size))
    return torch.where((size > 0) & (error < 1e-4 * size), largest(size) / size, 0.0).nan_to_num()
