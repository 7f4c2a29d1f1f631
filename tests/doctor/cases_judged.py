"""What was judged, and what was not: "nothing found" is a promise."""

from functools import partial

import torch

from helpers.lessons.patients.patient import Square, draw, function
from tests.doctor.cases import Table, drawn, ones

case = CASES = Table()
wrong = CASES.of_two

# --- inputs that require no gradient --------------------------------------------------------------


def frozen_beside_weight():
    (x,) = draw((3, 4))
    return x, ones(4).requires_grad_()


def normal(x):
    return x * (x * x).mean(-1, keepdim=True).rsqrt()


RMSNorm = function(
    lambda x, weight: normal(x) * weight,
    # What x does to the others by the mean is missing.
    lambda g, x, weight: (g * weight * normal(x) / x, (g * normal(x)).sum(0)),
    "RMSNorm",
)
OfWeightOnly = function(
    lambda x, weight: normal(x) * weight, lambda g, x, _: (None, (g * normal(x)).sum(0))
)


class RefusesX(OfWeightOnly):
    @staticmethod
    def backward(ctx, g):
        if ctx.needs_input_grad[0]:
            raise NotImplementedError("no gradient of x")
        return OfWeightOnly.backward(ctx, g)


case("term-missing", "The error of the gradient of `x`", inputs=frozen_beside_weight)(RMSNorm)
for fn, why in (
    (OfWeightOnly, "backward returns None for it"), (RefusesX, "the function fails once it does"),
):  # fmt: skip
    case("", "judged: `weight` at 3 points, first and second order",
         f"not judged: `x` (it requires no gradient, and {why})", name=f"frozen: {why}",
         inputs=frozen_beside_weight)(fn)  # fmt: skip

# --- sparse inputs --------------------------------------------------------------------------------


def sparse(layout):
    dense = torch.tensor([[0, 0, 3], [4, 0, 5]], dtype=torch.float64)
    return dense.to_sparse(layout=layout).requires_grad_(), draw((3, 2))[0].requires_grad_()


JUDGED = "judged: `matrix`, `x` at 3 points, first order"
for layout in (torch.sparse_coo, torch.sparse_csr):  # sparse_mask knows these
    for sign, codes, *says in ((1, "needs-input-grad-ignored"), (-1, "negated", "`matrix`")):
        wrong(
            f"a product, {layout}", codes, *says, JUDGED, inputs=partial(sparse, layout),
            forward=lambda matrix, x: matrix @ x,
            backward=lambda g, matrix, x, s=sign: (
                s * (g @ x.t()).sparse_mask(matrix), matrix.t() @ g
            ),
        )  # fmt: skip
for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
    case("", JUDGED, inputs=partial(sparse, layout), name=f"@ of {layout}")(
        lambda matrix, x: matrix @ x
    )

# --- elements at a jump ---------------------------------------------------------------------------


def imputed(x):
    known = x != 0
    return torch.where(known, x, (x * known).sum(0) / known.sum(0))


def with_a_gap():
    """Where one value is missing, moving it changes the mean of all: the others hold it still."""
    (x,) = draw((5, 1))
    x[1, 0] = 0
    return (x,)


case("", "judged: `x` at 3 points", inputs=with_a_gap)(imputed)
wrong("an element at a jump hides no other", "gradient-wrong", never=("right at the given",),
      inputs=with_a_gap, forward=imputed, backward=lambda g, x: g * (x != 0))  # fmt: skip
case("", "not judged: `x` (numbers are too coarse for differences)", inputs=draw((4,)),
     name="what is judged at no point")(lambda x: (x.bfloat16() ** 2).double())  # fmt: skip

for name, fn, inputs, why in (
    ("five inputs", lambda *xs: sum(map(torch.sin, xs)), draw(*[(3,)] * 5), "the inputs are large"),
    ("an edge nearby", lambda x: (x - 0.99).sqrt(), (ones(3),), "near the given point, forward"),
):  # fmt: skip
    case("", f"first and second order (not at more: {why}", name=name, inputs=inputs)(fn)

case("", "judged: `b` at 3 points, first and second order", inputs=(ones(0, 3), ones(2, 3)),
     name="an empty tensor")(
    function(lambda a, b: 2 * torch.cat((a, b)), lambda g, a, b: (2 * g[: len(a)], 2 * g[len(a) :]))
)  # fmt: skip


@case("gradient-wrong", "not judged: `x` (element by element, that would take long)",
      note="not-examined", inputs=lambda: (0.2 * drawn((3, 3))[0], *draw((2, 3))))  # fmt: skip
class Slow(torch.autograd.Function):
    """Both gradients are wrong; calls suffice to say it of one."""

    @staticmethod
    def forward(ctx, w, x):
        z = torch.zeros_like(x)
        for _ in range(200):
            z = torch.tanh(z @ w + x)
        ctx.save_for_backward(w, z)
        return z

    @staticmethod
    def backward(ctx, g):
        w, z = ctx.saved_tensors
        u, slope = g, 1 - z * z
        for _ in range(200):
            u = g + (u @ w.T) * slope
        return z.T @ (u * slope), u * slope


# --- what is saved in low precision ---------------------------------------------------------------


def saving(kind):
    """A copy that is saved has no second derivative."""

    class Saves(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(getattr(x, kind)())
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0].to(g.dtype)

    return Saves


def times_a_constant(kind):
    """A linear function has none to miss."""

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(getattr(w.detach(), kind)())
            return x * w.detach()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].to(g.dtype), None

    return Times


for dtype in (torch.float32, torch.float64):
    for kind in ("bfloat16", "half", "float", "clone"):
        case("double-backward-wrong", inputs=draw((3, 4), dtype=dtype),
             name=f"saves .{kind}(), {dtype}")(saving(kind))  # fmt: skip
for kind in ("bfloat16", "half"):
    case("", inputs=lambda: (*drawn((3, 4)), *draw((3, 4))), name=f"linear, saves .{kind}()")(
        times_a_constant(kind)
    )

# --- one input alone may be unfaithful ------------------------------------------------------------

Quantize = function(
    lambda x, scale: (x / scale).round() * scale,
    lambda g, x, scale: (g, (g * 2).sum()),  # the learned scale is wrong
    "Quantize",
)
for faithful, *due in ((False, ""), ({"x": False}, "gradient-wrong", "`scale`")):
    case(
        *due, faithful=faithful, name=f"faithful={faithful}", inputs=lambda: (*draw((6,)), ones())
    )(Quantize)
