"""Causes that concern places: right numbers elsewhere, or some of them lost."""

import itertools

import torch

from .cases import Causes
from .factors import whose
from .report import MEANT
from .slopes import largest, scale

cause = Causes()


@cause(
    "transposed",
    "The gradient of {x} is right, but {how}.",
    look="the order of the factors, and every transpose",
    before=("misplaced",),  # with a reason for each place
)
def transposed(cases):
    c, dims = cases[0], tuple(range(len(cases[0].shape)))
    for order in itertools.permutations(dims) if len(dims) <= 4 else ():
        places = cases.places().reshape([c.shape[order.index(d)] for d in dims]).permute(order)
        if order != dims and cases.moved(places.reshape(-1)):
            permuted = f"its dimensions are permuted as by permute{order}"
            return {"how": "transposed" if len(dims) == 2 else permuted}
    return False


@cause(
    "swapped",
    "The gradient returned for {x} is that of `{other}`.",
    look="the order in which backward returns its gradients",
    before=("inner-derivative-forgotten", "others-term"),  # it may be grad_output that belongs to
    # the other input; and where its own is zero, the error is the other's
)
def swapped(cases):
    other = whose(cases)
    return {"other": other} if other else False


@cause(
    "reversed",
    "The gradient of {x} is right, but reversed along dimension {d}.",
    look="flips and index arithmetic",
    before=("misplaced",),  # with a reason for each place
)
def reversed_along(cases):
    for d, n in enumerate(cases[0].shape):
        if n > 1 and cases.moved(cases.places().flip(d).reshape(-1)):
            return {"d": d}
    return False


@cause(
    "shifted",
    "The gradient of {x} is right, but shifted by {by} along dimension {d}.",
    look="index arithmetic: bounds that are off by one, or the direction (backward shifts the "
    "other way than forward)",
    before=(
        "right-only-for-ones",
        "misplaced",
        "jacobian-transposed",
    ),  # as all of them look, moved
)
def shifted(cases):
    c = cases[0]
    for d, n in enumerate(c.shape):
        index = torch.arange(n, device=c.x.device)
        index = index.reshape([-1] + [1] * (len(c.shape) - d - 1)).expand(c.shape).reshape(-1)
        for by in (1, -1, 2, -2) if n > 3 else ():
            inner = (index + by >= 0) & (index + by < n)
            if cases.moved(cases.places().roll(-by, d).reshape(-1), inner):
                return {"by": by, "d": d}
        for by in range(3, n - 2) if n < 100 else ():  # round the end
            if cases.moved(cases.places().roll(-by, d).reshape(-1)):
                return {"by": by if 2 * by <= n else by - n, "d": d}
    for d, e in itertools.combinations(range(len(c.shape)), 2):
        for by in itertools.product((1, -1), repeat=2) if min(c.shape[d], c.shape[e]) > 3 else ():
            index = torch.unravel_index(cases.places().reshape(-1), c.shape)
            to = [index[k] + n for k, n in zip((d, e), by, strict=True)]
            inner = (to[0] >= 0) & (to[0] < c.shape[d]) & (to[1] >= 0) & (to[1] < c.shape[e])
            if cases.moved(cases.places().roll([-n for n in by], (d, e)).reshape(-1), inner):
                return {"by": f"{by[0]} and {by[1]}", "d": f"{d} and {e}"}
    return False


@cause(
    "misplaced",
    "The gradient of {x} has the right numbers in the wrong places.",
    look="gather against scatter, a permutation against its inverse",
    before=("partly-right", "jacobian-transposed"),  # as that of a permutation is its inverse
)
def misplaced(cases):
    for c in cases:
        if not c.whole or c.x.is_complex() or c.x.numel() < 2:
            return False
        off = c.given.sort(1).values - c.expected.sort(1).values
        if (off.abs() > c.limit.max()).any():
            return False
    return True


@cause(
    "broadcast-wrong",
    "The gradient of {x} is right, but grad_output is spread along dimension {wrong} in place of "
    "dimension {right}.",
    look="the dimension that forward reduced: unsqueeze({right}), or keepdim=True",
    before=("partly-right", "right-only-for-ones"),  # right on the diagonal, and for ones
)
def broadcast_wrong(cases):
    def spread(c, v, d):
        v = v if v.dim() == c.x.dim() else v.unsqueeze(d)
        v = v.movedim(v.shape.index(1), d) if 1 in v.shape else v
        return c.row(v.expand(c.shape))[c.elements]

    def fits(c, right, wrong):
        try:
            vs = [(spread(c, v, right), spread(c, v, wrong)) for v in c.vs]
        except RuntimeError:  # it cannot be spread so
            return False
        return c.fits(torch.stack([g * v / w for g, (v, w) in zip(c.sampled, vs, strict=True)]))

    dims = range(len(cases[0].shape))
    reduced = cases[0].y.numel() < cases[0].x.numel() and cases[0].y.dim() >= len(dims) - 1
    for right, wrong in itertools.permutations(dims, 2) if reduced else ():
        if all(fits(c, right, wrong) for c in cases):
            return {"right": right, "wrong": wrong}
    return False


@cause(
    "summed-too-far",
    "Each element of the gradient of {x} is the sum of what belongs there along {along}.",
    look="the dimensions over which the gradient of {x} is summed",
    before=("term-missing",),  # the error is then the same all along
)
def summed_too_far(cases):
    dims = list(range(len(cases[0].shape)))
    for along in [[d] for d in dims] + [dims] * (len(dims) > 1):
        fit = all(c.whole and c.x.numel() > 1 for c in cases)
        for c in cases if fit else ():
            total = c.expected.reshape(3, *c.shape).sum([d + 1 for d in along], keepdim=True)
            off = (c.given.reshape(3, *c.shape) - total).abs()
            fit &= bool((off <= c.limit.max() * c.x.numel()).all()) and bool(total.any())
        if fit:
            return {"along": f"dimension {along[0]}" if len(along) == 1 else "all dimensions"}
    return False


@cause(
    "grad-output-partly-ignored",
    "The gradient of {x} takes no notice of some elements of grad_output.",
    look="indices and reductions",
    before=("contribution-lost",),  # all contributions of some elements
)
def grad_output_partly_ignored(cases):
    if not cases.missing:
        return False
    missing, there = cases.missing
    rows = missing.any(1)
    return bool(missing.any(0).all()) and torch.equal(missing[rows], there[rows])


@cause(
    "cross-terms-lost",
    "The gradient of {x} is that of each element alone, but each element of {y} depends on several "
    "of {x}.",
    look="the means, norms and sums of forward, through which elements act on one another",
    before=("contribution-lost",),  # all but one of each
)
def cross_terms_lost(cases):
    if not cases.missing or cases[0].x.shape != cases[0].y.shape:
        return False
    missing, there = cases.missing
    alone = torch.eye(len(missing), dtype=torch.bool, device=missing.device)
    return torch.equal(missing, there & ~alone)


@cause(
    "contribution-lost",
    "The gradient of {x} lacks contributions: where several elements of {y} depend on one of {x}, "
    "not all are added up.",
    look="repeated indices (assignment keeps one contribution, and so does an indexed +=), and "
    "the means, norms and sums of forward, through which elements act on one another",
    before=("partly-right",),  # where nothing was lost
)
def contribution_lost(cases):
    return cases.missing is not None


@cause(
    "jacobian-transposed",
    "The gradient of {x} is the Jacobian times grad_output; the transposed Jacobian belongs there.",
    look="the transpose of the matrix that multiplies grad_output",
    before=("partly-right", "right-only-for-ones", "operand-turned"),  # a row may be right by
    # chance, rows and columns may have the same sums, and the matrix may be an input
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
    "grad-output-scaled",
    "The gradient of {x} would be right if grad_output were {how} {what} before.",
    look="where grad_output enters the gradient of {x}",
)
def grad_output_scaled(cases):
    """By a factor for each element of the output; where it is one of the input, that is simpler."""
    if cases.ratios or any(c.x.is_complex() or c.y.is_complex() for c in cases):
        return False
    c = cases[0]
    for name in (*c.subject.names, c.output):
        for power, how in ((1, "multiplied by"), (-1, "divided by")):
            if all(c.fits_scaled(c.tensor(name), power) for c in cases):
                return {"how": how, "what": name if name == c.output else f"`{name}`"}
    return False


@cause(
    "partly-right",
    "The gradient of {x} is right in part: {where} it {how}.{may}",
    look="masks, branches and bounds, and the formula there",
    before=("inner-derivative-forgotten",),  # the derivative may be 1 here and there
)
def partly_right(cases):
    c = cases[0]
    matters = (c.expected.abs() > c.limit).any(0)
    if not (c.right & matters).any() or 10 * c.right.sum() < c.trusted.sum() or not c.wrong.any():
        return False
    how = c.how()
    return {"where": c.where(), "how": how, "may": MEANT if how == "should be zero" else ""}
