"""Gradients that are not the derivative: wrong numbers, in the wrong place, and deliberate ones."""

import torch
from torch.autograd import Function
from torch.nn import functional as F

from helpers.ops.gradient_reversal import gradient_reversal

from .patient import (
    Linear,
    Matmul,
    Square,
    affine,
    broken,
    draw,
    function,
    healthy,
    linear,
    matmul,
    matrix,
    pair,
    slip,
    square,
    vector,
    wrong,
)

wrong(
    "TransposedWeight", "transposed", "the weight is square, so its transposed gradient fits",
    square, matmul, lambda g, input, weight: (g @ weight.t(), g.t() @ input),
    "The gradient of `weight` is right, but transposed.",
)  # fmt: skip
wrong(
    "TransposedShape", "gradient-shape", "the engine rejects it", lambda: draw((3, 4), (4, 5)),
    matmul, lambda g, input, weight: (g @ weight.t(), g.t() @ input),
    "has shape (5, 4), but (4, 5) belongs there: perhaps it is",
)  # fmt: skip


@broken("jacobian-transposed", "the matrix is used as it stands, not its transpose", square)
class UntransposedMatrix(Matmul):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, input.t() @ grad_output


wrong("Subtract", "negated", "a minus sign is forgotten", pair,
      lambda x, y: x - y, lambda g, x, y: (g, g))  # fmt: skip
wrong("HalfSquare", "scaled", "the factor 2 of 2x is forgotten", vector,
      lambda x: x * x, lambda g, x: g * x)  # fmt: skip
wrong("Power", "scaled", "the exponent is forgotten as a factor", lambda: (*vector(), 3),
      lambda x, exponent: x**exponent, lambda g, x, n: g * x ** (n - 1),
      "multiplied by 0.333")  # fmt: skip
wrong("ExpOfSquare", "factor-missing", "the inner derivative 2x of exp(x²) is forgotten", vector,
      lambda x: torch.exp(x * x), lambda g, x: g * torch.exp(x * x),
      "lacks a factor of `x`, and is multiplied by 0.5")  # fmt: skip
wrong("Sine", "inner-derivative-forgotten", "grad_output is handed on as it came", vector,
      lambda x: x.sin(), lambda g, x: g)  # fmt: skip
wrong("WrongFormula", "derivative-wrong", "the formula is that of another function", vector,
      lambda x: x.tanh(), lambda g, x: g * x.sigmoid() * (1 - x.sigmoid()))  # fmt: skip


@broken("grad-output-ignored", "the chain rule is left out", vector)
class IgnoresGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x


slip("MeanOverBatch", "mean-for-sum", "the mean over the batch where the sum belongs",
     Linear, affine, {"grad_output.sum(0)": "grad_output.mean(0)"},
     "1/3 of what it should be, and 3 is the size of dimension 0")  # fmt: skip


@broken("sum-for-mean", "forward takes the mean, backward forgets to divide", matrix)
class MeanRows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return x.mean(0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.expand(ctx.rows, -1)


wrong("SwappedGradients", "swapped", "each input gets the gradient of the other", pair,
      lambda x, y: x * y, lambda g, x, y: (g * x, g * y),
      "returned for `x` is that of `y`")  # fmt: skip


@broken("partly-right", "the loop stops half-way", vector,
        "at index 3 to 5 of dimension 0 it is zero")  # fmt: skip
class HalfOfTheElements(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for i in range(len(x) // 2):
            grad[i] = grad_output[i] * 2 * x[i]
        return grad


@broken("partly-right", "the slope for negative numbers is forgotten", vector,
        "where `x` is below 0, it is zero")  # fmt: skip
class LeakyReLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > 0)


wrong("UnmaskedReLU", "partly-right", "the mask is forgotten", vector,
      lambda x: x.clamp(min=0), lambda g, x: g)  # fmt: skip
wrong("ShiftedByOne", "shifted", "off by one", vector,
      lambda x: F.pad(x * 3, (0, 1)), lambda g, x: g[1:] * 3,
      "shifted by -1 along dimension 0")  # fmt: skip
wrong("FlippedBack", "reversed", "the flip is not undone", matrix,
      lambda x: x.flip(1).clone(), lambda g, x: g.clone())  # fmt: skip
wrong(
    "WrongPermutation", "misplaced", "the permutation instead of its inverse", vector,
    lambda x: x[[2, 0, 3, 1, 5, 4]], lambda g, x: g[[2, 0, 3, 1, 5, 4]],
)  # fmt: skip


@broken("contribution-lost", "a repeated index is assigned, not added up",
        lambda: (*vector(), torch.tensor([0, 2, 2, 5])))  # fmt: skip
class RepeatedIndex(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.size = x.shape
        return x[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.size)
        grad[index] = grad_output
        return grad, None


wrong(
    "FirstSampleOnly", "grad-output-partly-ignored", "only the first sample of the batch counts",
    affine, linear, lambda g, input, weight, bias: (g @ weight, g.t() @ input, g[0]),
)  # fmt: skip
wrong("Centre", "term-missing", "the mean depends on every element, too", matrix,
      lambda x: x - x.mean(1, keepdim=True), lambda g, x: g)  # fmt: skip
wrong("Softmax", "term-missing", "the sum in the derivative of softmax is left out", matrix,
      lambda x: x.softmax(1), lambda g, x: g * x.softmax(1))  # fmt: skip
wrong("AveragesGradOutput", "right-only-for-ones", "grad_output is averaged", vector,
      lambda x: x * x, lambda g, x: g.mean() * 2 * x,
      "right where grad_output is all ones")  # fmt: skip
wrong(
    "BakedConstant", "right-here-only", "a number that belongs to one input is written into "
    "backward", lambda: (torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64),),
    lambda x: x * x, lambda g, x: g * 4.0,
)  # fmt: skip
wrong("SquaresGradOutput", "not-linear", "grad_output is squared", vector,
      lambda x: x * x, lambda g, x: g**2 * 2 * x)  # fmt: skip
wrong("AddsAPenalty", "not-linear", "a penalty is added in backward", vector,
      lambda x: x * x, lambda g, x: g * 2 * x + 0.01 * x)  # fmt: skip
wrong("ForgottenWeight", "gradient-none", "None is returned for the weight", affine,
      linear, lambda g, input, weight, bias: (g @ weight, None, g.sum(0)))  # fmt: skip
wrong(
    "ZerosForWeight", "gradient-zero", "zeros are returned for the weight", affine, linear,
    lambda g, input, weight, bias: (g @ weight, torch.zeros_like(weight), g.sum(0)),
)  # fmt: skip
wrong(
    "Normalize", "term-missing", "a power of the norm is forgotten",
    lambda: draw((5,), positive=True),
    lambda x: x / x.norm(), lambda g, x: g / x.norm() - x * (g * x).sum(),
)  # fmt: skip
wrong("MatrixSquare", "gradient-wrong", "the product rule has two terms", lambda: draw((3, 3)),
      lambda x: x @ x, lambda g, x: g @ x.t())  # fmt: skip


# --- deliberate, but only with faithful=False -----------------------------------------------------


class RoundStraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


def reverse(x):
    return gradient_reversal(x, 0.5)


# Sign, with the gradient of hardtanh.
BINARIZE = function(lambda x: x.sign(), lambda g, x: g * (x.abs() <= 1), "Binarize")
CLIP = function(lambda x: x.clone(), lambda g, x: g.clamp(-0.5, 0.5), "ClipGradient")

for code, fn in (
    ("straight-through", RoundStraightThrough), ("straight-through", BINARIZE),
    ("not-linear", CLIP), ("scaled jvp-wrong", reverse),
):  # fmt: skip
    broken(code, "deliberate, but not declared", vector)(fn)
    healthy("deliberate, and declared", vector, "unfaithful", faithful=False)(fn)
