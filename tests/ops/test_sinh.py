import torch
from torch.autograd import gradcheck, gradgradcheck

from helpers.ops.sinh import Sinh, sinh
from tests.common import random


def test_all_three_outputs_have_gradients():
    assert gradcheck(Sinh.apply, random(2, 3))
    assert gradgradcheck(Sinh.apply, random(2, 3))


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
