"""Wrong attempts at the exercises of chapter 01, each with words that the verdict must hold."""

import torch

from helpers.lessons.exercises.chapter_01 import AddConstant, SquareToday, Transpose
from helpers.ops.legacy import Function


class MultipliesTheGradient(AddConstant):
    def backward(self, grad_output):
        return grad_output * self.constant


class AddsToTheGradient(AddConstant):
    def backward(self, grad_output):
        return grad_output + self.constant


class TwoGradients(AddConstant):
    def backward(self, grad_output):
        return grad_output, grad_output.sum()


class ForgetsTheConstant(AddConstant):
    def __init__(self, constant):
        pass


class Today(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, constant):
        return x + constant

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class PassesOn(Transpose):
    def backward(self, grad_output):
        return grad_output


class AlwaysTheFirstTwo(Transpose):
    def backward(self, grad_output):
        return grad_output.transpose(0, 1)


class Reshapes(Transpose):
    def forward(self, x):
        self.size = x.size()
        return x.transpose(*self.dims).contiguous()

    def backward(self, grad_output):
        return grad_output.reshape(self.size)


class StillLegacy(Function):
    def forward(self, input):
        self.save_for_backward(input)
        return input * input

    def backward(self, grad_output):
        return 2 * self.saved_tensors[0] * grad_output


class NotStatic(torch.autograd.Function):
    def forward(self, input):
        self.save_for_backward(input)
        return input * input

    def backward(self, grad_output):
        return 2 * self.saved_tensors[0] * grad_output


class UsesData(SquareToday):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input * input

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return 2 * input.data * grad_output


class ForgetsTheTwo(SquareToday):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input * input

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return input * grad_output


ATTEMPTS = {
    "1.1": [
        (MultipliesTheGradient, "it is 2.5 times"),
        (AddsToTheGradient, "the gradient of `x`"),
        (TwoGradients, "invalid number of gradient"),
        (ForgetsTheConstant, "has no attribute 'constant'"),
        (Today, "derives from today's"),
    ],
    "1.2": [
        (PassesOn, "`backward` raises"),
        (AlwaysTheFirstTwo, "for Transpose(0, 2)"),
        (Reshapes, "the gradient of `x`"),
        (Today, "derives from today's"),
    ],
    "1.3": [
        (StillLegacy, "not from the legacy one"),
        (NotStatic, "`forward` must be a static method"),
        (UsesData, "second are not"),
        (ForgetsTheTwo, "it is 0.5 times"),
    ],
}
