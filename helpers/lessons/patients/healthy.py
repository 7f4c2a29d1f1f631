"""Whom the doctor must not accuse: operations, modules, and what computes or asks again."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from helpers.ops import legacy
from helpers.ops.exp import exp
from helpers.ops.gradient_reversal import GradientReversalLayer
from helpers.ops.linear import linear
from helpers.ops.mul_constant import mul_constant
from helpers.ops.softplus import softplus

from .patient import Square, affine, draw, healthy, matrix, right, square, vector


def single():
    return draw((3, 4), dtype=torch.float32)


def zeros_and_more():
    return (torch.tensor([0.0, 0.0, 1.0, -2.0], dtype=torch.float64),)


def wrapped(name, fn, inputs, code=None):
    """PyTorch's own operation inside a Function of ours."""

    class Wrapped(Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return fn(*tensors)

        @staticmethod
        def backward(ctx, *grad_outputs):
            tensors, needs = ctx.saved_tensors, ctx.needs_input_grad

            def both():
                return zip(tensors, needs, strict=True)

            def of_those_needed(*wanted):
                wanted = iter(wanted)
                return fn(*(next(wanted) if need else t for t, need in both()))

            wanted = [t for t, need in both() if need]
            _, vjp = torch.func.vjp(of_those_needed, *wanted)
            grads = iter(vjp(grad_outputs if len(grad_outputs) > 1 else grad_outputs[0]))
            return tuple(next(grads) if need else None for need in needs)

    Wrapped.__name__ = name
    healthy("PyTorch's own operation, wrapped", inputs, code)(Wrapped)


INDEX = torch.tensor([[0, 0, 1], [2, 3, 2], [1, 1, 1]])
MASK = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
TIES = (torch.tensor([2.0, 1.0, 2.0, -3.0], dtype=torch.float64),)

for name, fn, inputs, code in (
    ("sine", torch.sin, vector, None),
    ("matmul", torch.matmul, lambda: draw((2, 3, 4), (4, 5)), None),
    ("relu_at_0", torch.relu, zeros_and_more, "kink"),
    ("abs_at_0", torch.abs, zeros_and_more, "kink"),
    ("max_with_ties", torch.max, lambda: TIES, "kink"),
    ("amax_with_ties", torch.amax, lambda: TIES, "kink"),
    (
        "amax_and_amin_of_equals",
        lambda x: x.amax(1) + x.amin(1),
        lambda: (torch.ones(3, 4),),
        "kink",
    ),  # where slopes along single elements do not add up
    ("clamp_at_its_edge", lambda x: x.clamp(-2, 1), zeros_and_more, "kink"),
    ("floor_is_flat", torch.floor, vector, None),
    ("softmax", lambda x: torch.softmax(x, 1), matrix, None),
    ("log_softmax", lambda x: torch.log_softmax(x, 1), matrix, None),
    ("layer_norm", lambda x, w: F.layer_norm(x, (4,), w), lambda: draw((3, 4), (4,)), None),
    ("conv2d", F.conv2d, lambda: draw((2, 3, 5, 5), (2, 3, 3, 3), (2,)), None),
    ("cumsum", lambda x: x.cumsum(1), matrix, None),
    ("gather_repeated", lambda x: x.gather(1, INDEX), matrix, None),
    ("logsumexp", lambda x: torch.logsumexp(x, 0), matrix, None),
    ("product", torch.prod, vector, None),
    ("sort", lambda x: torch.sort(x, 1).values, matrix, None),
    ("sqrt_at_0", torch.sqrt, lambda: (torch.arange(3.0, dtype=torch.float64),), "singular"),
    ("dropout_with_a_fixed_mask", lambda x: x * MASK * 2, vector, None),
    ("complex_product", torch.mul, lambda: draw((4,), (4,), dtype=torch.complex128), None),
    ("complex_abs", torch.abs, lambda: draw((4,), dtype=torch.complex128), None),
    ("two_outputs", lambda x: (x.sin(), x.cos().sum()), matrix, None),
    ("leaky_relu_float32", F.leaky_relu, single, "double-copy"),
    ("gelu_bfloat16", F.gelu, lambda: draw((3, 4), dtype=torch.bfloat16), None),
):
    wrapped(name, fn, inputs, code)


for fn, inputs in (
    (exp, matrix),
    (softplus, lambda: (torch.tensor([-100.0, 0.0, 1.0, 100.0]),)),
    (linear, affine),
    (mul_constant, lambda: (*vector(), 3.0)),
    (F.dropout, lambda: draw((40,))),
    (F.cross_entropy, lambda: (*matrix(), torch.tensor([1, 0, 3]))),
    (F.embedding, lambda: (INDEX, *square()[1:])),
):
    healthy("as it is shipped", inputs)(fn)

for module in (
    GradientReversalLayer(), torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(4),
    torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)),
):  # fmt: skip
    reverses = isinstance(module, GradientReversalLayer)
    healthy("a module", single, "unfaithful" if reverses else None, faithful=not reverses)(module)


@healthy("an input that is changed in place, and said to be", vector)
class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


@healthy("an integer output, without a gradient", matrix)
class MaxWithIndex(Function):
    @staticmethod
    def forward(ctx, x):
        values, index = x.max(1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.size = x.shape
        return values, index

    @staticmethod
    def backward(ctx, grad_values, _):
        (index,) = ctx.saved_tensors
        grad = grad_values.new_zeros(ctx.size)
        return grad.scatter(1, index[:, None], grad_values[:, None])


@healthy("an output that is declared to have no gradient", vector, "marked-non-differentiable")
class OneOfTwo(Function):
    @staticmethod
    def forward(ctx, x):
        y, z = 2 * x, 3 * x
        ctx.mark_non_differentiable(z)
        return y, z

    @staticmethod
    def backward(ctx, grad_double, _):
        return 2 * grad_double


@healthy("None is answered", vector)
class HandledNone(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, grad_double, grad_triple):
        grad = None if grad_double is None else 2 * grad_double
        if grad_triple is None:
            return grad
        return 3 * grad_triple if grad is None else grad + 3 * grad_triple


@healthy("the intermediate is an output", vector)
class Sinh(Function):
    @staticmethod
    def forward(ctx, x):
        sinh, cosh = torch.sinh(x), torch.cosh(x)
        ctx.save_for_backward(sinh, cosh)
        return sinh, cosh

    @staticmethod
    def backward(ctx, grad_sinh, grad_cosh):
        sinh, cosh = ctx.saved_tensors
        return grad_sinh * cosh + grad_cosh * sinh


class _LegacySquare(legacy.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * x

    def backward(self, grad_output):
        (x,) = self.saved_tensors
        return grad_output * 2 * x


@healthy("the API of 2017", vector, "double-backward-refused")
def legacy_square(x):
    return _LegacySquare()(x)


@healthy("a second derivative is refused openly", vector, "double-backward-refused")
class OnceDifferentiable(Square):
    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x


right("BroadcastByTheEngine", "more is broadcast than the engine is told", vector,
      lambda x: x + torch.ones(3, 6), lambda g, x: g, "engine-sums")  # fmt: skip


@healthy("a matrix in float32", single, "not-in-double")
def sine_in_single(x):
    return torch.sin(x) @ torch.eye(4)


@healthy("rounding hides the slope", lambda: (torch.tensor([1e-6, 2e-6], dtype=torch.float64),),
         "not-judged")  # fmt: skip
def log_cosh(x):
    return x.cosh().log()


@healthy("an index has no gradient", vector, "no-output")
def largest(x):
    return x.argmax()


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
