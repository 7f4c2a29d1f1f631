import torch

from helpers.ops.mul_constant import mul_constant
from tests.common import random


class StopsHere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None


def test_no_gradient_in_no_gradient_out():
    x = random(3)
    y = StopsHere.apply(mul_constant(x, 2.0)).sum()
    assert torch.autograd.grad(y, x, allow_unused=True) == (None,)
