"""Causes that concern places: right numbers elsewhere, or some of them lost."""

import itertools

import torch

from .factors import whose
from .measurements import Causes
from .where import named, subsets

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
        given = tuple(c.shape[order.index(d)] for d in dims)
        if order != dims and cases.moved(cases.places().reshape(given).permute(order).reshape(-1)):
            viewed = f"viewed as {given} and " * (given != c.shape)
            how = f"its dimensions are permuted: {viewed}permuted by permute{order}, it is right"
            return {"how": "transposed" if len(dims) == 2 else how}
    return False


@cause(
    "swapped",
    "The gradient returned for {x} is that of `{other}`.",
    look="{look}",
    before=("inner-derivative-forgotten", "others-term", "other-output"),  # it may be grad_output;
    # where its own is zero, the error is the other's; and outputs may differ as the inputs do
)
def swapped(cases):
    other = whose(cases)
    if not other:
        return False
    alone = cases[0].subject.inputs.index(other) not in cases.wrong
    copied = f"what belongs to `{cases[0].input}` and not to `{other}`, whose gradient is right"
    return {
        "other": other,
        "look": copied if alone else "the order in which backward returns its gradients",
    }


@cause(
    "other-output",
    "The gradient of {x} is that through {other}.",
    look="the order in which backward receives a grad_output for each output of forward",
    before=("inner-derivative-forgotten", "derivative-wrong"),  # at each output alone, it is so
)
def of_another_output(cases):
    """What backward makes of the grad_output of this one belongs to that of another."""
    for o, name in enumerate(cases[0].point.names):
        if o != cases[0].o and all(c.is_through(o) for c in cases):
            return {"other": name}
    return False


@cause(
    "reversed",
    "The gradient of {x} is right, but {how}.",
    look="flips and index arithmetic; the direction, or a conjugate, of a Fourier transform",
    before=("misplaced", "grad-output-scaled"),  # with a reason for each place
)
def reversed_along(cases):
    for how, order in turns(cases.places()):
        if how.startswith(("flipped", "reversed")) and cases.moved(order.reshape(-1)):
            return {"how": how}
    return False


@cause(
    "shifted",
    "The gradient of {x} is right, but shifted by {by} along dimension {d}{halves}.",
    look="index arithmetic: bounds that are off by one, or the direction (backward shifts the "
    "other way than forward)",
    before=("right-only-for-ones", "misplaced", "jacobian-transposed"),  # as all look, moved
)
def shifted(cases):
    shape, places = cases[0].shape, cases.places()
    index = torch.unravel_index(places.reshape(-1), shape)

    def fits(by, dims):
        to = [index[d] + n for d, n in zip(dims, by, strict=True)]
        inner = [(0 <= t) & (t < shape[d]) for d, t in zip(dims, to, strict=True)]
        order = places.roll([-n for n in by], dims).reshape(-1)
        return cases.moved(order, torch.stack(inner).all(0))

    for d, n in enumerate(shape):
        for by in (1, -1, 2, -2) if n > 3 else ():
            if fits((by,), (d,)):
                return {"by": by, "d": d, "halves": ""}
        for by in range(3, n - 2) if n < 100 else (n // 2,):  # round the end
            if cases.moved(places.roll(-by, d).reshape(-1)):
                halves = ": its halves are exchanged" if 2 * by == n else ""
                return {"by": by if 2 * by <= n else by - n, "d": d, "halves": halves}
    for d, e in itertools.combinations(range(len(shape)), 2):
        for by in itertools.product((1, -1), repeat=2) if min(shape[d], shape[e]) > 3 else ():
            if fits(by, (d, e)):
                return {"by": f"{by[0]} and {by[1]}", "d": f"{d} and {e}", "halves": ""}
    return False


@cause(
    "misplaced",
    "The gradient of {x} has the right numbers in the wrong places{which}.",
    look="gather against scatter, a permutation against its inverse",
    before=("partly-right", "jacobian-transposed", "grad-output-scaled"),  # as that of a
    # permutation is its inverse; its places are those of grad_output
)
def misplaced(cases):
    for c in cases:
        if not c.whole or c.x.is_complex() or c.x.numel() < 2:
            return False
        off = c.given.sort(1).values - c.expected.sort(1).values
        if (off.abs() > c.limit.max()).any():
            return False
    return {"which": ""}


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
    def fits(c, dims):
        total = c.expected.reshape(3, *c.shape).sum([d + 1 for d in dims], keepdim=True)
        off = (c.given.reshape(3, *c.shape) - total).abs()
        return (off <= c.limit.max() * c.x.numel()).all() and total.any()

    for dims in subsets(cases[0].shape) if all(c.whole and c.x.numel() > 1 for c in cases) else ():
        if all(fits(c, dims) for c in cases):
            return {"along": named(dims)}
    return False


def turns(t):
    """(how, t flipped, reversed round the end, or transposed), as far as that keeps its shape."""
    dims = range(t.dim())
    found = [(f"flipped along dimension {d}", t.flip(d)) for d in dims if t.shape[d] > 1]
    for d, e in itertools.combinations(dims, 2):
        if t.shape[d] == t.shape[e] > 1:
            where = "" if t.dim() == 2 else f" in dimensions {d} and {e}"
            found.append((f"transposed{where}", t.transpose(d, e)))
    found += [(f"rolled by half along dimension {d}", t.roll(t.shape[d] // 2, d)) for d in dims
              if t.shape[d] % 2 == 0 < t.shape[d] - 2]  # fmt: skip
    around = "reversed, all but index 0, along dimension"  # as a Fourier transform's conjugate
    return found + [(f"{around} {d}", t.flip(d).roll(1, d)) for d in dims if t.shape[d] > 2]
