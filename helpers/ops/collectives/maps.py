"""The maps between processes, and the one Function that differentiates them.

Here all processes have agreed on shapes and sizes.
"""

import torch
import torch.distributed as dist

# Their names since torch 2.13, and before.
all_gather_single = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
reduce_scatter_single = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


class Collective(torch.autograd.Function):
    """`Collective.apply(input, there, back)`: `there(input)`, with its transpose."""

    @staticmethod
    def forward(input, there, back):
        return there(input)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.there, ctx.back = inputs

    @staticmethod
    def backward(ctx, grad_output):
        return Collective.apply(grad_output, ctx.back, ctx.there), None, None

    @staticmethod
    def vmap(info, in_dims, input, there, back):
        # The maps count dimensions from the front, so a batch at the end changes
        # nothing for them.
        output = Collective.apply(input.movedim(in_dims[0], -1), there, back)
        return output, output.dim() - 1


def same(tensor):
    return tensor.view_as(tensor)


def cloned(tensor):
    return tensor.clone()


def add(tensor, group):
    result = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    # On torch 2.11, what was changed in place gets no gradient, compiled.
    return result.detach()


def largest(tensor, group):
    """Not linear, so of tensors without a history."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, dist.ReduceOp.MAX, group=group)
    return result


def gather(tensor, dim, sizes, group):
    longest = max(sizes)  # the collective wants equal parts: shorter ones are filled up
    mine = _filled_up(tensor.movedim(dim, 0), longest).contiguous()
    whole = mine.new_empty(len(sizes) * longest, *mine.shape[1:])
    all_gather_single(whole, mine, group=group)
    parts = [whole[i * longest : i * longest + size] for i, size in enumerate(sizes)]
    # No view: it may be changed.
    return torch.cat(parts).movedim(0, dim).contiguous().detach()


def scatter_sum(tensor, dim, sizes, group):
    longest = max(sizes)
    parts = [_filled_up(part, longest) for part in tensor.movedim(dim, 0).split(sizes)]
    # torch.cat leaves channels_last as it is, and the memory of all processes must be
    # in one order.
    whole = torch.cat(parts).contiguous()
    mine = whole.new_empty(longest, *whole.shape[1:])
    reduce_scatter_single(mine, whole, group=group)
    return mine[: sizes[dist.get_rank(group)]].movedim(0, dim).contiguous().detach()


def _filled_up(part, longest):
    missing = longest - part.shape[0]
    return (
        torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part
    )


def own_part(tensor, dim, sizes, group):
    return tensor.split(sizes, dim)[dist.get_rank(group)].clone()


def exchange(tensor, split_dim, concat_dim, split_sizes, concat_sizes, group):
    rank, shape = dist.get_rank(group), list(tensor.shape)
    shape[split_dim] = split_sizes[rank]
    shapes = [
        [*shape[:concat_dim], size, *shape[concat_dim + 1 :]] for size in concat_sizes
    ]
    pieces = _swap(tensor.split(split_sizes, split_dim), shapes, group)
    return torch.cat(pieces, concat_dim)


def _swap(pieces, shapes, group):
    """Send a piece to each process, and receive one of the given shape from each."""
    sent = torch.cat([piece.flatten() for piece in pieces])
    counts = [torch.Size(shape).numel() for shape in shapes]
    received = sent.new_empty(sum(counts))
    dist.all_to_all_single(
        received, sent, counts, [piece.numel() for piece in pieces], group=group
    )
    return [
        part.view(s) for part, s in zip(received.split(counts), shapes, strict=True)
    ]


def _to_neighbours(to_previous, to_next, from_previous, from_next, dim, group):
    """Swap slices of those sizes along `dim` with both neighbours, if any."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    pieces, shapes = [to_next.narrow(dim, 0, 0)] * size, [[0]] * size
    for other, piece, width in (
        (rank - 1, to_previous, from_previous),
        (rank + 1, to_next, from_next),
    ):
        if 0 <= other < size:
            pieces[other] = piece
            shapes[other] = [*piece.shape[:dim], width, *piece.shape[dim + 1 :]]
    received = [None, *_swap(pieces, shapes, group), None]
    return received[rank], received[rank + 2]


def with_halo(tensor, before, after, dim, group):
    height = tensor.shape[dim]
    first, last = (
        tensor.narrow(dim, 0, after),
        tensor.narrow(dim, height - before, before),
    )
    above, below = _to_neighbours(first, last, before, after, dim, group)
    if above is None:
        above = torch.zeros_like(last)
    if below is None:
        below = torch.zeros_like(first)
    return torch.cat([above, tensor, below], dim)


def halo_sent_home(tensor, before, after, dim, group):
    height = tensor.shape[dim] - before - after
    above, own, below = tensor.split([before, height, after], dim)
    first, last = _to_neighbours(above, below, after, before, dim, group)
    result = own.clone()
    if first is not None:
        result.narrow(dim, 0, after).add_(first)
    if last is not None:
        result.narrow(dim, height - before, before).add_(last)
    return result


def shares(size, parts):
    """The sizes of `parts` parts of `size`, as `torch.tensor_split` makes them."""
    return [size // parts + (part < size % parts) for part in range(parts)]
