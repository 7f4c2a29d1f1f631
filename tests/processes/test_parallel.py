"""Layers and networks cut by us and by DTensor, in 4 processes, against one."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import (
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)

from helpers.ops import collectives
from helpers.ops.involution import dtensor, involution2d
from tests.common import random
from tests.processes.table import cubes

# Two are one of four: a mesh of 2 x 1, and sizes that divide.
pytestmark = pytest.mark.parametrize("team", [4], indirect=True, scope="module")


# Convolutions, batch norms and Functions of DTensors
OLD = torch.__version__.startswith(("2.10.", "2.11.", "2.12."))
needs_dtensor = pytest.mark.skipif(OLD, reason="DTensors of torch 2.13 or later")

# Linear layers, against nn.Linear


def trained(kinds, features, hidden, outputs, bias):
    """A network with its gradients, its input, its loss, and its state, doubled."""
    torch.manual_seed(0)
    sizes = (features, hidden), (hidden, outputs), (outputs, hidden)
    first, *others = (
        kind(*size, bias=bias, dtype=torch.float64)
        for kind, size in zip(kinds, sizes, strict=True)
    )
    net = nn.Sequential(first, nn.Tanh(), *others)
    x = random(2, 3, features)
    loss = cubes(net(x))
    loss.backward()
    doubled = {name: 2 * value for name, value in net.state_dict().items()}
    return net, x, loss.detach(), doubled


def layers_here(*options):
    """Column- and row-parallel layers, and a gathering one: output, gradients, state."""
    column, row = collectives.ColumnParallelLinear, collectives.RowParallelLinear
    kinds = column, row, partial(column, gather_output=True)
    net, x, loss, doubled = trained(kinds, *options)
    for parameter in net.parameters():  # no part holds on to the memory of the whole
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
    gradients = dict(net.named_parameters())
    for name, parameter in gradients.items():
        layer, kind = net[int(name[0])], name[2:]
        gradients[name] = parameter.grad
        if kind in layer.cut:
            gradients[name] = collectives.all_gather(
                parameter.grad, layer.cut[kind], loss="replicated"
            )
    net.load_state_dict(doubled)
    bad = doubled | {"0.weight": doubled["0.weight"][:-1]}
    try:
        net.load_state_dict(bad)
    except RuntimeError as error:
        said = str(error)
    return loss, x.grad, gradients, net.state_dict(), said, str(net[2])


@pytest.mark.parametrize(
    "features, hidden, outputs, bias", [(3, 8, 2, True), (5, 7, 5, False)]
)
def test_linear_layers(team, features, hidden, outputs, bias):
    options = features, hidden, outputs, bias
    net, x, loss, doubled = trained([nn.Linear] * 3, *options)
    expected = {name: parameter.grad for name, parameter in net.named_parameters()}
    for *given, said, text in team(layers_here, *options):
        torch.testing.assert_close(given, [loss, x.grad, expected, doubled])
        assert f"must be that of the whole layer, {hidden} long in dimension 0" in said
        assert text == (
            f"RowParallelLinear(in_features={hidden}, out_features={outputs}, "
            f"bias={bias},"
            f" cut into {collectives.shares(hidden, team.size)})"
        )


# Involution of DTensors


def involution_of_dtensors():
    """As of the whole, for samples and channels cut in many ways; and what is refused."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2))
    ways = (Shard(0), Shard(0)), (Shard(1), Replicate()), (Shard(2), Shard(1))
    for groups in (1, 2, 3):
        x, weight = random(5, 6, 2, 2), random(5, groups, 3, 3, 2, 2, seed=1)
        expected = derivatives(x, weight)
        for of_x, of_weight in zip(ways, [*ways[1:], ways[0]], strict=True):
            tensors = [
                distribute_tensor(tensor.detach(), mesh, way).requires_grad_()
                for tensor, way in ((x, of_x), (weight, of_weight))
            ]
            given = tuple(one.full_tensor() for one in derivatives(*tensors))
            torch.testing.assert_close(given, expected, rtol=0, atol=1e-9)
    elsewhere = distribute_tensor(
        weight.detach(), init_device_mesh("cpu", (size,)), [Shard(0)]
    )
    said = []
    for other in (weight, elsewhere):
        try:
            involution2d(tensors[0], other, padding=1)
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return said


def derivatives(x, weight):
    output = involution2d(x, weight, padding=1)
    first = torch.autograd.grad((output**3).sum(), (x, weight), create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, weight))
    return output, *first, *second


def test_an_older_torch_is_named(team, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.raises(RuntimeError, match="needs torch 2.13 or later, this is 2.12.1"):
        dtensor._on_parts("forward", None, None, (), (None, None))


@needs_dtensor
def test_involution_of_dtensors(team):
    for said in team(involution_of_dtensors):
        assert said[0] == "input and weight must both be DTensors, or neither of them"
        assert said[1].startswith(
            "input and weight must be on one mesh, got DeviceMesh("
        )
