"""Exercises of chapter 01: the legacy Function API."""

import contextlib
import inspect
import re

import torch

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import difference, first_line
from helpers.ops.legacy import Function


class AddConstant(Function):
    def __init__(self, constant):
        self.constant = constant

    def forward(self, x):
        return x + self.constant

    def backward(self, grad_output):
        return grad_output


class Transpose(Function):
    def __init__(self, dim0, dim1):
        self.dims = dim0, dim1

    def forward(self, x):
        return x.transpose(*self.dims)

    def backward(self, grad_output):
        return grad_output.transpose(*self.dims)


class SquareToday(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input * input

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return 2 * input * grad_output


def _random(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _not_legacy(attempt):
    if issubclass(attempt, torch.autograd.Function):
        return (
            "it derives from today's torch.autograd.Function. The old style is "
            "`from helpers.ops.legacy import Function`."
        )
    if attempt.__init__ is object.__init__:
        return "it has no method `__init__`. Two underscores on each side?"
    for name, argument in (("forward", "x"), ("backward", "grad_output")):
        method = inspect.getattr_static(attempt, name)
        if method is getattr(Function, name):
            return f"it has no method `{name}`. Look at its spelling and indentation."
        if isinstance(method, staticmethod):
            return f"`{name}` is a static method, which belongs to today's style."
        try:
            inspect.signature(method).bind("self", argument)
        except TypeError:
            return f"`{name}` must take (self, {argument})."
    return None


def _wrong_instance(attempt, arguments, reference, x):
    """`difference` for instances of a legacy class, after what it has no eye or no words for."""
    try:
        instance = attempt(*arguments)
    except Exception as error:
        return f"the constructor raises {type(error).__name__}: {first_line(error).rstrip('.')}."
    with contextlib.suppress(Exception):  # `difference` says what raises
        given = x.clone()
        output = instance.forward(given)
        if not torch.equal(given, x):
            return "`forward` changes `x` in place. Work on a copy."
        if output is None:
            return "it returns None. Is a `return` missing in `forward`?"
        output = attempt(*arguments)(x.clone().requires_grad_())
        gradient = output.grad_fn.apply(torch.ones_like(output))[1]  # before the engine casts it
        if output.dtype == x.dtype != gradient.dtype:
            return f"`backward` returns {str(gradient.dtype)[6:]} for `x`, which is float64."
    wrong = difference(lambda x: attempt(*arguments)(x), reference, [x])
    # The doctor speaks of today's style, and does not know what the argument is called.
    return wrong and re.sub(r"\bctx\b", "self", re.sub(r"tensor \d of a Function", "x", wrong))


def _check_add_constant(attempt):
    if _not_legacy(attempt):
        return _not_legacy(attempt)
    for constant in (2.5, -1.0):
        wrong = _wrong_instance(attempt, [constant], lambda x, c=constant: x + c, _random(3, 2))
        if wrong:
            return f"for AddConstant({constant}): {wrong}"
    x = _random(3)
    one, _ = attempt(1.0), attempt(100.0)
    if not torch.allclose(one(x), x + 1):
        return "two instances with other constants disturb each other. Keep the constant in `self`."
    return None


def _check_transpose(attempt):
    if _not_legacy(attempt):
        return _not_legacy(attempt)
    for shape, dims in [((3, 2), (0, 1)), ((4, 2, 3), (0, 2)), ((4, 2, 3), (1, -1))]:
        wrong = _wrong_instance(
            attempt, dims, lambda x, dims=dims: x.transpose(*dims), _random(*shape)
        )
        if wrong:
            return f"for Transpose{dims} of shape {shape}: {wrong}"
    cube = _random(3, 3, 3).requires_grad_()
    output = attempt(0, 1)(cube)
    attempt(1, 2)(cube)
    weight = _random(3, 3, 3)
    if not torch.allclose(torch.autograd.grad(output, cube, weight)[0], weight.transpose(0, 1)):
        return "two instances with other dimensions disturb each other. Keep the two in `self`."
    return None


def _check_square_today(attempt):
    return difference(attempt.apply, lambda x: x**2, [_random(3, 2)], order=2)


EXERCISES = [
    Exercise(
        number="1.1",
        name="AddConstant",
        stub="""class AddConstant(Function):
    def __init__(self, constant): ...

    def forward(self, x): ...

    def backward(self, grad_output): ...""",
        reference=AddConstant,
        finding=_check_add_constant,
        success="the constant came through the constructor, and the gradient passes unchanged.",
        hints=(
            "The constant is no tensor. Which method took those in 2017?",
            "If x grows by 1, how much does x + c grow?",
        ),
        explanation="The slope of x + c is 1 whatever c is, so backward returns what it got.",
    ),
    Exercise(
        number="1.2",
        name="Transpose",
        stub="""class Transpose(Function):
    def __init__(self, dim0, dim1): ...

    def forward(self, x): ...

    def backward(self, grad_output): ...""",
        reference=Transpose,
        finding=_check_transpose,
        success="exchanging the same two dimensions again brings each gradient home.",
        hints=(
            "Each output element is one input element that has moved. Its gradient moves back.",
            "What undoes an exchange of two dimensions?",
        ),
        explanation="A transposition is its own inverse. Nothing has to be saved but the two "
        "numbers, which live in self.",
    ),
    Exercise(
        number="1.3",
        name="SquareToday",
        stub="class SquareToday(torch.autograd.Function): ...",
        reference=SquareToday,
        finding=_check_square_today,
        success="same formula, other home: ctx instead of self. And the second derivative, which "
        "the old style could not have, is there.",
        hints=(
            "Two decorators, and self becomes ctx.",
            "ctx.save_for_backward and ctx.saved_tensors keep their names.",
            "For the second derivative, use what saved_tensors gives you as it is: no .data, no "
            "detach.",
        ),
        explanation="In the new style saved tensors come with their history, so backward is "
        "recorded like any other computation and can be differentiated.",
    ),
]
