"""Right code that a careless examination accuses: it recomputes, asks for gradients, is coarse."""

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .patient import Linear, Square, draw, healthy, matrix, vector

# --- what backward calls again --------------------------------------------------------------------


class Recompute(Function):
    """run(x), computed once more in backward, as checkpointing does it."""

    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run = run
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, grad_output):
        tensors = ctx.saved_tensors
        wanted = [t for t, need in zip(tensors, ctx.needs_input_grad[1:], strict=True) if need]
        with torch.enable_grad():
            y = ctx.run(tensors[0])
        grads = iter(torch.autograd.grad(y, wanted, grad_output, create_graph=True))
        return None, *(next(grads) if need else None for need in ctx.needs_input_grad[1:])


class RecomputesByHand(torch.nn.Sequential):
    def forward(self, x):
        return Recompute.apply(super().forward, x, *self.parameters())


class Checkpointed(torch.nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class RefusesGrad(Function):
    """As reentrant checkpoints do: right under `.backward()`, refuses `torch.autograd.grad`."""

    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("this is incompatible with .grad(): use .backward()")
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(ctx.run(x), grad_output)
        return None, x.grad


@healthy("to be asked by .backward()", matrix, "double-backward-refused")
def sine_for_backward(x):
    return RefusesGrad.apply(torch.sin, x)


for kind in (RecomputesByHand, Checkpointed):
    module = kind(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    inputs = draw((3, 4), dtype=torch.float32)
    healthy("a module that computes twice", lambda inputs=inputs: inputs, "double-copy")(module)


class CheckpointedInFloat64(Checkpointed):
    """Where its own parameters are those that are examined first."""


healthy("a module that computes twice", lambda: draw((3, 4)))(
    CheckpointedInFloat64(torch.nn.Linear(4, 2), torch.nn.Tanh()).double()
)


# --- what forward asks of autograd ----------------------------------------------------------------


@healthy("forward asks for a gradient, as of an energy", matrix)
def forces(positions):
    energy = (positions**2).sum() * positions.sum()
    return -torch.autograd.grad(energy, positions, create_graph=True)[0]


@healthy("forward registers a hook", matrix)
def hooked(x):
    y = 2 * x
    y.register_hook(lambda grad: grad)
    return y.sin()


@healthy("an inner optimization is differentiated", lambda: draw((5,), (5,)))
def unrolled(weight, target):
    start = weight
    for _ in range(2):
        loss = (weight - target).pow(4).sum() + (weight - start).square().sum()
        weight = weight - 0.05 * torch.autograd.grad(loss, weight, create_graph=True)[0]
    return weight


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


@healthy("float32 in, float32 out", lambda: draw((3, 4), dtype=torch.float32), "double-copy")
class WorksInSingle(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float() ** 2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * grad_output * x.float()


def brain():
    return draw((2, 6), (6, 6), (6,), dtype=torch.bfloat16)


@healthy("takes bfloat16 only", brain, "too-coarse")
class KnowsOnlyBfloat16(Linear):
    @staticmethod
    def forward(ctx, input, weight, bias):
        assert input.dtype == torch.bfloat16
        return Linear.forward(ctx, input, weight, bias)


@healthy("garbage in float64", lambda: draw((3, 4), dtype=torch.float32))
class KnowsOnlySingle(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x if x.dtype == torch.float32 else 1e6 * torch.sin(1e3 * x)


@healthy(
    "rounds in steps too fine to be told from coarse numbers", lambda: draw((48,)), "coarse-inside"
)
class FineSteps(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x / 6.4e-6)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output / 6.4e-6


SPARSE = torch.eye(3, dtype=torch.float64).to_sparse()

# --- special points -------------------------------------------------------------------------------


@healthy("a row of zeros, where a norm has a kink and a second derivative is nan", lambda: (
    torch.tensor([[0.0, 0, 0], [1, 2, 3], [2, -1, 1]], dtype=torch.float64),), "kink")  # fmt: skip
def row_norm(x):
    return x.norm(dim=1)


def symmetric():
    (a,) = draw((4, 4))
    return (a @ a.t() + torch.eye(4, dtype=torch.float64),)


@healthy("reads the lower triangle of what is symmetric", symmetric, "one-triangle")
def cholesky(a):
    return torch.linalg.cholesky(a)


@healthy("no kink: the one-sided slopes of a square at 0 shrink", lambda: (0 * matrix()[0],))
def square_at_zero(x):
    return x**2


@healthy("no kink: a pole that is nearer than the step", lambda: (
    torch.tensor([1e-30, 2, 3], dtype=torch.float64),), "not-judged")  # fmt: skip
def reciprocal_near_its_pole(x):
    return 1 / x


@healthy("takes nothing else than what is symmetric", symmetric, "symmetric-only")
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


@healthy("right for what is symmetric", symmetric)
class InverseOfSymmetric(Function):
    @staticmethod
    def forward(ctx, a):
        y = torch.linalg.inv(a)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return -y.t() @ grad_output @ y


@healthy(
    "right for unit vectors", lambda: tuple(F.normalize(t, dim=1) for t in draw((4, 3), (4, 3)))
)
class SquaredChord(Function):
    """|x - y|², which is 2 - 2 x · y where both have length 1."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x - y).square().sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        grad_x = 2 * grad_output[:, None] * (x * x.square().sum(1, keepdim=True) - y)
        return grad_x, 2 * grad_output[:, None] * (y - x)


def uniform_of_seed_0():
    return (torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),)


@healthy("drawn from the seed that the input was drawn from", uniform_of_seed_0)
def bernoulli(x):
    return x * torch.bernoulli(x.detach())


@healthy("a sparse matrix beside it", lambda: (SPARSE, *draw((3, 2))), "not-examined")
def sparse_product(matrix, x):
    return torch.sparse.mm(matrix, x)


@healthy(
    "a surrogate's slope, in float32 whatever comes in",
    lambda: draw((4,), dtype=torch.float32), "unfaithful", faithful=False,
)  # fmt: skip
class Spikes(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (25 * x.abs() + 1) ** 2


@healthy("backward refuses what it was not given", lambda: (torch.linspace(0.2, 1, 5).double(),))
class TakesOnlyWhatReachesOne(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if x.max() < 0.985:
            raise ValueError("x must reach 1")
        return 2 * grad_output * x


@healthy("a branch that only large numbers reach", vector, "not-reached")
class ClampsWhatIsLarge(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        if x.dim() > 3:
            raise ValueError(f"x must have at most 3 dimensions, got {x.dim()}")
        if x.abs().max() > 1e3:
            grad_output = grad_output.clamp(-1, 1)
        return 2 * grad_output * x


@healthy("changes by jumps only", vector, "flat")
def rounded(x):
    return (4 * x).round()


@healthy("saves half of the bytes", lambda: draw((6, 8)), "stored-coarsely")
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


@healthy(
    "numbers so large that only rounding is left of some slopes", lambda: (1000 * draw((5, 4))[0],)
)
class LogMeanExp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.logsumexp(0) - math.log(len(x))
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * torch.exp(x - y) / len(x)


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
