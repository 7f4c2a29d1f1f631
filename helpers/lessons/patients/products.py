"""What a gradient is made of, mixed up: places, operands, dimensions of a sum, factors, terms."""

import torch
from torch.autograd import Function

from .patient import broken, draw, vector, wrong


def double_and(x, identity, scale):
    return 2 * x + identity


LATE = lambda g, x, identity, scale: (2 * g, None, 1 * g)  # noqa: E731
wrong(  # as the fixed-point product of an integer-only BERT does it
    "ResidualLate", "out-of-place", "the identity's gradient, one place late",
    lambda: draw((3, 4), (3, 4), (1,)), double_and, LATE,
)  # fmt: skip


wrong(
    "RoundedResidualLate", "engine-sums", "the same of what is rounded",
    lambda: draw((3, 4), (3, 4), (1,)), lambda x, identity, scale: (
        torch.round(2 * x) + torch.round(8 * identity) / 8
    ), LATE, faithful=False,
)  # fmt: skip


wrong("ResidualLateAmongEquals", "out-of-place", "the same where all have one shape",
      lambda: draw((4,), (4,), (4,)), double_and, LATE)  # fmt: skip


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


wrong(
    "QuadraticForm", "operand-turned", "the form is not symmetric", lambda: draw((5, 3), (3, 3)),
    lambda x, a: ((x @ a) ** 2).sum(1),
    lambda g, x, a: (2 * g[:, None] * (x @ a.t()) @ a, x.t() @ (2 * g[:, None] * (x @ a))),
)  # fmt: skip


wrong(
    "SoftmaxCorrectedElsewhere", "wrong-dimension", "the softmax of another dimension",
    lambda: draw((2, 3, 4)), lambda x: x.softmax(1),
    lambda g, x: x.softmax(1) * (g - (g * x.softmax(1)).sum(2, keepdim=True)),
)  # fmt: skip


def deviation(x):
    return x.var(1, correction=0, keepdim=True).sqrt()


wrong(
    "VarianceIsConstant", "term-missing", "the variance is held for a constant",
    lambda: draw((3, 5), (5,)),
    lambda x, shift: (x - x.mean(1, keepdim=True)) / deviation(x) + shift,
    lambda g, x, shift: ((g - g.mean(1, keepdim=True)) / deviation(x), g.sum(0)),
)  # fmt: skip


wrong(
    "MixesThenWeighs", "grad-output-scaled", "the weight comes after the mixing",
    lambda: draw((3, 4), (4, 4), (4,)), lambda x, mixing, weight: x @ mixing * weight,
    lambda g, x, mixing, weight: (
        g @ mixing.t(), x.t() @ (g * weight), (g * (x @ mixing)).sum(0)
    ),
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


wrong(
    "Triplet", "others-term", "the negative's part is forgotten",
    lambda: draw((4, 3), (4, 3), (4, 3)),
    lambda anchor, positive, negative: (
        ((anchor - positive) ** 2 - (anchor - negative) ** 2).sum(1)
    ),
    lambda g, anchor, positive, negative: (
        2 * g[:, None] * (anchor - positive), 2 * g[:, None] * (positive - anchor),
        2 * g[:, None] * (anchor - negative),
    ),
)  # fmt: skip


wrong(
    "ShiftsTwice", "shifted", "a crop of an image, off in two dimensions", lambda: draw((5, 6)),
    lambda x: x * x, lambda g, x: torch.nn.functional.pad(2 * x * g, (1, -1, 1, -1)),
)  # fmt: skip


@broken("state-between-calls", "a mask by sign, kept on the class", lambda: draw((3, 4)))
class MaskBySign(Function):
    @staticmethod
    def forward(ctx, x):
        MaskBySign.mask = x > 0
        return x * MaskBySign.mask

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * MaskBySign.mask


wrong("ScaledInSingle", "scaled", "two percent too much, in float32 inside", vector,
      lambda x: (2 * x.float()).double(), lambda g, x: 2.04 * g)  # fmt: skip


wrong("PowerOfTwo", "arguments-ignored", "right for p = 2 only", lambda: (*vector(), 2.0),
      lambda x, p: x.abs() ** p, lambda g, x, p: 2 * g * x)  # fmt: skip
