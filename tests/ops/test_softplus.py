import pytest
import torch
import torch.nn.functional as F

from helpers.ops.softplus import SoftplusLayer, softplus
from tests.common import FLOATS, random


def test_second_derivative_where_the_threshold_of_pytorch_cuts_it_off():
    x = torch.tensor([-40.0, 19.0, 21.0, 40.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(softplus(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    decay = torch.exp(-x.abs())
    torch.testing.assert_close(second, decay / (1 + decay) ** 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_extreme_numbers(dtype):
    largest, inf, nan = torch.finfo(dtype).max, torch.inf, torch.nan
    x = torch.tensor(
        [-inf, -largest, -1e4, 1e4, largest, inf, nan], dtype=dtype
    ).requires_grad_()
    y = softplus(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    right = x.where(~(x < 0), 0), torch.tensor([0, 0, 0, 1, 1, 1, nan], dtype=dtype)
    torch.testing.assert_close((y, gradient), right, rtol=0, atol=0, equal_nan=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert not second[x.isfinite()].any()


@pytest.mark.parametrize("beta", [1, 0.3, 5.0])
def test_beta_bends_as_that_of_pytorch(beta):
    x = random(5)
    pair = SoftplusLayer(beta)(x), F.softplus(x, beta, threshold=1e3)
    for _ in range(4):  # up to the third derivative
        torch.testing.assert_close(*pair)
        pair = [torch.autograd.grad(y.sum(), x, create_graph=True)[0] for y in pair]
    assert repr(SoftplusLayer(beta)) == f"SoftplusLayer(beta={beta})"


@pytest.mark.parametrize("beta", [0.3, 2.5, 7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_beta_in_half_precision(dtype, beta):
    """Within one unit in the last place of float64, for small values, too."""
    x = (torch.linspace(-8, 8, 101) / beta).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    results = []
    for leaf in (x, wide):
        y = softplus(leaf, beta)
        (slope,) = torch.autograd.grad(y.sum(), leaf)
        results.append((y.double(), slope.double()))
    torch.testing.assert_close(*results, rtol=torch.finfo(dtype).eps, atol=0)
