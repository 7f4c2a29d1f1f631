import pytest
import torch

from helpers.ops.gradient_reversal import GradientReversalLayer, gradient_reversal
from tests.common import FLOATS, TOLERANCE, assert_raises, assert_works_compiled, layouts, random


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", layouts())
@pytest.mark.parametrize("scale", [1.0, 0.5, 0, 3])
def test_values_pass_and_gradients_turn_round(layout, dtype, scale):
    x = layouts(dtype)[layout]
    y = gradient_reversal(x, scale)
    assert torch.equal(y, x)
    assert y.stride() == x.stride()
    weight = random(*x.shape, dtype=dtype, seed=1).detach()
    (given,) = torch.autograd.grad(y, x, weight)
    assert given.dtype == dtype
    torch.testing.assert_close(given, -(scale * weight), **TOLERANCE[dtype])


def test_nothing_is_copied_and_autograd_guards_the_view():
    x = random(3)
    y = gradient_reversal(x)
    assert y.data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        y.relu_()
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


def test_function_transforms():
    x = random(4, 3).detach()
    gradient = torch.func.grad(lambda row: gradient_reversal(row, 2.0).sum())
    assert torch.equal(torch.func.vmap(gradient)(x), torch.full_like(x, -2))


def test_compiles():
    assert_works_compiled(lambda x: gradient_reversal(x, 0.5) * x, random(2, 3))


def test_compiling_the_gradient_transform_drops_backward_as_the_docstring_says():
    """If this fails, PyTorch has mended it: take the warning out of the docstring."""
    torch.compiler.reset()
    gradient = torch.func.grad(lambda x: gradient_reversal(x).sum())
    compiled = torch.compile(gradient, backend="aot_eager")
    assert gradient(torch.ones(1)).item() == -1
    assert compiled(torch.ones(1)).item() == 1


def test_exporting_drops_backward_as_the_docstring_says():
    """If this fails, PyTorch has mended it: take the warning out of the docstring."""
    x = torch.ones(1, requires_grad=True)
    exported = torch.export.export(GradientReversalLayer(), (x,)).module()
    assert torch.autograd.grad(GradientReversalLayer()(x), x)[0].item() == -1
    assert torch.autograd.grad(exported(x), x)[0].item() == 1


def test_bad_input():
    x = random(2)
    assert_raises(TypeError, "input must be a torch.Tensor, got list", gradient_reversal, [1.0])
    assert_raises(TypeError, "got torch.int64", gradient_reversal, torch.arange(3))
    assert_raises(TypeError, "scale must be a Python number, got Tensor", gradient_reversal, x, x)
    assert_raises(TypeError, "got bool", gradient_reversal, x, True)
    for scale in (-1.0, float("nan"), float("inf")):
        assert_raises(ValueError, f"not negative, got {scale}", gradient_reversal, x, scale)
