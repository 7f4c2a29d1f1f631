"""`fixed_point` within other things and around them, to second order, against unrolling."""

from functools import partial

import pytest
import torch
from torch.autograd import grad
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from helpers.ops.fixed_point import fixed_point
from helpers.ops.recompute import ReversibleSequential, recompute
from tests.common import Does, assert_threads_may_go_back, random


def ours(f, z, x):
    return fixed_point(f, z, x, tol=1e-14)


def unrolled(f, z, x):
    for _ in range(80):
        z = f(z, x)
    return z


class Layer(torch.nn.Module):
    """Closes over one of its parameters, holds another in a module, and a constant in a buffer."""

    def __init__(self, solve, around_f=lambda f: f):
        super().__init__()
        torch.manual_seed(0)
        self.solve, self.around_f = solve, around_f
        self.weight = torch.nn.Parameter(0.3 * torch.randn(3, 3).double())
        self.inner = torch.nn.Linear(3, 3).double()
        self.register_buffer("share", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x):
        def f(z, x):
            return self.share * torch.tanh(z @ self.weight + self.inner(x))

        return self.solve(self.around_f(f), torch.zeros_like(x), x).exp()


def plainly(layer, x, leaves):
    return layer(x)


def swapped(layer, x, leaves):
    names = dict(layer.named_parameters())
    return functional_call(layer, dict(zip(names, leaves, strict=True)), (x,))


def in_checkpoint(layer, x, leaves):
    return checkpoint(partial(plainly, layer), x, leaves, use_reentrant=False)


def in_recompute(layer, x, leaves):
    return recompute(layer, x)


def swapped_in_recompute(layer, x, leaves):
    return swapped(Within(layer, recompute), x, leaves)


class Within(torch.nn.Module):
    def __init__(self, layer, how):
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, x):
        return self.how(self.layer, x)


def swapped_in_checkpoint(layer, x, leaves):
    return swapped(Within(layer, partial(checkpoint, use_reentrant=False)), x, leaves)


def in_a_reversible(layer, x, leaves):
    return ReversibleSequential([(layer, Does(torch.sin))])(x, x)[0]


def on_the_cpu(layer, x, leaves):
    with torch.autograd.graph.save_on_cpu():
        return layer(x)


def copies_saved(layer, x, leaves):
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        return layer(x)


def compiled_around(layer, x, leaves):
    torch.compiler.reset()
    return torch.compile(layer, backend="eager")(x)


def without_recording_first(layer, x, leaves):
    with torch.no_grad():
        layer(x)
    return layer(x)


ways = [plainly, swapped, in_checkpoint, in_recompute, swapped_in_recompute, in_a_reversible,
        on_the_cpu, copies_saved, compiled_around, without_recording_first]  # fmt: skip
arounds_of_f = {
    "f": lambda f: f,
    "recompute": lambda f: partial(recompute, f),
    "checkpoint": lambda f: partial(checkpoint, f, use_reentrant=False),
    "compiled": lambda f: torch.compile(f, backend="eager"),
}


# These call f again in backward, when the parameters are back in their place.
again = {"recompute", "checkpoint"}
pairs = [(w, a) for w in ways for a in arounds_of_f if not ("swapped" in w.__name__ and a in again)]


@pytest.mark.parametrize("way, around_f", pairs)
def test_first_and_second_derivatives(way, around_f):
    results = []
    for solve in (ours, unrolled):
        layer = Layer(solve, arounds_of_f[around_f] if solve is ours else arounds_of_f["f"])
        x = random(2, 3)
        leaves = [*layer.parameters()]
        if "swapped" in way.__name__:
            leaves = [(2 * leaf.detach()).requires_grad_() for leaf in leaves]
        how = way if solve is ours or way in (swapped, in_a_reversible) else plainly
        how = swapped if solve is unrolled and "swapped" in way.__name__ else how
        y = how(layer, x, leaves)
        slopes = grad(y.square().sum(), (x, *leaves), create_graph=True)
        results.append([y, *slopes, *grad(sum(s.square().sum() for s in slopes), (x, *leaves))])
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


def test_in_checkpoint_or_recompute_nothing_depends_on_chance():
    for around in (recompute, partial(checkpoint, use_reentrant=False)):
        for _ in range(40):
            layer, x = Layer(ours), random(2, 3)
            (slope,) = grad(around(layer, x).sum(), x, create_graph=True)
            grad(slope.square().sum(), [*layer.parameters()], allow_unused=True)


def test_threads_may_go_back_through_one_graph():
    x = random(2, 3)
    assert_threads_may_go_back(Layer(ours)(x).sum(), x)


def test_batches_of_gradients_are_refused():
    x = random(2, 3)
    y = Layer(ours)(x)
    with pytest.raises(RuntimeError, match="does not work under vmap .is_grads_batched"):
        grad(y, x, torch.ones(4, 2, 3).double(), is_grads_batched=True)
