"""Causes for all of a gradient: it is missing, multiplied, or right if transformed."""
# ruff: noqa: B023 (a hypothesis is tried before the next one is made)

import itertools
import math

import torch

from ..function.tensors import largest
from ..measure.gradient import nearly_equal
from ..report import MEANT, brief
from ..words import N_, _, number
from .cause import SHARP, cause
from .where import named_dims, subsets

DIGITS = N_("{n} digit"), N_("{n} digits")
ROUNDINGS = 16  # of the dtype that was given, by which a gradient may rightly be off


def is_flat(wrong):
    """Does the output not change at all, neither with one element nor with all?"""
    return all(
        here.zero[here.trusted].all() and not (here.sparse and moves(here))
        for here in wrong.at
    )


def moves(here):
    slope = here.slope(here.point.dice.direction(here.x))
    return bool((slope.value.abs() > slope.error).any())


@cause(
    "right-here-only",
    "The gradient of {x} looks right at the given point, but is wrong at others.",
    look="constants that belong to one input, and branches",
    kind=SHARP,
)
def right_here_only(wrong):
    return {} if wrong.elsewhere and not is_flat(wrong) else None


@cause(
    "gradient-none",
    "The gradient of {x} is None, but {y} depends on {x}.",
    look="what backward returns in the place of {x}; if it is meant as a constant, "
    "give "
    "requires_grad=True to the other inputs only",
    kind=SHARP,
)
def gradient_none(wrong):
    yield {}, lambda here: here.none


@cause(
    "gradient-zero",
    "The gradient of {x} is zero {where}, but {y} depends on {x}.",
    look="how the gradient of {x} is filled in",
)
def gradient_zero(wrong):
    point, i = wrong.here.point, wrong.here.i
    alone = [point.given(o)[0][i] for o in range(len(point.vs))]
    together = point.vjp({o: vs[0] for o, vs in enumerate(point.vs)})[i]
    is_product = wrong.here.row(together).any() and not any(
        wrong.here.row(grad).any() for grad in alone
    )
    where = _("where no other output is used") if is_product else _("everywhere")
    yield (
        {"where": where},
        lambda here: largest(here.given) <= 1e-12 * largest(here.expected),
    )  # or rounding


@cause(
    "straight-through",
    "The derivative of {y} with respect to {x} is zero here, but backward {what}.",
    look="which gradient this is, if no straight-through gradient is intended",
    kind=SHARP,
)
def straight_through(wrong):
    if not is_flat(wrong) or swapped(wrong):
        return None
    passes = _("passes grad_output straight through")
    what = passes if wrong.here.passes else _("does not return zero")
    return {"what": what, "meant": MEANT}


@cause(
    "grad-output-ignored",
    "The gradient of {x} does not depend on grad_output{only}.",
    look="where grad_output enters the gradient of {x}",
    kind=SHARP,
)
def grad_output_ignored(wrong):
    if not all(
        nearly_equal(here.given[k], here.given[0]) for here in wrong.at for k in (1, 2)
    ):
        return None
    only = all(here.is_right_for_ones for here in wrong.at)
    return {"only": _(", so it is right only for ones") if only else ""}


# --- a factor -------------------------------------------------------------------------


@cause(
    "negated", "The gradient of {x} is right, but negated.", look="the sign", kind=SHARP
)
def negated(wrong):
    yield {}, lambda here: here.fits(-here.given)


def sizes(here):
    """[(size, what it is)] of one, several and all dimensions of output and input."""
    found = []
    for t, shape in ((here.output, here.y.shape), (f"`{here.input}`", here.shape)):
        for dims in subsets(shape):
            of = _("{dims} of {t}", dims=named_dims(dims), t=t)
            of = t if 1 < len(dims) == len(shape) else of
            found.append((len(dims), math.prod(shape[d] for d in dims), of))
    return [pair for _, *pair in sorted(found, key=lambda triple: triple[0])]


POWERS = {
    1: N_(" = {name}"),
    -1: N_(" = 1 / {name}"),
    2: N_(" = {name}²"),
    -2: N_(" = 1 / {name}²"),
}


def reason(wrong):
    """Which number that was given the factor is, in words; "" if none is.

    It must be so at other sizes, and for other values of the number, too.
    """
    for power, template in POWERS.items():
        for name, n in wrong.here.subject.numbers.items():
            if abs(n**power - wrong.factor) > 1e-4 * abs(wrong.factor):
                continue
            if wrong.others and all(
                here.fits(here.given / here.subject.numbers[name] ** power)
                for here in wrong.others
                if name in here.subject.numbers
            ):
                return _(template, name=name)
    return ""


def size(wrong, power):
    """The words for a size that is the factor, or 1 / factor.

    It must be so for other sizes, too. A number that was given is a better name.
    """
    if wrong.factor is None or not wrong.of_other_sizes or reason(wrong):
        return None
    for k, (n, what) in enumerate(sizes(wrong.here)):
        changed = any(sizes(here)[k][0] != n for here in wrong.of_other_sizes)
        for sign in (1, -1) if n > 2 and changed else ():
            if abs(wrong.factor / (sign * n**power) - 1) < 1e-4 and all(
                here.fits(here.given * (sign * sizes(here)[k][0] ** -power))
                for here in wrong.others
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
def mean_for_sum(wrong):
    return size(wrong, -1)


@cause(
    "sum-for-mean",
    "The gradient of {x} is {n} times too large{negated}, and {n} is the size of "
    "{what}: a sum where a mean belongs?",
    look="how the gradient of {x} is reduced",
)
def sum_for_mean(wrong):
    return size(wrong, 1)


@cause(
    "scaled",
    "The gradient of {x} is right, but multiplied by {factor}.",
    look="constant factors, in forward and in backward",
)
def scaled(wrong):
    if wrong.factor is None:
        return None
    digits = 3 if abs(wrong.factor - 1) > 5e-3 else 6  # or it would read as 1
    return {"factor": brief(wrong.factor, digits) + reason(wrong)}


@cause(
    "few-digits",
    "The gradient of {x} is right to {digits} only.",
    look="casts to a lower precision in backward, constants written with few digits, "
    "and a forward "
    "that approximates",
)
def few_digits(wrong):
    worst, noise = 0.0, 5e-2 if is_rounded(wrong.here) else 0.0
    for here in wrong.at:
        off = here.off[:, here.trusted]
        limit, size = here.limit[:, here.trusted], largest(here.expected)
        # What is wrong of small elements may be a formula, but not if it is noise.
        if (
            off > 1e-2 * here.expected.abs()[:, here.trusted] + limit + noise * size
        ).any():
            return None
        worst = max(worst, ((off - limit) / size).max().item())
    if worst <= 0 or wrong.here.vjp(torch.zeros_like(wrong.here.y)).any():
        return None  # something is added; rounding leaves 0
    digits = max(1, math.floor(-math.log10(worst)))
    lower = wrong.here.subject.lower
    has_no_more = lower and worst <= ROUNDINGS * torch.finfo(lower).eps
    severity = "note" if has_no_more else None
    return {"digits": number(digits, DIGITS), "severity": severity}


def is_rounded(here):
    """Is it proportional to grad_output, but not additive?"""
    return is_proportional(here) and rest_of_sums(here) > 1e-6


def is_proportional(here):
    """To a multiple of 2, so that what is rounded stays so?"""
    off = here.vjp(-1024 * here.vs[0]) / 1024 + here.given[0]
    error = largest(here.off[:, here.trusted])
    return largest(off) <= max(1e-6 * largest(here.given), 1e-3 * error)


def rest_of_sums(here):
    """How far the gradient for a sum is from the sum of the two, as a part of it."""
    off = here.vjp(here.vs[0] + here.vs[1]) - here.given[0] - here.given[1]
    return largest(off) / (largest(here.given) or 1.0)


@cause(
    "not-linear",
    "The gradient of {x} is not proportional to grad_output{how}.",
    look="terms without grad_output as a factor, and what is done to grad_output "
    "itself",
    kind=SHARP,
)
def not_linear(wrong):
    here = wrong.here
    if largest(here.vjp(torch.zeros_like(here.y))) > 1e-6 * largest(here.given):
        return {"how": _(": it is not even zero where grad_output is zero")}
    if is_proportional(here) and rest_of_sums(here) < 0.1:  # or it is rounded
        return None
    how = _(", as a clip, a sign or a power makes it")
    return {"how": how, "meant": MEANT}


# --- right after a transformation: of the gradient, of grad_output, of another input --


@cause(
    "conjugate",
    "The gradient of {x} is right for real numbers, but a conjugate is missing or "
    "one too many.",
    look="PyTorch multiplies grad_output by the conjugate of the derivative",
    kind=SHARP,
)
def conjugate(wrong):
    if wrong.here.is_complex:
        yield {}, lambda here: here.fits(here.given.conj())
        yield (
            {},
            lambda here: here.fits(
                here.vjp(v.conj().resolve_conj()).conj() for v in here.vs
            ),
        )


@cause(
    "transposed",
    "The gradient of {x} is right, but {how}.",
    look="the order of the factors, and every transpose",
    kind=SHARP,
)
def transposed(wrong):
    for way, there in transposes(wrong.here.shape):
        if len(wrong.here.shape) > 2:
            way = _("its dimensions are permuted: {way}, it is right", way=way)
        yield {"how": way}, lambda here: here.fits(here.given[:, there])


@cause(
    "swapped",
    "The gradient returned for {x} is that of `{other}`.",
    look="the order in which backward returns its gradients, and what belongs to {x} "
    "only",
)
def swapped(wrong):
    """The words for another input whose gradient this is, and not zero; or None."""
    for j, name in enumerate(wrong.here.subject.inputs):
        other = wrong.here.point.values[j]
        if j != wrong.here.i and other.shape == wrong.here.shape:
            if all(here.beside(j, here.o).fits(here.given) for here in wrong.at):
                return {"other": name}
    return None


@cause(
    "other-output",
    "The gradient of {x} is that through {other}.",
    look="the order in which backward receives a grad_output for each output of "
    "forward",
)
def of_another_output(wrong):
    for o, name in enumerate(wrong.here.point.names):
        if (
            o != wrong.here.o
            and wrong.here.point.outputs[o].shape == wrong.here.y.shape
        ):
            yield (
                {"other": name},
                lambda here: here.beside(here.i, o).fits(
                    map(here.vjp, here.point.vs[o])
                ),
            )


@cause(
    "reversed",
    "The gradient of {x} is right, but {how}.",
    look="flips and index arithmetic; the direction, or a conjugate, of a Fourier "
    "transform",
    kind=SHARP,
)
def reversed_along(wrong):
    for how, there in flips(wrong.here.shape):
        yield {"how": how}, lambda here: here.fits(here.given[:, there])


@cause(
    "shifted",
    "The gradient of {x} is right, but shifted by {by} along dimension {d}.",
    look="index arithmetic: bounds that are off by one, or the direction (backward "
    "shifts the "
    "other way than forward)",
)
def shifted(wrong):
    """What moves over the edge may be anything."""
    for d, n in enumerate(wrong.here.shape):
        step = math.prod(wrong.here.shape[d + 1 :])

        def holds(here):
            index = here.elements // step % n + by
            inner = here.trusted & (0 <= index) & (index < n)
            rows = here.given[:, here.elements + (by - n * (index // n)) * step]
            return not here.zero[inner].all() and here.fits_there(rows, inner)

        half = n // 2 if n > 3 else 0
        for by in sorted(range(-half, half + 1), key=abs)[1:]:
            yield {"by": by, "d": d}, holds


@cause(
    "jacobian-transposed",
    "The gradient of {x} is the Jacobian times grad_output; the transposed Jacobian "
    "belongs there.",
    look="the transpose of what multiplies grad_output; a rotation is turned back",
)
def jacobian_transposed(wrong):
    if wrong.here.is_complex or wrong.here.x.numel() != wrong.here.y.numel():
        return

    def holds(here):
        for v, given, limit in zip(here.vs, here.given, here.limit, strict=True):
            slope = here.slope(v)
            known = slope.trusted[here.elements]
            off = (given - slope.value).abs() - 10 * slope.error
            if not known.any() or (off[here.elements] > limit)[known].any():
                return False
        return True

    yield {}, holds


@cause(
    "grad-output-scaled",
    "The gradient of {x} would be right if grad_output were {how} before.",
    look="where grad_output enters the gradient of {x}",
)
def grad_output_transformed(wrong):
    """Multiplied, divided or masked by what is at hand, or turned."""
    if wrong.here.is_complex:
        return
    ways = {
        N_("multiplied by {name}"): lambda t: t,
        N_("divided by {name}"): lambda t: 1 / t,
    }
    if wrong.here.x.numel() < wrong.here.y.numel():
        ways[N_("set to zero wherever {name} is not above 0")] = lambda t: t > 0
    for (how, made), name in itertools.product(ways.items(), wrong.here.tensors):

        def holds(here):
            t = made(here.tensors[name]).to(here.y.dtype).expand(here.y.shape)
            varies = bool(t.isfinite().all() and (t != t.reshape(-1)[0]).any())
            return varies and here.fits(here.vjp(v * t) for v in here.vs)

        if wrong.steady is None:  # or it is the same for every grad_output
            yield {"how": _(how, name=name)}, holds
    shape = wrong.here.y.shape
    for how, there in (*flips(shape), *transposes(shape), *regroups(shape)):
        yield (
            {"how": how},
            lambda here: here.fits(here.vjp(v.reshape(-1)[there]) for v in here.vs),
        )


def places(shape):
    """The numbers of the elements, in this shape."""
    return torch.arange(math.prod(shape)).reshape(shape)


def flips(shape):
    """(how, the numbers of the elements as they stand then)."""
    for d, n in enumerate(shape):
        turned = places(shape).flip(d)
        if n > 1:
            yield _("flipped along dimension {d}", d=d), turned.reshape(-1)
        if n > 2:  # as a Fourier transform's conjugate
            around = turned.roll(1, d).reshape(-1)
            yield (
                _("reversed, all but index 0, along dimension {d}", d=d),
                around,
            )


def transposes(shape):
    """(how, the numbers of the elements as they stand then)."""
    dims = tuple(range(len(shape)))
    for order in itertools.permutations(dims) if len(dims) <= 4 else ():
        given = tuple(shape[order.index(d)] for d in dims)
        how = N_("viewed as {given} and permuted by permute{order}")
        if given == tuple(shape):
            how = N_("permuted by permute{order}")
        if len(dims) == 2:
            how = N_("transposed")
        if order != dims:
            there = places(given).permute(order).reshape(-1)
            yield _(how, given=given, order=order), there
            if given != tuple(shape):
                there = places(shape).permute(order).reshape(-1)
                how = _("permuted by permute{order} and reshaped back", order=order)
                yield how, there


def regroups(shape):
    """The same, where a dimension holds groups, and their order is another."""
    for d, n in enumerate(shape):
        for a in range(2, n):
            if n % a == 0:
                groups = places(shape).unflatten(d, (a, n // a))
                how = _(
                    "viewed as {a} × {b} along dimension {d}, transposed and joined",
                    a=a,
                    b=n // a,
                    d=d,
                )
                yield how, groups.transpose(d, d + 1).reshape(-1)
