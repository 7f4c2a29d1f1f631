"""`recompute` and `ReversibleSequential`: a plain call's numbers, for less memory."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import grad, gradcheck, gradgradcheck

from helpers.doctor import examine
from helpers.lessons.memory import Alive, Kept
from helpers.ops.fixed_point import fixed_point
from helpers.ops.recompute import ReversibleSequential, recompute
from tests.common import FLOATS, Does, random


def plain(fn, *inputs, **kwargs):
    return fn(*inputs, **kwargs)


def reversible(module, x):
    """As y1 = 0 + f(x2) and y2 = x2 + 0, all numbers are those of f to the last bit."""
    blocks = [(module, Does(torch.zeros_like))]
    return ReversibleSequential(blocks)(torch.zeros_like(x), x)[0]


each_way = pytest.mark.parametrize("again", [recompute, reversible])


# The numbers


def training_layers(dtype):
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.BatchNorm1d(16),
        nn.Linear(16, 6),
    ).to(dtype)


@each_way
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_step_of_training_to_the_last_bit(again, dtype):
    results = []
    for how in (plain, again):
        torch.manual_seed(0)
        module, x = training_layers(dtype), random(8, 6, dtype=dtype)
        y = how(module, x)
        drawn_before = torch.rand(2)
        slopes = grad(y.square().sum(), (x, *module.parameters()))
        drawn_after = torch.rand(2)
        results.append((y, slopes, drawn_before, drawn_after, [*module.buffers()]))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_nested_inputs_and_outputs():
    def nested(inputs, *, options):
        first, (second, number) = inputs["pair"]
        return {"pair": [first.exp() * second, number * second.sin()]}, options

    a, b, options, results = random(3), random(3, seed=1), object(), []
    for how in (recompute, plain):
        found, given_back = how(nested, {"pair": [a, (b, 2.0)]}, options=options)
        assert given_back is options
        first, second = found["pair"]
        results.append(grad((first * second).sum(), (a, b)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_derivatives_of_a_function_that_closes_over_a_weight():
    weight = random(4, seed=1)

    def inner(t, w):
        return (t.sin() * w).exp()

    def outer(x):
        return recompute(inner, 2 * x, w=weight).tanh().cumsum(0)

    def again(x):
        return recompute(outer, x)

    x = random(4)
    assert gradcheck(again, x) and gradgradcheck(again, x)
    assert examine(again, x).ok
    torch.testing.assert_close(
        grad(again(x).sum(), weight), grad(outer(x).sum(), weight), rtol=0, atol=0
    )


def linear():
    return nn.Linear(6, 6).double()


class Around(nn.Module):
    """A module of a linear layer and what is made of it."""

    def __init__(self, call):
        super().__init__()
        self.layer, self.call = linear(), call

    def forward(self, x):
        return self.call(self.layer, x)


def solved(layer, x):
    def step(z, x):
        return 0.3 * (z + x).tanh()

    return fixed_point(step, torch.zeros_like(x), layer(x), tol=1e-14)


def encoder():
    return nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).double()


modules = {
    "layers": lambda: training_layers(torch.float64),
    "attention": encoder,
    "in place": lambda: Around(lambda layer, x: nn.functional.relu_(layer(x)) * x),
    "fixed point": lambda: Around(solved),
    "recomputed": lambda: Around(recompute),
}


@each_way
@pytest.mark.parametrize("kind", modules)
def test_first_and_second_derivatives_of_a_module(again, kind):
    results = []
    for how in (again, plain):
        torch.manual_seed(0)
        module, x = modules[kind](), random(4, 6)
        leaves = [x, *module.parameters()]
        y = how(module, x)
        slopes = grad(y.square().sum(), leaves, create_graph=True)
        penalty = sum(slope.square().sum() for slope in slopes)
        seconds = grad(penalty, leaves, materialize_grads=True)
        results.append([y, *slopes, *seconds, *module.buffers()])
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


def test_a_generator_among_the_inputs():
    def dropped(x, generator):
        return x * (torch.rand(1000, generator=generator) < 0.5)

    x, generator = random(1000), torch.Generator().manual_seed(0)
    y = recompute(dropped, x, generator)
    state = generator.get_state()
    assert grad(y.sum(), x)[0].equal((y != 0).double())
    assert generator.get_state().equal(state)


@each_way
def test_the_second_run_is_under_the_autocast_of_the_first(again):
    seen = []

    def notes(x):
        state = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        seen.append((*state, torch.is_autocast_cache_enabled()))
        return x.sin()

    x = random(3, dtype=torch.float32)
    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        y = again(Does(notes), x)
    with torch.autocast("cpu", torch.bfloat16):
        y.sum().backward()
    assert seen == [(True, torch.float16, False)] * 2


def test_compiled_it_is_checkpoint_and_reversible_breaks_the_graph():
    layers, x = nn.Sequential(linear(), nn.Tanh()), random(4, 6)
    right = grad(layers(x).sum(), x)
    for again, in_one_graph in ((recompute, True), (reversible, False)):
        torch.compiler.reset()
        compiled = torch.compile(
            lambda x, again=again: again(layers, x),
            backend="eager",
            fullgraph=in_one_graph,
        )
        torch.testing.assert_close(grad(compiled(x).sum(), x), right)


# Memory


def chain(x):
    for _ in range(10):
        x = x.sin()
    return x


def test_only_the_input_is_kept_and_each_tensor_is_freed_when_it_was_used():
    x = torch.ones(1000, requires_grad=True)
    with Kept() as kept:
        y = recompute(chain, x)
    assert kept.total == 4000
    with Alive() as alive:
        y.sum().backward()
    assert alive.now == 4000  # x.grad
    # Nine sines, a gradient and a cosine; and the loss and its gradient, 4 bytes each.
    assert alive.peak == 11 * 4000 + 8
    assert alive.operations.count("sin") == 9  # the tenth is not asked for


def test_without_gradients_nothing_is_kept():
    with torch.no_grad(), Alive() as alive:
        recompute(torch.sin, random(3))
    assert alive.operations[-1] == "sin" and "clone" not in alive.operations


# What must not pass in silence


@pytest.mark.parametrize(
    "again, changed",
    [
        (recompute, "input"),
        (recompute, "weight"),
        (reversible, "weight"),
        (reversible, "output"),
    ],
)
def test_a_change_of_what_is_kept_is_named(again, changed):
    x, module = random(4, 6), linear()
    given = 1 * x
    y = again(module, given)
    with torch.no_grad():
        {"input": given, "weight": module.weight, "output": y}[changed].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(y.sum(), x)


def test_a_change_of_what_fn_saved_is_named():
    def spoils_what_it_saved(x):
        y = x.exp()
        return y.add_(1).sin().sin()

    with pytest.raises(RuntimeError, match="changed in place by fn"):
        recompute(spoils_what_it_saved, random(3)).sum().backward()


@pytest.mark.parametrize(
    "second, words",
    [
        (lambda x: x.sin(), "saved fewer tensors"),
        (lambda x: x[:1].sin().sin(), "saved other tensors"),
        (lambda x: x.float().sin().sin(), "saved other tensors"),
    ],
)
def test_a_function_that_does_something_else_is_named(second, words):
    runs = []

    def changes(x):
        runs.append(1)
        return x.sin().sin() if len(runs) == 1 else second(x)

    with pytest.raises(RuntimeError, match=words):
        recompute(changes, random(3)).sum().backward()


def test_what_cannot_be_called():
    with pytest.raises(TypeError, match="fn must be callable, got Tensor"):
        recompute(random(3), random(3))


@each_way
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_torch_func(again, transform):
    with pytest.raises(RuntimeError, match="torch.func cannot run fn again"):
        transform(lambda x: again(nn.Tanh(), x).sum())(random(4, 6))


# Reversible blocks


def part(*after):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *after, nn.Linear(6, 4))


def reversible_model(depth, *after):
    torch.manual_seed(0)
    blocks = [
        (part(*copy.deepcopy(after)), part(*copy.deepcopy(after))) for _ in range(depth)
    ]
    return ReversibleSequential(blocks).double()


def residual(model, x1, x2):
    for f, g in model.blocks:
        x1 = x1 + f(x2)
        x2 = x2 + g(x1)
    return x1, x2


def halves():
    return random(8, 4), random(8, 4, seed=1)


def test_blocks_with_the_numbers_of_the_plain_model():
    exact, near = [], []
    for how in (plain, residual):
        model = reversible_model(3, nn.Dropout(0.5), nn.BatchNorm1d(6))
        x1, x2 = halves()
        y1, y2 = how(model, x1, x2)
        loss = (y1.square() + y2.sin()).sum()
        near.append(grad(loss, [x1, x2, *model.parameters()]))
        exact.append([y1, y2, torch.rand(2), *model.buffers()])
    torch.testing.assert_close(*exact, rtol=0, atol=0)
    torch.testing.assert_close(*near)


def test_the_inverse_gives_the_inputs_back():
    model = reversible_model(3)
    torch.testing.assert_close(model.inverse(*model(*halves())), halves())


def test_derivatives_of_halves_of_different_shapes_and_a_loss_of_one_of_them():
    """Then the last f or g has no ticket, and is called again all the same."""
    blocks = [(nn.Linear(4, 3), nn.Linear(3, 4)) for _ in range(3)]
    model = ReversibleSequential(blocks).double()
    inputs = random(8, 3), random(8, 4)
    leaves = *inputs, *model.parameters()
    for used in (0, 1):
        results = []
        for how in (plain, residual):
            loss = how(model, *inputs)[used].exp().sum()
            firsts = grad(loss, leaves, create_graph=True, materialize_grads=True)
            penalty = sum(first.square().sum() for first in firsts)
            results.append((firsts, grad(penalty, leaves, materialize_grads=True)))
        torch.testing.assert_close(*results)


def test_the_memory_of_blocks_does_not_grow_with_depth():
    seen = []
    for depth in (2, 12):
        model = reversible_model(depth, nn.Dropout(0.5))
        model.requires_grad_(False)  # their gradients would grow with depth
        with Alive() as alive:
            with Kept(but=model.parameters()) as kept:
                y1, y2 = model(*halves())
            (y1 + y2).sum().backward()
        seen.append((kept.total, alive.peak))
    assert seen[0] == seen[1]
    assert seen[0][0] == 2 * 8 * 4 * 8  # two halves of 8 x 4 float64


def test_blocks_that_do_not_fit():
    for blocks in ([], [(nn.Tanh(),) * 3]):
        with pytest.raises(ValueError, match="blocks must be pairs"):
            ReversibleSequential(blocks)
    for returns, got in ((lambda x: x[0], r"\(4,\)"), (lambda x: (x, x), "tuple")):
        model = ReversibleSequential([(Does(returns), nn.Tanh())])
        with pytest.raises(ValueError, match=rf"of shape \(8, 4\), got {got}"):
            model(*halves())
