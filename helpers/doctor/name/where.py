"""Where a gradient is wrong, and what it is there, in words."""

import itertools
import math
from dataclasses import dataclass

import torch

from ..function.tensors import position
from ..report import brief, error

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
    numbers}, in which there may be a bound between the two; smooth: does the error shrink to 0?
    """

    elements: torch.Tensor
    right: torch.Tensor
    wrong: torch.Tensor
    sizes: dict
    smooth: bool = False


def of_elements(case):
    """The elements of an input; what is right only because it is small is neither."""
    off, error = (case.sampled - case.expected).abs(), case.limit - case.floor
    size = case.tolerance * torch.maximum(case.sampled.abs(), case.expected.abs())
    right = (off <= error + size).all(0) & ((error <= size) | (case.sampled == 0)).all(0)
    wrong = case.trusted & (off > 10 * error + size).any(0)
    near = case.trusted & right & (off > 10 * error + 0.1 * size).any(0)
    by = (off / size).nan_to_num().amax(0)[wrong]
    return Spots(
        case.elements, case.trusted & right & ~near, wrong,
        {what: t[case.elements] for what, t in sizes_of(case, case.x)},
        bool(near.any() or len(by) and by.min() < 1e-3 * by.median()),
    )  # fmt: skip


def sizes_of(case, like):
    """(in words, numbers) that each element of a tensor of this shape has."""
    own = f"`{case.input}`" if like is case.x else case.output
    found = [(own, like.real), (f"the magnitude of {own}", like.abs())]
    pairs = [(f"`{n}`", t) for n, t in zip(case.subject.inputs, case.point.values, strict=True)]
    found += [(n, t.real) for n, t in [*pairs, (case.output, case.y)] if t.shape == like.shape]
    for (a, s), (b, t) in itertools.combinations(pairs[: len(case.subject.arguments)], 2):
        if s.shape == t.shape == like.shape and not (s - t).is_complex():
            found += [(f"{a} - {b}", s - t), (f"the magnitude of {a} - {b}", (s - t).abs())]
    for name, t in case.subject.arguments.items():  # masks and signs, of whole rows perhaps
        if not isinstance(t, torch.Tensor) or t.numel() < 6 or t.is_complex():
            continue
        if t.shape == like.shape[: t.dim()] and len(t.unique()) == 2:
            wide = t.reshape(*t.shape, *[1] * (like.dim() - t.dim())).expand(like.shape)
            found += [(f"`{name}`", wide.real)] if f"`{name}`" not in dict(found) else []
    return [(what, t.detach().reshape(-1)) for what, t in dict(found).items()]


def rule(shape, points, numbers=None, varied=(), repeated=()):
    """(where in words, where to look): what tells wrong from right at all points; or None.

    numbers: what may be a bound; varied: (such numbers, points) where one has another value.
    repeated: (name, numbers that occur in it more than once) of tensors that may be indices.
    """
    found, sure = by_value(points, numbers or {}, varied) or (None, False)
    if sure or points[0].smooth and len(shape) < 2:
        return (found, BRANCH) if sure else None
    wrong = torch.cat([p.elements[p.wrong] for p in points]).unique()
    right = torch.cat([p.elements[p.right] for p in points]).unique()
    if torch.isin(right, wrong).any():  # then it is the values that matter, not the places
        first = points[0]
        if not found and not first.smooth:
            found = by_place(shape, first.elements[first.right], first.elements[first.wrong], 1)
            found = found and "more" not in found and f"{found} (for these values)"
        return (found, BRANCH) if found else None
    if not len(right) or not len(wrong):
        return None
    place = by_place(shape, right, wrong, 1) if len(points) > 1 else None
    found_at = by_place(shape, right, wrong)
    if found and not (place and (len(shape) > 1 or " to " in place)):
        return (found_at, PLACE) if "diagonal" in (found_at or "") else (found, BRANCH)
    index = [torch.stack(torch.unravel_index(t, shape), -1) for t in (wrong, right)]
    for (name, many), d in itertools.product(repeated, range(len(shape))):
        bad, good = (set(t[:, d].tolist()) for t in index)
        if bad and bad == many & (bad | good) and not bad & good:
            where = f"at {indices(sorted(bad), shape[d])} of dimension {d}"
            return f"{where}, which `{name}` holds more than once,", REPEATED
    return (found_at, PLACE) if found_at else None


def by_value(points, numbers, varied):
    """A bound between the numbers where it is right and where it is wrong; is it no chance?"""
    sizes, smooth = points[0].sizes, any(p.smooth for p in points)
    for what in sizes:
        right, wrong = halves(points, what)
        if not len(right) or not len(wrong):
            return None
        if what == next(iter(sizes)) and not wrong.any() and right.all():
            return f"where {what} is 0,", True
        for word, sign in (("above", 1), ("below", -1)):
            good, bad = (sign * right).max().item(), (sign * wrong).min().item()
            edge = 0.0 if good <= 0 < bad else sign * (good + bad) / 2
            few = min(len(right), len(wrong)) < 3
            if few and len(right) + len(wrong) < 8 or len(points[0].elements) < 4:
                continue  # by chance
            if good < bad and not (few and (edge or len(points) < 2)):
                if sizes[what].dtype == torch.bool:
                    return f"where {what} is {sign > 0},", True
                named = edge and bounds(what, sign, ((numbers, points), *varied))
                if named or not (edge and smooth):
                    about = f"about {brief(edge)}" if edge else "0"
                    return f"where {what} is {word} {named or about},", bool(named or not edge)
    return None


def halves(points, what):
    """The numbers where it is right, and those where it is wrong."""
    pairs = [(p.sizes[what][p.right], p.sizes[what][p.wrong]) for p in points]
    return [torch.cat(t).double() for t in zip(*pairs, strict=True)]


def bounds(what, sign, settings):
    """In words, which number is the bound in each setting, (numbers, points); empty if none is."""
    fits, tried = [], len(settings) > 1
    for numbers, points in settings:
        known = dict(numbers)
        for a, m in numbers.items() if tried else ():
            known |= {f"1 - {a}": 1 - m, f"-{a}": -m}
            known |= {f"{a} / {b}": m / n for b, n in numbers.items() if a != b}
        right, wrong = (sign * t for t in halves(points, what))
        if len(right) and len(wrong):
            low, high = right.max(), wrong.min()
            known = {a: n for a, n in known.items() if tried or high - low <= 0.25 * abs(n)}
            fits.append({a: n for a, n in known.items() if low <= sign * n <= high})
    found = [a for a in fits[0] if all(a in fit for fit in fits)]
    found = [a for a in found if a in settings[0][0]] or found  # the simpler ones
    return " or ".join(f"{a} = {brief(fits[0][a])}" for a in found)


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
            return f"at {indices(bad, shape[d], good)} of dimension {d}"
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
        some = [len(s) for s, whole in zip(sets, full, strict=True) if not whole]
        if some and not torch.stack(inside).all(0).any():
            parts, outside = [], ~torch.stack(inside)
            for d in [d for d, whole in enumerate(full) if not whole]:
                only_here = outside[d] & (outside.sum(0) == 1)
                others = index[1 - k][only_here][:, d].tolist()
                parts.append(f"{indices(sets[d], shape[d], others)} of dimension {d}")
            # Where not all are known, it may be otherwise where the indices of several meet.
            known = len(index[k]) >= (math.prod(map(len, sets)) if how else sum(some))
            if known or all(" to " in part for part in parts):
                return f"{how}at {' and '.join(parts)}"
    return None


DIAGONALS = {
    "on": lambda k: k == 0, "off": lambda k: k != 0, "above": lambda k: k > 0,
    "below": lambda k: k < 0, "on and above": lambda k: k >= 0, "on and below": lambda k: k <= 0,
}  # fmt: skip


def indices(which, n, others=None):
    """In words, some of n indices; others: those that are known not to be among them."""
    known = range(n) if others is None else sorted({*which, *others})
    for start, parity in ((0, "even"), (1, "odd")):
        if which == [k for k in known if k % 2 == start] and len(known) > 4:
            return f"every {parity} index"
    first, last = which[0], which[-1]
    if len(which) > 2 and which == [k for k in known if first <= k <= last]:
        unknown = {first - 1, last + 1}.difference(known).intersection(range(n))
        return f"{'about ' * bool(unknown)}index {first} to {last}"
    return f"index {', '.join(map(str, which[:6]))}{' and more' * (len(which) > 6)}"


def subsets(shape):
    """Dimensions that are reduced together, the fewest first."""
    for many in range(1, len(shape) + 1):
        yield from itertools.combinations(range(len(shape)), many)


def named(dims):
    *first, last = map(str, dims)
    return f"dimensions {', '.join(first)} and {last}" if first else f"dimension {last}"


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


def value_of(factor, numbers):
    """In words, which of the numbers that were given this factor is; empty if it is none."""
    for power, words in ((1, "{}"), (-1, "1 / {}"), (2, "{}²"), (-2, "1 / {}²")):
        for name, n in numbers.items():
            if not isinstance(factor, complex) and abs(n**power - factor) < 1e-4 * abs(factor):
                return " = " + words.format(name)
    return ""


def relation(given, expected, limit, numbers, passed=None):
    """In words, what all these wrong numbers are. passed: grad_output, where that makes sense."""
    ratio = given / expected
    first = ratio.reshape(-1)[0]
    if not given.any():
        return "is zero"
    if (expected.abs() <= limit).all():
        return "should be zero"
    if first.isfinite() and ((ratio - first).abs() <= 1e-4 * first.abs()).all():
        factor = "negated" if abs(first + 1) < 1e-4 else f"multiplied by {brief(first.item())}"
        return f"is {factor}{value_of(first.item(), numbers)}"
    if passed is not None and passed.all():
        times = (given - expected) / passed
        if ((times - times[0, 0]).abs() <= 1e-4 * times[0, 0].abs()).all():
            return f"is off by {brief(times[0, 0].item())} times grad_output"
    return "is wrong"
