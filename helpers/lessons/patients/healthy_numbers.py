"""Whom the doctor must not accuse: coarse numbers, and special points."""

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .patient import Linear, Square, draw, healthy, matrix, right, vector

# --- coarse numbers -------------------------------------------------------------------------------


@healthy("float32 inside, as LLaMA normalizes", lambda: draw((2, 3, 8), (8,)), "coarse-inside")
def rms_norm(x, weight):
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
    return weight * h.to(x.dtype)


@healthy("float32 inside", lambda: draw((2, 4, 6), dtype=torch.bfloat16), "coarse-inside")
def softmax_in_single(scores):
    return F.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)


def unlucky(seed):
    """A draw, one of fifty, for which differences do not show that `attention` is coarse."""
    generator = torch.Generator()

    def inputs():
        generator.manual_seed(seed)
        return tuple(torch.randn(2, 3, 4, generator=generator) for _ in range(3))

    return inputs


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 2, -1, dtype=torch.float32).to(q.dtype) @ v


for seed in (103, 136, 218):
    healthy("float32 inside, which the draw hides", unlucky(seed), "coarse-inside")(attention)


right("WorksInSingle", "float32 in, float32 out", lambda: draw((3, 4), dtype=torch.float32),
      lambda x: x.float() ** 2, lambda g, x: 2 * g * x.float(), "double-copy")  # fmt: skip


def brain():
    return draw((2, 6), (6, 6), (6,), dtype=torch.bfloat16)


@healthy("takes bfloat16 only", brain, "too-coarse")
class KnowsOnlyBfloat16(Linear):
    @staticmethod
    def forward(ctx, input, weight, bias):
        assert input.dtype == torch.bfloat16
        return Linear.forward(ctx, input, weight, bias)


right(
    "KnowsOnlySingle", "garbage in float64", lambda: draw((3, 4), dtype=torch.float32),
    lambda x: x * x if x.dtype == torch.float32 else 1e6 * torch.sin(1e3 * x),
    lambda g, x: 2 * g * x,
)  # fmt: skip
right(
    "FineSteps", "rounds in steps too fine to be told from coarse numbers", lambda: draw((48,)),
    lambda x: torch.round(x / 6.4e-6), lambda g, x: g / 6.4e-6,
)  # fmt: skip


SPARSE = torch.eye(3, dtype=torch.float64).to_sparse()
NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)

# --- special points -------------------------------------------------------------------------------


@healthy("a row of zeros, where a norm has a kink and a second derivative is nan", lambda: (
    torch.tensor([[0.0, 0, 0], [1, 2, 3], [2, -1, 1]], dtype=torch.float64),), "kink")  # fmt: skip
def row_norm(x):
    return x.norm(dim=1)


def symmetric():
    (a,) = draw((4, 4))
    return (a @ a.t() + torch.eye(4, dtype=torch.float64),)


@healthy("reads the lower triangle of what is symmetric", symmetric, "symmetric-only")
def cholesky(a):
    return torch.linalg.cholesky(a)


@healthy("no kink: the one-sided slopes of a square at 0 shrink", lambda: (0 * matrix()[0],))
def square_at_zero(x):
    return x**2


@healthy("no kink: a pole that is nearer than the step", lambda: (
    torch.tensor([1e-30, 2, 3], dtype=torch.float64),), "not-judged")  # fmt: skip
def reciprocal_near_its_pole(x):
    return 1 / x


@healthy("takes nothing else than what is symmetric", symmetric)
class LogDetOfSymmetric(Function):
    @staticmethod
    def forward(ctx, a):
        if not torch.equal(a, a.mT):
            raise ValueError("a must be symmetric")
        ctx.save_for_backward(a)
        return torch.logdet(a)

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_tensors
        return grad_output * torch.linalg.inv(a)


right(
    "InverseOfSymmetric", "right for what is symmetric", symmetric,
    lambda a: a.inverse(), lambda g, a: -a.inverse().t() @ g @ a.inverse(),
)  # fmt: skip
right(  # |x - y|², which is 2 - 2 x · y where both have length 1
    "SquaredChord", "right for unit vectors",
    lambda: tuple(F.normalize(t, dim=1) for t in draw((4, 3), (4, 3))),
    lambda x, y: (x - y).square().sum(1),
    lambda g, x, y: (
        2 * g[:, None] * (x * x.square().sum(1, keepdim=True) - y), 2 * g[:, None] * (y - x)
    ),
)  # fmt: skip


def uniform_of_seed_0():
    return (torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),)


@healthy("drawn from the seed that the input was drawn from", uniform_of_seed_0)
def bernoulli(x):
    return x * torch.bernoulli(x.detach())


@healthy("a sparse matrix beside it", lambda: (SPARSE, *draw((3, 2))))
def sparse_product(matrix, x):
    return torch.sparse.mm(matrix, x)


@healthy("a nested tensor beside it", lambda: (NESTED, *draw((3, 2))), "not-examined")
def times_longest(parts, x):
    return x * max(len(part) for part in parts.unbind())


@healthy("a view, which nobody may write to", lambda: draw((3, 4)), "view-returned")
class Flatten(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.view(ctx.shape)


right(
    "Spikes", "a surrogate's slope, in float32 whatever comes in",
    lambda: draw((4,), dtype=torch.float32), lambda x: (x > 0).float(),
    lambda g, x: g / (25 * x.abs() + 1) ** 2, "unfaithful", faithful=False,
)  # fmt: skip


@healthy("backward refuses what it was not given", lambda: (torch.linspace(0.2, 1, 5).double(),))
class TakesOnlyWhatReachesOne(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if x.max() < 0.985:
            raise ValueError("x must reach 1")
        return 2 * grad_output * x


@healthy("a branch that only large numbers reach", vector)
class ClampsWhatIsLarge(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if x.dim() > 3:
            raise ValueError(f"x must have at most 3 dimensions, got {x.dim()}")
        if x.abs().max() > 1e3:
            grad_output = grad_output.clamp(-1, 1)
        return 2 * grad_output * x


@healthy("changes by jumps only", vector)
def rounded(x):
    return (4 * x).round()


@healthy("saves half of the bytes", lambda: draw((6, 8)))
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


@healthy("draws from a generator of its own, in float32 another number", lambda: (torch.rand(5),))
def noisy(x):
    generator = torch.Generator().manual_seed(3)
    return (1 + torch.rand(x.shape, generator=generator, dtype=x.dtype) / 5) * x


class WithoutRows(torch.nn.Module):
    """One of its parameters is empty."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Parameter(torch.zeros(0, 4))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.cat([self.rows, x * self.weight])


healthy("a parameter that is empty", lambda: (torch.rand(3, 4),))(WithoutRows())


def log_mean_exp(x):
    return x.logsumexp(0) - math.log(len(x))


right(
    "LogMeanExp", "numbers so large that only rounding is left of some slopes",
    lambda: (1000 * draw((5, 4))[0],),
    log_mean_exp, lambda g, x: g * torch.exp(x - log_mean_exp(x)) / len(x),
)  # fmt: skip


class OneStep(torch.nn.Module):
    """The gradient of the last step only, of a fixed point."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Parameter(torch.eye(4).double() / 3)
        self.bias = torch.nn.Parameter(torch.ones(4).double() / 5)

    def step(self, z, x):
        return torch.tanh(z @ self.inner + x + self.bias)

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(60):
                z = self.step(z, x)
        return self.step(z, x)


healthy("a gradient that is declared not to be the derivative has no second one to be judged",
        matrix, "unfaithful", faithful=False)(OneStep())  # fmt: skip


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


healthy("draws, and gives the gradient of a mean", lambda: draw((4,)), "estimator")(SmoothedByNoise)


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


healthy("forward iterates until it is exact to 1e-3", lambda: draw((6,)), "coarse-forward")(
    CubicRoot
)
