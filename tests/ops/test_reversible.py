"""`ReversibleSequential`: the numbers of the plain model, at a memory that does not grow."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import grad

from helpers.doctor import examine
from helpers.lessons.memory import Alive, Kept
from helpers.ops.recompute import ReversibleSequential
from tests.common import Does, assert_raises, random


def part(*after, size=4):
    return nn.Sequential(nn.Linear(size, 6), nn.Tanh(), *after, nn.Linear(6, size))


def reversible(depth=3, *after, dtype=torch.float64):
    torch.manual_seed(0)
    blocks = [(part(*copy.deepcopy(after)), part(*copy.deepcopy(after))) for _ in range(depth)]
    return ReversibleSequential(blocks).to(dtype)


def ours(model, *args, **kwargs):
    return model(*args, **kwargs)


def plain(model, x1, x2, *args, **kwargs):
    for f, g in model.blocks:
        x1 = x1 + f(x2, *args, **kwargs)
        x2 = x2 + g(x1, *args, **kwargs)
    return x1, x2


def assert_same_gradients(model, x, loss, *leaves):
    given, right = (
        grad(loss(*how(model, *x)), (*x, *leaves), allow_unused=True) for how in (ours, plain)
    )
    torch.testing.assert_close(given, right)


def inputs(dtype=torch.float64):
    return random(8, 4, dtype=dtype), random(8, 4, dtype=dtype, seed=1)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.bfloat16, 0.1)])
def test_the_numbers_of_the_plain_model(dtype, tolerance):
    exact, near = [], []  # what a step of training computes, and what the reconstruction changes
    for how in (ours, plain):
        model = reversible(3, nn.Dropout(0.5), nn.BatchNorm1d(6), dtype=dtype)
        x1, x2 = inputs(dtype)
        y1, y2 = how(model, x1, x2)
        between, loss = torch.rand(2), (y1.square() + y2.sin()).sum()
        near.append(grad(loss, [x1, x2, *model.parameters()]))
        exact.append([y1, y2, between, torch.rand(2), *model.buffers()])
    torch.testing.assert_close(*exact, rtol=0, atol=0)
    for one, other in zip(*near, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() <= tolerance * other.norm()


def test_derivatives_of_every_order():
    model, x = reversible(2), inputs()
    assert examine(model, *x).ok
    shared = ReversibleSequential([tuple(model.blocks[0])[::-1], tuple(model.blocks[0])])
    for both in (model, shared):
        leaves = [*x, *both.parameters()]
        seconds = []
        for how in (ours, plain):
            y1, y2 = how(both, *x)
            slopes = grad((y1.square() * y2).sum(), leaves, create_graph=True)
            seconds.append(grad(sum(slope.square().sum() for slope in slopes), leaves))
        torch.testing.assert_close(*seconds, rtol=1e-9, atol=1e-9)


def test_parts_without_parameters_frozen_and_without_a_gradient():
    class Constant(nn.Module):
        def forward(self, x):
            return torch.ones_like(x)

    class Spare(nn.Linear):
        def __init__(self):
            super().__init__(4, 4, dtype=torch.float64)
            self.spare = nn.Parameter(torch.ones(2))

    frozen = nn.Linear(4, 4, dtype=torch.float64)
    frozen.weight.requires_grad_(False)
    model = ReversibleSequential([(nn.Tanh(), frozen), (Constant(), Spare()), (nn.Identity(),) * 2])
    leaves = frozen.bias, *model.blocks[1][1].parameters()
    assert_same_gradients(model, inputs(), lambda y1, y2: y2.exp().sum(), *leaves)
    x1, x2 = inputs()
    assert model(x1.detach(), x2.detach())[0].requires_grad  # for the sake of the parameters


def test_inference_mode_and_no_grad():
    model, (x1, x2) = reversible(2), inputs()
    right = plain(model, x1, x2)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = model(x1, x2)
            assert y[0].equal(right[0]) and y[1].equal(right[1])
            model(*y)
    with torch.no_grad(), pytest.raises(RuntimeError, match="ReLU changes its input in place"):
        ReversibleSequential([(nn.ReLU(inplace=True), nn.Tanh())])(x1, x2.clone())


class Scaled(nn.Module):
    """Uses a leaf that is no parameter, and further arguments."""

    def __init__(self, leaf):
        super().__init__()
        self.leaf = (leaf,)  # out of sight of nn.Module

    def forward(self, x, shift, *, mask):
        return (x * self.leaf[0] + shift).tanh() * mask


def test_gradients_to_whatever_the_parts_use():
    leaf, shift = random(4, seed=2), random(8, 4, seed=3)
    model = ReversibleSequential([(Scaled(leaf), Scaled(2 * leaf)) for _ in range(3)])
    x1, x2 = inputs()
    mask = random(8, 4, seed=4)
    results = []
    for how in (ours, plain):
        y1, y2 = how(model, x1, x2, shift, mask=mask)
        results.append(grad((y1 * y2.exp()).sum(), (x1, x2, leaf, shift, mask), create_graph=True))
        results[-1] += grad(results[-1][2].square().sum(), (leaf, shift), retain_graph=True)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    back = model.inverse(*model(x1, x2, shift, mask=mask), shift, mask=mask)
    torch.testing.assert_close(back, (x1, x2))


@pytest.mark.parametrize("dim", [1, -1])
def test_one_tensor_is_split(dim):
    pair = reversible(2)
    model = ReversibleSequential(list(pair.blocks), dim=dim)
    x = random(8, 8)
    y = model(x)
    y1, y2 = plain(model, *x.chunk(2, dim))
    assert y.equal(torch.cat((y1, y2), dim))
    ours, right = (grad(out.exp().sum(), x)[0] for out in (y, torch.cat((y1, y2), dim)))
    torch.testing.assert_close(ours, right)
    torch.testing.assert_close(model.inverse(y), x)
    assert_raises(TypeError, "x must be a torch.Tensor, got float", model, 1.0)
    bad = ReversibleSequential(list(pair.blocks), dim=5)
    assert_raises(ValueError, "x must have the dimension dim=5, got shape (8, 8)", bad, x)
    assert_raises(TypeError, "two tensors are needed, or one and dim=..., got 1", pair, x)


def test_halves_of_different_shapes_and_a_loss_of_one_of_them():
    """Then the last f or g has no ticket, and is called again all the same."""
    blocks = [(nn.Linear(4, 3), nn.Linear(3, 4)) for _ in range(3)]
    model, x = ReversibleSequential(blocks).double(), (random(8, 3), random(8, 4))
    for used in ([0], [1], [0, 1]):
        loss = lambda *y, used=used: sum(y[i].exp().sum() for i in used)  # noqa: E731
        assert_same_gradients(model, x, loss, *model.parameters())


def test_a_part_that_differentiates_is_named():
    part = Does(lambda x: grad(x.sin().sum(), x, create_graph=True)[0])
    with pytest.raises(RuntimeError, match="f and g must not differentiate"):
        ReversibleSequential([(part, nn.Tanh())])(*inputs())


def test_memory_does_not_grow_with_depth():
    figures = {ours: [], plain: []}
    for depth in (2, 12):
        for how, seen in figures.items():
            model = reversible(depth, nn.Dropout(0.5))
            model.requires_grad_(False)  # whose gradients grow with depth, of course
            with Alive() as alive:
                with Kept(but=model.parameters()) as kept:
                    y1, y2 = how(model, *inputs())
                (y1 + y2).sum().backward()
            seen.append((kept.total, alive.peak))
    assert figures[ours][0][0] == figures[ours][1][0] == 2 * 8 * 4 * 8
    assert figures[ours][0][1] == figures[ours][1][1]
    assert figures[plain][1][1] > 4 * figures[plain][0][1]


def test_a_changed_output_is_named():
    y1, y2 = reversible(1)(*inputs())
    loss = (y1 * y2).sum()
    with torch.no_grad():
        y1.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "f, g, kind, words",
    [
        (nn.Identity(), nn.ReLU(inplace=True), RuntimeError, "ReLU changes its input in place"),
        (nn.Identity(), Does(lambda x: [x]), TypeError, "g of block 1 must return a torch.Te"),
        (Does(lambda x: x[0]), nn.Tanh(), ValueError, "f of block 1 must return the shape of "
         "x1, (8, 4), got (4,)"),
        (nn.Tanh(), Does(lambda x: x.double()), TypeError, "g of block 1 returns torch.float64, "
         "which would change x2 of torch.float32"),
    ],
)  # fmt: skip
def test_what_a_part_may_not_do_is_named(f, g, kind, words):
    model = ReversibleSequential([(nn.Identity(), nn.Identity()), (f, g)])
    assert_raises(kind, words, model, *inputs(torch.float32))


@pytest.mark.parametrize(
    "blocks, kind, words",
    [
        ([], ValueError, "at least one pair of modules, got none"),
        (3, TypeError, "blocks must be pairs of modules in a list, got 3"),
        ([(nn.Tanh(),) * 2, nn.Tanh()], TypeError, "block 1 must be a pair of modules, got T"),
        ([(nn.Tanh(),) * 3], TypeError, "block 0 must be a pair"),
        ([(nn.Tanh(), torch.tanh)], TypeError, "block 0 must be a pair"),
    ],
)
def test_bad_blocks_are_named(blocks, kind, words):
    assert_raises(kind, words, ReversibleSequential, blocks)


def test_bad_inputs_are_named():
    model, x = reversible(1), random(8, 4)
    for bad, kind, words in [
        ((1.0, x), TypeError, "x1 must be a torch.Tensor, got float"),
        ((x, x.long()), TypeError, "x2 must be floating-point, got torch.int64"),
        ((x, x.float()), TypeError, "must have one dtype, got torch.float64 and torch.float32"),
        ((x, x.to("meta")), ValueError, "must have one device, got cpu and meta"),
    ]:
        assert_raises(kind, words, model, *bad)
        assert_raises(kind, words.replace("x1", "y1").replace("x2", "y2"), model.inverse, *bad)


def test_compiled_it_stays_as_it_is():
    compiled = []

    def backend(graph, inputs):
        compiled.extend(node.target.__name__ for node in graph.graph.nodes if callable(node.target))
        return graph.forward

    def twice(model, x1, x2):
        return [2 * y for y in model(x1, x2)]

    model, x = reversible(2), inputs()
    torch.compiler.reset()
    for_one = torch.compile(twice, backend=backend)
    torch.testing.assert_close(*(grad(sum(how(model, *x)).sum(), x) for how in (for_one, twice)))
    assert compiled == ["mul", "mul"]
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="backward calls the parts again"):
        torch.compile(twice, backend=backend, fullgraph=True)(model, *x)
