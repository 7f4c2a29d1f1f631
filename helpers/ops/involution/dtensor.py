"""Involution of `DTensor`s, whose parts lie on several processes.

Samples do not meet, nor do groups of channels. So tensors that are cut along one of the
two are filtered where they are. Whatever else arrives is gathered first. (Rows of an
image need their neighbours: exchange halos, then filter local tensors with padding in
the other direction only.)

Registered when this is imported after `torch.distributed.tensor`, or by `register()`.
That module's own `register_sharding` says how an operator's tensors are cut, but passes
its other arguments on as they are; `groups` of the third operator must be that of the
part.

Needs torch 2.13 or later: what came before cannot cut a tensor inside a Function.

Source: https://docs.pytorch.org/docs/2.15/distributed.tensor.html
"""

import sys
from contextlib import suppress
from functools import partial

import torch

from .geometry import ARRAYS, check_operator, result_format
from .operator import NAMESPACE, OPERATORS


def register():
    """Teach `DTensor` the three operators.

    Calling it again does nothing.
    """
    from torch.distributed.tensor import DTensor

    for name, (kernel, _) in OPERATORS.items():
        if name not in _registered:
            rule = partial(_on_parts, kernel)
            operator = f"{NAMESPACE}::{name}"
            with suppress(RuntimeError):  # it is there: of a copy that shares them
                torch.library.register_torch_dispatch(operator, DTensor, rule)
            _registered.add(name)


_registered = set()


def _on_parts(kernel, cls, op, types, args, kwargs=None):
    from torch.distributed.tensor import DTensor

    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 13):
        raise RuntimeError(
            "involution of DTensors needs torch 2.13 or later, this is "
            f"{torch.__version__}"
        )
    first, second, *arguments = args
    one, other, result = ARRAYS[kernel]
    if not isinstance(first, DTensor) or not isinstance(second, DTensor):
        raise TypeError(f"{one} and {other} must both be DTensors, or neither of them")
    mesh = first.device_mesh
    if second.device_mesh != mesh:
        raise ValueError(
            f"{one} and {other} must be on one mesh, got {mesh} and "
            f"{second.device_mesh}"
        )
    geometry = check_operator(kernel, *args)
    groups, placements = geometry.groups, []
    for dim, cut in enumerate(zip(first.placements, second.placements, strict=True)):
        placement, parts = _way(cut, groups, mesh.size(dim))
        groups //= parts
        placements.append(placement)
    if kernel == "grad_weight":
        arguments[0] = groups
    first = first.redistribute(placements=placements).to_local()
    second = second.redistribute(placements=placements).to_local()
    local = op(first, second, *arguments)
    whole = torch.empty(
        geometry.size_of(result),
        device="meta",
        memory_format=result_format(kernel, first),
    )
    return DTensor.from_local(
        local, mesh, placements, shape=whole.shape, stride=whole.stride()
    )


def _way(cut, groups, parts):
    """(placement of all three arrays, number of parts) for a mesh dimension.

    cut: how the two that are read lie so far.
    """
    from torch.distributed.tensor import Replicate, Shard

    if Shard(0) in cut:
        return Shard(0), 1
    if Shard(1) in cut and groups % parts == 0:
        return Shard(1), parts
    return Replicate(), 1


if "torch.distributed.tensor" in sys.modules:
    register()
