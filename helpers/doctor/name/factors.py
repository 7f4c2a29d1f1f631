"""Causes that concern the gradient as a whole: another point, nothing, or all times a factor."""

import math

import torch

from ..function.tensors import largest
from ..function.watched import Grain
from ..measure.measurement import same
from ..report import MEANT, brief
from .measurements import Causes, Measurements
from .where import value_of

cause = Causes()
POWERS = (-1, "lacks"), (1, "has once too often"), (-2, "lacks twice"), (2, "has twice too often")


def is_flat(cases):
    """Does the output not change at all?"""
    flat = all((c.expected.abs() <= c.limit)[:, c.trusted].all() for c in cases)
    return flat and not any(c.sparse and moves(c) for c in cases)


def moves(case):
    """Does the output change where all elements of the input do?"""
    slope = case.point.slopes(case.i, case.point.dice.direction(case.x))[case.o]
    return bool((slope.value.abs() > slope.error).any())


def whose(cases):
    """The name of another input whose gradient this is; or None."""
    returned = cases.returned.get(cases[0].input, cases[0].x)  # before the engine summed it
    for j, name in enumerate(cases[0].subject.inputs):
        if j != cases[0].i and returned.shape == cases[0].point.values[j].shape:
            if all(not c.sparse and c.fit_of(j, c.given, c.i) for c in cases):
                return name


@cause(
    "right-here-only",
    "The gradient of {x} looks right at the given point, but is wrong at others.",
    look="constants that belong to one input, and branches",
    before=("factor-missing", "partly-right"),  # elsewhere a number written into backward is a
    # wrong factor, and a mask that is kept a wrong mask
)
def right_here_only(cases):
    return cases.elsewhere and not is_flat(cases)


@cause(
    "out-of-place",
    "The gradient of {x} is None, and what backward returns for `{other}` {what}: in the wrong "
    "place?",
    look="the order in which backward returns its gradients, and each None in it",
    before=("gradient-none",),  # which it is, with a reason
)
def gradient_out_of_place(cases, faithful=True):
    for j in cases.wrong if all(c.none for c in cases) else ():
        other = cases[0].subject.inputs[j]
        if faithful and all(c.is_returned_for(j) for c in cases):
            return {"other": other, "what": f"is that of `{cases[0].input}`"}
        got = getattr(cases.returned.get(other), "shape", None)
        if got == cases[0].shape != cases[0].point.values[j].shape:
            return {"other": other, "what": f"is wrong and has the shape of `{cases[0].input}`"}
    return False


@cause(
    "gradient-none",
    "The gradient of {x} is None, but {y} depends on {x}.",
    look="what backward returns in the place of {x}; if it is meant as a constant, give "
    "requires_grad=True to the other inputs only",
    before=("gradient-zero",),  # None counts as zeros
)
def gradient_none(cases):
    return all(c.none for c in cases)


@cause(
    "gradient-zero",
    "The gradient of {x} is zero everywhere, but {y} depends on {x}.",
    look="how the gradient of {x} is filled in",
    before=("grad-output-ignored",),  # zeros are the same for every grad_output
)
def gradient_zero(cases):
    return all(largest(c.given) <= 1e-12 * largest(c.expected) for c in cases)  # or rounding


@cause(
    "straight-through",
    "{y} does not change with {x} here, so the true gradient is zero; backward {what}." + MEANT,
    look="which gradient this is, if no straight-through gradient is intended",
    before=("inner-derivative-forgotten",),  # which is how it is mostly done
)
def straight_through(cases):
    if not is_flat(cases) or whose(cases):
        return False
    passes = cases[0].passes
    return {"what": "passes grad_output straight through" if passes else "does not return zero"}


@cause(
    "grad-output-ignored",
    "The gradient of {x} does not depend on grad_output{only}.",
    look="where grad_output enters the gradient of {x}",
    before=("not-linear",),  # what ignores it is not proportional to it
)
def grad_output_ignored(cases):
    if not all(same(c.given[0], c.given[1]) and same(c.given[0], c.given[2]) for c in cases):
        return False
    return {"only": ", so it is right only for ones" if all(c.for_ones for c in cases) else ""}


@cause(
    "negated",
    "The gradient of {x} is right, but negated.{meant}",
    look="the sign",
    before=("scaled",),  # by -1
)
def negated(cases):
    return cases.is_factor(-1)


@cause(
    "factor-missing",
    "The gradient of {x} {lacks} the factor {what}{rest}.{meant}",
    look="where {what} enters the gradient of {x}",
    before=("scaled",),  # by a number that has a name
)
def number_missing(cases):
    c = cases[0]
    sizes = {n for t in (*c.point.values, *c.point.outputs) for n in t.shape}
    for x, value in c.subject.arguments.items():
        if type(value) is int and value in sizes:
            continue  # it may be that which is missing
        for power, lacks in POWERS if (name := f"`{x}`") in c.subject.numbers else ():
            if cases.is_factor(value**power) and all(
                Measurements([v]).is_factor(v.subject.numbers[name] ** power) for v in c.varied()
            ):  # fmt: skip
                return {"lacks": lacks, "what": f"{name} = {brief(value)}", "rest": ""}
    return False


@cause(
    "mean-for-sum",
    "The gradient of {x} is 1/{n} of what it should be{negated}, and {n} is the size of {what}: a "
    "mean where a sum belongs?{also}",
    look="how the gradient of {x} is reduced",
    before=("scaled",),  # by a number that has a reason
)
def mean_for_sum(cases):
    return cases.size(lambda n: cases.is_factor(1 / n))


@cause(
    "sum-for-mean",
    "The gradient of {x} is {n} times too large{negated}, and {n} is the size of {what}: a sum "
    "where a mean belongs?{also}",
    look="how the gradient of {x} is reduced",
    before=("scaled",),  # by a number that has a reason
)
def sum_for_mean(cases):
    return cases.size(cases.is_factor)


@cause(
    "scaled",
    "The gradient of {x} is right, but multiplied by {factor}.{meant}",
    look="constant factors, in forward and in backward",
    before=("swapped", "other-output", "term-missing", "summed-too-far"),  # so may be all of these
)
def scaled(cases):
    if cases.factor is None:
        return False
    return {"factor": brief(cases.factor) + value_of(cases.factor, cases.numbers)}


@cause(
    "few-digits",
    "The gradient of {x} is right to {digits} only.",
    look="casts to a lower precision in backward, and constants written with few digits",
    before=("not-linear",),  # rounding is not linear
)
def few_digits(cases):
    worst, noisy = 0.0, not_linear(cases)
    coarse = noisy and is_coarse(cases[0])
    for c in cases:
        off = (c.sampled - c.expected).abs()[:, c.trusted]
        limit = c.limit[:, c.trusted]
        # What is wrong of small elements may be a formula, but not if it changes with the size.
        floor = (0.1 if coarse else 5e-3) * largest(c.expected) if noisy else 0.0
        if (off > 1e-2 * c.expected.abs()[:, c.trusted] + limit + floor).any():
            return False
        worst = max(worst, ((off - limit) / largest(c.expected)).max().item())
    if cases[0].vjp(torch.zeros_like(cases[0].y)).any():
        return False  # something is added; rounding leaves 0
    digits = max(1 if coarse else 2, math.floor(-math.log10(worst))) if worst > 0 else 0
    return digits and {"digits": digits_in_words(digits)}


def digits_in_words(n):
    return f"{n} digit{'s' * (n != 1)}"


@cause(
    "conjugate",
    "The gradient of {x} is right for real numbers, but a conjugate is missing or one too many.",
    look="PyTorch multiplies grad_output by the conjugate of the derivative",
    before=("derivative-wrong",),  # a conjugate is a factor at each element
)
def conjugate(cases):
    if not any(c.x.is_complex() or c.y.is_complex() for c in cases):
        return False
    for c in cases:
        flipped = torch.stack([c.vjp(v.conj().resolve_conj()) for v in c.vs]).conj()
        if not (c.fits(flipped[:, c.elements]) or c.fits(c.sampled.conj())):
            return False
    return True


@cause(
    "imaginary-lost",
    "The gradient of {x} has lost its imaginary part.",
    look="casts to a real dtype",
    before=("right-only-for-ones",),  # ones are real
)
def imaginary_lost(cases):
    if not all(c.x.is_complex() and not c.given.imag.any() for c in cases):
        return False
    return all(c.fits(c.sampled.real + 1j * c.expected.imag) for c in cases)


@cause(
    "not-linear",
    "The gradient of {x} is not proportional to grad_output{how}",
    look="terms without grad_output as a factor, and what is done to grad_output itself",
    before=("right-only-for-ones", "term-missing", "partly-right"),  # a power leaves ones, a
    # penalty is a term, a clip is a bound
)
def not_linear(cases):
    c = cases[0]
    limit = 1e-6 * largest(c.given)
    if largest(c.vjp(torch.zeros_like(c.y))) > limit:
        return {"how": ": it is not even zero where grad_output is zero."}
    total, large = c.vjp(c.vs[0] + c.vs[1]), c.vjp(-1000 * c.vs[0]) / 1000
    if max(largest(total - c.given[0] - c.given[1]), largest(large + c.given[0])) <= limit:
        return False
    if is_coarse(c):
        return {"how": ": backward computes in half precision."}
    return {"how": ", as a clip, a sign or a power makes it." + MEANT}


def is_coarse(case):
    """Does backward compute in half precision?"""
    with Grain([*case.point.values, *case.vs]) as watch:
        grad = case.point.vjp({case.o: case.vs[0]})[case.i]
    return grad is not None and any(eps and eps > 1e-4 for eps in watch.of([grad]))
