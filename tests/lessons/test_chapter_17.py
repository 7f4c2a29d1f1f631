"""What chapter 17 says of function transforms in its table, and no cell of it shows."""

import pytest
import torch
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks


class Declared(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_output_grad_dtype(inputs[0].dtype)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


def test_a_declared_dtype_under_vmap():
    with pytest.raises(RuntimeError, match="number of declarations"):
        torch.vmap(Declared.apply)(torch.ones(2, 3))


def packed(x):
    with saved_tensors_hooks(torch.Tensor.bfloat16, torch.Tensor.float):
        return x**3


def test_hooks_under_a_function_transform():
    with pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
        torch.func.grad(packed)(torch.tensor(2.0))
