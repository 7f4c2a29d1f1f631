import pytest
import torch

from helpers.ops.gradient_reversal import GradientReversalLayer, gradient_reversal
from tests.common import assert_works_compiled, layouts, random


def test_nothing_is_copied_and_autograd_guards_the_view():
    for x in layouts().values():
        y = gradient_reversal(x)
        assert torch.equal(y, x)
        assert (y.data_ptr(), y.stride()) == (x.data_ptr(), x.stride())
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        y.relu_()
    x = random(3)
    gradient_reversal(x).clone().relu_().sum().backward()


def test_twice_is_the_identity_of_every_order():
    x = random(3)
    y = gradient_reversal(gradient_reversal(x, 2.0), 0.5)
    assert torch.autograd.gradcheck(lambda x: gradient_reversal(gradient_reversal(x)) ** 3, (x,))
    assert torch.autograd.gradgradcheck(
        lambda x: gradient_reversal(gradient_reversal(x)) ** 3, (x,)
    )
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.ones(3, dtype=torch.float64))


def test_layer_reads_its_scale_at_every_call():
    layer, x = GradientReversalLayer(0.5), random(2)
    assert torch.autograd.grad(layer(x).sum(), x)[0].tolist() == [-0.5, -0.5]
    layer.scale = 2.0
    assert torch.autograd.grad(layer(x).sum(), x)[0].tolist() == [-2, -2]
    assert repr(layer) == "GradientReversalLayer(scale=2.0)"
    assert layer.state_dict() == {}


def test_compiles_with_a_scale_that_the_code_holds():
    assert_works_compiled(lambda x: gradient_reversal(x, 0.5) * x, random(2, 3))
