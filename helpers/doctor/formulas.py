"""Causes that concern the formula: a term or a factor is missing, at each element another."""

import torch

from .cases import Causes
from .report import MEANT, brief
from .slopes import largest, scale

cause = Causes()


@cause(
    "jacobian-transposed",
    "The gradient of {x} is the Jacobian times grad_output; the transposed Jacobian belongs there.",
    look="the transpose of the matrix that multiplies grad_output",
    before=("right-only-for-ones",),  # rows and columns may have the same sums
)
def jacobian_transposed(cases):
    for c in cases:
        if c.x.shape != c.y.shape or c.x.numel() < 2 or c.x.is_complex() or c.y.is_complex():
            return False
        step = scale(c.x).min().item()
        for v, given in zip(c.vs[:2], c.given, strict=False):
            slope = c.point.slopes(c.i, v.to(c.x.dtype) * step)[c.o]
            off = (slope.value / step - given).abs()[slope.trusted]
            if not off.numel() or off.max() > c.tolerance * largest(given):
                return False
    return True


@cause(
    "term-missing",
    "The error of the gradient of {x} is the same all along dimension {d}{times}, as when a sum "
    "or a mean over it is missing, or has a wrong factor.",
    look="reductions in backward",
    before=("inner-derivative-forgotten",),  # which is how a mean is forgotten
)
def term_missing(cases):
    """Perhaps after division by an input or the output."""
    c = cases[0]
    if not c.whole or c.x.is_complex():
        return False
    inputs = [(f"`{n}`", t) for n, t in zip(c.subject.inputs, c.point.values, strict=True)]
    for name, t in [("", torch.ones_like(c.x)), (c.output, c.y), *inputs]:
        if t.shape != c.x.shape or not t.all() or t.is_complex():
            continue
        rest = ((c.given - c.expected) / c.row(t)).reshape(3, *c.shape)
        for d, n in enumerate(c.shape):
            spread = largest(rest - rest.select(d + 1, 0).unsqueeze(d + 1))
            if n > 2 and spread < 1e-4 * largest(rest):
                return {"d": d, "times": f", times {name}" if name else ""}
    return False


@cause(
    "inner-derivative-forgotten",
    "The gradient of {x} is grad_output itself; the derivative of {y} with respect to {x} is not "
    "multiplied in." + MEANT,
    look="the chain rule: grad_output times a derivative",
    before=("right-only-for-ones", "derivative-wrong"),  # the derivative may be 1 somewhere
)
def inner_derivative_forgotten(cases):
    return all(c.passes and not c.identity for c in cases)


@cause(
    "right-only-for-ones",
    "The gradient of {x} is right only when grad_output is all ones, as it is after `.sum()`.",
    look="what is done to grad_output: a sum, a mean or an index mixes its elements",
)
def right_only_for_ones(cases):
    return all(c.y.numel() > 1 and c.for_ones for c in cases)


@cause("factor-missing", before=("derivative-wrong",))  # by a factor that has a name
def tensor_missing(cases):
    """Off by a factor that is an input or the output, perhaps times a number."""
    c = cases[0]
    for name in (c.input, *c.subject.names, c.output) if cases.ratios else ():
        for power, lacks in ((-1, "lacks"), (1, "has once too often"), (-2, "lacks twice")):
            rest = cases.rest(name, power)
            if rest is None or ((rest - rest[0]).abs() > 1e-4 * rest[0].abs()).any():
                continue
            also = f", and is multiplied by {brief(rest[0].item())}"
            what = name if name == c.output else f"`{name}`"
            return {"lacks": lacks, "what": what, "rest": "" if abs(rest[0] - 1) < 1e-4 else also}
    return False


@cause(
    "derivative-wrong",
    "The gradient of {x} is off by another factor at each element, whatever grad_output is.",
    look="the formula of the derivative",
)
def derivative_wrong(cases):
    return cases.ratios is not None


@cause(
    "gradient-wrong",
    "The gradient of {x} is wrong, in no way that has a name.",
    look="the formula, term by term, at the element shown",
)
def gradient_wrong(cases):
    return True
