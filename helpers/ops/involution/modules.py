"""The layer `Involution2d` of the paper that introduced involution."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .functional import involution2d


class Involution2d(nn.Module):
    """Involution whose kernels are made from the input itself.

    (N, channels, H, W) -> (N, channels, ceil(H / stride), ceil(W / stride)).

    A kernel is a function of one pixel: a 1 x 1 convolution to `channels //
    reduction_ratio`, batch norm, ReLU, and a 1 x 1 convolution to one kernel_size x
    kernel_size kernel for each group of `group_channels` channels. If `stride` > 1,
    that pixel is the average of stride x stride pixels.

    channels: divisible by `group_channels` and by `reduction_ratio`. kernel_size: odd.
    dilation: of the kernels. Raises ValueError or TypeError for other arguments.
    keep_filters: the kernels are the largest part of what the layer keeps for backward,
        two thirds at the defaults and stride 1. If False, backward runs the second
        convolution and the involution again, under `torch.utils.checkpoint`: the same
        results to the last bit. `torch.func` and forward mode then raise, and
        `torch.fx` records a layer that keeps them.

    Source: Li et al., Involution, CVPR 2021, https://arxiv.org/abs/2103.06255, section
    3 and algorithm 1.
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
                "channels must be divisible by group_channels and by "
                "reduction_ratio, got"
                f" {channels}, {group_channels} and {reduction_ratio}"
            )
        self.channels = channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.group_channels = group_channels
        self.dilation = dilation
        self.keep_filters = keep_filters
        self.groups = channels // group_channels
        # ceil_mode, so that there is a kernel for each output if stride does not divide
        # the size
        self.pool = (
            nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        )
        self.reduce = nn.Sequential(
            nn.Conv2d(channels, channels // reduction_ratio, 1, bias=False),
            nn.BatchNorm2d(channels // reduction_ratio),
            nn.ReLU(inplace=True),
        )
        self.span = nn.Conv2d(
            channels // reduction_ratio, kernel_size**2 * self.groups, 1
        )

    def forward(self, input):
        hidden = self.reduce(self.pool(input))
        if self.keep_filters or isinstance(input, torch.fx.Proxy):
            return self._involution(input, self.span(hidden))
        return checkpoint(
            self._filtered,
            input,
            hidden,
            self.span.weight,  # as `torch.func.functional_call` may have given them
            self.span.bias,
            use_reentrant=False,
            preserve_rng_state=False,
        )

    def _filtered(self, input, hidden, weight, bias):
        return self._involution(input, F.conv2d(hidden, weight, bias))

    def _involution(self, input, kernels):
        return involution2d(
            input,
            kernels.unflatten(1, (self.groups, self.kernel_size, self.kernel_size)),
            stride=self.stride,
            padding=self.dilation * (self.kernel_size // 2),
            dilation=self.dilation,
        )

    def extra_repr(self):
        return (
            f"{self.channels}, kernel_size={self.kernel_size}, stride={self.stride},"
            f" group_channels={self.group_channels}, dilation={self.dilation}"
            f"{'' if self.keep_filters else ', keep_filters=False'}"
        )
