"""What chapter 14 says and no cell of it shows: where gloo, DDP or a compiler goes
wrong.
"""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function, grad
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from helpers.ops.collectives import ColumnParallelLinear
from tests.needs import needs_compiler

two_processes = pytest.mark.parametrize("team", [2], indirect=True, scope="module")


def said_by(f):
    """The error that f() raises, or an empty string."""
    try:
        f()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def net_and_part():
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)),
        torch.randn(4, 2),
    )
    return net, x, x.chunk(dist.get_world_size())[dist.get_rank()]


def penalised(static_graph):
    """Whether the gradients of a penalty, added to a loss, are averaged."""
    net, _, mine = net_and_part()
    wrapped = DistributedDataParallel(net, static_graph=static_graph)
    alone, x, _ = net_and_part()
    for f, part in (wrapped, mine), (alone, x):
        part.requires_grad_()
        output = f(part)
        (slope,) = grad(output.sum(), part, create_graph=True)
        (slope.square().sum(1).mean() + output.mean()).backward()
    return torch.allclose(net[0].weight.grad, alone[0].weight.grad)


@two_processes
def test_a_penalty_is_not_averaged_with_a_static_graph(team):
    assert team(penalised, False) == [True, True]
    assert team(penalised, True) == [False, False]


def penalty_alone_then_forward():
    net, _, mine = net_and_part()
    wrapped = DistributedDataParallel(net, find_unused_parameters=True)
    mine.requires_grad_()
    (slope,) = grad(wrapped(mine).sum(), mine, create_graph=True)
    slope.square().sum().backward()
    return "finished reduction in the prior iteration" in said_by(lambda: wrapped(mine))


@two_processes
def test_after_a_penalty_alone_the_next_forward_pass_raises(team):
    assert team(penalty_alone_then_forward) == [True, True]


def backward_within_backward(find_unused_parameters, twice=False):
    net, _, mine = net_and_part()
    within = Within(net[1:])
    within = nn.Sequential(net[0], within, nn.Linear(1, 3), *[within] * twice)
    wrapped = DistributedDataParallel(
        within, find_unused_parameters=find_unused_parameters
    )
    said = said_by(wrapped(mine).sum().backward)
    return "mark a variable ready only once" in said


class Within(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        # A Function, with such a backward.
        return checkpoint(self.inner, x, use_reentrant=True)


@two_processes
def test_a_backward_within_backward_and_unused_parameters(team):
    assert team(backward_within_backward, False) == [False, False]
    assert team(backward_within_backward, True) == [True, True]
    assert team(backward_within_backward, False, True) == [True, True]


def sum_of_a_column():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    dist.all_reduce(x[:, 0])
    return x.tolist()


@two_processes
def test_the_sum_of_a_tensor_with_gaps(team):
    # 2, 2 and 6, 4 would be right.
    assert team(sum_of_a_column) == [[[2, 4], [3, 4]]] * 2


def all_but(missing):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.set_debug_level(dist.DebugLevel.OFF)
    if dist.get_rank() == missing:
        return ""
    return said_by(lambda: dist.all_reduce(torch.ones(1), group=group))


@pytest.mark.parametrize("team", [3], indirect=True, scope="module")
def test_detail_names_the_missing_rank_unless_it_is_rank_0(team):
    said, of_rank_0 = team(all_but, 1), team(all_but, 0)
    assert "Ranks 1 failed to pass" in said[0]
    rank_2 = [message.split("\n")[0] for message in (said[2], of_rank_0[2])]
    assert rank_2[0] == rank_2[1] and "check rank 0 logs" in rank_2[0]
    assert "Ranks 0" not in of_rank_0[1] and of_rank_0[0] == ""


class Look(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.size = table.shape
        return table[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(index[None], grad_output, ctx.size), None


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 2))

    def forward(self, index):
        return Look.apply(self.table, index)


def sparse_gradient(wrap):
    loss = wrap(Table())(torch.tensor([dist.get_rank()])).sum()
    return "SparseTensorImpl" in said_by(loss.backward)


def ddp_in_a_variable(module):
    ddp_in_a_variable.wrapped = DistributedDataParallel(module)
    return ddp_in_a_variable.wrapped


@two_processes
def test_a_sparse_gradient_under_ddp(team):
    assert team(sparse_gradient, lambda module: module) == [False, False]
    assert team(sparse_gradient, ddp_in_a_variable) == [True, True]


def moments():
    layer = ColumnParallelLinear(2, 4)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    first, _ = optimizer.state_dict()["state"].values()
    return first["exp_avg"].shape, layer.state_dict()["weight"].shape


@two_processes
def test_the_state_of_an_optimizer_is_of_the_parts(team):
    assert team(moments) == [((2, 2), (4, 2))] * 2


class Keep(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Turn(Keep):
    @staticmethod
    def backward(ctx, grad_output):
        return -grad_output


def together(x, in_one_graph):
    y = 2 * x
    kept, turned = Keep.apply(y), Turn.apply(y)
    if not in_one_graph:
        torch._dynamo.graph_break()
    return kept + 10 * turned


@needs_compiler
@pytest.mark.parametrize("in_one_graph", [True, False])
def test_two_functions_with_one_forward(in_one_graph):
    x = torch.ones(1, requires_grad=True)
    (slope,) = grad(torch.compile(together, backend="inductor")(x, in_one_graph), x)
    assert (slope.item() == 2 - 20) == in_one_graph


def compiled_after_exp():
    def f(x):
        y = torch.exp(2 * x)
        dist.all_reduce(y)
        return y

    y = torch.compile(f, backend="eager")(torch.tensor(1.0, requires_grad=True))
    return "modified by an inplace operation" in said_by(y.backward)


@two_processes
def test_a_compiled_all_reduce_of_exp_raises(team):
    assert team(compiled_after_exp) == [True, True]


def cut_a_scalar():
    net = nn.Linear(1, 1)
    net.scale = nn.Parameter(torch.tensor(1.0))
    return "scalar parameters" in said_by(lambda: fully_shard(net))


@two_processes
def test_fsdp2_takes_no_scalar_parameter(team):
    assert team(cut_a_scalar) == [True, True]
