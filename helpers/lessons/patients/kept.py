"""What a module keeps from one call to the next."""

import functools

import torch
from torch.autograd import Function

from .patient import broken, draw, matrix


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.state = None

    def forward(self, x):
        before, self.state = self.state, x.tanh()
        return self.state if before is None else self.state + before / 2


broken(
    "forward-not-deterministic", "what the last call has left",
    lambda: draw((4, 3), dtype=torch.float32),
)(Recurrent())  # fmt: skip


@functools.lru_cache
def shares(layer):
    return layer.weight.detach().softmax(0)


class KeepsItsShares(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(4, dtype=torch.float64))

    def forward(self, x):
        return x * shares(self)


broken("stale", "a parameter that counts in the first call only", matrix)(KeepsItsShares())


class Outliers(Function):
    """Zeros where a value is far from the others of the first batch of this shape."""

    @staticmethod
    def forward(ctx, x, masks):
        mask = x.abs() < 1.2 * x.std()
        ctx.mask = masks.setdefault(x.shape, mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.mask, None


class WithoutOutliers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.masks = {}

    def forward(self, x):
        return Outliers.apply(x, self.masks)


broken("first-call-kept", "the mask of the first batch", lambda: draw((6, 5)))(WithoutOutliers())


class Spaced(Function):
    """A matrix that is made once for each size, whatever the spacing."""

    made = {}

    @staticmethod
    def matrix(n, spacing):
        if n not in Spaced.made:
            Spaced.made[n] = (torch.ones(n, n).double().tril() - 0.5) * spacing
        return Spaced.made[n]

    @staticmethod
    def forward(ctx, x, spacing):
        ctx.spacing = spacing
        return x @ Spaced.matrix(x.shape[-1], spacing)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output @ Spaced.matrix(grad_output.shape[-1], ctx.spacing).t(), None


broken("stale", "a key that leaves the spacing out", lambda: (*matrix(), 0.5))(Spaced)
