"""Functions of PyTorch that are several steps, as plain forwards: read where they are called."""

import torch
from torch.nn import functional as F


def binary_cross_entropy_with_logits(
    input, target, weight=None, reduction="mean", pos_weight=None
):
    assert weight is None and pos_weight is None
    losses = (1 - target) * input - F.logsigmoid(input)
    return reduced(losses, reduction)


def glu(input, dim=-1):
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    assert len(normalized_shape) == 1
    centered = input - input.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    normal = centered * (variance + eps).rsqrt()
    scaled = normal if weight is None else normal * weight
    return scaled if bias is None else scaled + bias


def max(input, dim=None, keepdim=False):
    if dim is None:
        return input.flatten().amax(0)
    return taken(input, input.argmax(dim, keepdim=True), dim, keepdim)


def min(input, dim=None, keepdim=False):
    if dim is None:
        return input.flatten().amin(0)
    return taken(input, input.argmin(dim, keepdim=True), dim, keepdim)


def mse_loss(input, target, reduction="mean"):
    return reduced((input - target).square(), reduction)


def normalize(input, p=2, dim=1, eps=1e-12):
    assert p == 2
    return input / input.norm(dim=dim, keepdim=True).clamp_min(eps)


def outer(input, vec2):
    return input.unsqueeze(-1) * vec2


def reduced(losses, reduction):
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def rms_norm(input, normalized_shape, weight=None, eps=None):
    assert len(normalized_shape) == 1
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    mean_square = input.square().mean(-1, keepdim=True)
    normal = input * (mean_square + eps).rsqrt()
    return normal if weight is None else normal * weight


def taken(input, index, dim, keepdim):
    values = input.gather(dim, index)
    return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


COMPOSITES = {
    function.__name__: function
    for function in (
        binary_cross_entropy_with_logits,
        glu,
        layer_norm,
        max,
        min,
        mse_loss,
        normalize,
        outer,
        reduced,
        rms_norm,
        taken,
    )
}
