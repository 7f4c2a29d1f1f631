"""Exercises of chapter 03: arguments that are not tensors."""

import contextlib
import gc
import weakref

import torch
from torch.autograd import Function

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.numbers import raises
from helpers.lessons.judge.properties import keeps_only, random
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import _

SAMPLE = random(2, 2)


class Power(Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x**n

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.n * x ** (ctx.n - 1), None


EXERCISE_1 = Exercise(
    number="3.1",
    reference=Power,
    wrong=[
        ({"x ** (ctx.n - 1)": "x**ctx.n"}, "has one factor too many of `x`"),
        ({"* ctx.n * x": "* x"}, "multiplied by 0.333 = 1 / `n`"),
        (
            {
                "ctx.n = n": "ctx.n, ctx.x = n, lambda: x",
                "(x,) = ctx.saved_tensors": "x = ctx.x()",
            },
            "where an input changes in place before backward, the gradient is silently",
        ),
    ],
    like=torch.pow,
    inputs=(Inputs(shapes="...", constants=(3, 1, 2, 4, 11), names="n"),),
    properties=[keeps_only("inputs and outputs", 3)],
    success="the gradient of x is right for every n, and n has none.",
    hints=(
        "x is a tensor, n is not. Each has its own place between forward and backward.",
        "The derivative of xⁿ is n · xⁿ⁻¹.",
        "backward returns two values: the gradient of x, and None for n.",
    ),
    explanation="x goes through save_for_backward, n is an attribute of ctx. For n = 1 "
    "the power x⁰ is 1, so no special case is needed.",
)


class ScaleGradient(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        if grad_output is None:
            return None, None
        return grad_output * ctx.scale, None


class _StopsHere(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None


def _leaves_x_alone(attempt):
    x = SAMPLE.clone().requires_grad_()
    h = x * 1
    # Autograd refuses to change a view in place.
    with contextlib.suppress(RuntimeError):
        attempt.apply(h, 0.1).zero_()
    if not torch.equal(h, x):
        yield _(
            "changing the output in place changes `x`, too, and autograd does not "
            "notice."
        )


def _makes_no_gradient_up(attempt):
    x = SAMPLE.clone().requires_grad_()
    output = attempt.apply(x, 0.1)
    (gradient,) = torch.autograd.grad(
        _StopsHere.apply(output).sum(), x, allow_unused=True
    )
    if gradient is not None:
        yield _(
            "no gradient arrived, yet `backward` returned one. Either "
            "materialize_grads is still on (it is switched off in `forward`; in "
            "`backward` it is too late), or `backward` makes zeros where None would "
            "do."
        )


EXERCISE_2 = Exercise(
    number="3.2",
    reference=ScaleGradient,
    wrong=[
        ({"ctx.set_materialize_grads(False)": ""}, "materialize_grads is still on"),
        (
            {"if grad_output is None": "if False"},
            "or when what follows passes no gradient on",
        ),
        ({"x.clone()": "x.detach()"}, "changing the output in place changes `x`"),
        ({"return None, None": "return"}, "where grad_output is None, too"),
    ],
    # The identity in value, with `scale` as its slope.
    like=lambda x, scale: x.detach() * (1 - scale) + x * scale,
    inputs=(
        Inputs(
            shapes="...",
            constants=(0.1, -2.0, 0, 1, 7.123),
            names="scale",
        ),
    ),
    faithful=False,
    properties=[
        keeps_only("inputs and outputs", 0.1),
        _leaves_x_alone,
        _makes_no_gradient_up,
    ],
    success="the values pass unchanged, the gradient is scaled, and where no "
    "gradient arrives, none is made up.",
    hints=(
        "forward returns the values as they are; only backward has something to do.",
        "ctx.set_materialize_grads(False) belongs in forward.",
        "Then grad_output may be None; return None for both arguments in that case.",
    ),
    explanation="The copy lets callers change the result in place. gradcheck rejects "
    "this Function, as it should: the gradient is not the derivative of "
    "forward.",
)


class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        result = torch.tanh(x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        (result,) = ctx.saved_tensors
        return grad_output * (1 - result**2)


def _lets_go_of_the_output(attempt):
    total = attempt.apply(SAMPLE.clone().requires_grad_()).sum()
    try:
        total.backward()
    except Exception as error:
        yield raises(
            error,
            _(
                "without its output, which the caller drops, it raises {kind}: {message}"
            ),
        )
    gc.collect()
    gc.disable()
    try:
        output = weakref.ref(attempt.apply(SAMPLE.clone().requires_grad_()))
        leaks = output() is not None
    finally:
        gc.enable()
    if leaks:
        yield _(
            "the output is still alive after its last use. What still holds it: an "
            "attribute of ctx, which is the grad_fn of the output, or something "
            "outside the call?"
        )


EXERCISE_3 = Exercise(
    number="3.3",
    reference=Tanh,
    stub={
        "        ctx.save_for_backward(result)\n": "",
        "        (result,) = ctx.saved_tensors\n": "",
        "result": "ctx.result",
    },
    wrong=[
        (
            {"return result": "ctx.mark_non_differentiable(result); return result"},
            "the output requires no gradient",
        ),
        (
            {
                "ctx.save_for_backward(result)": "ctx.kept = result.numpy().copy()",
                "(result,) = ctx.saved_tensors": "result = torch.from_numpy(ctx.kept)",
            },
            "`ctx.kept` is kept outside",
        ),
        (
            {"return result": "ctx.again = lambda: result; return result"},
            "the output is still alive",
        ),
        (
            {
                "ctx.save_for_backward": "import weakref; ctx.kept = weakref.ref",
                "(result,) = ctx.saved_tensors": "result = ctx.kept()",
            },
            "without its output, which the caller drops",
        ),
    ],
    like=torch.tanh,
    inputs=(Inputs(shapes="..."),),
    properties=[
        _lets_go_of_the_output,
        keeps_only("inputs and outputs"),
    ],
    success="the output is freed with its last reference, and autograd watches what "
    "is saved.",
    hints=(
        "Which attribute of ctx is a tensor?",
        "save_for_backward stores an output of forward without making a reference "
        "cycle.",
    ),
    explanation="save_for_backward recognises the output and saves it with its version "
    "number, but without a reference cycle.",
)
