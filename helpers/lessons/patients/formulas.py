"""Gradients that are not the derivative: wrong numbers, in the wrong place, and deliberate ones."""

import torch
from torch.autograd import Function
from torch.nn import functional as F

from helpers.ops.gradient_reversal import gradient_reversal

from .patient import (
    Linear,
    Matmul,
    Multiply,
    Square,
    affine,
    broken,
    draw,
    healthy,
    matrix,
    pair,
    square,
    vector,
)


@broken("transposed", "the weight is square, so its transposed gradient fits", square)
class TransposedWeight(Matmul):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight.t(), grad_output.t() @ input


@broken("transposed", "the engine rejects the shape", lambda: draw((3, 4), (4, 5)))
class TransposedShape(Matmul):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight.t(), grad_output.t() @ input


@broken("jacobian-transposed", "the matrix is used as it stands, not its transpose", square)
class UntransposedMatrix(Matmul):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, input.t() @ grad_output


@broken("negated", "a minus sign is forgotten", pair)
class Subtract(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x - y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, grad_output


@broken("scaled", "the factor 2 of 2x is forgotten", vector)
class HalfSquare(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x


@broken("factor-missing", "the exponent is forgotten as a factor", lambda: (*vector(), 3))
class Power(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        return x**exponent

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x ** (ctx.exponent - 1), None


@broken("factor-missing", "the inner derivative 2x of exp(x²) is forgotten", vector)
class ExpOfSquare(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x * x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


@broken("inner-derivative-forgotten", "grad_output is handed on as it came", vector)
class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sin(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


@broken("derivative-wrong", "the formula is that of another function", vector)
class WrongFormula(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * s * (1 - s)


@broken("grad-output-ignored", "the chain rule is left out", vector)
class IgnoresGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x


@broken("mean-for-sum", "the mean over the batch where the sum belongs", affine)
class MeanOverBatch(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ input, grad_output.mean(0)


@broken("sum-for-mean", "forward takes the mean, backward forgets to divide", matrix)
class MeanRows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return x.mean(0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.expand(ctx.rows, -1)


@broken("swapped", "each input gets the gradient of the other", pair)
class SwappedGradients(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * x, grad_output * y


@broken("partly-right", "the loop stops half-way", vector)
class HalfOfTheElements(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for i in range(len(x) // 2):
            grad[i] = grad_output[i] * 2 * x[i]
        return grad


@broken("partly-right", "the slope for negative numbers is forgotten", vector)
class LeakyReLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > 0)


@broken("partly-right", "the mask is forgotten", vector)
class UnmaskedReLU(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


@broken("shifted", "off by one", vector)
class ShiftedByOne(Function):
    @staticmethod
    def forward(ctx, x):
        return F.pad(x * 3, (0, 1))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output[1:] * 3


@broken("reversed", "the flip is not undone", matrix)
class FlippedBack(Function):
    @staticmethod
    def forward(ctx, x):
        return x.flip(1).clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone()


@broken("misplaced", "the permutation instead of its inverse", vector)
class WrongPermutation(Function):
    order = (2, 0, 3, 1, 5, 4)

    @staticmethod
    def forward(ctx, x):
        return x[list(WrongPermutation.order)]

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output[list(WrongPermutation.order)]


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


@broken("grad-output-partly-ignored", "only the first sample of the batch counts", affine)
class FirstSampleOnly(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ input, grad_output[0]


@broken("term-missing", "the mean depends on every element, too", matrix)
class Centre(Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


@broken("term-missing", "the sum in the derivative of softmax is left out", matrix)
class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, 1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


@broken("right-only-for-ones", "grad_output is averaged", vector)
class AveragesGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.mean() * 2 * x


@broken("right-here-only", "a number that belongs to one input is written into backward",
        lambda: (torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64),))  # fmt: skip
class BakedConstant(Square):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 4.0


@broken("not-linear", "grad_output is squared", vector)
class SquaresGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output**2 * 2 * x


@broken("not-linear", "a penalty is added in backward", vector)
class AddsAPenalty(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x + 0.01 * x


@broken("gradient-none", "None is returned for the weight", affine)
class ForgottenWeight(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        _, weight = ctx.saved_tensors
        return grad_output @ weight, None, grad_output.sum(0)


@broken("gradient-zero", "zeros are returned for the weight", affine)
class ZerosForWeight(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        _, weight = ctx.saved_tensors
        return grad_output @ weight, torch.zeros_like(weight), grad_output.sum(0)


@broken("term-missing", "a power of the norm is forgotten", lambda: draw((5,), positive=True))
class Normalize(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.norm()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / x.norm() - x * (grad_output * x).sum()


@broken("gradient-wrong", "the product rule has two terms", lambda: draw((3, 3)))
class MatrixSquare(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output @ x.t()


# --- deliberate, but only with faithful=False -----------------------------------------------------


class RoundStraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class ClipGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clamp(-0.5, 0.5)


def reverse(x):
    return gradient_reversal(x, 0.5)


class Binarize(Function):
    """Sign, with the gradient of hardtanh."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.abs() <= 1)


for code, fn in (
    ("straight-through", RoundStraightThrough), ("straight-through", Binarize),
    ("not-linear", ClipGradient), ("scaled", reverse),
):  # fmt: skip
    broken(code, "deliberate, but not declared", vector)(fn)
    healthy("deliberate, and declared", vector, "unfaithful", faithful=False)(fn)
