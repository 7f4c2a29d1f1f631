"""`recompute` and `ReversibleSequential` within other things and around them, to second order."""

import threading
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from helpers.ops.fixed_point import fixed_point
from helpers.ops.recompute import ReversibleSequential, recompute
from tests.common import Does, random
from tests.needs import NO_COMPILER

checkpointed = partial(checkpoint, use_reentrant=False)


def linear():
    return nn.Linear(6, 6).double()


class Of(nn.Module):
    """A module of a linear layer and what is made of it."""

    def __init__(self, call):
        super().__init__()
        self.layer, self.call = linear(), call

    def forward(self, x):
        return self.call(self.layer, x)


def solved(layer, x):
    return fixed_point(lambda z, x: 0.3 * layer(z + x).tanh(), torch.zeros_like(x), x, tol=1e-14)


def slope(layer, x):
    return grad(layer(x).sin().sum(), x, create_graph=True)[0]


def changed_in_place(layer, x):
    return nn.functional.relu_(layer(x)) * x


def twice(layer, x):
    return layer(layer(x).sin())


def on_the_cpu(layer, x):
    with save_on_cpu():
        return layer(x).sin()


def hooked():
    layer = linear()
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    layer.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] / 2,))
    return layer


modules = {
    "dropout and batch norm": lambda: nn.Sequential(
        linear(), nn.Dropout(), nn.BatchNorm1d(6).double(), nn.ReLU(inplace=True), linear()
    ),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).double(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(linear()),
    "fixed point": lambda: Of(solved),
    "in place": lambda: Of(changed_in_place),
    "twice": lambda: Of(twice),
    "slope": lambda: Of(slope),
    "vmap": lambda: Of(lambda layer, x: torch.vmap(lambda row: layer(row).sin())(x)),
    "rows": lambda: Of(lambda layer, x: torch.stack([layer(row).sin() for row in x])),
    "on the CPU": lambda: Of(on_the_cpu),
    "hooks": hooked,
    "recomputed": lambda: Of(recompute),
    "closure": lambda: Of(lambda layer, x: recompute(lambda x: layer(x).sin(), x)),
    "checkpointed": lambda: Of(checkpointed),
    "reversible": lambda: Does(
        ReversibleSequential([(linear(), linear()) for _ in range(2)], dim=0)
    ),
}


def in_a_swap(module, x):
    outer = Does(lambda x: recompute(module, x))
    outer.module = module
    doubled = {name: 2 * tensor for name, tensor in outer.named_parameters()}
    return functional_call(outer, doubled, (x,))


def swapped(module, x):
    doubled = {name: 2 * tensor for name, tensor in module.named_parameters()}
    return functional_call(module, doubled, (x,))


def in_a_thread(module, x):
    results = []
    thread = threading.Thread(target=lambda: results.append(recompute(module, x)))
    thread.start()
    thread.join()
    return results[0]


def under_hooks(module, x):
    with save_on_cpu():
        return recompute(module, x)


def in_a_reversible(module, x):
    return ReversibleSequential([(module, nn.Tanh())])(torch.zeros_like(x), x)[0]


ways = {
    "recompute": recompute,
    "closure": lambda module, x: recompute(lambda x: module(x), x),
    "method": lambda module, x: recompute(module.forward, x),
    "within another": lambda module, x: recompute(lambda x: recompute(module, x), x),
    "in checkpoint": lambda module, x: checkpointed(lambda x: recompute(module, x), x),
    "around checkpoint": lambda module, x: recompute(lambda x: checkpointed(module, x), x),
    "copied": lambda module, x: recompute(deepcopy(module).requires_grad_(False), x),
    "under hooks": under_hooks,
    "in a thread": in_a_thread,
    "in a swap": in_a_swap,
    "reversible": in_a_reversible,
}
REFUSED = {
    ("closure", "in a swap"): "whose parameters are swapped must be fn itself",
    ("slope", "reversible"): "must not differentiate",
}
# checkpoint is wrong there; fixed_point takes no weight with a history; a forward has no hooks.
NOT_MEANT = [("checkpointed", "in a swap"), ("fixed point", "in a swap"), ("hooks", "method")]
pairs = [(kind, way) for kind in modules for way in ways if (kind, way) not in NOT_MEANT]


@pytest.mark.parametrize("kind, way", [pair for pair in pairs if pair not in REFUSED])
def test_first_and_second_derivatives(kind, way):
    results = []
    for how in (ways[way], swapped if way == "in a swap" else lambda module, x: module(x)):
        torch.manual_seed(0)
        module, x = modules[kind](), random(4, 6)
        leaves = [x] if way == "copied" else [x, *module.parameters()]
        torch.manual_seed(1)
        y = how(module, x)
        slopes = grad(y.square().sum(), leaves, create_graph=True)
        loss = sum(slope.square().sum() for slope in slopes)
        results.append([y, *slopes, *grad(loss, leaves, materialize_grads=True)])
        assert all(isinstance(p, nn.Parameter) for p in module.parameters())
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind, way", REFUSED)
def test_what_cannot_be_right_is_refused(kind, way):
    module, x = modules[kind](), random(4, 6)
    with pytest.raises(RuntimeError, match=REFUSED[kind, way]):
        grad(ways[way](module, x).sum(), x)


class Stores(nn.Module):
    """Each backend makes some of what is returned and stored where `Reads` cannot see it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(linear(), nn.Dropout(), nn.BatchNorm1d(6).double(), linear())

    def forward(self, x):
        self.read = y = self.layers(x).tanh()
        self.stored = y.detach() @ self.layers[0].weight.detach()
        return (y @ self.layers[3].weight).tanh()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("way", ["recompute", "reversible"])
def test_a_compiled_module_inside(way, backend):
    if backend == "inductor" and NO_COMPILER:
        pytest.skip(NO_COMPILER)
    results = []
    for how in (ways[way], lambda module, x: module(x)):
        torch.compiler.reset()
        torch.manual_seed(0)
        module, steps = Stores(), []
        compiled = torch.compile(module, backend=backend)
        for rows in (4, 5):  # of several sizes: dynamic shapes
            torch.manual_seed(rows)
            x = random(rows, 6)
            y = how(compiled, x)
            steps += [y, *grad(y.square().sum(), (x, *module.parameters()))]
        results.append([*steps, *module.buffers(), module.stored])
    rtol = 1e-12 if way == "reversible" else 0
    torch.testing.assert_close(*results, rtol=rtol, atol=rtol)


@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
def test_a_compiled_module_that_saves_what_it_returns():
    torch.compiler.reset()
    layers, x = nn.Sequential(nn.BatchNorm1d(6).double(), nn.Tanh()), random(4, 6)
    parameters = [*layers.parameters()]
    compiled = torch.compile(layers)  # inductor's wrapper asks a stranger whether it is a view
    given = grad(recompute(compiled, x).square().sum(), parameters)
    torch.testing.assert_close(given, grad(layers(x).square().sum(), parameters))


@torch.compiler.disable(recursive=False)
def square(z):  # not compiled, but what it calls is
    return torch.complex(z.real.square() - z.imag.square(), 2 * z.real * z.imag)


@pytest.mark.parametrize("way", ["recompute", "reversible"])
def test_a_compiled_module_that_runs_a_part_as_it_is(way):
    # The compiler takes one property of a tensor for the next in a mode's `__torch_function__`.
    torch.compiler.reset()
    module = Of(lambda layer, x: square(torch.complex(x, layer(x))).real)
    x = random(4, 6)
    results = []
    for how in (ways[way], lambda module, x: module(x)):
        y = how(torch.compile(module, backend="aot_eager"), x)
        results.append([y, *grad(y.square().sum(), (x, *module.parameters()))])
    torch.testing.assert_close(*results)


def test_a_compiled_batch_norm_must_be_the_function():
    torch.compiler.reset()
    norm = nn.BatchNorm1d(3).double()
    compiled, x = torch.compile(norm, backend="aot_eager"), random(4, 3)
    recompute(compiled, x).sum().backward()
    assert norm.num_batches_tracked == 1
    y = recompute(lambda x: compiled(x), x)
    with pytest.raises(RuntimeError, match="that fn reads has been modified"):
        y.sum().backward()
