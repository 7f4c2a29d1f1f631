"""What chapter 05 says of `once_differentiable` under `torch.func`, and no cell of it shows."""

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import grad, jacrev


class Sine(Function):
    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.cos()


@pytest.mark.parametrize("derivative", [grad, jacrev])
def test_a_second_derivative_under_torch_func_is_not_refused(derivative):
    def second(f):
        return derivative(derivative(lambda x: f(x) ** 3 + x**2))(torch.tensor(1.0))

    assert second(Sine.apply).item() == 2  # of x**2 alone
    assert second(torch.sin).item() != 2
