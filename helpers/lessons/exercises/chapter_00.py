"""The one exercise of chapter 00, on which the others are explained."""

from torch.autograd import Function

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.variations import Inputs


class Triple(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


EXERCISE_1 = Exercise(
    number="0.1",
    reference=Triple,
    stub={"return 3 * grad_output": "..."},
    wrong=[
        ({"return 3 * grad": "3 * grad"}, "Is a `return` missing in `backward`?"),
        (
            {"    @staticmethod\n    def backward(ctx": "    def backward(self"},
            "`backward` must be a static method",
        ),
        (
            {"3 * grad_output": "3 * grad_output.detach()"},
            "second derivative silently counts it",
        ),
        (
            {"3 * grad_output": "3 * grad_output.reshape(-1, 4).view_as(grad_output)"},
            "with an input of shape (7,)",
        ),
    ],
    like=lambda x: 3 * x,
    inputs=(Inputs(shapes="..."),),
    success="if x grows by 1, the output grows by 3, so each gradient that arrives is "
    "multiplied by 3 before it is passed on.",
    hints=(
        "How much does 3 * x grow if x grows by a little?",
        "backward gets grad_output, the slope of what follows. The chain rule "
        "combines it with the slope of 3 * x.",
    ),
    explanation="The chain rule: the slope of the whole is the slope of what follows "
    "(grad_output) times the slope of this step (3).",
)
