import pytest
import torch

from helpers.ops.gradient_reversal import GradientReversalLayer, gradient_reversal
from tests.common import as_it_is, assert_same_bits, compiled, random


@pytest.mark.parametrize("through", [as_it_is, compiled])
def test_infinities_and_nan_pass(through):
    x = torch.tensor([1.5, -0.0, torch.inf, -torch.inf, torch.nan], requires_grad=True)
    y = through(gradient_reversal)(x)
    assert_same_bits(y, x)
    slope = torch.autograd.grad(y[:3].sum(), x)[0].tolist()
    assert slope == [-1, -1, -1 if through is not compiled else 0, 0, 0]


def test_result_may_be_changed_in_place():
    x = random(3)
    y = gradient_reversal(x)
    y.relu_()
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], -(x > 0).double())


def test_layer_reads_its_scale_at_every_call():
    layer, x = GradientReversalLayer(0.5), random(2)
    assert torch.autograd.grad(layer(x).sum(), x)[0].tolist() == [-0.5, -0.5]
    layer.scale = 2.0
    assert torch.autograd.grad(layer(x).sum(), x)[0].tolist() == [-2, -2]
    assert repr(layer) == "GradientReversalLayer(scale=2.0)"
    assert layer.state_dict() == {}
