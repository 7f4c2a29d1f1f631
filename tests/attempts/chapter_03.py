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


ATTEMPTS = {
    "3.1": [
        (ForgetsN, "with n = 2, the gradient of `x`"),
        (OneGradient, "incorrect number of gradients"),
        (OnlySquares, "with n = 1, the gradient of `x`"),
        (KeepsXOnCtx, "`ctx.x` is out of autograd's sight"),
    ],
    "3.2": [
        (ScalesTheValues, "`forward`: the output"),
        (DividesInstead, "the gradient of `x`"),
        (Materializes, "materialize_grads is still on"),
        (IgnoresNone, "does not handle grad_output = None"),
    ],
    "3.3": [
        (KeepsBothWays, "still alive"),
        (KeepsACopy, "`ctx.copy` is out of autograd's sight"),
        (SavesX, "the gradient of `x`"),
        (ForgetsTheSquare, "the gradient of `x`"),
    ],
}
