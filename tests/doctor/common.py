"""What the doctor's tests share: a right Function, wrong ones, and rounds over them."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from helpers.doctor import rounds
from helpers.lessons.cases.case import Square, function


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


def leaf(*shape):
    numbers = torch.linspace(0.5, 1.5, torch.Size(shape).numel())
    return numbers.reshape(shape).requires_grad_()


def errors(report):
    return [finding for finding in report.findings if finding.severity == "error"]


def codes(report):
    """Of the errors and warnings."""
    return [finding.code for finding in report.findings if finding.severity != "note"]


def visits(do, **options):
    """{name: the visit} of rounds over do()."""
    with rounds(**options) as found:
        do()
    return {visit.name: visit for visit in found.visits}


class Half(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x


def that(do):
    """A right Function whose backward does this, too."""

    class Does(Square):
        @staticmethod
        def backward(ctx, grad_output):
            do()
            return Square.backward(ctx, grad_output)

    return Does


LookUp = function(  # wrong where an index is repeated
    lambda table, index: table[index],
    lambda g, table, index: torch.zeros_like(table).index_put((index,), g),
    "LookUp",
)


class OfAModule(Function):
    """Right; f(x), and the parameters of f are handed over beside it."""

    @staticmethod
    def forward(ctx, f, x, *weights):
        ctx.f, ctx.weights = f, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return f(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.f(x)
        return None, *torch.autograd.grad(y, (x, *ctx.weights), grad_output)


class Recomputes(Function):
    """Right; keeps its module, and adds to the gradients of its parameters."""

    @staticmethod
    def forward(ctx, module, x):
        ctx.module = module
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx, grad_output):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.module(x).backward(grad_output)
        return None, x.grad
