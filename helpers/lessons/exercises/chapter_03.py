"""Exercises of chapter 03: arguments that are not tensors."""

import contextlib
import gc
import weakref

import torch
from torch.autograd import Function

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import difference


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
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        if grad_output is None:
            return None, None
        return grad_output * ctx.scale, None


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
    for n in (3, 2, 5, 1):  # 1 comes last: much that is wrong looks half right there
        wrong = difference(attempt.apply, lambda x, n: x**n, [_sample(), n])
        if wrong:
            return f"with n = {n}: {wrong}"
    at_zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    if not torch.equal(
        torch.autograd.grad(attempt.apply(at_zero, 1).sum(), at_zero)[0], at_zero + 1
    ):
        return "with n = 1: the gradient of `x` is wrong at x = 0, where it is 1."
    x = _sample().requires_grad_()
    both = attempt.apply(x, 2) + attempt.apply(x, 3)
    if not torch.allclose(torch.autograd.grad(both.sum(), x)[0], 2 * x + 3 * x**2):
        return "two calls with another n disturb each other: n must live on ctx, call by call."
    return None


def _check_scale_gradient(attempt):
    for scale in (0.1, -2.0):
        wrong = difference(
            attempt.apply,
            # The identity in value, with `scale` as its slope.
            lambda x, scale: x.detach() * (1 - scale) + x * scale,
            [_sample(), scale],
            faithful=False,
        )
        if wrong and "None, which arrives" in wrong and "number of gradients" in wrong:
            return (
                "where grad_output is None, too, `backward` must return one value for each "
                "argument of `forward`."
            )
        if wrong:
            return f"with scale = {scale}: {wrong}"
    x = _sample().requires_grad_()
    first, _ = attempt.apply(x, 0.1), attempt.apply(x, 5.0)
    if not torch.allclose(torch.autograd.grad(first.sum(), x)[0], torch.full_like(x, 0.1)):
        return "two calls with another scale disturb each other: it must live on ctx, call by call."
    h = x * 1
    with contextlib.suppress(RuntimeError):  # autograd refuses to change a view in place
        attempt.apply(h, 0.1).zero_()
    if not torch.equal(h, x):
        return "changing the output in place changes `x`, too, and autograd does not notice."
    try:
        (gradient,) = torch.autograd.grad(
            _StopsHere.apply(attempt.apply(x, 0.1)).sum(), x, allow_unused=True
        )
    except Exception as error:
        return f"when grad_output is None, `backward` raises: {error}"
    if gradient is not None:
        return (
            "no gradient arrived, yet `backward` returned one. Either materialize_grads is still "
            "on, or `backward` makes zeros where None would do."
        )
    return None


def _check_tanh(attempt):
    wrong = difference(attempt.apply, torch.tanh, [_sample()])
    if wrong:
        return wrong
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(1) or t, lambda t: t):
        attempt.apply(_sample().requires_grad_())
    if not saved:
        return "nothing went through save_for_backward, so autograd cannot watch what is kept."
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        output = attempt.apply(_sample().requires_grad_())
        reference, node = weakref.ref(output), output.grad_fn
        del output
        leaks = reference() is not None
        del node
        leaks = leaks and reference() is not None
    finally:
        if collecting:
            gc.enable()
    if leaks:
        return (
            "the output is still alive after its last use: output → grad_fn, which is ctx, → "
            "output is a circle that only the garbage collector finds."
        )
    return None


EXERCISES = [
    Exercise(
        number="3.1",
        name="Power",
        stub="class Power(Function): ...",
        reference=Power,
        finding=_check_power,
        success="the gradient of x is right for every n, and n has none.",
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
            "forward returns the values as they are; only backward has something to do.",
            "ctx.set_materialize_grads(False) belongs into forward.",
            "Then grad_output may be None; return None for both arguments in that case.",
        ),
        explanation="The copy lets callers change the result in place. gradcheck rejects this "
        "Function, as it should: its gradient is not its derivative.",
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
