"""Whom the doctor must not accuse, and what it has to note of some."""

import random

import numpy as np
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from helpers.lessons.patients.patient import Linear, Square, affine, draw, function, matrix, vector
from tests.doctor.cases import Table, drawn, ones

case = CASES = Table()


class Dropout(Function):
    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask


for dtype in (torch.float32, torch.float64, torch.bfloat16):
    case("", inputs=lambda dtype=dtype: (torch.randn(4, 5).to(dtype),), name=f"{dtype}")(Dropout)

case("", inputs=(ones(3),), name="draws from NumPy and from Python")(
    lambda x: x * np.random.rand() * random.random()
)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    case("", "note double-copy", str(dtype).removeprefix("torch."),
         inputs=draw((3, 4), dtype=dtype), name=f"tanh of {dtype}")(torch.tanh)  # fmt: skip
case("", "note not-in-double", inputs=(torch.ones(2, 3),), name="runs in float32 only")(
    lambda x: torch.sin(x) @ torch.eye(3)
)
case("", "note kink", inputs=(torch.tensor([1.0, 0.0]).double(),), name="abs at 0")(torch.abs)
case("", inputs=(torch.ones(3, 4).double(),), name="a parameter that is not used")(
    type("Half", (nn.Linear,), {"forward": lambda self, x: x @ self.weight.t()})(4, 3).double()
)


def bias_before_a_batch_norm():
    """Its gradient is zero by cancellation; with this seed float32 leaves 8e-5 of it."""
    torch.manual_seed(31)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    return module, torch.rand(5, 4)


MODULE, X = bias_before_a_batch_norm()
case("", inputs=(X,), name="zero by cancellation")(MODULE)


class BothBranches(Square):
    """Every line is reached by one trial or another, or only raises."""

    @staticmethod
    def forward(ctx, x, y):
        if x.shape != y.shape:
            shapes = f"{x.shape} and {y.shape}"
            raise ValueError(
                f"x and y must have one shape, got {shapes}",
            )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_product, grad_sum):
        x, y = ctx.saved_tensors
        grad_x = grad_y = None
        if grad_product is not None:
            if ctx.needs_input_grad[0]:
                grad_x = grad_product * y
            else:
                assert ctx.needs_input_grad[1]
            if ctx.needs_input_grad[1]:
                grad_y = grad_product * x
        if grad_sum is None:
            return grad_x, grad_y
        return tuple(grad_sum if g is None else g + grad_sum for g in (grad_x, grad_y))


class CubeWithAJvp(Square):
    """A jvp and a second derivative reach lines of their own."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return grad_output * 3 * x * x
        return grad_output * x.square() * 3

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x**3

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tangent


for fn, inputs in (
    (Linear, affine), (BothBranches, lambda: (*vector(), 1 + vector()[0])), (CubeWithAJvp, vector),
):  # fmt: skip
    case("", "not Not reached", inputs=inputs)(fn)


def symmetric():
    (a,) = draw((4, 4))
    return (a @ a.t() + torch.eye(4, dtype=torch.float64),)


def nearly_symmetric():
    (a,) = symmetric()
    a[0, 1] *= 1 + 1e-9
    return a, *draw((4, 3))


class LogDetOfSymmetric(Function):
    factor = 1

    @classmethod
    def forward(cls, ctx, a):
        if not torch.equal(a, a.mT):
            raise ValueError("a must be symmetric")
        ctx.save_for_backward(a)
        return torch.logdet(a)

    @classmethod
    def backward(cls, ctx, grad_output):
        (a,) = ctx.saved_tensors
        return cls.factor * grad_output * torch.linalg.inv(a)


for dtype in (torch.float64, torch.float32):
    inputs = (symmetric()[0].to(dtype),)
    case("", inputs=inputs, name=f"{dtype}")(LogDetOfSymmetric)
    wrong = type("TwiceLogDet", (LogDetOfSymmetric,), {"factor": 2})
    case("gradient-wrong", inputs=inputs, name=f"judged along symmetric changes, {dtype}")(wrong)

case("needs-input-grad-ignored", inputs=nearly_symmetric, name="symmetric, though rounded")(
    function(
        lambda matrix, x: (x * (matrix @ x)).sum(0),
        lambda g, matrix, x: (g * x @ x.t(), 2 * g * (matrix @ x)),
    )
)


class OwnName(Square):
    """Puts on ctx what may have a meaning for whoever examines it."""

    @staticmethod
    def forward(ctx, x):
        ctx.label, ctx.lines, ctx.cls = "p", 3, None
        return Square.forward(ctx, x)


case("", inputs=vector)(OwnName)


class OfTheLastStep(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            z = sum(torch.tanh(x / k) for k in range(1, 5))
        return torch.tanh(z.detach() + x)


case("", "note unfaithful", inputs=matrix, faithful=False, name="a declared lie")(OfTheLastStep())
case("", inputs=lambda: drawn((0, 4), (4,)), name="an empty tensor")(lambda x, w: (x * w).sum(1))
case("", inputs=lambda: drawn(()), name="a scalar")(torch.sin)
