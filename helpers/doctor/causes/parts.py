"""Causes for a part: some elements, some contributions, a term or a factor of each."""
# ruff: noqa: B023 (a hypothesis is tried before the next one is made)

import itertools
import math

import torch

from ..function.tensors import largest
from ..report import MEANT, brief
from ..words import N_, _
from . import whole  # noqa: F401  (its rows come first)
from .cause import VAGUE, cause
from .where import Spots, in_part, named_dims, of_elements, rule, sizes_of, subsets

POWERS = {
    1: N_("lacks a factor of"),
    -1: N_("has one factor too many of"),
    2: N_("lacks two factors of"),
    -2: N_("has two factors too many of"),
}
EXP = N_("exp of {name}")
A_TERM = N_(": a term that holds a sum or a mean over {along} is missing or wrong")

# --- contributions: what each element of grad_output adds, and where to ---------------


def lost(wrong):
    """(lost, there), masks of the Jacobian, if some are lost, and no more."""
    if not wrong.jacobians:
        return None
    given, expected, limit = wrong.jacobians
    there = expected.abs() > limit
    gone = there & (given.abs() <= limit)
    if not gone.any() or ((given - expected).abs() > limit)[~gone].any():
        return None
    return gone, there


@cause(
    "grad-output-partly-ignored",
    "The gradient of {x} takes no notice of some elements of grad_output{where}.",
    look="masks, indices and reductions",
)
def grad_output_partly_ignored(wrong):
    """Of these, all contributions are lost."""
    if not (found := lost(wrong)):
        return None
    (gone, there), here = found, wrong.here
    rows = gone.any(1)
    right = there.any(1) & ~rows
    # Or it is a matter of the elements of the input.
    some = there[right].any(0) & gone.any(0)
    if (gone != there)[rows].any() or not some.any():
        return None
    spots = Spots(torch.arange(len(rows)), right, rows, sizes_of(here, here.y), {})
    where = rule(here.y.shape, [spots]) or ""
    # An index that is assigned leaves one contribution of each.
    left = (there & ~gone).sum(0)[gone.any(0)]
    if not gone.any(0).all() and (not where or (left == 1).all()):
        return None
    return {"where": where and _(": those {where}", where=where)}


@cause(
    "contribution-lost",
    "The gradient of {x} lacks contributions: where several elements of {y} depend on "
    "one of {x}, not all are added up.",
    look="a term or a path that is missing; repeated indices (assignment keeps one "
    "contribution, and so does an indexed +=); the means, norms and sums of forward, "
    "through which elements act on one another",
)
def contribution_lost(wrong):
    if found := lost(wrong):
        gone, there = found
        # Where nothing is left of some gradients, that is simpler to say.
        return {} if (there & ~gone).any(0)[gone.any(0)].all() else None


# --- elements -------------------------------------------------------------------------


@cause(
    "other-mask",
    "The gradient of {x} is zero at {lost} elements where it should not be, and not "
    "zero at {extra} where it should be, of {n} examined.",
    look="the mask of backward, or its index: inverted, of other numbers, of another "
    "random state, or in the wrong direction",
)
def other_mask(wrong):
    here = wrong.here
    lost, extra = (
        here.wrong & (here.sampled.abs() <= here.limit).all(0),
        here.wrong & here.zero,
    )
    if lost.any() and extra.any():
        counts = {"lost": lost, "extra": extra, "n": here.trusted}
        words = {name: int(mask.sum()) for name, mask in counts.items()}
        yield (
            words,
            lambda here: (
                not (
                    here.wrong & (here.sampled.abs() > here.limit).any(0) & ~here.zero
                ).any()
            ),
        )


@cause("partly-right", "The gradient of {x} {what}.", kind=VAGUE)
def partly_right(wrong):
    here = wrong.here
    if here.wrong.any() and is_right_somewhere(here, here.right):
        points = [of_elements(here) for here in (*wrong.at, *wrong.in_reverse)]
        if found := rule(here.shape, points, map(of_elements, here.varied())):
            return in_part(here, found)
    return None


def is_right_somewhere(here, right):
    """Is this mask a tenth of its elements, and not only where all is zero?"""
    return (right & ~here.zero).any() and 10 * right.sum() >= here.trusted.sum()


# --- the formula: a term is missing or wrong, or a factor at each element -----


@cause(
    "term-wrong",
    "The gradient of {x} is off by a number that is the same all along {along}{times}"
    "{guess}.",
    look="the terms that hold a sum or a mean, and the factors of each",
)
def term_wrong(wrong):
    """Perhaps after division by an input or the output, or but for a multiple of it."""
    here = wrong.here
    if not here.whole or here.x.is_complex():
        return
    ones, tensors = torch.ones_like(here.given[0]), [*same_shaped(here)]
    bases = [
        ("", [ones]),
        *((_(", times {name}", name=name), [t]) for name, t in tensors),
    ]
    bases += [
        (_(", but for a multiple of {name}", name=name), [ones, t])
        for name, t in tensors
    ]
    for (times, basis), dims in itertools.product(bases, subsets(here.shape)):
        several = (
            here.wrong.reshape(here.shape).sum(dims) > 1
        ).any()  # else anything fits
        if (
            several
            and rests(here.given - here.expected, basis, here.shape, dims) < 1e-4
        ):
            along = named_dims(dims)
            guess = _(A_TERM, along=along)
            return {"along": along, "times": times, "guess": guess}


def same_shaped(here):
    """(name, vector) of the tensors that may multiply a term of the gradient."""
    found = {name: t for name, t in here.tensors.items() if t.shape == here.x.shape}
    found |= {
        _(EXP, name=name): found[name].exp()
        for name in (here.output, f"`{here.input}`")
        if name in found
    }
    rows = {name: here.row(t) for name, t in found.items() if not t.is_complex()}
    return [(name, row) for name, row in rows.items() if row.isfinite().all()]


def rests(error, basis, shape, dims):
    """How much of the error no combination of the basis explains, by slice."""
    first, last = [d + 1 for d in dims], [-1 - k for k in range(len(dims))]
    size = math.prod(shape[d] for d in dims)
    if size < len(basis) + 2:
        return math.inf
    a, b = (  # of shape (slices, size, rows)
        t.reshape(-1, *shape)
        .movedim(first, last)
        .reshape(len(t), -1, size)
        .movedim(0, -1)
        for t in (torch.stack(basis), error)
    )
    rest = b - a @ (torch.linalg.pinv(a) @ b)
    return largest(rest) / (largest(error) or 1.0)


@cause(
    "inner-derivative-forgotten",
    "The gradient of {x} is grad_output itself{summed}, as if the derivative of {y} "
    "with respect to {x} were not multiplied in.",
    look="the chain rule: grad_output times a derivative",
)
def inner_derivative_forgotten(wrong):
    summed = "" if wrong.here.y.numel() <= wrong.here.x.numel() else _(", summed")
    yield (
        {"summed": summed, "meant": MEANT},
        lambda here: here.passes and not here.is_identity,
    )


@cause(
    "right-only-for-ones",
    "The gradient of {x} is right where grad_output is all ones, as it is after "
    "`.sum()`, but not in general.",
    look="what mixes the elements of grad_output: a sum, a mean, an index or a "
    "transform",
)
def right_only_for_ones(wrong):
    yield {}, lambda here: here.y.numel() > 1 and here.is_right_for_ones


@cause(
    "factor-wrong",
    "The gradient of {x} {lacks} {what}{rest}.",
    look="where {what} enters the gradient of {x}",
)
def factor_missing(wrong):
    """An input or the output, or exp of it, perhaps times a number."""
    names = [*wrong.here.tensors] if wrong.steady and wrong.steady[0] > 1 else []
    of = [(name, name, lambda t: t) for name in names]
    of += [(_(EXP, name=name), name, torch.exp) for name in names]
    for (what, name, made), (power, lacks) in itertools.product(of, POWERS.items()):
        number = wrong.multiple(
            lambda here: (
                here.given
                * made(here.row(here.tensors[name].expand(here.shape))) ** power
            ).nan_to_num()
        )
        if number:
            rest = _(", and is multiplied by {factor}", factor=brief(1 / number))
            return {
                "lacks": _(lacks),
                "what": what,
                "rest": rest if abs(number - 1) > 1e-4 else "",
            }
    return None


@cause("partly-right")
def partly_right_somewhere(wrong):
    """Without a rule that says where."""
    here, spots = wrong.here, of_elements(wrong.here)
    right = spots.right & ~here.zero  # for the formula, not for being small
    if here.wrong.any() and is_right_somewhere(here, right) and not spots.smooth:
        return in_part(here)
    return None


@cause(
    "derivative-wrong",
    "The gradient of {x} has a wrong derivative in it: given / expected is the same "
    "whatever {grad} is.",
    look="the formula of the derivative",
    kind=VAGUE,
)
def derivative_wrong(wrong):
    """Of one number, or of fewer than elements, it would be so whatever is wrong."""
    x, y = wrong.here.x.numel(), wrong.here.y.numel()
    if not wrong.steady or x == 1 or y < x:
        return None
    here, grad = wrong.here, "grad_output"
    if len(here.point.names) > 1:
        grad = _("the grad_output of {y} alone", y=here.point.names[here.o])
    return {"grad": grad}


@cause(
    "gradient-wrong",
    "The gradient of {x} is wrong{nameless}.",
    look="the formula, term by term, at the element shown",
    kind=VAGUE,
)
def gradient_wrong(wrong):
    return {"nameless": _(", in no way that has a name")}
