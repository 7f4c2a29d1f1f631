"""The changes of one step of backward that `repair` tries, and the words for each."""

import functools
import itertools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from .report import brief, exact
from .scalings import scaled_by, scalings


class Change(NamedTuple):
    """A factor times `direction` takes the place of what a step makes, or is added to it.

    words:     factor -> what is said
    direction: step -> a tensor that can be expanded to the shape of what the step makes
    keeps:     is it added?
    factors:   which the factor may be, if not any
    names:     factor, step -> (words, function of a step) for each name of the factor
    """

    words: Callable
    direction: Callable
    keeps: bool = False
    factors: tuple | None = None
    names: Callable = lambda factor, step: ()

    def by(self, factor):
        """The change, where the factor is a number or a function of a step."""

        def changed(step):
            number = factor(step) if callable(factor) else factor
            return (step.value if self.keeps else 0) + number * self.direction(step)

        return changed


def is_real(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def names(step, wanted=torch.is_tensor):
    return [name for name, value in step.scope.items() if wanted(value)]


class Spread(str):
    """A name with the indices that its tensor needs, to stand for the first dimensions."""

    @classmethod
    def of(cls, name, more):
        before, inner = name[:-1].split("`", 1)
        inner = inner if re.fullmatch(r"[\w.]+", inner) else f"({inner})"
        made = cls(f"{before}`{inner}[...{', None' * more}]`")
        made.key = name
        return made


def expanding(step):
    """(name, leading) of what can be expanded to what is made, as `Step.named` does."""
    shape = step.value.shape
    for name in names(step):
        size = step.scope[name].shape
        if len(size) <= len(shape):
            if fits(step.scope[name], step.value):
                yield name, False
            elif "`" in name and all(a in (1, b) for a, b in zip(size, shape, strict=False)):
                yield Spread.of(name, len(shape) - len(size)), True


def times(factor, what):
    return what if factor == 1 else f"-{what}" if factor == -1 else f"{exact(factor)} times {what}"


def places(step):
    return [*range(len(step.args)), *step.kwargs]


def left_out(step):
    said = {-1: f"{step.text} were negated", 0: f"{step.text} were left out"}
    yield Change(said.get, lambda s: s.value, factors=tuple(said))


def scaled(step):
    def names(factor, step):
        return [(f"{step.text} were {how}", of) for how, of in scalings(factor, step.scope)]

    yield Change(lambda f: f"{step.text} were {scaled_by(f, {})}", lambda s: s.value, names=names)


# --- another argument, or another tensor in the place of what is made -------------------------


def with_another_number(step):
    for where in places(step):
        old = step.argument(where)
        for new in near(old):
            words = f"{new} stood in place of {old} in {step.text}"
            yield with_argument(where, lambda s, new=new: new, words)

    dims = step.args[1:]
    if len(dims) > 1 and sorted(map(str, dims)) == sorted(map(str, range(len(dims)))):  # permute
        for a, b in itertools.combinations(range(len(dims)), 2):
            new = list(dims)
            new[a], new[b] = dims[b], dims[a]
            yield Change(
                lambda f, new=new: f"{tuple(new)} stood in place of {dims} in {step.text}",
                lambda s, new=new: s.func(s.args[0], *new),
                factors=(1,),
            )


def with_another_float(step):
    for where in places(step):
        old = step.argument(where)
        if isinstance(old, float):
            yield Change(
                lambda f, old=old: (
                    f"{brief(old + f)} stood in place of {brief(old)} in {step.text}"
                ),
                functools.partial(by_one_more, where=where, old=old),
                keeps=True,
            )


def by_one_more(step, where, old):
    """What one more in place of this number adds, if each one adds the same."""
    first, second, third = (step.with_argument(where, old + n) for n in range(3))
    if not torch.allclose(second - first, third - second, rtol=1e-6):
        raise ValueError("it is not linear in this number")
    return second - first


def with_argument(where, new, words):
    return Change(lambda f: words, lambda s: s.with_argument(where, new(s)), factors=(1,))


def near(value):
    """Numbers, or tuples of them, that may have been meant."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [n for n in dict.fromkeys((value + 1, value - 1, -value, 0, 1, 2)) if n != value]
    if isinstance(value, (tuple, list)) and value and all(type(n) is int for n in value):
        parts = [(value[:k], value[k], value[k + 1 :]) for k in range(len(value))]
        found = [type(value)((*a, new, *b)) for a, n, b in parts for new in near(n)[:3]]
        return found + [type(value)((*a, *b)) for a, _, b in parts if a or b]
    return []


def with_another_tensor(step):
    for where in places(step):
        old = step.argument(where)
        if not torch.is_tensor(old):
            continue
        same = names(step, lambda t, old=old: torch.is_tensor(t) and t.shape == old.shape)
        equal = [name for name in same if torch.equal(step.scope[name].to(old.dtype), old)]
        read = [name for name in equal if name.strip("`") in step.written]  # not equal by chance
        what = read[0] if read else "an operand"
        for name in same:
            if name not in equal:
                words = f"{name} stood in place of {what} in {step.text}"
                yield with_argument(where, lambda s, name=name: s.scope[name], words)
        for how, turn in turns(old):
            words = f"{what} were {how} in {step.text}"
            yield with_argument(
                where, lambda s, where=where, turn=turn: turn(s.argument(where)), words
            )
        if where == 0 and "cum" in getattr(step.func, "__name__", ""):
            for d in range(old.dim()):
                yield Change(
                    lambda f: f"{step.text} ran from the other end",
                    lambda s, d=d: s.with_argument(0, s.args[0].flip(d)).flip(d),
                    factors=(1,),
                )


def turns(t):
    """(how, function), where the function keeps the shape."""
    if t.dtype is torch.bool:
        yield "inverted", torch.logical_not
        return
    if t.dim() > 1 and t.shape[-1] == t.shape[-2]:
        yield "transposed", lambda t: t.mT
    for d, size in enumerate(t.shape):
        if size > 1:
            yield f"flipped along dimension {d}", lambda t, d=d: t.flip(d)
            for n, word in ((1, "later"), (-1, "earlier")):
                how = f"one place {word} along dimension {d}"
                yield f"rolled {how}", lambda t, d=d, n=n: t.roll(n, d)
                yield f"shifted {how}", lambda t, d=d, n=n: shifted(t, d, n)
        if size > 3 and size % 2 == 0:
            how = f"taken with its halves along dimension {d} exchanged"
            yield how, lambda t, d=d, n=size // 2: t.roll(n, d)
        for pair in itertools.combinations(range(size), 2) if 2 < size < 5 else ():
            order = list(range(size))
            order[pair[0]], order[pair[1]] = order[pair[1]], order[pair[0]]
            how = f"taken with index {pair[0]} and {pair[1]} of dimension {d} exchanged"
            yield (
                how,
                lambda t, d=d, order=order: t.index_select(d, torch.tensor(order, device=t.device)),
            )
    if t.is_complex():
        yield "conjugated", torch.conj_physical
    if t.is_floating_point():
        yield "negated", torch.neg
        yield "replaced by its exponential", torch.exp


def shifted(t, d, n):
    kept = torch.arange(t.shape[d], device=t.device) != (0 if n > 0 else t.shape[d] - 1)
    return t.roll(n, d) * kept.reshape(-1, *[1] * (t.dim() - d - 1))


def turned_round(step):
    for how, turn in turns(step.value):
        yield Change(
            lambda f, how=how: f"{step.text} were {how}",
            lambda s, turn=turn: turn(s.value),
            factors=(1,),
        )


# --- a factor ---------------------------------------------------------------------------------

FACTORS = {
    "multiplied by {}": lambda t: t, "divided by {}": lambda t: 1 / t,
    "multiplied by {} squared": torch.square, "divided by {} squared": lambda t: 1 / t**2,
    "multiplied by 1 - {}": lambda t: 1 - t, "multiplied by exp({})": torch.exp,
    "multiplied by 1 - {} squared": lambda t: 1 - t * t, "multiplied by log({})": torch.log,
}  # fmt: skip


def multiplied(step):
    for (how, function), (name, leading) in itertools.product(FACTORS.items(), expanding(step)):
        words = f"{step.text} were {how.format(name)}"
        yield Change(
            lambda f, words=words: words if f == 1 else f"{words} and multiplied by {exact(f)}",
            lambda s, name=name, leading=leading, function=function: (
                s.value * function(s.named(name, leading))
            ),
        )
    yield from with_an_operand_multiplied(step)


def with_an_operand_multiplied(step):
    for where in places(step):
        old = step.argument(where)
        if is_real(old) and old.shape != step.value.shape:
            same = names(step, lambda t, old=old: torch.is_tensor(t) and fits(t, old))
            for name, (power, how) in itertools.product(same, ((1, "multiplied"), (-1, "divided"))):
                words = f"an operand of {step.text} were {how} by {name}"
                yield with_argument(
                    where,
                    lambda s, where=where, name=name, power=power: (
                        s.argument(where) * s.scope[name] ** power
                    ),
                    words,
                )


def fits(t, like):
    """Has a product of the two the shape of the other?"""
    pairs = zip(t.shape[::-1], like.shape[::-1], strict=False)
    return t.dim() <= like.dim() and all(n in (1, m) for n, m in pairs)


# --- a term -----------------------------------------------------------------------------------


def added(what, to, direction):
    def words(factor, scaled=""):
        how = "subtracted from" if factor < 0 else "added to"
        return f"{what if scaled else times(abs(factor), what)}{scaled} were {how} {to}"

    def names(factor, step):
        for how, of in scalings(abs(factor), step.scope):
            sign = -1 if factor < 0 else 1
            yield words(factor, f", {how},"), lambda step, of=of, sign=sign: sign * of(step)

    return Change(words, direction, keeps=True, names=names)


def with_a_sum(step):
    text = step.text
    for over, some, total in totals(step):
        what = "the {} of " + f"{text} {over}"
        yield added_total(what, text, some, lambda s, total=total: total(s, s.value))
    for (name, leading), (over, some, total) in itertools.product(expanding(step), totals(step)):
        yield added_total(
            f"{name} times the {{}} of {text} {over}", text, some,
            lambda s, name=name, leading=leading, total=total: (
                s.named(name, leading) * total(s, s.value)
            ),
        )  # fmt: skip
        yield added_total(
            f"{name} times the {{}} of {name} times {text} {over}", text, some,
            lambda s, name=name, leading=leading, total=total: (
                s.named(name, leading) * total(s, s.named(name, leading) * s.value)
            ),
        )  # fmt: skip


def added_total(what, to, dims, direction):
    """The sum over these dimensions is added, or the mean."""

    def count(step):
        return math.prod(step.value.shape[d] for d in dims)

    def names(factor, step):
        times = round(factor * count(step), 6) if dims else 0.5
        if times == round(times) and factor != round(factor):
            said = added(what.format("mean"), to, direction).words(times)
            yield said, lambda step: times / count(step)

    return added(what.format("sum"), to, direction)._replace(names=names)


def is_simple(number):
    return abs(12 * number - round(12 * number)) < 1e-6


def totals(step):
    """(over what, dimensions or None, function): sums along dimensions, and of equal indices."""
    dims = range(step.value.dim())
    for some in itertools.chain(*(itertools.combinations(dims, n) for n in (1, 2, 3))):
        over = f"along dimension{'s' * (len(some) > 1)} {', '.join(map(str, some))}"
        yield over, some, lambda s, t, some=some: t.sum(some, keepdim=True)
    for name, d in itertools.product(names(step), dims):
        index = step.scope[name]
        if index.dtype is torch.int64 and index.shape == step.value.shape[d : d + 1]:
            if index.min() >= 0 and index.max() < 10000 and len(index.unique()) < len(index):
                yield (
                    f"over equal {name}", None,
                    lambda s, t, name=name, d=d: sum_of_equal(t, s.scope[name], d),
                )  # fmt: skip


def sum_of_equal(t, index, d):
    sums = t.new_zeros([*t.shape[:d], int(index.max()) + 1, *t.shape[d + 1 :]])
    return sums.index_add(d, index, t).index_select(d, index)


def with_a_product(step):
    once = {id(step.scope[name]): name for name in reversed(names(step, is_real))}
    for a, b in itertools.product(reversed(once.values()), repeat=2):
        shapes = step.scope[a].shape, step.scope[b].shape
        for first, second in itertools.product((False, True), (False, True)):
            if multiplies(*shapes, first, second, step.value.shape):
                yield added(
                    f"{a}{'.mT' * first} @ {b}{'.mT' * second}", step.text,
                    lambda s, a=a, b=b, first=first, second=second: (
                        turned(s.scope[a], first) @ turned(s.scope[b], second)
                    ),
                )  # fmt: skip
        for turn in (False, True):
            if multiplies((*shapes[0][:-1], 1, *shapes[0][-1:]), shapes[1], False, turn,
                          (*step.value.shape[:-1], 1, *step.value.shape[-1:])):  # fmt: skip
                yield added(
                    f"{a} @ {b}{'.mT' * turn}, row by row,", step.text,
                    lambda s, a=a, b=b, turn=turn: (
                        s.scope[a].unsqueeze(-2) @ turned(s.scope[b], turn)
                    ).squeeze(-2),
                )  # fmt: skip


def turned(t, turn):
    return t.mT if turn else t


def multiplies(left, right, first, second, shape):
    """Has the product of tensors of these shapes, transposed or not, the third shape?"""
    left = (*left[:-2], *left[-2:][::-1]) if first and len(left) > 1 else left
    right = (*right[:-2], *right[-2:][::-1]) if second and len(right) > 1 else right
    if not left or not right or first > (len(left) > 1) or second > (len(right) > 1):
        return False
    inner, last = (right[-2], right[-1:]) if len(right) > 1 else (right[0], ())
    return left[-1] == inner and (*left[:-1], *last) == tuple(shape)


FIRST = left_out, with_another_number, scaled, with_another_tensor, turned_round
THEN = with_an_operand_multiplied, with_a_sum, with_a_product
