"""Networks of this course's operations under DDP, against one process."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.ops.fixed_point import fixed_point
from helpers.ops.involution import Involution2d
from helpers.ops.recompute import ReversibleSequential, recompute
from tests.common import random

pytestmark = pytest.mark.parametrize("team", [2], indirect=True, scope="module")


def part():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(part() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + recompute(block, x)
        return x


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.pairs = ReversibleSequential([(part(), part()) for _ in range(3)])

    def forward(self, x):
        return torch.cat(self.pairs(*x.chunk(2, 1)), 1)


class Equilibrium(nn.Module):
    """z = tanh(W z / 8 + V x), where f closes over W and holds V in a module."""

    def __init__(self):
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 4)

    def forward(self, x):
        f = lambda z, x: torch.tanh(z @ self.weight / 8 + self.inner(x))  # noqa: E731
        return fixed_point(f, torch.zeros_like(x), x, tol=1e-14)


def equilibria():
    return nn.Sequential(nn.Linear(4, 4), Equilibrium(), Equilibrium())


def involution():
    layers = nn.Conv2d(1, 8, 1), Involution2d(8, 3, group_channels=4), nn.Flatten(1)
    return nn.Sequential(*layers, nn.Linear(8 * 4 * 4, 3))


KINDS = {  # the network, and the shape of its data
    "recompute": (Recomputed, (8, 4)),
    "fixed point": (equilibria, (8, 4)),
    "reversible": (Halves, (8, 8)),
    "involution": (involution, (8, 1, 4, 4)),
}


def model(kind):
    torch.manual_seed(0)
    # A batch norm that looks at its own samples only would differ.
    return KINDS[kind][0]().double().eval()


def data(kind):
    return random(*KINDS[kind][1]).detach()


def gradients(net, x):
    net(x).exp().mean().backward()
    return [parameter.grad for parameter in net.parameters()]


def parallel_here(kind):
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mine = data(kind).chunk(size)[rank]
    return gradients(DistributedDataParallel(model(kind)), mine)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_of_one_process(team, kind):
    expected = gradients(model(kind), data(kind))
    for found in team(parallel_here, kind):
        torch.testing.assert_close(found, expected)
