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


class ReturnsATuple(Square):
    @staticmethod
    def forward(ctx, x):
        return (Square.forward(ctx, x),)


class KeepsOnCtx(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * ctx.x * grad_output


class DropsWhatIsUnused(MinMax):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return MinMax.forward(ctx, x)

    @staticmethod
    def backward(ctx, grad_min, grad_max):
        if grad_min is None or grad_max is None:
            return None
        return MinMax.backward(ctx, grad_min, grad_max)


ATTEMPTS = {
    "2.1": [
        (ForgetsGradOutput, "does not depend on grad_output"),
        (ForgetsTheFactor, "multiplied by 0.5"),
        (Cubes, "`forward`: the output"),
        (ForgetsReturn, "`return` missing"),
        (ChangesItsInput, "in place"),
        (ReturnsATuple, "it returns a tuple, but a tensor is asked for"),
        (KeepsOnCtx, "`ctx.x` holds an input outside `save_for_backward`"),
        (Square.apply, "give check the class Square itself"),
    ],
    "2.2": [
        (SumsNothing, "only the engine made it fit"),
        (Swapped, "The gradient returned for `a` is that of `b`"),
        (SumsTheFirstDimension, "with shapes (4, 3) and (4, 3)"),
        (OneGradient, "Backward returned 1 gradient(s)"),
    ],
    "2.3": [
        (OnlyTheMinimum, "`output[1]` depends on `x`"),
        (Unscattered, "(4, 5) belongs there"),
        (Overwrites, "with an input of shape (3, 1)"),
        (DropsWhatIsUnused, "None, which arrives for an output that is not used"),
        (WrongWayRound, "`forward`: output 0"),
        (NoBackward, "it has no method `backward`"),
    ],
}
