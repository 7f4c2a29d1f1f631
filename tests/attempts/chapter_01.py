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


class IgnoresTheConstant(AddConstant):
    def forward(self, x):
        return x + 2.5


class NoBackward(Function):
    def __init__(self, constant):
        self.constant = constant

    def forward(self, x):
        return x + self.constant


class MisspeltInit(Function):
    def _init_(self, constant):
        self.constant = constant

    def forward(self, x):
        return x + self.constant

    def backward(self, grad_output):
        return grad_output


class SharesItsDims(Transpose):
    def __init__(self, dim0, dim1):
        SharesItsDims.dims = dim0, dim1


class KeepsOnTheClass(SquareToday):
    @staticmethod
    def forward(ctx, input):
        KeepsOnTheClass.saved = input
        return input * input

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * KeepsOnTheClass.saved * grad_output


class SharesItsConstant(AddConstant):
    def __init__(self, constant):
        SharesItsConstant.constant = constant


class ReturnsSinglePrecision(AddConstant):
    def backward(self, grad_output):
        return grad_output.float()


class ChangesItsInput(AddConstant):
    def forward(self, x):
        x += self.constant
        return x


class MarksItDirty(ChangesItsInput):
    def forward(self, x):
        self.mark_dirty(x)
        return ChangesItsInput.forward(self, x)


class TakesNoConstant(AddConstant):
    def __init__(self):
        self.constant = 2.5


class ForgetsReturn(AddConstant):
    def forward(self, x):
        x + self.constant


class Static(AddConstant):
    @staticmethod
    def forward(self, x):
        return x + self.constant


class ForgetsSelf(AddConstant):
    def forward(x):  # noqa: N805
        return x + 2.5


class ForgetsSelfInBackward(AddConstant):
    def backward(grad_output):  # noqa: N805
        return grad_output


class SumsTheGradient(AddConstant):
    def backward(self, grad_output):
        return grad_output.sum(0)[:2]


class MisspeltAttribute(AddConstant):
    def backward(self, grad_output):
        return grad_output * self.needs_input_gradient[0]


class MarksTheOutput(AddConstant):
    def forward(self, x):
        y = x + self.constant
        self.mark_non_differentiable(y)
        return y


class TransposesSinglePrecision(Transpose):
    def backward(self, grad_output):
        return grad_output.float().transpose(*self.dims)


class NearlyTransposes(Transpose):
    def backward(self, grad_output):
        return grad_output.transpose(*self.dims) * (1 + 1e-9)


ATTEMPTS = {
    "1.1": [
        (MultipliesTheGradient, "multiplied by 2.5"),
        (AddsToTheGradient, "not proportional to grad_output"),
        (TwoGradients, "invalid number of gradient"),
        (ForgetsTheConstant, "has no attribute 'constant'"),
        (Today, "derives from today's"),
        (IgnoresTheConstant, "for AddConstant(-1.0)"),
        (NoBackward, "it has no method `backward`"),
        (MisspeltInit, "it has no method `__init__`"),
        (SharesItsConstant, "two instances with other constants disturb each other"),
        (ReturnsSinglePrecision, "returns float32 for `x`"),
        (ChangesItsInput, "changes `x` in place. Work on a copy."),
        (MarksItDirty, "changes `x` in place. Work on a copy."),
        (TakesNoConstant, "the constructor raises TypeError"),
        (ForgetsReturn, "Is a `return` missing in `forward`?"),
        (Static, "`forward` is a static method"),
        (ForgetsSelf, "`forward` must take (self, x)."),
        (ForgetsSelfInBackward, "`backward` must take (self, grad_output)."),
        (SumsTheGradient, "The gradient of `x` has shape (2)"),
        (MisspeltAttribute, "has no attribute 'needs_input_gradient'"),
        (MarksTheOutput, "the output requires no gradient"),
    ],
    "1.2": [
        (PassesOn, "transposed"),
        (AlwaysTheFirstTwo, "for Transpose(0, 2) of shape (4, 2, 3)"),
        (Reshapes, "right, but transposed"),
        (SharesItsDims, "disturb each other"),
        (TransposesSinglePrecision, "returns float32 for `x`"),
        (NearlyTransposes, "for Transpose(0, 1) of shape (3, 2)"),
        (Transpose(0, 1), "give check the class Transpose itself"),
        (Today, "derives from today's"),
    ],
    "1.3": [
        (StillLegacy, "must derive from torch.autograd.Function"),
        (NotStatic, "`forward` must be a static method"),
        (UsesData, "silently wrong"),
        (ForgetsTheTwo, "multiplied by 0.5"),
        (KeepsOnTheClass, "is another if forward runs once more"),
    ],
}
