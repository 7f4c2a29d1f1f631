"""Broken Functions for chapter 11 and for the tests of the gradient doctor, and healthy ones.

`BROKEN` and `HEALTHY` are lists of `Patient`. Those of `BROKEN` carry the code of the finding that
names what is wrong with them; the doctor must not accuse those of `HEALTHY`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from helpers import doctor
from helpers.ops import legacy
from helpers.ops.exp import Exp, exp
from helpers.ops.gradient_reversal import GradientReversalLayer, gradient_reversal
from helpers.ops.linear import linear
from helpers.ops.mul_constant import mul_constant
from helpers.ops.softplus import softplus


@dataclass
class Patient:
    """A function, inputs that show what is the matter, and the finding that is due.

    fn:      a Function or another callable
    inputs:  inputs() makes new ones, always the same numbers
    code:    of the finding; for a healthy patient that of the note, or None
    about:   what is wrong, in one line
    options: keyword arguments for `examine`
    """

    name: str
    fn: Callable
    inputs: Callable[[], tuple]
    code: str | None
    about: str
    options: dict = field(default_factory=dict)

    def examine(self):
        """The doctor's report."""
        return doctor.examine(self.fn, *self.inputs(), **self.options)

    def gradcheck(self):
        """What `torch.autograd.gradcheck` says of a float64 copy; None if it finds nothing."""
        inputs = []
        for value in self.inputs():
            if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
                value = value.double()
            if isinstance(value, torch.Tensor) and (
                value.is_floating_point() or value.is_complex()
            ):
                value.requires_grad_()
            inputs.append(value)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                fn = self.fn.apply if isinstance(self.fn, type) else self.fn
                torch.autograd.gradcheck(fn, tuple(inputs))
            except Exception as error:
                return str(error).strip() or type(error).__name__
        return None


BROKEN: list[Patient] = []
HEALTHY: list[Patient] = []


def broken(code, about, inputs, **options):
    """Register the decorated Function or callable in BROKEN."""

    def register(fn):
        BROKEN.append(Patient(fn.__name__, fn, inputs, code, about, options))
        return fn

    return register


def healthy(about, inputs, code=None, **options):
    """Register the decorated Function or callable in HEALTHY."""

    def register(fn):
        HEALTHY.append(Patient(fn.__name__, fn, inputs, code, about, options))
        return fn

    return register


def draw(*shapes, dtype=torch.float64, positive=False):
    """Random tensors, the same ones at every call."""
    generator = torch.Generator().manual_seed(7)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    if dtype.is_complex:
        tensors = [torch.complex(t, t.roll(1)) for t in tensors]
    return tuple((t.abs() + 0.1 if positive else t).to(dtype) for t in tensors)


def vector():
    return draw((6,))


def matrix():
    return draw((3, 4))


def pair():
    return draw((3, 4), (3, 4))


def affine():
    return draw((3, 4), (5, 4), (5,))


def square():
    return draw((3, 4), (4, 4))


# --- right numbers in the wrong place, with the wrong sign, of the wrong size ---------------------


class Linear(Function):
    """The right one, from which several patients are derived."""

    @staticmethod
    def forward(ctx, input, weight, bias):
        ctx.save_for_backward(input, weight)
        return input @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        grads = [None, None, None]
        if ctx.needs_input_grad[0]:
            grads[0] = grad_output @ weight
        if ctx.needs_input_grad[1]:
            grads[1] = grad_output.t() @ input
        if ctx.needs_input_grad[2]:
            grads[2] = grad_output.sum(0)
        return tuple(grads)


class Matmul(Function):
    """The right one."""

    @staticmethod
    def forward(ctx, input, weight):
        ctx.save_for_backward(input, weight)
        return input @ weight

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight.t(), input.t() @ grad_output


class Square(Function):
    """The right one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x


class Multiply(Function):
    """The right one."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y, grad_output * x


@broken("transposed", "the weight is square, so its transposed gradient fits", square)
class TransposedWeight(Matmul):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight.t(), grad_output.t() @ input


@broken("transposed", "the engine rejects the shape", lambda: draw((3, 4), (4, 5)))
class TransposedShape(Matmul):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight.t(), grad_output.t() @ input


@broken("jacobian-transposed", "the matrix is used as it stands, not its transpose", square)
class UntransposedMatrix(Matmul):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, input.t() @ grad_output


@broken("negated", "a minus sign is forgotten", pair)
class Subtract(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x - y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, grad_output


@broken("scaled", "the factor 2 of 2x is forgotten", vector)
class HalfSquare(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x


@broken("factor-missing", "the exponent is forgotten as a factor", lambda: (*vector(), 3))
class Power(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        return x**exponent

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x ** (ctx.exponent - 1), None


@broken("factor-missing", "the inner derivative 2x of exp(x²) is forgotten", vector)
class ExpOfSquare(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x * x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


@broken("inner-derivative-forgotten", "grad_output is handed on as it came", vector)
class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sin(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


@broken("derivative-wrong", "the formula is that of another function", vector)
class WrongFormula(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * s * (1 - s)


@broken("grad-output-ignored", "the chain rule is left out", vector)
class IgnoresGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x


@broken("mean-for-sum", "the mean over the batch where the sum belongs", affine)
class MeanOverBatch(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ input, grad_output.mean(0)


@broken("sum-for-mean", "forward takes the mean, backward forgets to divide", matrix)
class MeanRows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return x.mean(0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.expand(ctx.rows, -1)


@broken("swapped", "each input gets the gradient of the other", pair)
class SwappedGradients(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * x, grad_output * y


@broken("partly-right", "the loop stops half-way", vector)
class HalfOfTheElements(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for i in range(len(x) // 2):
            grad[i] = grad_output[i] * 2 * x[i]
        return grad


@broken("partly-right", "the slope for negative numbers is forgotten", vector)
class LeakyReLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > 0)


@broken("partly-right", "the mask is forgotten", vector)
class UnmaskedReLU(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


@broken("shifted", "off by one", vector)
class ShiftedByOne(Function):
    @staticmethod
    def forward(ctx, x):
        return F.pad(x * 3, (0, 1))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output[1:] * 3


@broken("reversed", "the flip is not undone", matrix)
class FlippedBack(Function):
    @staticmethod
    def forward(ctx, x):
        return x.flip(1).clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone()


@broken("misplaced", "the permutation instead of its inverse", vector)
class WrongPermutation(Function):
    order = (2, 0, 3, 1, 5, 4)

    @staticmethod
    def forward(ctx, x):
        return x[list(WrongPermutation.order)]

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output[list(WrongPermutation.order)]


@broken("contribution-lost", "a repeated index is assigned, not added up",
        lambda: (*vector(), torch.tensor([0, 2, 2, 5])))  # fmt: skip
class RepeatedIndex(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.size = x.shape
        return x[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.size)
        grad[index] = grad_output
        return grad, None


@broken("grad-output-partly-ignored", "only the first sample of the batch counts", affine)
class FirstSampleOnly(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ input, grad_output[0]


@broken("term-missing", "the mean depends on every element, too", matrix)
class Centre(Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


@broken("term-missing", "the sum in the derivative of softmax is left out", matrix)
class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, 1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


@broken("right-only-for-ones", "grad_output is averaged", vector)
class AveragesGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.mean() * 2 * x


@broken("right-here-only", "a number that belongs to one input is written into backward",
        lambda: (torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64),))  # fmt: skip
class BakedConstant(Square):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 4.0


@broken("not-linear", "grad_output is squared", vector)
class SquaresGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output**2 * 2 * x


@broken("not-linear", "a penalty is added in backward", vector)
class AddsAPenalty(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x + 0.01 * x


@broken("gradient-none", "None is returned for the weight", affine)
class ForgottenWeight(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        _, weight = ctx.saved_tensors
        return grad_output @ weight, None, grad_output.sum(0)


@broken("gradient-zero", "zeros are returned for the weight", affine)
class ZerosForWeight(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        _, weight = ctx.saved_tensors
        return grad_output @ weight, torch.zeros_like(weight), grad_output.sum(0)


@broken("term-missing", "a power of the norm is forgotten", lambda: draw((5,), positive=True))
class Normalize(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.norm()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / x.norm() - x * (grad_output * x).sum()


@broken("gradient-wrong", "the product rule has two terms", lambda: draw((3, 3)))
class MatrixSquare(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output @ x.t()


# --- deliberate, but only with faithful=False -----------------------------------------------------


class RoundStraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class ClipGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clamp(-0.5, 0.5)


def reverse(x):
    return gradient_reversal(x, 0.5)


class Binarize(Function):
    """Sign, with the gradient of hardtanh."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.abs() <= 1)


for code, fn in (
    ("straight-through", RoundStraightThrough), ("straight-through", Binarize),
    ("not-linear", ClipGradient), ("scaled", reverse),
):  # fmt: skip
    broken(code, "deliberate, but not declared", vector)(fn)
    healthy("deliberate, and declared", vector, faithful=False)(fn)


# --- shapes, dtypes, numbers, exceptions ----------------------------------------------------------


@broken("gradient-shape", "squeeze removes the only feature", lambda: draw((3, 4), (1, 4), (1,)))
class SqueezedBias(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ input, grad_output.sum(0).squeeze(0)


@broken("gradient-count", "no gradient for the bias", affine)
class TooFewGradients(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ input


@broken("gradient-for-constant", "a gradient for a Python number", lambda: (*vector(), 3.0))
class GradientForNumber(Function):
    @staticmethod
    def forward(ctx, x, constant):
        ctx.constant = constant
        return x * constant

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.constant, grad_output.sum()


@broken("gradient-for-index", "a gradient for an integer tensor",
        lambda: (*vector(), torch.tensor([0, 3])))  # fmt: skip
class GradientForIndex(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.size = x.shape
        return x[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.size).index_add(0, index, grad_output)
        return grad, torch.zeros(2, dtype=torch.float64)


@broken("gradient-dtype", "backward works in float32", vector)
class CastsToFloat(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.float() * 2 * x.float()


@broken("gradient-device", "a gradient on another device", vector)
class WrongDevice(Square):
    @staticmethod
    def backward(ctx, grad_output):
        return torch.empty_like(grad_output, device="meta")


@broken("gradient-type", "a number instead of a tensor", vector)
class NumberForGradient(Square):
    @staticmethod
    def backward(ctx, grad_output):
        return 2.0


@broken("attribute-missing", "forward did not store it", vector)
class MissingAttribute(Square):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor


@broken("saved-count", "two tensors are unpacked, one was saved", vector)
class UnpacksTooMuch(Square):
    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * (x + y)


@broken("backward-arguments", "two outputs, but backward takes one gradient", vector)
class OneGradOutput(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 5 * grad_output


@broken("shapes-do-not-fit", "a transpose is missing", affine)
class MissingTranspose(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight.t(), grad_output.t() @ input, grad_output.sum(0)


@broken("method-missing", "there is no backward", vector)
class NoBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * x


@broken("raised", "a name that does not exist", vector)
def misspelt(x):
    return torch.sinus(x)


@broken("output-detached", "forward goes through NumPy", vector)
def through_numpy(x):
    return torch.from_numpy(x.detach().numpy() ** 2)


# --- what forward leaves behind -------------------------------------------------------------------


@broken("saved-modified", "changed between save_for_backward and return", vector)
class SavedThenChanged(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.save_for_backward(y)
        y += 1
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


@broken("saved-modified", "changed by backward", vector)
class ChangedByBackward(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return x.mul_(2 * grad_output)


@broken("saved-modified", "the caller changes the result, which was saved", vector)
def changed_by_caller(x):
    return Exp.apply(x).add_(1)


@broken("input-modified", "mark_dirty is missing", vector)
class NotMarkedDirty(Function):
    @staticmethod
    def forward(ctx, x):
        x *= 3
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


@broken("input-returned", "the output is the input itself", vector)
class ReturnsItsInput(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


@broken("view-returned", "the output shares the input's memory", matrix)
class ReturnsAView(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape
        return x[0]

    @staticmethod
    def backward(ctx, grad_output):
        grad = grad_output.new_zeros(ctx.size)
        grad[0] = grad_output
        return grad


@broken("reference-cycle", "the output on ctx", vector)
class OutputOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = torch.exp(x)
        return ctx.result

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.result


@broken("tensor-on-ctx", "an input on ctx", vector)
class InputOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2 * ctx.x


# --- the second derivative ------------------------------------------------------------------------


@broken("double-backward-wrong", "an intermediate on ctx is a constant to backward", vector)
class IntermediateOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = torch.cosh(x)
        return torch.sinh(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.slope


@broken("double-backward-wrong", ".data cuts the graph", vector)
class ThroughData(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x.data


@broken("double-backward-missing", "NumPy leaves no graph", vector)
class ThroughNumPy(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(grad_output.detach().numpy() * 2 * x.detach().numpy())


@healthy("a second derivative is refused openly", vector, "double-backward-refused")
class OnceDifferentiable(Square):
    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x


# --- the protocol of backward ---------------------------------------------------------------------


@broken("needs-input-grad-ignored", "matrix products that nobody asked for", affine)
class NeverAsks(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ input, grad_output.sum(0)


@broken("needs-input-grad-wrong", "the wrong flag is asked", affine)
class AsksTheWrongFlag(Linear):
    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        grad_weight = grad_output.t() @ input if ctx.needs_input_grad[0] else None
        return grad_output @ weight, grad_weight, grad_output.sum(0)


@broken("none-not-handled", "None arrives for the unused output", vector)
class UnhandledNone(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, grad_double, grad_triple):
        return 2 * grad_double + 3 * grad_triple


@broken("grad-output-layout", "an expanded grad_output is refused", matrix)
class AssertsContiguity(Square):
    @staticmethod
    def backward(ctx, grad_output):
        assert grad_output.is_contiguous()
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x


@broken("grad-output-layout", "memory is read as if it were contiguous", matrix)
class ReadsMemory(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        flat = torch.empty(0, dtype=x.dtype).set_(grad_output.untyped_storage())
        flat = torch.cat([flat, flat.new_zeros(x.numel())])[: x.numel()]
        return flat.reshape(x.shape) * 2 * x


@broken("grad-output-modified", "grad_output belongs to the engine", vector)
class ChangesGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.mul_(2 * x)


@broken("state-between-calls", "the last call overwrites what the first one saved", vector)
class SavesOnTheClass(Function):
    saved = None

    @staticmethod
    def forward(ctx, x):
        SavesOnTheClass.saved = x
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2 * SavesOnTheClass.saved


@broken("forward-not-deterministic", "a counter", vector)
class CountsItsCalls(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        CountsItsCalls.calls += 1
        return x * CountsItsCalls.calls

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * CountsItsCalls.calls


@broken("backward-not-deterministic", "backward draws a mask of its own", lambda: draw((40,)))
class DrawsTwice(Function):
    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (torch.rand_like(grad_output) > 0.5)


@broken("backward-not-deterministic", "a sum that is never reset", vector)
class Accumulates(Square):
    total = 0

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        Accumulates.total = Accumulates.total + grad_output * 2 * x
        return Accumulates.total


# --- numbers --------------------------------------------------------------------------------------


@broken("forward-not-finite", "log(0)", lambda: (torch.tensor([0.0, 1, 2], dtype=torch.float64),))
class XLogX(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.log(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (torch.log(x) + 1)


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


@broken("low-precision", "exp(100) overflows in float32", lambda: (torch.tensor([1.0, 100.0]),))
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


@broken(
    "conjugate",
    "the derivative must be conjugated",
    lambda: draw((4,), (4,), dtype=torch.complex128),
)
class ForgottenConjugate(Multiply):
    pass


@broken("imaginary-lost", "a cast to real numbers", lambda: draw((4,), dtype=torch.complex128))
class LosesImaginaryPart(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output.real.to(grad_output.dtype)


@broken("negated", "a module, and one output of two", vector)
class ModuleWithTwoOutputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.full((6,), 0.5, dtype=torch.float64))

    def forward(self, x):
        return x + self.offset, Subtract.apply(x, self.offset)


BROKEN[-1].fn = ModuleWithTwoOutputs()


@broken("partly-right", "one element of a million", lambda: draw((1000, 1000)))
class OneInAMillion(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = grad_output * 2 * x
        grad[700, 123] = 0
        return grad


# --- healthy --------------------------------------------------------------------------------------


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
    ("leaky_relu_float32", F.leaky_relu, lambda: draw((3, 4), dtype=torch.float32), None),
    ("gelu_bfloat16", F.gelu, lambda: draw((3, 4), dtype=torch.bfloat16), None),
):
    wrapped(name, fn, inputs, code)


for name, fn, inputs, code in (
    ("exp", exp, matrix, None),
    ("softplus", softplus, lambda: (torch.tensor([-100.0, 0.0, 1.0, 100.0]),), None),
    ("linear", linear, affine, None),
    ("mul_constant", mul_constant, lambda: (*vector(), 3.0), None),
    ("dropout", F.dropout, lambda: draw((40,)), None),
    ("cross_entropy", F.cross_entropy, lambda: (*matrix(), torch.tensor([1, 0, 3])), None),
    ("embedding", lambda i, w: F.embedding(i, w), lambda: (INDEX, *square()[1:]), None),
):
    HEALTHY.append(Patient(name, fn, inputs, code, "as it is shipped"))

for module in (
    GradientReversalLayer(), torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(4),
    torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)),
):  # fmt: skip
    options = {"faithful": False} if isinstance(module, GradientReversalLayer) else {}
    name = type(module).__name__
    HEALTHY.append(Patient(name, module, lambda: draw((3, 4), dtype=torch.float32), None,
                           "a module", options))  # fmt: skip


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
