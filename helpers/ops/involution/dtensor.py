"""Involution of `DTensor`s, whose parts lie on several processes.

Samples do not meet, nor do groups of channels. So tensors that are cut along one of the two are
filtered where they are, and so are the channels of a single group, whose kernels every process has.
Whatever else arrives is gathered first. (Rows of an image need their neighbours: exchange halos,
then filter local tensors with padding in the other direction only.)

Registered when this is imported after `torch.distributed.tensor`, or by `register()`. That module's
own `register_sharding` says how an operator's tensors are cut, but passes its other arguments on as
they are; `groups` of the third operator must be that of the part.

A network whose samples are cut needs `by_samples` as well:

    net = distribute_module(RedNet(50), mesh, by_samples)
    net(distribute_tensor(images, mesh, [Shard(0)]))

Needs torch 2.13 or later: what came before cannot cut a tensor inside a Function.

Source: https://docs.pytorch.org/docs/2.15/distributed.tensor.html
"""

import sys
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from .geometry import ARRAYS, check_operator, part, result_format
from .operator import NAMESPACE, OPERATORS


def register():
    """Teach `DTensor` the three operators, and the backward of the layer's average pooling.

    Calling it again does nothing.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    if not _registered:  # of the pooling, torch 2.13 knows the forward only
        register_sharding(torch.ops.aten.avg_pool2d_backward.default)(_ways_of_pooling)
    for name, (kernel, _) in OPERATORS.items():
        if name not in _registered:
            rule = partial(_on_parts, kernel)
            with suppress(
                RuntimeError
            ):  # it is there: of a copy that shares the operators
                torch.library.register_torch_dispatch(
                    f"{NAMESPACE}::{name}", DTensor, rule
                )
            _registered.add(name)


_registered = set()


def _on_parts(kernel, cls, op, types, args, kwargs=None):
    from torch.distributed.tensor import DTensor

    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 13):
        raise RuntimeError(
            f"involution of DTensors needs torch 2.13 or later, this is {torch.__version__}"
        )
    first, second, *arguments = args
    one, other, result = ARRAYS[kernel]
    if not isinstance(first, DTensor) or not isinstance(second, DTensor):
        raise TypeError(f"{one} and {other} must both be DTensors, or neither of them")
    mesh = first.device_mesh
    if second.device_mesh != mesh:
        raise ValueError(
            f"{one} and {other} must be on one mesh, got {mesh} and {second.device_mesh}"
        )
    geometry = check_operator(kernel, *args)
    groups, placements = geometry.groups, []
    for dim, cut in enumerate(zip(first.placements, second.placements, strict=True)):
        ways, parts = _ways(kernel, cut, groups, mesh.size(dim))
        groups //= parts
        placements.append(ways)
    ours, theirs, made = zip(*placements, strict=True)
    if kernel == "grad_weight":
        arguments[0] = groups
    first = first.redistribute(placements=ours).to_local()
    second = second.redistribute(placements=theirs).to_local()
    local = op(first, second, *arguments)
    whole = torch.empty(
        geometry.size_of(result),
        device="meta",
        memory_format=result_format(kernel, first),
    )
    return DTensor.from_local(
        local, mesh, made, shape=whole.shape, stride=whole.stride()
    )


def _ways(kernel, cut, groups, parts):
    """How the three arrays lie along one dimension of the mesh; into how many the groups are cut.

    cut: how the two that are read lie so far.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    if Shard(0) in cut:
        return [Shard(0)] * 3, 1
    if Shard(1) in cut and groups % parts == 0:
        return [Shard(1)] * 3, parts
    # With a single group the weight has no channels; its gradient is a sum over them.
    alone = {"grad_weight": Partial()}.get(kernel, Replicate())
    if groups == 1 and Shard(1) in cut:
        return [
            alone if part(array) == "weight" else Shard(1) for array in ARRAYS[kernel]
        ], 1
    return [Replicate()] * 3, 1


def _ways_of_pooling(grad_output, input, *arguments):
    from torch.distributed.tensor import Replicate, Shard

    rest = [None] * len(arguments)
    return [([way], [way, way, *rest]) for way in (Replicate(), Shard(0))]


def by_samples(name, module, mesh):
    """The `partition_fn` for `distribute_module` of a network, such as `RedNet`, of cut samples.

    It replaces each `nn.BatchNorm2d` by one whose mean and variance are sums over the processes,
    and keeps the parameters, buffers and their names. Torch 2.13 gathers the samples of a small
    batch norm on all processes. A larger one it cuts along channels, which its convolution takes
    for whole, and leaves the running mean and variance as they were, without a warning.
    """
    register()
    if type(module) is nn.BatchNorm2d:
        module.__class__ = BatchNorm2d


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` of a tensor, or of a `DTensor` that is cut along samples.

    Each process has its samples; two sums, of a number for each channel, go over the network in
    forward, and two in backward.
    """

    def forward(self, input):
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        if not isinstance(input, DTensor):
            return super().forward(input)
        self._check_input_dim(input)
        mesh, shape, dims = input.device_mesh, (1, -1, 1, 1), (0, 2, 3)
        ways = [way if way == Shard(0) else Replicate() for way in input.placements]
        summed = [Partial() if way == Shard(0) else way for way in ways]
        count = input.numel() // input.shape[1]

        def on_all(tensor):  # each process goes on with it in its own way
            whole = tensor.redistribute(placements=[Replicate()] * mesh.ndim)
            return whole.to_local(grad_placements=summed)

        def mean_of(values):
            return on_all(
                DTensor.from_local(values.sum(dims, keepdim=True) / count, mesh, summed)
            )

        x = input.redistribute(placements=ways).to_local()
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.training or self.running_mean is None:
            if count < 2:
                raise ValueError(
                    f"input must have 2 or more values a channel, got {tuple(input.shape)}"
                )
            mean = mean_of(values)
            variance = mean_of((values - mean).square())
            if self.running_mean is not None:
                self._keep(mean.detach().flatten(), variance.detach().flatten(), count)
        else:
            mean, variance = (
                on_all(t).view(shape) for t in (self.running_mean, self.running_var)
            )
        output = (values - mean) * (variance + self.eps).rsqrt()
        if self.affine:
            output = output * on_all(self.weight).view(shape) + on_all(self.bias).view(
                shape
            )
        output = output.to(x.dtype)
        return DTensor.from_local(
            output, mesh, ways, shape=input.shape, stride=input.stride()
        )

    def _keep(self, mean, variance, count):
        variance = variance * count / (count - 1)
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:
            share = 1 / self.num_batches_tracked.to_local()
        for kept, new in ((self.running_mean, mean), (self.running_var, variance)):
            kept.to_local().add_((new - kept.to_local()) * share)


if "torch.distributed.tensor" in sys.modules:
    register()
