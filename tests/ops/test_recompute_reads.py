"""What the function reads besides its inputs, and what may not happen to it before backward."""

import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.func import functional_call

from helpers.ops.recompute import ReversibleSequential, recompute
from tests.common import Does, in_threads, random


class Adds(nn.Module):
    """Reads a buffer that no operation saves."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.ones(3).double())
        self.scale = nn.Parameter(torch.ones(3).double())

    def forward(self, x):
        return ((x + self.shift) * self.scale).sin()


def reversible(fn, x):
    return ReversibleSequential([(Does(fn), nn.Tanh())])(x, x)[0]


each_way = pytest.mark.parametrize("again", [recompute, reversible])


@each_way
@pytest.mark.parametrize("name", ["shift", "scale"])
@pytest.mark.parametrize("kind", ["closure", "method", "module", "partial"])
def test_a_change_in_place_is_named(again, kind, name):
    module, x = Adds(), random(3)
    fn = {
        "closure": lambda x: (x + getattr(module, name)).sin(),
        "method": module.forward,
        "module": module,
        "partial": partial(torch.mul, getattr(module, name)),
    }[kind]
    y = again(fn, x).sum()
    grad(y, x, retain_graph=True)
    with torch.no_grad():
        getattr(module, name).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(y, x)


@each_way
def test_a_tensor_that_is_replaced_is_named(again):
    x, results = random(3), []
    for number in range(3):
        weight = torch.full((3,), number + 1.0).double()
        results.append(again(lambda x: x * weight, x).sum())  # noqa: B023
    with pytest.raises(RuntimeError, match="that it had not read before"):
        grad(sum(results), x)


class Around(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.inner, self.call = nn.Linear(3, 3).double(), call

    def forward(self, x):
        return self.call(self, x)


@each_way
@pytest.mark.parametrize("leaves", [True, False])
def test_parameters_that_are_swapped_around_a_closure_are_named(again, leaves):
    around, x = Around(lambda self, x: again(lambda x: self.inner(x).sin(), x)), random(2, 3)
    state = {name: 2 * parameter for name, parameter in around.named_parameters()}
    if leaves:
        state = {name: tensor.detach().requires_grad_() for name, tensor in state.items()}
    y = functional_call(around, state, (x,))
    del state
    with pytest.raises(RuntimeError, match="whose parameters are swapped must be fn itself"):
        grad(y.sum(), x)


def test_what_is_no_change_is_not_taken_for_one():
    norm, x, seen = nn.BatchNorm1d(3).double(), random(4, 3), {}

    class Makes(torch.autograd.Function):
        """Its results are not seen to be made, neither is what `unbind` gives by iteration."""

        @staticmethod
        def forward(ctx, x):
            ctx.mark_non_differentiable(signs := x.sign())
            return x.exp(), signs

        @staticmethod
        def backward(ctx, grad_output, _):
            return grad_output

    def fn(x):
        if "table" not in seen:  # made once, and kept
            seen["table"] = torch.arange(3.0).double()
        seen["count"] = seen.get("count", 0) + 1
        y, signs = Makes.apply(norm(x) * seen["table"])
        rows = torch.stack([row.sin() * signs[0] for row in y])
        return rows, y, signs

    # Between the runs the batch norm counts again, and a result changes.
    first, second = recompute(fn, x), recompute(fn, x)
    first[1].mul_(2)
    ours = grad(first[0].sum() + second[0].sin().sum(), x)
    first, second = fn(x), fn(x)
    assert ours[0].equal(grad(first[0].sum() + second[0].sin().sum(), x)[0])


def test_calls_within_calls_draw_and_count():
    layers = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).double())
    x, results = random(4, 3), []
    for how in (recompute, lambda fn, x: fn(x)):
        torch.manual_seed(0)
        y = how(lambda x: how(layers, x).sin(), x)  # noqa: B023
        results.append(grad(y.sum(), x)[0])
    assert results[0].equal(results[1])


def test_a_shape_may_be_read_of_what_changes():
    other, x = torch.ones(3).double(), random(3)
    y = recompute(lambda x: x.sin() * other.shape[0], x)
    other.zero_()
    assert grad(y.sum(), x)[0].equal(3 * x.cos())


def test_a_counter_that_fn_changes_and_then_reads_is_named():
    count, x = torch.zeros(3).double(), random(3)
    y = recompute(lambda x: (count.add_(1) * x).sin(), x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(y.sum(), x)


def slowly(x):
    time.sleep(0.002)  # the threads run it at once, unless one waits for the other
    return (x.sin() * torch.rand(3).double()).exp().sin()


def reversible_twice(fn, x):
    return ReversibleSequential([(Does(fn), Does(fn))])(x, x)[1]


def nodes_of(y):
    nodes = [y.grad_fn]
    for node in nodes:
        nodes += [before for before, _ in node.next_functions if before and before not in nodes]
    return nodes


@pytest.mark.parametrize("again", [recompute, reversible_twice])
def test_threads_may_read_what_was_saved(again):
    """In a backward pass, the engine itself makes threads wait for each other at each node."""
    nodes = nodes_of(again(slowly, random(3)))
    saved = [node for node in nodes if node.name() == "SinBackward0"]
    found = [[] for _ in saved]
    reads = [
        lambda node=node, values=values: values.extend(node._saved_self.clone() for _ in range(5))
        for node, values in zip(saved, found, strict=True)
    ]
    in_threads(2 * reads)
    assert all(len(values) == 10 and values[0].equal(other) for values in found for other in values)


def test_threads_that_draw_from_generators_of_their_own():
    def masked(x, generator):
        return x.sin() * torch.rand(3, generator=generator)

    def one(seed, results):
        x = random(3)
        for _ in range(20):
            generator = torch.Generator().manual_seed(seed)
            y = recompute(masked, x, generator)
            right = masked(x, torch.Generator().manual_seed(seed))
            results.append(grad(y.sum(), x)[0].equal(grad(right.sum(), x)[0]))

    results = []
    in_threads([partial(one, seed, results) for seed in range(4)])
    assert len(results) == 80 and all(results)


class Slow(nn.Module):
    """The threads run it at once."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.norm = nn.Parameter(random(3).detach()), norm

    def forward(self, x):
        x = (x * self.weight).sin()
        time.sleep(0.002)
        return self.norm(x * self.weight).sin()


@pytest.mark.parametrize("kind", ["recompute", "reversible"])
@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm1d(3).double()], ids=["", "norm"])
def test_threads_may_share_a_module(kind, norm):
    module, x, results = Slow(norm), random(4, 3), []
    blocks = ReversibleSequential([(module, nn.Tanh())])
    call = {"recompute": lambda: recompute(module, x), "reversible": lambda: blocks(x, x)[0]}[kind]
    state = [*module.parameters(), *module.buffers()]

    def one():
        for _ in range(5):
            y = call().square().sum()
            results.append(grad(y, module.weight, allow_unused=True)[0])

    one()
    in_threads(4 * [one])
    assert len(results) == 25 and all(result.allclose(results[0]) for result in results)
    now = [*module.parameters(), *module.buffers()]
    assert all(a is b for a, b in zip(now, state, strict=True))


class Whole(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.weight = part, nn.Parameter(random(3).detach())

    def forward(self, x):
        return recompute(self.part, x * self.weight) * x


def test_threads_may_share_a_part_of_their_modules():
    part, x, results = Slow(nn.BatchNorm1d(3).double()), random(4, 3), []
    shared, state = [part, Whole(part), Whole(part)], [*part.buffers()]

    def one(module):
        for _ in range(5):
            y = recompute(module, x).square().sum()
            results.append(grad(y, part.weight)[0].isfinite().all())

    in_threads([partial(one, module) for module in shared * 2])
    assert len(results) == 30 and part.norm.num_batches_tracked == 30
    assert all(a is b for a, b in zip(part.buffers(), state, strict=True))


def test_threads_may_go_back_through_calls_within_calls_while_others_go_forward():
    module, x, done = Whole(Slow(nn.BatchNorm1d(3).double())), random(4, 3), []
    y = recompute(module, x).sum()

    def back():
        done.extend(grad(y, x, retain_graph=True)[0] for _ in range(5))

    def forward():
        done.extend(recompute(module, x) for _ in range(5))

    in_threads([back, forward] * 3)
    assert len(done) == 30


def test_threads_may_go_back_to_parameters_that_functional_call_gave():
    module, x = Slow(nn.Identity()), random(4, 3)
    weights, slopes = [random(3) for _ in range(4)], [None] * 4
    held = Does(partial(recompute, module))
    held.module = module
    ys = [functional_call(held, {"module.weight": weight}, x).sum() for weight in weights]

    def back(n):
        slopes[n] = grad(ys[n], weights[n])[0]

    before = module.weight
    in_threads([partial(back, n) for n in range(4)])
    for weight, slope in zip(weights, slopes, strict=True):
        plain = functional_call(module, {"weight": weight}, x).sum()
        assert slope.equal(grad(plain, weight)[0])
    assert module.weight is before


def test_a_module_that_waits_for_another_thread_to_differentiate_is_refused():
    """As it does on a GPU: the thread would wait for the module."""

    class Force(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(3).double())

        def forward(self, x):
            energy, errors = (x.sin() * self.scale).sum(), []

            def differentiate():
                try:
                    grad(energy, x, create_graph=True)
                except RuntimeError as error:
                    errors.append(error)

            in_threads([differentiate])
            raise errors[0]

    with pytest.raises(RuntimeError, match="must not differentiate .* in another thread"):
        recompute(Force(), random(3))
