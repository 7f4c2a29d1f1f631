"""Which derivatives are wrong, by v · J · u: gradients against differences."""

import itertools
import math

import torch

from ..function.tensors import as_vector, largest, position
from ..report import brief, note
from ..words import _, listed
from .point import row_of
from .slopes import Slope, agrees, moved_by, slopes_along

KINK = note(
    "kink",
    "Forward has a kink or a jump in {x} at the given point, where differences prove "
    "nothing; the other elements were judged.",
)
NOT_JUDGED = note(
    "not-judged",
    "At some elements of {x}, differences of forward are lost in rounding, or there is "
    "a kink nearby; the other elements were judged.",
)
MANY = 16  # inputs


def edges(point, i):
    """A mask of the elements of input i at a kink or a jump, and the note about them.

    They are found as far as calls suffice. The note tells of the first kink: its slopes
    to both sides stay apart.
    """
    value, y, seen = point.values[i], torch.cat(point.y0), None
    found = torch.zeros_like(value.reshape(-1), dtype=torch.bool)
    coarse = point.eps > 1e-10  # so that all looks broken
    floor = 1e-9 * (largest(y) + 1e-300)
    for s in range(0 if coarse else min(len(found), point.limit)):
        _, u, step = next(point.units(i, s))
        u = {i: u.reshape(value.shape)}
        wide, narrow = (
            torch.stack([torch.cat(moved_by(point, u, t)) - y for t in (h, -h)])
            for h in (1e-5, 1e-7)
        )
        size = wide.abs().amax(0)
        jumps = (narrow.abs() > 0.5 * wide.abs()) & (narrow.abs() > floor)
        bends = (wide[0] + wide[1]).abs() > 1e-3 * size + floor
        found[s] = (jumps | bends).any()
        kinks = bends & ((100 * narrow - wide).abs() <= 0.1 * size).all(0)
        if kinks.any() and not seen:
            ahead, behind = (wide[:, int(kinks.nonzero()[0])] / (1e-5 * step)).tolist()
            slopes = listed(map(brief, sorted([ahead, -behind])), " and ")
            seen = {"at": position(s, value.shape), "slopes": slopes}
    x = point.subject.inputs[i]
    return found.reshape(value.shape), KINK(x, values=seen) if seen else NOT_JUDGED(x)


# --- which derivatives are wrong ------------------------------------------------------


FEW, LARGE = 4, 1e5  # inputs; elements, of all together


def too_much(values):
    """Why only the most necessary is done for so many, or so large, inputs, or ""."""
    if sum(v.numel() for v in values) > LARGE:
        return _("the inputs are large")
    if len(values) > FEW:
        return _("there are more than {n} inputs", n=FEW)
    return ""


class Screening:
    """Which derivatives are wrong, by v · J · u.

    All inputs are moved at once, and one by one only where that does not agree.

    of: a `Point`, or what has `vjp`, `dice`, `tolerance` and the rest as it has
    turns: the number of v and u, if that is not too much work. The second v gives every
           element of an output the same weight, however small it is.
    floor: what is rounding, by the size of the output
    still: of an input, a mask of the elements that do not move

    What came of it
    verdict: {(i, o): "right", "wrong", "unsure", or "unknown" of many inputs where
             another one is wrong} for input i and output o
    doubts:  the inputs in which there are elements that cannot be judged
    weights: of the second v, a vector for each output
    """

    def __init__(self, of, turns=2, floor=1e-11, still=None):
        self.of, self.still, self.floor = of, still or {}, max(floor, of.eps)
        self.which = list(range(len(of.values)))  # that are judged
        pairs = itertools.product(self.which, range(len(of.y0)))
        self.verdict, self.doubts = dict.fromkeys(pairs, "right"), set()
        self.weights = [torch.ones_like(y) for y in of.y0]
        for turn in range(1 if too_much(of.values) else turns):
            self.turn(weighted=turn > 0)

    def turn(self, weighted):
        """One v for each output, one u for each input."""
        self.moves = {i: self.of.dice.direction(self.of.values[i]) for i in self.which}
        for i in self.still.keys() & self.moves.keys():
            self.moves[i] = self.moves[i].masked_fill(self.still[i], 0)
        self.vs = [self.of.dice.normal(y) for y in self.of.y0]
        slopes = slopes_along(self.of, self.moves)
        if weighted:
            self.weights = [leveled(slope) for slope in slopes]
        wrong = self.together(slopes)
        if wrong and len(self.which) > MANY:
            self.which = [self.one_of(wrong[0])]
            others = [(i, o) for i, o in self.verdict if i not in self.which]
            self.verdict |= dict.fromkeys(others, "unknown")
        if wrong != []:
            self.each()

    def holds(self, v, slope, products, y):
        floor = self.floor * (v * y)[slope.trusted & (v != 0)].norm()
        return agrees(v, slope, products, self.of.tolerance, floor)

    def together(self, slopes):
        """Groups of inputs (lists) of which some are wrong.

        It is None if they must be judged alone. In a group are those whose gradients
        weigh about the same, so that none hides another.
        """
        self.y, self.everything = torch.cat(self.of.y0), joined(slopes)
        everything = self.everything
        known = everything.trusted.double().mean().item()
        if not everything.value.isfinite().all() or known < (
            0.99 if len(self.which) > 4 else 1
        ):
            return None
        # No output hides another, either.
        vs = [
            v * w / ((w * s.value).norm() or 1.0)
            for v, w, s in zip(self.vs, self.weights, slopes, strict=True)
        ]
        self.v = torch.where(everything.trusted, torch.cat(vs), 0.0)
        vs = self.v.split([len(y) for y in self.of.y0])
        self.products = self.products_of(dict(enumerate(vs)))
        if not all(p.isfinite().all() for p in self.products.values()):
            return None
        weigh = {i: p.norm().item() for i, p in self.products.items()}
        most, groups = max(weigh.values()) or 1.0, {}
        for i, size in weigh.items():
            groups.setdefault(
                math.ceil(math.log10(max(size / most, 1e-16))), []
            ).append(i)
        return [group for group in groups.values() if not self.group_agrees(group)]

    def products_of(self, vs):
        """{input: gradient times move} for these v."""
        grads = self.of.vjp(vs)
        return {
            i: as_vector(row_of(grads[i], u)) * as_vector(u)
            for i, u in self.moves.items()
        }

    def group_agrees(self, group):
        slope = self.everything  # if that is the group
        if len(group) < len(self.moves):
            slope = joined(slopes_along(self.of, {i: self.moves[i] for i in group}))
        return self.holds(
            self.v, slope, torch.cat([self.products[i] for i in group]), self.y
        )

    def one_of(self, group):
        """An input of this group that is wrong, by bisection."""
        while len(group) > 1:
            half = group[: len(group) // 2]
            group = group[len(half) :] if self.group_agrees(half) else half
        return group[0]

    def each(self):
        """Judge the inputs one by one."""
        slopes = {i: slopes_along(self.of, {i: self.moves[i]}) for i in self.which}
        self.doubts |= {
            i
            for i, found in slopes.items()
            for s in found
            if (~s.trusted & s.value.isfinite()).any()
        }
        for o, v in enumerate(self.vs):
            trusted = torch.stack([found[o].trusted for found in slopes.values()]).all(
                0
            )
            v = torch.where(trusted, v * self.weights[o], 0.0)
            products = self.products_of({o: v})
            for i, found in slopes.items():
                if not (trusted.any() and products[i].isfinite().all()):
                    self.verdict[i, o] = "unsure"
                elif not self.holds(v, found[o], products[i], self.of.y0[o]):
                    self.verdict[i, o] = "wrong"


def joined(slopes):
    """The slopes of all outputs as those of one."""
    return Slope(*map(torch.cat, zip(*slopes, strict=True)))


def leveled(slope):
    """Factors that make all elements of an output change alike.

    They are 0 for those lost in rounding.
    """
    size = slope.value.abs().nan_to_num()
    size = size.clamp(min=1e-6 * largest(size))
    shows = (size > 0) & (slope.error < 1e-4 * size)
    return torch.where(shows, largest(size) / size, 0.0).nan_to_num()
