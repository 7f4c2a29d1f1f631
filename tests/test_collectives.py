"""The collectives in groups of 2 and of 4 real processes, which are started once for this file."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from helpers.lessons.processes import Team
from helpers.ops import collectives
from tests.common import TOLERANCE, random

# What is sent to the processes is sent as code, so that they do not import this file and pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", params=[2, 4])
def team(request):
    with Team(request.param, limit=20) as team:
        yield team


# Every function against the same mathematics in one process. Each case: what a process calls, what
# becomes of the list of all inputs, the shape of a rank's input, and whose the loss is.


def halo_of(width, dim):
    before, after = width

    def reference(strips):
        whole = torch.cat(strips, dim)
        rows = torch.zeros_like(whole.narrow(dim, 0, 1))
        padded = torch.cat([rows] * before + [whole] + [rows] * after, dim)
        starts = torch.tensor([0] + [s.shape[dim] for s in strips]).cumsum(0).tolist()
        return [
            padded.narrow(dim, start, before + strip.shape[dim] + after)
            for start, strip in zip(starts, strips)
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
        return total.split(sizes, dim) if sizes else total.tensor_split(len(inputs), dim)

    return reference


def to_all(of):
    return lambda inputs: [of(inputs)] * len(inputs)


def lopsided(size):
    """Sizes of the parts of 6: a large one, and an empty one."""
    return [5, *[0] * (size - 2), 1]


CASES = {
    "copy": (
        lambda x, size: collectives.copy(x),
        lambda inputs: [inputs[0]] * len(inputs),
        lambda rank: (3, 4),
        "replicated",
    ),
    "all_reduce, replicated": (
        lambda x, size: collectives.all_reduce(x),
        to_all(sum),
        lambda rank: (3, 4),
        "replicated",
    ),
    "all_reduce, summed": (
        lambda x, size: collectives.all_reduce(x, loss="summed"),
        to_all(sum),
        lambda rank: (),
        "summed",
    ),
    "all_gather, replicated": (
        lambda x, size: collectives.all_gather(x, -1),
        to_all(lambda inputs: torch.cat(inputs, -1)),
        lambda rank: (3, rank + 1),
        "replicated",
    ),
    "all_gather, summed": (
        lambda x, size: collectives.all_gather(x, loss="summed"),
        to_all(torch.cat),
        lambda rank: (3 - rank % 3, 2),
        "summed",
    ),
    "reduce_scatter": (
        lambda x, size: collectives.reduce_scatter(x, 1),
        scattered(1),
        lambda rank: (3, 7),
        "summed",
    ),
    "reduce_scatter, sizes": (
        lambda x, size: collectives.reduce_scatter(x, -2, sizes=lopsided(size)),
        lambda inputs: scattered(-2, lopsided(len(inputs)))(inputs),
        lambda rank: (6, 2),
        "summed",
    ),
    "all_to_all": (
        lambda x, size: collectives.all_to_all(x, 0, -1),
        exchanged(0, 2),
        lambda rank: (7, 2, rank + 1),
        "summed",
    ),
    "halo_exchange": (
        lambda x, size: collectives.halo_exchange(x, 1, -2),
        halo_of((1, 1), -2),
        lambda rank: (2, rank + 1, 3),
        "summed",
    ),
    "halo_exchange, two widths": (
        lambda x, size: collectives.halo_exchange(x, (2, 1), 0),
        halo_of((2, 1), 0),
        lambda rank: (3 - rank % 2, 2),
        "summed",
    ),
    "halo_exchange, one side": (
        lambda x, size: collectives.halo_exchange(x, (0, 2), 1),
        halo_of((0, 2), 1),
        lambda rank: (1, 2 + rank),
        "summed",
    ),
}


def input_of(name, rank, dtype=torch.float64):
    """What the process has; transposed in memory if it can be."""
    shape = CASES[name][2](rank)
    seed = 0 if name == "copy" else rank
    return random(*shape[::-1], dtype=dtype, seed=seed).detach().permute(tuple(range(len(shape))[::-1]))


def derivatives_here(name, dtype):
    """Output, gradient and second gradient in this process."""
    call, _, _, loss = CASES[name]
    rank, size = dist.get_rank(), dist.get_world_size()
    x = input_of(name, rank, dtype).requires_grad_()
    output = call(x, size)
    of_output = cubes(output)
    if name == "copy":
        of_output = collectives.all_reduce(of_output)
    (first,) = torch.autograd.grad(of_output, x, create_graph=True)
    of_first = first.square().sum()
    if loss == "replicated" and name != "copy":
        of_first = collectives.all_reduce(of_first)
    (second,) = torch.autograd.grad(of_first, x)
    return output.detach(), first.detach(), second


def cubes(output):
    numbers = torch.arange(1.0, output.numel() + 1, dtype=output.dtype)
    return (output**3 * numbers.view(output.shape)).sum()


def derivatives_in_one_process(name, size, dtype):
    _, reference, _, loss = CASES[name]
    inputs = [input_of(name, rank, dtype).requires_grad_() for rank in range(size)]
    if name == "copy":
        inputs = inputs[:1] * size
    outputs = reference(inputs)
    counted = outputs if loss == "summed" or name == "copy" else outputs[:1]
    leaves = inputs[:1] if name == "copy" else inputs
    first = torch.autograd.grad(sum(map(cubes, counted)), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
    if name == "copy":
        first, second = first * size, second * size
    return list(zip(outputs, first, second, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_one_process(team, name):
    given = team(derivatives_here, name, torch.float64)
    expected = derivatives_in_one_process(name, team.size, torch.float64)
    for ours, theirs in zip(given, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, **TOLERANCE[torch.float64])
