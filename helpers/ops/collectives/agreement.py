"""What must be the same on all processes, and the error on each if it is not."""

from collections import Counter

import torch
import torch.distributed as dist

from .maps import all_gather_single

LOSSES = ("replicated", "summed")
CALLS = (
    "copy",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "halo_exchange",
    "vocab_parallel_cross_entropy",
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MOST_DIMS = 8


def agree(
    name, input, group, check, problem=None, *numbers, free=None, needs_grad=True
):
    """The shapes of `input` on all processes, once they agree to go on."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{name}: this process is not in the group")
    problem = wrong_tensor(input) or problem
    if check:
        row = [problem is not None, CALLS.index(name)]
        if not problem:
            needs_grad = needs_grad and torch.is_grad_enabled() and input.requires_grad
            row += [
                DTYPES.index(input.dtype),
                needs_grad,
                input.dim(),
                *input.shape,
                *numbers,
            ]
        row += [-1] * (9 + MOST_DIMS + size - len(row))
        # Where the group has a backend for CPU tensors, no GPU needs to be waited for.
        has_cpu = "cpu" in dist.get_backend_config(group)
        device = "cpu" if has_cpu else getattr(input, "device", "cuda")
        rows = torch.empty(size * len(row), dtype=torch.int64, device=device)
        all_gather_single(rows, torch.tensor(row, device=device), group=group)
        rows = rows.view(size, -1).tolist()
    if problem:
        raise problem
    if not check:
        return [tuple(input.shape)] * size
    refused = [other for other, row in enumerate(rows) if row[0]]
    if refused:
        raise ValueError(f"{name}: rank {refused[0]} refused its arguments")
    shapes = [tuple(row[5 : 5 + row[4]]) for row in rows]
    for what, values in {
        "calls": [CALLS[row[1]] for row in rows],
        "has an input of": [DTYPES[row[2]] for row in rows],
        "has an input of shape": [_but(free, shape) for shape in shapes],
        "has as dimensions, loss, width, sizes": [
            tuple(n for n in row[5 + row[4] :] if n >= 0) for row in rows
        ],
        "has an input with requires_grad": [bool(row[3]) for row in rows],
    }.items():
        usual, times = Counter(values).most_common(1)[0]
        if times < size:
            odd = next(other for other, value in enumerate(values) if value != usual)
            raise ValueError(
                f"{name}: rank {odd} {what} {values[odd]}, but rank "
                f"{values.index(usual)} {usual}"
            )
    return shapes


def _but(free, shape):
    """The shape, with a star where it may differ."""
    return tuple(
        "*" if free is not None and i == free % len(shape) else s
        for i, s in enumerate(shape)
    )


def wrong_tensor(input):
    if not isinstance(input, torch.Tensor):
        return TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if input.dtype not in DTYPES:
        known = ", ".join(map(str, DTYPES))
        return TypeError(f"input must be one of {known}, got {input.dtype}")
    if input.layout is not torch.strided:
        return TypeError(f"input must be dense (torch.strided), got {input.layout}")
    if input.dim() > MOST_DIMS:
        return ValueError(
            f"input must have at most {MOST_DIMS} dimensions, got {input.dim()}"
        )
    return None


def wrong_loss(loss):
    if loss not in LOSSES:
        return ValueError(f"loss must be 'replicated' or 'summed', got {loss!r}")
    return None


def wrong_dim(name, dim, input):
    problem = wrong_tensor(input)
    if problem:
        return problem
    if isinstance(dim, bool) or not isinstance(dim, int):
        return TypeError(f"{name} must be an int, got {dim!r}")
    if not -input.dim() <= dim < input.dim():
        return ValueError(
            f"{name} must be a dimension of an input with {input.dim()}, got {dim}"
        )
    return None


def wrong_sizes(sizes, dim, input, group):
    parts = dist.get_world_size(group)
    fits = sizes is None or (
        isinstance(sizes, (list, tuple))
        and len(sizes) == parts
        and all(isinstance(size, int) and size >= 0 for size in sizes)
        and sum(sizes) == input.shape[dim]
    )
    if not fits:
        return ValueError(
            f"sizes must be {parts} sizes that add up to {input.shape[dim]}, got "
            f"{sizes}"
        )
    return None
