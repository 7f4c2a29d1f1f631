"""The table of the collectives: the same in one process, and what is refused.

test_collectives.py runs over it, in groups of 2 and of 4 processes.
"""

from functools import partial

import torch
import torch.distributed as dist

from helpers.ops.collectives import (
    ColumnParallelLinear,
    RowParallelLinear,
    all_gather,
    all_reduce,
    all_to_all,
    copy,
    halo_exchange,
    reduce_scatter,
    vocab_parallel_cross_entropy,
)
from tests.common import random

# Every function against the same mathematics in one process. Each case: what a process
# calls, what becomes of the list of all inputs, the shape of an input or of that of a
# rank, whose the loss is.


def halo_of(width, dim):
    before, after = width

    def reference(strips):
        whole = torch.cat(strips, dim)
        rows = torch.zeros_like(whole.narrow(dim, 0, 1))
        padded = torch.cat([rows] * before + [whole] + [rows] * after, dim)
        starts = torch.tensor([0] + [s.shape[dim] for s in strips]).cumsum(0).tolist()
        return [
            padded.narrow(dim, start, before + strip.shape[dim] + after)
            for start, strip in zip(starts, strips, strict=False)
        ]

    return reference


def exchanged(split_dim, concat_dim):
    def reference(inputs):
        pieces = [x.tensor_split(len(inputs), split_dim) for x in inputs]
        return [torch.cat(column, concat_dim) for column in zip(*pieces, strict=True)]

    return reference


def scattered(dim, sizes=None):
    def reference(inputs):
        total = sum(inputs)
        return (
            total.split(sizes, dim) if sizes else total.tensor_split(len(inputs), dim)
        )

    return reference


def to_all(of):
    return lambda inputs: [of(inputs)] * len(inputs)


def lopsided(size):
    """Sizes of the parts of 6: a large one, and an empty one."""
    return [5, *[0] * (size - 2), 1]


CASES = {
    "copy": (copy, lambda inputs: inputs[:1] * len(inputs), (3, 4), "replicated"),
    "all_reduce, replicated": (
        partial(all_reduce, loss="replicated"),
        to_all(sum),
        (3, 4),
        "replicated",
    ),
    "all_reduce, summed": (
        partial(all_reduce, loss="summed"),
        to_all(sum),
        (),
        "summed",
    ),
    "all_gather, replicated": (
        partial(all_gather, dim=-1, loss="replicated"),
        to_all(partial(torch.cat, dim=-1)),
        lambda rank: (3, rank + 1),
        "replicated",
    ),
    "all_gather, summed": (
        partial(all_gather, loss="summed"),
        to_all(torch.cat),
        lambda rank: (3 - rank % 3, 2),
        "summed",
    ),
    "reduce_scatter": (partial(reduce_scatter, dim=1), scattered(1), (3, 7), "summed"),
    "reduce_scatter, sizes": (
        lambda x: reduce_scatter(x, -2, sizes=lopsided(dist.get_world_size())),
        lambda inputs: scattered(-2, lopsided(len(inputs)))(inputs),
        (6, 2),
        "summed",
    ),
    "all_to_all": (
        partial(all_to_all, split_dim=0, concat_dim=-1),
        exchanged(0, 2),
        lambda rank: (7, 2, rank + 1),
        "summed",
    ),
    "all_gather of nothing": (
        partial(all_gather, loss="replicated"),
        to_all(torch.cat),
        (0, 2),
        "replicated",
    ),
    "reduce_scatter of nothing": (reduce_scatter, scattered(0), (0, 2), "summed"),
    "all_to_all of nothing": (
        partial(all_to_all, split_dim=0, concat_dim=1),
        exchanged(0, 1),
        (1, 0),
        "summed",
    ),
    "halo_exchange": (
        partial(halo_exchange, width=1, dim=-2),
        halo_of((1, 1), -2),
        lambda rank: (2, rank + 1, 3),
        "summed",
    ),
    "halo_exchange, two widths": (
        partial(halo_exchange, width=(2, 1), dim=0),
        halo_of((2, 1), 0),
        lambda rank: (3 - rank % 2, 2),
        "summed",
    ),
    "halo_exchange, one side": (
        partial(halo_exchange, width=(0, 2), dim=1),
        halo_of((0, 2), 1),
        lambda rank: (1, 2 + rank),
        "summed",
    ),
}


def input_of(name, rank, dtype=torch.float64):
    """What the process has; transposed in memory if it can be."""
    shape = CASES[name][2]
    shape = shape(rank) if callable(shape) else shape
    seed = 0 if name == "copy" else rank
    backwards = random(*shape[::-1], dtype=dtype, seed=seed).detach()
    return backwards.permute(tuple(range(len(shape))[::-1]))


# What does not fit: each process gets the same error, and none waits for the others


def ones(*shape, **options):
    return torch.ones(shape, **options)


def to(number, rows):
    return torch.full((rows,), number)


def to_the_last(size):
    return [0] * (dist.get_world_size() - 1) + [size]


# what process `rank` calls, what all are told, and what rank 1 is told instead
BAD = [
    (
        lambda rank: all_reduce(ones(2 + (rank == 1), 4), loss="replicated"),
        "all_reduce: rank 1 has an input of shape (3, 4), but rank 0 (2, 4)",
    ),
    (
        lambda rank: halo_exchange(ones(2, 4, *[1] * (rank == 1)), 1, 0),
        "halo_exchange: rank 1 has an input of shape ('*', 4, 1), but rank 0 ('*', 4)",
    ),
    (
        lambda rank: copy(ones(2).double() if rank == 1 else ones(2)),
        "copy: rank 1 has an input of torch.float64, but rank 0 torch.float32",
    ),
    (
        lambda rank: (reduce_scatter if rank == 1 else copy)(ones(2)),
        "rank 1 calls reduce_scatter, but rank 0 copy",
    ),
    (
        lambda rank: all_reduce(
            ones(2, requires_grad=True), loss="summed" if rank == 1 else "replicated"
        ),
        "all_reduce: rank 1 has as dimensions, loss, width, sizes (1,), but rank 0 "
        "(0,)",
    ),
    (
        lambda rank: all_to_all(ones(4, 4, 4), 2 if rank == 1 else 0, 1),
        "all_to_all: rank 1 has as dimensions, loss, width, sizes (2, 1, ",
    ),
    (
        lambda rank: reduce_scatter(
            ones(9), sizes=to_the_last(9) if rank == 1 else None
        ),
        "reduce_scatter: rank 1 has as dimensions, loss, width, sizes (0, 0, ",
    ),
    (
        lambda rank: copy(ones(2, requires_grad=rank == 1)),
        "copy: rank 1 has an input with requires_grad True, but rank 0 False",
    ),
    (
        lambda rank: all_gather(ones(2, requires_grad=rank == 1), loss="summed"),
        "all_gather: rank 1 has an input with requires_grad True, but rank 0 False",
    ),
    (
        lambda rank: halo_exchange(ones(3 - 2 * (rank == 1), 2), (0, 2), 0),
        "halo_exchange: width is (0, 2), but the strip of rank 1 is only 1 high",
    ),
    (
        lambda rank: all_reduce(
            ones(2).int() if rank == 1 else ones(2), loss="replicated"
        ),
        "all_reduce: rank 1 refused its arguments",
        "torch.bfloat16, torch.float16, got torch.int32",
    ),
    (
        lambda rank: vocab_parallel_cross_entropy(
            ones(2 + (rank == 1), 4), to(0, 2 + (rank == 1))
        ),
        "vocab_parallel_cross_entropy: rank 1 has an input of shape (3, '*'), but "
        "rank 0 (2, '*')",
    ),
    (
        lambda rank: vocab_parallel_cross_entropy(
            ones(2, 0 if rank == 1 else 4), to(0, 2)
        ),
        "vocab_parallel_cross_entropy: rank 1 refused its arguments",
        "input must have a class or more, got (2, 0)",
    ),
    (
        lambda rank: RowParallelLinear(8, 3)(
            ones(2, 8 // dist.get_world_size() - (rank == 1))
        ),
        "all_reduce: rank 1 refused its arguments",
        "input must have shape (..., ",
    ),
]
LOSS = "loss must be 'replicated' or 'summed', got"
WIDTH = "width must be an int or a pair of ints, got"
EVERYWHERE = [
    (lambda: copy([1.0]), "input must be a torch.Tensor, got list"),
    (
        lambda: all_gather(ones(2).long(), loss="replicated"),
        "input must be one of torch.float32, torch.float64,",
    ),
    (lambda: copy(ones(2).to_sparse()), "input must be dense (torch.strided), got"),
    (lambda: copy(ones(*[1] * 9)), "input must have at most 8 dimensions, got 9"),
    (lambda: all_gather(ones(2), loss="mean"), f"{LOSS} 'mean'"),
    (lambda: all_reduce(ones(2), loss=None), f"{LOSS} None"),
    (
        lambda: all_gather(ones(), loss="replicated"),
        "dim must be a dimension of an input with 0, got 0",
    ),
    (
        lambda: reduce_scatter(ones(2), -2),
        "dim must be a dimension of an input with 1, got -2",
    ),
    (
        lambda: all_gather(ones(2), 0.0, loss="replicated"),
        "dim must be an int, got 0.0",
    ),
    (
        lambda: all_to_all(ones(2, 2), 0, 2),
        "concat_dim must be a dimension of an input with 2, got 2",
    ),
    (
        lambda: all_to_all(ones(4, 4), 1, -1),
        "split_dim and concat_dim must differ, got 1 twice",
    ),
    (lambda: reduce_scatter(ones(6), sizes=[6]), "sizes that add up to 6, got [6]"),
    (lambda: all_to_all(ones(6, 2), 0, 1, sizes=6), "sizes that add up to 6, got 6"),
    (
        lambda: reduce_scatter(ones(6), sizes=[float(n) for n in to_the_last(6)[::-1]]),
        "sizes that add up to 6, got [6.0, 0.0",
    ),
    (
        lambda: reduce_scatter(
            ones(6), sizes=[7, -1] + [0] * (dist.get_world_size() - 2)
        ),
        "sizes that add up to 6, got [7, -1",
    ),
    (lambda: reduce_scatter(ones(6), sizes=to_the_last(5)), "add up to 6, got [0"),
    (
        lambda: halo_exchange(ones(6), 2**64, 0),
        "from 0 to 2**40, got 18446744073709551",
    ),
    (lambda: halo_exchange(ones(6), 1.0, 0), f"{WIDTH} 1.0"),
    (lambda: halo_exchange(ones(6), (1, True), 0), f"{WIDTH} (1, True)"),
    (lambda: halo_exchange(ones(6), (1, 1, 1), 0), f"{WIDTH} (1, 1, 1)"),
    (
        lambda: halo_exchange(ones(6), (1, -1), 0),
        "width must be from 0 to 2**40, got (1, -1)",
    ),
    (
        lambda: halo_exchange(ones(6), -1, 1),
        "dim must be a dimension of an input with 1, got 1",
    ),
    *[
        (lambda a=a, o=o: vocab_parallel_cross_entropy(ones(2, 1), *a, **o), words)
        for a, o, words in (
            ([[0, 0]], {}, "target must be a torch.Tensor, got list"),
            ([to(0, 2).int()], {}, "target must be torch.int64, got torch.int32"),
            ([to(0, 3)], {}, "target must have shape (2,), got (3,)"),
            ([to(0, 2).to("meta")], {}, "target is on meta, but input is on cpu"),
            (
                [to(0, 2)],
                {"reduction": "max"},
                "must be 'mean', 'sum' or 'none', got 'max'",
            ),
            (
                [to(0, 2)],
                {"ignore_index": 1.0},
                "ignore_index must be an int, got float",
            ),
            ([to(-1, 2)], {}, ", or ignore_index -100, got -1"),
            ([to(4, 2)], {}, ", or ignore_index -100, got 4"),
        )
    ],
    (lambda: ColumnParallelLinear(6.0, 8), "in_features must be an int, got float"),
    (lambda: RowParallelLinear(6, True), "out_features must be an int, got bool"),
    (lambda: ColumnParallelLinear(6, -1), "out_features must not be negative, got -1"),
    (
        lambda: ColumnParallelLinear(3, 4)(ones(2, 4)),
        "input must have shape (..., 3), got (2, 4)",
    ),
]


def cubes(output):
    numbers = torch.arange(1.0, output.numel() + 1, dtype=output.dtype)
    return (output**3 * numbers.view(output.shape)).sum()
