"""Layers and networks cut by us and by DTensor, in 4 processes, against one."""

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


def layers_here(features, hidden, outputs, bias):
    """Column- and row-parallel layers, and a gathering one: output, gradients, state."""
    torch.manual_seed(0)
    options = {"bias": bias, "dtype": torch.float64}
    net = nn.Sequential(
        collectives.ColumnParallelLinear(features, hidden, **options),
        nn.Tanh(),
        collectives.RowParallelLinear(hidden, outputs, **options),
        collectives.ColumnParallelLinear(
            outputs, hidden, gather_output=True, **options
        ),
    )
    for parameter in net.parameters():  # no part holds on to the memory of the whole
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
    x = random(2, 3, features)
    loss = cubes(net(x))
    loss.backward()
    gradients = dict(net.named_parameters())
    for name, parameter in gradients.items():
        layer, kind = net[int(name[0])], name[2:]
        gradients[name] = parameter.grad
        if kind in layer.cut:
            gradients[name] = collectives.all_gather(
                parameter.grad, layer.cut[kind], loss="replicated"
            )
    doubled = {name: 2 * value for name, value in net.state_dict().items()}
    net.load_state_dict(doubled)
    bad = doubled | {"0.weight": doubled["0.weight"][:-1]}
    try:
        net.load_state_dict(bad)
    except RuntimeError as error:
        said = str(error)
    return loss.detach(), x.grad, gradients, net.state_dict(), said, str(net[2])


@pytest.mark.parametrize(
    "features, hidden, outputs, bias", [(3, 8, 2, True), (5, 7, 5, False)]
)
def test_linear_layers(team, features, hidden, outputs, bias):
    torch.manual_seed(0)
    options = {"bias": bias, "dtype": torch.float64}
    net = nn.Sequential(
        nn.Linear(features, hidden, **options),
        nn.Tanh(),
        nn.Linear(hidden, outputs, **options),
        nn.Linear(outputs, hidden, **options),
    )
    x = random(2, 3, features)
    loss = cubes(net(x))
    loss.backward()
    expected = {name: parameter.grad for name, parameter in net.named_parameters()}
    doubled = {name: 2 * value for name, value in net.state_dict().items()}
    for given in team(layers_here, features, hidden, outputs, bias):
        of_loss, of_x, gradients, twice, said, text = given
        torch.testing.assert_close(of_loss, loss.detach())
        torch.testing.assert_close(of_x, x.grad)
        torch.testing.assert_close(gradients, expected)
        torch.testing.assert_close(twice, doubled)
        assert f"must be that of the whole layer, {hidden} long in dimension 0" in said
        assert text == (
            f"RowParallelLinear(in_features={hidden}, out_features={outputs}, "
            f"bias={bias},"
            f" cut into {collectives.shares(hidden, team.size)})"
        )


# Involution of DTensors


def involution_of_dtensors():
    """The largest differences, for samples and channels cut in many ways."""
    size, worst = dist.get_world_size(), 0
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
            given = derivatives(*tensors)
            for one, other in zip(given, expected, strict=True):
                assert one.shape == other.shape
                worst = max(worst, (one.full_tensor() - other).abs().max().item())
    elsewhere = distribute_tensor(
        weight.detach(), init_device_mesh("cpu", (size,)), [Shard(0)]
    )
    said = []
    for other in (weight, elsewhere):
        try:
            involution2d(tensors[0], other, padding=1)
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return worst, said


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
    for worst, said in team(involution_of_dtensors):
        assert worst < 1e-9
        assert said[0] == "input and weight must both be DTensors, or neither of them"
        assert said[1].startswith(
            "input and weight must be on one mesh, got DeviceMesh("
        )
