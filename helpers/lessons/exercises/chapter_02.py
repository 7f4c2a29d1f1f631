"""Exercises of chapter 02: static Functions and ctx."""

import inspect

import torch
from torch.autograd import Function
from torch.utils._pytree import tree_leaves

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import finding


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


class Multiply(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return (grad_output * b).sum_to_size(a.shape), (grad_output * a).sum_to_size(b.shape)


class MinMax(Function):
    @staticmethod
    def forward(ctx, x):
        smallest, largest = x.min(dim=1), x.max(dim=1)
        ctx.save_for_backward(smallest.indices, largest.indices)
        ctx.shape = x.shape
        return smallest.values, largest.values

    @staticmethod
    def backward(ctx, grad_min, grad_max):
        at_min, at_max = ctx.saved_tensors
        grad_x = grad_min.new_zeros(ctx.shape)
        grad_x.scatter_add_(1, at_min[:, None], grad_min[:, None])
        grad_x.scatter_add_(1, at_max[:, None], grad_max[:, None])
        return grad_x


def _random(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def _wrong_signature(attempt, *names):
    if attempt.setup_context is Function.setup_context:
        names = ("ctx", *names)
    try:
        inspect.signature(attempt.forward).bind(*names)
    except TypeError:
        return f"`forward` must take ({', '.join(names)})."
    return None


def _check_square(attempt):
    if _wrong_signature(attempt, "x"):
        return _wrong_signature(attempt, "x")
    for shape in [(3, 4), (5,), ()]:
        wrong = finding(attempt.apply, lambda x: x**2, [_random(*shape)])
        if wrong:
            return f"with an input of shape {shape}: {wrong}"
    return None


def _check_multiply(attempt):
    if _wrong_signature(attempt, "a", "b"):
        return _wrong_signature(attempt, "a", "b")
    for a_shape, b_shape in [((4, 3), (4, 3)), ((4, 3), (3,)), ((4, 1), (1, 3)), ((2, 3), ())]:
        a, b = _random(*a_shape), _random(*b_shape) + 1
        wrong = finding(attempt.apply, torch.mul, [a, b])
        if wrong:
            return f"with shapes {a_shape} and {b_shape}: {wrong}"
        output = attempt.apply(a.requires_grad_(), b.requires_grad_())
        with torch.no_grad():
            gradients = output.grad_fn.apply(output.detach())
        for name, tensor, given in zip("ab", (a, b), gradients, strict=False):
            if given.shape != tensor.shape:
                return (
                    f"with shapes {a_shape} and {b_shape}: `backward` returns a gradient of shape "
                    f"{tuple(given.shape)} for `{name}`, whose shape is {tuple(tensor.shape)}; "
                    "only the engine made it fit."
                )
    return None


def _check_min_max(attempt):
    if _wrong_signature(attempt, "x"):
        return _wrong_signature(attempt, "x")
    reference = lambda x: (x.amin(1), x.amax(1))  # noqa: E731
    for shape in [(4, 5), (3, 1)]:
        wrong = finding(attempt.apply, reference, [_random(*shape)])
        if wrong:
            return f"with an input of shape {shape}: {wrong}"
    x = _random(4, 5).requires_grad_()
    outputs = attempt.apply(x)
    for name, value in vars(outputs[0].grad_fn).items():
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
            return (
                f"`ctx.{name}` holds a tensor outside `save_for_backward`, so autograd does not "
                "notice when it changes in place."
            )
    attempt.apply(x.flip(1))  # the same numbers in other places
    given, right = (
        torch.autograd.grad(sum(y.sum() for y in ys), x)[0] for ys in (outputs, reference(x))
    )
    if not torch.allclose(given, right):
        return (
            "two calls with other inputs disturb each other: what backward needs must live on "
            "ctx, call by call."
        )
    return None


EXERCISES = [
    Exercise(
        number="2.1",
        name="Square",
        stub="class Square(Function): ...",
        reference=Square,
        finding=_check_square,
        success="values and gradient agree with `x ** 2`. The derivative of x² is 2x, and the "
        "chain rule multiplies it by grad_output.",
        hints=(
            "backward needs x. How does forward hand it over?",
            "ctx.save_for_backward(x) in forward; (x,) = ctx.saved_tensors in backward.",
            "Which rule combines your own derivative with grad_output, the one that arrives?",
        ),
        explanation="x is saved, not 2x: autograd then sees in backward how the gradient depends "
        "on x, so that a second derivative is right as well.",
    ),
    Exercise(
        number="2.2",
        name="Multiply",
        stub="class Multiply(Function): ...",
        reference=Multiply,
        finding=_check_multiply,
        success="both gradients, each in the shape of its own input, without the engine's help.",
        hints=(
            "The gradient of a is grad_output * b. What is its shape if a was broadcast?",
            "Where one number of a was used several times, its gradient is the sum over the uses.",
            "tensor.sum_to_size(shape) undoes a broadcast.",
        ),
        explanation="Broadcasting copies a number to several places; each place sends a gradient "
        "back, and they add up. sum_to_size sums over exactly the dimensions that were broadcast.",
    ),
    Exercise(
        number="2.3",
        name="MinMax",
        stub="class MinMax(Function): ...",
        reference=MinMax,
        finding=_check_min_max,
        success="each gradient went to the place its number came from, and nowhere else.",
        hints=(
            "x.min(dim=1) returns the values and the indices. Which of them does backward need?",
            "The gradient of x is zero but at two places of each row.",
            "Start from zeros of x's shape; zeros.scatter_add_(1, index[:, None], grad[:, None]).",
        ),
        explanation="Only the positions are needed, so only they are saved. scatter_add_ (not "
        "scatter_) matters when both positions are the same, as in a row of one number.",
    ),
]
