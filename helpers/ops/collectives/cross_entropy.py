"""Cross-entropy of logits whose classes are cut across processes."""

from functools import partial

import torch
import torch.distributed as dist

from .agreement import agree, wrong_dim
from .functional import all_reduce
from .maps import Collective, largest, same

NAME = "vocab_parallel_cross_entropy"


def vocab_parallel_cross_entropy(
    input, target, *, reduction="mean", ignore_index=-100, group=None, check=True
):
    """`F.cross_entropy` of all logits, of which each process has those of some classes.

    input: (..., classes of this process), at least one, as a `ColumnParallelLinear`
    leaves them.
    target: (...), int64, the same on every process: a class of all for each row, or
    `ignore_index`.
    reduction: "mean", over the rows that are not ignored, "sum", or "none": one loss
    for each row.
    Returns the same on every process ("replicated"), in float32 at least. Three numbers
    a row are sent, and no logits; backward sends nothing, and keeps one tensor of the
    logits' shape.

    Raises TypeError or ValueError on every process, if inputs do not fit together. A
    target that is out of range raises on the CPU; elsewhere, and compiled, the loss of
    its row is nan.

    Source: Shoeybi et al., Megatron-LM, https://arxiv.org/abs/1909.08053, section 3.
    """
    problem = wrong_dim("dim", -1, input) or _wrong(
        input, target, reduction, ignore_index
    )
    shapes = agree(NAME, input, group, check, problem, free=-1)
    rank, sizes = dist.get_rank(group), [shape[-1] for shape in shapes]
    ignored, at = target == ignore_index, target - sum(sizes[:rank])
    outside = ~ignored & ((target < 0) | (target >= sum(sizes)))
    looked_up = target.device.type == "cpu" and not torch.compiler.is_compiling()
    if looked_up and outside.any():
        raise ValueError(
            f"target must be from 0 to {sum(sizes) - 1}, or ignore_index "
            f"{ignore_index},"
            f" got {target[outside][0].item()}"
        )
    z = input.to(torch.promote_types(input.dtype, torch.float32))
    top = Collective.apply(z.detach().amax(-1), partial(largest, group=group), same)
    z = z - top[..., None]
    here = (at >= 0) & (at < sizes[rank])
    at_target = z.gather(-1, at.where(here, 0)[..., None])[..., 0].where(here, 0)
    sums = torch.stack([z.exp().sum(-1), at_target])
    total, at_target = all_reduce(sums, loss="replicated", group=group, check=False)
    losses = (
        (total.log() - at_target)
        .masked_fill(ignored, 0)
        .masked_fill(outside, torch.nan)
    )
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / (~ignored).sum()


def _wrong(input, target, reduction, ignore_index):
    if input.shape[-1] == 0:
        return ValueError(f"input must have a class or more, got {tuple(input.shape)}")
    if not isinstance(target, torch.Tensor):
        return TypeError(f"target must be a torch.Tensor, got {type(target).__name__}")
    if target.dtype != torch.int64:
        return TypeError(f"target must be torch.int64, got {target.dtype}")
    if target.shape != input.shape[:-1]:
        expected = tuple(input.shape[:-1])
        return ValueError(
            f"target must have shape {expected}, got {tuple(target.shape)}"
        )
    if target.device != input.device:
        return ValueError(
            f"target is on {target.device}, but input is on {input.device}"
        )
    if reduction not in ("mean", "sum", "none"):
        return ValueError(
            f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}"
        )
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        return TypeError(
            f"ignore_index must be an int, got {type(ignore_index).__name__}"
        )
    return None
