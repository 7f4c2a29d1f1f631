import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from helpers.ops.involution import (
    Bottleneck,
    Involution2d,
    RedNet,
    benchmark,
    convert_checkpoint,
    cpu,
    functional,
    involution2d,
    operator,
    plain,
)
from tests.involution_reference import (
    TOLERANCE,
    assert_close,
    by_loops,
    random_geometries,
    random_tensors,
)

FOLDER = Path(functional.__file__).parent
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ),
]


def arguments(geometry):
    s = geometry
    return {
        "stride": (s.stride_height, s.stride_width),
        "padding": (s.padding_height, s.padding_width),
        "dilation": (s.dilation_height, s.dilation_width),
    }


def tensors(*sizes, **options):
    torch.manual_seed(0)
    return [torch.randn(size, requires_grad=True, **options) for size in sizes]


def unfolded(input, weight, stride=1, padding=0, dilation=1):
    """The usual formulation, with PyTorch's own unfold and autograd."""
    batch, groups, *kernel, height, width = weight.shape
    columns = F.unfold(input, kernel, dilation, padding, stride)
    columns = columns.view(batch, groups, -1, math.prod(kernel), height, width)
    product = columns * weight.view(batch, groups, 1, math.prod(kernel), height, width)
    return product.sum(3).view(batch, -1, height, width)


@pytest.fixture(autouse=True)
def plain_path(monkeypatch):
    """On a CPU, these tests are about plain.py; test_involution_cpu.py has those of the kernels."""
    monkeypatch.setattr(cpu, "available", lambda: False)


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads that meet after each tap wait long for one another on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Values and derivatives


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_random_cases_agree_with_loops(dtype, device):
    for seed, geometry in enumerate(random_geometries(50, seed=str(dtype))):
        case = random_tensors(geometry, dtype, seed)
        expected = by_loops(geometry, *case)
        input, weight, grad_output = (t.to(device) for t in case)
        input.requires_grad_(), weight.requires_grad_()
        output = involution2d(input, weight, **arguments(geometry))
        assert output.dtype == dtype
        actual = output, *grad(output, (input, weight), grad_output)
        for one, other in zip(actual, expected, strict=True):
            assert_close(one.detach(), other, dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_agrees_with_unfold(device):
    options = {"stride": (2, 1), "padding": (4, 3), "dilation": (1, 2)}
    sizes = (2, 12, 17, 23), (2, 3, 5, 3, 11, 25)
    input, weight = tensors(*sizes, dtype=torch.float64, device=device)
    expected = unfolded(input, weight, **options)
    output = involution2d(input, weight, **options)
    torch.testing.assert_close(output, expected)
    for one, other in zip(
        grad(output.pow(2).sum(), (input, weight)),
        grad(expected.pow(2).sum(), (input, weight)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_one_kernel_for_all_pixels_is_a_convolution():
    input, kernel = tensors((2, 6, 9, 8), (3, 3, 5), dtype=torch.float64)
    weight = kernel[None, :, :, :, None, None].expand(2, 3, 3, 5, 9, 8)
    expected = F.conv2d(input, kernel.repeat_interleave(2, 0)[:, None], padding=(1, 2), groups=6)
    torch.testing.assert_close(involution2d(input, weight, padding=(1, 2)), expected)


GEOMETRIES = random_geometries(12, seed=12)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=range(len(GEOMETRIES)))
def test_gradcheck_and_gradgradcheck(geometry):
    torch.manual_seed(0)
    input = torch.randn(geometry.input_size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(geometry.weight_size, dtype=torch.float64, requires_grad=True)

    def function(input, weight):
        return involution2d(input, weight, **arguments(geometry))

    # fast_mode compares random projections of the two Jacobians; seeds are fixed above
    assert gradcheck(function, (input, weight), fast_mode=True)
    assert gradgradcheck(function, (input, weight), fast_mode=True)


def test_gradcheck_of_whole_jacobians_and_a_third_derivative():
    input, weight = tensors((1, 2, 3, 4), (1, 1, 2, 3, 2, 2), dtype=torch.float64)

    def function(input, weight):
        return involution2d(input, weight, stride=(1, 2), padding=(0, 1), dilation=(1, 1))

    def second(input, weight):
        first = grad(function(input, weight).pow(2).sum(), (input, weight), create_graph=True)
        energy = sum(g.pow(2).sum() for g in first)
        return grad(energy, (input, weight), create_graph=True)

    assert gradcheck(function, (input, weight))
    assert gradgradcheck(function, (input, weight))
    assert gradcheck(second, (input, weight))


def test_only_the_gradients_that_are_needed_are_computed(monkeypatch):
    input, weight = tensors((1, 2, 3, 3), (1, 1, 3, 3, 3, 3))
    calls = []

    def counted(name):
        function = getattr(plain, name)
        return lambda *arguments: calls.append(name) or function(*arguments)

    for name in ("forward", "grad_input", "grad_weight"):
        monkeypatch.setattr(plain, name, counted(name))
    involution2d(input, weight.detach(), padding=1).sum().backward()
    assert calls == ["forward", "grad_input"]
    involution2d(input.detach(), weight, padding=1).sum().backward()
    assert calls[2:] == ["forward", "grad_weight"]


# Layouts, sizes, types


@pytest.mark.parametrize("device", DEVICES)
def test_any_strides(device):
    input, weight = tensors((2, 4, 5, 6), (2, 2, 3, 3, 5, 6), dtype=torch.float64, device=device)
    expected = involution2d(input, weight, padding=1)
    expected_grads = grad(expected.sum(), (input, weight))  # an expanded grad_output
    for strided in (
        [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (input, weight)],
        [torch.stack([t, t], -1)[..., 0] for t in (input, weight)],
        [t.flip(0).contiguous().flip(0) for t in (input, weight)],
    ):
        strided = [t.detach().requires_grad_() for t in strided]
        output = involution2d(*strided, padding=1)
        torch.testing.assert_close(output, expected)
        for one, other in zip(grad(output.sum(), strided), expected_grads, strict=True):
            torch.testing.assert_close(one, other)


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


@pytest.mark.parametrize("device", DEVICES)
def test_empty_batch(device):
    input, weight = tensors((0, 4, 5, 6), (0, 2, 3, 3, 5, 6), device=device)
    output = involution2d(input, weight, padding=1)
    assert output.shape == (0, 4, 5, 6)
    output.sum().backward()
    assert input.grad.shape == input.shape and weight.grad.shape == weight.shape


def test_many_chunks_are_as_one(monkeypatch):
    input, weight = tensors((3, 4, 5, 6), (3, 2, 3, 3, 5, 6), dtype=torch.float64)
    expected = involution2d(input, weight, padding=1)
    expected_grads = grad(expected.pow(2).sum(), (input, weight))
    monkeypatch.setattr(plain, "CHUNK", 1)
    output = involution2d(input, weight, padding=1)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    for one, other in zip(grad(output.pow(2).sum(), (input, weight)), expected_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_any_number_of_threads_gives_the_same_bits():
    input, weight = tensors((4, 64, 28, 28), (4, 4, 5, 5, 28, 28))
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        output = involution2d(input, weight, padding=2)
        results.append((output, *grad(output.pow(2).sum(), (input, weight))))
    for other in results[1:]:
        assert all(one.equal(two) for one, two in zip(results[0], other, strict=True))


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


def test_meta_tensors_give_shapes():
    input = torch.empty(2, 4, 9, 9, device="meta")
    weight = torch.empty(2, 2, 3, 3, 4, 4, device="meta")
    assert involution2d(input, weight, stride=2).shape == (2, 4, 4, 4)


GOOD = {"input": torch.zeros(2, 4, 5, 6), "weight": torch.zeros(2, 2, 3, 3, 5, 6), "padding": 1}
BAD = {
    "no tensor": ({"input": [1.0]}, TypeError, "input must be a torch.Tensor, got list"),
    "rank": ({"input": torch.zeros(4, 5, 6)}, ValueError, r"shape \(N, C, H, W\), got \(4, 5, 6\)"),
    "weight's rank": ({"weight": torch.zeros(2, 2, 9, 5, 6)}, ValueError, r"N, G, Kh, Kw, Ho, Wo"),
    "integers": ({"input": torch.zeros(2, 4, 5, 6).int()}, TypeError, "input .* got torch.int32"),
    "complex": ({"weight": GOOD["weight"].cfloat()}, TypeError, "weight .* got torch.complex64"),
    "dtypes": ({"weight": GOOD["weight"].double()}, TypeError, "float32 and torch.float64"),
    "devices": ({"weight": GOOD["weight"].to("meta")}, ValueError, "cpu and meta"),
    "batch": ({"weight": torch.zeros(1, 2, 3, 3, 5, 6)}, ValueError, "batch size, got 2 and 1"),
    "groups": ({"weight": torch.zeros(2, 3, 3, 3, 5, 6)}, ValueError, "4 channels and 3 groups"),
    "no groups": ({"weight": torch.zeros(2, 0, 3, 3, 5, 6)}, ValueError, "and 0 groups"),
    "no kernel": ({"weight": torch.zeros(2, 2, 0, 3, 5, 6)}, ValueError, "1 x 1 or larger"),
    "output": ({"weight": torch.zeros(2, 2, 3, 3, 5, 5)}, ValueError, "5 x 6 output pixels, got 5"),
    "too small": ({"padding": 0, "dilation": 3}, ValueError, "does not fit into an input of 5 x 6"),
    "no pixels": ({"input": torch.zeros(2, 4, 0, 6)}, ValueError, "does not fit"),
    "stride 0": ({"stride": 0}, ValueError, "stride must be 1 or more, got 0"),
    "dilation 0": ({"dilation": (1, 0)}, ValueError, r"dilation must be 1 or more, got \(1, 0\)"),
    "negative": ({"padding": (1, -1)}, ValueError, "padding must be 0 or more"),
    "half a step": ({"stride": 1.5}, TypeError, "stride must be an int or a pair of ints, got 1.5"),
    "three": ({"padding": (1, 1, 1)}, TypeError, "pair of ints"),
    "bool": ({"stride": True}, TypeError, "got True"),
}


@pytest.mark.parametrize("change, error, message", BAD.values(), ids=BAD)
def test_bad_arguments_are_named(change, error, message, monkeypatch):
    assert involution2d(**GOOD).shape == (2, 4, 5, 6)
    monkeypatch.setattr(operator, "implementation", None)  # no kernel may run
    with pytest.raises(error, match=message):
        involution2d(**(GOOD | change))


# Transforms


def test_function_transforms():
    inputs, weights = tensors((3, 2, 4, 5, 6), (3, 2, 2, 3, 3, 5, 6), dtype=torch.float64)
    inputs, weights = inputs.detach(), weights.detach()

    def function(input, weight):
        return involution2d(input, weight, padding=1)

    def loss(input, weight):
        return function(input, weight).pow(3).sum()

    def in_a_loop(f, *batches):
        results = [f(*case) for case in zip(*batches, strict=True)]
        return [torch.stack(r) for r in zip(*results, strict=True)]

    vmap, torch_grad = torch.func.vmap, torch.func.grad
    expected = in_a_loop(lambda *case: (function(*case),), inputs, weights)[0]
    torch.testing.assert_close(vmap(function)(inputs, weights), expected)
    moved = vmap(function, (1, 2), 1)(inputs.movedim(0, 1), weights.movedim(0, 2))
    torch.testing.assert_close(moved.movedim(1, 0), expected)
    shared = vmap(function, (0, None))(inputs, weights[1])
    torch.testing.assert_close(shared[1], expected[1])

    leaves = [inputs[0].clone().requires_grad_(), weights[0].clone().requires_grad_()]
    by_backward = grad(loss(*leaves), leaves)
    for one, other in zip(
        torch_grad(loss, (0, 1))(inputs[0], weights[0]), by_backward, strict=True
    ):
        torch.testing.assert_close(one, other)
    per_sample = vmap(torch_grad(loss, (0, 1)))(inputs, weights)
    expected = in_a_loop(torch_grad(loss, (0, 1)), inputs, weights)
    for one, other in zip(per_sample, expected, strict=True):
        torch.testing.assert_close(one, other)

    hessian = torch.func.jacrev(torch.func.jacrev(loss))(inputs[0, :1], weights[0, :1])
    expected = torch.autograd.functional.hessian(lambda x: loss(x, weights[0, :1]), inputs[0, :1])
    torch.testing.assert_close(hessian, expected)
    case = inputs[0], weights[0]
    _, tangent = torch.func.jvp(function, case, case)
    torch.testing.assert_close(tangent, 2 * function(*case))  # linear in each of the two


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
    assert printed.count("1,16,5²") == (4 if torch.cuda.is_available() else 2)


# The layer and the network


def test_layer_is_the_one_of_the_paper():
    torch.manual_seed(0)
    for stride, size in ((1, (9, 8)), (2, (8, 10))):
        layer = Involution2d(32, 5, stride, group_channels=8, reduction_ratio=2).double()
        input = torch.randn(2, 32, *size, dtype=torch.float64)
        reduce, norm, span = layer.reduce[0], layer.reduce[1], layer.span
        pooled = F.avg_pool2d(input, stride) if stride > 1 else input
        hidden = F.conv2d(pooled, reduce.weight, reduce.bias)
        hidden = F.batch_norm(hidden, None, None, norm.weight, norm.bias, training=True).relu()
        kernels = F.conv2d(hidden, span.weight, span.bias)
        kernels = kernels.view(2, 4, 5, 5, *kernels.shape[2:])
        assert kernels.shape[1] == layer.groups
        torch.testing.assert_close(layer(input), unfolded(input, kernels, stride, padding=2))


@pytest.mark.parametrize("size", [7, 8, 9, 10, 11])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_layer_takes_any_size(size, stride):
    layer = Involution2d(16, 3, stride, dilation=2)
    assert layer(torch.randn(2, 16, size, 7)).shape == (2, 16, -(-size // stride), -(-7 // stride))


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"channels": 24}, ValueError, "divisible by group_channels .* 24, 16 and 4"),
        ({"channels": 16, "reduction_ratio": 3}, ValueError, "reduction_ratio"),
        ({"channels": 16, "kernel_size": 4}, ValueError, "kernel_size must be odd, got 4"),
        ({"channels": 16, "stride": 0}, ValueError, "stride must be 1 or more, got 0"),
        ({"channels": 16, "dilation": 1.0}, TypeError, "dilation must be an int, got 1.0"),
    ],
)
def test_layer_names_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        Involution2d(**options)


def test_layer_trains_in_every_mode():
    layer = Involution2d(16)
    input = torch.randn(2, 16, 7, 7)
    assert "kernel_size=7" in repr(layer)
    expected = layer(input)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(input)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.1)
    last = layer.to(memory_format=torch.channels_last)(input.to(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, expected)
    last.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


# From the paper: millions of parameters, and 10^9 multiply-adds at 224 x 224.
PAPER = {
    26: (9.23, 1.73),
    38: (12.39, 2.22),
    50: (15.54, 2.71),
    101: (25.65, 4.74),
    152: (33.99, 6.79),
}


@pytest.mark.parametrize("depth", PAPER)
def test_rednet_has_as_many_parameters_as_in_the_paper(depth):
    with torch.device("meta"):
        model = RedNet(depth)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    assert f"{millions:.2f}" == f"{PAPER[depth][0]:.2f}"


@pytest.mark.parametrize("depth", [26, 50])
def test_rednet_needs_as_many_operations_as_in_the_paper(depth):
    with torch.device("meta"):
        model = RedNet(depth).eval()
    involutions = []
    for module in model.modules():
        if isinstance(module, Involution2d):
            module.register_forward_hook(
                lambda module, _, output: involutions.append(output.numel() * module.kernel_size**2)
            )
    with FlopCounterMode(display=False) as counter:  # convolutions and the last layer, times 2
        output = model(torch.empty(1, 3, 224, 224, device="meta"))
    assert output.shape == (1, 1000)
    counted = (counter.get_total_flops() / 2 + sum(involutions)) / 1e9
    # The paper's figures are a little higher. It does not say what else they count.
    assert 0.97 * PAPER[depth][1] < counted < PAPER[depth][1]


def test_rednet_learns():
    torch.manual_seed(0)
    model = RedNet(26, num_classes=3)
    images, labels = torch.randn(6, 3, 33, 41), torch.tensor([0, 1, 2, 0, 1, 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2


def test_a_block_starts_as_the_identity():
    block = RedNet(26).layer3[1].eval()
    input = torch.rand(2, 1024, 5, 5)
    assert isinstance(block, Bottleneck) and block(input).equal(input)


def test_unknown_depth():
    with pytest.raises(ValueError, match="26, 38, 50, 101, 152, got 34"):
        RedNet(34)


def published_layout(blocks):
    """The names and sizes in the authors' checkpoints, from cls/mmcls/models/backbones/rednet.py

    and from mmcv's ConvModule (conv, bn) and mmcls' LinearClsHead (fc).
    """
    sizes = {}

    def conv(name, out_channels, in_channels, kernel=1, bias=False):
        sizes[f"{name}.weight"] = (out_channels, in_channels, kernel, kernel)
        if bias:
            sizes[f"{name}.bias"] = (out_channels,)

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            sizes[f"{name}.{part}"] = (channels,)
        sizes[f"{name}.num_batches_tracked"] = ()

    def involution(name, channels, kernel):
        conv(f"{name}.conv1.conv", channels // 4, channels)
        norm(f"{name}.conv1.bn", channels // 4)
        conv(f"{name}.conv2.conv", kernel**2 * channels // 16, channels // 4, bias=True)

    conv("backbone.stem.0.conv", 32, 3, 3)
    norm("backbone.stem.0.bn", 32)
    involution("backbone.stem.1", 32, 3)
    norm("backbone.stem.2", 32)
    conv("backbone.stem.4.conv", 64, 32, 3)
    norm("backbone.stem.4.bn", 64)
    in_channels = 64
    for stage, count in enumerate(blocks):
        middle = 64 * 2**stage
        for index in range(count):
            name = f"backbone.layer{stage + 1}.{index}"
            conv(f"{name}.conv1", middle, in_channels)
            norm(f"{name}.bn1", middle)
            involution(f"{name}.conv2", middle, 7)
            norm(f"{name}.bn2", middle)
            conv(f"{name}.conv3", 4 * middle, middle)
            norm(f"{name}.bn3", 4 * middle)
            if index == 0:
                conv(f"{name}.downsample.0", 4 * middle, in_channels)
                norm(f"{name}.downsample.1", 4 * middle)
            in_channels = 4 * middle
    sizes["head.fc.weight"], sizes["head.fc.bias"] = (1000, in_channels), (1000,)
    return sizes


def published_forward(state, blocks, x):
    """The published network, with PyTorch's functions, on such a state dict."""

    def conv(x, name, stride=1, padding=0):
        return F.conv2d(x, state[f"{name}.weight"], state.get(f"{name}.bias"), stride, padding)

    def norm(x, name):
        parts = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *[state[f"{name}.{part}"] for part in parts])

    def involution(x, name, kernel, stride=1):
        pooled = F.avg_pool2d(x, stride, stride) if stride > 1 else x
        weight = conv(pooled, f"{name}.conv1.conv")
        weight = conv(norm(weight, f"{name}.conv1.bn").relu(), f"{name}.conv2.conv")
        weight = weight.unflatten(1, (-1, kernel, kernel))
        return unfolded(x, weight, stride, kernel // 2)

    x = norm(conv(x, "backbone.stem.0.conv", 2, 1), "backbone.stem.0.bn").relu()
    x = norm(involution(x, "backbone.stem.1", 3), "backbone.stem.2").relu()
    x = norm(conv(x, "backbone.stem.4.conv", 1, 1), "backbone.stem.4.bn").relu()
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(blocks):
        for index in range(count):
            name = f"backbone.layer{stage + 1}.{index}"
            stride = 2 if stage > 0 and index == 0 else 1
            shortcut = x
            if index == 0:
                shortcut = conv(x, f"{name}.downsample.0", stride)
                shortcut = norm(shortcut, f"{name}.downsample.1")
            x = norm(conv(x, f"{name}.conv1"), f"{name}.bn1").relu()
            x = norm(involution(x, f"{name}.conv2", 7, stride), f"{name}.bn2").relu()
            x = norm(conv(x, f"{name}.conv3"), f"{name}.bn3")
            x = (x + shortcut).relu()
    return F.linear(x.mean((2, 3)), state["head.fc.weight"], state["head.fc.bias"])


def test_published_checkpoints_load():
    torch.manual_seed(0)
    blocks = RedNet.BLOCKS[26]
    state = {}
    for name, size in published_layout(blocks).items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(5)
        elif name.endswith("running_var"):
            state[name] = torch.rand(size) + 0.5
        elif len(size) > 1:
            state[name] = torch.randn(size) / math.prod(size[1:]) ** 0.5
        else:
            state[name] = torch.randn(size) / 4 + 0.5
    state = {name: value.double() for name, value in state.items()}
    model = RedNet(26).double().eval()
    model.load_state_dict(convert_checkpoint({"meta": {}, "state_dict": state}))
    images = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), published_forward(state, blocks, images))
    prefixed = {f"module.{name}": value for name, value in state.items()}
    assert convert_checkpoint(prefixed).keys() == model.state_dict().keys()
    with pytest.raises(ValueError, match="got the keys layer.weight"):
        convert_checkpoint({"layer.weight": torch.zeros(1)})


# Copied alone


def test_the_folder_works_when_copied_alone(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "copied", ignore=shutil.ignore_patterns("__pycache__"))
    script = """
import sys
for name in ("cupy", "helpers"):
    sys.modules[name] = None  # importing it raises ImportError
import torch, copied
from copied import benchmark, compiler, cuda
x = torch.randn(1, 16, 4, 4, requires_grad=True)
copied.Involution2d(16, 3).train()(x).sum().backward()
compiler.find_spec = lambda name: None  # no ziglang either
for failing in (cuda._cupy, compiler.find_compiler):
    try:
        failing()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
print(compiler.__name__)
"""
    environment = {"PATH": "", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}
    environment |= {k: v for k, v in os.environ.items() if k.startswith(("OMP", "MKL"))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ImportError: involution2d of CUDA tensors needs CuPy: pip install")
    assert lines[1].startswith("CompilerNotFoundError: ") and "`pip install ziglang`" in lines[1]
    assert lines[2] == "copied.compiler"
