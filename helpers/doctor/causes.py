"""What may be wrong with a gradient: each cause with its sentence, where to look, and its test.

They are tried in the order in which they stand here, the simplest first, and the first that fits
is named. A test takes the `Cases` of one wrong gradient; it returns False, True, or the words that
fill the gaps of the sentence. `before` names those further down that fit the same gradients now and
then, or are themselves before such, and the comment says why. To add a cause: one block here, and
one patient.
"""

import itertools

import torch

from .cases import Causes
from .gradient import same
from .report import MEANT, brief
from .slopes import largest, scale

CAUSES = Causes()
cause = CAUSES.add


@cause(
    "right-here-only",
    "The gradient of {x} is right at the given point but wrong at others.",
    look="constants that belong to one input, and branches",
    before=("factor-missing",),  # a number written into backward is a wrong factor elsewhere
)
def right_here_only(cases):
    return cases.elsewhere


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
    return not any(c.given.any() for c in cases)


@cause(
    "straight-through",
    "{y} does not change with {x} here, so the true gradient is zero; backward {what}." + MEANT,
    look="which gradient this is, if no straight-through gradient is intended",
    before=("inner-derivative-forgotten",),  # which is how it is mostly done
)
def straight_through(cases):
    if not all((c.expected.abs() <= c.limit)[:, c.trusted].all() for c in cases):
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
    for name, value in cases[0].subject.arguments.items():
        if isinstance(value, (int, float)) and value not in (0, 1, -1):
            for power, lacks in ((-1, "lacks"), (1, "has once too often")):
                if cases.is_factor(value**power):
                    return {"lacks": lacks, "what": f"`{name}` = {brief(value)}", "rest": ""}
    return False


@cause(
    "mean-for-sum",
    "The gradient of {x} is 1/{n} of what it should be, and {n} is the size of {what}: a mean "
    "where a sum belongs?",
    look="how the gradient of {x} is reduced",
    before=("scaled",),  # by a number that has a reason
)
def mean_for_sum(cases):
    return cases.size(lambda n: cases.is_factor(1 / n))


@cause(
    "sum-for-mean",
    "The gradient of {x} is {n} times too large, and {n} is the size of {what}: a sum where a "
    "mean belongs?",
    look="how the gradient of {x} is reduced",
    before=("scaled",),  # by a number that has a reason
)
def sum_for_mean(cases):
    return cases.size(cases.is_factor)


@cause(
    "scaled",
    "The gradient of {x} is right, but multiplied by {factor}.{meant}",
    look="constant factors, in forward and in backward",
    before=("swapped", "term-missing"),  # so may be the gradient of another input, and the error
)
def scaled(cases):
    return cases.factor is not None and {"factor": brief(cases.factor)}


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
    before=("right-only-for-ones", "term-missing"),  # a power leaves ones, a penalty is a term
)
def not_linear(cases):
    c = cases[0]
    limit = 1e-6 * largest(c.given)
    if largest(c.vjp(torch.zeros_like(c.y))) > limit:
        return {"how": ": it is not even zero where grad_output is zero."}
    total, large = c.vjp(c.vs[0] + c.vs[1]), c.vjp(-1000 * c.vs[0]) / 1000
    if max(largest(total - c.given[0] - c.given[1]), largest(large + c.given[0])) <= limit:
        return False
    return {"how": ", as a clip, a sign or a power makes it." + MEANT}


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
    before=("inner-derivative-forgotten",),  # it may be grad_output that belongs to the other input
)
def swapped(cases):
    def belongs_to(c, j):
        if not c.whole or c.point.values[j].shape != c.x.shape:
            return False
        other = c.point.expected(j)[1][c.o][0]
        return bool(((c.sampled - other).abs() <= c.limit.max()).all()) and bool(other.any())

    for j, name in enumerate(cases[0].subject.inputs):
        if j != cases[0].i and all(belongs_to(c, j) for c in cases):
            return {"other": name}
    return False


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
    before=("right-only-for-ones",),  # all ones look the same where they have moved
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
    return False


@cause(
    "misplaced",
    "The gradient of {x} has the right numbers in the wrong places.",
    look="gather against scatter, a permutation against its inverse",
    before=("partly-right",),  # some numbers may be at home
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
    "partly-right",
    "The gradient of {x} is right in part: {where} it {how}.{may}",
    look="masks, branches and bounds",
    before=("jacobian-transposed", "inner-derivative-forgotten"),  # both may hold here and there
)
def partly_right(cases):
    c = cases[0]
    matters = (c.expected.abs() > c.limit).any(0)
    if not (c.right & matters).any() or 10 * c.right.sum() < c.trusted.sum() or not c.wrong.any():
        return False
    how = c.how()
    return {"where": c.where(), "how": how, "may": MEANT if how == "should be zero" else ""}


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
