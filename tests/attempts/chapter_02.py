"""Wrong attempts at the exercises of chapter 02, each with words that the verdict must hold."""

import torch
from torch.autograd import Function

from helpers.lessons.exercises.chapter_02 import MinMax, Multiply, Square


class ForgetsGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        return 2 * ctx.saved_tensors[0]


class ForgetsTheFactor(Square):
    @staticmethod
    def backward(ctx, grad_output):
        return ctx.saved_tensors[0] * grad_output


class Cubes(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3


class ForgetsReturn(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)


class ChangesItsInput(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return x.mul_(x).clone()


class SumsNothing(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b, grad_output * a


class Swapped(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return (grad_output * a).sum_to_size(a.shape), (grad_output * b).sum_to_size(b.shape)


class SumsTheFirstDimension(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b, (grad_output * a).sum(0)


class OneGradient(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensors[1]


class OnlyTheMinimum(MinMax):
    @staticmethod
    def backward(ctx, grad_min, grad_max):
        return MinMax.backward(ctx, grad_min, torch.zeros_like(grad_max))


class Unscattered(MinMax):
    @staticmethod
    def backward(ctx, grad_min, grad_max):
        return grad_min + grad_max


class Overwrites(MinMax):
    @staticmethod
    def backward(ctx, grad_min, grad_max):
        at_min, at_max = ctx.saved_tensors
        grad_x = grad_min.new_zeros(ctx.shape)
        grad_x.scatter_(1, at_max[:, None], grad_max[:, None])
        return grad_x.scatter_(1, at_min[:, None], grad_min[:, None])


class WrongWayRound(MinMax):
    @staticmethod
    def forward(ctx, x):
        return MinMax.forward(ctx, x)[::-1]


class NoBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x.amin(1), x.amax(1)


ATTEMPTS = {
    "2.1": [
        (ForgetsGradOutput, "the gradient of `x`"),
        (ForgetsTheFactor, "it is 0.5 times"),
        (Cubes, "`forward`: the output"),
        (ForgetsReturn, "`return` missing"),
        (ChangesItsInput, "in place"),
    ],
    "2.2": [
        (SumsNothing, "only the engine made it fit"),
        (Swapped, "the gradient of `a`"),
        (SumsTheFirstDimension, "with shapes (4, 3) and (4, 3)"),
        (OneGradient, "`backward` raises"),
    ],
    "2.3": [
        (OnlyTheMinimum, "the gradient of `x`"),
        (Unscattered, "`backward` raises"),
        (Overwrites, "the gradient of `x`"),
        (WrongWayRound, "`forward`: output 0"),
        (NoBackward, "`backward` raises"),
    ],
}
