"""Causes that concern contributions: what each element of grad_output adds, and where to."""

import itertools

import torch

from ..function.tensors import largest, scale
from ..report import MEANT, brief
from .factors import POWERS
from .measurements import Causes
from .places import turns
from .where import Spots, of_elements, relation, rule, sizes_of, slices

cause = Causes()


@cause(
    "grad-output-partly-ignored",
    "The gradient of {x} takes no notice of some elements of grad_output{where}.",
    look="masks, indices and reductions",
    before=("contribution-lost", "outputs-scaled"),  # all contributions of some elements
)
def grad_output_partly_ignored(cases):
    found = cases.missing and cases.through
    if not found:
        return False
    rows, where, _ = found
    missing, there = cases.missing
    if not torch.equal(missing[rows], there[rows]):
        return False
    # An index that is assigned leaves one contribution of each.
    left = (there & ~missing).sum(0)[missing.any(0)]
    if not missing.any(0).all() and (where is None or (left == 1).all()):
        return False
    return {"where": f": those {where.rstrip(',')}" if where else ""}


@cause(
    "cross-terms-lost",
    "The gradient of {x} is that of each {what} alone, but each element of {y} depends on several "
    "of {x}.",
    look="the means, norms and sums of forward, through which elements act on one another",
    before=("contribution-lost",),  # all but one of each
)
def cross_terms_lost(cases):
    c = cases[0]
    if not cases.missing or c.x.dim() != c.y.dim():
        return False
    missing, there = cases.missing
    pairs = [rows[:, None] != columns for rows, columns in zip(*grids(c), strict=True)]
    for d, others in enumerate(pairs):
        if c.shape[d] == c.y.shape[d] > 1 and torch.equal(missing, there & others):
            left = there & ~missing
            alone = not any((left & other).any() for other in pairs)
            return left.any() and {"what": "element" if alone else f"index of dimension {d}"}
    return False


def grids(c):
    """The indices along each dimension of the output's elements, and of the input's."""
    return [
        torch.unravel_index(torch.arange(t.numel(), device=t.device), t.shape) for t in (c.y, c.x)
    ]


@cause(
    "contribution-lost",
    "The gradient of {x} lacks contributions: where several elements of {y} depend on one of {x}, "
    "not all are added up.",
    look="repeated indices (assignment keeps one contribution, and so does an indexed +=), and "
    "the means, norms and sums of forward, through which elements act on one another",
    before=("partly-right", "outputs-scaled"),  # where nothing was lost, or all of an output's
)
def contribution_lost(cases):
    if not cases.missing:
        return False
    missing, there = cases.missing
    # Where nothing is left of some gradients, that is simpler to say.
    return bool((there & ~missing).any(0)[missing.any(0)].all())


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
    "outputs-scaled",
    "The gradient of {x} is right through some elements of {y}, but {where} it {how}.",
    look="what forward computes at these elements of {y}, and what backward makes of their "
    "grad_output",
    before=("partly-right",),  # where all that an element of the input gets is wrong
)
def outputs_scaled(cases):
    """Rows of the Jacobian; of the elements of the input, some get from right and wrong ones."""
    found = cases.through
    if not found:
        return False
    wrong, where, _ = found
    given, expected, limit = cases.jacobians
    off = ((given - expected).abs() > limit) & wrong[:, None]
    how = relation(given[off], expected[off], torch.tensor(limit), cases[0].subject.numbers)
    if "is wrong" in how:
        return False
    return {"where": where or f"at {int(wrong.sum())} of {len(wrong)} of them", "how": how}


@cause(
    "grad-output-scaled",
    "The gradient of {x} would be right if grad_output were {how} before.",
    look="where grad_output enters the gradient of {x}",
    before=("right-only-for-ones", "inner-derivative-forgotten", "partly-right"),  # as ones are
    # then, or all is, or what the mask does not reach
)
def grad_output_scaled(cases):
    """By a factor for each element of the output; where it is one of the input, that is simpler."""
    if cases.ratios or any(c.x.is_complex() or c.y.is_complex() for c in cases):
        return False
    c = cases[0]
    ways = {"multiplied by {}": lambda t: t, "divided by {}": lambda t: 1 / t}
    for word, sign in (("above", 1), ("below", -1)) if c.x.numel() < c.y.numel() else ():
        ways[f"set to zero wherever {{}} is not {word} 0"] = lambda t, sign=sign: sign * t > 0
    for (how, made), name in itertools.product(ways.items(), c.tensors):
        if all(c.fits_scaled(name, made) for c in cases):
            return {"how": how.format(name)}
    if cases.jacobians:
        given, expected, limit = cases.jacobians
        rows = (expected.abs() > limit).any(1)
        size = (given * expected).sum(1) / expected.square().sum(1)
        if size[rows].all() and ((given - size[:, None] * expected).abs() <= limit)[rows].all():
            if found := slices(c.y.shape, rows.nonzero()[:, 0], 1 / size[rows]):
                along = f"another factor at each index of dimension {found[0]} ({found[1]})"
                return {"how": f"multiplied by {along}"}
    numbers = torch.arange(c.y.numel(), device=c.y.device).reshape(c.y.shape)
    for how, order in arranged(numbers, c) if cases.jacobians else turns(numbers):
        if cases.jacobians:
            fine = ((given[order.reshape(-1).argsort()] - expected).abs() <= limit).all()
        else:
            fine = c.fits_rows(c.vjp(v.reshape(-1)[order]) for v in c.vs[:2])
        if fine:
            return {"how": how}
    return False


def arranged(v, c):
    """turns, and v with its dimensions, or their parts of the sizes of an input, permuted."""
    yield from turns(v)
    sizes = {n for t in c.point.values for n in t.shape}
    parts = [[(n,), *((m, n // m) for m in sizes if 1 < m < n and n % m == 0)] for n in v.shape]
    for split in itertools.product(*parts):
        whole = v.reshape([n for part in split for n in part])
        for order in itertools.permutations(range(whole.dim())) if whole.dim() <= 4 else ():
            if order != tuple(range(whole.dim())):
                how = f"viewed as {tuple(whole.shape)}, permuted by permute{order} and viewed back"
                yield how, whole.permute(order).reshape(v.shape)


@cause(
    "operand-turned",
    "The gradient of {x} is right for `{other}` {how}, not for `{other}` itself.",
    look="the transposes and flips of `{other}`, in forward and in backward",
    before=("misplaced",),  # what is in the kernel may be in the other order
)
def operand_turned(cases):
    c = cases[0]
    for j, name in enumerate(c.subject.inputs):
        for how, turned in turns(c.point.values[j]) if j != c.i else ():
            if not torch.equal(turned, c.point.values[j]) and c.fits_with(j, turned):
                return {"other": name, "how": how}
    return False


@cause("misplaced", before=("partly-right",))  # where the places are the same
def contributions_misplaced(cases):
    """Each element of grad_output is passed on with the right numbers, but to others."""
    if not cases.jacobians:
        return False
    given, expected, limit = cases.jacobians
    off = (given - expected).abs() > limit
    if ((given.sort(1).values - expected.sort(1).values).abs() > limit).any():
        return False
    c = cases[0]
    there, here = expected.abs() > limit, given.abs() > limit
    outputs, inputs = grids(c)
    for (d, rows), (e, others), columns in itertools.product(
        enumerate(outputs), enumerate(outputs), inputs
    ):
        right, wrong = rows[:, None] == columns, others[:, None] == columns
        if d != e and c.y.shape[d] == c.y.shape[e] and not (there & ~right | here & ~wrong).any():
            if (there & ~wrong).any():
                return {"which": f": it is summed over dimension {d} of {c.output}, not {e}"}
    wrong = off.any(1)
    spots = Spots(torch.arange(len(off)), there.any(1) & ~wrong, wrong, dict(sizes_of(c, c.y)))
    found = rule(c.y.shape, [spots])
    where = f" {found[0].rstrip(',')}" if found else ""
    return {"which": f": what {c.output} passes on{where} goes to others"} if off.any() else False


@cause(
    "scaled-along",
    "The gradient of {x} is right, but multiplied by another factor at each index of dimension "
    "{d}: {factors}.",
    look="counts, norms and factors that belong to one index of dimension {d}",
    before=("partly-right",),  # where it is 1
)
def scaled_along(cases):
    if not cases.ratios:
        return False
    c, (numbers, ratio) = cases[0], cases.ratios[0]
    small = c.right & (c.expected.abs() > c.limit).any(0) & ~torch.isin(c.elements, numbers)
    numbers = torch.cat([numbers, c.elements[small]])
    found = slices(c.shape, numbers, torch.cat([ratio.real, ratio.real.new_ones(int(small.sum()))]))
    missing = found and factor_missing(cases)
    also = "; it {lacks} the factor {what}{rest}".format(**missing) if missing else ""
    return found and {"d": found[0], "factors": found[1] + also}


def factor_missing(cases):
    """The words for a factor that is an input or the output, perhaps times a number; or None."""
    for name, of in factors(cases[0]) if cases.ratios else ():
        try:
            pairs = zip(cases, cases.ratios, strict=True)
            found = [(c.row(of(c).expand(c.shape))[k], ratio) for c, (k, ratio) in pairs]
        except RuntimeError:  # it has no value at each element
            continue
        t, ratio = (torch.cat(both) for both in zip(*found, strict=True))
        for power, lacks in POWERS if len(t) > 1 else ():
            rest = ratio / t**power
            even = (rest - rest[0]).abs() <= 1e-4 * rest[0].abs()
            if rest.all() and even.all():
                also = f", and is multiplied by {brief(rest[0].item())}"
                also = "" if abs(rest[0] - 1) < 1e-4 else also
                return {"lacks": lacks, "what": name, "rest": also}
    return None


def factors(c):
    """(in words, the tensor of a case) of what each element may be multiplied by."""
    for name, t in c.tensors.items():
        yield name, lambda c, n=name: c.tensors[n]
        for k in (0, -1) if t.dim() == len(c.shape) + 1 else ():
            yield f"{name[:-1]}[{k}]`", lambda c, n=name, k=k: c.tensors[n][k]
        if name != c.output:
            yield f"exp of {name}", lambda c, n=name: c.tensors[n].exp()


@cause(
    "other-mask",
    "The gradient of {x} is zero at {lost} elements where it should not be, and not zero at "
    "{extra} where it should be{among}.",
    look="the mask of backward: inverted, of other numbers, or of another random state?",
    before=("partly-right",),  # where the masks agree
)
def other_mask(cases):
    words = {}
    for c in cases:
        lost = c.wrong & (c.sampled.abs() <= c.limit).all(0)
        extra = c.wrong & (c.expected.abs() <= c.limit).all(0)
        if not lost.any() or not extra.any() or (c.wrong & ~lost & ~extra).any():
            return False
        among = f", of {int(c.trusted.sum())} examined" if c.sparse else ""
        words = words or {"lost": int(lost.sum()), "extra": int(extra.sum()), "among": among}
    return words


@cause("partly-right", before=("inner-derivative-forgotten",))  # which may be 1 here and there
def partly_right(cases):
    c = cases[0]
    matters = (c.expected.abs() > c.limit).any(0)
    if not (c.right & matters).any() or 10 * c.right.sum() < c.trusted.sum() or not c.wrong.any():
        return False
    points = [of_elements(cases[0]) for cases in cases.each()]
    how = c.how()
    twice = []  # (name, numbers that it holds more than once) of each input of integers
    for name, t in () if how == "should be zero" else c.subject.arguments.items():
        if isinstance(t, torch.Tensor) and t.dtype in (torch.int32, torch.int64):
            numbers, counts = t.unique(return_counts=True)
            twice.append((name, set(numbers[counts > 1].tolist())))
    varied = ((v.subject.numbers, [of_elements(v)]) for v in c.varied())
    found = rule(c.shape, points, c.subject.numbers, varied, twice)
    if not found:
        return False
    may = MEANT if how == "should be zero" else ""
    return {"where": found[0], "how": how, "look": found[1], "may": may}


@cause("outputs-scaled")  # for no number that could be told
def outputs_wrong(cases):
    found = cases.through
    return found and found[1] and {"where": found[1], "how": "is wrong"}
