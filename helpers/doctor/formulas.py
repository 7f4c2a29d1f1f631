"""Causes that concern the formula: a term or a factor is missing, at each element another."""

import itertools
import math

import torch

from .cases import Causes
from .gradient import relation
from .report import MEANT, brief
from .slopes import largest

cause = Causes()


@cause(
    "operand-turned",
    "The gradient of {x} is right for `{other}` {how}, not for `{other}` itself.",
    look="the transposes and flips of `{other}`, in forward and in backward",
    before=("derivative-wrong",),  # where another factor is left of a product
)
def operand_turned(cases):
    c = cases[0]
    for j, name in enumerate(c.subject.inputs):
        for how, turned in turns(c.point.values[j]) if j != c.i else ():
            if c.fits_with(j, turned):
                return {"other": name, "how": how}
    return False


def turns(t):
    """(how, t flipped or transposed), as far as that keeps its shape and changes it."""
    dims = range(t.dim())
    found = [(f"flipped along dimension {d}", t.flip(d)) for d in dims if t.shape[d] > 1]
    for d, e in itertools.combinations(dims, 2):
        if t.shape[d] == t.shape[e] > 1:
            named = "transposed" if t.dim() == 2 else f"with dimensions {d} and {e} exchanged"
            found.append((named, t.transpose(d, e)))
    return [(how, turned) for how, turned in found if not torch.equal(t, turned)]


@cause(
    "term-missing",
    "The error of the gradient of {x} is the same all along {along}{times}, as when a sum or a "
    "mean over it is missing, or has a wrong factor.",
    look="reductions in backward",
    before=("inner-derivative-forgotten",),  # which is how a mean is forgotten
)
def term_missing(cases):
    """Perhaps after division by an input or the output, or but for a multiple of it."""
    c = cases[0]
    if not c.whole or c.x.is_complex():
        return False
    error, tensors = c.given - c.expected, same_shaped(c)
    ones = torch.ones_like(c.expected[0])
    bases = [("", [ones]), *((f", times {name}", [t]) for name, t in tensors)]
    bases += [(f", but for a multiple of {name}", [ones, t]) for name, t in tensors]
    for (times, basis), dims in itertools.product(bases, subsets(c.shape)):
        if rests(error, basis, c.shape, dims) < 1e-4:
            return {"along": named(dims), "times": times}
    return False


@cause(
    "wrong-dimension",
    "The gradient of {x} is off by two parts{over}: one is the same all along dimension {d}, one "
    "all along dimension {e}, as when a sum runs over the one and belongs over the other.",
    look="the dimensions of the reductions in backward",
)
def wrong_dimension(cases):
    c = cases[0]
    if not c.whole or c.x.is_complex():
        return False
    for name, t in [("", torch.ones_like(c.expected[0])), *same_shaped(c)]:
        rest = ((c.given - c.expected) / t).reshape(3, *c.shape)
        for d, e in itertools.combinations(range(len(c.shape)), 2):
            if min(c.shape[d], c.shape[e]) > 2 and rest.isfinite().all():
                along = [rest - rest.mean(k + 1, keepdim=True) for k in (d, e)]
                neither = along[0] - along[0].mean(e + 1, keepdim=True)
                limit = 1e-4 * largest(rest)
                if largest(neither) < limit < min(map(largest, along)):
                    return {"over": f", times {name}" if name else "", "d": d, "e": e}
    return False


def same_shaped(c):
    """(name, vector) of the tensors by which a term of the gradient may be multiplied."""
    found = [(c.output, c.y), (f"exp of {c.output}", c.y.exp())] if c.y.shape == c.x.shape else []
    pairs = zip(c.subject.inputs, c.point.values, strict=True)
    found += [(f"`{name}`", t) for name, t in pairs if t.shape == c.x.shape]
    return [(name, c.row(t)) for name, t in found if not t.is_complex() and t.isfinite().all()]


def subsets(shape):
    """Dimensions that are reduced together, the fewest first."""
    for many in range(1, len(shape) + 1):
        yield from itertools.combinations(range(len(shape)), many)


def named(dims):
    *first, last = map(str, dims)
    return f"dimensions {', '.join(first)} and {last}" if first else f"dimension {last}"


def rests(error, basis, shape, dims):
    """How much of the error no combination of the basis explains, another one for each slice."""
    last = [-1 - k for k in range(len(dims))]
    size = math.prod(shape[d] for d in dims)

    def slices(t):
        return t.reshape(-1, *shape).movedim([d + 1 for d in dims], last).reshape(len(t), -1, size)

    if size < len(basis) + 2:
        return math.inf
    a = torch.stack([slices(t[None])[0] for t in basis], -1)
    b = slices(error).movedim(0, -1)
    try:
        rest = b - a @ torch.linalg.lstsq(a, b).solution
    except RuntimeError:  # zeros
        return math.inf
    return largest(rest) / (largest(error) or 1.0) if rest.isfinite().all() else math.inf


@cause(
    "inner-derivative-forgotten",
    "The gradient of {x} is grad_output itself; the derivative of {y} with respect to {x} is not "
    "multiplied in." + MEANT,
    look="the chain rule: grad_output times a derivative",
    before=("right-only-for-ones", "derivative-wrong", "others-term"),  # the derivative may be 1
    # somewhere, or for another input
)
def inner_derivative_forgotten(cases):
    return all(c.passes and not c.identity for c in cases)


@cause(
    "right-only-for-ones",
    "The gradient of {x} is right only when grad_output is all ones, as it is after `.sum()`.",
    look="what is done to grad_output: a sum, a mean or an index mixes its elements",
    before=("derivative-wrong",),  # what is wrong may be too small to show among ones
)
def right_only_for_ones(cases):
    return all(c.y.numel() > 1 and c.for_ones for c in cases)


@cause(
    "others-term",
    "The error of the gradient of {x} is {times}the gradient of `{other}`, as when their terms are "
    "mixed up.",
    look="the terms that {x} and `{other}` have in common",
    before=("derivative-wrong",),  # where the output is a sum over the elements
)
def others_term(cases):
    c = cases[0]
    for j, name in enumerate(c.subject.inputs if c.whole else ()):
        other = c.point.values[j]
        if j == c.i or other.shape != c.x.shape or other.is_complex() != c.x.is_complex():
            continue
        expected, _, trusted, _ = c.point.expected(j)[1][c.o]
        for sign, times in ((1, ""), (-1, "the negative of ")):
            off = (c.given - c.expected - sign * expected).abs()
            if trusted.all() and (off <= c.limit.max()).all():
                return {"other": name, "times": times}
    return False


@cause(
    "outputs-scaled",
    "The gradient of {x} is right through some elements of {y}, but {where} it {how}.",
    look="what forward computes at these elements of {y}, and what backward makes of their "
    "grad_output",
)
def outputs_scaled(cases):
    """Rows of the Jacobian, each of which several elements of the input share."""
    c = cases[0]
    pair = [c.evidence.get(f"{which}_jacobian") for which in ("given", "expected")]
    if pair[0] is None or not c.whole:
        return False
    limit = c.tolerance * largest(pair[1])
    several = (pair[1].abs() > limit).sum(1) > 1
    right = ((pair[0] - pair[1]).abs() <= limit).all(1)
    wrong = ~right
    if not (several & right).any() or not several[wrong].all() or not wrong.any():
        return False
    how = relation(pair[0][wrong], pair[1][wrong], torch.tensor(limit))
    if "is wrong" in how:
        return False
    return {"where": c.where_in(c.y, c.output, right, wrong), "how": how}


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
    "The gradient of {x} is wrong{nameless}.",
    look="the formula, term by term, at the element shown",
)
def gradient_wrong(cases):
    return True
