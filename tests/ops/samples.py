"""Inputs for the operations, and references where PyTorch has none."""

from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers.ops.attention import attention
from helpers.ops.linear_cross_entropy import linear_cross_entropy
from tests.common import far, layouts, random
from tests.involution.reference import unfolded


def drawn(dtype, *shapes):
    """A tensor for each shape, and None for None."""
    return tuple(
        None if shape is None else random(*shape, dtype=dtype, seed=seed)
        for seed, shape in enumerate(shapes)
    )


def of_one_tensor(dtype):
    return {name: (tensor,) for name, tensor in layouts(dtype).items()}


def and_a_number(*numbers, if_complex=()):
    def samples(dtype):
        return {
            f"{name}, {number}": (tensor, number)
            for name, tensor in layouts(dtype).items()
            for number in (numbers + if_complex if dtype.is_complex else numbers)
        }

    return samples


def log_add_exp(x):
    """log(exp(x) + exp(0)) by PyTorch's own stable operation."""
    return torch.logaddexp(x, torch.zeros_like(x))


def reversed_slope(x, scale):
    constant = x.detach()
    return constant - scale * (x - constant)


def rounded(x):
    constant = x.detach()
    return torch.round(constant) + (x - constant)


def signed(x, clip):
    constant = x.detach()
    step = torch.where(constant >= 0, 1.0, -1.0).to(x.dtype)
    return step + (constant.abs() <= clip) * (x - constant)


def spiked(x, slope):
    """The step, and the surrogate's series around x."""
    constant = x.detach()
    difference, falling = x - constant, 1 + slope * constant.abs()
    side = torch.where(constant < 0, -1.0, 1.0).to(x.dtype)  # at 0, from the right
    curvature = -2 * slope * side / falling**3
    step = (constant > 0).to(x.dtype)
    return step + difference / falling**2 + difference**2 * curvature / 2


def of_linear(dtype):
    """input, weight, bias or None."""
    shapes = {
        "matrix": ((4, 3), (2, 3), (2,)),
        "without bias": ((4, 3), (2, 3), None),
        "vector": ((3,), (2, 3), (2,)),
        "three dimensions": ((2, 5, 3), (4, 3), (4,)),
        "empty batch": ((0, 3), (2, 3), (2,)),
        "empty batch of matrices": ((2, 0, 3), (2, 3), (2,)),
        "no input features": ((4, 0), (2, 0), (2,)),
        "no output features": ((4, 3), (0, 3), (0,)),
    }
    samples = {name: drawn(dtype, *sizes) for name, sizes in shapes.items()}
    x = random(3, 4, dtype=dtype).detach().t().requires_grad_()
    weight = random(6, 2, dtype=dtype, seed=1).detach()[::2].t().requires_grad_()
    samples["not contiguous"] = (x, weight, random(2, dtype=dtype, seed=2))
    samples["expanded"] = (random(3, dtype=dtype).expand(2, 5, 3), weight, None)
    samples["far"] = tuple(far(*size, dtype=dtype) for size in ((4, 3), (2, 3), (2,)))
    return samples


def of_target(input, linear_weight, linear_bias, row_weight, target, options):
    """`linear_cross_entropy`, a few rows at a time."""
    tensors = {"linear_bias": linear_bias, "row_weight": row_weight}
    options = tensors | {"chunk_size": 2} | options
    return linear_cross_entropy(input, linear_weight, target, **options)


def of_logits(input, linear_weight, linear_bias, row_weight, target, options):
    options = dict(options)
    z_loss, softcap = options.pop("z_loss", 0), options.pop("softcap", 0)
    reduction, weight = options.pop("reduction", "mean"), options.pop("weight", None)
    logits = F.linear(input, linear_weight, linear_bias).reshape(-1, len(linear_weight))
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    indices, shape = target.dtype == torch.int64, input.shape[:-1]
    labels = (
        target.reshape(-1) if indices else target.reshape(logits.shape).to(logits.dtype)
    )
    of_class = None if weight is None else weight.to(logits.dtype)
    losses = partial(F.cross_entropy, logits, labels, of_class, **options)
    if not z_loss and row_weight is None:
        loss = losses(reduction=reduction)
        return loss.reshape(shape) if reduction == "none" else loss
    counted = labels != -100 if indices else torch.ones_like(logits[:, 0])
    squares = z_loss * torch.logsumexp(logits, 1).square()
    loss = losses(reduction="none") + squares * counted
    if row_weight is not None:
        counted = counted * row_weight.reshape(-1)
        loss = loss * row_weight.reshape(-1)
    if reduction == "none":
        return loss.reshape(shape)
    assert weight is None, "which mean?"
    return loss.sum() / counted.sum()


def of_linear_cross_entropy(dtype):
    """As the arguments of `of_target`."""
    classes = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=dtype)
    layer = (4, 3), (4,)
    rows, of_rows = ((5, 3), *layer, None), [3, 0, -100, 1, 2]
    images, of_images = ((2, 2, 3), *layer, None), [[3, 0], [-100, 2]]
    others = {"weight": classes, "z_loss": 0.1, "softcap": 1.5}
    shapes = {
        "mean": (*rows, of_rows, {}),
        "sum": (*rows, of_rows, {"reduction": "sum"}),
        "none": (
            (2, 2, 3),
            (4, 3),
            None,
            None,
            of_images,
            {"reduction": "none", "label_smoothing": 0.2},
        ),
        "smoothed": (*images, of_images, {"label_smoothing": 0.3}),
        "a class ignored": (
            *rows,
            [3, 0, 1, 1, 2],
            {"label_smoothing": 0.1, "ignore_index": 1},
        ),
        "weighted": (*rows, of_rows, {"weight": classes}),
        "weights of rows": ((5, 3), *layer, (5,), of_rows, {}),
        "everything": (
            (2, 2, 3),
            *layer,
            (2, 2),
            of_images,
            {"reduction": "none", "label_smoothing": 0.3} | others,
        ),
        "z-loss": (*rows, of_rows, {"z_loss": 0.1}),
        "probabilities": (*images, None, {"label_smoothing": 0.2, "weight": classes}),
        "probabilities, none": (*images, None, {"reduction": "none"} | others),
        "vector": ((3,), *layer, None, 3, {}),
        "one class": ((3, 3), (1, 3), (1,), None, [0, -100, 0], {}),
        "no features": ((3, 0), (4, 0), (4,), None, [3, 0, 1], {}),
        "empty batch": ((0, 3), *layer, None, [], {"reduction": "sum"}),
    }
    samples = {}
    for name, (*sizes, target, options) in shapes.items():
        tensors = drawn(dtype, *sizes)
        if target is None:
            target = random(
                *sizes[0][:-1], len(tensors[1]), dtype=dtype, seed=3
            ).softmax(-1)
        else:
            target = torch.tensor(target, dtype=torch.int64)
        samples[name] = (*tensors, target.detach(), options)
    x = random(3, 5, dtype=dtype).detach().t().requires_grad_()
    weight = random(6, 8, dtype=dtype, seed=1).detach()[::2, ::2].t().requires_grad_()
    target = torch.tensor([[3, 0, 2, 1, 2]]).t()[:, 0]
    samples["not contiguous"] = (x, weight, None, None, target, {})
    x, target = random(3, dtype=dtype).expand(5, 3), torch.tensor(2).expand(5)
    samples["expanded"] = (x, weight, None, None, target, {})
    _, *layer_and_target, options = samples["smoothed"]
    samples["far"] = (far(2, 2, 3, dtype=dtype), *layer_and_target, options)
    return samples


def of_involution(dtype):
    """input, weight, stride, padding, dilation."""
    pair = partial(drawn, dtype)
    same = pair((2, 4, 5, 6), (2, 2, 3, 3, 5, 6))
    across = [t.detach().transpose(-1, -2).contiguous().transpose(-1, -2) for t in same]
    return {
        "same size": (*same, 1, 1),
        "small": (*pair((1, 2, 3, 4), (1, 1, 2, 3, 2, 2)), (1, 2), (0, 1)),
        "all options": (
            *pair((2, 6, 8, 9), (2, 3, 3, 5, 7, 7)),
            (2, 1),
            (4, 3),
            (1, 2),
        ),
        "transposed": (*[t.requires_grad_() for t in across], 1, 1),
        "strided": (*[torch.stack([t, t], -1)[..., 0] for t in same], 1, 1),
        "channels last": (same[0].to(memory_format=torch.channels_last), same[1], 1, 1),
        "empty batch": (*pair((0, 4, 5, 6), (0, 2, 3, 3, 5, 6)), 1, 1),
        "far": (*[far(*t.shape, dtype=dtype) for t in same], 1, 1),
    }


def in_float32_at_least(input, weight, *geometry):
    """Involution by unfold, summed in float32 as it promises."""
    wide = torch.promote_types(input.dtype, torch.float32)
    return unfolded(input.to(wide), weight.to(wide), *geometry).to(input.dtype)


def of_attention(dtype):
    """query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa."""
    tensors = partial(drawn, dtype)
    small = tensors((2, 3), (4, 3), (4, 2))
    heads = tensors((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    grouped = tensors((2, 4, 5, 4), (1, 2, 7, 4), (2, 2, 7, 6))
    across = [t.detach().transpose(1, 2).contiguous().transpose(1, 2) for t in heads]
    sees = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    sees[0, 0, 2] = False  # a query that sees no key
    return {
        "small": (*small, None),
        "small, causal": (*small, None, 0.0, True),
        "small, biased": (*small, random(1, 4, dtype=dtype, seed=4)),
        "heads": (*heads, None),
        "masked": (*heads, sees),
        "biased": (*heads, random(3, 1, 7, dtype=dtype, seed=5)),
        "causal": (*heads, None, 0.0, True),
        "more queries than keys": (*tensors((7, 4), (5, 4), (5, 4)), None, 0.0, True),
        "broadcast": (*tensors((2, 1, 5, 4), (3, 7, 4), (7, 6)), None),
        "transposed": (*[t.requires_grad_() for t in across], None),
        "scaled": (*heads, None, 0.0, False, -2.0),
        "grouped heads": (*grouped, None, 0.0, True, 0.3, True),
        "one query": (*tensors((1, 4), (7, 4), (7, 6)), None),
        "no query": (*tensors((0, 4), (7, 4), (7, 6)), None),
        "no key": (*tensors((5, 4), (0, 4), (0, 6)), None),
        "far": (far(2, 3, 5, 4, dtype=dtype), *heads[1:], None),
    }


def in_blocks_of_two(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    chunk_size=2,
):
    options = {"scale": scale, "enable_gqa": enable_gqa, "chunk_size": chunk_size}
    return attention(query, key, value, attn_mask, dropout_p, is_causal, **options)


def with_its_matrix(query, key, value, attn_mask=None, *others):
    """Attention as PyTorch composes it, in float32 at least."""
    wide = torch.promote_types(query.dtype, torch.float32)
    tensors = [t.to(wide) for t in (query, key, value)]
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.to(wide)
    last = dict(zip(("scale", "enable_gqa"), others[2:], strict=False))
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            *tensors, attn_mask, *others[:2], **last
        ).to(query.dtype)


def with_corners(dtype):
    """Also at the corner of |x|, and where the slope is nearly 0 or 1."""
    corners = torch.tensor([0, -40, 40, -1, 0.5], dtype=dtype, requires_grad=True)
    return of_one_tensor(dtype) | {"corners": (corners,)}
