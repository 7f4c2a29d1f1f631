"""The layer `Involution2d` and the network `RedNet` of the paper that introduced involution."""

import contextlib
import re

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from .functional import involution2d


class Involution2d(nn.Module):
    """Involution whose kernels are made from the input itself.

    (N, channels, H, W) -> (N, channels, ceil(H / stride), ceil(W / stride)).

    A kernel is a function of one pixel: a 1 x 1 convolution to `channels // reduction_ratio`,
    batch norm, ReLU, and a 1 x 1 convolution to one kernel_size x kernel_size kernel for each
    group of `group_channels` channels. If `stride` > 1, that pixel is the average of
    stride x stride pixels.

    channels: divisible by `group_channels` and by `reduction_ratio`. kernel_size: odd.
    dilation: of the kernels. Raises ValueError or TypeError for other arguments.
    keep_filters: the kernels are the largest part of what the layer keeps for backward, two thirds
    at the defaults and stride 1. If False, backward computes them again from the hidden layer, by
    the second convolution: the same results to the last bit. `torch.func` then raises.

    Source: Li et al., Involution, CVPR 2021, https://arxiv.org/abs/2103.06255, section 3 and
    algorithm 1.
    """

    def __init__(
        self,
        channels,
        kernel_size=7,
        stride=1,
        group_channels=16,
        reduction_ratio=4,
        dilation=1,
        keep_filters=True,
    ):
        super().__init__()
        if not isinstance(keep_filters, bool):
            raise TypeError(f"keep_filters must be True or False, got {keep_filters!r}")
        for name, value in (
            ("channels", channels),
            ("kernel_size", kernel_size),
            ("stride", stride),
            ("group_channels", group_channels),
            ("reduction_ratio", reduction_ratio),
            ("dilation", dilation),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {kernel_size}")
        if channels % group_channels or channels % reduction_ratio:
            raise ValueError(
                f"channels must be divisible by group_channels and by reduction_ratio, got"
                f" {channels}, {group_channels} and {reduction_ratio}"
            )
        self.channels = channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.group_channels = group_channels
        self.dilation = dilation
        self.keep_filters = keep_filters
        self.groups = channels // group_channels
        # ceil_mode, so that there is a kernel for each output if stride does not divide the size
        self.pool = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        # The bias is idle before a batch norm; with it the parameter counts are the paper's.
        self.reduce = nn.Sequential(
            nn.Conv2d(channels, channels // reduction_ratio, 1),
            nn.BatchNorm2d(channels // reduction_ratio),
            nn.ReLU(inplace=True),
        )
        self.span = nn.Conv2d(channels // reduction_ratio, kernel_size**2 * self.groups, 1)

    def kernels(self, input):
        """The weight for `involution2d`: (N, groups, kernel_size, kernel_size, Ho, Wo)."""
        return self._by_group(self.span(self.reduce(self.pool(input))))

    def _by_group(self, kernels):
        return kernels.unflatten(1, (self.groups, self.kernel_size, self.kernel_size))

    def _involution(self, input, kernels):
        return involution2d(
            input,
            kernels,
            stride=self.stride,
            padding=self.dilation * (self.kernel_size // 2),
            dilation=self.dilation,
        )

    def forward(self, input):
        hidden = self.reduce(self.pool(input))
        if self.keep_filters:
            return self._involution(input, self._by_group(self.span(hidden)))
        if torch.compiler.is_compiling():  # the compiler knows this one

            def both(input, hidden):
                return self._involution(input, self._by_group(self.span(hidden)))

            return checkpoint(both, input, hidden, use_reentrant=False)
        kernels = self._by_group(self.span(hidden))
        with self._without(kernels, input, hidden):
            return self._involution(input, kernels)

    def _without(self, kernels, input, hidden):
        """A context in which autograd keeps, for `kernels`, what they are computed from."""
        device = kernels.device.type
        autocast = contextlib.nullcontext()
        if torch.amp.is_autocast_available(device):
            state = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
            autocast = torch.autocast(device, *state)
        parameters = dict(self.span.named_parameters())
        names = list(parameters)
        kept_input, kept_hidden = _keep(input), _keep(hidden, *parameters.values())

        def kernels_again():
            hidden, *values = kept_hidden()
            state = dict(zip(names, values, strict=True))  # torch.func.functional_call may swap it
            with torch.no_grad(), autocast:
                return self._by_group(torch.func.functional_call(self.span, state, (hidden,)))

        instead = {_place(input): lambda: kept_input()[0], _place(kernels): kernels_again}

        def pack(tensor):
            as_it_is = tensor.detach()
            return instead.get(_place(tensor)) or (lambda: as_it_is)

        return saved_tensors_hooks(pack, lambda get: get())

    def extra_repr(self):
        return (
            f"{self.channels}, kernel_size={self.kernel_size}, stride={self.stride},"
            f" group_channels={self.group_channels}, dilation={self.dilation}"
            f"{'' if self.keep_filters else ', keep_filters=False'}"
        )


class _Keep(torch.autograd.Function):
    """A node that only saves, so that changes in place are noticed and outer hooks are asked."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()


def _keep(*tensors):
    node = _Keep.apply(torch.empty(0, requires_grad=True), *tensors).grad_fn
    return lambda: node.saved_tensors


def _place(tensor):
    return tensor.data_ptr(), tensor.shape


def _conv_bn_relu(in_channels, out_channels, stride=1):
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class Bottleneck(nn.Module):
    """A residual block of ResNet with a 7 x 7 involution for its 3 x 3 convolution."""

    def __init__(self, in_channels, out_channels, stride=1, keep_filters=True):
        super().__init__()
        middle = out_channels // 4
        self.conv1 = nn.Conv2d(in_channels, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.involution = Involution2d(middle, 7, stride, keep_filters=keep_filters)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, input):
        x = self.relu(self.bn1(self.conv1(input)))
        x = self.relu(self.bn2(self.involution(x)))
        x = self.bn3(self.conv3(x))
        return self.relu(x + (input if self.downsample is None else self.downsample(input)))


class RedNet(nn.Module):
    """ResNet with involutions: (N, 3, H, W) -> (N, num_classes).

    depth: 26, 38, 50, 101 or 152; 9.23, 12.39, 15.54, 25.65 or 33.99 million parameters with
    1000 classes. Raises ValueError for another depth. keep_filters: of each `Involution2d`.

    Source: Li et al., Involution, CVPR 2021, https://arxiv.org/abs/2103.06255, section 4; the
    details from the authors' https://github.com/d-li14/involution, whose checkpoints load after
    `convert_checkpoint`.
    """

    BLOCKS = {
        26: (1, 2, 4, 1),
        38: (2, 3, 5, 2),
        50: (3, 4, 6, 3),
        101: (3, 4, 23, 3),
        152: (3, 8, 36, 3),
    }

    def __init__(self, depth, num_classes=1000, keep_filters=True):
        super().__init__()
        if depth not in self.BLOCKS:
            raise ValueError(
                f"depth must be one of {', '.join(map(str, self.BLOCKS))}, got {depth!r}"
            )
        self.stem = nn.Sequential(
            _conv_bn_relu(3, 32, stride=2),
            Involution2d(32, 3, keep_filters=keep_filters),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            _conv_bn_relu(32, 64),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages, in_channels = [], 64
        for stage, blocks in enumerate(self.BLOCKS[depth]):
            out_channels = 256 * 2**stage
            stride = 1 if stage == 0 else 2
            stages.append(
                nn.Sequential(
                    Bottleneck(in_channels, out_channels, stride, keep_filters),
                    *[
                        Bottleneck(out_channels, out_channels, 1, keep_filters)
                        for _ in range(blocks - 1)
                    ],
                )
            )
            in_channels = out_channels
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(in_channels, num_classes)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)  # a block starts as the identity

    def forward(self, input):
        x = self.stem(input)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.pool(x).flatten(1))


def convert_checkpoint(checkpoint):
    """The `state_dict` for `RedNet` from a checkpoint that the authors of the paper published.

    checkpoint: what `torch.load` returned, a dict with the key "state_dict", or that state dict:
        of an mmcls `ImageClassifier` with a `RedNet` backbone and a linear head.
    Raises ValueError if it is something else.

        model = RedNet(50)
        model.load_state_dict(convert_checkpoint(torch.load("rednet50.pth")))
    """
    state = checkpoint.get("state_dict", checkpoint)
    renamed = {_rename(key): value for key, value in state.items()}
    for key, value in list(renamed.items()):
        if key.endswith("reduce.1.bias"):  # the published layers leave out the idle bias
            renamed.setdefault(key.replace("reduce.1", "reduce.0"), torch.zeros_like(value))
    if "fc.weight" not in renamed or "stem.0.0.weight" not in renamed:
        raise ValueError(
            "checkpoint must be an mmcls ImageClassifier with a RedNet backbone, got the keys"
            f" {', '.join(list(state)[:3])}, ..."
        )
    return renamed


def _rename(key):
    for theirs, ours in (
        (r"^module\.", ""),
        (r"^backbone\.", ""),
        (r"^head\.fc\.", "fc."),
        (r"^(layer\d\.\d+)\.conv2\.", r"\1.involution."),
        (r"(^stem\.1|\.involution)\.conv1\.conv\.", r"\1.reduce.0."),
        (r"(^stem\.1|\.involution)\.conv1\.bn\.", r"\1.reduce.1."),
        (r"(^stem\.1|\.involution)\.conv2\.conv\.", r"\1.span."),
        (r"^(stem\.[04])\.conv\.", r"\1.0."),
        (r"^(stem\.[04])\.bn\.", r"\1.1."),
    ):
        key = re.sub(theirs, ours, key)
    return key
