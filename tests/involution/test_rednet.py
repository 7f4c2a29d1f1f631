"""The layer `Involution2d`, the network `RedNet`, and its checkpoints."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from helpers.lessons.memory import Alive
from helpers.ops.involution import Bottleneck, Involution2d, RedNet
from tests.common import assert_refused
from tests.involution.reference import unfolded


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_layer_takes_any_size(stride):
    layer = Involution2d(16, 3, stride, dilation=2)
    for size in (7, 8, 9, 10, 11):
        output = layer(torch.randn(2, 16, size, 7))
        assert output.shape == (2, 16, -(-size // stride), -(-7 // stride))


@pytest.mark.parametrize(
    "module, options, words",
    [
        (Involution2d, {"channels": 24}, "reduction_ratio, got 24, 16 and 4"),
        (Involution2d, {"reduction_ratio": 3}, "reduction_ratio, got 16, 16 and 3"),
        (Involution2d, {"kernel_size": 4}, "kernel_size must be odd, got 4"),
        (Involution2d, {"stride": 0}, "stride must be 1 or more, got 0"),
        (Involution2d, {"keep_filters": 1}, "must be True or False, got 1"),
        (Involution2d, {"dilation": 1.0}, "dilation must be an int, got 1.0"),
        (RedNet, {"depth": 34}, "26, 38, 50, 101, 152, got 34"),
        (RedNet, {"depth": [50]}, "26, 38, 50, 101, 152, got [50]"),
    ],
)
def test_bad_arguments_are_named(module, options, words):
    good = {Involution2d: {"channels": 16}, RedNet: {"depth": 26}}[module]
    assert_refused(words, partial(module, **(good | options)))


def test_layer_trains_in_every_mode():
    layer = Involution2d(16)
    input = torch.randn(2, 16, 7, 7)
    assert "kernel_size=7" in repr(layer)
    expected = layer(input)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(input)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.1)
    last = layer.to(memory_format=torch.channels_last)(
        input.to(memory_format=torch.channels_last)
    )
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, expected)
    last.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def step(module, input, autocast):
    """Results, gradients and statistics."""
    input = input.detach().requires_grad_()
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        output = module(input)
    output.square().sum().backward()
    gradients = [p.grad for p in module.parameters()]
    return [output, input.grad, *gradients, *module.buffers()]


@pytest.mark.parametrize("autocast", [None, torch.float16])
def test_filters_that_are_not_kept_give_the_same_numbers_to_the_last_bit(autocast):
    layers = [
        Involution2d(32, 5, 2, group_channels=8, dilation=2, keep_filters=keep)
        for keep in (True, False)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    input = torch.randn(2, 32, 6, 7)
    results = (step(layer, input, autocast) for layer in layers)
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_filters_that_are_not_kept_need_a_third_of_the_memory():
    input, totals = torch.randn(1, 64, 14, 14), []
    for layer in Involution2d(64), Involution2d(64, keep_filters=False):
        with Alive() as alive:
            output = layer(input)
        totals.append(alive.now)
        output.sum().backward()  # though the input needs no gradient
    assert totals[0] - totals[1] == 4 * 4 * 49 * 14 * 14
    assert totals[1] < 0.36 * totals[0]


def test_filters_that_are_not_kept_have_second_derivatives():
    options = {"group_channels": 4, "reduction_ratio": 2, "keep_filters": False}
    layer = Involution2d(8, 3, **options).double().eval()
    input = torch.randn(2, 8, 3, 3).double().requires_grad_()
    assert gradgradcheck(layer, input, fast_mode=True)


# From the paper, in 10^9 multiply-adds at 224 x 224
PAPER = {26: "1.73", 38: "2.22", 50: "2.71", 101: "4.74", 152: "6.79"}
# As the authors count: multiply-adds for each element
OTHERS = {nn.BatchNorm2d: 2, nn.ReLU: 1}


@pytest.mark.parametrize("depth", PAPER)
def test_rednet_has_as_many_operations_as_in_the_paper(depth):
    with torch.device("meta"):
        model = RedNet(depth, stem_kernel_size=7).eval()
    model.fc, others = None, []  # the operations are those of the stages

    def count(module, inputs, output):
        if isinstance(module, (nn.MaxPool2d, nn.AvgPool2d)):
            others.append(inputs[0].numel())
        elif getattr(module, "bias", None) is not None or isinstance(module, nn.ReLU):
            others.append(OTHERS.get(type(module), 1) * output.numel())

    for module in model.modules():
        module.register_forward_hook(count)
    with FlopCounterMode(display=False) as counter:  # convolutions, involutions, twice
        model(torch.empty(1, 3, 224, 224, device="meta"))
    giga = (counter.get_total_flops() / 2 + sum(others)) / 1e9
    assert f"{giga:.2f}" == PAPER[depth]


def test_a_block_starts_as_the_identity():
    block = RedNet(26).layer2[1].eval()
    input = torch.rand(2, 512, 5, 5)
    assert isinstance(block, Bottleneck) and block(input).equal(input)


def published_network(blocks, x, state, stem):
    """The published network in PyTorch's functions, its parameters in `state`.

    Names and sizes are those in the authors' checkpoints:
    cls/mmcls/models/backbones/rednet.py, with mmcv's ConvModule (conv, bn) and mmcls'
    LinearClsHead (fc).
    """

    def parameter(name, *size):
        value = torch.randn(size, dtype=torch.float64)
        several = len(size) > 1
        state[name] = (
            value / math.prod(size[1:]) ** 0.5 if several else value.abs() / 4 + 0.5
        )
        return state[name]

    def conv(x, name, channels, kernel=1, stride=1, bias=False):
        weight = parameter(f"{name}.weight", channels, x.shape[1], kernel, kernel)
        bias = parameter(f"{name}.bias", channels) if bias else None
        return F.conv2d(x, weight, bias, stride, kernel // 2)

    def norm(x, name):
        parameter(f"{name}.num_batches_tracked")
        parts = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(
            x, *[parameter(f"{name}.{part}", x.shape[1]) for part in parts]
        )

    def involution(x, name, kernel, stride=1):
        channels = x.shape[1]
        pooled = F.avg_pool2d(x, stride) if stride > 1 else x
        hidden = norm(
            conv(pooled, f"{name}.conv1.conv", channels // 4), f"{name}.conv1.bn"
        ).relu()
        weight = conv(
            hidden, f"{name}.conv2.conv", kernel**2 * channels // 16, bias=True
        )
        return unfolded(
            x, weight.unflatten(1, (-1, kernel, kernel)), stride, kernel // 2
        )

    x = norm(conv(x, "backbone.stem.0.conv", 32, 3, 2), "backbone.stem.0.bn").relu()
    x = norm(involution(x, "backbone.stem.1", stem), "backbone.stem.2").relu()
    x = norm(conv(x, "backbone.stem.4.conv", 64, 3), "backbone.stem.4.bn").relu()
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(blocks):
        middle = 64 * 2**stage
        for index in range(count):
            name = f"backbone.layer{stage + 1}.{index}"
            stride = 2 if stage > 0 and index == 0 else 1
            shortcut = x
            if index == 0:
                shortcut = conv(x, f"{name}.downsample.0", 4 * middle, stride=stride)
                shortcut = norm(shortcut, f"{name}.downsample.1")
            x = norm(conv(x, f"{name}.conv1", middle), f"{name}.bn1").relu()
            x = norm(involution(x, f"{name}.conv2", 7, stride), f"{name}.bn2").relu()
            x = norm(conv(x, f"{name}.conv3", 4 * middle), f"{name}.bn3")
            x = (x + shortcut).relu()
    weight = parameter("head.fc.weight", 1000, x.shape[1])
    return x, F.linear(x.mean((2, 3)), weight, parameter("head.fc.bias", 1000))


@pytest.mark.parametrize("stem", [3, 7])
def test_published_checkpoints_load(stem):
    torch.manual_seed(0)
    images, state = torch.randn(1, 3, 64, 96, dtype=torch.float64), {}
    with torch.no_grad():
        features, scores = published_network(RedNet.BLOCKS[26], images, state, stem)
        kind = f"RedNet-26 with a {stem} x {stem} involution in the stem and"
        classifier = kind + " a classifier of 1000 classes"
        backbone = {name: state[name] for name in state if "head" not in name}
        detector = backbone | {"neck.conv.weight": features, "bbox_head.a": features}
        alone = {name.removeprefix("backbone."): backbone[name] for name in backbone}
        for checkpoint, what in (
            ({"meta": {}, "state_dict": state}, classifier),
            ({f"module.{name}": value for name, value in state.items()}, classifier),
            (detector, f"{kind} no classifier; left out: neck, bbox_head"),
            (alone, f"{kind} no classifier"),
        ):
            model, said = RedNet.from_checkpoint(checkpoint)
            output = model.eval()(images)
            assert said == what
            if model.fc is None:
                assert [tuple(stage.shape[1:]) for stage in output] == [
                    (256, 16, 24), (512, 8, 12), (1024, 4, 6), (2048, 2, 3)
                ]  # fmt: skip
                torch.testing.assert_close(output[-1], features)
            else:
                torch.testing.assert_close(output, scores)
    with pytest.raises(ValueError, match="must hold a RedNet of the authors' code"):
        RedNet.from_checkpoint({"layer.weight": images})
    with pytest.raises(TypeError, match="checkpoint must be a dict, or have one as"):
        RedNet.from_checkpoint([1])
    short = alone | {"stem.0.conv.weight": alone["stem.0.conv.weight"][:1]}
    with pytest.raises(ValueError, match="does not fit RedNet-26: size mismatch"):
        RedNet.from_checkpoint(short)
