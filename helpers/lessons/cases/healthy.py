"""Whom the doctor must not accuse, and what it has to say of some all the same."""

import random

import numpy as np
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from helpers.ops import legacy
from helpers.ops.gradient_reversal import GradientReversalLayer

from .case import (
    Double,
    Square,
    broken,
    draw,
    function,
    healthy,
    matrix,
    numbers,
    vector,
    with_a_slip,
)
from .protocol import Cube, UnhandledNone


def single():
    return draw((3, 4), dtype=torch.float32)


# --- PyTorch's own operations, and modules --------------------------------------------


def wrapped(fn):
    """PyTorch's own operation inside a Function, whose backward is that of autograd."""

    class Wrapped(Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return fn(*tensors)

        @staticmethod
        def backward(ctx, *grad_outputs):
            tensors, needs = ctx.saved_tensors, ctx.needs_input_grad

            def of_those_needed(*wanted):
                wanted = iter(wanted)
                pairs = zip(tensors, needs, strict=True)
                return fn(*(next(wanted) if need else t for t, need in pairs))

            wanted = [t for t, need in zip(tensors, needs, strict=True) if need]
            _, vjp = torch.func.vjp(of_those_needed, *wanted)
            grads = iter(
                vjp(grad_outputs if len(grad_outputs) > 1 else grad_outputs[0])
            )
            return tuple(next(grads) if need else None for need in needs)

    return Wrapped


INDEX = torch.tensor([[0, 0, 1], [2, 3, 2], [1, 1, 1]])
TIES = numbers(2.0, 1.0, 2.0, -3.0)
ZEROS = numbers(0.0, 0.0, 1.0, -2.0)

for name, fn, inputs, note in (
    ("matmul", torch.matmul, lambda: draw((2, 3, 4), (4, 5)), None),
    ("relu at 0", torch.relu, ZEROS, "kink"),
    ("max with ties", torch.max, TIES, "kink"),
    ("clamp at its edge", lambda x: x.clamp(-2, 1), ZEROS, "kink"),
    ("floor is flat", torch.floor, vector, None),
    ("softmax", lambda x: torch.softmax(x, 1), matrix, None),
    ("conv2d", F.conv2d, lambda: draw((2, 3, 5, 5), (2, 3, 3, 3), (2,)), None),
    ("gather repeated", lambda x: x.gather(1, INDEX), matrix, None),
    ("logsumexp", lambda x: torch.logsumexp(x, 0), matrix, None),
    ("sqrt at 0", torch.sqrt, numbers(0.0, 1.0, 2.0), "singular"),
    ("complex abs", torch.abs, lambda: draw((4,), dtype=torch.complex128), None),
    ("two outputs", lambda x: (x.sin(), x.cos().sum()), matrix, None),
    ("leaky_relu in float32", F.leaky_relu, single, "double-copy"),
    ("gelu in bfloat16", F.gelu, lambda: draw((3, 4), dtype=torch.bfloat16), None),
):
    healthy(inputs, note, name=name)(wrapped(fn))

for name, fn, inputs, note in (
    (
        "1/x near its pole",
        torch.reciprocal,
        numbers(1e-300, 1e-30, 1e-3, 1),
        "singular",
    ),
    (
        "Cholesky reads one triangle",
        torch.linalg.cholesky,
        lambda: SPD,
        "symmetric-only",
    ),
    (
        "log cosh, whose slope 1 + x hides",
        lambda x: x.cosh().log(),
        numbers(1e-6, 2e-6),
        "not-judged",
    ),
    ("an index", torch.argmax, vector, "no-output"),
    ("float32 only", lambda x: torch.sin(x) @ torch.eye(4), single, "not-in-double"),
    ("a square at 0", lambda x: x**2, numbers(0.0, 0.0), None),
    (
        "another Function ends forward mode",
        lambda x: Double.apply(Cube.apply(x)),
        vector,
        None,
    ),
    (
        "draws from NumPy and Python",
        lambda x: x * np.random.rand() * random.random(),
        vector,
        None,
    ),
    (
        "what is judged at no point",
        lambda x: (x.bfloat16() ** 2).double(),
        vector,
        "too-coarse",
    ),
    (
        "float16 inside: judged at no point, either",
        lambda x: (x.half() ** 2).double(),
        vector,
        "too-coarse",
    ),
):
    healthy(inputs, note, name=name)(fn)

healthy(single, "unfaithful", faithful=False)(GradientReversalLayer())
healthy(single)(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))


class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


healthy(single, "double-copy")(Checkpointed(nn.Linear(4, 5), nn.Tanh()))


class WithoutRows(nn.Module):
    """One of its parameters is empty."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(0, 4))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.cat([self.rows, x * self.weight])


healthy(single)(WithoutRows())

# --- the protocol, kept ---------------------------------------------------------------


healthy(vector)(
    with_a_slip(
        Double,
        "InPlace",
        {"return 2 * x": "ctx.mark_dirty(x.mul_(2)); return x"},
    )
)
healthy(vector, "marked-non-differentiable")(
    with_a_slip(
        Double,
        "OneOfTwo",
        {
            "return 2 * x": "z = 3 * x\n"
            "        ctx.mark_non_differentiable(z)\n"
            "        return 2 * x, z",
            "grad_output):": "grad_output, _):",
        },
    )
)


@healthy(vector)
class HandledNone(UnhandledNone):
    @staticmethod
    def backward(ctx, grad_double, grad_triple):
        grad = None if grad_double is None else 2 * grad_double
        if grad_triple is None:
            return grad
        return 3 * grad_triple if grad is None else grad + 3 * grad_triple


@healthy(lambda: draw((3, 4)), "view-returned")
class Flatten(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.view(ctx.shape)


class LegacySquare(legacy.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * x

    def backward(self, grad_output):
        (x,) = self.saved_tensors
        return grad_output * 2 * x


@healthy(vector, "double-backward-refused")
def legacy_square(x):
    return LegacySquare()(x)


healthy(vector, "engine-sums")(
    function(
        lambda x: x + torch.ones(3, 6),
        lambda g, x: g,
        "BroadcastByTheEngine",
    )
)


@healthy(matrix)
def forces(positions):
    """Asks for a gradient, as of an energy."""
    energy = (positions**2).sum() * positions.sum()
    return -torch.autograd.grad(energy, positions, create_graph=True)[0]


@healthy(lambda: draw((40,)))
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


# --- coarse numbers -------------------------------------------------------------------


@healthy(lambda: draw((2, 3, 8), (8,)), "coarse-inside")
def rms_norm(x, weight):
    """Float32 inside, as LLaMA normalizes."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
    return weight * h.to(x.dtype)


@healthy(lambda: draw(*[(2, 3, 4)] * 3, dtype=torch.float32, seed=103), "coarse-inside")
def attention(q, k, v):
    """Float32 inside, which this draw, one of fifty, hides from differences."""
    return torch.softmax(q @ k.mT / 2, -1, dtype=torch.float32).to(q.dtype) @ v


healthy(single)(
    function(
        lambda x: x * x if x.dtype == torch.float32 else 1e6 * torch.sin(1e3 * x),
        lambda g, x: 2 * g * x,
        "KnowsOnlySingle",  # and makes garbage in float64
    )
)


@healthy(lambda: draw((6, 8)), "coarse-saved")
class HalfStored(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.half())
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.to(grad_output.dtype).cos()


healthy(lambda: draw((6, 8)), "too-coarse")(
    with_a_slip(
        HalfStored,
        "EighthStored",
        {"x.half()": "x.to(torch.float8_e4m3fn)"},
    )
)


@healthy(lambda: draw((6,)), "coarse-forward")
class CubicRoot(Function):
    """The solution of x + x³ = a by bisection, which stops at an error of 1e-3."""

    @staticmethod
    def forward(ctx, a):
        low, high = torch.full_like(a, -10), torch.full_like(a, 10)
        while (high - low).max() > 1e-3:
            x = (low + high) / 2
            above = x + x**3 > a
            low, high = torch.where(above, low, x), torch.where(above, x, high)
        x = (low + high) / 2
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (1 + 3 * x**2)


@healthy(lambda: draw((4,)), "estimator")
class SmoothedByNoise(Function):
    """Randomised smoothing, whose gradient is estimated by the noise itself."""

    @staticmethod
    def forward(ctx, x):
        noise = torch.randn(64, *x.shape, dtype=x.dtype)
        ctx.save_for_backward(x, noise)
        return ((x + 0.3 * noise) ** 3).mean(0)

    @staticmethod
    def backward(ctx, grad_output):
        x, noise = ctx.saved_tensors
        return grad_output * (((x + 0.3 * noise) ** 3) * noise / 0.3).mean(0)


# --- special points -------------------------------------------------------------------

A = draw((4, 4))[0]
SPD = (A @ A.t() + torch.eye(4, dtype=torch.float64),)


healthy(lambda: tuple(F.normalize(t, dim=1) for t in draw((4, 3), (4, 3))))(
    function(  # |x - y|², which is 2 - 2 x · y where both have length 1
        lambda x, y: (x - y).square().sum(1),
        lambda g, x, y: (
            2 * g[:, None] * (x * x.square().sum(1, keepdim=True) - y),
            2 * g[:, None] * (y - x),
        ),
        "SquaredChord",
    )
)


healthy(numbers(0.2, 0.4, 0.6, 0.8, 1))(
    with_a_slip(
        Square,
        "TakesOnlyWhatReachesOne",
        {
            "return grad_output": "if x.max() < 0.985:\n"
            '            raise ValueError("x must reach 1")\n'
            "        return grad_output"
        },
    )
)


# --- what was judged, and what was not ------------------------------------------------


def frozen_beside_weight():
    weight = torch.ones(4, dtype=torch.float64)
    return *matrix(), weight.requires_grad_()


def normal(x):
    return x * (x * x).mean(-1, keepdim=True).rsqrt()


OfWeightOnly = function(
    lambda x, weight: normal(x) * weight,
    lambda g, x, _: (None, (g * normal(x)).sum(0)),
)


class RefusesX(OfWeightOnly):
    @staticmethod
    def backward(ctx, g):
        if ctx.needs_input_grad[0]:
            raise NotImplementedError("no gradient of x")
        return OfWeightOnly.backward(ctx, g)


for fn, why in (
    (OfWeightOnly, "backward returns None for it"),
    (RefusesX, "the function fails once it does"),
):
    said = f"not judged: `x` (it requires no gradient, and {why})"
    judged = "judged: `weight` at 3 points, first and second order"
    healthy(frozen_beside_weight, None, judged, said, name=f"frozen: {why}")(fn)

RMSNorm = function(
    lambda x, weight: normal(x) * weight,
    # What x does to the others by the mean is missing.
    lambda g, x, weight: (g * weight * normal(x) / x, (g * normal(x)).sum(0)),
    "RMSNorm",
)
said = "The gradient of `x` is off by a number that is the same all"
broken("term-wrong", frozen_beside_weight, said)(RMSNorm)


def sparse():
    dense = torch.tensor([[0, 0, 3], [4, 0, 5]], dtype=torch.float64)
    return dense.to_sparse().requires_grad_(), draw((3, 2))[0].requires_grad_()


@healthy(sparse, None, "not judged: `matrix` (it is sparse or nested")
def sparse_product(matrix, x):
    return matrix @ x


NESTED = [torch.ones(2), torch.ones(3)]
NESTED = torch.nested.nested_tensor(NESTED, layout=torch.jagged)


@healthy(lambda: (NESTED, *draw((3, 2))), None, "not judged: `parts`")
def times_longest(parts, x):
    return x * max(len(part) for part in parts.unbind())


@healthy(lambda: draw((3,)), None, "nothing judged", "forward raises near the given")
def at_one_point(x):
    if not torch.allclose(x, *draw((3,), dtype=x.dtype)):
        raise ValueError("only this x")
    return x.sin()


@broken(
    "gradient-wrong",
    lambda: (0.2 * draw((3, 3))[0], *draw((2, 3))),
    "not judged: `x` (element by element, that would take long)",
)
class Slow(Function):
    """Both gradients are wrong; calls suffice to say it of one."""

    @staticmethod
    def forward(ctx, w, x):
        z = torch.zeros_like(x)
        for _ in range(200):
            z = torch.tanh(z @ w + x)
        ctx.save_for_backward(w, z)
        return z

    @staticmethod
    def backward(ctx, g):
        w, z = ctx.saved_tensors
        u, slope = g, 1 - z * z
        for _ in range(200):
            u = g + (u @ w.T) * slope
        return z.T @ (u * slope), u * slope
