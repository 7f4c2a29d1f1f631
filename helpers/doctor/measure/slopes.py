"""Derivatives from differences of forward, with error bars; and the test v · J · u with
them."""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ..function.tensors import Dice, as_vector, largest, position
from ..report import brief, note
from ..words import _, listed

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
WIDE = [k / 300 for k in (3, 5, 7, 9)]  # steps
NARROW = [3e-3 * 0.1**k for k in range(7)]
# Of a step. Where a function moves in steps of its own, 1/2 and 1/4 agree by chance.
PART = 0.29


class Slope(NamedTuple):
    """J · u for one output: value, error bar, and which elements to believe."""

    value: torch.Tensor
    error: torch.Tensor
    trusted: torch.Tensor


def slopes_along(f, values, moves, y0, eps):
    """J · u for every output of `f`, a list of `Slope`.

    moves: {i: u}, the changes of some inputs; y0: f(values); eps: of the numbers that f
           computes.
    Central differences at two steps are extrapolated; smaller ones are tried where the
    two do not agree.
    """
    at = functools.partial(moved_by, f, values, moves)
    probe = at(1e-3)
    # Steps must be larger where numbers are coarser, perhaps only inside of f.
    if any(in_float32(t) and (y != t).any() for y, t in zip(y0, probe, strict=True)):
        eps = max(eps, torch.finfo(torch.float32).eps)
    best = [Differences(y) for y in y0]
    for h in (1e-3, 1e-5, 1e-7) if eps < 1e-10 else (3e-2, 1e-2):
        steps = h, -h, PART * h, -PART * h
        sides = zip(*(probe if t == 1e-3 else at(t) for t in steps), strict=True)
        if all(
            [
                found.refine(each, h, eps)
                for found, each in zip(best, sides, strict=True)
            ]
        ):
            break
    return [found.slope() for found in best]


def moved_by(f, values, moves, t):
    """f where the inputs have moved this far."""
    moved = {i: torch.add(values[i], u, alpha=t) for i, u in moves.items()}
    return f([moved.get(i, v) for i, v in enumerate(values)])


class WideSteps:
    """J · u by steps so wide that it does not matter where a forward stops iterating.

    slopes: of each output of `f`; moves: {i: u}, as in `slopes_along`
    """

    def __init__(self, f, values, moves):
        self.at = functools.partial(moved_by, f, values, moves)
        halves = [self.half(h) for h in WIDE]
        self.slopes = [
            sum(h * half for h, half in zip(WIDE, of_output, strict=True))
            / sum(h * h for h in WIDE)
            for of_output in zip(*halves, strict=True)
        ]

    def half(self, h):
        """Half of what each output changes by, from one side to the other."""
        return [
            (high - low) / 2 for high, low in zip(self.at(h), self.at(-h), strict=True)
        ]

    def rest(self, o):
        """By how much output o is off from that slope over narrow steps, where it is at
        all."""
        slope = self.slopes[o]
        off = {h: largest(self.half(h)[o] - h * slope) for h in NARROW}
        return max(
            size if size > 1e-2 * h * largest(slope) else 0.0 for h, size in off.items()
        )


def in_float32(t):
    """Could these be numbers of float32? (The first will mostly do to say no.)"""
    return all((few == few.float()).all() for few in (t[:100], t))


class Differences:
    """The best slope of one output so far: of each element that with the smallest
    error."""

    def __init__(self, y):
        self.y, self.moves, self.size = y, y.isinf(), 0.0
        self.value, self.error = torch.zeros_like(y), torch.full_like(y, torch.inf)

    def refine(self, sides, h, eps):
        """Take what is better at this step; is it as exact as can be?

        sides: the output at h, -h, and at a part of these
        """
        changes = torch.stack([t != self.y for t in sides]).any(0)
        self.moves |= changes
        here = self.moves.nonzero()[:, 0]  # few, perhaps, of many
        y, p, m, near_p, near_m, changes = (t[here] for t in (self.y, *sides, changes))
        reach, small = torch.maximum(near_p.abs(), y.abs()), PART * h
        self.size = size = max(self.size, largest(reach))
        first, second = (p - m) / (2 * h), (near_p - near_m) / (2 * small)
        # At 0: both err with the square of their step.
        value = (second - PART**2 * first) / (1 - PART**2)
        if eps > 1e-10:  # what cancelled was larger
            reach = reach.clamp(min=0.1 * size)
        noise = 16 * eps * reach / h
        wide = (p + m - 2 * y).abs() / h
        narrow = (near_p + near_m - 2 * y).abs() / small
        # What has been summed, as in an FFT, may be as large.
        rounding = 16 * eps * size / small
        kink = (narrow > 0.5 * wide) & (
            narrow > 1e-4 * value.abs() + 16 * noise + rounding
        )
        # What does not move at this step is lost in rounding, which may move it at
        # random.
        bad = kink | ~changes | ~value.isfinite()
        error = torch.where(bad, torch.inf, (value - second).abs() + noise)
        better = error <= self.error[here]
        self.value[here] = torch.where(better, value, self.value[here])
        self.error[here] = error = torch.minimum(error, self.error[here])
        fine = 1e-6 * value.abs() + 1e-7 * largest(value) + 2 * noise + 1e-9 * size
        return bool((error <= fine).all())

    def slope(self):
        size = self.value.abs() + 0.1 * largest(self.value) + 1e-5 * self.size
        error = torch.where(self.moves, self.error, 0.0)
        return Slope(self.value, error, error <= 1e-3 * size)


def agrees(v, slope, products, tolerance, floor):
    """Is v · J · u, by differences, the sum of the products, gradient times u, but for
    rounding?

    Elements of the output that differences do not show count neither here nor there.
    floor: what v · output may be off by, as a part of it.
    """
    there = slope.trusted & (v != 0)
    expected = (v * slope.value)[there]
    error = (v.abs() * slope.error)[there].sum()
    size = max(expected.norm().item(), products.norm().item())
    limit = 10 * error + tolerance * size + floor
    return abs(expected.sum().item() - products.sum().item()) <= limit.item()


def edges(point, i):
    """Which elements of input i stand at a kink or a jump, as a mask; and the note
    about them.

    As far as calls suffice. The note tells of the first kink: its slopes to both sides
    stay apart.
    """
    value, y, seen = point.values[i], torch.cat(point.y0), None
    moved = functools.partial(moved_by, point.subject.forward, point.values)
    found = torch.zeros_like(value.reshape(-1), dtype=torch.bool)
    coarse = point.subject.eps > 1e-10  # so that all looks broken
    floor = 1e-9 * (largest(y) + 1e-300)
    for s in range(0 if coarse else min(len(found), point.limit)):
        _, u, step = next(point.units(i, s))
        u = {i: u.reshape(value.shape)}
        wide, narrow = (
            torch.stack([torch.cat(moved(u, t)) - y for t in (h, -h)])
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
    """Why no more than the most necessary is done for so many, or so large, inputs; or
    ""."""
    if sum(v.numel() for v in values) > LARGE:
        return _("the inputs are large")
    if len(values) > FEW:
        return _("there are more than {n} inputs").format(n=FEW)
    return ""


@dataclass
class Screening:
    """Which derivatives are wrong, by v · J · u.

    All inputs are moved at once, and one by one only where that does not agree.

    vjp({o: v}): the gradients of output o; y0: f(values), if it is known
    turns: the number of v and u, if that is not too much work. The second v gives every
           element of an output the same weight, however small it is.
    floor: what is rounding, by the size of the output
    still: of an input, a mask of the elements that do not move

    Afterwards
    verdict: {(i, o): "right", "wrong", "unsure", or "unknown" of many inputs where
             another one is wrong} for input i and output o
    doubts:  the inputs in which there are elements that cannot be judged
    weights: of the second v, a vector for each output
    """

    f: Callable
    vjp: Callable
    values: list
    dice: Dice
    eps: float
    tolerance: float
    y0: list | None = None
    turns: int = 2
    floor: float = 1e-11
    still: dict = field(default_factory=dict)

    def __post_init__(self):
        self.y0 = self.y0 or self.f(self.values)
        self.floor = max(self.floor, self.eps)
        self.which = list(range(len(self.values)))  # that are judged
        pairs = itertools.product(self.which, range(len(self.y0)))
        self.verdict, self.doubts = dict.fromkeys(pairs, "right"), set()
        self.weights = [torch.ones_like(y) for y in self.y0]
        for turn in range(1 if too_much(self.values) else self.turns):
            self.turn(weighted=turn > 0)

    def turn(self, weighted):
        """One v for each output, one u for each input."""
        self.moves = {i: self.dice.direction(self.values[i]) for i in self.which}
        for i in self.still.keys() & self.moves.keys():
            self.moves[i] = self.moves[i].masked_fill(self.still[i], 0)
        self.vs = [self.dice.normal(y) for y in self.y0]
        slopes = self.slopes(self.moves)
        if weighted:
            self.weights = [leveled(slope) for slope in slopes]
        wrong = self.together(slopes)
        if wrong and len(self.which) > MANY:
            self.which = [self.one_of(wrong[0])]
            others = [(i, o) for i, o in self.verdict if i not in self.which]
            self.verdict |= dict.fromkeys(others, "unknown")
        if wrong != []:
            self.each()

    def slopes(self, moves):
        return slopes_along(self.f, self.values, moves, self.y0, self.eps)

    def agree(self, v, slope, products, y):
        floor = self.floor * (v * y)[slope.trusted & (v != 0)].norm()
        return agrees(v, slope, products, self.tolerance, floor)

    def together(self, slopes):
        """Groups of inputs (lists) of which some are wrong; None if they must be judged
        alone.

        In a group are those whose gradients weigh about the same, so that none hides
        another.
        """
        self.y, self.everything = torch.cat(self.y0), joined(slopes)
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
        vs = self.v.split([len(y) for y in self.y0])
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
        grads = self.vjp(vs)
        return {i: vector(grads[i], u) * as_vector(u) for i, u in self.moves.items()}

    def group_agrees(self, group):
        slope = self.everything  # if that is the group
        if len(group) < len(self.moves):
            slope = joined(self.slopes({i: self.moves[i] for i in group}))
        return self.agree(
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
        slopes = {i: self.slopes({i: self.moves[i]}) for i in self.which}
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
                elif not self.agree(v, found[o], products[i], self.y0[o]):
                    self.verdict[i, o] = "wrong"


def vector(grad, like):
    """A gradient of `like` as a vector; None is zeros."""
    return torch.zeros_like(as_vector(like)) if grad is None else as_vector(grad)


def joined(slopes):
    """The slopes of all outputs as those of one."""
    return Slope(*map(torch.cat, zip(*slopes, strict=True)))


def leveled(slope):
    """Factors that make all elements of an output change alike; 0 for those lost in
    rounding."""
    size = slope.value.abs().nan_to_num()
    size = size.clamp(min=1e-6 * largest(size))
    shows = (size > 0) & (slope.error < 1e-4 * size)
    return torch.where(shows, largest(size) / size, 0.0).nan_to_num()
