import pytest
import torch

from helpers.ops.softplus import softplus
from tests.common import FLOATS, random


def test_third_derivative():
    x = random(5)
    y = softplus(x).sum()
    for _ in range(3):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    s = torch.sigmoid(x)
    torch.testing.assert_close(y, s * (1 - s) * (1 - 2 * s))


def test_second_derivative_where_the_threshold_of_pytorch_cuts_it_off():
    x = torch.tensor([-40.0, 19.0, 21.0, 40.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(softplus(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    decay = torch.exp(-x.abs())
    torch.testing.assert_close(second, decay / (1 + decay) ** 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_extreme_numbers(dtype):
    largest = torch.finfo(dtype).max
    x = torch.tensor([-largest, -1e4, 1e4, largest], dtype=dtype, requires_grad=True)
    y = softplus(x)
    assert y.tolist() == [0, 0, x[2].item(), x[3].item()]
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert gradient.tolist() == [0, 0, 1, 1]
    assert torch.autograd.grad(gradient.sum(), x)[0].tolist() == [0, 0, 0, 0]


def test_infinities_and_nan():
    x = torch.tensor([-torch.inf, torch.inf, torch.nan], requires_grad=True)
    y = softplus(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y.detach(), torch.tensor([0, torch.inf, torch.nan]), equal_nan=True)
    torch.testing.assert_close(gradient, torch.tensor([0, 1, torch.nan]), equal_nan=True)
