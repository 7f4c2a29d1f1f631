"""Wrong attempts at the exercises of chapter 04, each with words that the verdict must hold."""

import torch

from helpers.lessons.exercises.chapter_04 import LogSumExp, Sigmoid


class SavesTheInput(Sigmoid):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        result = torch.sigmoid(ctx.saved_tensors[0])
        return grad_output * result * (1 - result)


class KeepsOnCtx(Sigmoid):
    @staticmethod
    def forward(ctx, x):
        ctx.result = torch.sigmoid(x)
        return ctx.result

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.result * (1 - ctx.result)


class LosesAFactor(Sigmoid):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1 - ctx.saved_tensors[0])


class SignInside(Sigmoid):
    @staticmethod
    def backward(ctx, grad_output):
        (result,) = ctx.saved_tensors
        return grad_output * result * (result - 1)


class Overflows(LogSumExp):
    @staticmethod
    def forward(ctx, x):
        result = x.exp().sum(-1, keepdim=True).log()
        ctx.save_for_backward(x, result)
        return result.squeeze(-1)


class OverflowsBackward(LogSumExp):
    @staticmethod
    def backward(ctx, grad_output):
        x, _ = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * x.exp() / x.exp().sum(-1, keepdim=True)


class GradOutputNotExpanded(LogSumExp):
    @staticmethod
    def backward(ctx, grad_output):
        x, result = ctx.saved_tensors
        return grad_output * (x - result).exp()


class SumsEverything(LogSumExp):
    @staticmethod
    def forward(ctx, x):
        return LogSumExp.forward(ctx, x.flatten())


ATTEMPTS = {
    "4.1": [
        (SavesTheInput, "something else than the output"),
        (KeepsOnCtx, "nothing was saved"),
        (LosesAFactor, "the gradient of `x`"),
        (SignInside, "the gradient of `x` has the wrong sign"),
    ],
    "4.2": [
        (Overflows, "at numbers near ±1000, `forward`: the output is inf"),
        (OverflowsBackward, "at numbers near ±1000, the gradient of `x` is nan"),
        (GradOutputNotExpanded, "`backward` raises"),
        (SumsEverything, "shape"),
    ],
    "4.3": [
        ("A", "the gradient of A is right"),
        ("B", "the gradient of B is right"),
        ("D", "the gradient of D is right"),
        ("E", "got 'E'"),
        (7, "got 7"),
    ],
}
