"""What a case is, how one is written, and right Functions in which slips are made."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import Function

from helpers import doctor
from helpers.lessons.judge.source import edited, made_of, source_of


@dataclass
class Case:
    """A function, inputs that show what is the matter, and the findings that are due.

    fn:      a Function or another callable
    inputs:  inputs() makes new ones, always the same numbers
    codes:   of the errors, or of the warnings where there is none, as one string
    says:    what the report holds
    never:   what it does not hold
    note:    the code of a note, or None
    line:    what the change that is named must hold; None if none has to be named
    first:   the same of the first local that is wrong
    options: keyword arguments for `examine`
    """

    name: str
    fn: Callable
    inputs: Callable[[], tuple]
    codes: str
    says: tuple
    never: tuple
    note: str | None
    line: str | None
    first: str | None
    options: dict

    @property
    def code(self):
        """Of what is found first."""
        return self.codes.split()[0] if self.codes else self.note

    def examine(self, **options):
        """The doctor's report."""
        options = {**self.options, **options}
        return doctor.examine(self.fn, *self.inputs(), **options)

    def gradcheck(self):
        """What `torch.autograd.gradcheck` says of a float64 copy; None if nothing."""
        inputs = []
        for value in self.inputs():
            if torch.is_tensor(value):
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


BROKEN: list[Case] = []
HEALTHY: list[Case] = []


def broken(
    codes,
    inputs,
    *says,
    never=(),
    note=None,
    line=None,
    first=None,
    name=None,
    cases=BROKEN,
    **options,
):
    """Register the decorated Function or callable, or a module, in BROKEN.

    What is due is as in a `Case`; options: of `examine`.
    """
    due = codes, says, never, note, line, first

    def decorate(fn):
        called = name or getattr(fn, "__name__", type(fn).__name__)
        cases.append(Case(called, fn, inputs, *due, options))
        return fn

    return decorate


def healthy(inputs, note=None, *says, **more):
    """The same in HEALTHY: the doctor must not accuse it."""
    return broken("", inputs, *says, note=note, cases=HEALTHY, **more)


def function(forward, backward, name="Wrong"):
    """The Function of two plain functions, which saves all that forward takes.

    forward(...) returns the output, backward(grad_output, ...) the gradients, of which
    those that are None at the end may be left out; both take the same arguments.
    """
    parameters = inspect.signature(forward).parameters
    ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_ONLY)

    class Made(Function):
        @staticmethod
        def forward(ctx, *given):
            tensors = (value for value in given if torch.is_tensor(value))
            ctx.save_for_backward(*tensors)
            ctx.given = [None if torch.is_tensor(v) else v for v in given]
            return forward(*given)

        @staticmethod
        def backward(ctx, *grads):
            saved = iter(ctx.saved_tensors)
            given = (next(saved) if value is None else value for value in ctx.given)
            found = backward(*grads, *given)
            found = found if isinstance(found, tuple) else (found,)
            return found + (None,) * (len(ctx.given) - len(found))

    Made.forward.__signature__ = inspect.Signature([ctx, *parameters.values()])
    Made.__name__ = Made.__qualname__ = name
    return Made


def wrong(name, codes, inputs, forward, backward, *says, **more):
    """Register in BROKEN the `function` of these two."""
    broken(codes, inputs, *says, **more)(function(forward, backward, name))


def with_a_slip(of, name, edits):
    """The right Function `of` under this name, {old: new} in its source.

    A new text can use what the module of `of` imports.
    """
    _, _, source = source_of(of).partition(f"class {of.__name__}")  # undecorated
    source = edited(f"class {name}{source}", edits)
    in_no_file = {"__name__": name}
    return made_of(source, vars(sys.modules[of.__module__]) | in_no_file, name)


def slip(name, of, inputs, edits, codes, *says, **more):
    """Register in BROKEN `of` `with_a_slip`."""
    broken(codes, inputs, *says, **more)(with_a_slip(of, name, edits))


def slips(of, inputs, rows, warned="", due="line", **options):
    """Register `of`, which is right, and a slip for each row: old, new, codes, line.

    warned: the code of a warning about the right one
    due:    "first", if that stands in a row in place of `line`; words may follow it
    """
    broken(warned, inputs, cases=HEALTHY, **options)(of)
    for old, new, codes, part, *says in rows:
        fn = with_a_slip(of, of.__name__, {old: new})
        more = {"name": f"{of.__name__}: {old} -> {new}", due: part, **options}
        broken(codes, inputs, *says, **more)(fn)


def draw(*shapes, dtype=torch.float64, positive=False, seed=7):
    """Random tensors, the same ones at every call."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.float64
    tensors = [torch.randn(shape, generator=generator, dtype=wide) for shape in shapes]
    if dtype.is_complex:
        tensors = [torch.complex(t, t.roll(1)) for t in tensors]
    return tuple((t.abs() + 0.1 if positive else t).to(dtype) for t in tensors)


def numbers(*values):
    return lambda: (torch.tensor(values, dtype=torch.float64),)


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


# --- right Functions, in which slips are made -----------------------------------------


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
