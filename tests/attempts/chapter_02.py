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


class ForgetsCtx(Square):
    @staticmethod
    def forward(x):
        return x * x


class OnlyMatrices(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.einsum("ij,ij->ij", x, x)


class MarksTheOutput(Square):
    @staticmethod
    def forward(ctx, x):
        y = Square.forward(ctx, x)
        ctx.mark_non_differentiable(y)
        return y


class NothingForB(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        return Multiply.backward(ctx, grad_output)[0], None


class SumsOnce(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a, grad_b = grad_output * b, grad_output * a
        if a.shape[1] == 1:
            grad_a = grad_a.sum(1, keepdim=True)
        if b.shape != grad_b.shape:
            grad_b = grad_b.sum(0, keepdim=b.dim() == 2)
        return grad_a, grad_b


class KeepsOnTheClass(MinMax):
    @staticmethod
    def forward(ctx, x):
        cls = KeepsOnTheClass
        cls.i, cls.j, cls.shape = x.argmin(1), x.argmax(1), x.shape
        return x.amin(1), x.amax(1)

    @staticmethod
    def backward(ctx, grad_min, grad_max):
        cls = KeepsOnTheClass
        grad_x = grad_min.new_zeros(cls.shape)
        grad_x.scatter_add_(1, cls.i[:, None], grad_min[:, None])
        return grad_x.scatter_add_(1, cls.j[:, None], grad_max[:, None])


class KeepsIndicesOnCtx(MinMax):
    @staticmethod
    def forward(ctx, x):
        ctx.smallest, ctx.largest, ctx.shape = x.min(1), x.argmax(1), x.shape
        ctx.smallest = ctx.smallest.indices
        return x.amin(1), x.amax(1)

    @staticmethod
    def backward(ctx, grad_min, grad_max):
        grad_x = grad_min.new_zeros(ctx.shape)
        grad_x.scatter_add_(1, ctx.smallest[:, None], grad_min[:, None])
        return grad_x.scatter_add_(1, ctx.largest[:, None], grad_max[:, None])


class KeepsIndicesInAList(KeepsIndicesOnCtx):
    @staticmethod
    def forward(ctx, x):
        ctx.kept, ctx.shape = [x.argmin(1), x.argmax(1)], x.shape
        return x.amin(1), x.amax(1)

    @staticmethod
    def backward(ctx, grad_min, grad_max):
        ctx.smallest, ctx.largest = ctx.kept
        return KeepsIndicesOnCtx.backward(ctx, grad_min, grad_max)


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
        (ForgetsCtx, "`forward` must take (ctx, x)."),
        (OnlyMatrices, "with an input of shape (5,)"),
        (MarksTheOutput, "the output requires no gradient"),
    ],
    "2.2": [
        (SumsNothing, "only the engine made it fit"),
        (Swapped, "The gradient returned for `a` is that of `b`"),
        (SumsTheFirstDimension, "with shapes (4, 3) and (4, 3)"),
        (OneGradient, "Backward returned 1 gradient(s)"),
        (NothingForB, "None stands in its place"),
        (SumsOnce, "with shapes (2, 3) and ()"),
    ],
    "2.3": [
        (OnlyTheMinimum, "`output[1]` depends on `x`"),
        (Unscattered, "(4, 5) belongs there"),
        (Overwrites, "with an input of shape (3, 1)"),
        (KeepsOnTheClass, "two calls with other inputs disturb each other"),
        (KeepsIndicesOnCtx, "`ctx.smallest` holds a tensor outside `save_for_backward`"),
        (KeepsIndicesInAList, "`ctx.kept` holds a tensor outside `save_for_backward`"),
        (DropsWhatIsUnused, "None, which arrives for an output that is not used"),
        (WrongWayRound, "`forward`: output 0"),
        (NoBackward, "it has no method `backward`"),
    ],
}
