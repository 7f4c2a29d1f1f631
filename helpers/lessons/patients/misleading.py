"""What looks like another cause, or like none: few digits, wrong dimensions, zeros."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .innocent import symmetric
from .patient import Double, Linear, Multiply, Square, affine, broken, draw, matrix, pair, vector

# --- dimensions -----------------------------------------------------------------------------------


@broken("broadcast-wrong", "unsqueeze is forgotten, and the matrix is square", lambda: draw((4, 4)))
class LogSumExpOfRows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logsumexp(x, 1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.softmax(x, 1)


@broken("summed-too-far", "the features are summed, too", affine)
class SumsAllForTheBias(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        grad_bias = grad_output.sum().expand(grad_output.shape[1])
        return grad_output @ weight, grad_output.t() @ input, grad_bias


@broken("sum-for-mean", "a mean over two dimensions", lambda: draw((2, 3, 5)))
class MeanOfPixels(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.mean((0, 2))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output[:, None].expand(ctx.shape)


@broken("sum-for-mean", "and a sign", lambda: draw((12, 2)))
class MinusMeanRows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return -x.mean(0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.expand(ctx.rows, -1)


@broken("shifted", "rolled on, not back", lambda: draw((2, 7)))
class RollsOn(Function):
    @staticmethod
    def forward(ctx, x):
        return x.roll(2, 1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.roll(2, 1)


@broken("cross-terms-lost", "softmax as if each element stood alone", matrix)
class DiagonalOfSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, 1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y * (1 - y)


# --- numbers --------------------------------------------------------------------------------------


@broken("few-digits", "backward computes in float16", vector)
class HalfPrecision(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return (grad_output.half() * 2 * x.half()).double()


@broken(
    "few-digits", "backward in float16, forward in float32, so that differences show less", vector
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


@broken("not-linear", "a clip that small numbers do not reach", lambda: draw((3,)))
class ClipsWhatIsLarge(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.clamp(-20, 20) * 2 * x


@broken("partly-right", "wrong where the result is a millionth of the largest",
        lambda: (torch.linspace(-3, 14, 18, dtype=torch.float64),))  # fmt: skip
class SmallBesideLarge(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * torch.where(x < -2, 20 * y, y)


@broken("partly-right", "the bound of the Huber loss is forgotten", lambda: (*draw((9,)), 0.5))
class Huber(Function):
    @staticmethod
    def forward(ctx, x, delta):
        ctx.save_for_backward(x)
        return torch.where(x.abs() < delta, x * x / 2, delta * (x.abs() - delta / 2))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x, None


@broken("partly-right", "a mask that leaves out zeros",
        lambda: (torch.tensor([0.0, 1, 0, -2], dtype=torch.float64),))  # fmt: skip
class MasksZeros(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * grad_output * (x != 0)


@broken("factor-missing", "a factor that is zero here and there",
        lambda: (*draw((5,)), torch.tensor([0, 1.5, 0, 2, -0.7], dtype=torch.float64)))  # fmt: skip
class MasksTwice(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y * y, grad_output * x


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


@broken("gradient-none", "a lie about x, and nothing for the weight", pair, faithful=False)
class RoundsAndForgets(Function):
    @staticmethod
    def forward(ctx, x, weight):
        return torch.round(x) * weight

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


@broken("double-backward-missing", ".data, where the function is linear", vector)
class LinearThroughData(Double):
    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output.data


@broken("not-linear", "what is added is small, and no rounding", lambda: (1 + vector()[0].abs(),))
class AddsALittle(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x + 1e-4


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
