"""Layers and networks cut by us and by DTensor, in 4 processes, against one."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F

from helpers.ops import collectives
from helpers.ops.involution import RedNet, dtensor, involution2d
from helpers.ops.involution.dtensor import BatchNorm2d, by_samples
from tests.common import TOLERANCE, random
from tests.processes.table import cubes

# Two are one of four: a mesh of 2 x 1, and sizes that divide.
pytestmark = pytest.mark.parametrize("team", [4], indirect=True, scope="module")


# Convolutions, batch norms and Functions of DTensors
OLD = torch.__version__.startswith(("2.10.", "2.11.", "2.12."))
needs_dtensor = pytest.mark.skipif(OLD, reason="DTensors of torch 2.13 or later")

# Linear layers, against nn.Linear


def layers_here(features, hidden, outputs, bias):
    """A column- and a row-parallel layer, and one that gathers: output, gradients, state."""
    torch.manual_seed(0)
    options = {"bias": bias, "dtype": torch.float64}
    net = nn.Sequential(
        collectives.ColumnParallelLinear(features, hidden, **options),
        nn.Tanh(),
        collectives.RowParallelLinear(hidden, outputs, **options),
        collectives.ColumnParallelLinear(outputs, hidden, gather_output=True, **options),
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
            gradients[name] = collectives.all_gather(parameter.grad, layer.cut[kind])
    doubled = {name: 2 * value for name, value in net.state_dict().items()}
    net.load_state_dict(doubled)
    same = all(torch.equal(doubled[name], value) for name, value in net.state_dict().items())
    bad = doubled | {"0.weight": doubled["0.weight"][:-1]}
    try:
        net.load_state_dict(bad)
    except RuntimeError as error:
        said = str(error)
    halves = {name: value / 2 for name, value in doubled.items()}
    return loss.detach(), x.grad, gradients, halves, same, said, str(net[2])


@pytest.mark.parametrize("features, hidden, outputs, bias", [(3, 8, 2, True), (5, 7, 5, False)])
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
    for given in team(layers_here, features, hidden, outputs, bias):
        of_loss, of_x, gradients, state, same, said, text = given
        torch.testing.assert_close(of_loss, loss.detach())
        torch.testing.assert_close(of_x, x.grad)
        torch.testing.assert_close(gradients, expected)
        torch.testing.assert_close(state, dict(net.state_dict()))
        assert same and f"must be that of the whole layer, {hidden} long in dimension 0" in said
        assert text == (
            f"RowParallelLinear(in_features={hidden}, out_features={outputs}, bias={bias},"
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
        expected = derivatives(x, weight, groups)
        for of_x, of_weight in zip(ways, [*ways[1:], ways[0]], strict=True):
            tensors = [
                distribute_tensor(tensor.detach(), mesh, way).requires_grad_()
                for tensor, way in ((x, of_x), (weight, of_weight))
            ]
            given = derivatives(*tensors, groups)
            for one, other in zip(given, expected, strict=True):
                assert one.shape == other.shape
                worst = max(worst, (one.full_tensor() - other).abs().max().item())
    elsewhere = distribute_tensor(weight.detach(), init_device_mesh("cpu", (size,)), [Shard(0)])
    said = []
    for other in (weight, elsewhere):
        try:
            involution2d(tensors[0], other, padding=1)
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return worst, said


def derivatives(x, weight, groups):
    """Of the output and, with one group, of its gradients: one of them is a sum on each process."""
    output = involution2d(x, weight, padding=1)
    first = torch.autograd.grad((output**3).sum(), (x, weight), create_graph=groups == 1)
    if groups > 1:
        return output, *first
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
        assert said[1].startswith("input and weight must be on one mesh, got DeviceMesh(")


def without_gathering():
    """Where the three results lie, and which collectives were called, when nothing need move."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = []
    for groups, way, of_weight in (
        (2, Shard(0), Shard(0)),
        (2, Shard(0), Replicate()),
        (4, Shard(1), Shard(1)),
        (1, Shard(1), Replicate()),
    ):
        x, weight = random(4, 4, 3, 3), random(4, groups, 3, 3, 3, 3, seed=1)
        tensors = [
            distribute_tensor(tensor.detach(), mesh, [w]).requires_grad_()
            for tensor, w in ((x, way), (weight, of_weight))
        ]
        with CommDebugMode() as counted:
            output = involution2d(*tensors, padding=1)
            gradients = torch.autograd.grad(output, tensors, torch.ones_like(output))
        found.append(
            [str(t.placements) for t in (output, *gradients)] + [counted.get_total_counts()]
        )
    return found


@needs_dtensor
def test_involution_of_dtensors_moves_nothing(team):
    cut = "(Shard(dim={}),)"
    for found in team(without_gathering):
        samples, one_cut, groups, channels = found
        assert samples == one_cut == [cut.format(0)] * 3 + [0]
        assert groups == [cut.format(1)] * 3 + [0]
        assert channels == [cut.format(1)] * 2 + ["(Partial(sum),)", 0]


class TwoStages(RedNet):
    """The others have the same operators, on more channels."""

    BLOCKS = {"small": (1, 1, 1, 1)}

    def __init__(self):
        super().__init__("small", 3)
        self.layer3, self.layer4, self.fc = nn.Identity(), nn.Identity(), nn.Linear(512, 3)


def trained(mesh=None):
    """Losses of two steps, the state, and what the network then says of its images."""
    torch.manual_seed(0)
    net, x, target = TwoStages().double(), random(8, 3, 17, 16).detach(), torch.arange(8) % 3
    if mesh:
        net = distribute_module(net, mesh, by_samples)
        x, target = (distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in (x, target))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(F.cross_entropy(net(x), target))
        losses[-1].backward()
        optimizer.step()
    with torch.no_grad():
        found = {"first loss": losses[0], "second loss": losses[1], "answer": net.eval()(x)}
    return {name: full(tensor).detach() for name, tensor in (found | net.state_dict()).items()}


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def trained_here():
    """What two of them find, so that their group is not that of all."""
    groups = init_device_mesh("cpu", (2, 2), mesh_dim_names=("", "samples"))
    return trained(groups["samples"]) if dist.get_rank() < 2 else None


@needs_dtensor
def test_rednet_trains(team):
    expected = trained()
    for given in team(trained_here)[:2]:
        torch.testing.assert_close(given, expected)


def normalized(mesh, way, samples, dtype, **options):
    """Output, gradients and buffers of a batch norm, after it has seen three batches."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, **options).to(torch.promote_types(dtype, torch.float32))
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 1, 2)
    if mesh:
        distribute_module(norm, mesh, by_samples)
    found = []
    for seed in range(3):
        x = random(samples, 3, 4, 2, seed=seed).detach().to(dtype)
        x = (distribute_tensor(x, mesh, way) if mesh else x).requires_grad_()
        output = norm.train(seed < 2)(x)
        gradients = torch.autograd.grad(output, [x, *norm.parameters()], x.detach().flip(0, 2))
        found += [output.detach(), *gradients]
    return [full(tensor) for tensor in found], [full(tensor) for tensor in norm.buffers()]


def normalized_here():
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    samples, both = [Shard(0), Replicate()], [Shard(0), Shard(0)]
    for way, size, dtype, options in (
        (samples, 5, torch.float64, {}),
        (both, 3, torch.float64, {"momentum": None}),  # one has no samples
        ([Shard(1), Shard(0)], 4, torch.float64, {"affine": False}),
        (both, 8, torch.float64, {"track_running_stats": False}),
        (both, 8, torch.bfloat16, {}),
    ):
        expected = normalized(None, None, size, dtype, **options)
        given = normalized(mesh, way, size, dtype, **options)
        torch.testing.assert_close(given[0], expected[0], **TOLERANCE[dtype])
        torch.testing.assert_close(given[1], expected[1])
    norm, one = BatchNorm2d(3), torch.ones(1, 3, 1, 1)
    try:
        norm(distribute_tensor(one, mesh, samples))
    except ValueError as error:
        return str(error), type(norm(torch.ones(2, 3, 1, 1)))


@needs_dtensor
def test_batch_norm_over_all_samples(team):
    for said, kind in team(normalized_here):
        assert said == "input must have 2 or more values a channel, got (1, 3, 1, 1)"
        assert kind is torch.Tensor
