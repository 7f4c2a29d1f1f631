"""What people write now, right and wrong: more rows of the table of cases."""

import functools
import math

import numpy
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.nn.utils import spectral_norm
from torch.utils.checkpoint import checkpoint

from helpers.doctor import Budget
from helpers.lessons.cases import case as cases
from helpers.lessons.cases.case import (
    Double,
    Linear,
    Multiply,
    Square,
    affine,
    draw,
    function,
    matrix,
    vector,
    with_a_slip,
)
from helpers.lessons.cases.healthy import Dropout
from helpers.lessons.cases.layers import (
    Attention,
    TemperedSoftmax,
)
from helpers.lessons.cases.paths import LearnedStep
from helpers.lessons.cases.protocol import Cube, Hadamard
from tests.common import Does

TODAY = []
case, slip, wrong = (
    functools.partial(register, cases=TODAY)
    for register in (cases.broken, cases.slip, cases.wrong)
)
# An edit of a right Function, for one whose derivatives are of the first order
ONCE = {
    "    def back": "    @torch.autograd.function.once_differentiable\n    def back"
}


def f64(*shapes):
    return lambda: draw(*shapes)


def f32(*shapes):
    return lambda: draw(*shapes, dtype=torch.float32)


# --- layouts --------------------------------------------------------------------------


def rows(t, like):
    return torch.as_strided(t, like.shape, like.stride(), t.storage_offset())


case("", matrix, name="Strided")(
    function(
        lambda x: x.sin(),
        lambda g, x: rows(g.contiguous(), g.contiguous()) * x.cos(),
    )
)


# --- control flow, subclasses, compiled code ------------------------------------------


@case("double-backward-missing", f64((3,)))  # as it is with torch 2.15
def of_cond(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


case("", f32((3,)), "at 3 points")(torch.compile(of_cond, backend="aot_eager"))


class Plain(torch.Tensor):
    pass


@case("", lambda: (torch.ones(2, 3).as_subclass(Plain).requires_grad_(),))
def of_a_subclass(x):
    return torch.sin(x)


compiled = torch.compile(lambda x, a, b: F.gelu(x @ a) @ b, backend="aot_eager")
case("", f32((3, 4), (4, 4), (4, 2)), "at 3 points")(compiled)


# --- randomness -----------------------------------------------------------------------


case("", lambda: (*vector(), 0.5), name="Noisy")(
    function(
        lambda x, scale: x * scale + torch.randn_like(x) * scale,
        lambda g, x, scale: g * scale,
    )
)


@case("gradient-wrong", f64((4, 5), (5,)))
class ForgottenMask(Function):
    @staticmethod
    def forward(ctx, x, w):
        mask = (torch.rand_like(x) > 0.5) * 2.0
        ctx.save_for_backward(x, w, mask)
        return x * mask * w

    @staticmethod
    def backward(ctx, g):
        x, w, mask = ctx.saved_tensors
        return g * w, (g * x * mask).sum(0)


slip(
    "OneMaskTwice",  # two were drawn
    Dropout,
    f64((4, 5)),
    {
        "mask = torch.rand_like(x) > 0.5": "mask, other = ("
        "(torch.rand_like(x) > 0.5) * 2.0 for _ in range(2))",
        "return x * mask": "return x * mask * other",
        "grad_output * mask": "grad_output * mask * mask",
    },
    "partly-right",
)


# --- repairs --------------------------------------------------------------------------


def halves(n, d):
    angle = torch.outer(torch.arange(n).double(), 0.5 ** torch.arange(d // 2))
    return [torch.cat([t, t], -1) for t in (angle.cos(), angle.sin())]


def turned(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


@case(
    "jacobian-transposed",
    lambda: (draw((3, 8))[0].requires_grad_(), *halves(3, 8)),
    "right if: `g * cos - turned(g) * sin`",
    line="",
)
class RoPE(Function):
    """Of which the right form needs the halves of `sin` to be equal."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return x * cos + turned(x) * sin

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return g * cos + turned(g) * sin, None, None


# --- names of what is large -----------------------------------------------------------


wrong(
    "QueryAndKey",  # of so many elements that only a sample is looked at
    "swapped gradient-zero",
    f64((20, 30), (20, 30)),
    lambda q, k: (q.flip(-1) * 3, k.flip(-1) * 3),
    lambda gq, gk, q, k: (gk.flip(-1) * 3, gq.flip(-1) * 3),
    "that of `k`",
)


# --- coincidences ---------------------------------------------------------------------


wrong(
    "GroupScale",  # a mean over a batch of two, and there are two groups
    "scaled",
    lambda: (*draw((2, 6), (6,)), 2),
    lambda x, w, groups: x * w,
    lambda g, x, w, groups: (g * w, (g * x).mean(0)),
)


# --- one finding beside another -------------------------------------------------------


slip(
    "Unrecorded",
    Square,
    vector,
    {
        "return grad_output * 2 * x": "x = x.detach().requires_grad_()\n"
        "        return torch.autograd.grad(x * x, x, grad_output)[0]"
    },
    "raised",
    "torch.enable_grad()",
)
slip(
    "ArrayOnCtx",
    Square,
    vector,
    {
        "ctx.save_for_backward(x)": "ctx.x = x.detach().numpy()",
        "(x,) = ctx.saved_tensors": "x = torch.from_numpy(ctx.x)",
    },
    "double-backward-wrong",
    "`ctx.x` is kept",
)
slip(
    "WritesPastAutograd",  # by memory that autograd does not watch, as a kernel writes
    Square,
    vector,
    {
        "ctx.save_for_backward(x)": "ctx.save_for_backward(2 * x)",
        "return grad_output * 2 * x": "grad = grad_output * x\n"
        "        x.detach().numpy().fill(0)\n"
        "        return grad",
    },
    "double-backward-wrong",
    "A tensor was changed in place",
)

# --- lines ----------------------------------------------------------------------------


slip(
    "WithALambda",
    Square,
    f64((5,)),
    {
        "return x * x": "return x**3",
        "return grad_output * 2 * x": "square = lambda t: t * t\n"
        "        return grad_output * square(x)",
    },
    "scaled",
    line="3",
)
slip(
    "ForwardSum",
    Double,
    f64((5, 2)),
    {"2 * x": "x.cumsum(0)", "2 * grad_output": "grad_output.cumsum(0)"},
    "jacobian-transposed",
    line=".flip(0).cumsum(0).flip(0)`",
)


# --- what nobody accuses, or with the hint that accepts what is meant -----------------


case(
    "",
    lambda: (matrix()[0].requires_grad_(), *draw((4,))),
    "FrozenBias: nothing found",
)(function(lambda x, b: x + b, lambda g, x, b: (g, g), "FrozenBias"))


wrong(
    "HalfMatmul",  # right in the dtype that was given
    "needs-input-grad-ignored",
    lambda: [t.bfloat16() for t in draw((8, 4), (4, 4))],
    lambda x, w: x @ w,
    lambda g, x, w: (
        (g.bfloat16() @ w.bfloat16().T).to(g.dtype),
        (x.bfloat16().T @ g.bfloat16()).to(g.dtype),
    ),
    "note (few-digits)",
)


@case("straight-through scaled gradient-zero", f64((6, 3), (4, 3)), "faithful=False")
def of_a_codebook(x, codes):
    nearest = codes[torch.cdist(x, codes).argmin(1)]
    loss = (nearest.detach() - x).square().mean() + (
        nearest - x.detach()
    ).square().mean()
    return x + (nearest - x).detach(), loss


# --- what is proposed, and what is not ------------------------------------------------


slip(
    "AskedOfNone",
    Linear,
    affine,
    {"if ctx.needs_input_grad[1]": "if any(ctx.needs_input_grad[3:])"},
    "gradient-none",
    line="grad[1]` stood in place",
)


slip(
    "StepSize",  # its own factor is what makes a step size learn slowly
    LearnedStep,
    lambda: (*draw((4, 3)), torch.tensor(0.5, dtype=torch.float64)),
    {
        "return (x / step).clamp(-4, 3)": "return (x / step)",
        "at = (x / step).clamp(-4, 3)": "slowly = 1 / (3 * x.numel()) ** 0.5",
        "        inside = (x / step == at).to(g.dtype)\n": "",
        "g * inside, (g * (at.round() - inside * x / step)).sum()": "g, "
        "(g * (x / step).round()).sum() * slowly",
    },
    "straight-through scaled",
    "multiplied by 0.167. If that is meant",
    never=("right if",),
    lines=True,
)


class NormInPlace(Function):
    @staticmethod
    def forward(ctx, x, weight):
        inverse = (x.square().mean(-1, keepdim=True) + 0.1).rsqrt()
        x.mul_(inverse)
        ctx.save_for_backward(x, weight, inverse)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight, inverse = ctx.saved_tensors
        normal, inner = x * inverse, g * weight
        along = (inner * normal).mean(-1, keepdim=True)
        return inverse * (inner - normal * along), (g * normal).sum(0)


FOLLOWS = "so what is returned for `x` and `weight` is wrong"
case("input-modified", f64((3, 4), (4,)), FOLLOWS)(NormInPlace)
case("", f64(*[(3,)] * 5), "not at more: there are more than 4 inputs")(
    lambda a, b, c, d, e: a * b * c * d * e
)


# --- one cause, one finding -----------------------------------------------------------


def squared(t):
    return torch.from_numpy(t.detach().numpy() ** 2)


@case("scaled", f64((3,)), "leaves autograd: `t.detach().numpy()` (line ", lines=True)
def through_numpy(x):
    return Multiply.apply(x, squared(x))


slip(
    "Unsummed",
    Multiply,
    f64((3, 4), (4,)),
    {"grad_output * x": "2 * grad_output * x"},
    "scaled",
    "by 2. Backward returns shape (3, 4) for `y` of shape (4,)",
    never=("(engine-sums)",),
)
case(
    "",
    lambda: (torch.tensor([[1, 2], [0, 4]]),),
    note="double-backward-refused",
    never=("once_differentiable",),
)(torch.nn.EmbeddingBag(5, 3).double())


# --- gradients that go elsewhere, too -------------------------------------------------


def trained(**kept):
    """An input, and a weight with what the program has made for it."""
    x, weight = f64((3, 4), (5, 4))()
    for name, value in kept.items():
        setattr(weight.requires_grad_(), name, torch.full_like(weight, value))
    return x.requires_grad_(), weight.requires_grad_()


@case("", trained, "`x`, `weight` at 3 points, first order")
class ToGrad(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad += g.t() @ x
        return g @ weight, None


slip(
    "ToGradThatIs",
    ToGrad,
    functools.partial(trained, grad=3.0),
    {
        "if weight.grad is None:\n"
        "            weight.grad = torch.zeros_like(weight)\n        ": ""
    },
    "",
    "`x`, `weight` at 3 points, first order",
)


Rounded = function(  # at random, as one who trains in few bits wants it
    lambda x, y: x * y,
    lambda g, x, y: (torch.floor(4 * g * y + torch.rand_like(x)) / 4, g * x),
    "Rounded",
)


RANDOM = "backward-not-deterministic"
case(
    "",
    f32((3,), (3,)),
    "not judged: `x` (it is another each time)",
    name="RoundedAsMeant",
    note=RANDOM,
    faithful={"x": False},
)(Rounded)


# --- a backward that runs once ----------------------------------------------------------


slip(
    "LetsGo",
    Square,
    f64((3,)),
    ONCE
    | {
        "ctx.save_for_backward(x)": "ctx.y = x.exp()",
        "return x * x": "return ctx.y",
        "(x,) = ctx.saved_tensors": "y = ctx.y\n        del ctx.y",
        "grad_output * 2 * x": "grad_output * y",
    },
    "reference-cycle backward-only-once",
    "Backward breaks the cycle",
)


# --- inputs that share their memory -----------------------------------------------------


@case("", f64((4, 4), (4, 4)), "at 3 points")
class LogVolume(Function):
    """Of two inputs that are the same, or of equal rows, only rounding is left."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.linalg.slogdet(x).logabsdet + (x - y + 1e-13).norm().log()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        off = x - y + 1e-13
        grad = g * off / off.norm() ** 2
        return g * torch.linalg.pinv(x).mT + grad, -grad


slip(
    "TimesInPlace",
    Multiply,
    lambda: tuple(1 * t.requires_grad_() for t in draw((3,), (3,))),
    ONCE
    | {
        "backward(x, y)": "backward(x.clone(), y); ctx.mark_dirty(x)",
        "return x * y": "return x.mul_(y)",
    },
    "",
    note="input-modified",
)


# --- in 16 bits -------------------------------------------------------------------------

SIXTEEN = torch.bfloat16, torch.float16


class OfSixteen(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        if grad_output.dtype in SIXTEEN:
            grad_output = 1.1 * grad_output
        return Multiply.backward(ctx, grad_output)


def far():
    """Logits so large that rounding takes most of a gradient."""
    q, k, v = (10 * t.bfloat16() for t in draw(*3 * [(4, 8, 32)]))
    return 5 * q, k, v, torch.zeros(8, 8).bool()


case("needs-input-grad-ignored", far, name="attention that is steep")(Attention)


def cancelled():
    """Of a gradient of `w` that is so small a sum that rounding takes a tenth of it."""
    return [t.bfloat16() for t in (*draw((12, 8)), torch.tensor(0.5))]


case("", cancelled)(
    function(lambda x, w: x * w, lambda g, x, w: (g * w, (g * x).sum()), "Gain")
)
for dtype in SIXTEEN:
    few = functools.partial(draw, (4, 8), (4, 8), dtype=dtype)
    case("low-precision", few, "of `x`", "of `y`", name=f"1.1 in {dtype}")(OfSixteen)


# --- on a manifold ----------------------------------------------------------------------


def pose():
    """Columns, and beside them, given as constants, an orthogonal matrix and a place."""
    x, a, place = draw((3, 4), (3, 3), (3, 1))
    return x.requires_grad_(), torch.cat([torch.linalg.qr(a).Q, place], -1)


def solved(x, pose):
    return torch.linalg.solve(pose[:, :3], x - pose[:, 3:])


def by_transpose(g, x, pose):
    """Takes the transpose of the matrix for its inverse."""
    turn, place = pose[:, :3], pose[:, 3:]
    grad = turn @ g
    of_turn = -grad @ (x - place).mT @ turn
    return grad, torch.cat([of_turn, -grad.sum(-1, keepdim=True)], -1)


case("", pose, "`x`, `pose` at 3 points")(function(solved, by_transpose, "Turned"))


def along(x, normal):
    return x - (x * normal).sum(-1, keepdim=True) * normal


def mirrored():
    x, normal = draw((5, 3), (5, 3))
    return x, F.normalize(normal, dim=-1)


wrong(
    "AlongTheSphere",  # the gradient of a unit vector is one along the sphere
    "term-wrong",
    mirrored,
    lambda x, normal: (x * normal).sum(-1, keepdim=True),
    lambda g, x, normal: (g * normal, g * along(x, normal)),
    "of `normal`",
    "If that is meant",
    never=("of `x`",),
)


def plane():
    x, normal, place = draw((5, 3), (5, 3), (5, 1))
    return x, torch.cat([place, F.normalize(normal, dim=-1)], -1)


wrong(
    "FromPlane",  # the same, where the unit vector is a part of each row
    "partly-right",
    plane,
    lambda x, plane: (x * plane[:, 1:]).sum(-1, keepdim=True) - plane[:, :1],
    lambda g, x, plane: (
        g * plane[:, 1:],
        g * torch.cat([-torch.ones_like(g), along(x, plane[:, 1:])], -1),
    ),
    "of `plane`",
    "If that is meant",
    never=("of `x`",),
)


# --- a module whose buffers take a step at each call --------------------------------------


def normed(*more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(spectral_norm(torch.nn.Linear(3, 4)), *more).double()


def cut(x):
    return x + x.detach()


class CutInTraining(torch.nn.BatchNorm1d):
    def forward(self, x):
        x = super().forward(x)
        return cut(x) if self.training else 2 * x


HEDGED = "warning (gradient-wrong)", "If that is meant"
for name, module in (
    ("", normed()),
    (" and a Function", normed(Does(lambda x: Multiply.apply(x, x)))),
):
    case("gradient-wrong", f64((5, 3)), *HEDGED, name=f"spectral_norm{name}")(module)
case("scaled", f64((5, 3)), "error (scaled)")(CutInTraining(3).double())
case("scaled gradient-wrong", f64((5, 3)), "error (sc", name="cut after spectral_norm")(
    normed(Does(cut))
)


# --- guarantees that no other case asks for -----------------------------------------------


def spread():
    return (torch.linspace(-8, 8, 24).double(),)


case("derivative-wrong", spread, name="an error that fades is no matter of a bound")(
    function(lambda x: x + torch.erf(x), lambda g, x: g * (1 + torch.exp(-x * x)))
)
for says, plain in (("and () in the", torch.sum), ("by one of", lambda x: (x * x, x))):
    case("reference-differs", f64((3, 4)), says, name=says, reference=plain)(
        function(lambda x: x * x, lambda g, x: 2 * g * x)
    )


def gated(x, w_gate, w_up):
    gate = x @ w_gate
    up = x @ w_up
    act = gate * torch.sigmoid(gate)
    return act * up


class GatedInNumPy(Function):
    @staticmethod
    def forward(ctx, x, w_gate, w_up):
        ctx.save_for_backward(x, w_gate, w_up)
        a, b, c = (t.detach().numpy() for t in (x, w_gate, w_up))
        gate = a @ b
        return torch.from_numpy(gate / (1 + numpy.exp(-gate)) * (a @ c))

    @staticmethod
    def backward(ctx, grad_output):
        x, w_gate, w_up = ctx.saved_tensors
        gate = x @ w_gate
        s = torch.sigmoid(gate)
        d_act = grad_output * (x @ w_up)
        d_up = grad_output * gate * s
        d_gate = d_act * (s + gate * s * (1 - s))
        return d_gate @ w_gate.mT + d_up @ w_up.mT, x.mT @ d_gate, x.mT @ d_up


WITHOUT_A_SLOPE = with_a_slip(
    GatedInNumPy, "WithoutASlope", {"(s + gate * s * (1 - s))": "s"}
)


class Gated(torch.nn.Module):
    def forward(self, x, w_gate, w_up):
        gate = x @ w_gate
        return gate * torch.sigmoid(gate) * (x @ w_up)


def wrapped(x, w_gate, w_up):
    return WITHOUT_A_SLOPE.apply(x, w_gate, w_up)


for name, fn, reference in (
    ("a function", WITHOUT_A_SLOPE, gated),
    ("a function, and a wrapper", wrapped, gated),
    ("a partial", WITHOUT_A_SLOPE, functools.partial(gated)),
    ("a module", WITHOUT_A_SLOPE, Gated()),
):
    case(
        "gradient-wrong",
        f64((4, 5), (5, 3), (5, 3)),
        name=f"WithoutASlope, beside {name}",
        first="what comes through `sigmoid` in line",
        line="`d_act * s + d_act * gate * s * (1 - s)` stood in place of `d_act * s`",
        never=("or in `s` (line 13):",),  # a line that is right reads it
        reference=reference,
    )(fn)


def single_in_numpy(x, w):
    a, b = (t.detach().float().numpy() for t in (x, w))
    return torch.from_numpy(numpy.tanh(a @ b)).to(x.dtype)


def of_single(g, x, w):
    g = g * (1 - torch.tanh(x @ w) ** 2)
    return g @ w.mT, x.mT @ g


case("needs-input-grad-ignored", f64((16, 64), (64, 32)), note="coarse-inside")(
    function(single_in_numpy, of_single, "SingleInNumPy")
)


def to_a_target(p, t):
    return ((p - t.detach()) ** 2).mean()


case("", f64((3, 4), (3, 4)), name="ToATarget", reference=to_a_target)(
    function(
        lambda p, t: ((p - t) ** 2).mean(),
        lambda g, p, t: 2 * g * (p - t.detach()) / p.numel(),
    )
)


slip(
    "HalfOfTanh",
    Square,
    f64((4, 3)),
    {
        "ctx.save_for_backward(x)": "y = torch.tanh(x)\n"
        "        ctx.save_for_backward(y)",
        "return x * x": "return y",
        "(x,)": "(y,)",
        "grad_output * 2 * x": "grad_output * y * (1 - y)",
    },
    "derivative-wrong",
    line="`(grad_output * y + grad_output)` stood in",
)


class CosineInNumPy(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        x, y = a.detach().numpy(), b.detach().numpy()
        norms = numpy.linalg.norm(x, axis=-1) * numpy.linalg.norm(y, axis=-1)
        return torch.from_numpy((x * y).sum(-1) / norms)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        na, nb = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
        cos = (a * b).sum(-1, keepdim=True) / (na * nb)
        g = g.unsqueeze(-1)
        d_a = g * (b / (na * nb) - cos * a / na**2)
        d_b = g * (a / (na * nb) - cos * b / nb**2)
        return d_a, d_b


slip(
    "CosineOfTheOther",
    CosineInNumPy,
    f64((4, 3), (4, 3)),
    {"nb**2": "na**2"},
    "term-wrong",
    line="nb ** 2",
    reference=F.cosine_similarity,
)


slip(
    "ByItsData",
    Square,
    matrix,
    {
        "ctx.save_for_backward(x)": "ctx.save_for_backward(x.clone())",
        "return x * x": "return x.data.square_().clone()",
    },
    "input-modified",
    "without telling autograd",
)


slip(
    "Counts",
    Double,
    lambda: (*draw((3, 4)), torch.zeros(3).long()),
    {
        "forward(ctx, x)": "forward(ctx, x, seen)",
        "return 2 * x": "seen += 1\n        return 2 * x",
        "2 * grad_output": "2 * grad_output, None",
    },
    "input-modified",
    "warning",
)


def symmetric():
    x, w = draw((4, 4), (4, 4))
    return x + x.mT, w


TURNED = {"grad_output * y,": "(grad_output * y).mT,"}
slip(
    "LargeSoftmax",
    TemperedSoftmax,
    lambda: (*draw((30, 40)), 1.7),
    {"y * (g - total)": "y * g"},
    "term-wrong",
    "Seen in a corner",
)
slip("OfSymmetric", Multiply, symmetric, TURNED, "transposed")


@case("gradient-zero", f64((3, 4)), line="(1 + h) + of_h")
class ReturnedAndUsed(Function):
    @staticmethod
    def forward(ctx, x):
        h = x.tanh()
        ctx.save_for_backward(h)
        return h, h * h.exp()

    @staticmethod
    def backward(ctx, of_h, g):
        (h,) = ctx.saved_tensors
        d_h = g * h.exp() * (1 + h)
        return d_h * (1 - h * h)


BrokenRule = with_a_slip(
    Hadamard, "BrokenRule", {"t if d is None": "t.none if d is None"}
)


@case("vmap-fails", f64((4, 3)), "Under vmap, `BrokenRule` fails")
def in_other_code(x):
    return BrokenRule.apply(x.sin(), x)


def of_degree_one(g, x):
    """At 0 it has slopes along each axis, and along the diagonal another than their sum."""
    a, b = x.unbind(1)
    r = x.square().sum(1)
    slopes = a**2 * (a**2 + 3 * b**2) / r**2, -2 * a**3 * b / r**2
    return g[:, None] * torch.stack(slopes, 1).nan_to_num()


AT_ZERO = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
case("", lambda: (AT_ZERO.clone().requires_grad_(),), note="kink", name="OfDegreeOne")(
    function(lambda x: (x[:, 0] ** 3 / x.square().sum(1)).nan_to_num(), of_degree_one)
)

# --- what is judged, and what is said of it -------------------------------------------

slip(
    "SetupRaises",
    Cube,
    vector,
    {"ctx.save_for_forward(*inputs)": "ctx.second = inputs[1]"},
    "raised",
    "`setup_context` raised IndexError",
)
for of_both, where in (
    (lambda a, b, x: a * b, "no other output"),  # zero where one is used alone
    (lambda a, b, x: 0 * a, "every"),
):
    case("gradient-zero", vector, where, name=f"zero for {where}")(
        function(lambda x: (x.sin(), x.cos()), of_both)
    )
KINK = torch.tensor([1.0, 0.0], dtype=torch.float64)
case("", lambda: (KINK,), "at [1], slopes -1 and 1", note="kink", name="abs")(torch.abs)
case("", f32((2, 4)), "(float32)", "(int64, no gradient)", name="largest")(
    lambda x: x.max(-1)
)
case("", matrix, "not judged: what comes through `output[0]`", name="eight bits")(
    function(
        lambda x: (x.to(torch.float8_e5m2), x * x),
        lambda of_bits, g, x: of_bits.to(x.dtype) + 2 * x * g,
    )
)
case("", lambda: (torch.zeros(3, 3),), never=("symmetric-only",), name="det of zeros")(
    torch.linalg.det
)
case("output-detached", f32((4,)), name="bits")(
    lambda x: 1.0 * x.view(torch.int32).view(x.dtype)
)


class MovesItsBuffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1)
        return x * self.mean


case("", f32((4, 3)))(MovesItsBuffer())


@case("", f64((3,)))
class Frees(Function):
    """Frees the memory of what is on ctx until backward, as FSDP does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.kept = x.sin()
        ctx.bytes = ctx.kept.untyped_storage().size()
        y = ctx.kept.clone()
        ctx.kept.untyped_storage().resize_(0)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        ctx.kept.untyped_storage().resize_(ctx.bytes)
        ctx.kept.copy_(ctx.saved_tensors[0].cos())
        result = g * ctx.kept
        ctx.kept.untyped_storage().resize_(0)
        return result


@case("", f32((2, 3)))
def checkpointed(x):
    """It is no fault of a rule for vmap."""
    return checkpoint(Cube.apply, x, use_reentrant=False)


def with_an_attribute(name):
    def inputs():
        x = torch.nn.Parameter(*f32((3,))())
        setattr(x, name, torch.ones_like(x))
        return (x,)

    return inputs


slip(
    "DeletesAnAttribute",  # what an optimizer reads is done with
    Square,
    with_an_attribute("main_grad"),
    {"return grad_output": "del x.main_grad; return grad_output"},
    "",
    "at 3 points",
)
slip(
    "SavesAnAttribute",
    Square,
    with_an_attribute("mask"),
    {
        "backward(x)": "backward(x, x.mask)",
        "return x * x": "return x * x * x.mask",
        "(x,)": "x, mask",
        "2 * x": "2 * x * mask",
    },
    "",
)
InItsDtype = with_a_slip(  # right in float32, where `float` returns the argument itself
    Square,
    "InItsDtype",
    {
        "return x * x": "ctx.needed = x.float().requires_grad\n        return x * x",
        "2 * x": "2 * x if ctx.needed else None",
    },
)
case("", f32((3,)), name="in float32")(InItsDtype)
ForParameters = with_a_slip(
    Square,
    "ForParameters",
    {
        "return x * x": "ctx.is_one = isinstance(x, torch.nn.Parameter)\n"
        "        return x * x",
        "2 * x": "(3 if ctx.is_one else 2) * x",
    },
)
case("", lambda: (f32((3,))()[0].requires_grad_(),), name="a leaf")(ForParameters)


# --- loops, changes in place, and what is saved ---------------------------------------


@case("double-backward-missing", f64((4, 2), (4, 2), (4, 2)), never=("has been saved",))
class DeltaRule(Function):
    """Right; what backward changes in place, a second derivative would need."""

    @staticmethod
    def forward(ctx, q, k, v):
        state, outs, errors = v.new_zeros(v.shape[1], k.shape[1]), [], []
        states = [state]
        for t in range(len(k)):
            error = v[t] - state @ k[t]
            state = state + torch.outer(error, k[t])
            states.append(state)
            errors.append(error)
            outs.append(state @ q[t])
        ctx.save_for_backward(q, k, torch.stack(states), torch.stack(errors))
        return torch.stack(outs)

    @staticmethod
    def backward(ctx, g):
        q, k, states, errors = ctx.saved_tensors
        gq, gk, gv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(g)
        gs = torch.zeros_like(states[0])
        for t in reversed(range(len(k))):
            gq[t] = states[t + 1].mT @ g[t]
            gs.add_(torch.outer(g[t], q[t]))
            gv[t] = gs @ k[t]
            gk[t] = gs.mT @ errors[t]
            gk[t] -= states[t].mT @ gv[t]
            gs.sub_(torch.outer(gv[t], k[t]))
        return gq, gk, gv


slip(
    "DeltaRuleWithoutError",
    DeltaRule,
    f64((4, 2), (4, 2), (4, 2)),
    {"            gk[t] -= states[t].mT @ gv[t]\n": ""},
    "partly-right",
    never=("indices",),
    first="what comes through line 9, `error = v[t] - state @ k[t]` is missing",
)


@case("gradient-wrong", f64((3, 4)), first="wrong here, or in `slopes` (line")
class Chebyshev(Function):
    """The wrong line appends to a list."""

    @staticmethod
    def forward(ctx, x):
        terms = [torch.ones_like(x), x]
        for _ in range(2):
            terms.append(2 * x * terms[-1] - terms[-2])
        ctx.save_for_backward(x, *terms)
        y = torch.stack(terms)
        return y.cos()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, *terms = ctx.saved_tensors
        d_y = -g * torch.stack(terms).sin()
        slopes = [torch.zeros_like(x), torch.ones_like(x)]
        for _ in terms[2:]:
            slopes.append(2 * x * slopes[-1] - slopes[-2])
        d_x = (d_y * torch.stack(slopes)).sum(0)
        return d_x


@case(
    "scaled",
    lambda: (draw((3, 3))[0] + draw((3, 3))[0].mT, *draw((3, 3))),
    line="right for inputs like these, if",
)
class Covariance(Function):
    """All points have a symmetric first argument, as the one that is given."""

    @staticmethod
    def forward(ctx, P, H):  # noqa: N803
        ctx.save_for_backward(P, H)
        return H @ P

    @staticmethod
    def backward(ctx, g):
        P, H = ctx.saved_tensors  # noqa: N806
        return H.mT @ g, 2 * g @ P


@case("double-backward-wrong", f64((4, 6)), "look at: `a` and `b` (line")
class HalvesSaved(Function):
    """A view that forward makes of its input is a constant, too."""

    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return torch.cat([grad_output * b, grad_output * a], -1)


# --- a size, a mask or a line that is nearly the right one -----------------------------


@case(
    "scaled partly-right", f64((5,), (3,), (3,)), line="`both.imag * 2` stood in place"
)
class HalfSpectrum(Function):
    """All bins but the first stand for two."""

    @staticmethod
    def forward(ctx, x, im, re):
        ctx.save_for_backward(x, im, re)
        return torch.fft.irfft(torch.fft.rfft(x) * torch.complex(re, im), n=len(x))

    @staticmethod
    def backward(ctx, g):
        x, im, re = ctx.saved_tensors
        spectrum = torch.fft.rfft(g) / len(x)
        both = torch.fft.rfft(x).conj() * spectrum
        back = torch.fft.irfft(spectrum * torch.complex(re, -im), n=len(x))
        return back * len(x), both.imag, both.real


@case(
    "partly-right",
    f64((6, 3), (3, 3)),
    line="`grad_scores.sum(1)` stood in place of `grad_scores.sum(0)`",
)
class Partition(Function):
    """In each run of the loop, the gradient of the last `alpha`, which is right once."""

    @staticmethod
    def forward(ctx, emissions, moves):
        alpha = emissions[0] * 2
        alphas = [alpha]
        for emission in emissions[1:]:
            alpha = (alpha[:, None] + moves).logsumexp(0) + emission
            alphas.append(alpha)
        ctx.save_for_backward(torch.stack(alphas), moves)
        return alpha.logsumexp(0)

    @staticmethod
    def backward(ctx, g):
        alphas, moves = ctx.saved_tensors
        grad_emissions = torch.zeros_like(alphas)
        grad_moves = torch.zeros_like(moves)
        grad_alpha = g * alphas[-1].softmax(0)
        for t in range(len(alphas) - 1, 0, -1):
            grad_emissions[t] = grad_alpha
            grad_scores = (alphas[t - 1][:, None] + moves).softmax(0) * grad_alpha
            grad_moves += grad_scores
            grad_alpha = grad_scores.sum(0)
        grad_emissions[0] = grad_alpha * 2
        return grad_emissions, grad_moves


@case(
    "gradient-wrong",
    f64((5, 3)),
    first="first wrong: `force` (line",
)
class Springs(Function):
    """A local whose name does not say whose gradient it is, before one whose does."""

    @staticmethod
    def forward(ctx, pos):
        left, right = pos[:-1], pos[1:]
        diff = left - right
        length = diff.norm(dim=1)
        ctx.save_for_backward(diff, length)
        return (length - 1).square().sum()

    @staticmethod
    def backward(ctx, g):
        diff, length = ctx.saved_tensors
        force = (2 * g * (length - 1))[:, None] * diff
        grad_pos = torch.cat([force, -force[:1]])
        grad_pos[1:-1] -= force[:-1]
        grad_pos[-1] = -force[-1]
        return grad_pos


slip(
    "Warmed",  # of a single number, a factor would say nothing
    Multiply,
    f64((4, 3), ()),
    {
        "return x * y": "return x * y.exp()",
        "grad_output * y": "grad_output * y.exp()",
        "grad_output * x": "(grad_output * x).sum()",
    },
    "gradient-wrong",
    line="`(grad_output * x).sum() * y.exp()` stood in",
)


# -2 is one constant, so that what is proposed holds for other ranks.
slip(
    "OverTheQueries",
    TemperedSoftmax,
    lambda: (*draw((2, 4, 3)), 1.7),
    {"sum(-1": "sum(-2"},
    "gradient-wrong",
    line="`(g * y).sum(-1, keepdim=True)` stood in place",
)


@case(
    "partly-right",
    f64((4,)),
    first="wrong here, or in `e` (line",
    never=("is the gradient of `total`",),
)
class Decayed(Function):
    """`e` is right in the line that begins it, and the loop that fills it is wrong."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        inside = x.square().sin()
        total = x.new_zeros(len(x) + 1)
        for t in range(len(x)):
            total[t + 1] = total[t].clone().cos() + inside[t]
        return total[-1] * 1

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        total = x.new_zeros(len(x) + 1)
        for t in range(len(x)):
            total[t + 1] = total[t].cos() + x[t].square().sin()
        e = torch.zeros_like(total)
        e[-1] = g
        for t in range(len(x) - 1, 0, -1):
            e[t] = e[t] - e[t + 1] * (total[t + 1] + 2).tan()
        d_inside = 1 * e[1:]
        return 2 * d_inside * x.square().cos() * x


@case("gradient-wrong", f64((4, 3), (3, 3)), first="`mm` in run 1 of line")
class ButTheFirst(Function):
    """Backward's loop leaves out the first run of forward's."""

    @staticmethod
    def forward(ctx, x, w):
        h, states = torch.zeros_like(x[:1]), []
        for t in range(len(x)):
            h = torch.tanh(x[t : t + 1] @ w + 0.5 * h)
            states.append(h)
        ctx.save_for_backward(x, w, torch.cat(states))
        return h

    @staticmethod
    def backward(ctx, g):
        x, w, states = ctx.saved_tensors
        d_h, d_x, d_w = g, torch.zeros_like(x), torch.zeros_like(w)
        for t in range(len(x) - 1, 0, -1):
            d_z = d_h * (1 - states[t : t + 1] ** 2)
            d_w += x[t : t + 1].T @ d_z
            d_x[t : t + 1] = d_z @ w.T
            d_h = 0.5 * d_z
        d_z = d_h * (1 - states[:1] ** 2)
        d_x[:1] = d_z @ w.T
        return d_x, d_w


@case("", f64((6, 3), (3, 3)))
class AllPaths(Function):
    """The logarithm of a sum over all paths, as in a CRF."""

    @staticmethod
    def forward(ctx, emit, trans):
        alphas = [emit[0]]
        for t in range(1, len(emit)):
            alphas.append(emit[t] + torch.logsumexp(alphas[-1][:, None] + trans, 0))
        logz = torch.logsumexp(alphas[-1], 0)
        ctx.save_for_backward(emit, trans, torch.stack(alphas), logz)
        return logz

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        emit, trans, alpha, logz = ctx.saved_tensors
        d_emit, d_trans = torch.zeros_like(emit), torch.zeros_like(trans)
        d_alpha = g * torch.exp(alpha[-1] - logz)
        for t in range(len(emit) - 1, 0, -1):
            d_emit[t] = d_alpha
            lse = alpha[t] - emit[t]
            d_pair = torch.exp(alpha[t - 1][:, None] + trans - lse) * d_alpha
            d_trans += d_pair
            d_alpha = d_pair.sum(1)
        d_emit[0] = d_alpha
        return d_emit, d_trans


@case(
    "grad-output-modified factor-wrong",
    f64((3, 4), (4,)),
    "`g.mul(scale.exp())` stood in place",
    lines=True,
)
class ChangedAndRead(Function):
    """The gradient of `scale` is wrong for this reason, too."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x.sin() * scale.exp()

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        d_sin = g.mul_(scale.exp())
        return d_sin * x.cos(), (g * x.sin() * scale.exp()).sum(0)


@case("gradient-wrong", f64((4,), (4, 4)), first="through `diagonal` in line")
class LogLikelihood(Function):
    """What is missing is one of two terms of a line."""

    @staticmethod
    def forward(ctx, y, root):
        full = root @ root.mT + torch.eye(len(y), dtype=y.dtype)
        chol = torch.linalg.cholesky(full)
        a = torch.cholesky_solve(y[:, None], chol)[:, 0]
        ctx.save_for_backward(root, a)
        return 0.5 * (y @ a) + chol.diagonal().log().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        root, a = ctx.saved_tensors
        d_full = 0.5 * g * -torch.outer(a, a)
        return g * a, 2 * d_full @ root


class Levels(Function):
    """In decibels; the gain is clamped."""

    @staticmethod
    def forward(ctx, x, gain, limit):
        bounded = gain.clamp(-limit, limit)
        scaled = bounded[:, None] * x
        power = scaled.square().sum(-1)
        ctx.save_for_backward(x, gain, bounded, scaled, power)
        ctx.limit = limit
        return 10 * torch.log10(power)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, gain, bounded, scaled, power = ctx.saved_tensors
        d_scaled = 20 * scaled * (g / math.log(10) / power)[:, None]
        d_gain = (d_scaled * x).sum(-1) * (gain.abs() <= ctx.limit)
        return d_scaled * bounded[:, None], d_gain, None


for name, old, new, code, right in (
    ("LevelsInBels", "g / math.log(10)", "g", "scaled", "/ math.log(10)"),
    (
        "LevelsUnmasked",
        " * (gain.abs() <= ctx.limit)",
        "",
        "partly-right",
        "(gain.abs() <= ctx.limit)`",
    ),
    (
        "LevelsAcross",
        "bounded[:, None], d",
        "bounded[None, :], d",
        "partly-right",
        "`bounded[:, None]` stood",
    ),
):
    levels = {old: new}
    slip(name, Levels, lambda: (*draw((4, 4), (4,)), 0.5), levels, code, line=right)


@case(
    "gradient-wrong",
    f64((6, 40), (6, 40)),
    "look at: what is said of `x` first",
    first="or in `share` (line",
)
class Recomputed(Function):
    """What is computed anew in backward is no constant, though one point is looked at."""

    @staticmethod
    def forward(ctx, x, v):
        n = x.shape[1]
        hidden = torch.ones(n, n).triu(1).bool()
        scores = (x.mT @ x).masked_fill(hidden, -math.inf)
        logsumexp = torch.logaddexp(scores.logsumexp(-1, keepdim=True), torch.zeros(1))
        ctx.save_for_backward(x, v, scores, logsumexp)
        return torch.exp(scores - logsumexp) @ v.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, v, scores, logsumexp = ctx.saved_tensors
        share = scores.softmax(-1)
        d_p = g @ v
        d_scores = share * (d_p - (share * d_p).sum(-1, keepdim=True))
        return x @ (d_scores + d_scores.mT), (share.mT @ g).mT


@case("gradient-wrong few-digits", lambda: draw((4, 3), (3, 2), seed=2))
class NearlyGelu(Function):
    """It is wrong by so little that at the given point only the elements show it."""

    @staticmethod
    def forward(ctx, x, w):
        h = x @ w
        ctx.save_for_backward(x, w, h)
        return F.gelu(h)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w, h = ctx.saved_tensors
        with torch.enable_grad():
            z = h.detach().requires_grad_()
            (d,) = torch.autograd.grad(F.gelu(z, approximate="tanh"), z, g)
        return d @ w.mT, x.mT @ d


@case(
    "derivative-wrong",
    lambda: draw((5,), (5,), positive=True),
    first="through `z * z / df` in line",
)
class StudentT(Function):
    """Of several operations of one kind in a line, that is named which is missing."""

    @staticmethod
    def forward(ctx, z, df):
        ctx.save_for_backward(z, df)
        return 0.5 * torch.log(df / 2) + (df + 1) / 2 * torch.log1p(z * z / df)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, df = ctx.saved_tensors
        d_z = g * (df + 1) * z / (df + z * z)
        d_df = 0.5 * (1 / df + torch.log1p(z * z / df))
        return d_z, g * d_df


@case("partly-right", lambda: (4 * draw((4, 3))[0],), line="(x >= -5)` stood")
class BetweenNumbers(Function):
    """The bounds are numbers in the code."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-5, 2).exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(-5, 2).exp() * (x <= 2)


# `d_tp, d_fp` alone would stand twice in its line.
@case(
    "gradient-wrong",
    lambda: (*draw((4, 3)), torch.arange(12).reshape(4, 3) % 5 < 2),
    line="in (d_tp, d_fp))` stood",
)
class Overlap(Function):
    @staticmethod
    def forward(ctx, p, there):
        y = there.to(p.dtype)
        tp, fp = (p * y).sum(1), (p * (1 - y)).sum(1)
        den = tp + 0.3 * fp + 9
        ctx.save_for_backward(y, tp, den)
        return tp / den

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, tp, den = ctx.saved_tensors
        d_tp = g * (den - tp) / den**2
        d_fp = -0.3 * g * tp / den**2
        d_tp, d_fp = (t[:, None] for t in (d_tp, d_fp))
        return d_fp * y + d_tp * (1 - y), None


class Steps(Function):
    """Two unknowns that a loop moves together; `lap` is called by a name of its own."""

    @staticmethod
    def lap(a):
        out = -2 * a
        out = out + a.roll(1) + a.roll(-1)
        return out

    @staticmethod
    def forward(ctx, u, v, feed):
        states = []
        for _ in range(3):
            states.append(torch.stack([u, v]))
            u_next = u + 0.1 * (Steps.lap(u) - u * v + feed * (1 - u))
            v_next = v + 0.1 * (Steps.lap(v) + u * v - feed * v)
            u, v = u_next, v_next
        ctx.save_for_backward(feed, torch.stack(states))
        return u, v

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gv):
        (feed, states), lap = ctx.saved_tensors, Steps.lap
        d_feed = torch.zeros_like(feed)
        for u, v in states.flip(0):
            d_feed += 0.1 * ((gu * (1 - u)).sum() - (gv * v).sum())
            du = gu + 0.1 * (lap(gu) - feed * gu + (gv - gu) * v)
            dv = gv + 0.1 * (lap(gv) - feed * gv + (gv - gu) * u)
            gu, gv = du, dv
        return gu, gv, d_feed


cases.slips(
    Steps,
    f64((6,), (6,), ()),
    [
        (
            "(gu * (1 - u)).sum() - (gv * v).sum()",
            "(gu * (1 - u)).sum()",
            "gradient-wrong",
            "comes through line 16",
        ),
    ],
    due="first",
)


@case(
    "gradient-wrong",
    f64((4, 3, 2), (3, 2), (2, 2)),
    first="run 4 of 4) should be what the argument `h` is in forward",
)
class KeptButTheFirst(Function):
    @staticmethod
    def forward(ctx, x, h, w):
        kept = []
        for t in range(len(x)):
            h = torch.tanh(x[t] + h @ w)
            kept.append(h)
        ctx.save_for_backward(w, torch.stack(kept))
        return h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        w, kept = ctx.saved_tensors
        d_x, d_w = torch.zeros_like(kept), torch.zeros_like(w)
        for t in reversed(range(len(kept))):
            last = kept[t - 1] if t else kept[0]
            d_x[t] = d_z = grad * (1 - kept[t] ** 2)
            d_w = d_w + last.T @ d_z
            grad = d_z @ w.T
        return d_x, grad, d_w


@case(
    "partly-right",
    lambda: (*draw((2, 3), (2, 3), (2, 3)), torch.tensor([-0.5, 0.5]).double(), 0.1),
    line="`d_scale * (log_scale <= ctx.cap)` stood",
)
class Capped(Function):
    """The mask that is missing comes after many others that are at hand."""

    @staticmethod
    def forward(ctx, q, k, v, log_scale, cap):
        scale = log_scale.clamp(max=cap).exp()[:, None]
        ctx.save_for_backward(q, k, v, log_scale, scale)
        ctx.cap = cap
        return q * k * v * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, log_scale, scale = ctx.saved_tensors
        qk, kv, qv = q * k, k * v, q * v
        by_q, by_k, by_v = g * kv * scale, g * qv * scale, g * qk * scale
        d_scale = (g * qk * v * scale).sum(1)
        d_log_scale = d_scale
        return by_q, by_k, by_v, d_log_scale, None


@case(
    "partly-right",
    lambda: (*draw((5, 3)), torch.tensor([0, 1, 1, 1, 2])),
    line="`d.index_put_((i[:-1], i[1:]), -ones, accumulate=True)` stood",
)
class Transitions(Function):
    """What is taken away at an index that occurs twice counts once."""

    @staticmethod
    def forward(ctx, x, i):
        ctx.save_for_backward(x, i)
        return x.exp().sum() - x[i[:-1], i[1:]].sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, i = ctx.saved_tensors
        d, ones = g * x.exp(), g.expand(len(i) - 1)
        d[i[:-1], i[1:]] -= ones
        return d, None


class Excited(Function):
    """A loop of many runs uses `times` twice in a line; `carry` starts at zero."""

    @staticmethod
    def forward(ctx, times, beta):
        state = torch.zeros_like(beta)
        states = [state]
        for i in range(1, len(times)):
            state = torch.exp(-beta * (times[i] - times[i - 1])) * (1 + state)
            states.append(state)
        states = torch.stack(states)
        ctx.save_for_backward(times, beta, states)
        return states.log1p()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        times, beta, states = ctx.saved_tensors
        d_states = grad / (1 + states)
        d_times, d_beta = torch.zeros_like(times), torch.zeros_like(beta)
        carry = torch.zeros_like(beta)
        for i in range(len(times) - 1, 0, -1):
            gap = times[i] - times[i - 1]
            d_state = carry + d_states[i]
            d_beta = d_beta - d_state * gap * states[i]
            d_gap = -d_state * beta * states[i]
            d_times[i] += d_gap
            d_times[i - 1] -= d_gap
            carry = d_state * torch.exp(-beta * gap)
        return d_times, d_beta


cases.slips(
    Excited,
    lambda: (draw((9,), positive=True)[0].cumsum(0), *draw((), positive=True)),
    [
        (
            "            d_times[i - 1] -= d_gap\n",
            "",
            "partly-right",
            "comes through `times[i - 1]` in line",
        ),
        (
            "carry = d_state * torch.exp(-beta * gap)",
            "carry = d_states[i] * (1 + carry.tan()) * torch.exp(-beta * gap)",
            "not-linear",
            "`carry` (line",
        ),
    ],
    due="first",
)


@case(
    "partly-right",
    lambda: (*draw((5, 4)), torch.tensor([0, 1, 2]), torch.tensor([1, 3, 4])),
    first="what comes through line",
)
class BothEnds(Function):
    """One step makes both names of a line, so that no path goes through one of them only."""

    @staticmethod
    def forward(ctx, x, i, j):
        a, b = x[i].chunk(2, dim=-1)
        c, d = x[j].chunk(2, dim=-1)
        ctx.save_for_backward(x, i, j)
        return torch.sin(a * c + b * d)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, i, j = ctx.saved_tensors
        (a, b), (c, d) = x[i].chunk(2, dim=-1), x[j].chunk(2, dim=-1)
        inner = g * torch.cos(a * c + b * d)
        d_x = torch.zeros_like(x)
        d_x.index_add_(0, i, torch.cat([inner * c, inner * d], dim=-1))
        return d_x, None, None


@case(
    "gradient-zero",
    f64((4, 3)),
    first="what comes through `sum` in line",
    never=("`cols` (line",),
)
class AlsoReturned(Function):
    """`maps` is returned, too, so that not all of that line is missing; sizes say nothing."""

    @staticmethod
    def forward(ctx, x):
        maps = x.sin()
        ctx.save_for_backward(x)
        return maps, maps.sum(-1)

    @staticmethod
    def backward(ctx, g_maps, g_pool):
        (x,) = ctx.saved_tensors
        rows, cols = x.shape
        d_maps = torch.tanh(0 * g_maps) + g_maps
        return d_maps * x.cos() * torch.ones(rows, 1, dtype=x.dtype)


class Rollout(Function):
    """Two states in one line of a loop, whose gradients arrive at each step, too."""

    @staticmethod
    def forward(ctx, state, force, k):
        p, v = state.unbind(0)
        kept = [state]
        for f in force:
            p, v = p + 0.3 * torch.sin(p + k * v), 0.9 * v + 0.3 * f
            kept.append(torch.stack([p, v]))
        kept = torch.stack(kept)
        ctx.save_for_backward(kept, k)
        return 1 * kept[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        kept, k = ctx.saved_tensors
        lp = lv = torch.zeros_like(k)
        d_force, d_k = torch.zeros_like(grad[:, 0]), torch.zeros_like(k)
        for t in reversed(range(len(grad))):
            lp, lv = lp + grad[t, 0], lv + grad[t, 1]
            p, v = kept[t, 0], kept[t, 1]
            inner = 0.3 * lp * torch.cos(p + k * v)
            d_force[t] = 0.3 * lv
            d_k = d_k + inner * v
            lp, lv = lp + inner, 0.9 * lv + k * inner
        return torch.stack([lp, lv]), d_force, d_k


cases.slips(
    Rollout,
    f64((2,), (6,), ()),
    [
        (
            "kept[t, 0], kept[t, 1]",
            "kept[t + 1, 0], kept[t + 1, 1]",
            "gradient-wrong",
            "in forward, and `v` (line",
        ),
        (
            "0.9 * lv + k * inner",
            "0.9 * lv",
            "contribution-lost",
            "what comes through `p` in line 9 is missing",
        ),
    ],
    due="first",
)


TABLE = [(0, 1), (1, 2)]  # of a module, which nobody changes


class Pyramid(Function):
    """Levels in a dict, in the order of a table of the module."""

    @staticmethod
    def forward(ctx, mix, fine, middle, coarse):
        given, levels = {0: fine, 1: middle, 2: coarse}, {2: coarse.tanh()}
        for level, above in reversed(TABLE):
            top = levels[above].repeat_interleave(2)
            levels[level] = given[level].tanh() + mix * top
        ctx.save_for_backward(mix, levels[0], levels[1], levels[2])
        return levels[0], levels[1]

    @staticmethod
    @once_differentiable
    def backward(ctx, g0, g1):
        mix, *levels = ctx.saved_tensors
        grads, found = {0: g0, 1: g1, 2: 0}, {}
        d_mix = torch.zeros_like(mix)
        for level, above in TABLE:
            top = levels[above].repeat_interleave(2)
            own = levels[level] - mix * top
            found[level] = grads[level] * (1 - own * own)
            pooled = grads[level].reshape(-1, 2).sum(1)
            d_mix += (pooled * levels[above]).sum()
            grads[above] = grads[above] + mix * pooled
        found[2] = grads[2] * (1 - levels[2] * levels[2])
        return d_mix, found[0], found[1], found[2]


cases.slips(
    Pyramid,
    f64((), (8,), (4,), (2,)),
    [
        (
            "grads[above] = grads[above] + mix * pooled",
            "pass",
            "gradient-wrong gradient-zero",
            "`grads[1]` (line 17) holds only a part",
            "what backward returns for `middle` is wrong, too",
        ),
    ],
    due="first",
)


class Holt(Function):
    """A level and a trend in lists; no output depends on what the last step makes."""

    @staticmethod
    def forward(ctx, series, alpha, beta, level0, trend0):
        levels, trends, forecasts = [level0], [trend0], []
        for x in series:
            forecast = levels[-1] + trends[-1]
            level = alpha * x + (1 - alpha) * forecast
            trends.append(beta * (level - levels[-1]) + (1 - beta) * trends[-1])
            levels.append(level)
            forecasts.append(forecast)
        levels, trends = torch.stack(levels), torch.stack(trends)
        ctx.save_for_backward(series, alpha, beta, levels, trends)
        return torch.stack(forecasts)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        series, alpha, beta, levels, trends = ctx.saved_tensors
        d_series, d_alpha, d_beta = torch.zeros_like(series), 0, 0
        g_level, g_trend = torch.zeros_like(alpha), torch.zeros_like(alpha)
        for t in reversed(range(len(series))):
            g_level = g_level + beta * g_trend
            g_forecast = grad[t] + (1 - alpha) * g_level
            d_series[t] = alpha * g_level
            d_alpha = d_alpha + g_level * (series[t] - levels[t] - trends[t])
            d_beta = d_beta + g_trend * (levels[t + 1] - levels[t] - trends[t])
            g_level, g_trend = (
                g_forecast - beta * g_trend,
                g_forecast + (1 - beta) * g_trend,
            )
        return d_series, d_alpha, d_beta, g_level, g_trend


cases.slips(
    Holt,
    f64((5, 3), (3,), (3,), (3,), (3,)),
    [
        (
            "g_level = g_level + beta * g_trend",
            "g_level = g_level + (beta + 0.1 * alpha).sin() * g_trend",
            "gradient-wrong",
            "run 2 of 5) should be the gradient of `level` in line",
            ": 1 error",
        )
    ],
    due="first",
    lines=Budget(300),
)


@case("gradient-wrong", f64((1, 2, 4, 4), (2, 2, 3, 3)), line="`1 - y * y` stood")
class Filtered(Function):
    """Of the gradients of a convolution, PyTorch has functions: they only compute."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, padding=1).tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        y = F.conv2d(x, weight, padding=1).tanh()
        g_y = g * (1 - y)  # should be y * y
        d_x = conv2d_input(x.shape, weight, g_y, padding=1)
        return d_x, conv2d_weight(x, weight.shape, g_y, padding=1)


class Residual(Function):
    """What is carried from run to run, where forward keeps all of it in a list."""

    @staticmethod
    def forward(ctx, x, weights, others):
        states = [x]
        for w, o in zip(weights, others, strict=True):
            x = states[-1]
            states.append((x @ w @ o.T).tanh() + x)
        ctx.save_for_backward(weights, others, *states)
        return 1 * states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        weights, others, *states = ctx.saved_tensors
        d_weights, d_others = torch.zeros_like(weights), torch.zeros_like(others)
        for i in reversed(range(len(weights))):
            x, w, o = states[i], weights[i], others[i]
            inner = g * (1 - (states[i + 1] - x) ** 2)
            d_others[i] = inner.T @ (x @ w)
            low = inner @ o
            d_weights[i] = x.T @ low
            g = g + low @ w.T
        return g, d_weights, d_others


cases.slips(
    Residual,
    f64((2, 3), (3, 3, 2), (3, 3, 2)),
    [("g + low @ w.T", "low @ w.T", "gradient-wrong", "`low @ w.T + g`", ": 1 error")],
    warned="needs-input-grad-ignored",
)


class Kernel(Function):
    """Of two paths that bring the same, nobody knows which is missing."""

    @staticmethod
    def forward(ctx, x, y):
        z = x.tanh()
        apart = (z[:, None] - z[None]).square().sum(-1)
        ctx.save_for_backward(z, y, apart)
        return (y @ torch.exp(-apart) * y).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, y, apart = ctx.saved_tensors
        k = torch.exp(-apart)
        pull = -g * k * y[:, None] * y[None]
        g_apart = pull[..., None] * 2 * (z[:, None] - z[None])
        g_z = g_apart.sum(1) - g_apart.sum(0)
        return g_z * (1 - z * z), 2 * g * k @ y


cases.slips(
    Kernel,
    f64((4, 2), (4,)),
    [
        (
            "g_apart.sum(1) - g_apart.sum(0)",
            "g_apart.sum(1)",
            "scaled",
            "what comes through one `unsqueeze` in line",
        )
    ],
    due="first",
)


@case(
    "term-wrong",
    lambda: tuple(
        0.3 * x for x in draw((2, 3, 4), (3, 3), (3,), (3, 3), (3,), positive=True)
    ),
    first="what comes through the argument `pooled` of `squeeze` is missing",
    never=("is the gradient of `hidden`",),
)
class Excite(Function):
    """Where no element is below 0, what a mask makes of a gradient is that gradient."""

    @staticmethod
    def forward(ctx, x, w, b, v, c):
        ctx.save_for_backward(x, w, b, v, c)
        return x * squeeze(x.mean(2), w, b, v, c)[1][..., None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w, b, v, c = ctx.saved_tensors
        hidden, gate = squeeze(x.mean(2), w, b, v, c)
        g_up = (g * x).sum(2) * gate * (1 - gate)
        g_down = (g_up @ v) * (hidden > 0)
        d_x = g * gate[..., None]
        return d_x, g_down.T @ x.mean(2), g_down.sum(0), g_up.T @ hidden, g_up.sum(0)


def squeeze(pooled, w, b, v, c):
    hidden = torch.relu(pooled @ w.T + b)
    return hidden, torch.sigmoid(hidden @ v.T + c)


class Option(Function):
    """One change of many gradients is one finding, whatever output they go through."""

    @staticmethod
    def forward(ctx, spot, strike):
        ctx.save_for_backward(spot, strike)
        ratio = spot / strike
        return spot * ratio.sin(), strike * ratio.cos()

    @staticmethod
    @once_differentiable
    def backward(ctx, g_call, g_put):
        spot, strike = ctx.saved_tensors
        ratio = spot / strike
        g_ratio = g_call * spot * ratio.cos() - g_put * strike * ratio.sin()
        d_spot = g_call * ratio.sin() + g_ratio / strike
        return d_spot, g_put * ratio.cos() - g_ratio * ratio / strike


cases.slips(
    Option,
    lambda: draw((4,), (4,), positive=True),
    [
        (
            "g_put * strike * ratio.sin()",
            "g_call * strike * ratio.sin()",
            "derivative-wrong",
            "`g_put * strike",
            ": 1 error",
        )
    ],
)


@case(
    "gradient-wrong",
    lambda: (*draw((4, 2)), *torch.tensor([[-0.4, -0.5], [0.6, 0.7]]).double()),
    first="what comes through line",
)
class Normalized(Function):
    """Where the signs are others, the range is empty, and what is right here is wrong."""

    @staticmethod
    def forward(ctx, x, low, high):
        width = high - low
        q = (torch.minimum(torch.maximum(x, low), high) - low) / width
        ctx.save_for_backward(x, low, high, q)
        return 2 * q - 1

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, low, high, q = ctx.saved_tensors
        d_q = 2 * g / (high - low)
        below, above = x < low, x > high
        d_x = d_q * (~below & ~above)
        d_width = -(d_q * q).sum(0)
        d_high = (d_q * above).sum(0) + d_width
        d_low = (d_q * below).sum(0) - d_q.sum(0)  # less what comes through the width
        return d_x, d_low, d_high


@case(
    "scaled negated",
    f64((3,), (3,), (3,), (3,)),
    "TwoSlips: 2 errors",
    line="of `2 * g`",
)
class TwoSlips(Function):
    """Each is the cause of two wrong gradients."""

    @staticmethod
    def forward(ctx, a, b, c, d):
        ctx.save_for_backward(a, b, c, d)
        return (a * b).sin() + (c * d).exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, c, d = ctx.saved_tensors
        d_ab = 2 * g * (a * b).cos()
        d_cd = -g * (c * d).exp()
        return d_ab * b, d_ab * a, d_cd * d, d_cd * c


@case(
    "needs-input-grad-wrong",
    f64((4,), (4,)),
    "torch.autograd.grad takes no tensor that requires no gradient: `return",
    never=("enable_grad",),
)
class ByGrad(Function):
    """Of what forward is asked for, and of what it is not."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = (x * w).sin()
        return torch.autograd.grad(y, (x, w), g)
