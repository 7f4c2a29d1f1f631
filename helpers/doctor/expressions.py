"""Short expressions of what backward has at hand: thousands of them computed at once, and tried."""

import ast
import bisect
import contextlib
import functools
import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from .changes import Change, added, times
from .edits import bracketed, parsed
from .report import exact

NAMES, CHUNK = 18, 1_000_000  # at most
OF_A_SITE, TRIED, EACH = 8, 40, 8  # so many elements take as long as to compare one expression
SHIFTS = {"1 - {}": lambda t: 1 - t, "1 + {}": lambda t: 1 + t, "{} - 1": lambda t: t - 1}
UNARY = SHIFTS | {
    "1 / {}": torch.reciprocal, "{}.square()": torch.square, "{}.sqrt()": torch.sqrt,
    "{}.exp()": torch.exp, "{}.log()": torch.log, "{}.abs()": torch.abs, "{}.sign()": torch.sign,
    "{}.sigmoid()": torch.sigmoid, "{}.tanh()": torch.tanh, "{}.cos()": torch.cos,
    "{}.sin()": torch.sin, "{}.relu()": torch.relu,
}  # fmt: skip
MASKS = {"{} > 0": lambda t: (t > 0).to(t.dtype), "{} < 0": lambda t: (t < 0).to(t.dtype)}
NOT = {"~{}": lambda t: 1 - t}
SUM = {"{{}}.sum({d}, keepdim=True)": lambda t, d: t.sum(d, keepdim=True)}
ALONG = SUM | {
    "{{}}.mean({d}, keepdim=True)": lambda t, d: t.mean(d, keepdim=True),
    "{{}}.flip({d})": lambda t, d: t.flip(d),
    "{{}}.cumsum({d})": lambda t, d: t.cumsum(d),
    "{{}}.flip({d}).cumsum({d}).flip({d})": lambda t, d: t.flip(d).cumsum(d).flip(d),
}
TIMES, PLUS = {"{0} * {1}": torch.mul}, {"{0} + {1}": torch.add}
MINUS, OVER = {"{0} - {1}": torch.sub}, {"{0} / {1}": torch.div}
CENTRED = {  # as the derivative of a softmax
    "{{0}} - ({{0}} * {{1}}).sum({d}, keepdim=True)": (
        lambda a, b, d: a - (a * b).sum(d, keepdim=True)
    )
}


class Expression(NamedTuple):
    """What is written; of: (scope, like) -> its value, with all dimensions; names of forward.

    like: a tensor with the dimensions, and of the device
    """

    text: str
    of: Callable
    forwards: tuple = ()

    def then(self, how, function):
        text = how.format(bracketed(parsed(self.text)))
        return Expression(text, lambda *at: function(self.of(*at)), self.forwards)

    def with_another(self, other, how, function):
        text = how.format(*(bracketed(parsed(e.text)) for e in (self, other)))
        names = tuple(dict.fromkeys((*self.forwards, *other.forwards)))
        return Expression(text, lambda *at: function(self.of(*at), other.of(*at)), names)

    def __str__(self):
        if (self.text,) == self.forwards:
            return f"forward's `{self.text}`"
        names = ", ".join(f"`{name}`" for name in self.forwards)
        return f"`{ast.unparse(parsed(self.text))}`" + f" ({names} as in forward)" * bool(names)


class Some(NamedTuple):
    """Expressions whose values have one shape, stacked; at: number -> expression, or None.

    kind: of numbers of Python, which have no methods; of masks, from which nothing is subtracted
    """

    values: torch.Tensor
    at: Callable
    kind: str = "tensor"


def atoms(scopes, like, numbers):
    """Some, for each shape that can be expanded to it, each value once; numbers: those, too?"""
    found, seen = {}, []
    for name in sorted(scopes[-1], key=rank):
        if not (numbers or isinstance(scopes[-1][name], torch.Tensor)):
            continue
        for leading in (False, True):
            atom = atom_of(name, scopes[-1][name], like.dim(), leading)
            if atom and len(seen) < NAMES and all(name in scope for scope in scopes):
                values = [atom.of(scope, like) for scope in scopes]
                if any(v is None or v.shape != values[0].shape for v in values):
                    continue
                own = torch.stack(values)
                new = all(t.shape != own.shape or not torch.equal(t, own) for t in seen)
                if new and own.isfinite().all() and own.any() and not (own == 1).all():
                    seen.append(own)
                    kind = kind_of(scopes[-1][name])
                    found.setdefault((own.shape, kind), []).append((atom, own))
    return [
        Some(torch.stack([v for _, v in some]), [a for a, _ in some].__getitem__, kind)
        for (_, kind), some in found.items()
    ]


def kind_of(value):
    if isinstance(value, torch.Tensor):
        return "mask" if value.dtype is torch.bool else "tensor"
    return "number"


def rank(name):
    """Names come before expressions, and those of backward before those of forward."""
    return not re.fullmatch(r"(forward's )?`[\w.]+(\[\d+\])?`", name), name.startswith("forward's")


def atom_of(name, value, dims, leading):
    """The name as an expression; leading: it stands for the first dimensions. Or None."""
    text = "output" if name == "the output" else name.removeprefix("forward's ").strip("`")
    more = dims - value.dim() if isinstance(value, torch.Tensor) else dims
    try:
        node = parsed(text)
    except SyntaxError:
        return None
    if leading:
        if not 0 < more < dims:
            return None
        text = f"{bracketed(node)}[...{', None' * more}]"
    forwards = (text,) * name.startswith(("forward's ", "the output"))
    return Expression(text, lambda scope, like: whole(scope[name], like, leading), forwards)


def whole(value, like, leading):
    """The tensor, or number, with as many dimensions, if it can be expanded to the same shape."""
    if torch.is_tensor(value) and value.is_complex():
        return None
    value = torch.as_tensor(value, dtype=torch.float64, device=like.device)
    if value.dim() > like.dim():
        return None
    ones = [1] * (like.dim() - value.dim())
    own = value.reshape([*value.shape, *ones] if leading else [*ones, *value.shape])
    return own if all(n in (1, m) for n, m in zip(own.shape, like.shape, strict=True)) else None


def along(ways, dims):
    """These ways, along each dimension."""
    return {
        how.format(d=d): functools.partial(f, d=d)
        for (how, f), d in itertools.product(ways.items(), range(-dims, 0))
    }


def of_one(groups, ways):
    """What one function makes of all the expressions of each group."""
    for some in groups:
        for how, f in ways.items():
            d = getattr(f, "keywords", {}).get("d")
            if some.kind == "number" and how not in SHIFTS or d and some.values.shape[d] == 1:
                continue
            made = telling(f(some.values), some.values)
            yield Some(made, functools.partial(at_one, some, how, f), some.kind)


def telling(made, of):
    """No number where nothing is made, as by the absolute value, or the sign, of what is positive.

    made, of: of many expressions, stacked
    """
    if made.shape != of.shape:
        return made
    rows = made.flatten(1)
    nothing = (rows == of.flatten(1)).all(1) | (rows == rows[:, :1]).all(1) & (rows.shape[1] > 1)
    return torch.where(nothing.reshape(-1, *[1] * (made.dim() - 1)), torch.nan, made)


def at_one(some, how, f, k):
    return some.at(k) and some.at(k).then(how, f)


def of_two(left, right, ways):
    for a, b in itertools.product(left, right):
        for how, f in ways.items():
            d = getattr(f, "keywords", {}).get("d")
            if d and a.values.shape[d] == b.values.shape[d] == 1:
                continue
            at = functools.partial(at_pair, a, b, how, f)
            values = f(a.values[:, None], b.values).flatten(0, 1)
            yield Some(values, at, "number" if a.kind == b.kind == "number" else "tensor")


def at_pair(left, right, how, f, k):
    """None, if it says nothing, as a - a and a / a."""
    i, j = divmod(k, len(right.values))
    a, b = left.at(i), right.at(j)
    nothing = not (a and b) or (a.text == b.text and how in MINUS | OVER)
    return None if nothing else a.with_another(b, how, f)


def groups(scopes, like, short, constant):
    """(is it only added?, Some after the other): names and products, or what else they make.

    constant: of numbers of Python only
    """
    found, dims = atoms(scopes, like, numbers=not short), like.dim()
    found = [some for some in found if some.kind == "number"] if constant else found
    names = [some for some in found if some.kind != "mask"]
    masks = [some for some in found if some.kind == "mask"]
    products = list(of_two(names, names + masks, TIMES))
    if short:
        return (False, names + masks), (True, products)
    tensors = [some for some in names if some.kind == "tensor"]
    masks = [*of_one(masks, NOT), *of_one(tensors, MASKS)]
    one = list(of_one(names, UNARY | along(ALONG, dims)))
    two = products + list(of_two(names, names, PLUS | MINUS | OVER))
    shifted, sums = list(of_one(one, SHIFTS)), list(of_one(products, along(SUM, dims)))
    longer = (
        masks, of_two(names, masks, TIMES), one, two,
        of_two(names, one, TIMES | PLUS | MINUS | OVER), of_two(one, names, MINUS | OVER),
        shifted, of_one(two, UNARY | along(ALONG, dims)), of_two(names, two, TIMES | OVER),
        of_two(names, sums, TIMES | MINUS), of_two(names, shifted, TIMES | OVER),
        of_two(names, list(of_two(names, names, along(CENTRED, dims))), TIMES),
    )  # fmt: skip
    return ((False, itertools.chain(*longer)),)


def matches(sites, slopes, target, limit, room, short=False, constant=False):
    """(site, Change, factor) of what may make a gradient right.

    sites: {site: steps}, all of one shape; slopes: {site: (probes, elements of all its steps)}
    target: what is to change, in these probes; room: for so many elements
    short, constant: see `groups`
    """
    many = list(sites.values())
    like, scopes = many[0][0].value, [step.scope for step in many[0]]
    values = [torch.cat([s.value.double().reshape(-1) for s in steps]) for steps in many]
    weights = torch.stack([slopes[site] for site in sites])
    scaled = weights * torch.stack(values)[:, None]
    targets = target + scaled.sum(-1)  # if it is replaced
    for only_added, some in groups(scopes, like, short, constant):
        for rows, at in stacked(some, like.shape, room, len(sites)):
            plain = weights @ rows.T
            forms = [(joined, plain, target.expand_as(targets))]
            if not only_added:
                forms = [
                    (replacing, plain, targets), (multiplied, scaled @ rows.T, targets),
                    (divided, scaled @ finite(1 / rows).T, targets), *forms,
                ]  # fmt: skip
            for form, ways, wanted in forms:
                for s, k, factor in fitting(ways, wanted, limit, short):
                    if expression := at(k):
                        yield list(sites)[s], form(many[s][0], expression), factor


def fitting(ways, wanted, limit, any_factor):
    """(site, expression, factor) of those that are what is wanted.

    ways: (sites, probes, expressions); wanted: (sites, probes)
    """
    (a, b, *_), (x, y, *_) = ways.unbind(1), wanted.unbind(1)
    parallel = (a * y[:, None] - b * x[:, None]).abs() <= 2 * limit * (a.abs() + b.abs())
    s, k = (parallel & (a != 0)).nonzero(as_tuple=True)
    some, wanted = ways[s, :, k], wanted[s]
    factor = (some * wanted).sum(1) / some.square().sum(1)
    near = ((12 * factor - (12 * factor).round()).abs() < 1e-4) & (factor.abs() > 0.05)
    fits = (wanted - factor[:, None] * some).norm(dim=1) <= limit
    factor = torch.where(near, (12 * factor).round() / 12, factor)
    fits = fits & near if not any_factor else fits
    yield from zip(*(t[fits].tolist() for t in (s, k, factor)), strict=True)


def stacked(some, shape, left, sites):
    """(values, one a row; number -> expression), of many groups at once, until it is too much."""
    room, held = CHUNK, []
    for group in some:
        rows = group.values.expand(-1, -1, *shape).flatten(1)
        left, room = left - rows.numel() - EACH * sites * len(rows), room - rows.numel()
        if left < 0:
            break
        held.append((group, rows))
        if room < 0:
            yield finite(torch.cat([rows for _, rows in held])), at_row(held)
            room, held = CHUNK, []
    if held:
        yield finite(torch.cat([rows for _, rows in held])), at_row(held)


def at_row(held):
    ends = list(itertools.accumulate(len(rows) for _, rows in held))

    def at(k):
        n = bisect.bisect_right(ends, k)
        return held[n][0].at(k - (ends[n - 1] if n else 0))

    return at


def finite(rows):
    """Zeros in the place of each row that is not."""
    return torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)


def direction(expression, step):
    return expression.of(step.scope, step.value).expand_as(step.value).to(step.value.dtype)


def replacing(step, e):
    def words(factor):
        how = ""
        with contextlib.suppress(KeyError, RuntimeError):  # in another round it has other names
            how = ", expanded," * (e.of(step.scope, step.value).shape != step.value.shape)
        return f"{times(factor, str(e))}{how} stood in place of {step.text}"

    return Change(words, lambda s: direction(e, s))


def multiplied(step, e, how="multiplied", power=1):
    def words(factor):
        said = f"{step.text} were {how} by {e}"
        return said if factor == 1 else f"{said} and multiplied by {exact(factor)}"

    return Change(words, lambda s: s.value * direction(e, s) ** power)


def divided(step, e):
    return multiplied(step, e, "divided", -1)


def joined(step, e):
    return added(str(e), step.text, lambda s: direction(e, s))
