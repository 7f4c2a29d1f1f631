import pytest
import torch

from helpers.ops.exp import exp
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
    assert_agree(exp, torch.exp, [layouts(dtype)[layout]], dtype)


def test_gradients():
    assert_gradients(exp, random(2, 3))
    assert_gradients(exp, torch.randn(3, dtype=torch.complex128, requires_grad=True))


def test_saves_its_result_and_nothing_else():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        output = exp(random(3))
    assert [tensor.data_ptr() for tensor in saved] == [output.data_ptr()]


def test_result_changed_in_place_is_noticed():
    output = exp(random(3))
    output.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_function_transforms():
    x = random(4, 3).detach()
    assert torch.allclose(torch.func.vmap(exp, in_dims=1, out_dims=1)(x), x.exp())
    per_sample = torch.func.vmap(torch.func.grad(lambda row: exp(row).sum()))(x)
    assert torch.allclose(per_sample, x.exp())


def test_compiles():
    assert_works_compiled(exp, random(2, 3))


def test_bad_input():
    assert_raises(TypeError, "input must be a torch.Tensor, got float", exp, 1.0)
    assert_raises(TypeError, "got torch.int64", exp, torch.arange(3))
