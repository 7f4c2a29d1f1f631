import pytest
import torch
import torch.nn.functional as F

from helpers.ops.linear import LinearFunction, linear
from tests.common import (
    FLOATS,
    assert_agree,
    assert_gradients,
    assert_raises,
    assert_works_compiled,
    random,
)

# input, weight, bias or None
SHAPES = {
    "matrix": ((4, 3), (2, 3), (2,)),
    "without bias": ((4, 3), (2, 3), None),
    "vector": ((3,), (2, 3), (2,)),
    "three dimensions": ((2, 5, 3), (4, 3), (4,)),
    "four dimensions": ((2, 1, 5, 3), (4, 3), (4,)),
    "one output feature": ((4, 3), (1, 3), (1,)),
    "one input feature": ((4, 1), (2, 1), (2,)),
    "empty batch": ((0, 3), (2, 3), (2,)),
    "empty batch of matrices": ((2, 0, 3), (2, 3), (2,)),
    "no input features": ((4, 0), (2, 0), (2,)),
    "no output features": ((4, 3), (0, 3), (0,)),
}


def sample(name, dtype=torch.float64):
    return [
        None if shape is None else random(*shape, dtype=dtype, seed=seed)
        for seed, shape in enumerate(SHAPES[name])
    ]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", SHAPES)
def test_agrees_with_torch(name, dtype):
    assert_agree(linear, F.linear, sample(name, dtype), dtype)


@pytest.mark.parametrize("name", SHAPES)
def test_gradients(name):
    inputs = [tensor for tensor in sample(name) if tensor is not None]
    assert_gradients(linear, *inputs)


def test_non_contiguous_arguments():
    x = random(3, 4).detach().t().requires_grad_()
    weight = random(6, 2).detach()[::2].t().requires_grad_()
    assert_agree(linear, F.linear, [x, weight, random(2)], torch.float64)
    assert_agree(linear, F.linear, [random(3).expand(2, 5, 3), weight], torch.float64)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_computes_only_what_is_needed(wanted):
    tensors = [tensor.detach() for tensor in sample("matrix")]
    for index in wanted:
        tensors[index].requires_grad_()
    grad_output = random(4, 2, seed=5).detach()
    given = LinearFunction.apply(*tensors).grad_fn.apply(grad_output)
    assert tuple(i for i, gradient in enumerate(given) if gradient is not None) == wanted


def test_keeps_input_and_weight_and_nothing_else():
    x, weight, bias = sample("matrix")
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        linear(x, weight, bias)
    assert {tensor.data_ptr() for tensor in saved} == {x.data_ptr(), weight.data_ptr()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    x, weight, bias = sample("three dimensions", torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        assert_agree(linear, F.linear, [x, weight, bias], dtype)
        mixed = linear(x.to(dtype), weight, bias)
        assert linear(x.double(), weight.double()).dtype == torch.float64
    assert mixed.dtype == dtype
    mixed.sum().backward()
    assert [t.grad.dtype for t in (x, weight, bias)] == [torch.float32] * 3


def test_function_transforms():
    x, weight, bias = (tensor.detach() for tensor in sample("three dimensions"))
    right = F.linear(x, weight, bias)
    assert torch.allclose(torch.func.vmap(linear, (0, None, None))(x, weight, bias), right)
    assert torch.allclose(torch.func.vmap(linear, (0, None))(x, weight), F.linear(x, weight))

    def loss(function):
        return lambda weight, bias, x: function(x, weight, bias).square().sum()

    for ours, theirs in zip(
        *[
            torch.func.vmap(torch.func.grad(loss(function), (0, 1)), (None, None, 0))(
                weight, bias, x
            )
            for function in (linear, F.linear)
        ],
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["matrix", "three dimensions", "without bias"])
def test_compiles(name):
    assert_works_compiled(linear, *[tensor for tensor in sample(name) if tensor is not None])


def test_bad_input():
    x, weight, bias = sample("matrix")
    for arguments, kind, words in [
        ((1.0, weight), TypeError, "input must be a torch.Tensor, got float"),
        ((x, [1.0]), TypeError, "weight must be a torch.Tensor, got list"),
        ((x, weight, 0.0), TypeError, "bias must be a torch.Tensor, got float"),
        ((torch.arange(3), weight), TypeError, "input must be floating-point, got torch.int64"),
        ((x, weight.bool()), TypeError, "weight must be floating-point, got torch.bool"),
        ((x, weight.float()), TypeError, "weight is torch.float32, but input is torch.float64"),
        ((x, weight, bias.half()), TypeError, "bias is torch.float16, but input"),
        ((x, weight.to("meta")), ValueError, "weight is on meta, but input is on cpu"),
        ((x, weight[0]), ValueError, "(out_features, in_features), got (3,)"),
        ((x, weight.t()), ValueError, "input must have shape (..., 2) to fit weight (3, 2), got (4"),
        ((x[0, 0], weight), ValueError, "got ()"),
        ((x, weight, bias[:1]), ValueError, "bias must have shape (2,) to fit weight (2, 3), got (1"),
        ((x, weight, bias[:, None]), ValueError, "got (2, 1)"),
    ]:  # fmt: skip
        assert_raises(kind, words, linear, *arguments)
