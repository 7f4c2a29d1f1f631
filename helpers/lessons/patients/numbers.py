"""nan and inf, low precision, complex numbers, large inputs."""

import torch
from torch.autograd import Function

from .patient import Multiply, Square, broken, draw, function, healthy, slip, vector, wrong

# --- numbers --------------------------------------------------------------------------------------


wrong(
    "XLogX", "forward-not-finite", "log(0)",
    lambda: (torch.tensor([0.0, 1, 2], dtype=torch.float64),),
    lambda x: x * torch.log(x), lambda g, x: g * (torch.log(x) + 1),
)  # fmt: skip


@broken("backward-not-finite", "0/0 where the slope is 0",
        lambda: (torch.tensor([0.0, 1, 2], dtype=torch.float64),))  # fmt: skip
class Sinc(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x == 0, 1.0, torch.sin(x) / x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x * torch.cos(x) - torch.sin(x)) / (x * x)


@broken("input-not-finite", "nan in the data",
        lambda: (torch.tensor([torch.nan, 1], dtype=torch.float64),))  # fmt: skip
def sine_of_nan(x):
    return torch.sin(x)


@broken("output-dtype", "float32 comes out", vector)
def returns_single(x):
    return x.float()


wrong(
    "SinglePrecisionSlope", "coarse-backward",
    "backward computes in float32, which differences do not show", vector,
    lambda x: x * x, lambda g, x: g * 2 * x.float().to(x.dtype),
)  # fmt: skip


@broken("low-precision", "exp(100) overflows in float32", lambda: (torch.tensor([1.0, 100.0]),),
        "but not in float32: backward makes nan or inf")  # fmt: skip
class NaiveSoftplus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logaddexp(x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.exp(x) / (1 + torch.exp(x))


@broken("low-precision", "the square overflows in float16",
        lambda: (torch.tensor([300.0, 400.0], dtype=torch.float16),))  # fmt: skip
def hypotenuse(x):
    return (x * x).sum().sqrt()


class RootMeanSquare(Function):
    """In half precision, forward computes in float32; so does backward, if it is to."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        wide = x.float() if x.dtype is torch.float16 else x
        return wide.square().mean(1).sqrt().to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        wide = x.float() if x.dtype is torch.float16 else x
        root = wide.square().mean(1, keepdim=True).sqrt()
        return (grad_output[:, None] * wide / root / x.shape[1]).to(x.dtype)


healthy("float16, but for the sums", lambda: draw((3, 50)))(RootMeanSquare)


@healthy("in float16, rounding decides where it is in a step", lambda: (4 * draw((20,))[0],))
class SoftSteps(Function):
    @staticmethod
    def forward(ctx, x):
        assert x.dtype is not torch.bfloat16
        ctx.save_for_backward(x)
        step = torch.floor(2 * x)
        return step / 2 + torch.tanh(8 * (x - (step + 0.5) / 2)) / 8

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        inner = torch.tanh(8 * (x - (torch.floor(2 * x) + 0.5) / 2))
        return grad_output * (1 - inner * inner)


@broken(
    "conjugate",
    "the derivative must be conjugated",
    lambda: draw((4,), (4,), dtype=torch.complex128),
)
class ForgottenConjugate(Multiply):
    pass


SUBTRACT = function(lambda x, y: x - y, lambda g, x, y: (g, g), "Subtract")


class ModuleWithTwoOutputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.full((6,), 0.5, dtype=torch.float64))

    def forward(self, x):
        return x + self.offset, SUBTRACT.apply(x, self.offset)


broken("negated", "a module, and one output of two", vector)(ModuleWithTwoOutputs())


slip("OneOfMany", "partly-right", "one element of many", Square, lambda: draw((300, 300)),
     {"return grad_output * 2 * x": "grad = grad_output * 2 * x; grad[270, 123] = 0; return grad"},
     "right in part: at [270, 123] it is zero")  # fmt: skip
