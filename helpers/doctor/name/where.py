"""Where a gradient is wrong, and what it is there, in words."""

import itertools
from dataclasses import dataclass

import torch

from ..function.tensors import position
from ..report import brief

BRANCH = "masks, branches and bounds, and the formula there"
PLACE = "indices, slices and bounds, and the formula there"
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


def of_elements(m):
    """The elements of an input; what is right only because it is small is neither."""
    off, size = (m.sampled - m.expected).abs(), torch.maximum(m.sampled.abs(), m.expected.abs())
    size = m.tolerance * size
    right = (off <= m.error + size).all(0) & ((m.error <= size) | (m.sampled == 0)).all(0)
    wrong = m.trusted & (off > 10 * m.error + size).any(0)
    near = m.trusted & right & (off > 10 * m.error + 0.1 * size).any(0)
    by = (off / size).nan_to_num().amax(0)[wrong]
    smooth = bool(near.any() or len(by) and by.min() < 1e-3 * by.median())
    sizes = {what: t[m.elements] for what, t in sizes_of(m, m.x).items()}
    return Spots(m.elements, m.trusted & right & ~near, wrong, sizes, smooth)


def sizes_of(m, like):
    """{in words: numbers} that each element of a tensor of this shape has."""
    own = f"`{m.input}`" if like is m.x else m.output
    same = {name: t for name, t in m.tensors.items() if t.shape == like.shape}
    found = {own: like.real, f"the magnitude of {own}": like.abs()}
    found |= {name: t.real for name, t in same.items() if name != own}
    inputs = [(n, t) for n, t in same.items() if t.is_floating_point() and n != m.output]
    for (a, s), (b, t) in itertools.combinations(inputs[:4], 2):
        found |= {f"{a} - {b}": s - t, f"the magnitude of {a} - {b}": (s - t).abs()}
    for name, t in m.tensors.items():  # masks and signs of whole rows
        rows = t.shape == like.shape[: t.dim()] and not t.is_complex()
        if rows and t.numel() > 5 and len(t.unique()) == 2:
            wide = t.reshape(*t.shape, *[1] * (like.dim() - t.dim())).expand(like.shape)
            found.setdefault(name, wide.real)
    return {what: t.detach().reshape(-1) for what, t in found.items()}


def rule(shape, points, numbers=None, varied=()):
    """(where in words, where to look): what tells wrong from right at all points; or None.

    numbers: what may be a bound; varied: (such numbers, points) where one has another value
    """
    found, sure = by_value(points, numbers or {}, varied) or (None, False)
    if sure or points[0].smooth and len(shape) < 2:
        return (found, BRANCH) if sure else None
    wrong = torch.cat([p.elements[p.wrong] for p in points]).unique()
    right = torch.cat([p.elements[p.right] for p in points]).unique()
    if torch.isin(right, wrong).any():  # then it is the values that matter, not the places
        return (found, BRANCH) if found else None
    place = by_place(shape, right, wrong)
    if found and not (len(points) > 1 and place and (len(shape) > 1 or " to " in place)):
        return found, BRANCH
    return (place, PLACE) if place else None


def by_value(points, numbers, varied):
    """(a bound between where it is right and where it is wrong, in words; is it no chance?)"""
    sizes, smooth = points[0].sizes, any(p.smooth for p in points)
    for what in sizes:
        right, wrong = halves(points, what)
        if not len(right) or not len(wrong):
            return None
        if what == next(iter(sizes)) and not wrong.any() and right.all():
            return f"where {what} is 0,", True
        few = min(len(right), len(wrong)) < 3
        if few and len(right) + len(wrong) < 8 or len(points[0].elements) < 4:
            continue  # by chance
        for word, sign in (("above", 1), ("below", -1)):
            good, bad = (sign * right).max().item(), (sign * wrong).min().item()
            edge = 0.0 if good <= 0 < bad else sign * (good + bad) / 2
            if good >= bad or few and (edge or len(points) < 2):
                continue
            if sizes[what].dtype == torch.bool:
                return f"where {what} is {sign > 0},", True
            name = bound(what, sign, ((numbers, points), *varied)) if edge else "0"
            if name or not smooth:
                return f"where {what} is {word} {name or f'about {brief(edge)}'},", bool(name)
    return None


def halves(points, what):
    """The numbers where it is right, and those where it is wrong."""
    pairs = [(p.sizes[what][p.right], p.sizes[what][p.wrong]) for p in points]
    return [torch.cat(t).double() for t in zip(*pairs, strict=True)]


def bound(what, sign, settings):
    """In words, a number that is the bound in each setting, (numbers, points); empty if none is."""
    fits, tried = [], len(settings) > 1
    for numbers, points in settings:
        right, wrong = (sign * t for t in halves(points, what))
        if len(right) and len(wrong):
            low, high = right.max(), wrong.min()
            near = {a: n for a, n in numbers.items() if tried or high - low <= 0.25 * abs(n)}
            fits.append({a: n for a, n in near.items() if low <= sign * n <= high})
    names = [f"{a} = {brief(n)}" for a, n in fits[0].items() if all(a in fit for fit in fits)]
    return " or ".join(names)


DIAGONALS = {
    "on": lambda k: k == 0, "off": lambda k: k != 0, "above": lambda k: k > 0,
    "below": lambda k: k < 0, "on and above": lambda k: k >= 0, "on and below": lambda k: k <= 0,
}  # fmt: skip


def by_place(shape, right, wrong):
    """In words, the indices at which the one is found and not the other; or None."""
    if not len(right) or not len(wrong):
        return None
    if len(wrong) == 1:
        return f"at {position(wrong.item(), shape)}"
    good, bad = (torch.stack(torch.unravel_index(t, shape), -1) for t in (right, wrong))
    sets = [sorted(set(column)) for column in bad.T.tolist()]
    for d, n in enumerate(shape):
        if not torch.isin(good[:, d], bad[:, d]).any():
            return f"at {indices(sets[d], n, good[:, d])} of dimension {d}"
    for (d, n), (e, m) in itertools.combinations(enumerate(shape), 2):
        for how, fits in DIAGONALS.items() if n == m > 2 else ():
            if fits(bad[:, e] - bad[:, d]).all() and not fits(good[:, e] - good[:, d]).any():
                return f"{how} the diagonal" + f" of dimensions {d} and {e}" * (len(shape) > 2)
    return None


def indices(which, n, others=()):
    """In words, some of n indices; others: those that are known not to be among them."""
    known = sorted({*which, *map(int, others)}) if len(others) else range(n)
    first, last = which[0], which[-1]
    if len(which) > 2 and which == [k for k in known if first <= k <= last]:
        unknown = {first - 1, last + 1}.difference(known).intersection(range(n))
        return f"{'about ' * bool(unknown)}index {first} to {last}"
    return f"index {', '.join(map(str, which[:6]))}{' and more' * (len(which) > 6)}"


def subsets(shape):
    """Dimensions that are reduced together, the fewest first."""
    for many in range(1, len(shape) + 1):
        yield from itertools.combinations(range(len(shape)), many)


def named_dims(dims):
    *first, last = map(str, dims)
    return f"dimensions {', '.join(first)} and {last}" if first else f"dimension {last}"


def value_of(factor, numbers):
    """In words, which of the numbers that were given this factor is; empty if it is none."""
    for power, words in ((1, "{}"), (-1, "1 / {}"), (2, "{}²"), (-2, "1 / {}²")):
        for name, n in numbers.items():
            if not isinstance(factor, complex) and abs(n**power - factor) < 1e-4 * abs(factor):
                return " = " + words.format(name)
    return ""


def how(m):
    """In words, what the gradient is where it is wrong."""
    return relation(*(t[:, m.wrong] for t in (m.sampled, m.expected, m.limit)), m.subject.numbers)


def relation(given, expected, limit, numbers):
    """In words, what all these wrong numbers are."""
    ratio = given / expected
    first = ratio.reshape(-1)[0]
    if not given.any():
        return "is zero"
    if (expected.abs() <= limit).all():
        return "should be zero"
    if first.isfinite() and ((ratio - first).abs() <= 1e-4 * first.abs()).all():
        factor = "negated" if abs(first + 1) < 1e-4 else f"multiplied by {brief(first.item())}"
        return f"is {factor}{value_of(first.item(), numbers)}"
    return "is wrong"
