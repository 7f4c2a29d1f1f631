"""`involution2d` in plain PyTorch, in the C++ kernels, and on a device."""

import pytest
import torch
from torch.autograd import grad
from torch.utils.flop_counter import FlopCounterMode

from helpers.ops.involution import cpu, involution2d
from helpers.ops.involution.geometry import KERNELS
from tests.common import compiled
from tests.involution.reference import (
    SMALL,
    assert_close,
    each_dtype,
    random_cases,
    random_tensors,
    window,
)
from tests.needs import needs_compiler

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LOW = torch.bfloat16


@pytest.fixture(
    params=[
        "plain",
        pytest.param("cpu", marks=needs_compiler),
        pytest.param("cuda", marks=needs_gpu),
    ]
)
def device(request, monkeypatch):
    """A device, once for each of the three that implement the operation."""
    if request.param == "plain":
        monkeypatch.setattr(cpu, "available", lambda: False)
        return "cpu"
    return request.param


def same_size(device):
    """input, weight and the call."""
    input, weight, _ = random_tensors(SMALL["same size"])
    input, weight = (t.to(device).requires_grad_() for t in (input, weight))
    return input, weight, lambda input, weight: involution2d(input, weight, padding=1)


@each_dtype
def test_random_cases_agree_with_unfold(dtype, device):
    for geometry, case, expected in random_cases(50, dtype):
        input, weight, grad_output = (t.to(device, copy=True) for t in case)
        input.requires_grad_(), weight.requires_grad_()
        output = involution2d(input, weight, **window(geometry))
        assert output.dtype == dtype
        actual = output, *grad(output, (input, weight), grad_output)
        for kernel, one in zip(KERNELS, actual, strict=True):
            assert_close(one.detach(), expected[kernel], dtype)


def test_channels_last_in_channels_last_out(device):
    input, weight, call = same_size(device)
    last = input.detach().to(memory_format=torch.channels_last).requires_grad_()
    output = call(last, weight)
    for result in (output, *grad(output.pow(2).sum(), last)):
        assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_summed_in_float32(dtype, device):
    # Ones, added one at a time in half precision, stop at 2048 (float16) or 256
    # (bfloat16).
    def ones(*size):
        return torch.ones(size, dtype=dtype, device=device, requires_grad=True)

    weight = ones(1, 1, 1, 1, 1, 1)
    involution2d(ones(1, 4096, 1, 1), weight).sum().backward()
    assert weight.grad.item() == 4096
    assert involution2d(ones(1, 1, 64, 64), ones(1, 1, 64, 64, 1, 1)).item() == 4096
    input = ones(1, 1, 1, 1)
    involution2d(
        input, ones(1, 1, 64, 64, 64, 64).detach(), padding=63
    ).sum().backward()
    assert input.grad.item() == 4096


def test_autocast(device):
    input, weight, call = same_size(device)
    expected = call(input.to(LOW), weight.to(LOW))
    torch.compiler.reset()
    with torch.autocast(device, dtype=LOW):
        outputs = [
            call(input, weight),
            call(input, weight.to(LOW)),  # as behind a convolution
            compiled(call)(input, weight),
        ]
        assert call(input.double(), weight.double()).dtype == torch.float64
        with pytest.raises(TypeError, match="one dtype"):
            call(input.double(), weight)
        # Backward inside, too.
        assert grad(outputs[0].sum(), input)[0].dtype == torch.float32
    for output in outputs:
        assert output.dtype == LOW and output.equal(expected)


@pytest.mark.parametrize(
    "needed", [("input",), ("weight",), ("input", "weight")], ids=str
)
def test_operators_run_where_they_are_needed_and_count_their_operations(needed):
    """Two for each tap of each output, in each of the three operators."""
    tensors = {
        "input": torch.randn(3, 4, 5, 6),
        "weight": torch.randn(3, 2, 3, 3, 3, 3),
    }
    for name in needed:
        tensors[name].requires_grad_()
    with FlopCounterMode(display=False) as counter:
        involution2d(**tensors, stride=2, padding=1).sum().backward()
    operators = ["involution2d", *(f"involution2d_grad_{name}" for name in needed)]
    counted = {
        str(op).split(".")[1]: n
        for op, n in counter.get_flop_counts()["Global"].items()
    }
    assert counted == dict.fromkeys(operators, 2 * (3 * 4 * 3 * 3) * 9)
