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


class Labelled(torch.Tensor):
    """A subclass whose operations go through `__torch_function__`."""


def test_subclasses_of_tensor():
    results = []
    for solve, kind in ((ours, Labelled), (unrolled, torch.Tensor)):
        layer, x = Layer(solve), random(2, 3)
        x = x.detach().as_subclass(kind).requires_grad_()
        slopes = grad(layer(x).sum(), (x, *layer.parameters()), create_graph=True)
        second = grad(sum(s.square().sum() for s in slopes), x)
        results.append([slope.as_subclass(torch.Tensor) for slope in (*slopes, *second)])
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


def replace_data(layer):
    for parameter in layer.parameters():
        parameter.data = torch.zeros_like(parameter)


changes = {
    "converted and back": lambda layer: layer.to(torch.float32).to(torch.float64),
    "other data": replace_data,
    "frozen": lambda layer: layer.inner.requires_grad_(False),
    "given other parameters": lambda layer: layer.load_state_dict(
        Layer(ours).state_dict(), assign=True
    ),
}


@pytest.mark.parametrize("change", changes)
def test_what_happens_to_the_parameters_before_backward(change):
    results = []
    for solve in (ours, unrolled):
        layer, x = Layer(solve), random(2, 3)
        leaves = [x, *layer.parameters()]
        y = layer(x).sum()
        if solve is ours:
            changes[change](layer)
        y.backward()
        results.append([leaf.grad for leaf in leaves])
    if change == "frozen":
        assert results[0][2:] == [None, None]
        results = [gradients[:2] for gradients in results]
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("inner", [True, False])
def test_a_hook_of_a_tensor_that_f_closes_over_is_refused(inner):
    layer, x = Layer(ours), random(2, 3)
    y = layer(x).sum()
    hooked = layer.inner.bias if inner else layer.weight
    hooked.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(RuntimeError, match="has a hook, .* hand it to fixed_point as an input"):
        y.backward()


def test_what_f_caches_has_its_history():
    layer, x = (
        torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(3, 3).double()),
        random(2, 3),
    )
    with torch.nn.utils.parametrize.cached():
        with pytest.raises(ValueError, match="with a history .*hand it to fixed_point as an input"):
            ours(lambda z, x: layer(z).sin() / 2 + x, torch.zeros_like(x), x)
        assert layer.weight.requires_grad


def test_batches_of_gradients_are_refused():
    x = random(2, 3)
    y = Layer(ours)(x)
    with pytest.raises(RuntimeError, match="does not work under vmap .is_grads_batched"):
        grad(y, x, torch.ones(4, 2, 3).double(), is_grads_batched=True)
