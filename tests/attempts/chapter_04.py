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
        result = x.exp().sum(-1).log()
        ctx.save_for_backward(x, result)
        return result


class OverflowsBackward(LogSumExp):
    @staticmethod
    def backward(ctx, grad_output):
        x, _ = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * x.exp() / x.exp().sum(-1, keepdim=True)


class GradOutputNotExpanded(LogSumExp):
    @staticmethod
    def backward(ctx, grad_output):
        x, result = ctx.saved_tensors
        return grad_output * (x - result.unsqueeze(-1)).exp()


class SumsEverything(LogSumExp):
    @staticmethod
    def forward(ctx, x):
        return LogSumExp.forward(ctx, x.flatten())


class Clips(Sigmoid):
    @staticmethod
    def backward(ctx, grad_output):
        return Sigmoid.backward(ctx, grad_output.clamp(-1, 1))


class ClipsWidely(Sigmoid):
    @staticmethod
    def backward(ctx, grad_output):
        return Sigmoid.backward(ctx, grad_output.clamp(-5, 5))


class FarOutNan(Sigmoid):
    @staticmethod
    def forward(ctx, x):
        result = x.exp() / (1 + x.exp())
        ctx.save_for_backward(result)
        return result


class SavesACopy(Sigmoid):
    @staticmethod
    def forward(ctx, x):
        result = torch.sigmoid(x)
        ctx.save_for_backward(result.clone())
        return result


class CallsTheRealOne(LogSumExp):
    @staticmethod
    def forward(ctx, x):
        result = torch.logsumexp(x, -1)
        ctx.save_for_backward(x, result)
        return result


class SubtractsTheFirst(LogSumExp):
    @staticmethod
    def forward(ctx, x):
        first = x[..., :1]
        result = first.squeeze(-1) + (x - first).exp().sum(-1).log()
        ctx.save_for_backward(x, result)
        return result


class OnlyMatrices(LogSumExp):
    @staticmethod
    def backward(ctx, grad_output):
        x, result = ctx.saved_tensors
        return grad_output.view(-1, 1) * (x - result.unsqueeze(-1)).exp()


class OverwritesX(LogSumExp):
    @staticmethod
    def backward(ctx, grad_output):
        x, result = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * x.sub_(result.unsqueeze(-1)).exp()


ATTEMPTS = {
    "4.1": [
        (SavesTheInput, "something else than the output"),
        (KeepsOnCtx, "output and ctx refer to each other"),
        (LosesAFactor, "lacks the factor the output"),
        (Clips, "not proportional to grad_output"),
        (ClipsWidely, "with a grad_output of about 1000"),
        (FarOutNan, "at ±800"),
        (SavesACopy, "or a copy of it"),
        (SignInside, "negated"),
    ],
    "4.2": [
        (Overflows, "at numbers near ±1000: `forward`: the output is inf"),
        (OverflowsBackward, "Backward makes nan or inf"),
        (GradOutputNotExpanded, "shapes do not fit"),
        (SumsEverything, "shape"),
        (CallsTheRealOne, "Write it yourself"),
        (SubtractsTheFirst, "at numbers near ±1000"),
        (OnlyMatrices, "for three dimensions"),
        (OverwritesX, "after it had been saved"),
    ],
    "4.3": [
        ("A", "the gradient of A is right"),
        ("B", "the gradient of B is right"),
        ("D", "the gradient of D is right"),
        ("E", "got 'E'"),
        (7, "got 7"),
    ],
}
