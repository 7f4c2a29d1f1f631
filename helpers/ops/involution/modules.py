"""The layer `Involution2d` of the paper that introduced involution."""

import contextlib

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
    the second convolution: the same results to the last bit. `torch.func` and forward mode then
    raise, and `torch.fx` records a layer that keeps them.

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
        if self.keep_filters or isinstance(input, torch.fx.Proxy):
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
            autocast = torch.autocast(device, enabled=torch.is_autocast_enabled(device))
        parameters = dict(self.span.named_parameters())
        names = list(parameters)
        kept_input, kept_hidden = _keep(input), _keep(hidden, *parameters.values())

        def kernels_again():
            hidden, *values = kept_hidden()
            state = dict(zip(names, values, strict=True))
            now = dict(self.span.named_parameters())
            if all(_lie_together(state[name], now.get(name)) for name in names):
                state = {}  # nothing to exchange, which other threads would see
            with (
                autocast
            ):  # torch.func.functional_call may have given forward other parameters
                return self._by_group(
                    torch.func.functional_call(self.span, state, (hidden,))
                )

        # By number, since autograd keeps `pack`, and that would keep the kernels.
        instead = {id(input): lambda: kept_input()[0], id(kernels): kernels_again}

        def pack(tensor):
            as_it_is = tensor.detach()
            return instead.get(id(tensor)) or (lambda: as_it_is)

        return saved_tensors_hooks(pack, lambda get: get())

    def extra_repr(self):
        return (
            f"{self.channels}, kernel_size={self.kernel_size}, stride={self.stride},"
            f" group_channels={self.group_channels}, dilation={self.dilation}"
            f"{'' if self.keep_filters else ', keep_filters=False'}"
        )


def _lie_together(tensor, parameter):
    if type(parameter) is not nn.Parameter:  # of others, not all have a place in memory
        return False
    places = [(t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (tensor, parameter)]
    return places[0] == places[1]


class _Keep(torch.autograd.Function):
    """A node that only saves, so that changes in place are noticed and outer hooks are asked."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()


def _keep(*tensors):
    result = _Keep.apply(torch.empty(0, requires_grad=True), *tensors)
    return lambda: (
        result.grad_fn.saved_tensors
    )  # up to torch 2.12 a node alone forgets them
