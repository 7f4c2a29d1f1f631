"""Causes that concern a part: some elements, some contributions, a term or a factor of each."""
# ruff: noqa: B023 (a hypothesis is tried before the next one is made)

import itertools
import math

import torch

from ..function.tensors import largest
from ..report import MEANT, brief
from .cause import cause, true_of
from .where import BRANCH, FORMULA, how, named_dims, of_elements, of_rows, relation, rule, subsets
from .whole import is_flat, same_but_order

POWERS = {
    1: "lacks", -1: "has once too often", 2: "lacks twice", -2: "has twice too often",
}  # fmt: skip

# --- contributions: what each element of grad_output adds, and where to ---------------------------


def missing(ms):
    """(missing, there): masks of the Jacobian, if some that are there are lost, and no more."""
    if not ms.jacobians:
        return None
    given, expected, limit = ms.jacobians
    there = expected.abs() > limit
    lost = there & (given.abs() <= limit)
    if not lost.any() or ((given - expected).abs() > limit)[~lost].any():
        return None
    return lost, there


def through(ms):
    """(rows, where): elements of the output that are passed wrongly, beside right ones; or None.

    where is empty where they follow no rule.
    """
    points = []
    for one in ms.each():
        spots = of_rows(one) if one.jacobians else None
        if not spots:
            break
        points.append(spots)
    if not points:
        return None
    return points[0].wrong, (rule(ms[0].y.shape, points) or [""])[0]


@cause(
    "grad-output-partly-ignored",
    "The gradient of {x} takes no notice of some elements of grad_output{where}.",
    look="masks, indices and reductions",
)
def grad_output_partly_ignored(ms):
    lost, found = missing(ms), through(ms)
    if not lost or not found:
        return None
    (lost, there), (rows, where) = lost, found
    # An index that is assigned leaves one contribution of each.
    left = (there & ~lost).sum(0)[lost.any(0)]
    if (lost ^ there)[rows].any() or not lost.any(0).all() and (not where or (left == 1).all()):
        return None
    return {"where": where and f": those {where.rstrip(',')}"}


@cause(
    "contribution-lost",
    "The gradient of {x} lacks contributions: where several elements of {y} depend on one of {x}, "
    "not all are added up.",
    look="repeated indices (assignment keeps one contribution, and so does an indexed +=), and "
    "the means, norms and sums of forward, through which elements act on one another",
)
def contribution_lost(ms):
    if found := missing(ms):
        lost, there = found
        # Where nothing is left of some gradients, that is simpler to say.
        return {} if (there & ~lost).any(0)[lost.any(0)].all() else None


@cause(
    "outputs-scaled",
    "The gradient of {x} is right through some elements of {y}, but {where} it {how}.",
    look="what forward computes at these elements of {y}, and what backward makes of their "
    "grad_output",
)
def outputs_scaled(ms):
    """Rows of the Jacobian; of the elements of the input, some get from right and wrong ones."""
    if found := through(ms):
        wrong, where = found
        given, expected, limit = ms.jacobians
        off = ((given - expected).abs() > limit) & wrong[:, None]
        what = relation(given[off], expected[off], torch.tensor(limit), ms[0].subject.numbers)
        if where or what != "is wrong":
            where = where or f"at {int(wrong.sum())} of {len(wrong)} of them"
            return {"where": where, "how": what}


@cause("misplaced")
def contributions_misplaced(ms):
    """Each element of grad_output is passed on with the right numbers, but to others."""
    right = ms.jacobians and same_but_order(*ms.jacobians)
    return {"which": f": what {ms[0].output} passes on goes to others"} if right else None


# --- elements -------------------------------------------------------------------------------------


@cause(
    "scaled-along",
    "The gradient of {x} is right, but multiplied by another factor at each index of dimension "
    "{d}: {factors}.",
    look="counts, norms and factors that belong to one index of dimension {d}",
)
def scaled_along(ms):
    numbers, ratio = ms.ratios[0] if ms.ratios else ((), ())
    for d in range(len(ms[0].shape) if ms.ratios else 0):
        index = torch.unravel_index(numbers, ms[0].shape)[d]
        groups = [ratio[index == k] for k in index.unique()]
        same = all(((t - t[0]).abs() < 1e-4 * t[0].abs()).all() for t in groups)
        # One factor beside 1 is simpler to say by where it is.
        factors = [brief(t[0].item()) for t in groups]
        if same and len(ratio) >= 2 * len(groups) and len({*factors} - {"1"}) > 1:
            return {"d": d, "factors": ", ".join(factors[:5]) + ", …" * (len(factors) > 5)}
    return None


@cause(
    "other-mask",
    "The gradient of {x} is zero at {lost} elements where it should not be, and not zero at "
    "{extra} where it should be{among}.",
    look="the mask of backward: inverted, of other numbers, or of another random state?",
)
def other_mask(ms):
    m = ms[0]
    lost, extra = m.wrong & (m.sampled.abs() <= m.limit).all(0), m.wrong & m.zero
    among = f", of {int(m.trusted.sum())} examined" if m.sparse else ""
    if lost.any() and extra.any():
        words = {"lost": int(lost.sum()), "extra": int(extra.sum()), "among": among}
        yield words, lambda m: not (m.wrong & (m.sampled.abs() > m.limit).any(0) & ~m.zero).any()


@cause(
    "partly-right",
    "The gradient of {x} {what}.{may}",
    look="{look}",
)
def partly_right(ms):
    m = ms[0]
    if m.wrong.any() and is_right_somewhere(m):
        points = [of_elements(m) for (m,) in ms.each()]
        varied = ((v.subject.numbers, [of_elements(v)]) for v in m.varied())
        if found := rule(m.shape, points, m.subject.numbers, varied):
            where, look = found
            return partly(how(m), f"is right in part: {where} it {how(m)}", look)
    return None


def is_right_somewhere(m):
    """In a tenth of its elements, and not only because all is zero there?"""
    return (m.right & ~m.zero).any() and 10 * m.right.sum() >= m.trusted.sum()


def partly(what, sentence, look):
    return {"what": sentence, "look": look, "may": MEANT if what == "should be zero" else ""}


# --- the formula: a term or a factor is missing, at each element another --------------------------


@cause(
    "term-off",
    "The error of the gradient of {x} is grad_output times {what}.",
    look="a term of the derivative that is missing, or has the wrong factor",
)
def term_off(ms):
    """The same number, or an input or the output times the same number, at each element."""
    passed = any(m.passed is None or m.passes or not m.given.any() for m in ms)
    for name in ("", *ms[0].tensors) if not passed and not ms.factor and not is_flat(ms) else ():
        found = []

        def holds(m):
            term = m.passed * (m.row(m.tensors[name].expand(m.shape)) if name else 1)
            off, part = m.sampled - m.expected, term[:, m.elements]
            found.append(((part.conj() * off).sum() / part.abs().square().sum()).item())
            same = abs(found[0] - found[-1]) <= 1e-4 * abs(found[0])
            return same and m.fits(m.given - found[-1] * term)

        if all(true_of(holds, m) for m in ms):
            return {"what": brief(found[0]) + (name and f", times {name}")}
    return None


@cause(
    "term-missing",
    "The error of the gradient of {x} is the same all along {along}{times}, as when a sum or a "
    "mean over it is missing, or has a wrong factor.",
    look="reductions in backward",
)
def term_missing(ms):
    """Perhaps after division by an input or the output, or but for a multiple of it."""
    m = ms[0]
    if not m.whole or m.x.is_complex():
        return
    ones, tensors = torch.ones_like(m.given[0]), [*same_shaped(m)]
    bases = [("", [ones]), *((f", times {name}", [t]) for name, t in tensors)]
    bases += [(f", but for a multiple of {name}", [ones, t]) for name, t in tensors]
    for (times, basis), dims in itertools.product(bases, subsets(m.shape)):
        if rests(m.given - m.expected, basis, m.shape, dims) < 1e-4:
            return {"along": named_dims(dims), "times": times}


def same_shaped(m):
    """(name, vector) of the tensors by which a term of the gradient may be multiplied."""
    found = {name: t for name, t in m.tensors.items() if t.shape == m.x.shape}
    found |= {f"exp of {name}": found[name].exp() for name in (m.output, f"`{m.input}`")
              if name in found}  # fmt: skip
    rows = {name: m.row(t) for name, t in found.items() if not t.is_complex()}
    return [(name, row) for name, row in rows.items() if row.isfinite().all()]


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
    "The gradient of {x} is grad_output itself{summed}; the derivative of {y} with respect to {x} "
    "is not multiplied in." + MEANT,
    look="the chain rule: grad_output times a derivative",
)
def inner_derivative_forgotten(ms):
    summed = "" if ms[0].y.numel() <= ms[0].x.numel() else ", summed"
    yield {"summed": summed}, lambda m: m.passes and not m.is_identity


@cause(
    "right-only-for-ones",
    "The gradient of {x} is right where grad_output is {when}, but not in general.",
    look="what mixes the elements of grad_output: a sum, a mean, an index or a transform",
)
def right_only_for_ones(ms):
    """Or for others of a kind, of which ones are."""
    shape = ms[0].y.shape
    if not all(m.y.numel() > 1 and m.is_right_for_ones for m in ms):
        return
    kinds = {f"the same all along {named_dims(dims)}": lambda v, dims=dims: v.mean(dims, True)
             for dims in subsets(shape) if len(dims) < len(shape)}  # fmt: skip
    if ms[0].y.is_complex():
        kinds = {"real": lambda v: v.real.to(v.dtype)} | kinds
    kinds["all ones, as it is after `.sum()`"] = torch.ones_like
    for when, made in kinds.items():
        yield {"when": when}, lambda m: m.with_vs(lambda v: made(v).expand_as(v)).is_right


@cause(
    "factor-missing",
    "The gradient of {x} {lacks} the factor {what}{rest}.",
    look="where {what} enters the gradient of {x}",
)
def factor_missing(ms):
    """An input or the output, or exp of it, perhaps times a number."""
    of = {name: lambda t: t for name in ms[0].tensors} if ms.ratios else {}
    of |= {f"exp of {name}": torch.exp for name in of}
    for (name, made), (power, lacks) in itertools.product(of.items(), POWERS.items()):
        found = []

        def holds(m):
            t = m.row(made(m.tensors[name.removeprefix("exp of ")]).expand(m.shape)) ** power
            elements, ratio = ms.ratios[len(found)]
            found.append((ratio * t[elements])[0])
            even = (ratio * t[elements] - found[0]).abs() <= 1e-4 * found[0].abs()
            return len(ratio) > 1 and found[0] != 0 and even.all()

        if all(true_of(holds, m) for m in ms):
            rest = f", and is multiplied by {brief(found[0].item())}"
            return {"lacks": lacks, "what": name, "rest": rest * bool(abs(found[0] - 1) > 1e-4)}
    return None


@cause("partly-right")
def partly_right_somewhere(ms):
    """Without a rule that says where."""
    m, spots = ms[0], of_elements(ms[0])
    right = spots.right & ~m.zero  # for the formula, not for being small
    if m.wrong.any() and right.any() and 10 * right.sum() >= m.trusted.sum() and not spots.smooth:
        known = f"{int(m.trusted.sum())} elements{' examined' * m.sparse}"
        where = f"at {int(m.wrong.sum())} of {known}"
        return partly(how(m), f"{how(m)} {where}", BRANCH if "zero" in how(m) else FORMULA)
    return None


@cause(
    "derivative-wrong",
    "The gradient of {x} is off by another factor at each element, whatever grad_output is.",
    look="the formula of the derivative",
)
def derivative_wrong(ms):
    """Of fewer numbers than there are elements, it would be so whatever is wrong."""
    return {} if ms.ratios and ms[0].y.numel() >= ms[0].x.numel() else None


@cause(
    "gradient-wrong",
    "The gradient of {x} is wrong{nameless}.",
    look="the formula, term by term, at the element shown",
)
def gradient_wrong(ms):
    return {}
