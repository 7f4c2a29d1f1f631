"""Where a gradient is wrong, and what it is there, in words."""

import itertools
from dataclasses import dataclass

import torch

from .report import brief, error
from .slopes import position

BRANCH = "masks, branches and bounds, and the formula there"
PARTLY_RIGHT = error(
    "partly-right", "The gradient of {x} is right in part: {where} it {how}.{may}", look="{look}"
)
PLACE = "indices, slices and bounds, and the formula there"
REPEATED = "indexed assignment, and an indexed +=: of an index that is repeated, one counts"
FORMULA = "the formula, term by term, at an element that is wrong"


@dataclass
class Spots:
    """What is right and what is wrong at one point.

    elements: the numbers of those that are known; right, wrong: masks of them; sizes: {in words:
    numbers}, in which there may be a bound between the two.
    """

    elements: torch.Tensor
    right: torch.Tensor
    wrong: torch.Tensor
    sizes: dict


def of_elements(case):
    """The elements of an input; what is right only because it is small is neither."""
    off, error = (case.sampled - case.expected).abs(), case.limit - case.floor
    size = case.tolerance * torch.maximum(case.sampled.abs(), case.expected.abs())
    right = (off <= error + size).all(0) & ((error <= size) | (case.sampled == 0)).all(0)
    wrong = (off > 10 * error + size).any(0)
    return Spots(
        case.elements, case.trusted & right, case.trusted & wrong,
        {what: t[case.elements] for what, t in sizes_of(case, case.x)},
    )  # fmt: skip


def sizes_of(case, like):
    """(in words, numbers) that each element of a tensor of this shape has."""
    own = f"`{case.input}`" if like is case.x else case.output
    found = [(own, like.real), (f"the magnitude of {own}", like.abs())]
    pairs = [(f"`{n}`", t) for n, t in zip(case.subject.inputs, case.point.values, strict=True)]
    found += [(n, t.real) for n, t in [*pairs, (case.output, case.y)] if t.shape == like.shape]
    for name, t in case.subject.arguments.items():  # masks and signs, of whole rows perhaps
        if not isinstance(t, torch.Tensor) or t.numel() < 6 or t.is_complex():
            continue
        if t.shape == like.shape[: t.dim()] and len(t.unique()) == 2:
            wide = t.reshape(*t.shape, *[1] * (like.dim() - t.dim())).expand(like.shape)
            found += [(f"`{name}`", wide.real)] if f"`{name}`" not in dict(found) else []
    return [(what, t.detach().reshape(-1)) for what, t in dict(found).items()]


def rule(shape, points, argument=lambda low, high: None, repeated=()):
    """(where in words, where to look): what tells wrong from right at all points; or None.

    repeated: (name, numbers that occur in it more than once) of tensors that may be indices.
    """
    found = by_value(points, argument)
    if found:
        return found, BRANCH
    wrong = torch.cat([p.elements[p.wrong] for p in points]).unique()
    right = torch.cat([p.elements[p.right] for p in points]).unique()
    if torch.isin(right, wrong).any():  # then it is the values that matter, not the places
        first = points[0]
        found = by_place(shape, first.elements[first.right], first.elements[first.wrong], 1)
        return (found, BRANCH) if found else None
    if not len(right) or not len(wrong):
        return None
    index = [torch.stack(torch.unravel_index(t, shape), -1) for t in (wrong, right)]
    for (name, many), d in itertools.product(repeated, range(len(shape))):
        bad, good = (set(t[:, d].tolist()) for t in index)
        if bad and bad == many & (bad | good):
            where = f"at {indices(sorted(bad), shape[d])} of dimension {d}"
            return f"{where}, which `{name}` holds more than once,", REPEATED
    found = by_place(shape, right, wrong)
    return (found, PLACE) if found else None


def by_value(points, argument):
    """A bound between the numbers where it is right and those where it is wrong."""
    first = points[0].sizes
    for what in first:
        pairs = [(p.sizes[what][p.right], p.sizes[what][p.wrong]) for p in points]
        right, wrong = (torch.cat(t) for t in zip(*pairs, strict=True))
        which = right.dtype == torch.bool
        right, wrong = right.double(), wrong.double()
        if not len(right) or not len(wrong):
            return None
        if what == next(iter(first)) and not wrong.any() and right.all():
            return f"where {what} is 0,"
        for word, sign in (("above", 1), ("below", -1)):
            good, bad = (sign * right).max(), (sign * wrong).min()
            edge = 0.0 if good < 0 < bad else (good + bad).item() / 2
            few = min(len(right), len(wrong)) < 3
            if good < bad and not (few and (edge or len(points) < 2)):
                span = sorted(((sign * good).item(), (sign * bad).item()))
                if which:
                    return f"where {what} is {sign > 0},"
                named = argument(*span) if edge else None
                return f"where {what} is {word} {named or brief(sign * edge)},"
    return None


def by_place(shape, right, wrong, most=None):
    """Indices at which the one is found and not the other, of so many dimensions at most."""
    if not len(right) or not len(wrong):
        return None
    if len(wrong) == 1:
        return f"at {position(wrong.item(), shape)}"
    index = [torch.stack(torch.unravel_index(t, shape), -1) for t in (right, wrong)]
    for d in range(len(shape)):
        good, bad = (sorted(set(t[:, d].tolist())) for t in index)
        if not set(good).intersection(bad):
            return f"at {indices(bad, shape[d])} of dimension {d}"
    if most == 1:
        return None
    for d, e in itertools.combinations(range(len(shape)), 2):
        good, bad = (set((t[:, e] - t[:, d]).tolist()) for t in index)
        if shape[d] == shape[e] > 2 and not good & bad:
            for how, fits in DIAGONALS.items():
                if all(map(fits, bad)) and not any(map(fits, good)):
                    which = "" if len(shape) == 2 else f" of dimensions {d} and {e}"
                    return f"{how} the diagonal{which}"
    for k, how in ((1, ""), (0, "everywhere but ")):
        sets = [sorted(set(index[k][:, d].tolist())) for d in range(len(shape))]
        inside = [torch.isin(index[1 - k][:, d], torch.tensor(s)) for d, s in enumerate(sets)]
        full = [len(s) == n for s, n in zip(sets, shape, strict=True)]
        if not torch.stack(inside).all(0).any() and not all(full):
            parts = [
                f"{indices(s, n)} of dimension {d}"
                for d, (s, n) in enumerate(zip(sets, shape, strict=True)) if len(s) < n
            ]  # fmt: skip
            return f"{how}at {' and '.join(parts)}"
    return None


DIAGONALS = {
    "on": lambda k: k == 0, "off": lambda k: k != 0, "above": lambda k: k > 0,
    "below": lambda k: k < 0, "on and above": lambda k: k >= 0, "on and below": lambda k: k <= 0,
}  # fmt: skip


def indices(which, n):
    """In words, some of n indices."""
    for start, parity in ((0, "even"), (1, "odd")):
        if which == list(range(start, n, 2)) and n > 4:
            return f"every {parity} index"
    if len(which) > 2 and which == list(range(which[0], which[-1] + 1)):
        return f"index {which[0]} to {which[-1]}"
    return f"index {', '.join(map(str, which[:6]))}{' and more' * (len(which) > 6)}"


def slices(shape, numbers, factors):
    """In words, (dimension, factors), if each of its indices has another one; otherwise None."""
    for d in range(len(shape)):
        index = torch.unravel_index(numbers, shape)[d]
        each = {}
        for k, factor in zip(index.tolist(), factors, strict=True):
            each.setdefault(k, []).append(factor)
        ones = [t[0] for t in each.values()]
        if len(factors) < 2 * len(ones) or len(ones) < 2:
            continue
        same = all((torch.stack(t) - t[0]).abs().max() < 1e-4 * abs(t[0]) for t in each.values())
        # One factor beside 1 is simpler to say by where it is.
        if same and len({round(f.item(), 6) for f in ones} - {1.0}) > 1:
            few = [brief(each[k][0].item()) for k in sorted(each)[:5]]
            return d, ", ".join(few) + ", …" * (len(each) > 5)
    return None


def relation(given, expected, limit, passed=None):
    """In words, what all these wrong numbers are. passed: grad_output, where that makes sense."""
    ratio = given / expected
    first = ratio.reshape(-1)[0]
    if not given.any():
        return "is zero"
    if (expected.abs() <= limit).all():
        return "should be zero"
    if first.isfinite() and ((ratio - first).abs() <= 1e-4 * first.abs()).all():
        return "is negated" if abs(first + 1) < 1e-4 else f"is multiplied by {brief(first.item())}"
    if passed is not None and passed.all():
        times = (given - expected) / passed
        if ((times - times[0, 0]).abs() <= 1e-4 * times[0, 0].abs()).all():
            return f"is off by {brief(times[0, 0].item())} times grad_output"
    return "is wrong"
