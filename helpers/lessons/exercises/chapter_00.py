"""The one exercise of chapter 00, on which the others are explained."""

import torch
from torch.autograd import Function

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import difference


class Triple(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


def _check_triple(attempt):
    x = torch.tensor(
        [[-1.0, 0.5, 0.25, 1.5, 3.0], [-2.0, 0.0, 1.0, 2.5, -0.5]], dtype=torch.float64
    )
    return difference(attempt.apply, lambda x: 3 * x, [x])


EXERCISES = [
    Exercise(
        number="0.1",
        name="Triple",
        stub="""class Triple(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        ...""",
        reference=Triple,
        finding=_check_triple,
        success="if x grows by 1, the output grows by 3, so each gradient that arrives is "
        "passed on three times as large.",
        hints=(
            "How much does 3 * x grow if x grows by a little?",
            "backward gets grad_output, the slope of what follows. The chain rule combines both.",
        ),
        explanation="The chain rule: slope of all = slope of what follows (grad_output) times "
        "slope of this step (3).",
    ),
]
