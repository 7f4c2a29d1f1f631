"""The collectives in groups of 2 and of 4 real processes."""

import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from helpers.lessons.processes import bytes_sent
from helpers.ops import collectives
from tests.common import FLOATS, TOLERANCE, random
from tests.processes.table import BAD, CASES, EVERYWHERE, cubes, input_of, ones


def derivatives_here(name, dtype):
    """Output, gradient and second gradient in this process."""
    call, _, _, loss = CASES[name]
    x = input_of(name, dist.get_rank(), dtype).requires_grad_()
    output = call(x)
    assert output.is_contiguous() or name == "copy"
    assert output.data_ptr() != x.data_ptr() or name == "copy" or not x.numel()
    of_output = cubes(output)
    if name == "copy":
        of_output = collectives.all_reduce(of_output, loss="replicated")
    (first,) = torch.autograd.grad(of_output, x, create_graph=True)
    of_first = first.square().sum()
    if loss == "replicated" and name != "copy":
        of_first = collectives.all_reduce(of_first, loss="replicated")
    (second,) = torch.autograd.grad(of_first, x)
    return output.detach(), first.detach(), second


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
    for dtype in FLOATS:
        given = team(derivatives_here, name, dtype)
        tolerance = {key: 4 * number for key, number in TOLERANCE[dtype].items()}
        expected = derivatives_in_one_process(name, team.size, dtype)
        for ours, theirs in zip(given, expected, strict=True):
            assert {tensor.dtype for tensor in ours} == {dtype}
            # In half precision, the cubes of the loss are too large to be compared.
            kept = 3 if dtype in (torch.float64, torch.float32) else 1
            torch.testing.assert_close(ours[:kept], theirs[:kept], **tolerance)


# Those that take an input of any sizes.
EACH = [call for name, (call, *_) in CASES.items() if "sizes" not in name]


def unchecked_and_in_a_group():
    """Without the exchange of shapes, and in a group of every second process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    halves = [dist.new_group(range(start, size, 2)) for start in range(2)]
    x = random(4, 4, seed=rank).detach()
    for call in EACH:
        assert torch.equal(call(x, check=False), call(x)) and call(x) is not x
    # Which is no matter where backward sends nothing.
    asked = ones(2, requires_grad=rank == 1)
    collectives.all_reduce(asked, loss="replicated")
    collectives.all_gather(asked, loss="replicated")
    with torch.no_grad():
        collectives.copy(asked)
    total = collectives.all_reduce(x, loss="replicated", group=halves[rank % 2])
    same = [random(4, 4, seed=other) for other in range(rank % 2, size, 2)]
    torch.testing.assert_close(total, sum(same).detach())
    try:
        collectives.all_reduce(x, loss="replicated", group=halves[1 - rank % 2])
    except ValueError as error:
        return str(error)


def test_without_the_check_and_in_a_group(team):
    said = team(unchecked_and_in_a_group)
    assert said == ["all_reduce: this process is not in the group"] * team.size


def mapped():
    """The first derivative of a batch at once, and of one after the other."""
    for name, (call, *_) in CASES.items():
        rank = dist.get_rank()
        batch = [input_of(name, rank) * (1 + i) for i in range(3)]

        def slope(x, call=call):
            return torch.func.grad(lambda x: cubes(call(x)))(x)

        for dim in (0, -1):
            at_once = torch.func.vmap(slope, in_dims=dim)(torch.stack(batch, dim))
            torch.testing.assert_close(at_once, torch.stack([slope(x) for x in batch]))


def test_vmap(team):
    team(mapped)


def losses_of(kind, cross_entropy, scale):
    """A layer's losses and their two derivatives, for each reduction."""
    torch.manual_seed(0)
    layer, found = kind(3, 7, dtype=torch.float64), []
    layer.weight.data *= scale
    x, target = random(4, 3), torch.tensor([0, 6, 1, 3])
    leaves = x, layer.weight
    for reduction in ("mean", "sum", "none"):
        losses = cross_entropy(layer(x), target, reduction=reduction, ignore_index=1)
        first = torch.autograd.grad(losses.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), leaves)
        of_weight = [tensor.detach() for tensor in (first[1], second[1])]
        if kind is not torch.nn.Linear:
            of_weight = [
                collectives.all_gather(tensor, loss="replicated")
                for tensor in of_weight
            ]
        found.append((losses.detach(), first[0].detach(), second[0], *of_weight))
    return found


def test_vocab_parallel_cross_entropy(team):
    kind, loss = (
        collectives.ColumnParallelLinear,
        collectives.vocab_parallel_cross_entropy,
    )
    for scale in (1.0, 1e4):  # the larger logits have no exponential
        right = losses_of(torch.nn.Linear, F.cross_entropy, scale)
        for given in team(losses_of, kind, loss, scale):
            torch.testing.assert_close(given, right)


def changed_in_place():
    x = torch.ones(4, 4, requires_grad=True)
    for call in EACH:
        y, again = call(x).mul_(3), 3 * call(x)
        slopes = [torch.autograd.grad(out.sum(), x)[0] for out in (y, again)]
        assert y.equal(again) and slopes[0].equal(slopes[1]) and x.eq(1).all(), call


def test_results_may_be_changed_in_place(team):
    team(changed_in_place)


def strides_differ():
    """Rank 1 has its input, and its gradient of the output, in channels_last."""
    rank = dist.get_rank()
    x = random(4, 4, 2, 2, seed=rank)
    for call in EACH:
        results = []
        for as_it_lies in (torch.contiguous_format, torch.channels_last):
            how = as_it_lies if rank == 1 else torch.contiguous_format
            mine = x.detach().clone(memory_format=how).requires_grad_()
            y = call(mine)
            v = random(*y.shape, seed=10 + rank).detach().to(memory_format=how)
            results.append((y.detach(), torch.autograd.grad(y, mine, v)[0]))
        torch.testing.assert_close(*results, rtol=0, atol=0)


def test_strides_may_differ(team):
    team(strides_differ)


def bias_under_autocast():
    layer = collectives.RowParallelLinear(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        return layer(torch.ones(2, layer.weight.shape[1])).dtype


def test_a_bias_follows_autocast(team):
    assert set(team(bias_under_autocast)) == {torch.bfloat16}


# What does not fit: each process gets an error, and none waits for the others


def said_here(calls):
    said = []
    for call in calls:
        try:
            said.append(f"no error: {call()}")
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return said


def with_rank(calls):
    return said_here([lambda call=call: call(dist.get_rank()) for call in calls])


def test_what_differs_is_said_on_every_process(team):
    said = team(with_rank, [call for call, *_ in BAD])
    for rank, sentences in enumerate(said):
        for sentence, (_, words, *own) in zip(sentences, BAD, strict=True):
            assert (own[0] if own and rank == 1 else words) in sentence


def test_the_odd_one_is_named(team):
    said = team(with_rank, [lambda rank: collectives.copy(ones(2 + (rank == 0)))])
    odd, usual = ("rank 0", (3,)), ("rank 1", (2,))
    if team.size == 2:  # of two, either
        odd, usual = usual, odd
    words = f"copy: {odd[0]} has an input of shape {odd[1]}, but {usual[0]} {usual[1]}"
    assert said == [[words]] * team.size


def test_bad_input_is_named(team):
    for sentences in team(said_here, [call for call, _ in EVERYWHERE]):
        for sentence, (_, words) in zip(sentences, EVERYWHERE, strict=True):
            assert words in sentence


# torch.compile, and what goes over the wire


def all_of_them(x):
    x = collectives.copy(x, check=False)
    x = collectives.all_gather(
        collectives.reduce_scatter(x, check=False), loss="replicated", check=False
    )
    x = collectives.all_to_all(
        collectives.halo_exchange(x, 1, 0, check=False), 1, 0, check=False
    )
    return collectives.all_reduce(x**2, loss="summed", check=False)


def compiled_in_one_process():
    """The others run it as it is: it communicates in the same way."""
    x = random(4, 4, seed=dist.get_rank())
    call = all_of_them
    if dist.get_rank() == 0:
        # as "aot_eager", without importing Inductor
        backend = "aot_eager_default_partitioner"
        call = torch.compile(all_of_them, backend=backend, fullgraph=True)
    results = []
    for function in (all_of_them, call):
        output = function(x)
        results.append((output, *torch.autograd.grad(output.square().sum(), x)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("team", [2], indirect=True, scope="module")
def test_one_graph(team):
    team(compiled_in_one_process)


def bytes_here():
    """The bytes that five collectives of 100,000 numbers wrote to sockets."""
    x, counted = torch.ones(100_000), {}
    size = dist.get_world_size()
    for name, call in {
        "all_reduce": lambda: collectives.all_reduce(x, loss="replicated"),
        "all_gather": lambda: collectives.all_gather(x, loss="replicated"),
        "reduce_scatter": lambda: collectives.reduce_scatter(x),
        "all_to_all": lambda: collectives.all_to_all(x.view(size, -1), 0, 1),
        "halo_exchange": lambda: collectives.halo_exchange(x.view(100, 1000), 10, 0),
    }.items():
        call()
        dist.barrier()
        before = bytes_sent()
        call()
        dist.barrier()
        counted[name] = bytes_sent() - before
    return counted


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux counts what a process writes"
)
def test_bytes_are_those_of_a_ring(team):
    n, whole, rows = team.size, 400_000, 40_000
    for rank, counted in enumerate(team(bytes_here)):
        neighbours = (rank > 0) + (rank < n - 1)
        expected = {
            "all_reduce": 2 * (n - 1) / n * whole,
            "all_gather": (n - 1) * whole,
            "reduce_scatter": 2 * (n - 1) / n * whole,  # gloo's is an all-reduce
            "all_to_all": (n - 1) / n * whole,
            "halo_exchange": neighbours * rows,
        }
        # With headers and the check.
        assert counted == pytest.approx(expected, rel=0.03, abs=3000)


TOTALS = {
    "copied": lambda x: collectives.copy(collectives.all_reduce(x, loss="replicated")),
    "summed": lambda x: collectives.all_reduce(x, loss="summed"),
    "replicated": partial(collectives.all_reduce, loss="replicated"),
}


def normalized_features(
    x, inner, outer, total=lambda x: x, cut=lambda x: x, joined=lambda x: x
):
    """The gradients of an RMS norm between two layers; the features may be cut."""
    x, inner, outer = leaves = [t.detach().requires_grad_() for t in (x, inner, outer)]
    hidden = cut(x) @ inner.t()
    hidden = hidden / total(hidden.square().sum(1, keepdim=True)).sqrt()
    return torch.autograd.grad(joined(hidden @ outer.t()).exp().sum(), leaves)


def layers():
    return [
        random(*shape, seed=seed) for seed, shape in enumerate(((3, 5), (8, 5), (2, 8)))
    ]


def normalized_here(total):
    rank, size = dist.get_rank(), dist.get_world_size()
    x, inner, outer = layers()
    parts = inner.chunk(size)[rank], outer.chunk(size, 1)[rank]
    return normalized_features(
        x,
        *parts,
        TOTALS[total],
        collectives.copy,
        partial(collectives.all_reduce, loss="replicated"),
    )


def test_a_sum_that_each_process_uses_for_its_own_part(team):
    of_x, of_inner, of_outer = normalized_features(*layers())
    for total in TOTALS:
        found = team(normalized_here, total)
        inner, outer = (
            torch.cat([g[1] for g in found]),
            torch.cat([g[2] for g in found], 1),
        )
        right = [
            torch.allclose(*pair) for pair in ((found[0][0], of_x), (inner, of_inner))
        ]
        assert right == [total != "replicated"] * 2, total
        torch.testing.assert_close(outer, of_outer)
