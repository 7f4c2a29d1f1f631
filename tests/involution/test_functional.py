"""What involution does by itself: in plain PyTorch on a CPU, and in CUDA kernels on a device."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao.quantization import get_default_qat_qconfig_mapping, get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx, prepare_qat_fx
from torch.autograd import grad
from torch.utils.flop_counter import FlopCounterMode

from helpers.ops.involution import Involution2d, benchmark, cpu, involution2d, plain
from helpers.ops.involution.geometry import KERNELS
from tests.involution.reference import (
    TOLERANCE,
    assert_close,
    random_cases,
    window,
)

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ),
]


def tensors(*sizes, **options):
    torch.manual_seed(0)
    return [torch.randn(size, requires_grad=True, **options) for size in sizes]


@pytest.fixture(autouse=True)
def plain_path(monkeypatch):
    """On a CPU, these tests are about plain.py; test_cpu.py has those of the kernels."""
    monkeypatch.setattr(cpu, "available", lambda: False)


# Values and derivatives


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_random_cases_agree_with_loops(dtype, device):
    for geometry, case, expected in random_cases(50, str(dtype), dtype):
        input, weight, grad_output = (t.to(device, copy=True) for t in case)
        input.requires_grad_(), weight.requires_grad_()
        output = involution2d(input, weight, **window(geometry))
        assert output.dtype == dtype
        actual = output, *grad(output, (input, weight), grad_output)
        for one, other in zip(actual, expected, strict=True):
            assert_close(one.detach(), other, dtype)


# Layouts, sizes, types


@pytest.mark.parametrize("device", DEVICES)
def test_channels_last_in_channels_last_out(device):
    input, weight = tensors((2, 4, 5, 6), (2, 2, 3, 3, 5, 6), device=device)
    last = input.detach().to(memory_format=torch.channels_last).requires_grad_()
    expected, output = involution2d(input, weight, padding=1), involution2d(last, weight, padding=1)
    assert expected.is_contiguous()
    assert output.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(output, expected)
    one, other = grad(output.pow(2).sum(), last)[0], grad(expected.pow(2).sum(), input)[0]
    assert one.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(one, other)


def test_many_chunks_are_as_one(monkeypatch):
    input, weight = tensors((3, 4, 5, 6), (3, 2, 3, 3, 5, 6), dtype=torch.float64)
    expected = involution2d(input, weight, padding=1)
    expected_grads = grad(expected.pow(2).sum(), (input, weight))
    monkeypatch.setattr(plain, "CHUNK", 1)
    output = involution2d(input, weight, padding=1)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    for one, other in zip(grad(output.pow(2).sum(), (input, weight)), expected_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_summed_in_float32(dtype, device):
    # Ones, added one at a time in half precision, stop at 2048 (float16) or 256 (bfloat16).
    input = torch.ones(1, 4096, 1, 1, dtype=dtype, device=device, requires_grad=True)
    weight = torch.ones(1, 1, 1, 1, 1, 1, dtype=dtype, device=device, requires_grad=True)
    involution2d(input, weight).sum().backward()
    assert weight.grad.item() == 4096
    input = torch.ones(1, 1, 64, 64, dtype=dtype, device=device)
    weight = torch.ones(1, 1, 64, 64, 1, 1, dtype=dtype, device=device)
    assert involution2d(input, weight).item() == 4096
    input = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device, requires_grad=True)
    weight = torch.ones(1, 1, 64, 64, 64, 64, dtype=dtype, device=device)
    assert grad(involution2d(input, weight, padding=63).sum(), input)[0].item() == 4096


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device):
    input, weight = tensors((1, 4, 5, 6), (1, 2, 3, 3, 5, 6), device=device)
    low = torch.bfloat16
    with torch.autocast(device, dtype=low):
        outputs = [
            involution2d(input, weight, padding=1),
            involution2d(input, weight.to(low), padding=1),  # as behind a convolution
        ]
        in_double = involution2d(input.double(), weight.double(), padding=1)
        with pytest.raises(TypeError, match="one dtype"):
            involution2d(input.double(), weight, padding=1)
        gradient = grad(outputs[0].sum(), input)[0]  # backward inside, too
    assert in_double.dtype == torch.float64
    assert gradient.dtype == torch.float32
    expected = involution2d(input.to(low), weight.to(low), padding=1)
    for output in outputs:
        assert output.dtype == low
        assert output.equal(expected)


def test_operations_are_counted():
    """Two for each tap of each output, in each of the three operators."""
    input, weight = tensors((3, 4, 5, 6), (3, 2, 3, 3, 3, 3))
    with FlopCounterMode(display=False) as counter:
        involution2d(input, weight, stride=2, padding=1).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    assert list(counted.values()) == [2 * (3 * 4 * 3 * 3) * 9] * 3


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.skipif(torch.backends.quantized.engine == "none", reason="no quantized kernels here")
@pytest.mark.parametrize("keep_filters", [True, False])
@pytest.mark.parametrize("prepare", [prepare_fx, prepare_qat_fx])
def test_fx_quantises_what_is_around_it(prepare, keep_filters):
    """Convolutions in integers; the involution in float, of an input that is converted back."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 1), nn.ReLU(), Involution2d(16, 3, keep_filters=keep_filters)
    model = nn.Sequential(*layers, nn.Conv2d(16, 4, 1)).train(prepare is prepare_qat_fx)
    input = torch.randn(4, 3, 9, 9)
    configurations = {
        prepare_fx: get_default_qconfig_mapping,
        prepare_qat_fx: get_default_qat_qconfig_mapping,
    }
    mapping = configurations[prepare](torch.backends.quantized.engine)
    prepared = prepare(model, mapping, (input,))
    for _ in range(20):
        prepared(input).square().sum().backward()  # sees the ranges; and learns, if it should
    quantised = convert_fx(prepared.eval())
    (node,) = (node for node in quantised.graph.nodes if node.target is involution2d)
    assert node.args[0].target == "dequantize"
    names = [type(module).__module__.split(".")[-1] for module in quantised.modules()]
    assert sum("conv" in name for name in names) == 4
    expected = prepared(input) if prepare is prepare_qat_fx else model(input)
    error = (quantised(input) - expected).abs().max() / expected.abs().max()
    assert 0 < error < 0.1


def test_integers_of_numpy_are_integers():
    input, weight = tensors((1, 1, 3, 3), (1, 1, 3, 3, 3, 3))
    one = np.int64(1)
    assert involution2d(input, weight, one, [one, 1], one).equal(involution2d(input, weight, 1, 1))


# Speed and memory of the plain path


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(4, 64, 28), (8, 512, 7)], ids=str)
def test_memory_is_within_twice_input_weight_and_output(shape, dtype, memory_format):
    batch, channels, size = shape
    input, weight, grad_output = tensors(
        (batch, channels, size, size),
        (batch, channels // 16, 7, 7, size, size),
        (batch, channels, size, size),
    )
    input, grad_output = (
        t.detach().to(dtype, memory_format=memory_format) for t in (input, grad_output)
    )
    weight = weight.detach().to(dtype).requires_grad_()
    input.requires_grad_()
    limit = 2 * sum(t.nbytes for t in (input, weight, grad_output))

    def forward_and_backward():
        output = involution2d(input, weight, padding=3)
        return output, grad(output, (input, weight), grad_output)

    assert benchmark.peak_bytes(forward_and_backward, "cpu") <= limit
    # the instrument sees what it should: one unfolded input is more than that
    assert benchmark.peak_bytes(lambda: F.unfold(input, 7, padding=3), "cpu") > limit


def test_benchmark_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SHAPES", ((1, 16, 5),))
    benchmark.main(["--seconds", "0.01"])
    printed = capsys.readouterr().out
    assert "memory" in printed and "plain: " in printed and "times as fast as unfold" in printed
    assert printed.count("1,16,5²") == (5 if torch.cuda.is_available() else 2)
    benchmark.main(["--seconds", "0.01", "--channels-last", "--dtype", "bfloat16"])
    assert "bfloat16" in capsys.readouterr().out


def test_the_benchmark_has_a_row_for_each_design():
    assert list(benchmark.paths("cuda")) == ["plain", "constants", "readable", "cuda"]


def test_the_benchmark_times_forward_and_all_three():
    kernels = [lambda *_, name=name: name for name in KERNELS]
    forward, both = benchmark.with_kernels(kernels, None, "input", "weight", "grad_output")
    assert forward() == "forward" and both() == ("forward", "grad_input", "grad_weight")
