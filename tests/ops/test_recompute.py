"""`recompute`: the numbers of a plain call and of PyTorch's own checkpoint, and the memory."""

from functools import partial

import numpy
import pytest
import torch
from torch import nn
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from helpers.doctor import examine
from helpers.lessons.memory import Alive, Kept
from helpers.ops.recompute import recompute
from tests.common import FLOATS, random


def plain(fn, *inputs, **kwargs):
    return fn(*inputs, **kwargs)


def theirs(fn, *inputs, **kwargs):
    return checkpoint(fn, *inputs, use_reentrant=False, **kwargs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_same_numbers_to_the_last_bit(dtype):
    """Everything that a step of training computes and changes, random numbers included."""
    results = []
    for how in (plain, recompute):
        torch.manual_seed(0)
        layers = nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 6)
        module, x = nn.Sequential(*layers).to(dtype), random(8, 6, dtype=dtype)
        y = how(module, x)
        between = torch.rand(2)
        slopes = grad(y.square().sum(), (x, *module.parameters()))
        results.append((y, slopes, between, torch.rand(2), list(module.buffers())))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_nested_inputs_and_outputs():
    def nested(inputs, *, options):
        first, (second, number) = inputs["pair"]
        with torch.no_grad():
            size = (first * second).sum()
        return {"pair": [first.exp() * second, number * second.sin()], "size": size}, options

    a, b, options, results = random(3), random(3, seed=1), object(), []
    for how in (recompute, plain):
        found, given_back = how(nested, {"pair": [a, (b, 2.0)]}, options=options)
        assert given_back is options and not found["size"].requires_grad
        for y in found["pair"]:
            results.append(grad(y.sum(), (a, b), retain_graph=True, materialize_grads=True))
        results.append((found["size"], *found["pair"]))
    torch.testing.assert_close(results[:3], results[3:], rtol=0, atol=0)


def test_derivatives_of_every_order_also_of_calls_within_calls():
    weight = random(4, seed=1)

    def inner(t, w):
        return (t.sin() * w).exp()

    def outer(x):
        return recompute(inner, 2 * x, w=weight).tanh().cumsum(0)  # weight: closed over

    def slope(x):  # a function that differentiates by itself
        return x * grad((x**3).sum(), x, create_graph=True)[0].sin()

    x = random(4)
    for f in (inner, outer, slope):
        inputs = (x, weight) if f is inner else (x,)
        assert gradcheck(lambda *t, f=f: recompute(f, *t), inputs)
        assert gradgradcheck(lambda *t, f=f: recompute(f, *t), inputs)
        if f is not slope:  # which asks for a gradient itself, and the doctor gives it none
            assert examine(lambda *t, f=f: recompute(f, *t), *inputs).ok
    assert grad(recompute(outer, x).sum(), weight)[0].equal(grad(outer(x).sum(), weight)[0])


def test_saved_tensors_read_twice_cost_another_run():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx, grad_output):
            assert ctx.saved_tensors[0].equal(ctx.saved_tensors[0])
            return grad_output * ctx.saved_tensors[1]

    x, runs = random(3), []
    y = recompute(lambda x: runs.append(1) or Twice.apply(x.sin()).square(), x)
    torch.testing.assert_close(grad(y.sum(), x)[0], 2 * x.sin().exp().square() * x.cos())
    # The assertion reads each tensor twice, the last line once more.
    assert len(runs) == 1 + 3


def test_what_an_operation_fills_after_it_saved_it():
    x, results = random(50), []
    for how in (recompute, plain):
        torch.manual_seed(0)
        results.append(grad(how(nn.RReLU(), x).sum(), x)[0])
    assert results[0].equal(results[1])


def test_hooks_that_fn_sets_on_its_inputs_act_once():
    def halved(x):
        x.register_hook(lambda gradient: gradient / 2)
        return x.sin()

    x = random(3)
    ours, right = (grad(how(halved, 2 * x).sum(), x)[0] for how in (recompute, plain))
    assert ours.equal(right)


def test_without_gradients_it_is_a_plain_call():
    x, runs = random(3).detach(), []
    with Kept() as kept:
        with torch.no_grad(), Alive() as alive:
            assert not recompute(torch.sin, random(3)).requires_grad
        assert alive.operations[-1] == "sin" and alive.operations.count("clone") == 0
        y = recompute(lambda x: runs.append(1) or x.sin().detach(), x)
    assert not y.requires_grad and y.equal(x.sin()) and len(runs) == 1
    assert kept.shapes == [(3,)]  # the second call keeps its input, though nobody will ask


# Memory


def chain(x):
    for _ in range(10):
        x = x.sin()
    return x


def test_one_of_ten_is_kept_and_each_is_freed_when_it_was_used():
    for how, saved in ((plain, 10), (theirs, 1), (recompute, 1)):
        x = torch.ones(1000, requires_grad=True)
        with Kept() as kept:
            y = how(chain, x)
        assert kept.total == saved * 4000
        with Alive() as alive:
            y.sum().backward()
        assert alive.now == 4000  # x.grad
        if how is recompute:
            # Nine sines, a gradient and a cosine; and the loss and its gradient, 4 bytes each.
            assert alive.peak == 11 * 4000 + 8
            assert alive.history[-10] < 4 * 4000
            assert alive.operations.count("sin") == 9  # the tenth is not asked for


def test_with_retain_graph_the_second_run_leaves_nothing():
    x = torch.ones(1000, requires_grad=True)
    y = recompute(chain, x)
    with Alive() as alive:
        grad(y.sum(), x, retain_graph=True)
        assert alive.now == 0


def test_of_calls_within_calls_only_the_outer_input_is_kept():
    x = torch.ones(1000, requires_grad=True)

    def two(x):
        return recompute(chain, recompute(chain, x))

    for how, kept_tensors in ((plain, 2), (recompute, 1)):
        with Kept() as kept:
            how(two, x)
        assert kept.total == kept_tensors * 4000


# What must not pass in silence


def test_changes_in_place_are_named():
    x = random(3)
    given = 1 * x
    y = recompute(torch.sin, given)
    given.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(y.sum(), x)

    def spoils_what_it_saved(x):
        y = x.exp()
        z = y.add_(1).sin()
        return z.sin()

    for how, words in ((plain, "modified by an inplace operation"), (recompute, "by fn")):
        with pytest.raises(RuntimeError, match=words):
            how(spoils_what_it_saved, x).sum().backward()


def test_a_result_may_be_changed_in_place():
    x = random(3)
    (ours,) = grad(recompute(lambda x: x.exp(), x).mul_(2).sum(), x)
    torch.testing.assert_close(ours, 2 * x.exp())


@pytest.mark.parametrize(
    "second, words",
    [
        (lambda x: x.sin(), "saved 1 tensors where it had saved 2"),
        (
            lambda x: x[:1].sin().sin(),
            "saved a tensor .1,. of torch.float64 on cpu in sin where",
        ),
        (lambda x: x.cos().sin().sin(), "on cpu in cos where it had saved .* on cpu in sin"),
        (
            lambda x: x.float().sin().sin(),
            "a tensor .3,. of torch.float32 on cpu in sin where",
        ),
    ],
)
def test_a_function_that_does_something_else_is_named(second, words):
    x, runs = random(3), []

    def changes(x):
        runs.append(1)
        return x.sin().sin() if len(runs) == 1 else second(x)

    with pytest.raises(RuntimeError, match=words):
        recompute(changes, x).sum().backward()


@pytest.mark.filterwarnings("error::FutureWarning")
def test_a_policy_says_what_is_kept_also_when_compiled():
    def products(ctx, op, *args, **kwargs):
        kept = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    selective = partial(create_selective_checkpoint_contexts, products)
    weight, x = random(4, 4, seed=1), random(3, 4)

    def two(x):
        return ((x @ weight).tanh() @ weight).tanh()

    runs, results = {}, []
    for name, how in {
        "plain": plain,
        "all": recompute,
        "but products": lambda f, x: recompute(f, x, context_fn=selective),
    }.items():
        with Alive() as alive:
            results.append(grad(how(two, x).exp().sum(), (x, weight)))
        runs[name] = alive.operations.count("mm"), alive.operations.count("tanh")
    assert results[0][0].equal(results[1][0]) and results[0][1].equal(results[2][1])
    # two in forward, and four for the gradients; again: up to what the last tanh saves
    assert runs == {"plain": (6, 2), "all": (8, 4), "but products": (6, 4)}

    def both(x):
        y = recompute(two, x, context_fn=selective)
        return recompute(lambda y, then: then(y), y, then=torch.exp)

    torch.compiler.reset()
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(grad(compiled(x).sum(), (x, weight)), results[0])


def test_a_keyword_may_be_called_fn_and_fn_must_be_callable():
    with pytest.raises(TypeError, match="fn must be callable, got Tensor"):
        recompute(random(3), random(3))
    with pytest.raises(TypeError, match="context_fn must be callable, got int"):
        recompute(torch.sin, random(3), context_fn=5)
    for recording in (True, False):
        with torch.set_grad_enabled(recording):
            y = recompute(lambda x, fn: fn(x), random(3), fn=torch.sin)
        assert y.equal(random(3).sin())


@pytest.mark.parametrize("again", [recompute, theirs])
def test_what_numpy_draws_is_drawn_anew(again):
    def dropped(x):
        return x * torch.from_numpy(numpy.random.rand(1000) < 0.5)

    x = torch.ones(1000, requires_grad=True)
    y = again(dropped, x)
    assert not grad(y.sum(), x)[0].equal(y)


@pytest.mark.parametrize(("again", "restores"), [(recompute, True), (theirs, False)])
def test_a_generator_among_the_inputs(again, restores):
    def dropped(x, generator):
        return x * (torch.rand(1000, generator=generator) < 0.5)

    x = torch.ones(1000, requires_grad=True)
    y = again(dropped, x, torch.Generator().manual_seed(0))
    assert grad(y.sum(), x)[0].equal(y) is restores
