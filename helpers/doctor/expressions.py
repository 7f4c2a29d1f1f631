"""Short expressions of what backward has at hand: thousands of them computed at once, and tried."""

import bisect
import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from .changes import Change, added, times
from .edits import bracketed, parsed
from .report import exact

NAMES, CHUNK, ELEMENTS = 18, 1_000_000, 12_000_000  # at most
OF_A_SITE, TRIED = 8, 40
UNARY = {
    "1 - {}": lambda t: 1 - t, "1 + {}": lambda t: 1 + t, "1 / {}": torch.reciprocal,
    "{}.square()": torch.square, "{}.sqrt()": torch.sqrt, "{}.exp()": torch.exp,
    "{}.log()": torch.log, "{}.abs()": torch.abs, "{}.sign()": torch.sign,
    "{}.sigmoid()": torch.sigmoid, "{}.tanh()": torch.tanh, "{}.cos()": torch.cos,
    "{}.sin()": torch.sin, "{}.relu()": torch.relu,
}  # fmt: skip
ALONG = {
    "{{}}.sum({d}, keepdim=True)": lambda t, d: t.sum(d, keepdim=True),
    "{{}}.mean({d}, keepdim=True)": lambda t, d: t.mean(d, keepdim=True),
    "{{}}.flip({d})": lambda t, d: t.flip(d),
    "{{}}.cumsum({d})": lambda t, d: t.cumsum(d),
    "{{}}.flip({d}).cumsum({d}).flip({d})": lambda t, d: t.flip(d).cumsum(d).flip(d),
}
BINARY = {
    "{} * {}": torch.mul, "{} + {}": torch.add, "{} - {}": torch.sub, "{} / {}": torch.div,
}  # fmt: skip
SHIFTS, COMMUTE = 2, 2  # the first of them


class Expression(NamedTuple):
    """What is written; of: (scope, shape) -> its value, with all dimensions; names of forward."""

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
        return f"`{self.text}`" + f" ({names} as in forward)" * bool(names)


class Some(NamedTuple):
    """Expressions whose values have one shape, stacked; at: number -> expression."""

    values: torch.Tensor
    at: Callable


def atoms(scopes, shape, numbers):
    """{shape: Some} of what can be expanded to this shape, each value once; numbers: those, too?"""
    found, seen = {}, []
    for name in sorted(scopes[-1], key=rank):
        if not (numbers or isinstance(scopes[-1][name], torch.Tensor)):
            continue
        for leading in (False, True):
            atom = atom_of(name, scopes[-1][name], shape, leading)
            if atom and len(seen) < NAMES and all(name in scope for scope in scopes):
                values = [atom.of(scope, shape) for scope in scopes]
                if any(v is None or v.shape != values[0].shape for v in values):
                    continue
                own = torch.stack(values)
                new = all(t.shape != own.shape or not torch.equal(t, own) for t in seen)
                if new and own.isfinite().all() and own.any() and not (own == 1).all():
                    seen.append(own)
                    found.setdefault(own.shape, []).append((atom, own))
    return {
        of: Some(torch.stack([v for _, v in some]), [a for a, _ in some].__getitem__)
        for of, some in found.items()
    }


def rank(name):
    """Names come before expressions, and those of backward before those of forward."""
    return not re.fullmatch(r"(forward's )?`[\w.]+(\[\d+\])?`", name), name.startswith("forward's")


def atom_of(name, value, shape, leading):
    """The name as an expression; leading: it stands for the first dimensions. Or None."""
    text = "output" if name == "the output" else name.removeprefix("forward's ").strip("`")
    more = len(shape) - value.dim() if isinstance(value, torch.Tensor) else len(shape)
    try:
        node = parsed(text)
    except SyntaxError:
        return None
    if leading:
        if not 0 < more < len(shape):
            return None
        text = f"{bracketed(node)}[...{', None' * more}]"
    forwards = (text,) * name.startswith("forward's ")
    return Expression(text, lambda scope, shape: whole(scope[name], shape, leading), forwards)


def whole(value, shape, leading):
    """The tensor, or number, with as many dimensions, if it can be expanded to this shape."""
    value = torch.as_tensor(value)
    if value.dim() > len(shape) or value.is_complex():
        return None
    ones = [1] * (len(shape) - value.dim())
    own = value.reshape([*value.shape, *ones] if leading else [*ones, *value.shape])
    fits = all(n in (1, m) for n, m in zip(own.shape, shape, strict=True))
    return own.to(torch.float64) if fits else None


def of_one(groups, dims, along=ALONG):
    """What one function makes of all the expressions of each group."""
    for some in groups:
        ways = list(UNARY.items() if along else itertools.islice(UNARY.items(), SHIFTS))
        for (how, f), d in itertools.product(along.items(), range(-dims, 0)):
            if some.values.shape[d] > 1:
                ways.append((how.format(d=d), lambda t, f=f, d=d: f(t, d)))
        for how, function in ways:
            yield Some(
                function(some.values),
                lambda k, at=some.at, how=how, f=function: at(k).then(how, f),
            )


def of_two(left, right, ways):
    for a, b in itertools.product(left, right):
        for how in ways:
            values, f, n = BINARY[how](a.values[:, None], b.values), BINARY[how], len(b.values)
            yield Some(
                values.flatten(0, 1),
                lambda k, a=a, b=b, how=how, f=f, n=n: a.at(k // n).with_another(
                    b.at(k % n), how, f
                ),
            )


def expressions(scopes, shape, short):
    """Some after the other: names and products of two, or what else is made of them."""
    names = list(atoms(scopes, shape, numbers=not short).values())
    dims, ways = len(shape), list(BINARY)
    products = list(of_two(names, names, ways[:1]))
    if short:
        return names + products
    one, two = list(of_one(names, dims)), list(of_two(names, names, ways[1:]))
    shifted = list(of_one(one, dims, along={}))
    sums = [some for some in of_one(products, dims) if "sum(" in some.at(0).text]
    return itertools.chain(
        one, two, of_two(names, one, ways), of_two(one, names, ways[COMMUTE:]), shifted,
        of_one(products + two, dims), of_two(names, sums, ways[:1]),
        of_two(names, shifted, ways[::3]),
    )  # fmt: skip


def matches(sites, slopes, target, limit, short):
    """(site, Change, factor) of what may make a gradient right.

    sites: {site: steps}, all of one shape; slopes: {site: (probes, elements of all its steps)}
    target: what is to change, in these probes
    """
    many = list(sites.values())
    shape, scopes = many[0][0].value.shape, [step.scope for step in many[0]]
    values = [torch.cat([s.value.double().reshape(-1) for s in steps]) for steps in many]
    weights = torch.stack([slopes[site] for site in sites])
    scaled = weights * torch.stack(values)[:, None]
    targets = target + scaled.sum(-1)  # if it is replaced
    for rows, at in stacked(expressions(scopes, shape, short), shape):
        forms = (  # (sites, probes, expressions), and what they should be
            (in_place, weights @ rows.T, targets), (multiplied, scaled @ rows.T, targets),
            (divided, scaled @ finite(1 / rows).T, targets),
            (joined, weights @ rows.T, target.expand_as(targets)),
        )  # fmt: skip
        for form, ways, wanted in forms:
            factors = (ways * wanted[..., None]).sum(1) / ways.square().sum(1)
            rest = (wanted[..., None] - factors[:, None] * ways).norm(dim=1)
            near = (12 * factors - (12 * factors).round()).abs() < 1e-3
            fits = (rest <= limit) & (near | short) & (factors.abs() > 1e-6)
            for s, k in fits.nonzero().tolist():
                factor = factors[s, k].item()
                yield list(sites)[s], form(many[s][0], at(k)), round(12 * factor) / 12 or factor


def stacked(groups, shape):
    """(values, one a row; number -> expression), of many groups at once, until it is too much."""
    left, held = ELEMENTS, []
    for some in groups:
        rows = some.values.expand(-1, -1, *shape).flatten(1)
        left -= rows.numel()
        if left < 0:
            break
        held.append((some, rows))
        if sum(rows.numel() for _, rows in held) > CHUNK:
            yield finite(torch.cat([rows for _, rows in held])), at_row(held)
            held = []
    if held:
        yield finite(torch.cat([rows for _, rows in held])), at_row(held)


def at_row(held):
    ends = list(itertools.accumulate(len(rows) for _, rows in held))
    groups = [some for some, _ in held]

    def at(k):
        n = bisect.bisect_right(ends, k)
        return groups[n].at(k - (ends[n - 1] if n else 0))

    return at


def finite(rows):
    """Zeros in the place of each row that is not."""
    return torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)


def direction(expression, step):
    shape = step.value.shape
    return expression.of(step.scope, shape).expand(shape).to(step.value.dtype)


def in_place(step, e):
    return Change(
        lambda f: f"{times(f, str(e))} stood in place of {step.text}", lambda s: direction(e, s)
    )


def multiplied(step, e, how="multiplied", power=1):
    def words(factor):
        said = f"{step.text} were {how} by {e}"
        return said if factor == 1 else f"{said} and multiplied by {exact(factor)}"

    return Change(words, lambda s: s.value * direction(e, s) ** power)


def divided(step, e):
    return multiplied(step, e, "divided", -1)


def joined(step, e):
    return added(str(e), step.text, lambda s: direction(e, s))
