"""Three candidates for one line of a `backward`, and what the judge says of each."""

import torch
from exercises import speaking
from torch.autograd import Function

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.variations import Inputs


class Softplus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(x)


RIGHT = "grad_output * torch.sigmoid(x)"
LINES = [
    "torch.sigmoid(x)",
    "grad_output * torch.exp(x) / (1 + torch.exp(x))",
    RIGHT,
]
SUCCESS = {
    "notebooks": "the slope is right everywhere, and so is the slope of the slope.",
    "zh": "斜率处处正确，斜率的斜率也是如此。",
}


def verdicts(folder):
    """(line, mark, sentence) of each candidate, in the language of the edition."""
    given = Exercise(
        number=f"front.{folder}",
        name="Softplus",
        reference=Softplus,
        stub={RIGHT: "..."},
        like=lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        inputs=(Inputs(shapes="...", far=800),),
        order=2,
        success=SUCCESS[folder],
        hints=("log(1 + exp(x))", "sigmoid"),
        explanation="sigmoid",
    )
    with speaking(folder):
        for line in LINES:
            verdict = given.judge(given.made_of(given.edited({RIGHT: line})))
            yield line, verdict.mark, verdict.message
