"""Wrong attempts at the exercises of chapter 03, each with words that the verdict must hold."""

import torch

from helpers.lessons.exercises.chapter_03 import Power, ScaleGradient, Tanh


class ForgetsN(Power):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x ** (ctx.n - 1), None


class OneGradient(Power):
    @staticmethod
    def backward(ctx, grad_output):
        return Power.backward(ctx, grad_output)[0]


class OnlySquares(Power):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2 * ctx.saved_tensors[0], None


class KeepsXOnCtx(Power):
    @staticmethod
    def forward(ctx, x, n):
        ctx.x, ctx.n = x, n
        return x**n

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.n * ctx.x ** (ctx.n - 1), None


class ScalesTheValues(ScaleGradient):
    @staticmethod
    def forward(ctx, x, scale):
        return ScaleGradient.forward(ctx, x, scale) * scale


class DividesInstead(ScaleGradient):
    @staticmethod
    def backward(ctx, grad_output):
        return None if grad_output is None else grad_output / ctx.scale, None


class Materializes(ScaleGradient):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)


class IgnoresNone(ScaleGradient):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.scale, None


class KeepsBothWays(Tanh):
    @staticmethod
    def forward(ctx, x):
        result = Tanh.forward(ctx, x)
        ctx.result = result
        return result


class KeepsACopy(Tanh):
    @staticmethod
    def forward(ctx, x):
        ctx.copy = torch.tanh(x)
        return ctx.copy.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1 - ctx.copy**2)


class SavesX(Tanh):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)


class ForgetsTheSquare(Tanh):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1 - ctx.saved_tensors[0])


class KeepsNOnTheClass(Power):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        KeepsNOnTheClass.n = n
        return x**n

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        n = KeepsNOnTheClass.n
        return grad_output * n * x ** (n - 1), None


class DividesByX(Power):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.n * x**ctx.n / x, None


class KeepsInADict(Tanh):
    @staticmethod
    def forward(ctx, x):
        result = torch.tanh(x)
        ctx.kept = {"result": result.clone()}
        return result

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1 - ctx.kept["result"] ** 2)


class IgnoresTheSign(Power):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.n * ctx.saved_tensors[0].abs() ** (ctx.n - 1), None


class KeepsScaleOnTheClass(ScaleGradient):
    @staticmethod
    def forward(ctx, x, scale):
        KeepsScaleOnTheClass.scale = scale
        ctx.set_materialize_grads(False)
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None if grad_output is None else grad_output * KeepsScaleOnTheClass.scale, None


class ReturnsData(ScaleGradient):
    @staticmethod
    def forward(ctx, x, scale):
        ScaleGradient.forward(ctx, x, scale)
        return x.data


class ReturnsADetachedOne(ScaleGradient):
    @staticmethod
    def forward(ctx, x, scale):
        ScaleGradient.forward(ctx, x, scale)
        return x.detach()


class ReturnsTooLittleForNone(ScaleGradient):
    @staticmethod
    def backward(ctx, grad_output):
        if grad_output is None:
            return
        return grad_output * ctx.scale, None


class MarksTheOutput(Tanh):
    @staticmethod
    def forward(ctx, x):
        result = Tanh.forward(ctx, x)
        ctx.mark_non_differentiable(result)
        return result


ATTEMPTS = {
    "3.1": [
        (ForgetsN, "lacks the factor `n` = 3"),
        (OneGradient, "Backward returned 1 gradient(s)"),
        (OnlySquares, "with n = 3: The gradient of `x` lacks the factor `x`"),
        (KeepsXOnCtx, "`ctx.x` holds an input outside"),
        (KeepsNOnTheClass, "two calls with another n"),
        (DividesByX, "at x = 0"),
        (IgnoresTheSign, "with n = 2: The gradient of `x`"),
    ],
    "3.2": [
        (ScalesTheValues, "`forward`: the output"),
        (DividesInstead, "with scale = 0.1: the gradient is"),
        (Materializes, "materialize_grads is still on"),
        (IgnoresNone, "None, which arrives"),
        (KeepsScaleOnTheClass, "two calls with another scale disturb each other"),
        (ReturnsData, "changing the output in place changes `x`"),
        (ReturnsADetachedOne, "changing the output in place changes `x`"),
        (ReturnsTooLittleForNone, "where grad_output is None, too"),
    ],
    "3.3": [
        (KeepsBothWays, "output and ctx refer to each other"),
        (KeepsACopy, "`ctx.copy` holds a tensor outside"),
        (SavesX, "The gradient of `x`"),
        (KeepsInADict, "outside `save_for_backward`"),
        (ForgetsTheSquare, "The gradient of `x`"),
        (MarksTheOutput, "the output requires no gradient"),
    ],
}
