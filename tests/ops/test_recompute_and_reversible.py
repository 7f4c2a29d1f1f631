"""What `recompute` and `ReversibleSequential` share: a module is called again in backward."""

import weakref

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, grad

from helpers.lessons.memory import Alive
from helpers.ops.recompute import ReversibleSequential, recompute
from tests.common import Does, random


class Zero(nn.Module):
    def forward(self, x, *args):
        return torch.zeros_like(x)


def reversible(module, x, *args):
    """As y1 = 0 + f(x2) and y2 = x2 + 0, so that all numbers are those of f to the last bit."""
    model = ReversibleSequential([(module, Zero())])
    return model(torch.zeros_like(x), x, *args)[0]


each_way = pytest.mark.parametrize("again", [recompute, reversible])


@each_way
def test_the_random_state_of_each_cuda_device_repeats_itself(monkeypatch, again):
    states = [torch.tensor([10]), torch.tensor([20])]  # stand for those of two devices
    for name, function in {
        "is_initialized": lambda: True,
        "get_rng_state_all": lambda: list(states),
        "set_rng_state_all": lambda given: states.__setitem__(slice(None), given),
        "get_rng_state": lambda device: states[device],
        "set_rng_state": lambda state, device: states.__setitem__(device, state),
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)

    def draws_from_the_second(x):
        states[1] = states[1] + 1
        return x.sin() * states[1]

    x = random(3)
    y = again(Does(draws_from_the_second), x)  # 21
    states[1] = torch.tensor([30])
    (given,) = grad(y.sum(), x)
    assert [int(state) for state in states] == [10, 30]
    torch.testing.assert_close(given, 21 * x.cos())


@pytest.mark.parametrize("kind", ["cpu", "mps"])  # the second as a name only
@each_way
def test_the_second_call_is_under_the_autocast_of_the_first(monkeypatch, again, kind):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    seen, x = [], random(3, dtype=torch.float32)

    def notes(x):
        state = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        seen.append((*state, torch.is_autocast_cache_enabled()))
        return x.sin()

    with torch.autocast(kind, torch.float16, cache_enabled=False):
        y = again(Does(notes), x)
    with torch.autocast(kind, torch.bfloat16):
        y.sum().backward()
    assert seen == [(True, torch.float16, False)] * 2


@each_way
def test_autocast_and_cuda_are_not_asked_for_where_they_are_not(monkeypatch, again):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.delattr(torch.cuda, "get_rng_state_all")  # which would start it
    again(nn.Tanh(), random(3)).sum().backward()


class Counts(nn.Module):
    """Counts its calls in a buffer, and its results depend on that."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x):
        if self.how == "in place":
            self.calls += 1
        elif self.how == "in place, unseen":
            self.calls.data.add_(1)
        else:
            self.calls = self.calls + 1
        return x.sin() * self.calls.sum()


@pytest.mark.parametrize("how", ["in place", "in place, unseen", "a new one"])
@each_way
def test_buffers_count_the_first_call_only(again, how):
    module, x = Counts(how), random(3)
    for calls in (1, 2):
        y = again(module, x).sum()
        for _ in range(2):
            torch.testing.assert_close(grad(y, x, retain_graph=True)[0], 2 * calls * x.cos())
        assert module.calls.tolist() == [calls, calls]


@each_way
def test_a_batch_norm_that_counts_no_batches(again):
    norm, x = nn.BatchNorm1d(3).double(), random(4, 3)
    norm.num_batches_tracked = None
    again(nn.Sequential(norm, nn.Tanh()), x).sum().backward()
    torch.testing.assert_close(norm.running_mean, 0.1 * x.detach().mean(0))


@each_way
def test_python_and_generators_draw_the_same_again(again):
    import random as python

    generator = torch.Generator().manual_seed(3)

    class Draws(nn.Module):
        def forward(self, x, generator):
            return (x * python.random()).sin() * torch.rand(3, generator=generator).exp()

    x, results = random(3), []
    for how in (again, lambda module, *args: module(*args)):
        python.seed(0)
        generator.manual_seed(3)
        y = how(Draws(), x, generator).sum()
        states = python.getstate(), generator.get_state()
        results.append(grad(y, x)[0])
        assert python.getstate() == states[0] and generator.get_state().equal(states[1])
    torch.testing.assert_close(*results)


@each_way
def test_random_state_and_buffers_are_held_only_where_they_are_needed(monkeypatch, again):
    states, read = [], torch.get_rng_state

    def noted():
        state = read()
        states.append(weakref.ref(state))
        return state

    monkeypatch.setattr(torch, "get_rng_state", noted)
    x, plain = random(4, 6), None
    for module, random_states, buffers in (
        (nn.Tanh(), 0, 0),
        (nn.Dropout(), 1, 0),
        (nn.BatchNorm1d(6).double().eval(), 0, 0),
        (nn.BatchNorm1d(6).double(), 0, 6 + 6 + 1),
    ):
        with Alive() as alive:
            y = again(module, x)
        plain = plain or alive.now
        assert alive.now == plain + 8 * buffers
        assert sum(state() is not None for state in states) == random_states
        del y


@each_way
def test_the_second_call_has_the_parameters_and_buffers_of_the_first(again):
    class Holder(nn.Module):
        def __init__(self, how, affine):
            super().__init__()
            self.norm, self.how = nn.BatchNorm1d(6, affine=affine).double().eval(), how

        def forward(self, x):
            return self.how(self.norm, x).square()

    x = random(8, 6)
    for affine in (True, False):
        model, right = Holder(again, affine), Holder(lambda module, x: module(x), affine)
        state = {name: 2 * t.detach() + 1 for name, t in model.state_dict().items()}
        y, expected = (torch.func.functional_call(m, state, (x,)).sum() for m in (model, right))
        torch.testing.assert_close(grad(y, x), grad(expected, x))
        assert not y.equal(model(x).sum())


@each_way
def test_a_module_that_is_used_twice_keeps_its_parameters_and_buffers(again):
    norm, layer = nn.BatchNorm1d(3).double(), nn.Linear(3, 3).double()
    module = nn.Sequential(layer, norm, nn.Sequential(layer, norm))
    tied = nn.Linear(3, 3).double()
    tied.weight = layer.weight
    module.append(tied)
    before = [*module.parameters(), *module.buffers()]
    x = random(4, 3)
    ours = grad(again(module, x).square().sum(), (x, *module.parameters()))
    assert norm.num_batches_tracked == 2
    after = [*module.parameters(), *module.buffers()]
    assert len(before) == len(after) == 5 + 3
    assert all(one is other for one, other in zip(before, after, strict=True))
    right = grad(module(x).square().sum(), (x, *module.parameters()))
    torch.testing.assert_close(ours, right)


@each_way
def test_nothing_is_held_after_backward_or_when_the_result_is_dropped(again):
    x = random(4, 6)
    for runs in (0, 1, 2):
        with Alive() as alive:
            y = again(nn.Dropout(), x.sin()).sum()
            found = [grad(y, x, retain_graph=run + 1 < runs)[0] for run in range(runs)]
            assert all(gradient.equal(found[0]) for gradient in found)
            del y, found
            assert alive.now == 0


@each_way
def test_a_parameter_that_changes_between_forward_and_backward_is_named(again):
    x, module = random(2, 3), nn.Linear(3, 3).double()
    y = again(module, x)
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(y.sum(), x)


def replace_data(module):
    for parameter in module.parameters():
        parameter.data = torch.zeros_like(parameter)


changes = {
    "converted and back": lambda module: module.to(torch.float32).to(torch.float64),
    "other data": replace_data,
    "frozen": lambda module: module.requires_grad_(False),
    "thawed": lambda module: module.requires_grad_(True),
}


@each_way
@pytest.mark.parametrize("change", changes)
def test_what_else_happens_to_parameters_before_backward(again, change):
    results = []
    for how in (again, lambda module, x: module(x)):
        torch.manual_seed(0)
        x, module = (
            random(2, 3),
            nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double(),
        )
        module[0].requires_grad_(change != "thawed")
        y = how(module, x)
        changes[change](module[0])
        y.sum().backward()
        results.append([x.grad, *(parameter.grad for parameter in module.parameters())])
    missing = [gradient is None for gradient in results[1]]
    assert [gradient is None for gradient in results[0]] == missing
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@each_way
def test_backward_in_inference_mode(again):
    x, module = random(2, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    y = again(module, x).sum()
    with torch.inference_mode():
        slope = grad(y, x)
    torch.testing.assert_close(slope, grad(module(x).sum(), x))


@each_way
@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad, torch.func.jacfwd])
def test_torch_func_and_forward_mode_raise(again, transform):
    with pytest.raises(RuntimeError, match="do not work under torch.func"):
        transform(lambda x: again(nn.Tanh(), x).sum())(random(3))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="have no forward mode"):
        again(nn.Tanh(), forward_ad.make_dual(random(3), random(3)))
