import pytest
import torch

from helpers.ops.mul_constant import mul_constant
from tests.common import (
    FLOATS,
    assert_agree,
    assert_gradients,
    assert_raises,
    assert_works_compiled,
    layouts,
    random,
)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", layouts())
@pytest.mark.parametrize("constant", [2.5, -3, 0])
def test_agrees_with_torch(layout, dtype, constant):
    assert_agree(mul_constant, torch.mul, [layouts(dtype)[layout], constant], dtype)


def test_gradients():
    assert_gradients(lambda x: mul_constant(x, 2.5), random(2, 3))
    z = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    assert_gradients(lambda x: mul_constant(x, 2.5 - 1j), z)
    assert_gradients(lambda x: mul_constant(x, 2.5), z)


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


def test_function_transforms():
    x = random(4, 3).detach()
    assert torch.equal(torch.func.vmap(mul_constant, (0, None))(x, 2.0), 2 * x)
    gradient = torch.func.grad(lambda row: mul_constant(row, 2.0).sum())
    assert torch.equal(torch.func.vmap(gradient)(x), torch.full_like(x, 2))


def test_compiles():
    assert_works_compiled(lambda x: mul_constant(x, 2.5), random(2, 3))


def test_bad_input():
    x, words = random(2), "constant must be a Python number, got "
    assert_raises(TypeError, "input must be a torch.Tensor, got float", mul_constant, 1.0, 2.0)
    assert_raises(TypeError, "got torch.int64", mul_constant, torch.arange(3), 2.0)
    assert_raises(TypeError, words + "Tensor", mul_constant, x, torch.tensor(2.0))
    assert_raises(TypeError, words + "bool", mul_constant, x, True)
    assert_raises(TypeError, words + "NoneType", mul_constant, x, None)
    assert_raises(TypeError, "so input must be complex too", mul_constant, x, 1j)
