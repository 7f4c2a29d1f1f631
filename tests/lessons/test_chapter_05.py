"""What chapters 05 and 09 say of second derivatives, and no cell of them shows."""

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


def slope_of_penalty(f):
    x = torch.tensor(1.0, requires_grad=True)
    loss = f(x)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    return torch.autograd.grad(loss + slope**2, x)[0].item()


def test_a_second_derivative_of_compiled_code_that_saves_intermediates_is_lost():
    def f(x):
        return torch.tanh(2 * x)

    slope = 2 * (1 - torch.tanh(torch.tensor(2.0)).item() ** 2)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    assert slope_of_penalty(compiled) == pytest.approx(slope)  # of the loss alone
    assert slope_of_penalty(f) != pytest.approx(slope)
