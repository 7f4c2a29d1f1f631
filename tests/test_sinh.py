import pytest
import torch

from helpers.ops.sinh import Sinh, sinh
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
def test_agrees_with_torch(layout, dtype):
    assert_agree(sinh, torch.sinh, [layouts(dtype)[layout]], dtype)


def test_gradients():
    assert_gradients(sinh, random(2, 3))
    assert_gradients(Sinh.apply, random(2, 3))  # all three outputs


def test_derivatives_up_to_the_sixth():
    x = random(5)
    y = sinh(x)
    for n in range(1, 7):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        torch.testing.assert_close(y, torch.cosh(x) if n % 2 else torch.sinh(x))


def test_small_and_large_numbers_keep_their_digits():
    x = torch.tensor([1e-12, -1e-12, 40.0, -40.0, 700.0], dtype=torch.float64, requires_grad=True)
    y = sinh(x)
    torch.testing.assert_close(y, torch.sinh(x), rtol=1e-14, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), x)[0], torch.cosh(x), rtol=1e-14, atol=0
    )


def test_function_transforms():
    x = random(4, 3).detach()
    assert torch.allclose(torch.func.vmap(sinh)(x), torch.sinh(x))
    per_sample = torch.func.vmap(torch.func.grad(lambda row: sinh(row).sum()))(x)
    assert torch.allclose(per_sample, torch.cosh(x))


def test_compiles():
    assert_works_compiled(sinh, random(2, 3))


def test_bad_input():
    assert_raises(TypeError, "input must be a torch.Tensor, got float", sinh, 1.0)
    assert_raises(TypeError, "got torch.int64", sinh, torch.arange(3))
