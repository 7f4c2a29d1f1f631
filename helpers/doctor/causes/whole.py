"""Causes that concern all of a gradient: it is missing, multiplied, or right if
transformed."""
# ruff: noqa: B023 (a hypothesis is tried before the next one is made)

import itertools
import math

import torch

from ..function.tensors import largest
from ..measure.comparison import same
from ..report import MEANT, brief
from ..words import N_, _, number
from .cause import cause
from .where import named_dims, subsets

DIGITS = N_("{n} digit"), N_("{n} digits")
ROUNDINGS = 16  # of the dtype that was given, by which a gradient may rightly be off


def is_flat(ms):
    """Does the output not change at all, neither with one element nor with all?"""
    return all(m.zero[m.trusted].all() and not (m.sparse and moves(m)) for m in ms)


def moves(m):
    slope = m.point.slopes(m.i, m.point.dice.direction(m.x))[m.o]
    return bool((slope.value.abs() > slope.error).any())


@cause(
    "right-here-only",
    "The gradient of {x} looks right at the given point, but is wrong at others.",
    look="constants that belong to one input, and branches",
)
def right_here_only(ms):
    return {} if ms.elsewhere and not is_flat(ms) else None


@cause(
    "gradient-none",
    "The gradient of {x} is None, but {y} depends on {x}.",
    look="what backward returns in the place of {x}; if it is meant as a constant, "
    "give "
    "requires_grad=True to the other inputs only",
)
def gradient_none(ms):
    yield {}, lambda m: m.none


@cause(
    "gradient-zero",
    "The gradient of {x} is zero {where}, but {y} depends on {x}.",
    look="how the gradient of {x} is filled in",
)
def gradient_zero(ms):
    point, i = ms[0].point, ms[0].i
    alone = [point.given(o)[0][i] for o in range(len(point.vs))]
    together = point.vjp({o: vs[0] for o, vs in enumerate(point.vs)})[i]
    is_product = ms[0].row(together).any() and not any(
        ms[0].row(grad).any() for grad in alone
    )
    where = _("where no other output is used") if is_product else _("everywhere")
    yield (
        {"where": where},
        lambda m: largest(m.given) <= 1e-12 * largest(m.expected),
    )  # or rounding


@cause(
    "straight-through",
    "The derivative of {y} with respect to {x} is zero here, but backward {what}.",
    look="which gradient this is, if no straight-through gradient is intended",
)
def straight_through(ms):
    if not is_flat(ms) or swapped(ms):
        return None
    passes = _("passes grad_output straight through")
    what = passes if ms[0].passes else _("does not return zero")
    return {"what": what, "meant": MEANT}


@cause(
    "grad-output-ignored",
    "The gradient of {x} does not depend on grad_output{only}.",
    look="where grad_output enters the gradient of {x}",
)
def grad_output_ignored(ms):
    if not all(same(m.given[k], m.given[0]) for m in ms for k in (1, 2)):
        return None
    only = all(m.is_right_for_ones for m in ms)
    return {"only": _(", so it is right only for ones") if only else ""}


# --- a factor -------------------------------------------------------------------------


@cause("negated", "The gradient of {x} is right, but negated.", look="the sign")
def negated(ms):
    yield {}, lambda m: m.fits(-m.given)


def sizes(m):
    """[(size, what it is)] of the output and of the input: of one dimension, of
    several, of all."""
    found = []
    for t, shape in ((m.output, m.y.shape), (f"`{m.input}`", m.shape)):
        for dims in subsets(shape):
            of = _("{dims} of {t}").format(dims=named_dims(dims), t=t)
            of = t if 1 < len(dims) == len(shape) else of
            found.append((len(dims), math.prod(shape[d] for d in dims), of))
    return [pair for _, *pair in sorted(found, key=lambda triple: triple[0])]


POWERS = {
    1: N_(" = {name}"),
    -1: N_(" = 1 / {name}"),
    2: N_(" = {name}²"),
    -2: N_(" = 1 / {name}²"),
}


def reason(ms):
    """Which number that was given the factor is, in words; "" if none is.

    It must be so at other sizes, and for other values of the number, too.
    """
    for power, template in POWERS.items():
        for name, n in ms[0].subject.numbers.items():
            if abs(n**power - ms.factor) > 1e-4 * abs(ms.factor):
                continue
            if ms.others and all(
                m.fits(m.given / m.subject.numbers[name] ** power)
                for m in ms.others
                if name in m.subject.numbers
            ):
                return _(template).format(name=name)
    return ""


def size(ms, power):
    """The words for a size of the output or the input that is the factor, or 1 /
    factor.

    It must be so for other sizes, too. A number that was given is a better name.
    """
    if ms.factor is None or not ms.of_other_sizes or reason(ms):
        return None
    for k, (n, what) in enumerate(sizes(ms[0])):
        changed = any(sizes(m)[k][0] != n for m in ms.of_other_sizes)
        for sign in (1, -1) if n > 2 and changed else ():
            if abs(ms.factor / (sign * n**power) - 1) < 1e-4 and all(
                m.fits(m.given * (sign * sizes(m)[k][0] ** -power)) for m in ms.others
            ):
                negated = "" if sign > 0 else _(" and negated")
                return {"n": n, "what": what, "negated": negated}
    return None


@cause(
    "mean-for-sum",
    "The gradient of {x} is 1/{n} of what it should be{negated}, and {n} is the size "
    "of {what}: a mean where a sum belongs?",
    look="how the gradient of {x} is reduced",
)
def mean_for_sum(ms):
    return size(ms, -1)


@cause(
    "sum-for-mean",
    "The gradient of {x} is {n} times too large{negated}, and {n} is the size of "
    "{what}: a sum where a mean belongs?",
    look="how the gradient of {x} is reduced",
)
def sum_for_mean(ms):
    return size(ms, 1)


@cause(
    "scaled",
    "The gradient of {x} is right, but multiplied by {factor}.",
    look="constant factors, in forward and in backward",
)
def scaled(ms):
    if ms.factor is None:
        return None
    return {"factor": brief(ms.factor) + reason(ms)}


@cause(
    "few-digits",
    "The gradient of {x} is right to {digits} only.",
    look="casts to a lower precision in backward, constants written with few digits, "
    "and a forward "
    "that approximates",
)
def few_digits(ms):
    worst, noise = 0.0, 5e-2 if is_rounded(ms[0]) else 0.0
    for m in ms:
        off = m.off[:, m.trusted]
        limit, size = m.limit[:, m.trusted], largest(m.expected)
        # What is wrong of small elements may be a formula, but not if it is noise.
        if (off > 1e-2 * m.expected.abs()[:, m.trusted] + limit + noise * size).any():
            return None
        worst = max(worst, ((off - limit) / size).max().item())
    if worst <= 0 or ms[0].vjp(torch.zeros_like(ms[0].y)).any():
        return None  # something is added; rounding leaves 0
    digits = max(1, math.floor(-math.log10(worst)))
    lower = ms[0].subject.lower
    has_no_more = lower and worst <= ROUNDINGS * torch.finfo(lower).eps
    severity = "note" if has_no_more else None
    return {"digits": number(digits, DIGITS), "severity": severity}


def is_rounded(m):
    """Is it proportional to grad_output, but that of a sum is not quite the sum of
    those?"""
    return is_proportional(m) and rest_of_sums(m) > 1e-6


def is_proportional(m):
    """To a multiple of 2, so that what is rounded stays so? A solver's tolerance is no
    error."""
    off = m.vjp(-1024 * m.vs[0]) / 1024 + m.given[0]
    error = largest(m.off[:, m.trusted])
    return largest(off) <= max(1e-6 * largest(m.given), 1e-3 * error)


def rest_of_sums(m):
    """How far the gradient for a sum is from the sum of the two, as a part of it."""
    off = m.vjp(m.vs[0] + m.vs[1]) - m.given[0] - m.given[1]
    return largest(off) / (largest(m.given) or 1.0)


@cause(
    "not-linear",
    "The gradient of {x} is not proportional to grad_output{how}.",
    look="terms without grad_output as a factor, and what is done to grad_output "
    "itself",
)
def not_linear(ms):
    m = ms[0]
    if largest(m.vjp(torch.zeros_like(m.y))) > 1e-6 * largest(m.given):
        return {"how": _(": it is not even zero where grad_output is zero")}
    if is_proportional(m) and rest_of_sums(m) < 0.1:  # or it is rounded
        return None
    how = _(", as a clip, a sign or a power makes it")
    return {"how": how, "meant": MEANT}


# --- right after a transformation: of the gradient, of grad_output, of another input --


@cause(
    "conjugate",
    "The gradient of {x} is right for real numbers, but a conjugate is missing or "
    "one too many.",
    look="PyTorch multiplies grad_output by the conjugate of the derivative",
)
def conjugate(ms):
    if ms[0].is_complex:
        yield {}, lambda m: m.fits(m.given.conj())
        yield {}, lambda m: m.fits(m.vjp(v.conj().resolve_conj()).conj() for v in m.vs)


@cause(
    "transposed",
    "The gradient of {x} is right, but {how}.",
    look="the order of the factors, and every transpose",
)
def transposed(ms):
    for way, there in transposes(ms[0].shape):
        if len(ms[0].shape) > 2:
            way = _("its dimensions are permuted: {way}, it is right").format(way=way)
        yield {"how": way}, lambda m: m.fits(m.given[:, there])


@cause(
    "swapped",
    "The gradient returned for {x} is that of `{other}`.",
    look="the order in which backward returns its gradients, and what belongs to {x} "
    "only",
)
def swapped(ms):
    """The words for another input whose gradient this is, and not zero; or None."""
    for j, name in enumerate(ms[0].subject.inputs):
        other = ms[0].point.values[j]
        if j != ms[0].i and other.shape == ms[0].shape:
            if all(m.beside(j, m.o).fits(m.given) for m in ms):
                return {"other": name}
    return None


@cause(
    "other-output",
    "The gradient of {x} is that through {other}.",
    look="the order in which backward receives a grad_output for each output of "
    "forward",
)
def of_another_output(ms):
    for o, name in enumerate(ms[0].point.names):
        if o != ms[0].o and ms[0].point.outputs[o].shape == ms[0].y.shape:
            yield (
                {"other": name},
                lambda m: m.beside(m.i, o).fits(map(m.vjp, m.point.vs[o])),
            )


@cause(
    "reversed",
    "The gradient of {x} is right, but {how}.",
    look="flips and index arithmetic; the direction, or a conjugate, of a Fourier "
    "transform",
)
def reversed_along(ms):
    for how, there in flips(ms[0].shape):
        yield {"how": how}, lambda m: m.fits(m.given[:, there])


@cause(
    "shifted",
    "The gradient of {x} is right, but shifted by {by} along dimension {d}.",
    look="index arithmetic: bounds that are off by one, or the direction (backward "
    "shifts the "
    "other way than forward)",
)
def shifted(ms):
    """What moves over the edge may be anything."""
    for d, n in enumerate(ms[0].shape):
        step = math.prod(ms[0].shape[d + 1 :])

        def holds(m):
            index = m.elements // step % n + by
            inner = m.trusted & (0 <= index) & (index < n)
            rows = m.given[:, m.elements + (by - n * (index // n)) * step]
            return not m.zero[inner].all() and m.fits_there(rows, inner)

        half = n // 2 if n > 3 else 0
        for by in sorted(range(-half, half + 1), key=abs)[1:]:
            yield {"by": by, "d": d}, holds


@cause(
    "jacobian-transposed",
    "The gradient of {x} is the Jacobian times grad_output; the transposed Jacobian "
    "belongs there.",
    look="the transpose of the matrix that multiplies grad_output",
)
def jacobian_transposed(ms):
    if ms.jacobians:
        given, expected, limit = ms.jacobians
        square = (
            given.shape[0] == given.shape[1] and (given - expected).abs().max() > limit
        )
        return {} if square and (given - expected.mT).abs().max() <= limit else None


@cause(
    "grad-output-scaled",
    "The gradient of {x} would be right if grad_output were {how} before.",
    look="where grad_output enters the gradient of {x}",
)
def grad_output_transformed(ms):
    """Multiplied, divided or masked by what is at hand, or turned."""
    if ms[0].is_complex:
        return
    ways = {
        N_("multiplied by {name}"): lambda t: t,
        N_("divided by {name}"): lambda t: 1 / t,
    }
    if ms[0].x.numel() < ms[0].y.numel():
        ways[N_("set to zero wherever {name} is not above 0")] = lambda t: t > 0
    for (how, made), name in itertools.product(ways.items(), ms[0].tensors):

        def holds(m):
            t = made(m.tensors[name]).to(m.y.dtype).expand(m.y.shape)
            varies = bool(t.isfinite().all() and (t != t.reshape(-1)[0]).any())
            return varies and m.fits(m.vjp(v * t) for v in m.vs)

        if ms.ratios is None:  # or it is the same for every grad_output
            yield {"how": _(how).format(name=name)}, holds
    for how, there in (*flips(ms[0].y.shape), *transposes(ms[0].y.shape)):
        yield {"how": how}, lambda m: m.fits(m.vjp(v.reshape(-1)[there]) for v in m.vs)


def places(shape):
    """The numbers of the elements, in this shape."""
    return torch.arange(math.prod(shape)).reshape(shape)


def flips(shape):
    """(how, the numbers of the elements as they stand then)"""
    for d, n in enumerate(shape):
        turned = places(shape).flip(d)
        if n > 1:
            yield _("flipped along dimension {d}").format(d=d), turned.reshape(-1)
        if n > 2:  # as a Fourier transform's conjugate
            around = turned.roll(1, d).reshape(-1)
            yield (
                _("reversed, all but index 0, along dimension {d}").format(d=d),
                around,
            )


def transposes(shape):
    """(how, the numbers of the elements as they stand then)"""
    dims = tuple(range(len(shape)))
    for order in itertools.permutations(dims) if len(dims) <= 4 else ():
        given = tuple(shape[order.index(d)] for d in dims)
        how = _("viewed as {given} and permuted by permute{order}")
        if given == tuple(shape):
            how = _("permuted by permute{order}")
        if len(dims) == 2:
            how = _("transposed")
        if order != dims:
            there = places(given).permute(order).reshape(-1)
            yield how.format(given=given, order=order), there
