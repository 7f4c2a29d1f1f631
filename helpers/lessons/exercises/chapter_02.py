"""Exercises of chapter 02: static Functions and ctx."""

import torch
from torch.autograd import Function

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.properties import gradients_fit, keeps_only, random, slips
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import N_


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


EXERCISE_1 = Exercise(
    number="2.1",
    reference=Square,
    wrong=[
        (
            {"(x,) = ctx.saved_tensors": "x = ctx.saved_tensors"},
            "`(x,) = ctx.saved_tensors`",
        ),
        (
            {
                "(ctx, grad_output)": "(ctx, x)",
                "(x,) = ctx.saved_tensors": "",
                "x * grad_output": "x",
            },
            "The argument `x` of backward is the gradient that arrives.",
        ),
        (
            {
                "class Square": "x = torch.ones(2)\n\n\nclass Square",
                "(x,) = ctx.saved_tensors": "",
            },
            "`x` in `backward` is the notebook's `x`",
        ),
        (
            {"ctx.save_for_backward(x)": ""},
            "unpacks 1 saved tensor(s), but forward saved none.",
        ),
        (
            {
                "save_for_backward(x)": "save_for_backward(2 * x)",
                "2 * x *": "x *",
                "def backward": "@torch.autograd.function.once_differentiable\n"
                "    def backward",
            },
            "neither an input nor an output",
        ),
    ],
    like=lambda x: x**2,
    inputs=(Inputs(shapes="...", far=1e6),),
    properties=[keeps_only("inputs and outputs")],
    success="values and gradient agree with `x ** 2`. The derivative of x² is 2x, "
    "and the chain rule multiplies it by grad_output.",
    hints=(
        "backward needs x. How does forward hand it over?",
        "ctx.save_for_backward(x) in forward; (x,) = ctx.saved_tensors in backward.",
        "Which rule combines your derivative with grad_output, the gradient that "
        "arrives?",
    ),
    explanation="x is saved, not 2x: autograd then sees in backward how the gradient "
    "depends on x, so that a second derivative is right as well.",
)


class Multiply(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return (
            (grad_output * b).sum_to_size(a.shape),
            (grad_output * a).sum_to_size(b.shape),
        )


# Where an element is broadcast, products are summed, not factors multiplied.
MULTIPLIES_SUMS = slips(
    lambda g, a, b: g.sum(0) * a.sum(0),
    N_(
        "where `b` is broadcast, its gradient is the sum of `grad_output` "
        "times the sum of `a`. But each place sends back a product of its own."
    ),
    random(4, 3),
    random(3, seed=1),
)


PAIRS = Inputs(
    shapes=[
        ((4, 3), (4, 3)),
        ((4, 3), (3,)),
        ((3,), (4, 3)),
        ((4, 1), (1, 3)),
        ((2, 3), ()),
        ((2, 4, 3), (4, 1)),
        ((3, 1, 1), (2, 3, 1, 5)),
        ((0, 3), (3,)),
    ],
)
EXERCISE_2 = Exercise(
    number="2.2",
    reference=Multiply,
    wrong=[
        (
            {".sum_to_size(a.shape)": "", ".sum_to_size(b.shape)": ""},
            "only the engine made it fit",
        ),
        (
            {
                "sum_to_size(a.shape)": "sum(1, keepdim=True) if a.shape[1] == 1 else grad_output * b",
                "sum_to_size(b.shape)": "sum(0, keepdim=b.dim() == 2) if a.shape != b.shape else "
                "grad_output * a",
            },
            "with inputs of shapes (3,) and (4, 3)",
        ),
        (
            {
                "(grad_output * a).sum_to_size(b.shape)": "grad_output * a if a.shape == b.shape else None"
            },
            "with inputs of shapes (4, 3) and (3,): The gradient of `b` is None",
        ),
        (
            {
                "(grad_output * a).sum_to_size(b.shape)": "grad_output.sum_to_size(b.shape) * a"
            },
            "But each place sends back a product of its own.",
        ),
    ],
    like=torch.mul,
    inputs=(PAIRS,),
    kind=[MULTIPLIES_SUMS],
    properties=[
        gradients_fit("ab", PAIRS),
        keeps_only("inputs and outputs", random(100, 200), random(200)),
    ],
    success="both gradients are right, each in the shape of its own input, without "
    "help from the engine.",
    hints=(
        "The gradient of a is `grad_output * b`. What is its shape if a was broadcast?",
        "Where one element of a was used several times, its gradient is the sum over "
        "its uses.",
        "tensor.sum_to_size(shape) undoes a broadcast.",
    ),
    explanation="Broadcasting copies an element to several places; each place sends a "
    "gradient back, and these gradients add up. sum_to_size sums over "
    "exactly the dimensions that were broadcast.",
)


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


EXERCISE_3 = Exercise(
    number="2.3",
    reference=MinMax,
    wrong=[
        (
            {"grad_x.scatter_add_(1, at_max[:, None], grad_max[:, None])": ""},
            "`output[1]` depends on `x`",
        ),
        (
            {"ctx.shape =": "ctx.mask = x == x.amin(1, keepdim=True); ctx.shape ="},
            "`ctx.mask` holds a tensor",
        ),
        (
            {"return smallest.values": "return smallest"},
            "output 0 is the pair (values, indices)",
        ),
        ({"def backward": "def backwards"}, "it has no method `backward`"),
    ],
    like=lambda x: (x.amin(1), x.amax(1)),
    inputs=(
        Inputs(
            shapes="N D",
            far=1e9,
            without=dict.fromkeys(
                ("zero", "equal"), "no two elements of a row are equal"
            )
            | {"empty": "without rows, there is nothing to look for"},
        ),
    ),
    properties=[keeps_only("inputs, outputs and positions")],
    success="each gradient went to the place that its element came from, and nowhere "
    "else.",
    hints=(
        "x.min(dim=1) returns the values and the indices. Which of them does "
        "backward need?",
        "The gradient of x is zero except at two places in each row.",
        "Start from zeros of x's shape; zeros.scatter_add_(1, index[:, None], "
        "grad[:, None]).",
    ),
    explanation="Only the positions are needed, so only they are saved. scatter_add_ "
    "(not scatter_) matters when both positions are the same, as in a row of "
    "one element.",
)


class Bilinear(Function):
    @staticmethod
    def forward(ctx, a, W, b):
        ctx.save_for_backward(a, W, b)
        return ((a @ W) * b).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        a, W, b = ctx.saved_tensors
        g = grad_output[:, None]
        return g * (b @ W.T), (g * a).T @ b, g * (a @ W)


EXERCISE_4 = Exercise(
    number="2.4",
    reference=Bilinear,
    wrong=[
        (
            {"(g * a).T @ b": "b.T @ (g * a)"},
            "The gradient of `W` has shape (3, 5), but (5, 3) belongs there.",
        ),
        ({"b @ W.T": "b @ W"}, "shapes do not fit"),
        ({"(g * a).T": "a.T"}, "The gradient of `W` does not depend on grad_output"),
        ({"(g * a).T @ b": "(g * a).T @ b / len(a)"}, "a mean where a sum belongs?"),
    ],
    like=lambda a, W, b: torch.einsum("np,pq,nq->n", a, W, b),
    inputs=(Inputs(shapes="N P, P Q, N Q"),),
    properties=[
        keeps_only("inputs and outputs", random(90, 80), random(80, 70), random(90, 70))
    ],
    success="three gradients, each a product in the shape of its own input.",
    hints=(
        "Derive one element: which terms of which outputs hold `W[p, q]`?",
        "grad_output[:, None] weights each row; then each gradient is a product of "
        "the other two inputs.",
    ),
    explanation="y is linear in each input, so each gradient is what is multiplied by "
    "that input. `W` is used by all rows: the product sums over them.",
)
