"""Wrong attempts at the exercises of chapter 11, each with words that the verdict must hold."""

import torch
from torch.autograd import Function

from helpers.lessons.exercises.chapter_11 import CenterRows, Delay, LogCosh, LookUp, RowDot


class ForgetsToUnsqueeze(RowDot):
    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b, grad_output * a


class IgnoresGradOutput(RowDot):
    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return b.clone(), a.clone()


class SumsTheGradient(RowDot):
    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output.sum() * b, grad_output.sum() * a


class PassesOn(Delay):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone()


class RollsRound(Delay):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.roll(-1, 0)


class TwoSteps(Delay):
    @staticmethod
    def backward(ctx, grad_output):
        grad_x = torch.zeros_like(grad_output)
        grad_x[:-2] = grad_output[2:]
        return grad_x


class WrongDimension(CenterRows):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output - grad_output.mean(0, keepdim=True)


class SumForMean(CenterRows):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output - grad_output.sum(1, keepdim=True)


class DetachedMean(CenterRows):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1 - 1 / grad_output.shape[1])


class StillAssigns(LookUp):
    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad_table = grad_output.new_zeros(ctx.rows, grad_output.shape[1])
        return grad_table.index_copy_(0, index, grad_output), None


class AddsWithoutAdding(LookUp):
    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad_table = grad_output.new_zeros(ctx.rows, grad_output.shape[1])
        grad_table[index] += grad_output
        return grad_table, None


class ForgetsNone(LookUp):
    @staticmethod
    def backward(ctx, grad_output):
        return LookUp.backward(ctx, grad_output)[0]


class StillOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = torch.tanh(x)
        return torch.log(torch.cosh(x))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.slope


class StillInPlace(LogCosh):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.mul_(torch.tanh(x))


class SavesTheSlope(LogCosh):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.tanh(x))
        return torch.log(torch.cosh(x))

    @staticmethod
    def backward(ctx, grad_output):
        (slope,) = ctx.saved_tensors
        return grad_output * slope


class SixRows(Delay):
    @staticmethod
    def backward(ctx, grad_output):
        return torch.cat([grad_output[1:6], grad_output.new_zeros(1, 2)])


class SizedByTheIndex(LookUp):
    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        rows = int(index.max()) + 1
        return grad_output.new_zeros(rows, grad_output.shape[1]).index_add_(
            0, index, grad_output
        ), None


class GradientForTheIndex(LookUp):
    @staticmethod
    def backward(ctx, grad_output):
        return LookUp.backward(ctx, grad_output)[0], torch.zeros(grad_output.shape[0])


class ByExponentials(LogCosh):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        up, down = torch.exp(10 * x), torch.exp(-10 * x)
        return grad_output * (up**0.1 - down**0.1) / (up**0.1 + down**0.1)


ATTEMPTS = {
    "11.1": [
        (ForgetsToUnsqueeze, "shapes do not fit"),
        (IgnoresGradOutput, "does not depend on grad_output"),
        (SumsTheGradient, "the gradient of `a`"),
    ],
    "11.2": [
        (PassesOn, "The gradient of `x`"),
        (RollsRound, "right in part"),
        (TwoSteps, "shifted"),
        (SixRows, "for an input of shape (4, 3)"),
    ],
    "11.3": [
        (WrongDimension, "The gradient of `x`"),
        (SumForMean, "the gradient of `x`"),
        (DetachedMean, "The gradient of `x`"),
    ],
    "11.4": [
        (StillAssigns, "lacks contributions"),
        (AddsWithoutAdding, "lacks contributions"),
        (ForgetsNone, "Backward returned 1 gradient"),
        (SizedByTheIndex, "belongs there"),
        (GradientForTheIndex, "None belongs there"),
    ],
    "11.5": [
        (StillOnCtx, "silently wrong"),
        (StillInPlace, "changes grad_output in place"),
        (SavesTheSlope, "silently wrong"),
        (ByExponentials, "nan or inf"),
    ],
}
