"""The test v · J · u: which derivatives are wrong."""

import functools
import math

import torch

from ..function.tensors import as_vector, largest, shaped
from .slopes import Slope, slopes_along

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
    screening = Screening(f, vjp, values, dice, eps, tolerance, y0, turns, symmetric)
    screening.floor = max(floor, eps)
    screening.all()
    return screening.verdict, screening.doubts, screening.weights


class Screening:
    def __init__(self, f, vjp, values, dice, eps, tolerance, y0, turns, symmetric):
        self.direction = functools.partial(dice.direction, symmetric=symmetric)
        self.f, self.vjp, self.values, self.dice, self.y0 = f, vjp, values, dice, y0
        self.eps, self.tolerance = eps, tolerance
        self.turns = 1 if is_large(values) else turns
        pairs = [(i, o) for i in range(len(values)) for o in range(len(y0))]
        self.verdict, self.doubts = dict.fromkeys(pairs, "right"), set()
        self.weights = [torch.ones_like(y) for y in y0]

    def all(self):
        wrong = self.together() if len(self.values) > 4 else None
        if wrong == []:
            return
        if wrong and len(self.values) > MANY:
            one = self.one_of(wrong)
            self.each([one], until="wrong")
            if "wrong" in self.verdict.values():
                others = [(i, o) for i, o in self.verdict if i != one]
                self.verdict |= dict.fromkeys(others, "unknown")
                return
        self.each(range(len(self.values)))

    def slopes(self, moves):
        return slopes_along(self.f, self.values, moves, self.y0, self.eps)

    def each(self, which, until=None):
        """Judge these inputs one by one, as far as to the first verdict that is `until`."""
        values, verdict = self.values, self.verdict
        for turn in range(self.turns):
            moves = {i: self.direction(values[i]) for i in which}
            if turn and len(moves) > 1 and self.all_agree(moves):
                return
            slopes = {i: self.slopes({i: u}) for i, u in moves.items()}
            self.doubts |= {i for i, found in slopes.items() for s in found
                            if (~s.trusted & s.value.isfinite()).any()}  # fmt: skip
            for o, y in enumerate(self.y0):
                of_inputs = {i: found[o] for i, found in slopes.items()}
                trusted = torch.stack([s.trusted for s in of_inputs.values()]).all(0)
                if not trusted.any():
                    verdict |= {(i, o): "unsure" for i in which}
                    continue
                v = torch.where(trusted, self.dice.normal(y), 0.0)
                if turn:
                    self.weights[o] = leveled(list(of_inputs.values()))
                    v = v * self.weights[o]
                grads = self.vjp({o: v})
                for i, slope in of_inputs.items():
                    found = self.judged(i, o, moves[i], v, slope, grads[i])
                    verdict[i, o] = found or verdict[i, o]
                    if found and found == until:
                        return

    def all_agree(self, moves):
        """Are these right that were so one by one, moved together, each output weighted?"""
        for o, slope in enumerate(self.slopes(moves)):
            if not slope.trusted.all():
                return False
            self.weights[o] = leveled([slope])
            v = self.dice.normal(self.y0[o]) * self.weights[o]
            grads = self.vjp({o: v})
            pairs = [(grads[i], as_vector(u)) for i, u in moves.items() if grads[i] is not None]
            products = torch.cat([as_vector(grad) * u for grad, u in pairs]) if pairs else v[:0]
            if not agrees(v, slope, products, self.tolerance, self.y0[o], self.floor):
                return False
        return True

    def judged(self, i, o, move, v, slope, grad):
        """A verdict, or None if there is nothing against this gradient."""
        whole, verdict, move = move, None, as_vector(move)
        given = torch.zeros_like(move) if grad is None else as_vector(grad)
        finite = given.isfinite()
        if not finite.all():  # what is finite is judged alone
            given, move = torch.where(finite, given, 0.0), torch.where(finite, move, 0.0)
            part = shaped(move, whole)
            slope = self.slopes({i: part})[o]
            rest = shaped(as_vector(whole) - move, part)
            there = self.slopes({i: rest})[o]
            verdict = "not finite" if there.trusted.all() else "unsure"
        right = agrees(v, slope, given * move, self.tolerance, self.y0[o], self.floor)
        return verdict if right else "wrong"

    # --- many inputs ------------------------------------------------------------------------------

    def together(self):
        """Groups of inputs (lists) of which some are wrong; None if they must be judged alone.

        In a group are those whose gradients weigh about the same, so that none hides another.
        """
        self.moves = {i: self.direction(v) for i, v in enumerate(self.values)}
        self.y = torch.cat(self.y0)
        everything = joined(self.slopes(self.moves))
        if not everything.value.isfinite().all() or everything.trusted.double().mean() < 0.99:
            return None
        vs = [self.dice.normal(y) for y in self.y0]
        cuts = [len(y) for y in self.y0]
        # No output hides another, either.
        vs = [v / (s.norm() or 1.0) for v, s in zip(vs, everything.value.split(cuts), strict=True)]
        self.v = torch.where(everything.trusted, torch.cat(vs), 0.0)
        grads, self.products = self.vjp(dict(enumerate(self.v.split(cuts)))), {}
        for i, u in self.moves.items():
            grad, u = grads[i], as_vector(u)
            self.products[i] = torch.zeros_like(u) if grad is None else as_vector(grad) * u
        if not all(p.isfinite().all() for p in self.products.values()):
            return None
        weigh = {i: p.norm().item() for i, p in self.products.items()}
        most = max(weigh.values()) or 1.0
        groups = {}
        for i, size in weigh.items():
            groups.setdefault(math.ceil(math.log10(max(size / most, 1e-16))), []).append(i)
        if len(groups) == 1:
            return [] if self.group_agrees(list(self.moves), everything) else list(groups.values())
        return [group for group in groups.values() if not self.group_agrees(group)]

    def group_agrees(self, group, slope=None):
        slope = slope or joined(self.slopes({i: self.moves[i] for i in group}))
        products = torch.cat([self.products[i] for i in group])
        return agrees(self.v, slope, products, self.tolerance, self.y, self.floor)

    def one_of(self, groups):
        """An input of the first of these groups that is wrong, by bisection."""
        group = groups[0]
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


def agrees(v, slope, products, tolerance, y, floor):
    """Is v · slope the sum of the products, but for rounding?"""
    v = torch.where(slope.trusted, v, 0.0)
    expected = torch.where(v != 0, v * slope.value, 0.0)
    error = torch.where(v != 0, v.abs() * slope.error, 0.0).sum()
    floor = floor * torch.where(v != 0, v * y, 0.0).norm()
    size = max(expected.norm().item(), products.norm().item())
    limit = 10 * error + tolerance * size + floor
    return abs(expected.sum().item() - products.sum().item()) <= limit.item()
