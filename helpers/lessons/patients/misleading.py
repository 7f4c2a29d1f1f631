"""What looks like another cause, or like none: few digits, wrong dimensions, zeros."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .healthy_numbers import symmetric
from .patient import broken, draw, matrix, pair, vector, wrong

# --- dimensions -----------------------------------------------------------------------------------


wrong(
    "MeanOfPixels", "sum-for-mean", "a mean over two dimensions", lambda: draw((2, 3, 5)),
    lambda x: x.mean((0, 2)), lambda g, x: g[:, None].expand(x.shape),
    "10 times too large, and 10 is the size of dimensions 0 and 2 of `x`",
)  # fmt: skip
wrong("MinusMeanRows", "sum-for-mean", "and a sign", lambda: draw((12, 2)),
      lambda x: -x.mean(0), lambda g, x: g.expand(len(x), -1),
      "12 times too large and negated, and 12 is the size of dimension 0")  # fmt: skip
wrong("RollsOn", "shifted", "rolled on, not back", lambda: draw((2, 7)),
      lambda x: x.roll(2, 1), lambda g, x: g.roll(2, 1),
      "shifted by -3 along dimension 1")  # fmt: skip
wrong(
    "DiagonalOfSoftmax", "contribution-lost", "softmax as if each element stood alone", matrix,
    lambda x: x.softmax(1), lambda g, x: g * x.softmax(1) * (1 - x.softmax(1)),
)  # fmt: skip


# --- numbers --------------------------------------------------------------------------------------


wrong("HalfPrecision", "few-digits", "backward computes in float16", vector,
      lambda x: x * x, lambda g, x: (g.half() * 2 * x.half()).double(),
      "is right to 3 digits only")  # fmt: skip


@broken(
    "coarse-backward",
    "backward in float16, forward in float32, so that differences show less",
    vector,
)
class HalfInsideSingle(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().sigmoid().to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        y = x.half().sigmoid()
        return (grad_output.half() * y * (1 - y)).to(x.dtype)


wrong(
    "ClipsWhatIsLarge", "not-linear", "a clip that small numbers do not reach", lambda: draw((3,)),
    lambda x: x * x, lambda g, x: g.clamp(-20, 20) * 2 * x,
)  # fmt: skip
wrong(
    "SmallBesideLarge", "partly-right", "wrong where the result is a millionth of the largest",
    lambda: (torch.linspace(-3, 14, 18, dtype=torch.float64),),
    lambda x: x.exp(), lambda g, x: g * torch.where(x < -2, 20 * x.exp(), x.exp()),
)  # fmt: skip
wrong(
    "Huber", "partly-right", "the bound of the Huber loss is forgotten", lambda: (*draw((9,)), 0.5),
    lambda x, delta: torch.where(x.abs() < delta, x * x / 2, delta * (x.abs() - delta / 2)),
    lambda g, x, delta: g * x,
    "where the magnitude of `x` is above `delta` = 0.5, it is wrong",
)  # fmt: skip
wrong(
    "MasksZeros", "partly-right", "a mask that leaves out zeros",
    lambda: (torch.tensor([0.0, 1, 0, -2], dtype=torch.float64),),
    lambda x: 3 * x, lambda g, x: 3 * g * (x != 0), "where `x` is 0, it is zero",
)  # fmt: skip
wrong(
    "MasksTwice", "factor-missing", "a factor that is zero here and there",
    lambda: (*draw((5,)), torch.tensor([0, 1.5, 0, 2, -0.7], dtype=torch.float64)),
    lambda x, y: x * y, lambda g, x, y: (g * y * y, g * x),
    "has one factor too many of `y`.",
)  # fmt: skip


@broken("backward-not-finite", "the gradient of the branch not taken is 0 times inf",
        lambda: (torch.tensor([0.0, 1, 4], dtype=torch.float64),))  # fmt: skip
def root_or_zero(x):
    return torch.where(x > 0, x.sqrt(), 0 * x)


# --- what was changed, left out, or left behind ---------------------------------------------------


@broken("scaled", "in place, and wrong for another reason", vector)
class TripledInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.mark_dirty(x.mul_(3))
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output


wrong(
    "RoundsAndForgets", "gradient-none", "a lie about x, and nothing for the weight", pair,
    lambda x, weight: x.round() * weight, lambda g, x, weight: g, faithful=False,
)  # fmt: skip
wrong("LinearThroughData", "double-backward-missing", ".data, where the function is linear", vector,
      lambda x: 2 * x, lambda g, x: 2 * g.data)  # fmt: skip
wrong(
    "AddsALittle", "not-linear", "what is added is small, and no rounding",
    lambda: (1 + vector()[0].abs(),), lambda x: x.square().sum(), lambda g, x: g * 2 * x + 1e-4,
)  # fmt: skip


@broken("double-backward-wrong", "behind a gradient that is right for what is symmetric", symmetric)
class TraceOfInverse(Function):
    """Reads one triangle, as Cholesky does."""

    @staticmethod
    def forward(ctx, a):
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(a))
        ctx.save_for_backward(inverse)
        return inverse.diagonal().sum()

    @staticmethod
    def backward(ctx, grad_output):
        (inverse,) = ctx.saved_tensors
        return -grad_output * inverse @ inverse
