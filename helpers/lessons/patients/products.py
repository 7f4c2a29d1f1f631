"""What a gradient is made of, mixed up: places, operands, dimensions of a sum, factors, terms."""

import torch
from torch.autograd import Function

from .patient import broken, draw, vector


@broken(
    "out-of-place", "the identity's gradient, one place late", lambda: draw((3, 4), (3, 4), (1,))
)
class ResidualLate(Function):
    """As the fixed-point product of an integer-only BERT does it."""

    @staticmethod
    def forward(ctx, x, identity, scale):
        return 2 * x + identity

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output, None, grad_output


@broken(
    "engine-sums", "the same of what is rounded",
    lambda: draw((3, 4), (3, 4), (1,)), faithful=False,
)  # fmt: skip
class RoundedResidualLate(ResidualLate):
    @staticmethod
    def forward(ctx, x, identity, scale):
        return torch.round(2 * x) + torch.round(8 * identity) / 8


@broken("out-of-place", "the same where all have one shape", lambda: draw((4,), (4,), (4,)))
class ResidualLateAmongEquals(ResidualLate):
    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output, None, 1 * grad_output


@broken("operand-turned", "a correlation in place of a convolution", lambda: draw((2, 9), (3,)))
class ConvolvesBackwards(Function):
    @staticmethod
    def forward(ctx, signal, kernel):
        ctx.save_for_backward(signal, kernel)
        return signal.unfold(1, 3, 1) @ kernel

    @staticmethod
    def backward(ctx, grad_output):
        signal, kernel = ctx.saved_tensors
        windows = torch.nn.functional.pad(grad_output, (2, 2)).unfold(1, 3, 1)
        return windows @ kernel, torch.einsum("bo,bok->k", grad_output, signal.unfold(1, 3, 1))


@broken("operand-turned", "the form is not symmetric", lambda: draw((5, 3), (3, 3)))
class QuadraticForm(Function):
    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return ((x @ a) ** 2).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        g = 2 * grad_output[:, None] * (x @ a)
        return 2 * grad_output[:, None] * (x @ a.t()) @ a, x.t() @ g


@broken("wrong-dimension", "the softmax of another dimension", lambda: draw((2, 3, 4)))
class SoftmaxCorrectedElsewhere(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, 1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(2, keepdim=True))


@broken("term-missing", "the variance is held for a constant", lambda: draw((3, 5), (5,)))
class VarianceIsConstant(Function):
    @staticmethod
    def forward(ctx, x, shift):
        inverse = x.var(1, correction=0, keepdim=True).rsqrt()
        ctx.save_for_backward(inverse)
        return (x - x.mean(1, keepdim=True)) * inverse + shift

    @staticmethod
    def backward(ctx, grad_output):
        (inverse,) = ctx.saved_tensors
        centred = grad_output - grad_output.mean(1, keepdim=True)
        return centred * inverse, grad_output.sum(0)


@broken(
    "grad-output-scaled", "the weight comes after the mixing", lambda: draw((3, 4), (4, 4), (4,))
)
class MixesThenWeighs(Function):
    @staticmethod
    def forward(ctx, x, mixing, weight):
        ctx.save_for_backward(x, mixing, weight)
        return x @ mixing * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, mixing, weight = ctx.saved_tensors
        return (
            grad_output @ mixing.t(), x.t() @ (grad_output * weight),
            (grad_output * (x @ mixing)).sum(0),
        )  # fmt: skip


@broken("outputs-scaled", "sine and cosine, one with the wrong sign", lambda: draw((3, 2), (2, 3)))
class Features(Function):
    @staticmethod
    def forward(ctx, x, frequencies):
        angles = x @ frequencies
        ctx.save_for_backward(x, frequencies)
        return torch.cat([angles.sin(), angles.cos()], 1)

    @staticmethod
    def backward(ctx, grad_output):
        x, frequencies = ctx.saved_tensors
        angles = x @ frequencies
        of_sin, of_cos = grad_output.chunk(2, 1)
        right, wrong = of_sin * angles.cos(), of_cos * angles.sin()
        return (right + wrong) @ frequencies.t(), x.t() @ (right - wrong)


@broken("others-term", "the negative's part is forgotten", lambda: draw((4, 3), (4, 3), (4, 3)))
class Triplet(Function):
    @staticmethod
    def forward(ctx, anchor, positive, negative):
        ctx.save_for_backward(anchor, positive, negative)
        return ((anchor - positive) ** 2 - (anchor - negative) ** 2).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        anchor, positive, negative = ctx.saved_tensors
        g = 2 * grad_output[:, None]
        to_positive, to_negative = g * (anchor - positive), g * (anchor - negative)
        return to_positive, -to_positive, to_negative


@broken("shifted", "a crop of an image, off in two dimensions", lambda: draw((5, 6)))
class ShiftsTwice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.nn.functional.pad(2 * x * grad_output, (1, -1, 1, -1))


@broken("state-between-calls", "a mask by sign, kept on the class", lambda: draw((3, 4)))
class MaskBySign(Function):
    @staticmethod
    def forward(ctx, x):
        MaskBySign.mask = x > 0
        return x * MaskBySign.mask

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * MaskBySign.mask


@broken("scaled", "two percent too much, in float32 inside", vector)
class ScaledInSingle(Function):
    @staticmethod
    def forward(ctx, x):
        return (2 * x.float()).double()

    @staticmethod
    def backward(ctx, grad_output):
        return 2.04 * grad_output


@broken("arguments-ignored", "right for p = 2 only", lambda: (*vector(), 2.0))
class PowerOfTwo(Function):
    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x)
        return x.abs() ** p

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * grad_output * x, None
