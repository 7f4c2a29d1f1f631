"""Exercises of chapter 04: Exp, and trusting a gradient."""

import torch
from torch.autograd import Function

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.properties import keeps_only, random
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import _
from helpers.lessons.memory import Alive

FAR = torch.tensor(
    [[1000.0, 999.0], [-1000.0, -1001.0], [-1000.0, 1000.0]], dtype=torch.float64
)
FLAT = torch.tensor([8.5, -9.0, 11.0, -13.0, 16.0, -20.0], dtype=torch.float64)


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        result = torch.sigmoid(x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        (result,) = ctx.saved_tensors
        return grad_output * result * (1 - result)


EXERCISE_1 = Exercise(
    number="4.1",
    reference=Sigmoid,
    wrong=[
        (
            {
                "save_for_backward(result)": "save_for_backward(x)",
                "(result,) = ctx.saved_tensors": "result = torch.sigmoid(ctx.saved_tensors[0])",
            },
            "got the input, not the output",
        ),
        (
            {
                "save_for_backward(result)": "save_for_backward(x, result)",
                "(result,) =": "x, result =",
            },
            "got the input as well",
        ),
        (
            {"save_for_backward(result)": "save_for_backward(result.clone())"},
            "not the output itself",
        ),
    ],
    like=torch.sigmoid,
    inputs=(Inputs(shapes="...", far=800, numbers={"at numbers from 8 to 20": FLAT}),),
    properties=[keeps_only("outputs")],
    success="the derivative is computed from the result alone, so nothing else is "
    "saved.",
    hints=(
        "Which of your two tensors does σ(1 − σ) need?",
        "forward names the result, saves it, and returns it.",
    ),
    explanation="As with Exp: one saved tensor, and no second evaluation.",
)


class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        largest = x.amax(-1, keepdim=True)
        result = largest.squeeze(-1) + (x - largest).exp().sum(-1).log()
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        x, result = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * (x - result.unsqueeze(-1)).exp()


def _is_written_by_hand(attempt):
    with Alive() as alive:
        attempt.apply(random(2, 3))
    if "logsumexp" in alive.operations:
        yield _("torch.logsumexp computes it. Write it yourself.")


EXERCISE_2 = Exercise(
    number="4.2",
    reference=LogSumExp,
    wrong=[
        (
            {"x.amax(-1, keepdim=True)": "x.new_zeros(1)"},
            "at numbers near 1000: `forward`: the output is inf",
        ),
        ({"x.amax(-1, keepdim=True)": "x[..., :1]"}, "at numbers near ±1000"),
        (
            {
                "largest.squeeze(-1) + (x - largest).exp().sum(-1).log()": "torch.logsumexp(x, -1)"
            },
            "Write it yourself",
        ),
    ],
    like=lambda x: torch.logsumexp(x, -1),
    inputs=(Inputs(shapes="... D", far=1000, numbers={"for rows near ±1000": FAR}),),
    properties=[
        _is_written_by_hand,
        keeps_only("inputs and outputs"),
    ],
    success="nothing overflows, in forward or in backward.",
    hints=(
        "e^1000 overflows. What changes if you first subtract the largest element of "
        "each row?",
        "log Σ e^x = m + log Σ e^(x - m), for any m.",
        "The gradient is softmax(x), which is e^(x - y) with the result y: no "
        "overflow there.",
    ),
    explanation="If m is the largest element, every x - m is at most 0. In backward, "
    "x - y is at most 0 as well, because y is at least as large as the largest x. "
    "The saved tensor is the very one that is returned, so it comes back with a "
    "history, for a second derivative.",
)


def _suspect(value, slope):
    class Suspect(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return value(x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * slope(x)

    return Suspect.apply


suspects = {
    "A": _suspect(lambda x: torch.log1p(x * x), lambda x: 2 * x / (1 + x * x)),
    "B": _suspect(
        lambda x: x * torch.tanh(x), lambda x: torch.tanh(x) + x / torch.cosh(x) ** 2
    ),
    "C": _suspect(lambda x: x.abs() ** 3, lambda x: 3 * x**2),
    "D": _suspect(lambda x: x.clamp(min=0) ** 2, lambda x: 2 * x * (x > 0)),
}


def _is_the_wrong_one(answer):
    letter = str(answer).strip().upper()
    if letter not in suspects:
        yield _(
            'answer with one of "A", "B", "C" or "D"; got {answer!r}.', answer=answer
        )
    if letter != "C":
        yield _("the gradient of {letter} is right everywhere.", letter=letter)


EXERCISE_3 = Exercise(
    number="4.3",
    name="the wrong one",
    stub="answer = ...",
    reference="C",
    wrong=[
        ({"C": "A"}, "the gradient of A is right"),
        ({"C": "B"}, "the gradient of B is right"),
        ({"C": "E"}, "got 'E'"),
    ],
    properties=[_is_the_wrong_one],
    success="C is |x|³ with the gradient 3x², which is wrong for negative x. All three "
    "elements of the point are positive.",
    hints=(
        "What do the three elements of the point have in common?",
        "Call gradcheck at another point.",
    ),
    explanation="gradcheck(suspects[letter], (-point.detach()).requires_grad_()) fails "
    "for one letter: the derivative of |x|³ is 3x·|x|.",
)
