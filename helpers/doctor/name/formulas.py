"""Causes that concern the formula: a term or a factor is missing, at each element another."""

import itertools
import math

import torch

from ..function.tensors import largest
from ..report import MEANT, brief
from .contributions import factor_missing
from .factors import is_flat
from .measurements import Causes
from .where import BRANCH, FORMULA, named, of_elements, subsets

cause = Causes()


@cause(
    "term-off",
    "The error of the gradient of {x} is grad_output times {what}.",
    look="a term of the derivative that is missing, or has the wrong factor",
    before=("term-missing", "derivative-wrong"),  # it is the same along a dimension; and a factor
)
def term_off(cases):
    """The same number, or an input or the output times the same number, at each element."""
    if (
        cases.factor is not None
        or is_flat(cases)
        or any(c.passes or not c.given.any() for c in cases)
    ):
        return False
    for name in ("", *cases[0].tensors):
        found = []
        for c in cases:
            if c.passed is None:
                return False
            try:
                t = c.row(c.tensors[name].expand(c.shape)) if name else torch.ones_like(c.given[0])
            except RuntimeError:
                break
            off, term = c.sampled - c.expected, (c.passed * t)[:, c.elements]
            times = (term.conj() * off).sum() / term.abs().square().sum()
            if not times.isfinite() or not c.fits(c.sampled - times * term):
                break
            found.append(times.item())
        if len(found) == len(cases) and abs(found[0] - found[-1]) <= 1e-4 * abs(found[0]):
            also = f", times {name}" if name else ""
            return {"what": brief(found[0]) + also}
    return False


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
    for (times, basis), (name, groups) in itertools.product(bases, segments(c)):
        if rests(error, [t * g for t in basis for g in groups], c.shape) < 1e-4:
            return {"along": f"the elements of one number in `{name}`", "times": times}
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
    found += [(f"exp of `{c.input}`", c.x.exp())]
    return [(name, c.row(t)) for name, t in found if not t.is_complex() and t.isfinite().all()]


def segments(c):
    """(name, a mask for each number) of integers that say which elements go together."""
    for name, t in c.subject.arguments.items():
        if isinstance(t, torch.Tensor) and t.shape == c.x.shape and t.dtype == torch.int64:
            yield name, [c.row(t == n) for n in t.unique()]


def rests(error, basis, shape, dims=None):
    """How much of the error no combination of the basis explains, another one for each slice."""
    dims = range(len(shape)) if dims is None else dims
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
    "The gradient of {x} is grad_output itself{summed}; the derivative of {y} with respect to {x} "
    "is not multiplied in." + MEANT,
    look="the chain rule: grad_output times a derivative",
    before=("right-only-for-ones", "derivative-wrong", "others-term"),  # the derivative may be 1
    # somewhere, or for another input
)
def inner_derivative_forgotten(cases):
    if not all(c.passes and not c.identity for c in cases):
        return False
    return {"summed": "" if cases[0].y.numel() <= cases[0].x.numel() else ", summed"}


@cause(
    "right-only-for-ones",
    "The gradient of {x} is right where grad_output is {when}, but not in general.",
    look="{look}",
)
def right_only_for_ones(cases):
    """Or for others of a kind, of which ones are."""
    c, shape = cases[0], cases[0].y.shape
    if not all(c.y.numel() > 1 and c.for_ones for c in cases):
        return False
    mixes = "what mixes the elements of grad_output: a sum, a mean, an index or a transform"
    kinds = [(f"symmetric in {named(two)}", lambda v, d=two: v + v.transpose(*d))
             for two in subsets(shape)
             if len({shape[d] for d in two}) < len(two) == 2]  # fmt: skip
    kinds += [(f"the same all along {named(dims)}", lambda v, d=dims: v.mean(d, True).expand_as(v))
              for dims in subsets(shape) if len(dims) < len(shape)]  # fmt: skip
    if c.y.is_complex():
        conjugate = "a conjugate that is missing, or one too many, in a term"
        kinds.insert(0, ("real", lambda v: v.real.to(v.dtype)))
        mixes = conjugate if all(c.with_vs(kinds[0][1]).is_right for c in cases) else mixes
    for when, made in kinds:
        if all(c.with_vs(made).is_right for c in cases):
            return {"when": when, "look": mixes}
    return {"when": "all ones, as it is after `.sum()`", "look": mixes}


@cause(
    "others-term",
    "The error of the gradient of {x} is {times}the gradient of `{other}`, as when their terms are "
    "mixed up.",
    look="the terms that {x} and `{other}` have in common",
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


@cause("factor-missing", before=("derivative-wrong",))  # by a factor that has a name
def tensor_missing(cases):
    return factor_missing(cases) or False


@cause("partly-right", before=("derivative-wrong",))  # off at each element, it would be
def partly_right_somewhere(cases):
    """Without a rule that says where."""
    c = cases[0]
    spots = of_elements(c)
    right = spots.right & (c.expected.abs() > c.limit).any(0)
    if not c.wrong.any() or 10 * right.sum() < c.trusted.sum() or spots.smooth:
        return False
    where = f"at {int(c.wrong.sum())} of {int(c.trusted.sum())} elements examined"
    how = c.how()
    may = MEANT if how == "should be zero" else ""
    return {"where": where, "how": how, "look": BRANCH if "zero" in how else FORMULA, "may": may}


@cause(
    "derivative-wrong",
    "The gradient of {x} is off by another factor at each element, whatever grad_output is.",
    look="the formula of the derivative",
)
def derivative_wrong(cases):
    """Of fewer numbers than there are elements, it would be so whatever is wrong."""
    return cases.ratios is not None and cases[0].y.numel() >= cases[0].x.numel()


@cause(
    "gradient-wrong",
    "The gradient of {x} is wrong{nameless}.",
    look="the formula, term by term, at the element shown",
)
def gradient_wrong(cases):
    return True
