"""Exercises of chapter 04: Exp, and trusting a gradient."""

import torch
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import difference


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


class _Suspect(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(x * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x / (1 + x * x)


class _SuspectB(_Suspect):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (torch.tanh(x) + x / torch.cosh(x) ** 2)


class _SuspectC(_Suspect):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs() ** 3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2


class _SuspectD(_Suspect):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0) ** 2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x * (x > 0)


suspects = {
    "A": _Suspect.apply,
    "B": _SuspectB.apply,
    "C": _SuspectC.apply,
    "D": _SuspectD.apply,
}


def _sample():
    return torch.tensor([[-2.0, 0.5, 1.0], [0.0, 3.0, -1.5]], dtype=torch.float64)


def _check_sigmoid(attempt):
    extreme = torch.tensor([-800.0, 800.0], dtype=torch.float64)
    for inputs, which in [(_sample(), ""), (extreme, "at ±800: ")]:
        wrong = difference(attempt.apply, torch.sigmoid, [inputs])
        if wrong:
            return which + wrong
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        output = attempt.apply(_sample().requires_grad_())
    if not kept:
        return "nothing was saved with save_for_backward, so autograd cannot watch it."
    if any(tensor.data_ptr() != output.data_ptr() for tensor in kept):
        return "something else than the output is saved, or a copy of it."
    return None


class _Operations(TorchDispatchMode):
    """Which of PyTorch's operations run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _check_log_sum_exp(attempt):
    far = torch.tensor([[1000.0, 999.0], [-1000.0, -1001.0], [-1000.0, 1000.0]])
    for inputs, which in [
        (_sample(), "at ordinary numbers"),
        (far.double(), "at numbers near ±1000"),
        (_sample()[0], "for a vector"),
        (torch.stack([_sample(), 2 - _sample()]), "for three dimensions"),
    ]:
        wrong = difference(attempt.apply, lambda x: torch.logsumexp(x, -1), [inputs])
        if wrong:
            return f"{which}: {wrong}"
    with _Operations() as operations:
        attempt.apply(_sample())
    if "logsumexp" in operations.names:
        return "torch.logsumexp computes it. Write it yourself."
    return None


def _check_answer(answer):
    if not isinstance(answer, str) or answer not in suspects:
        return f'answer with one of "A", "B", "C", "D", got {answer!r}.'
    if answer != "C":
        return f"the gradient of {answer} is right everywhere."
    return None


EXERCISES = [
    Exercise(
        number="4.1",
        name="Sigmoid",
        stub="class Sigmoid(Function): ...",
        reference=Sigmoid,
        finding=_check_sigmoid,
        success="the derivative is made of the result alone, so nothing else is kept.",
        hints=(
            "What is σ' in terms of σ?",
            "forward names the result, saves it, and returns it.",
        ),
        explanation="As with Exp: one saved tensor, and no second evaluation.",
    ),
    Exercise(
        number="4.2",
        name="LogSumExp",
        stub="class LogSumExp(Function): ...",
        reference=LogSumExp,
        finding=_check_log_sum_exp,
        success="nothing in it overflows, neither forward nor backward.",
        hints=(
            "e^1000 overflows. What changes if the largest number of a row is subtracted first?",
            "log Σ e^x = m + log Σ e^(x - m), for any m.",
            "The gradient is softmax(x), which is e^(x - y) with the result y: no overflow there.",
        ),
        explanation="With m the largest number, every x - m is at most 0. In backward, x - y is "
        "at most 0 as well, because y is at least as large as the largest x. What is saved is the "
        "very tensor that is returned: it comes back with a history, for a second derivative.",
    ),
    Exercise(
        number="4.3",
        name="the wrong one",
        stub="answer = ...",
        reference="C",
        finding=_check_answer,
        success="C is |x|³ with the gradient 3x², which is right for positive x only. All three "
        "numbers of the point were positive.",
        hints=(
            "What do the three numbers of the point have in common?",
            "Call gradcheck at another point.",
        ),
        explanation="gradcheck(suspects[letter], (-point.detach()).requires_grad_()) fails for "
        "one letter: the gradient of |x|³ is 3x·|x|.",
    ),
]
