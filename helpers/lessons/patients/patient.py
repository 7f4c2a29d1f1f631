"""What a patient is, its usual inputs, and right Functions from which several are derived."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.autograd import Function

from helpers import doctor
from helpers.lessons.judge.source import edited, made_of, source_of


@dataclass
class Patient:
    """A function, inputs that show what is the matter, and the findings that are due.

    fn:      a Function or another callable
    inputs:  inputs() makes new ones, always the same numbers
    codes:   of the errors, or of the warnings where there is none, as one string
    about:   what is wrong, in one line
    says:    what the texts contain
    never:   what they do not contain
    note:    the code of a note, or None
    options: keyword arguments for `examine`
    """

    name: str
    fn: Callable
    inputs: Callable[[], tuple]
    codes: str
    about: str
    says: tuple = ()
    never: tuple = ()
    note: str | None = None
    options: dict = field(default_factory=dict)

    @property
    def code(self):
        """Of what is found first."""
        return self.codes.split()[0] if self.codes else self.note

    def examine(self, **options):
        """The doctor's report."""
        return doctor.examine(self.fn, *self.inputs(), **{**self.options, **options})

    def gradcheck(self):
        """What `torch.autograd.gradcheck` says of a float64 copy; None if it finds nothing."""
        inputs = []
        for value in self.inputs():
            if isinstance(value, torch.Tensor):
                value = value.double() if value.is_floating_point() else value
                value.requires_grad_(value.is_floating_point() or value.is_complex())
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


def broken(codes, about, inputs, *says, register=BROKEN, name=None, never=(), note=None, **options):
    """Register the decorated Function or callable, or a module, in BROKEN."""

    def decorate(fn):
        called = name or getattr(fn, "__name__", type(fn).__name__)
        register.append(Patient(called, fn, inputs, codes, about, says, never, note, options))
        return fn

    return decorate


def healthy(about, inputs, note=None, **options):
    """The same in HEALTHY."""
    return broken("", about, inputs, register=HEALTHY, note=note, **options)


def function(forward, backward, name="Wrong"):
    """The Function of two plain functions, which saves all that forward takes.

    forward(...) returns the output, backward(grad_output, ...) the gradients, of which those that
    are None at the end may be left out; both take the same arguments.
    """
    parameters = inspect.signature(forward).parameters
    ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_ONLY)

    class Made(Function):
        @staticmethod
        def forward(ctx, *given):
            ctx.save_for_backward(*(value for value in given if isinstance(value, torch.Tensor)))
            ctx.given = [None if isinstance(v, torch.Tensor) else v for v in given]
            return forward(*given)

        @staticmethod
        def backward(ctx, *grads):
            saved = iter(ctx.saved_tensors)
            found = backward(*grads, *(next(saved) if v is None else v for v in ctx.given))
            found = found if isinstance(found, tuple) else (found,)
            return found + (None,) * (len(ctx.given) - len(found))

    Made.forward.__signature__ = inspect.Signature([ctx, *parameters.values()])
    Made.__name__ = Made.__qualname__ = name
    return Made


def wrong(name, codes, about, inputs, forward, backward, *says, **options):
    """Register in BROKEN the `function` of these two."""
    broken(codes, about, inputs, *says, **options)(function(forward, backward, name))


def right(name, about, inputs, forward, backward, note=None, **options):
    """The same in HEALTHY."""
    healthy(about, inputs, note, **options)(function(forward, backward, name))


def slip(name, codes, about, of, inputs, edits, *says, **options):
    """Register in BROKEN the right Function `of`, each old text in `edits` replaced by the new.

    A new text can use what the module of `of` imports.
    """
    _, _, source = source_of(of).partition(f"class {of.__name__}")  # without its decorators
    source = edited(f"class {name}{source}", edits)
    names = {**vars(sys.modules[of.__module__]), "__name__": name}  # its source is in no file
    broken(codes, about, inputs, *says, **options)(made_of(source, names, name))


def linear(input, weight, bias):
    return input @ weight.t() + bias


def matmul(input, weight):
    return input @ weight


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


# --- right Functions, in which slips are made -----------------------------------------------------


class Linear(Function):
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


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output


class Matmul(Function):
    @staticmethod
    def forward(ctx, input, weight):
        ctx.save_for_backward(input, weight)
        return input @ weight

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        return grad_output @ weight.t(), input.t() @ grad_output


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x


class Multiply(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y, grad_output * x
