"""Gradients that are not the derivative: by mistake, by few digits, on purpose."""

import torch
from torch.autograd import Function
from torch.nn import functional as F

from helpers.ops.gradient_reversal import gradient_reversal

from .case import (
    Matmul,
    Multiply,
    Square,
    affine,
    broken,
    draw,
    function,
    healthy,
    matrix,
    numbers,
    pair,
    slip,
    square,
    vector,
    wrong,
)


def linear(input, weight, bias):
    return input @ weight.t() + bias


def softmax(x):
    return x.softmax(1)


# --- a factor, a sign, a term ---------------------------------------------------------

slip(
    "TransposedWeight",
    Matmul,
    square,
    {"input.t() @ grad_output": "grad_output.t() @ input"},
    "transposed",
    "The gradient of `weight` is right, but transposed.",
)


@broken("jacobian-transposed", square)
class UntransposedMatrix(Matmul):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, input.t() @ grad_output


@broken("conjugate", lambda: draw((4,), (4,), dtype=torch.complex128))
class ForgottenConjugate(Multiply):
    pass


@broken("grad-output-ignored", vector)
class IgnoresGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x


@broken("sum-for-mean", matrix)
class MeanRows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return x.mean(0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.expand(ctx.rows, -1)


SUBTRACT = function(lambda x, y: x - y, lambda g, x, y: (g, g), "Subtract")
broken("negated", pair)(SUBTRACT)
wrong(
    "ExpOfSquare",
    "factor-wrong",
    vector,
    lambda x: torch.exp(x * x),
    lambda g, x: g * torch.exp(x * x),
    "lacks a factor of `x`, and is multiplied by 0.5",
)
wrong(
    "MasksTwice",
    "factor-wrong",
    lambda: (*draw((5,)), torch.tensor([0, 1.5, 0, 2, -0.7], dtype=torch.float64)),
    lambda x, y: x * y,
    lambda g, x, y: (g * y * y, g * x),
    "has one factor too many of `y`.",
)
wrong("Sine", "inner-derivative-forgotten", vector, lambda x: x.sin(), lambda g, x: g)
wrong(
    "DiagonalOfSoftmax",
    "contribution-lost",
    matrix,
    softmax,
    lambda g, x: g * softmax(x) * (1 - softmax(x)),
)
wrong(
    "VarianceIsConstant",
    "term-wrong",
    lambda: draw((3, 5), (5,)),
    lambda x, shift: F.layer_norm(x, x.shape[-1:], eps=0) + shift,
    lambda g, x, shift: (
        (g - g.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True),
        g.sum(0),
    ),
)
wrong(
    "SwappedGradients",
    "swapped",
    pair,
    lambda x, y: x * y,
    lambda g, x, y: (g * x, g * y),
    "returned for `x` is that of `y`",
)
wrong(
    "SineAndExp",
    "other-output",
    matrix,
    lambda x: (x.sin(), x.exp()),
    lambda exp, sin, x: sin * x.cos() + exp * x.exp(),
    "The gradient of `x` is that through `output[1]`.",
)

# --- right in part, or in the wrong place ---------------------------------------------


slip(
    "HalfOfTheElements",
    Square,
    vector,
    {"2 * x": "2 * x * (torch.arange(len(x)) < 3)"},
    "partly-right",
    "at index 3 to 5 of dimension 0, it is zero",
)


@broken("partly-right", vector, "where `x` is below 0, it is zero")
class LeakyReLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > 0)


wrong(
    "Huber",
    "partly-right",
    lambda: (*draw((9,)), 0.5),
    lambda x, delta: F.huber_loss(x, 0 * x, reduction="none", delta=delta),
    lambda g, x, delta: g * x,
    "where the magnitude of `x` is above `delta` = 0.5, it is wrong",
)


def masked():
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 1, 1]])
    return *matrix(), mask.bool()


wrong(
    "LeaksThroughTheMask",
    "partly-right",
    masked,
    lambda x, mask: (x * x * mask).sum(1),
    lambda g, x, mask: g[:, None] * 2 * x,
    "where `mask` is False, it should be zero",
)
slip(
    "OneOfMany",
    Square,
    lambda: draw((300, 300)),
    {
        "return grad_output * 2 * x": "grad = grad_output * 2 * x; grad[270, 123] = 0; "
        "return grad"
    },
    "partly-right",
    "right in part: at [270, 123], it is zero",
)


def gated(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def of_gated(g, x):
    """As if the slope of silu were its sigmoid."""
    a, b = x.chunk(2, -1)
    return torch.cat((g * b * a.sigmoid(), g * F.silu(a)), -1)


wrong(  # of so many elements, few are examined
    "Gated",
    "partly-right",
    lambda: draw((100, 128)),
    gated,
    of_gated,
    "index 0 to 63 of dimension 1, it is wrong",
)
wrong(
    "ShiftedByOne",
    "shifted",
    vector,
    lambda x: F.pad(x * 3, (0, 1)),
    lambda g, x: g[1:] * 3,
    "shifted by -1 along dimension 0",
)
wrong(
    "FlippedBack",
    "reversed",
    matrix,
    lambda x: x.flip(1).clone(),
    lambda g, x: g.clone(),
)


wrong(
    "RepeatedIndex",
    "contribution-lost",
    lambda: (*vector(), torch.tensor([0, 2, 2, 5])),
    lambda x, index: x[index],
    lambda g, x, index: torch.zeros_like(x).index_put((index,), g),
)


# --- for which grad_output, and at which point ----------------------------------------

wrong(
    "ReluOfSum",
    "grad-output-scaled",
    lambda: draw((4, 3), (3,)),
    lambda x, bias: torch.relu(x + bias),
    lambda g, x, bias: (g * (x + bias > 0), g.sum(0)),
    "set to zero wherever the output is not above 0 before.",
)
wrong(
    "AddsALittle",
    "not-linear",
    lambda: (1 + vector()[0].abs(),),
    lambda x: x.square().sum(),
    lambda g, x: g * 2 * x + 1e-4,
)
wrong(
    "BakedConstant",
    "right-here-only",
    numbers(2, 2, 2),
    lambda x: x * x,
    lambda g, x: g * 4.0,
)
wrong(
    "ZerosForWeight",
    "gradient-zero",
    affine,
    linear,
    lambda g, input, weight, bias: (g @ weight, torch.zeros_like(weight), g.sum(0)),
)


class ModuleWithTwoOutputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        half = torch.full((6,), 0.5, dtype=torch.float64)
        self.offset = torch.nn.Parameter(half)

    def forward(self, x):
        return x + self.offset, SUBTRACT.apply(x, self.offset)


broken("negated", vector, "`offset`")(ModuleWithTwoOutputs())


@broken("gradient-none", lambda: draw((4,), (4,)), faithful=False)
def a_constant(p, z):
    return (p * z.detach()).sum()


# --- numbers: nan and inf, few digits -------------------------------------------------

ZERO_AND_MORE = numbers(0, 1, 2)
wrong(
    "XLogX",
    "forward-not-finite",
    ZERO_AND_MORE,
    lambda x: x * torch.log(x),
    lambda g, x: g * (torch.log(x) + 1),
)


@broken("backward-not-finite", ZERO_AND_MORE)
class Sinc(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x == 0, 1.0, torch.sin(x) / x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x * torch.cos(x) - torch.sin(x)) / (x * x)


@broken("backward-not-finite", ZERO_AND_MORE)
def root_or_zero(x):
    return torch.where(x > 0, x.sqrt(), 0 * x)


@broken("input-not-finite", numbers(torch.nan, 1))
def sine_of_nan(x):
    return torch.sin(x)


# its slope at -100 is less than the smallest normal number
@healthy(lambda: (torch.tensor([-100.0]),), name="softplus at -100")
@broken(
    "low-precision",
    lambda: (torch.tensor([1.0, 100.0]),),
    "but not in float32: backward makes nan or inf",
)
class NaiveSoftplus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logaddexp(x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.exp(x) / (1 + torch.exp(x))


@broken("low-precision", lambda: (torch.tensor([1.0, 100.0]),), "forward makes nan")
def log_of_cosh(x):
    return torch.log(torch.cosh(x))


@broken(
    "low-precision",
    lambda: (2e4 + draw((12,), dtype=torch.float32, seed=0)[0],),
    "nor is the output",
)
def variance_by_difference(x):
    variance = (x * x).mean() - x.mean() ** 2
    return (x - x.mean()) / variance.clamp(min=1e-6).sqrt()


@broken("output-dtype", vector)
def returns_single(x):
    return x.float()


wrong(
    "CastsToFloat",
    "gradient-dtype",
    vector,
    lambda x: x * x,
    lambda g, x: g.float() * 2 * x.float(),
)

# --- deliberate, but only with faithful=False -----------------------------------------


class RoundStraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


CLIP = function(lambda x: x.clone(), lambda g, x: g.clamp(-0.5, 0.5), "ClipGradient")


def reverse(x):
    return gradient_reversal(x, 0.5)


for code, fn in (
    ("straight-through", RoundStraightThrough),
    ("not-linear", CLIP),
    ("scaled jvp-wrong", reverse),
):
    broken(code, vector, "faithful=False")(fn)
    healthy(vector, "unfaithful", faithful=False)(fn)

wrong(  # no lie on purpose
    "RoundsAndIgnores",
    "grad-output-ignored",
    matrix,
    lambda x: x.round(),
    lambda g, x: torch.ones_like(g),
    faithful=False,
)
Quantize = function(  # the gradient of the scale, which is learned, is wrong
    lambda x, scale: (x / scale).round() * scale,
    lambda g, x, scale: (g, (g * 2).sum()),
    "Quantize",
)
broken("gradient-wrong", lambda: draw((6,), ()), "`scale`", faithful={"x": False})(
    Quantize
)
