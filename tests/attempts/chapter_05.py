"""Wrong attempts at the exercises of chapter 05, each with words that the verdict must hold."""

import torch
from torch.autograd import Function, grad

from helpers.lessons.exercises.chapter_05 import SiLU, Sinh


class IgnoresTheSecond(Sinh):
    @staticmethod
    def backward(ctx, grad_sinh, grad_cosh):
        return grad_sinh * ctx.saved_tensors[1]


class WrongSignOfCosh(Sinh):
    @staticmethod
    def backward(ctx, grad_sinh, grad_cosh):
        s, c = ctx.saved_tensors
        return grad_sinh * c - grad_cosh * s


class KeepsOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.s, ctx.c = torch.sinh(x), torch.cosh(x)
        return ctx.s.clone(), ctx.c.clone()

    @staticmethod
    def backward(ctx, grad_sinh, grad_cosh):
        return grad_sinh * ctx.c + grad_cosh * ctx.s


class OneOutput(Sinh):
    @staticmethod
    def forward(ctx, x):
        return Sinh.forward(ctx, x)[0]


class SavesTheInput(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sinh(x), torch.cosh(x)

    @staticmethod
    def backward(ctx, grad_sinh, grad_cosh):
        (x,) = ctx.saved_tensors
        return grad_sinh * torch.cosh(x) + grad_cosh * torch.sinh(x)


def without_graph(f, x, v):
    x = x.detach().requires_grad_()
    (first,) = grad(f(x), x)
    return grad((first * v).sum(), x)[0]


def only_vectors(f, x, v):
    x = x.detach().requires_grad_()
    (first,) = grad(f(x), x, create_graph=True)
    return grad(first @ v, x)[0]


def whole_hessian(f, x, v):
    leaf = x.detach().requires_grad_()
    (first,) = grad(f(leaf), leaf, create_graph=True)
    rows = [grad(g, leaf, retain_graph=True)[0].flatten() for g in first.flatten()]
    return (torch.stack(rows) @ v.flatten()).view(x.shape)


def gradient_times_v(f, x, v):
    x = x.detach().requires_grad_()
    return grad(f(x), x)[0] * v


def needs_requires_grad(f, x, v):
    (first,) = grad(f(x), x, create_graph=True)
    return grad((first * v).sum(), x)[0]


def a_tuple(f, x, v):
    x = x.detach().requires_grad_()
    (first,) = grad(f(x), x, create_graph=True)
    return grad((first * v).sum(), x)


def flattens_x(f, x, v):
    flat = x.detach().flatten().requires_grad_()
    (first,) = grad(f(flat), flat, create_graph=True)
    return grad(first @ v.flatten(), flat)[0].view(x.shape)


def central_difference(f, x, v):
    def gradient(x):
        x = x.detach().requires_grad_()
        return grad(f(x), x)[0]

    return (gradient(x + 1e-5 * v) - gradient(x - 1e-5 * v)) / 2e-5


def adds_to_the_first_gradient(f, x, v):
    x = x.detach().requires_grad_()
    f(x).backward(create_graph=True)
    (x.grad * v).sum().backward()
    return x.grad


class SavesTheSigmoid(SiLU):
    @staticmethod
    def forward(ctx, x):
        sigmoid = torch.sigmoid(x)
        ctx.save_for_backward(x, sigmoid)
        return x * sigmoid

    @staticmethod
    def backward(ctx, grad_output):
        x, sigmoid = ctx.saved_tensors
        return grad_output * sigmoid * (1 + x * (1 - sigmoid))


class StillOnCtx(SiLU):
    @staticmethod
    def forward(ctx, x):
        ctx.sigmoid = torch.sigmoid(x)
        ctx.save_for_backward(x, ctx.sigmoid)
        return x * ctx.sigmoid

    @staticmethod
    def backward(ctx, grad_output):
        x, sigmoid = ctx.saved_tensors
        return grad_output * sigmoid * (1 + x * (1 - sigmoid))


class DetachesX(SiLU):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x.detach())
        return grad_output * sigmoid * (1 + x * (1 - sigmoid))


class ForgetsTheOuterTerm(SiLU):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(x)


class ReturnsBoth(SiLU):
    @staticmethod
    def forward(ctx, x):
        return SiLU.forward(ctx, x), torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output, grad_sigmoid):
        return SiLU.backward(ctx, grad_output)


class DividesByX(SiLU):
    @staticmethod
    def forward(ctx, x):
        result = x * torch.sigmoid(x)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        x, result = ctx.saved_tensors
        sigmoid = result / x
        return grad_output * sigmoid * (1 + x * (1 - sigmoid))


def leaves_a_trace(f, x, v):
    x.requires_grad_()
    (first,) = grad(f(x), x, create_graph=True)
    return grad((first * v).sum(), x)[0]


def overwrites_v(f, x, v):
    x = x.detach().requires_grad_()
    (first,) = grad(f(x), x, create_graph=True)
    product = grad((first * v).sum(), x)[0]
    v.mul_(2)
    return product


ATTEMPTS = {
    "5.1": [
        (IgnoresTheSecond, "`output[1]` depends on `x`"),
        (WrongSignOfCosh, "The gradient of `x`"),
        (KeepsOnCtx, "silently wrong"),
        (OneOutput, "a tuple of 2 tensors is asked for"),
        (SavesTheInput, "what it saves is not its two outputs"),
    ],
    "5.2": [
        (without_graph, "does not require grad"),
        (only_vectors, "x of shape (2, 3)"),
        (whole_hessian, "differentiated 7 times"),
        (gradient_times_v, "not H·v"),
        (needs_requires_grad, "requires_grad=False, it raises"),
        (leaves_a_trace, "leaves a trace in x"),
        (overwrites_v, "changes v in place"),
        (a_tuple, "must be a tensor of that shape"),
        (flattens_x, "f got a tensor of shape (6,)"),
        (central_difference, "only nearly H·v"),
        (adds_to_the_first_gradient, "the first gradient is still in x.grad"),
    ],
    "5.3": [
        (StillOnCtx, "silently wrong"),
        (SavesTheSigmoid, "or saved and not returned"),
        (DetachesX, "silently wrong"),
        (ForgetsTheOuterTerm, "The gradient of `x`"),
        (DividesByX, "at x = 0"),
        (ReturnsBoth, "it returns a tuple, but a tensor is asked for"),
    ],
}
