"""Where a gradient is wrong, and what it is there, as clauses of a sentence."""

import itertools
from dataclasses import dataclass

import torch

from ..function.tensors import position
from ..report import MEANT, brief
from ..words import N_, _, listed

IS_ZERO, IS_WRONG = N_("is zero"), N_("is wrong")
SHOULD_BE_ZERO = N_("should be zero")
NEARLY_ZERO = N_("should be nearly zero")
IS_NEGATED = N_("is negated")
IS_MULTIPLIED = N_("is multiplied by {factor}")
BRANCH = N_("masks, branches and bounds, and the formula there")
FORMULA = N_("the formula, term by term, at an element that is wrong")
WHOLE = {"1": 1, "2": 2, "3": 3, "6": 6}  # where what is piecewise has its bounds
MAGNITUDE = N_("the magnitude of {of}")
IS_TRUE, IS_FALSE = N_("where {what} is True"), N_("where {what} is False")
AT_0 = N_("where {what} is 0")
ABOVE_0, BELOW_0 = N_("where {what} is above 0"), N_("where {what} is below 0")
ABOVE = N_("where {what} is above {bound}{number}")
BELOW = N_("where {what} is below {bound}{number}")
IN_PART = N_("is right in part: {where}, it {how}")
ELSEWHERE = N_("is wrong at {count} of {known} elements examined{there}")


@dataclass(frozen=True, eq=False)
class Spots:
    """What is right and what is wrong at one point.

    elements: the numbers of those that are known
    right, wrong: masks of them
    sizes, bounds: {what it is: numbers} and {name: number}, by which the two may be
              told apart
    smooth: does the error shrink to 0?
    """

    elements: torch.Tensor
    right: torch.Tensor
    wrong: torch.Tensor
    sizes: dict
    bounds: dict
    smooth: bool = False


def of_elements(here):
    """The elements of an input; what is right only because it is small is neither."""
    size = here.point.tolerance * torch.maximum(here.sampled.abs(), here.expected.abs())
    known = (here.error <= size) | (here.sampled == 0)
    right = here.trusted & (known & (here.off <= here.error + size)).all(0)
    wrong = here.trusted & (here.off > 10 * here.error + size).any(0)
    near = right & (here.off > 10 * here.error + 0.1 * size).any(0)
    by = (here.off / size).nan_to_num().amax(0)[wrong]
    smooth = bool(near.any() or len(by) and by.min() < 1e-3 * by.median())
    sizes = {what: t[here.elements] for what, t in sizes_of(here, here.x).items()}
    bounds = here.subject.numbers | {
        f"-{name}": -n for name, n in here.subject.numbers.items()
    }
    bounds |= {} if smooth else WHOLE
    return Spots(here.elements, right & ~near, wrong, sizes, bounds, smooth)


def sizes_of(here, like):
    """{what it is: numbers} that each element of a tensor of this shape has."""
    own = f"`{here.input}`" if like is here.x else here.output
    same = {name: t for name, t in here.tensors.items() if t.shape == like.shape}
    found = {own: like, _(MAGNITUDE, of=own): like.abs(), **same}
    found = {name: t for name, t in found.items() if not t.is_complex()}  # no sign
    inputs = [
        (n, t) for n, t in same.items() if t.is_floating_point() and n != here.output
    ]
    for (a, s), (b, t) in itertools.combinations(inputs[:4], 2):
        found |= {
            f"{a} - {b}": s - t,
            _(MAGNITUDE, of=f"{a} - {b}"): (s - t).abs(),
        }
    for name, t in here.tensors.items():  # masks and signs of whole rows
        rows = t.shape == like.shape[: t.dim()] and not t.is_complex()
        if rows and t.numel() > 5 and len(t.unique()) == 2:
            wide = t.reshape(*t.shape, *[1] * (like.dim() - t.dim())).expand(like.shape)
            found.setdefault(name, wide)
    return {what: t.detach().reshape(-1) for what, t in found.items()}


def rule(shape, points, varied=()):
    """Where it is wrong, and only there, at all points; or None.

    varied: points where a number that was given has another value
    """
    right = torch.cat([p.elements[p.right] for p in points])
    wrong = torch.cat([p.elements[p.wrong] for p in points])
    if not (len(right) and len(wrong)):
        return None
    if found := by_value(points, varied, len(right), len(wrong)):
        return found
    if points[0].smooth and len(shape) < 2 or torch.isin(right, wrong).any():
        return None  # it is the values that matter, not the places
    return by_place(shape, right.unique(), wrong.unique())


def by_value(points, varied, right, wrong):
    """The values of something at which it is wrong, and only there; or None.

    right, wrong: at how many elements it is
    """
    for k, region in enumerate(regions(points[0])):
        template, what, bound = region
        if k > 0 and may_be_chance(points, right, wrong, bound):
            continue
        given = bound and bound not in WHOLE  # as an argument
        known = itertools.chain(points, varied if given else ())
        if all(tells(regions(p)[region], p) for p in known):
            number = ""
            if given:
                number = _(" = {number}", number=brief(points[0].bounds[bound]))
            return _(template, what=what, bound=bound, number=number)
    return None


def may_be_chance(points, right, wrong, bound):
    """Could few elements be told apart by some bound, or 0, by chance?"""
    n = len(points[0].elements)  # at the other points, which are near, the signs stay
    few = bool(bound) or len(points) == 1 or right + wrong <= 7
    return n <= 5 or min(right, wrong) <= 2 and few


def regions(p):
    """{(template, what, the bound's name): which elements}, first where it is 0."""
    found = {}
    for what, t in p.sizes.items():
        if t.dtype == torch.bool:
            found |= {(IS_TRUE, what, ""): t, (IS_FALSE, what, ""): ~t}
            continue
        found[AT_0, what, ""] = t == 0
        found |= {(ABOVE_0, what, ""): t > 0, (BELOW_0, what, ""): t < 0}
        for name, n in p.bounds.items():
            found |= {(ABOVE, what, name): t > n, (BELOW, what, name): t < n}
    return found


def tells(there, p):
    return bool(there[p.wrong].all() and not there[p.right].any())


def by_place(shape, right, wrong):
    """The indices at which the one is found and not the other, in words; or None."""
    if len(wrong) == 1:
        return _("at {index}", index=position(wrong.item(), shape))
    good, bad = (torch.stack(torch.unravel_index(t, shape), -1) for t in (right, wrong))
    for d, n in enumerate(shape):
        if not torch.isin(good[:, d], bad[:, d]).any():
            which = indices(sorted(set(bad[:, d].tolist())), n, good[:, d])
            return _("at {which} of dimension {d}", which=which, d=d)
    return None


def indices(which, n, others):
    """Some of n indices, in words.

    others: those that are known not to be among them
    """
    known = sorted({*which, *others.tolist()})
    first, last = which[0], which[-1]
    if len(which) > 2 and which == [k for k in known if first <= k <= last]:
        unknown = {first - 1, last + 1}.difference(known).intersection(range(n))
        if unknown:
            return _("about index {first} to {last}", first=first, last=last)
        return _("index {first} to {last}", first=first, last=last)
    if len(which) > 6:
        return _("index {some} and more", some=listed(which[:6]))
    return _("index {some}", some=listed(which))


def subsets(shape):
    """Dimensions that are reduced together, the fewest first."""
    for many in range(1, len(shape) + 1):
        yield from itertools.combinations(range(len(shape)), many)


def named_dims(dims):
    *first, last = dims
    if not first:
        return _("dimension {last}", last=last)
    return _("dimensions {first} and {last}", first=listed(first), last=last)


def in_part(here, where=None):
    """What fills the gaps of a sentence on what is right in part.

    where: what a `rule` says; without one, the elements that are wrong are counted
    """
    rows = here.sampled, here.expected, here.limit
    kind, said = relation(*(t[:, here.wrong] for t in rows))
    if where:
        what = _(IN_PART, where=where, how=said)
    else:
        count, known = int(here.wrong.sum()), int(here.trusted.sum())
        there = "" if kind == IS_WRONG else _(": there it {how}", how=said)
        what = _(ELSEWHERE, count=count, known=known, there=there)
    is_masked = kind in (IS_ZERO, SHOULD_BE_ZERO, NEARLY_ZERO)
    gaps = {"what": what, "remedy": _(BRANCH if is_masked else FORMULA)}
    return gaps | {"meant": MEANT} if kind == SHOULD_BE_ZERO else gaps


def relation(given, expected, limit):
    """What all these wrong numbers are: one of the templates above, and in words."""
    kind, ratio = IS_WRONG, given / expected
    first = ratio.reshape(-1)[0]
    if not given.any():
        kind = IS_ZERO
    elif (expected.abs() <= limit).all():
        kind = NEARLY_ZERO if expected.any() else SHOULD_BE_ZERO
    elif first.isfinite() and ((ratio - first).abs() <= 1e-4 * first.abs()).all():
        kind = IS_NEGATED if abs(first + 1) < 1e-4 else IS_MULTIPLIED
    return kind, _(kind, factor=brief(first.item()))
