"""What people write now, right and wrong: what the doctor says of it."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from helpers.doctor import examine
from tests.doctor.common import codes, drawn

CASES = []


def case(due, *says, inputs, **options):
    """Register the decorated callable with the codes that are due, and words of the report.

    due: of errors and warnings, as one string; inputs: tensors, or a function that makes them
    """

    def register(fn):
        CASES.append(pytest.param(fn, inputs, due, says, options, id=fn.__name__))
        return fn

    return register


def f64(*shapes):
    return drawn(*shapes)


def f32(*shapes):
    return drawn(*shapes, dtype=torch.float32)


# --- layouts ----------------------------------------------------------------------------


def rows(t, like):
    return torch.as_strided(t, like.shape, like.stride(), t.storage_offset())


def dense_last(t):
    return t if t.stride(-1) == 1 else t.contiguous()


@case("grad-output-layout", "a slice of a wider tensor", inputs=f64((3, 4)))
class SinCos(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, gs, gc):
        (x,) = ctx.saved_tensors
        gs, gc = (rows(dense_last(g), x) for g in (gs, gc))
        return gs * x.cos() - gc * x.sin()


@case("input-layout", "a slice of a wider tensor", inputs=f64((3, 4)))
class DenseInput(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.as_strided(x, x.shape, (4, 1), x.storage_offset()).cos()


@case("", inputs=f64((3, 4)))
class Strided(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return rows(g.contiguous(), g.contiguous()) * x.cos()


# --- control flow, subclasses, compiled code ------------------------------------------------


@case("", inputs=f64((3,)))
def of_cond(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


@case("", inputs=f64((5, 3), (3,)))
def of_scan(xs, carry):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: ((c * x).sin(), (c + x).sin()), carry, xs)[1].sum(0)


@case("", inputs=f64((5, 3)))
def of_map(xs):
    from torch._higher_order_ops.map import map as map_over

    return map_over(lambda x: x.sin() * x, xs)


class Plain(torch.Tensor):
    pass


@case("", inputs=lambda: (torch.ones(2, 3).as_subclass(Plain).requires_grad_(),))
def of_a_subclass(x):
    return torch.sin(x)


@case("", inputs=f32((3, 4), (4, 4), (4, 2)))
def compiled(x, a, b):
    torch._dynamo.reset()
    made = torch.compile(lambda x, a, b: F.gelu(x @ a) @ b, backend="aot_eager")
    return made(x, a, b)


# --- randomness -------------------------------------------------------------------------


@case("", inputs=(*f64((6,)), 0.5))
class Noisy(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * scale + torch.randn_like(x) * scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, None


@case("gradient-wrong", inputs=f64((4, 5), (5,)))
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


# --- repairs ----------------------------------------------------------------------------


def halves(n, d):
    angle = torch.outer(torch.arange(n).double(), 0.5 ** torch.arange(d // 2))
    return [torch.cat([t, t], -1) for t in (angle.cos(), angle.sin())]


def turned(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


@case(
    *("partly-right", "right if: `g * cos - turned(g * sin)`"),
    inputs=lambda: (*f64((3, 4)), *halves(3, 4)),
    options={"lines": True},
)
class RoPE(Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return x * cos + turned(x) * sin

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return g * cos + turned(g * sin), None, None
