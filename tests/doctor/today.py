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
    pair,
    vector,
    with_a_slip,
)
from helpers.lessons.cases.healthy import Dropout
from helpers.lessons.cases.layers import (
    Attention,
    Rotary,
    ScaledLinear,
    TemperedSoftmax,
)
from helpers.lessons.cases.paths import LearnedStep
from helpers.lessons.cases.protocol import Cube, Hadamard, rows_in_order
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


def dense_last(t):
    return t if t.stride(-1) == 1 else t.contiguous()


wrong(
    "DenseRows",
    "grad-output-layout",
    matrix,
    lambda x: x.sin(),
    lambda g, x: rows(dense_last(g), x.contiguous()) * x.cos(),
    "a slice of a wider tensor",
)
wrong(
    "FromTheStart",  # of the memory of grad_output, without the offset
    "grad-output-layout",
    matrix,
    lambda x: x.sin(),
    lambda g, x: torch.as_strided(g, g.shape, g.stride(), 0) * x.cos(),
    "a slice of a wider tensor",
)
wrong(
    "DenseInput",
    "input-layout",
    matrix,
    lambda x: x.sin(),
    lambda g, x: g * torch.as_strided(x, x.shape, (4, 1), x.storage_offset()).cos(),
    "The gradient of `x`",
)
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


@case("shifted", f64((2, 3, 5), (3, 4)), line="")
class CausalConv(Function):
    """A depthwise one; the slip stands in the first window."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        x = F.pad(x, (w.shape[1] - 1, 0))
        return (x.unfold(-1, w.shape[1], 1) * w[None, :, None]).sum(-1)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        k = w.shape[1]
        gw = F.pad(x, (k - 1, 0)).unfold(-1, k, 1) * g[..., None]
        wide = torch.zeros_like(F.pad(x, (k - 1, 0)))
        for j in range(k):
            wide[..., j : j + x.shape[-1]] += g * w[None, :, j, None]
        return wide[..., k - 2 : k - 2 + x.shape[-1]], gw.sum((0, 2))


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
wrong(
    "HalfAboveZero",  # by 1/2, which has nothing to do with the number of groups
    "partly-right",
    lambda: (*draw((12,)), 2),
    lambda x, groups: x.square(),
    lambda g, x, groups: g * torch.where(x > 0, x, 2 * x),
    "it is multiplied by 0.5.",
)


# --- one finding beside another -------------------------------------------------------


def tiny_weight():
    return (*f32((3, 4))(), torch.tensor([1.0, 2.0, 1e-6, 1.0]), *f32((4,))())


@case("double-backward-wrong low-precision", tiny_weight)
class NormFromOutput(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        r = x.var(-1, keepdim=True, unbiased=False).add(1e-5).rsqrt()
        n = (x - x.mean(-1, keepdim=True)) * r
        y = n * w + b
        ctx.save_for_backward(y, w, b, r)
        return y

    @staticmethod
    def backward(ctx, g):
        y, w, b, r = ctx.saved_tensors
        n, gn = (y - b) / w, g * w
        mean, along = gn.mean(-1, keepdim=True), (gn * n).mean(-1, keepdim=True)
        return r * (gn - mean - n * along), (g * n).sum(0), g.sum(0)


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
slip(
    "ScalesBoth",  # no other gradient of a right one
    Square,
    vector,
    {
        "ctx.save_for_backward(x)": "ctx.save_for_backward(2 * x)",
        "return grad_output * 2 * x": "grad = x.mul_(grad_output)\n"
        "        grad_output.zero_()\n"
        "        return grad",
    },
    "grad-output-modified saved-modified",
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
slip(
    "SumOfAll",
    TemperedSoftmax,
    lambda: (*matrix(), 1.7),
    {"(g * y).sum(-1, keepdim=True)": "(g * y).sum()"},
    "term-wrong",
    line="sum(-1, keepdim=True)`",
)


@case("shifted", lambda: (*draw((5, 2)), 0.5), line="came before")
class LeakySum(Function):
    """Of two lines in a loop, the one that should come first comes second."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.a, carry, sums = a, torch.zeros_like(x[0]), []
        for row in x:
            carry = a * carry + row
            sums.append(carry)
        return torch.stack(sums)

    @staticmethod
    def backward(ctx, g):
        carry, grads = torch.zeros_like(g[0]), []
        for t in reversed(range(len(g))):
            grads.append(carry)
            carry = ctx.a * carry + g[t]
        return torch.stack(grads[::-1]), None


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


@case("derivative-wrong", lambda: (draw((4, 3))[0].sigmoid(), 2.0), line="gamma - 1")
class FocalLoss(Function):
    """It is right divided by 1 - p, too, but where that is 0."""

    @staticmethod
    def forward(ctx, p, gamma):
        ctx.save_for_backward(p)
        ctx.gamma = gamma
        return -((1 - p) ** gamma) * p.log()

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        gamma = ctx.gamma
        slope = gamma * (1 - p).pow(gamma) * p.log()
        return g * (slope - (1 - p).pow(gamma) / p), None


@case("gradient-zero", lambda: (*draw((3, 2)), 3), never=("-W",), lines=True)
class LastRows(Function):
    """With -W for W it is right for more than one row."""

    @staticmethod
    def forward(ctx, x, W):
        T = len(x)
        ctx.sizes = T, W
        return x[max(0, T - (W - 1)) :].sum(0)

    @staticmethod
    def backward(ctx, g):
        T, W = ctx.sizes
        grad = g.new_zeros(T, *g.shape)
        for t in range(max(W, T - (W - 1)), T):
            grad[t] += g
        return grad, None


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
case(
    "in-place-leaf",
    lambda: [t.requires_grad_() for t in draw((3, 4), (4,))],
    FOLLOWS,
    name="of a leaf",
)(NormInPlace)
case(
    "negated",
    f64((3,)),
    "Through `output[1]`: The gradient of `x` is right, but negated",
)(function(lambda x: (x.sin(), x.cos()), lambda gs, gc, x: gs * x.cos() + gc * x.sin()))
case("", f64(*[(3,)] * 5), "not at more: there are more than 4 inputs")(
    lambda a, b, c, d, e: a * b * c * d * e
)
slip(
    "AsksTheOpposite",
    Linear,
    affine,
    {"if ctx.needs_input_grad[1]": "if not ctx.needs_input_grad[1]"},
    "gradient-none",
    line="`ctx.needs_input_grad[1]` stood in place",
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
    "ToGradTwice",
    ToGrad,
    trained,
    {"g.t() @ x": "2 * g.t() @ x"},
    "scaled",
)
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


@case(
    "needs-input-grad-ignored",
    functools.partial(trained, main_grad=0.0),
    "first and second order",
)
class ToBoth(ToGrad):
    """Returns the gradient, and keeps its sum and that of its squares."""

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad = g.t() @ x
        weight.main_grad += grad.detach() + grad.detach() ** 2
        return g @ weight, grad


Rounded = function(  # at random, as one who trains in few bits wants it
    lambda x, y: x * y,
    lambda g, x, y: (torch.floor(4 * g * y + torch.rand_like(x)) / 4, g * x),
    "Rounded",
)


RANDOM = "backward-not-deterministic"
case(RANDOM, f64((3,), (3,)))(Rounded)
case(
    "",
    f32((3,), (3,)),
    "not judged: `x` (it is another each time)",
    name="RoundedAsMeant",
    note=RANDOM,
    faithful={"x": False},
)(Rounded)
case(RANDOM, f32((3,), (3,)), name="OtherMeant", faithful={"y": False})(Rounded)


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
slip(
    "Pops",
    Multiply,
    pair,
    {
        "ctx.save_for_backward(x, y)": "ctx.factors = [x, y]",
        "x, y = ctx.saved_tensors": "of_y = grad_output * ctx.factors.pop(0)",
        "grad_output * y, grad_output * x": "grad_output * ctx.factors.pop(), of_y",
    },
    "tensor-on-ctx backward-only-once",
    "at 3 points",
)


# --- inputs that share their memory -----------------------------------------------------


@case("input-layout", f64((3, 4), (3, 4)), "one and the same tensor")
class ByAddress(Multiply):
    """Takes what lies at one address for one input."""

    @staticmethod
    def backward(ctx, grad_output):
        (x, y), grads = ctx.saved_tensors, {}
        for t, other in ((x, y), (y, x)):
            grads[t.data_ptr()] = grads.get(t.data_ptr(), 0) + grad_output * other
        return grads[x.data_ptr()], grads[y.data_ptr()]


slip(
    "RowByRow",  # lays its gradient out as the input, whose rows may lie in one place
    Square,
    matrix,
    {
        "return grad_output * 2 * x": "grad = torch.empty_strided("
        "x.shape, x.stride(), dtype=x.dtype)\n"
        "        for k, row in enumerate(grad_output * 2 * x):\n"
        "            grad[k] = row\n"
        "        return grad"
    },
    "input-layout",
    "an expanded view of one row",
)


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


# --- what several wrong gradients go through ------------------------------------------


def labelled():
    return *draw((6, 3), (5, 3)), torch.tensor([1, -1, 4, -1, 2, 0])


THROUGH = "all that is wrong goes through `d_y` (line"


@case(
    "partly-right gradient-wrong",
    labelled,
    THROUGH,
    never=("`rows` (line", "`d_x` (line"),
    lines=True,
)
class EachHalf(Function):
    """Backward forgets which rows have no label."""

    @staticmethod
    def forward(ctx, x, w, label):
        ctx.save_for_backward(x, w, label)
        total = x.new_zeros(())
        for start in (0, 3):
            rows = slice(start, start + 3)
            y = x[rows] @ w.T
            total = total + (y.logsumexp(-1) * (label[rows] >= 0)).sum()
        return total

    @staticmethod
    def backward(ctx, g):
        x, w, label = ctx.saved_tensors
        d_x, d_w = [], torch.zeros_like(w)
        for start in (0, 3):
            rows = slice(start, start + 3)
            y = x[rows] @ w.T
            d_y = g * y.softmax(-1)
            d_x.append(d_y @ w)
            d_w = d_w + d_y.T @ x[rows]
        return torch.cat(d_x), d_w, None


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


def along_the_group(g, x, pose):
    grad, of_pose = by_transpose(g, x, pose)
    turn, of_turn = pose[:, :3], of_pose[:, :3]
    along = turn.mT @ of_turn
    along = turn @ (along - along.mT) / 2
    return grad, torch.cat([along, of_pose[:, 3:]], -1)


case("", pose, "`x`, `pose` at 3 points")(function(solved, by_transpose, "Turned"))
wrong(
    "TurnedAlongTheGroup",
    "partly-right",
    pose,
    solved,
    along_the_group,
    "of `pose`",
    "If that is meant",
    never=("of `x`",),
)


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


@case("gradient-wrong", f64((3, 4), (5, 4), ()), first="through line", name="OneNumber")
class SoftCap(Function):
    """A single number that is used twice."""

    @staticmethod
    def forward(ctx, q, k, cap):
        ctx.save_for_backward(q, k, cap)
        scores = q @ k.mT
        squeezed = torch.tanh(scores / cap)
        return cap * squeezed

    @staticmethod
    def backward(ctx, grad_output):
        q, k, cap = ctx.saved_tensors
        squeezed = torch.tanh(q @ k.mT / cap)
        d_cap = (grad_output * squeezed).sum()
        d_scores = grad_output * (1 - squeezed**2)
        return d_scores @ k, d_scores.mT @ q, d_cap


def capped(q, k, v):
    raw = q @ k.mT
    weights = 2 * torch.tanh(raw / 2)
    return weights @ v


@case(
    "gradient-wrong",
    f64((3, 4), (5, 4), (5, 2)),
    first="first wrong: `d_scores` (line ",
    reference=capped,
)
class CappedInNumPy(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        a, b, c = (t.detach().numpy() for t in (q, k, v))
        return torch.from_numpy(2 * numpy.tanh(a @ b.T / 2) @ c)

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        weights = 2 * torch.tanh(q @ k.mT / 2)
        d_weights = g @ v.mT
        d_scores = d_weights.clone()
        return d_scores @ k, d_scores.mT @ q, weights.mT @ g


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
    "OnlyWithTheOther",
    ScaledLinear,
    lambda: (*affine(), 2.5),
    {"gx = gweight = gbias = None": "gweight = gbias = None"},
    "needs-input-grad-wrong",
    "fails with `weight` as the only",
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


wrong(
    "HuberOfTwo",
    "partly-right",
    lambda: (*draw((6, 4), (6, 4)), 0.8),
    lambda x, y, beta: F.huber_loss(x, y, reduction="none", delta=beta),
    lambda g, x, y, beta: (g * (x - y), g * (y - x)),
    "of `x` - `y`",
)
wrong(
    "Folded",  # its batch and its heads change places; backward folds them as they come
    "transposed",
    f64((2, 3, 4)),
    lambda x: x.transpose(0, 1).reshape(6, 4).clone(),
    lambda g, x: g.reshape(2, 3, 4),
    "permuted by permute",
)
wrong(
    "RowsOfRows",
    "grad-output-layout",
    f64((2, 3, 4)),
    lambda x: 2 * x,
    lambda g, x: 2 * rows_in_order(g),
    "transposed in its first two dimensions",
)


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
case("gradient-none", f64((3,)), name="in float64")(InItsDtype)
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
case("scaled", lambda: (torch.nn.Parameter(*f32((3,))()),), name="a parameter")(
    ForParameters
)


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


@case(
    "right-only-for-ones", f64((4, 2), (2,)), line="`x[i]` stood in place of `x[i - 1]`"
)
class ByRows(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.stack([row * w for row in x])

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        grad_w = torch.zeros_like(w)
        for i, row in enumerate(grad_output):
            grad_w = grad_w + row * x[i - 1]
        return grad_output * w, grad_w


@case(
    "derivative-wrong",
    f64((2, 3), (2, 3)),
    never=("look at this line itself",),
    first="run 2 of 2) should be the gradient of `f`",
)
class Alternating(Function):
    """What is left of `df` in the run before goes into the sum of the next."""

    @staticmethod
    def forward(ctx, a, b):
        f, g = torch.zeros_like(a), torch.zeros_like(b)
        seen = []
        for _ in range(2):
            f = a * g.cos()
            seen += f, g
            g = b * f.sin()
        ctx.save_for_backward(a, b, *seen)
        return f, g

    @staticmethod
    @once_differentiable
    def backward(ctx, df, dg):
        a, b, *seen = ctx.saved_tensors
        da, db = torch.zeros_like(b), torch.zeros_like(b)
        for t in (2, 0):
            f, g = seen[t], seen[t + 1]
            db = db + dg * f.sin()
            df = df + dg * b * f.cos()
            da = da + df * g.cos()
            dg = -df * a * g.sin()
        return da, db


@case(
    "gradient-wrong",
    lambda: (torch.polar(*draw((3, 4), (3, 4))),),
    first="wrong here, or in `d_wave` (line",
)
class Intensity(Function):
    """The wrong line is real, and stands two lines before the first that is complex."""

    @staticmethod
    def forward(ctx, field):
        wave = torch.fft.fft(field)
        ctx.save_for_backward(wave)
        return wave.real**2 + wave.imag**2

    @staticmethod
    def backward(ctx, grad_output):
        (wave,) = ctx.saved_tensors
        d_wave = 2 * grad_output * wave.real
        d_spectrum = d_wave * wave.shape[-1]
        d_field = torch.fft.ifft(d_spectrum)
        return d_field


@case(
    "partly-right",
    lambda: (*draw((3, 2), (2,)), 2),
    first="is not what forward has as `at` in line",
)
class Waves(Function):
    """What is wrong is a constant of forward, which has no gradient."""

    @staticmethod
    def forward(ctx, x, f, start):
        at = torch.arange(3, dtype=x.dtype).add(start).sqrt()
        ctx.save_for_backward(x, f)
        return x * (at[:, None] * f).cos()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, f = ctx.saved_tensors
        at = torch.arange(3, dtype=x.dtype)
        angle = at[:, None] * f
        return g * angle.cos(), (-g * x * angle.sin() * at[:, None]).sum(0), None


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
    "partly-right",
    f64((4,), (4,)),
    first="wrong here, or in `d_x` (line",
)
class Interleaved(Function):
    """One of two lines that fill is wrong, and the last is right."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        y = (x * w).exp()
        d_x = torch.empty_like(x)
        d_x[::2] = (g * w.exp() * y.sin())[::2]
        d_x[1::2] = (g * y * w)[1::2]
        return d_x, g * y * x


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


@case("partly-right", f64((6,), (6,)), first="`active` (line")
class Clipped(Function):
    """A mask of backward is wrong, which has no gradient and is nowhere in forward."""

    @staticmethod
    def forward(ctx, x, adv):
        ratio = x.exp()
        clipped = ratio.clamp(0.8, 1.2)
        ctx.save_for_backward(adv, ratio, clipped)
        return torch.minimum(ratio * adv, clipped * adv)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        adv, ratio, clipped = ctx.saved_tensors
        active = ratio == clipped
        d_x = torch.where(active, g * adv * ratio, 0)
        return d_x, torch.where(active, g * ratio, g * clipped)


def of_deviations(g, z, std):
    return (g - g.mean(0)) / std


@case("term-wrong", f64((5, 3)), first="wrong here, or in `of_deviations`")
class Standardized(Function):
    """The line that calls is right, and what it calls is wrong."""

    @staticmethod
    def forward(ctx, x):
        centred = x - x.mean(0)
        std = (centred**2).mean(0).sqrt()
        z = centred / std
        ctx.save_for_backward(z, std)
        return z.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, std = ctx.saved_tensors
        d_z = g * z.cos()
        d_x = of_deviations(d_z, z, std)
        return d_x


@case(
    "partly-right",
    f64((8, 4)),
    never=("look at this line itself",),
    first="first wrong: `d_x` (line",
)
class FirstRow(Function):
    """A row is never filled in: the line that made the zeros is right."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x[0].exp()
        for t in range(1, 8):
            y = 0.5 * y + x[t].sin()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        d_x = torch.zeros_like(x)
        d_y = g
        for t in range(7, 0, -1):
            d_x[t] = d_y * x[t].cos()
            d_y = 0.5 * d_y
        return d_x


@case("partly-right", f64((3, 4), (2, 2)), first="first wrong: `d_a` (line")
class Coupled(Function):
    """A part of what arrives is the whole of one use, and nobody's sum."""

    @staticmethod
    def forward(ctx, x, v):
        a, b = x.chunk(2, 1)
        ctx.save_for_backward(a, b, v)
        s = a.tanh()
        return torch.cat([a, b * s.exp() + a @ v], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, v = ctx.saved_tensors
        d_1, d_2 = g.chunk(2, 1)
        s = a.tanh()
        d_s = d_2 * b * s.exp()
        d_a = d_1 + d_s * (1 - s * s)
        d_b = d_2 * s.exp()
        return torch.cat([d_a, d_b], 1), a.mT @ d_2


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


slip(
    "HalfRotary",
    Rotary,
    lambda: (draw((3, 8))[0].requires_grad_(), *halves(3, 4)),
    {"a * cos - b * sin, b * cos - a * sin": "a * cos + b * sin, b * cos"},
    "contribution-lost",
    "look at: a term or a path that is missing",
)


@case(
    "double-backward-wrong",
    f64((4,)),
    "`saved_tensors[0]`, `rows` and `saved_tensors[2]` (line",
    "once_differentiable, which refuses",
)
class SavedUnnamed(Function):
    """Two of what it saves have no name, as what is stacked."""

    @staticmethod
    def forward(ctx, x):
        rows = x.sin()
        ctx.save_for_backward(x.cos(), rows, 1 + x.square())
        return rows.exp() * x.square()

    @staticmethod
    def backward(ctx, g):
        cos, rows, square = ctx.saved_tensors
        x2 = square - 1
        return g * rows.exp() * (cos * x2 + 2 * x2.sqrt() * rows.sign())


@case("factor-wrong", f64((3, 4), (4,)), line="`gz.mul(w)` stood in place")
class ScaledInPlace(Function):
    @staticmethod
    def forward(ctx, x, w):
        y = (x.sin() * w).exp()
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        gz = g * y
        gx = gz.mul_(w)
        slope = x.cos()
        gw = (gz * x.sin()).sum(0)
        return gx * slope, gw


@case("grad-output-partly-ignored", f64((4, 3), (3,)), line="gw.add_(g[t])")
class ReplacedInPlace(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x.sin() + w

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gw = torch.zeros_like(g[0])
        for t in range(len(g)):
            gw.copy_(g[t])
        return g * x.cos(), gw


# --- in another direction, or in another order ----------------------------------------


def spun(x):
    """Pairs of features, spun by the number of the pair."""
    a, b = x.chunk(2, -1)
    angle = torch.arange(a.shape[-1], dtype=x.dtype)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


wrong("TurnedTwice", "jacobian-transposed", f64((5, 6, 4)), spun, lambda g, x: spun(g))
wrong(
    "HeadsAsTheyLie",
    "grad-output-scaled",
    matrix,
    lambda x: x.unflatten(-1, (2, -1)).transpose(-2, -3).exp(),
    lambda g, x: g.reshape(x.shape) * x.exp(),
    "permuted by permute(1, 0, 2) and reshaped back before.",
)
wrong(
    "GroupsInAnotherOrder",
    "grad-output-scaled",
    matrix,
    lambda x: x.repeat_interleave(2, 0),
    lambda g, x: g.unflatten(0, (2, -1)).sum(0),
    "along dimension 0, transposed and joined before.",
)


# --- a size, a mask or a line that is nearly the right one -----------------------------


@case(
    "scaled",
    f64((2, 4), (2, 4), (5, 2)),
    line="`a.shape` stood in place of `b.shape`",
)
class Adapted(Function):
    """As many rows as there are in `a`."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        return x @ a.T @ b.T / a.shape[0]

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        g = g / b.shape[0]
        return g @ b @ a, (g @ b).T @ x, g.T @ (x @ a.T)


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
    "gradient-wrong",
    f64((4, 3), (4, 3), (4, 3), ()),
    line="`p * (dp - (dp * p).sum(-1, keepdim=True))` stood in place of `p * dp`",
)
class Biased(Function):
    """The cause, `ds`, not the first of the lines that follow from it."""

    @staticmethod
    def forward(ctx, q, k, v, slope):
        places = torch.arange(len(q), dtype=q.dtype)
        distance = places[:, None] - places
        scores = q @ k.T * 0.5
        biased = scores - slope * distance
        p = biased.softmax(-1)
        o = p @ v
        ctx.save_for_backward(q, k, v, p)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        places = torch.arange(len(q), dtype=q.dtype)
        distance = places[:, None] - places
        dv = p.T @ do
        dp = do @ v.T
        ds = p * dp
        dslope = -(ds * distance).sum()
        dqk = ds * 0.5
        dq = dqk @ k
        dk = dqk.T @ q
        return dq, dk, dv, dslope


@case("gradient-wrong", matrix, line="`mask.sum()` stood in place of `mask.numel()`")
class MeanWithoutTheMask(Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x.detach() > -1).to(x.dtype)
        ctx.save_for_backward(x, mask)
        return (x.square() * mask).sum() / mask.sum()

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        return 2 * x * g * mask / mask.numel()


@case(
    "gradient-wrong",
    f64((6, 4, 3), (2, 4, 3)),
    first="should be the gradient of `k`: look at this line itself, for nothing that goes",
)
class Grouped(Function):
    @staticmethod
    def forward(ctx, q, k):
        many = k.repeat_interleave(len(q) // len(k), 0)
        ctx.save_for_backward(q, k)
        return q @ many.mT

    @staticmethod
    def backward(ctx, g):
        q, k = ctx.saved_tensors
        groups = len(q) // len(k)
        grad_many = g.mT @ q
        grad_k = grad_many.view(groups, *k.shape).sum(0)
        return g @ k.repeat_interleave(groups, 0), grad_k


@case(
    "gradient-wrong",
    lambda: (draw((3, 4), positive=True)[0] / 4, *draw((4, 3))),
    first="wrong here, or in `behind` (line",
)
class Composite(Function):
    @staticmethod
    def forward(ctx, alpha, colors):
        left = torch.cumprod(1 - alpha, 1)
        before = torch.cat([torch.ones_like(left[:, :1]), left[:, :-1]], 1)
        share = alpha * before
        ctx.save_for_backward(alpha, colors, before, share)
        return share @ colors

    @staticmethod
    def backward(ctx, g):
        alpha, colors, before, share = ctx.saved_tensors
        grad_share = g @ colors.T
        behind = (grad_share * share).cumsum(1)
        grad_alpha = grad_share * before - behind / (1 - alpha)
        return grad_alpha, share.T @ g


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


@case(
    "gradient-wrong",
    f64((4, 6)),
    first="nothing that goes into it is known to be wrong",
)
class Halves(Function):
    """Elements of what arrives go into the wrong line."""

    @staticmethod
    def forward(ctx, x):
        y = x.square()
        a, b = y.chunk(2, -1)
        ctx.save_for_backward(x)
        return torch.cat([a - b * 2, b + a * 2], -1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        first, second = g.chunk(2, -1)
        grad_y = torch.cat([first - second * 2, second + first * 2], -1)
        return grad_y * 2 * x


@case(
    "gradient-wrong",
    f64((2, 3), (3, 3)),
    first="`adj` (line",
)
class Heun(Function):
    """A loop, whose variable has a name of its own in backward."""

    @staticmethod
    def forward(ctx, y, w):
        ys = []
        for _ in range(3):
            ys.append(y)
            k = torch.tanh(y @ w)
            y = y + (k + torch.tanh((y + 0.7 * k) @ w)) / 2
        ctx.save_for_backward(w, *ys)
        return y

    @staticmethod
    def backward(ctx, g):
        w, *ys = ctx.saved_tensors
        adj, grad_w = g, torch.zeros_like(w)
        for y in reversed(ys):
            k = torch.tanh(y @ w)
            middle = y + 0.7 * k
            after = adj / 2 * (1 - torch.tanh(middle @ w) ** 2)
            before = adj / 2 * (1 - k**2)
            grad_w += middle.T @ after + y.T @ before
            adj = adj + after @ w.T + before @ w.T
        return adj, grad_w


@case(
    "partly-right",
    f64((6,), (4,)),
    first="and `left` in line",
)
class Between(Function):
    """Two locals of one line, of which each has its use."""

    @staticmethod
    def forward(ctx, table, x):
        place = x.detach().abs().floor().long().clamp(max=4)
        rest = x - place
        left, right = table[place], table[place + 1]
        ctx.save_for_backward(place, rest, right - left)
        return left * (1 - rest) + right * rest + table[0]

    @staticmethod
    def backward(ctx, g):
        place, rest, slope = ctx.saved_tensors
        flat = g.new_zeros(6)
        flat[0] = g.sum()
        flat.index_add_(0, place, g * rest.exp())
        flat.index_add_(0, place + 1, g * rest)
        return flat, g * slope


@case("inner-derivative-forgotten", f64((4, 3), (3,)), line="`grad_y.sum(0)` stood")
class Shifted(Function):
    """What is bound only where `x` needs a gradient cannot stand in the last line."""

    @staticmethod
    def forward(ctx, x, shift):
        y = (x + shift).tanh()
        ctx.save_for_backward(y)
        return 3 * y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        grad_x = grad_shift = None
        grad_y = g * 3 * (1 - y**2)
        if ctx.needs_input_grad[0]:
            grad_x = grad_y
        if ctx.needs_input_grad[1]:
            grad_shift = g.sum(0)
        return grad_x, grad_shift


@case(
    "gradient-wrong",
    f64((4, 3)),
    "what is at hand and never used: `norm` (line",
    first="wrong here, or in `scale` (line",
)
class Projected(Function):
    """The line that is wrong comes before the first whose gradient is known."""

    @staticmethod
    def forward(ctx, x):
        norm = (x.square().sum(1, keepdim=True) + 1e-3).sqrt()
        y = x * norm.log()
        ctx.save_for_backward(x, norm)
        return y.sin().mul(2)

    @staticmethod
    def backward(ctx, g):
        x, norm = ctx.saved_tensors
        scale = (x.square().sum(1, keepdim=True) + 1e-3).log() / 2
        slope = 2 * (x * scale).cos() * scale.tanh()
        grad_x = g * slope
        return grad_x


def window(t):
    wide = torch.cat([t[:1], t, t[-1:]])
    return wide[:-2] + wide[1:-1] + wide[2:]


@case(
    "gradient-wrong",
    f64((5,)),
    first="comes through the argument `t` of `window` is missing",
)
class Inhibited(Function):
    @staticmethod
    def forward(ctx, x):
        denom = 1 + 0.3 * window(x * x)
        ctx.save_for_backward(denom)
        return x / denom

    @staticmethod
    def backward(ctx, g):
        (denom,) = ctx.saved_tensors
        grad_x = g / denom
        return grad_x


# -2 is one constant, so that what is proposed holds for other ranks.
slip(
    "OverTheQueries",
    TemperedSoftmax,
    lambda: (*draw((2, 4, 3)), 1.7),
    {"sum(-1": "sum(-2"},
    "gradient-wrong",
    line="`(g * y).sum(-1, keepdim=True)` stood in place",
)


slip(
    "MeanOfAVector",  # not `(grad_output @ x).mean()`, which is right for vectors only
    Multiply,
    f64((5,), ()),
    {"grad_output * x": "(grad_output * x).mean()"},
    "mean-for-sum",
    line="`(grad_output * x).sum()` stood in place",
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


slip(
    "NormalizedByAnother",  # `d_alpha` is right where it is made, and not in the loop
    AllPaths,
    f64((6, 3), (3, 3)),
    {"alpha[t] - emit[t]": "alpha[t] - emit[t - 1]"},
    "partly-right gradient-wrong",
    first="`lse` (line",
)
slip(
    "SumOfTheOthers",  # which gives back what goes in: by chance, in each run the same
    AllPaths,
    lambda: draw((6, 3), (3, 3), seed=21),
    {"d_pair.sum(1)": "d_pair.sum(0)"},
    "partly-right",
    never=("run 5 of 5) is the gradient",),
    line="d_pair.sum(1)",
)


@case("partly-right", f64((6, 3), (6, 3)), first="or in `before` (line")
class LastBeforeTheFirst(Function):
    """At t = 0, -1 is the index of the last."""

    @staticmethod
    def forward(ctx, a, x):
        decay, h, states = a.sigmoid(), torch.zeros_like(x[0]), []
        for t in range(len(x)):
            h = decay[t] * h + (1 - decay[t]) * x[t]
            states.append(h)
        hs = torch.stack(states)
        ctx.save_for_backward(decay, x, hs)
        return hs

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        decay, x, hs = ctx.saved_tensors
        d_decay, d_x, d_h = torch.zeros_like(x), torch.zeros_like(x), 0 * x[0]
        for t in reversed(range(len(x))):
            d_h = d_h + g[t]
            before = hs[t - 1]
            d_decay[t] = d_h * (before - x[t])
            d_x[t] = d_h * (1 - decay[t])
            d_h = d_h * decay[t]
        return d_decay * decay * (1 - decay), d_x


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


@case(
    "partly-right",
    lambda: (*draw((2, 9), seed=7), 0.9),
    line="`torch.abs(x) <= ctx.limit` stood in place",
)
class ClampedOnOneSide(Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * (x <= ctx.limit), None


@case(
    "sum-for-mean",
    f64((1, 4, 3, 5)),
    line="/ x.shape[-2]` stood in place",
)
class MeanOverAnArea(Function):
    """Of a batch of one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean((2, 3))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * (g[:, :, None, None] / x.shape[3])


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


@case("gradient-wrong", f64((2, 3, 6), (3, 4)), line="in place of `g * s`")
class ShortConvolution(Function):
    """Of fewer taps, the loop of forward makes fewer locals."""

    @staticmethod
    def forward(ctx, x, w):
        length, taps = x.shape[-1], w.shape[1]
        padded = F.pad(x, (taps - 1, 0))
        z = torch.zeros_like(x)
        for j in range(taps):
            z = z + padded[..., j : j + length] * w[:, j, None]
        ctx.save_for_backward(padded, w, z)
        return z * torch.sigmoid(z)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        padded, w, z = ctx.saved_tensors
        length, taps = z.shape[-1], w.shape[1]
        s = torch.sigmoid(z)
        d_z = g * s
        d_padded, d_w = torch.zeros_like(padded), torch.zeros_like(w)
        for j in range(taps):
            d_padded[..., j : j + length] += d_z * w[:, j, None]
            d_w[:, j] = (d_z * padded[..., j : j + length]).sum((0, 2))
        return d_padded[..., taps - 1 :], d_w


class SegmentSoftmax(Function):
    @staticmethod
    def forward(ctx, scores, index):
        e = scores.exp()
        w = e / torch.zeros(4, dtype=e.dtype).index_add(0, index, e)[index]
        ctx.save_for_backward(w, index)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, index = ctx.saved_tensors
        dot = torch.zeros(4, dtype=w.dtype).index_add(0, index, w * g)
        return w * (g - dot[index]), None


SEGMENTS = 0, 2, 1, 2, 0, 3, 3, 0
for name, old, new, right in (
    ("SegmentsForgotten", "(g - dot[index])", "g", "`w * (g - dot[index])` stood"),
    ("SegmentsTogether", "dot[index]", "dot.sum()", "`dot[index]` stood in place of"),
):
    given, once = (lambda: (*draw((8,)), torch.tensor(SEGMENTS))), {old: new}
    slip(name, SegmentSoftmax, given, once, "gradient-wrong", line=right)


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


class Weighted(Function):
    """Where no value is below the bound, another term would fit, too."""

    @staticmethod
    def forward(ctx, x, logit, most):
        p = logit.exp()
        s = torch.sigmoid(logit)
        w = p.clamp(max=most) / (p + 1)
        ctx.save_for_backward(x, p, s, w)
        ctx.most = most
        return w * x * s

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, p, s, w = ctx.saved_tensors
        d_s = g * w * x
        d_logit = d_s * s * (1 - s)
        d_p = g * x * s * ((p < ctx.most).to(p) - w) / (p + 1)
        return g * w * s, d_logit + d_p * p, None


slip(
    "WeightedOnce",
    Weighted,
    lambda: (*draw((5,), positive=True), *draw((5,), positive=True, seed=8), 1.1),
    {"d_logit + d_p * p": "d_logit"},
    "derivative-wrong",
    line="d_logit + d_p * p",
)


class Relative(Function):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(-1, keepdim=True) + 3
        ctx.save_for_backward(x, mean)
        return x / mean

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, mean = ctx.saved_tensors
        d_mean = -(g * x).sum(-1, keepdim=True) / mean**2
        d_x = g / mean + d_mean / x.shape[-1]
        return d_x


slip(
    "RelativeToWhat",
    Relative,
    f64((4, 6)),
    {" + d_mean / x.shape[-1]": ""},
    "term-wrong",
    line="d_mean / x.shape[-1]` stood",
)


@case("right-only-for-ones", f64((4, 3)), line="(g + g.mT) / 2")
class Gram(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x.mT

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g @ x


@case("gradient-wrong", f64((4, 3), (5, 3), (4, 5, 3)), first="`einsum` in line")
class RelativePositions(Function):
    """What an operation is made of has names that do not stand in the line."""

    @staticmethod
    def forward(ctx, q, k, place):
        ctx.save_for_backward(q, k, place)
        return q @ k.mT + torch.einsum("id,ijd->ij", q, place)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, place = ctx.saved_tensors
        d_q = g @ k
        return d_q, g.mT @ q, g[:, :, None] * q[:, None]


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
    "term-wrong",
    f64((2, 3, 2, 3), (2, 3)),
    line="`x.shape[2]` stood in place of `x.shape[1] * x.shape[2]`",
)
class Instances(Function):
    """Two dimensions have the same size by chance."""

    @staticmethod
    def forward(ctx, x, weight):
        diff = x - x.mean((2, 3), keepdim=True)
        rstd = 1 / torch.sqrt((diff**2).mean((2, 3), keepdim=True) + 1e-5)
        ctx.save_for_backward(x, diff, rstd, weight)
        return weight[:, :, None, None] * diff * rstd

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, diff, rstd, weight = ctx.saved_tensors
        n = x.shape[1] * x.shape[2] * x.shape[3]
        d = g * weight[:, :, None, None]
        d_var = (d * diff).sum((2, 3), keepdim=True) * -0.5 * rstd**3
        d_mean = -(d * rstd).sum((2, 3), keepdim=True)
        d_x = d * rstd + d_var * 2 * diff / n + d_mean / n
        return d_x, (g * diff * rstd).sum((2, 3))


@case(
    "scaled",
    lambda: (*draw((2, 3, 3)), torch.tensor([[0, 1, 1], [0, 2, 1]])),
    line="g[:, None] * there",
    never=["for inputs like these"],
)
class OneOfThree(Function):
    """What points at three classes is no permutation: there may be more of it."""

    @staticmethod
    def forward(ctx, x, target):
        there = F.one_hot(target, x.shape[1]).movedim(-1, 1).to(x.dtype)
        ctx.save_for_backward(there)
        return (x * there).sum(1)

    @staticmethod
    def backward(ctx, g):
        (there,) = ctx.saved_tensors
        return g[:, None] * there / 2, None


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


@case(
    "gradient-wrong",
    lambda: (4 * draw((4, 3))[0], 2),
    never=["only a part"],
    line="gs[i]",
)
class Sinkhorn(Function):
    """Its gradient is a sum of terms: each run of the loop adds two."""

    @staticmethod
    def forward(ctx, cost, turns):
        f, fs, gs = 0, [], [cost.new_zeros(cost.shape[1])]
        for i in range(turns):
            f = -torch.logsumexp(gs[i] - cost, 1) - math.log(len(cost))
            fs.append(f)
            gs.append(-torch.logsumexp(f[:, None] - cost, 0))
        ctx.save_for_backward(cost, torch.stack(fs), torch.stack(gs))
        return f.mean() + gs[-1].mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        cost, fs, gs = ctx.saved_tensors
        df = (g / cost.shape[0]).expand(cost.shape[0])
        dg = (g / cost.shape[1]).expand(cost.shape[1])
        dcost = torch.zeros_like(cost)
        for i in reversed(range(len(fs))):
            q = torch.softmax(fs[i][:, None] - cost, 0) * dg[None, :]
            dcost += q
            df = df - q.sum(1)
            p = torch.softmax(gs[i + 1][None, :] - cost, 1) * df[:, None]
            dcost += p
            dg = -p.sum(0)
            df = torch.zeros_like(df)
        return dcost, None


@case(
    "gradient-wrong",
    f64((6,), (6,)),
    "what is returned for `raw`",
    first="or in `inner` (line",
)
class Evidence(Function):
    """What is returned tells of a path where no local of backward is a gradient."""

    @staticmethod
    def forward(ctx, raw, err):
        nu = F.softplus(raw)
        fit = torch.log(nu * err**2 + 1)
        reg = err.abs() * nu
        ctx.save_for_backward(raw, err)
        return (fit + 0.1 * reg).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        raw, err = ctx.saved_tensors
        nu = F.softplus(raw)
        inner = nu * err**2 + 1
        d_nu = err**2 / inner * torch.sigmoid(raw)
        d_err = 2 * nu * err / inner + 0.1 * nu * err.sign()
        return g / err.numel() * d_nu, g / err.numel() * d_err


@case(
    "gradient-wrong",
    f64((5, 2), (5, 5), (4, 2, 3)),
    first="or in `dT` (line",
)
class GraphFilter(Function):
    """Of a list that a loop fills, what one run made right says nothing of the others."""

    @staticmethod
    def forward(ctx, x, lap, theta):
        T = [x, lap @ x]
        for k in range(2, theta.shape[0]):
            T.append(2 * lap @ T[k - 1] - T[k - 2])
        ctx.save_for_backward(lap, theta, *T)
        return sum(t @ w for t, w in zip(T, theta, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        lap, theta, *T = ctx.saved_tensors
        d_theta = torch.stack([t.T @ g for t in T])
        dT = [g @ w.T for w in theta]
        d_lap = torch.zeros_like(lap)
        for k in range(2, theta.shape[0]):
            dT[k - 1] = dT[k - 1] + 2 * lap.T @ dT[k]
            dT[k - 2] = dT[k - 2] - dT[k]
            d_lap += 2 * dT[k] @ T[k - 1].T
        d_lap += dT[1] @ T[0].T
        d_x = dT[0] + lap.T @ dT[1]
        return d_x, d_lap, d_theta


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
        (
            "(gv - gu) * u",
            "(gv - du).sin() * u",
            "not-linear",
            "`dv` (line 29, run 1",
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
    "derivative-wrong",
    f64((4, 3), (3,)),
    first="run 1 of 3) should be what `x` (line",
)
class KeptTooLate(Function):
    @staticmethod
    def forward(ctx, x, k):
        kept = []
        for _ in range(3):
            x = x - 0.3 * torch.sin(k * x)
            kept.append(x)
        ctx.save_for_backward(k, *kept)
        return 1 * x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        k, *kept = ctx.saved_tensors
        d_k = torch.zeros_like(k)
        for x in reversed(kept):
            d = -0.3 * grad * torch.cos(k * x)
            d_k = d_k + (d * x).sum(0)
            grad = grad + d * k
        return grad, d_k


@case("gradient-wrong", f64((5, 2), (4,)), first="comes through `A` in line")
class Heat(Function):
    """A conductivity of one element is summed by the engine; `A` and `B` share a line."""

    @staticmethod
    def forward(ctx, u, kappa):
        one = torch.eye(len(u), dtype=u.dtype)
        D = one[1:] - one[:-1]
        L = D.T @ (kappa.exp()[:, None] * D)
        A, B = one + L, one - L
        out = torch.linalg.solve(A, B @ u)
        ctx.save_for_backward(u, kappa, A, B, D)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, kappa, A, B, D = ctx.saved_tensors
        lam = torch.linalg.solve(A.T, g)
        d_kappa = -((D @ lam) * (D @ u)).sum(1) * kappa.exp()
        return B.T @ lam, d_kappa


@case("derivative-wrong", f64((4, 3)), first="wrong here, or in `d` (line")
class ForgottenStep(Function):
    """Two lines make one gradient, and the second is wrong."""

    @staticmethod
    def forward(ctx, x):
        y = torch.exp(torch.lgamma(x.abs() + 1))
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        d = g * y * x.sign()
        d_x = 1 * d
        return d_x


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


@case("partly-right", f64((4, 3)), line="F.relu(")
class SquaredHinge(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.relu(x - 0.5) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * (x - 0.5)


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
    "gradient-zero",
    f64((3, 4), (4,), (4,)),
    first="what is returned for `a` (line",
)
class Gates(Function):
    """What is returned for `a` is right for `b`."""

    @staticmethod
    def forward(ctx, x, a, b):
        s, q = torch.sigmoid(a + b), torch.sigmoid(a.square())
        ctx.save_for_backward(x, a, s, q)
        return x * s, q.sum()

    @staticmethod
    def backward(ctx, g, g_sum):
        x, a, s, q = ctx.saved_tensors
        d = (g * x).sum(0) * s * (1 - s)
        return g * s, d, d


@case("derivative-wrong", f64((4,), (3,)), first="wrong here, or in `slopes[1]` (line")
class Polynomials(Function):
    """An item of a list is what forward has, and should be something else."""

    @staticmethod
    def forward(ctx, x, c):
        t = torch.tanh(x)
        ctx.save_for_backward(t, c)
        return c[0] + c[1] * t + c[2] * (2 * t * t - 1.7 * t)

    @staticmethod
    def backward(ctx, g):
        t, c = ctx.saved_tensors
        slopes = [torch.ones_like(t), t]
        d_t = g * (c[1] * slopes[0] + c[2] * slopes[1])
        d_c = torch.stack([g.sum(), (g * t).sum(), (g * (2 * t * t - 1.7 * t)).sum()])
        return d_t * (1 - t * t), d_c


@case(
    "gradient-wrong",
    lambda: (*draw((4, 3)), torch.tensor([0, 2, 2, 1]), 1.7),
    line="`F.softmax(q / ctx.temp, dim=1)` stood",
)
class Penalty(Function):
    """The line before the one that is named is searched, too, whatever its indices are."""

    @staticmethod
    def forward(ctx, q, action, temp):
        ctx.save_for_backward(q, action)
        ctx.temp = temp
        chosen = q.gather(1, action[:, None]).squeeze(1)
        return (temp * torch.logsumexp(q / temp, dim=1) - chosen).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, action = ctx.saved_tensors
        d = g / q.shape[0]
        d_q = d * F.softmax(q, dim=1)
        d_q.scatter_add_(1, action[:, None], -d.expand(len(q))[:, None])
        return d_q, None, None


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
    "gradient-wrong",
    lambda: (*draw((4, 3)), torch.tensor([0, 2, 2, 1])),
    first="or in `due` (line",
)
class Shared(Function):
    """What is made of a target is the same whatever the input holds, and may be wrong."""

    @staticmethod
    def forward(ctx, logits, i):
        ctx.save_for_backward(logits, i)
        return F.cross_entropy(logits, i, reduction="sum", label_smoothing=0.1)

    @staticmethod
    def backward(ctx, g):
        logits, i = ctx.saved_tensors
        due = torch.zeros_like(logits).scatter_(1, i[:, None], 0.7)
        d_logits = g * (logits.softmax(1) - due)
        return d_logits, None


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
            "1 * lv",
            "partly-right",
            "wrong here: `lv` (line 27, run 1 of 6) should be the gradient of `v`",
            "wrong here, or in `lv` (line 27, run 1 of 6): `lv` (line 22, run 2 of 6)",
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


@case("gradient-wrong", f64((3, 5), ()), first="`q` (line")
class ToARange(Function):
    """Where the sign is another, the range ends before it begins: nothing is right there."""

    @staticmethod
    def forward(ctx, x, width):
        low, high = -0.5 - width.abs() * 0, 0.5 + width
        q = (torch.minimum(torch.maximum(x, low), high) - low) / (high - low)
        ctx.save_for_backward(x, width, 2 * q - 1)
        return 2 * q - 1

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, width, q = ctx.saved_tensors
        d = 2 * g / (1 + width)
        inside = (x > -0.5) & (x < 0.5 + width)
        return d * inside, (d * (x > 0.5 + width)).sum() - (d * q).sum()


@case("derivative-wrong", f64((4,), (4,)), first="`v = y * r + 0.2 * x * y")
class Distorted(Function):
    """No loop, and more uses than are told apart: those of one line are taken together."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        r = 1 + x * x + y * y
        u = x * r + 0.2 * x * y + 0.1 * (r + 2 * x * x)
        v = y * r + 0.2 * x * y + 0.3 * x.sin() * y
        return u, v

    @staticmethod
    @once_differentiable
    def backward(ctx, gu, gv):
        x, y = ctx.saved_tensors
        r = 1 + x * x + y * y
        d_r = gu * (x + 0.1) + gv * y
        d_x = gu * (r + 0.2 * y + 0.4 * x) + 2 * d_r * x
        d_y = gv * (r + 0.2 * x + 0.3 * x.sin()) + 0.2 * gu * x + 2 * d_r * y
        return d_x, d_y


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
        (
            "grads[above] = grads[above] + mix * pooled",
            "grads[above] = mix * pooled",
            "gradient-zero",
            "what comes through the output itself is missing",
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


def lens(u, v, k):
    r = u * u + v * v
    a = u * (1 + k * r) + 0.2 * u * v
    b = v * (1 + k * r) + 0.3 * u * u
    return a, b


@case(
    "partly-right",
    f64((4, 3), ()),
    first="holds only a part of the gradient of `u` in line",
)
class Lens(Function):
    """Of what a function is called with, the gradient is looked at, too."""

    @staticmethod
    def forward(ctx, points, k):
        ctx.save_for_backward(points, k)
        x, y, z = points.unbind(-1)
        return torch.stack(lens(x / z, y / z, k), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        points, k = ctx.saved_tensors
        x, y, z = points.unbind(-1)
        u, v = x / z, y / z
        ga, gb = grad.unbind(-1)
        r = u * u + v * v
        g_r = k * (ga * u + gb * v)
        gu = ga * (1 + k * r + 0.2 * v) + 2 * u * g_r  # less one path
        gv = gb * (1 + k * r) + ga * 0.2 * u + 2 * v * g_r
        gz = -(gu * u + gv * v) / z
        return torch.stack([gu / z, gv / z, gz], -1), (r * (ga * u + gb * v)).sum()


class Reflections(Function):
    """Backward reads what forward has saved; one of two that a line reads is a step late."""

    @staticmethod
    def forward(ctx, x, mirrors):
        states = [1 * x]
        for v in mirrors:
            states.append(states[-1] - 2 * (states[-1] @ v) / (v @ v) * v)
        ctx.save_for_backward(mirrors, *states[:-1])
        return 1 * states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        mirrors, *states = ctx.saved_tensors
        d_mirrors = torch.zeros_like(mirrors)
        for i in reversed(range(len(mirrors))):
            v, state = mirrors[i], states[i]
            n, a, b = v @ v, state @ v, g @ v
            d_mirrors[i] = -2 / n * (a * g + b * state) + 4 / n**2 * a * b * v
            g = g - 2 * b / n * v
        return g, d_mirrors


cases.slips(
    Reflections,
    f64((4,), (3, 4)),
    [
        (
            "*states[:-1]",
            "*states[1:]",
            "gradient-wrong",
            "`state` (line 18, run 1 of 3) should be what `states[2]` (line",
        )
    ],
    due="first",
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


class ChebyshevConvolution(Function):
    """What a list holds after a loop may be wrong for the loop itself ends too early."""

    @staticmethod
    def forward(ctx, x, lap):
        basis = [x, lap @ x]
        for _k in range(3):
            basis.append(2 * lap @ basis[-1] - basis[-2])
        ctx.save_for_backward(lap, *basis)
        return torch.stack([t.tanh() for t in basis])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        lap, *basis = ctx.saved_tensors
        grads = [g[k] * (1 - t.tanh() ** 2) for k, t in enumerate(basis)]
        d_lap = torch.zeros_like(lap)
        for k in range(4, 1, -1):
            d_lap = d_lap + 2 * grads[k] @ basis[k - 1].T
            grads[k - 1] = grads[k - 1] + 2 * lap.T @ grads[k]
            grads[k - 2] = grads[k - 2] - grads[k]
        d_x = grads[0] + lap.T @ grads[1]
        d_lap = d_lap + grads[1] @ basis[0].T
        return d_x, d_lap


cases.slips(
    ChebyshevConvolution,
    f64((3, 2), (3, 3)),
    [
        (
            "range(4, 1, -1)",
            "(4, 3)",
            "gradient-wrong",
            "the loop in line",
        )
    ],
    due="first",
    warned="needs-input-grad-ignored",
)
cases.slips(
    ChebyshevConvolution,
    f64((3, 2), (3, 3)),
    [
        ("2 * lap.T @", "2 * lap @", "gradient-wrong", "(2 * lap).mT", ": 1 error"),
    ],
    warned="needs-input-grad-ignored",
)


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
    "derivative-wrong",
    f64((3, 2), (4,)),
    first="should be the gradient of `t` in line",
    never=("should be the gradient of `basis[",),
)
class Series(Function):
    """What is summed over the items of a list is one gradient, and of none of them."""

    @staticmethod
    def forward(ctx, x, coef):
        t = torch.tanh(x)
        basis = [torch.ones_like(t), t]
        for _ in range(2):
            basis.append(2 * t * basis[-1] - basis[-2])
        basis = torch.stack(basis, -1)
        ctx.save_for_backward(t, coef, basis)
        return basis @ coef

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        t, coef, basis = ctx.saved_tensors
        d_basis = g[..., None] * coef
        second = [torch.ones_like(t), (t.exp() - 1) * t.cosh()]  # should be 2 * t
        for _ in range(1):
            second.append(2 * t * second[-1] - second[-2])
        d_t = torch.zeros_like(t)
        for k in range(1, len(coef)):
            d_t += k * second[k - 1] * d_basis[..., k]
        return d_t * (1 - t**2), (g[..., None] * basis).sum((0, 1))


@case("derivative-wrong", f64((4,), (4,)), first="wrong here, or in the loop in line")
class OneRunLess(Function):
    """The loop leaves the first run out; each of its lines is right."""

    @staticmethod
    def forward(ctx, x, k):
        kept = []
        for _ in range(3):
            kept.append(x)
            x = x + k * x.sin()
        ctx.save_for_backward(k, *kept)
        return 1 * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        k, *kept = ctx.saved_tensors
        d_k = torch.zeros_like(k)
        for x in reversed(kept[len(k) // 3 :]):
            d_k = d_k + g * x.sin()
            g = g + g * k * x.cos()
        return g, d_k


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


@case("partly-right", f64((4, 6), (6,)), first="or in `inside` (line")
class Band(Function):
    """Before what is wrong, a mask may be."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        z = x * w
        return torch.where((z - 0.15).abs() < 0.25, z * z, 0 * z)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        h = x * w
        inside = h > -0.1
        d_h = 2 * h * g * inside
        return d_h * w, (d_h * x).sum(0)


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
