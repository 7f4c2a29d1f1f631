"""What chapter 10 says of `generate_vmap_rule` and no cell of it shows."""

import torch
from torch.autograd import Function
from torch.nn import functional as F

from helpers.lessons.memory import Alive


class Linear(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight):
        return x @ weight.t()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ x


def test_a_generated_rule_makes_the_gradient_of_a_shared_weight_for_each_sample():
    x, weight = torch.randn(7, 1, 3), torch.randn(2, 3, requires_grad=True)
    gradients, each = [], []
    for linear in (Linear.apply, F.linear):
        with Alive() as alive:
            y = torch.vmap(linear, (0, None))(x, weight).sum()
            gradients += torch.autograd.grad(y, weight)
        each.append(any(sorted(shape) == [2, 3, 7] for shape, _ in alive.results))
    torch.testing.assert_close(*gradients)
    assert each == [True, False]
