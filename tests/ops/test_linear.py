import pytest
import torch
import torch.nn.functional as F

from helpers.ops.linear import Linear, LinearFunction, linear
from tests.common import TOLERANCE, assert_agree, random
from tests.ops.samples import of_linear


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_computes_only_what_is_needed(wanted):
    tensors = [tensor.detach() for tensor in of_linear(torch.float64)["matrix"]]
    for index in wanted:
        tensors[index].requires_grad_()
    grad_output = random(4, 2, seed=5).detach()
    # Without which torch 2.10 forgets what the node saved.
    output = LinearFunction.apply(*tensors)
    given = output.grad_fn.apply(grad_output)
    assert (
        tuple(i for i, gradient in enumerate(given) if gradient is not None) == wanted
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    x, weight, bias = of_linear(torch.float32)["three dimensions"]
    with torch.autocast("cpu", dtype=dtype):
        assert_agree(linear, F.linear, [x, weight, bias], dtype)
        mixed = linear(x.to(dtype), weight, bias)
        assert linear(x.double(), weight.double()).dtype == torch.float64
    assert mixed.dtype == dtype
    mixed.sum().backward()
    assert [t.grad.dtype for t in (x, weight, bias)] == [torch.float32] * 3


@pytest.mark.parametrize(
    "sizes, bias, dtype",
    [
        ((3, 5), True, torch.float64),
        ((3, 1), False, torch.float32),
        ((1, 3), True, torch.bfloat16),
    ],
)
def test_module_is_a_twin_of_nn_linear(sizes, bias, dtype):
    """The same parameters from the same seed, values, and gradients by name."""
    results, x = [], random(2, 4, sizes[0], dtype=dtype)
    for kind in (Linear, torch.nn.Linear):
        torch.manual_seed(0)
        module = kind(*sizes, bias=bias, dtype=dtype)
        output = module(x)
        leaves = x, *module.parameters()
        slopes = torch.autograd.grad(output.square().sum(), leaves)
        results.append((output, slopes, dict(module.state_dict())))
        assert repr(module) == repr(torch.nn.Linear(*sizes, bias=bias))
    torch.testing.assert_close(*results, **TOLERANCE[dtype])
