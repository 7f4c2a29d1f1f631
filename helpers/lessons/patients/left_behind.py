"""What a module keeps from one call to the next."""

import torch
from torch.autograd import Function

from .patient import broken, draw


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


broken("state-between-calls", "the first mask", lambda: draw((6, 5)))(WithoutOutliers())
