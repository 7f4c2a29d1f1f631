"""Derivatives from differences of forward, with error bars; and the test v · J · u with them."""

import functools
import itertools
import math
from dataclasses import dataclass

import torch

from ..function.tensors import as_vector, largest, position, shaped
from ..report import brief, note

KINK = note(
    "kink",
    "Forward has a kink or a jump in {x} at the given point, where differences prove nothing; the "
    "other elements were judged.",
)
NOT_JUDGED = note(
    "not-judged",
    "At some elements of {x}, differences of forward are lost in rounding, or there is a kink "
    "nearby; the other elements were judged.",
)
MANY = 16  # inputs
PART = 0.29  # of a step. Where a function moves in steps of its own, 1/2 and 1/4 agree by chance.


@dataclass
class Slope:
    """J · u for one output: value, error bar, and which elements to believe.

    moved: the elements of the output that move at all; left, right: their one-sided slopes.
    """

    value: torch.Tensor
    error: torch.Tensor
    moved: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor
    trusted: torch.Tensor | None = None


def slopes_along(f, values, moves, y0, eps):
    """J · u for every output of `f`, a list of `Slope`.

    moves: {i: u}, the changes of some inputs; y0: f(values); eps: of the numbers that f computes.
    Central differences at two steps are extrapolated; smaller ones are tried where the two do not
    agree. A kink at the point itself shows in one-sided slopes whose difference does not shrink
    with h.
    """

    def at(t):
        moved = {i: torch.add(values[i], u, alpha=t) for i, u in moves.items()}
        return f([moved.get(i, v) for i, v in enumerate(values)])

    best, settled = [None] * len(y0), [None] * len(y0)
    moved = [y.isinf() for y in y0]
    # Steps must be larger where numbers are coarser, perhaps only inside of f.
    probe = at(1e-3)
    sizes = [0.0] * len(y0)  # of what moves
    if any(in_float32(t) and (y != t).any() for y, t in zip(y0, probe, strict=True)):
        eps = max(eps, torch.finfo(torch.float32).eps)
    for h in (1e-3, 1e-5, 1e-7) if eps < 1e-10 else (3e-2, 1e-2):
        steps = h, PART * h
        sides = [[probe if t == 1e-3 else at(t) for t in steps], [at(-t) for t in steps]]
        for o, y in enumerate(y0):
            for t in itertools.chain(*sides):
                moved[o] |= t[o] != y
            k = moved[o].nonzero()[:, 0]  # one in a million may be left
            few = [[t[o][k] for t in side] for side in sides]
            sizes[o] = max(largest(y[k]), largest(probe[o][k]))
            *few, left, right, fine = central(*few, y[k], steps, eps, sizes[o])
            value, error = (torch.zeros_like(y).index_put_((k,), t) for t in few)
            new = Slope(value, error, k, left, right)
            fine = torch.ones_like(moved[o]).index_put_((k,), fine)
            if old := best[o]:
                better = new.error < old.error
                new.value = torch.where(better, new.value, old.value)
                new.error = torch.where(better, new.error, old.error)
                fine = torch.where(better, fine, settled[o])
            best[o], settled[o] = new, fine
        if all(fine.all() for fine in settled):
            break
    for slope, size in zip(best, sizes, strict=True):
        value, error = slope.value[slope.moved], slope.error[slope.moved]
        size = value.abs() + 0.1 * largest(value) + 1e-5 * size
        slope.trusted = torch.ones_like(slope.value, dtype=torch.bool)
        slope.trusted[slope.moved] = error <= 1e-3 * size
    return best


def in_float32(t):
    """Could these be numbers of float32? (The first will mostly do to say no.)"""
    return all((few == few.float()).all() for few in (t[:100], t))


def central(plus, minus, y, steps, eps, size):
    """Value, error, slopes on the left and on the right, whether that is as exact as can be.

    plus, minus: the output at the two steps, the larger first; size: of the largest output.
    """
    (p, near_p), (m, near_m), (h, small) = plus, minus, steps
    first, second = (p - m) / (2 * h), (near_p - near_m) / (2 * small)
    value = (second - PART**2 * first) / (1 - PART**2)  # to a step of 0; both err with its square
    reach = torch.maximum(near_p.abs(), y.abs())
    reach = reach.clamp(min=0.1 * size) if eps > 1e-10 else reach  # what has cancelled was larger
    noise = 16 * eps * reach / h
    wide, narrow = (p + m - 2 * y).abs() / h, (near_p + near_m - 2 * y).abs() / small
    rounding = 16 * eps * size / small  # what has been summed, as in an FFT, may be as large
    kink = (narrow > 0.5 * wide) & (narrow > 1e-4 * value.abs() + 16 * noise + rounding)
    still = (p == y) & (m == y)
    lost = still & (near_p == y) & (near_m == y)  # in rounding, which may move it at random
    error = (value - second).abs() + noise
    fine = error <= 1e-6 * value.abs() + 1e-7 * largest(value) + 2 * noise + 1e-9 * size
    error = torch.where(kink | lost | ~value.isfinite(), torch.inf, error)
    left, right = (y - near_m) / small, (near_p - y) / small
    return value, error, left, right, fine & error.isfinite()


def agrees(v, slope, products, tolerance, floor):
    """Is v · J · u, by differences, the sum of the products, gradient times u, but for rounding?

    Elements of the output that differences do not show count neither here nor there. floor: what
    v · output may be off by, as a part of it.
    """
    v = torch.where(slope.trusted, v, 0.0)
    expected = torch.where(v != 0, v * slope.value, 0.0)
    error = torch.where(v != 0, v.abs() * slope.error, 0.0).sum()
    size = max(expected.norm().item(), products.norm().item())
    limit = 10 * error + tolerance * size + floor
    return abs(expected.sum().item() - products.sum().item()) <= limit.item()


def kink(point, i):
    """The note about input i: a kink, if its one-sided slopes differ for a smaller step, too."""
    x, coarse = point.subject.inputs[i], point.subject.eps > 1e-10  # so that all looks broken
    for s in range(0 if coarse else min(point.values[i].numel(), point.limit)):
        _, u, step = next(point.units(i, s))
        for o, slope in enumerate(point.slopes(i, u)):
            sides = torch.stack([slope.left, slope.right])
            gap = (sides[0] - sides[1]).abs()
            apart = gap > 1e-3 * sides.abs().amax(0) + 1e-5 * largest(point.y0[o])
            apart &= ~slope.trusted[slope.moved]
            for k in apart.nonzero()[:1, 0]:
                near, size = point.slopes(i, u / 100)[o], sides[:, k].abs().max()
                at = near.moved == slope.moved[k]
                again = 100 * torch.stack([near.left[at], near.right[at]])
                if at.any() and ((again - sides[:, k : k + 1]).abs() <= 0.1 * size).all():
                    slopes = sorted((sides[:, k] / step).tolist())
                    seen = {"at": position(s, point.values[i].shape)}
                    return KINK(x, seen=seen | {"slopes": " and ".join(map(brief, slopes))})
    return NOT_JUDGED(x)


# --- which derivatives are wrong ------------------------------------------------------------------


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
