import pytest
import torch

from helpers.ops.sinh import sinh
from tests.common import as_it_is, compiled, random


def test_derivatives_up_to_the_sixth():
    x = random(5)
    y = sinh(x)
    for n in range(1, 7):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        torch.testing.assert_close(y, torch.cosh(x) if n % 2 else torch.sinh(x))


@pytest.mark.parametrize("through", [as_it_is, compiled], ids=["eager", "compiled"])
def test_finite_as_far_as_that_of_pytorch(through):
    x = torch.tensor([88.8, -88.8, 89.4, -89.4, 90.0, torch.inf, -torch.inf, torch.nan])
    x.requires_grad_()
    y = through(sinh)(x)
    torch.testing.assert_close(y, torch.sinh(x), equal_nan=True)
    given, right = (torch.autograd.grad(f.sum(), x)[0] for f in (y, torch.sinh(x)))
    torch.testing.assert_close(given, right, equal_nan=True)


def test_small_and_large_numbers_keep_their_digits():
    x = torch.tensor(
        [1e-12, -1e-12, 40.0, -40.0, 700.0], dtype=torch.float64, requires_grad=True
    )
    y = sinh(x)
    torch.testing.assert_close(y, torch.sinh(x), rtol=1e-14, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), x)[0], torch.cosh(x), rtol=1e-14, atol=0
    )
