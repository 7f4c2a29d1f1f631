"""Exercises of chapter 03: arguments that are not tensors."""

import gc
import weakref

import torch
from torch.autograd import Function

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import finding


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


class ScaleGradient(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return None if grad_output is None else grad_output * ctx.scale, None


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


class _StopsHere(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None


def _sample():
    return torch.tensor([[-1.5, 0.5], [2.0, 1.25]], dtype=torch.float64)


def _check_power(attempt):
    for n in (1, 2, 5):
        wrong = finding(attempt.apply, lambda x, n: x**n, [_sample(), n], ["x", "n"])
        if wrong:
            return f"with n = {n}, {wrong}"
    return _tensors_on_ctx(attempt, 2)


def _check_scale_gradient(attempt):
    for scale in (0.1, -2.0):
        wrong = finding(
            attempt.apply,
            # The identity in value, with `scale` as its slope.
            lambda x, scale: x.detach() * (1 - scale) + x * scale,
            [_sample(), scale],
            ["x", "scale"],
        )
        if wrong:
            return f"with scale = {scale}, {wrong}"
    x = _sample().requires_grad_()
    try:
        (gradient,) = torch.autograd.grad(
            _StopsHere.apply(attempt.apply(x, 0.1)).sum(), x, allow_unused=True
        )
    except TypeError as error:
        return f"`backward` does not handle grad_output = None: {error}"
    if gradient is not None:
        return (
            "no gradient arrived, yet `backward` computed one out of zeros: "
            "materialize_grads is still on."
        )
    return None


def _check_tanh(attempt):
    wrong = finding(attempt.apply, torch.tanh, [_sample()], ["x"])
    if wrong:
        return wrong
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        output = attempt.apply(_sample().requires_grad_())
        reference = weakref.ref(output)
        del output
        leaks = reference() is not None
    finally:
        if collecting:
            gc.enable()
    if leaks:
        return (
            "the output is still alive after its last use: output → grad_fn, which is ctx, → "
            "output is a circle that only the garbage collector finds."
        )
    return _tensors_on_ctx(attempt)


def _tensors_on_ctx(attempt, *constants):
    node = attempt.apply(_sample().requires_grad_(), *constants).grad_fn
    kept = [name for name, value in vars(node).items() if isinstance(value, torch.Tensor)]
    if kept:
        return (
            f"the tensor `ctx.{kept[0]}` is out of autograd's sight: nobody would notice if it "
            "were changed in place."
        )
    return None


EXERCISES = [
    Exercise(
        number="3.1",
        name="Power",
        stub="class Power(Function): ...",
        reference=Power,
        finding=_check_power,
        success="x is saved as a tensor, n lives on ctx, and backward returns None for it.",
        hints=(
            "x is a tensor and n is none. Each has its own place between forward and backward.",
            "The derivative of xⁿ is n · xⁿ⁻¹.",
            "backward returns two values: the gradient of x, and None for n.",
        ),
        explanation="x goes through save_for_backward, n is an attribute of ctx. For n = 1 the "
        "power x⁰ is 1, so no special case is needed.",
    ),
    Exercise(
        number="3.2",
        name="ScaleGradient",
        stub="class ScaleGradient(Function): ...",
        reference=ScaleGradient,
        finding=_check_scale_gradient,
        success="the values pass unchanged, the gradient is scaled, and where none arrives, "
        "none is made up.",
        hints=(
            "It is gradient reversal with another factor.",
            "ctx.set_materialize_grads(False) belongs into forward.",
            "Then grad_output may be None; return None for both arguments in that case.",
        ),
        explanation="view_as makes a new tensor for the same memory, so nothing is copied. "
        "gradcheck rejects this Function, as it should: its gradient is not its derivative.",
    ),
    Exercise(
        number="3.3",
        name="Tanh",
        stub="""class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = torch.tanh(x)
        return ctx.result

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1 - ctx.result**2)""",
        reference=Tanh,
        finding=_check_tanh,
        success="the output dies with its last user, and autograd watches what is saved.",
        hints=(
            "Which attribute of ctx is a tensor?",
            "save_for_backward stores an output of forward without making a circle.",
        ),
        explanation="save_for_backward recognises the output and keeps it without a reference "
        "from the node back to itself, and with its version number.",
    ),
]
