"""What the doctor promises callers: no trace, little time, no exception swallowed."""

import random
import signal
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx, FunctionMeta

from helpers.doctor import examine
from helpers.lessons.cases.case import draw, function
from tests.doctor.common import Half, errors, ones, that


class Disturbing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        torch.manual_seed(1)
        random.random(), np.random.rand()
        torch.set_default_dtype(torch.float16)
        torch.set_grad_enabled(False)
        warnings.warn("heard", stacklevel=1)
        print("heard")
        x.add_(1)
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.mul_(2), grad_output


def settings():
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        list(warnings.filters),
        sys.stdout,
        FunctionCtx.save_for_backward,
        BackwardCFunction.apply,
        dict(vars(FunctionMeta)),
    )


def test_nothing_is_changed(capsys):
    x, y = draw((3, 4), (3, 4))
    x.requires_grad_().grad = torch.full_like(x, 3)
    before = x.detach().clone(), x._version, y.clone(), y._version
    with torch.no_grad(), torch.autograd.set_detect_anomaly(True, check_nan=False):
        expected = settings()
        examine(Disturbing, x, y)
        examine(
            torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(4)), y.float()
        )
        assert settings() == expected
    assert torch.equal(x, before[0]) and x._version == before[1] and x.requires_grad
    assert torch.equal(y, before[2]) and y._version == before[3] and not y.requires_grad
    assert torch.equal(x.grad, torch.full_like(x, 3))
    assert capsys.readouterr() == ("", "")


def test_a_module_is_not_changed():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    before = {name: t.clone() for name, t in module.state_dict().items()}
    assert examine(module, torch.rand(5, 4)).ok
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_works_under_inference_mode():
    with torch.inference_mode():
        assert examine(torch.sin, ones(3)).ok
        assert torch.is_inference_mode_enabled()


def test_backward_runs_in_the_thread_that_is_watched_on_a_gpu_too():
    """Otherwise the engine runs it in a thread of the device."""
    elsewhere = []
    right = that(lambda: elsewhere.append(torch._C._is_multithreading_enabled()))
    assert examine(right, *draw((4,))).ok
    assert elsewhere and not any(elsewhere)


def test_the_text_is_the_same_whatever_the_seed_and_the_threads():
    texts = set()
    for threads, seed in ((1, 0), (2, 1)):
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        texts |= {str(examine(Half, *draw((3, 4)))) for _ in range(2)}
    torch.set_num_threads(1)
    assert len(texts) == 1 and "0x" not in texts.pop()


def test_of_a_million_elements_forward_is_called_a_few_times_only():
    calls = []
    assert examine(lambda x: calls.append(x) or torch.tanh(x), *draw((1000, 1000))).ok
    assert len(calls) < 60


def calls_of(**methods):
    """How often an examination calls a right Function with these methods."""
    calls = []

    def forward(ctx, x):
        calls.append(x)
        return 2 * x

    bodies = {"forward": forward, "backward": lambda ctx, g: 2 * g, **methods}
    bodies = {name: staticmethod(body) for name, body in bodies.items()}
    assert examine(type("Counted", (torch.autograd.Function,), bodies), ones(3)).ok
    return len(calls)


def test_what_is_not_declared_costs_no_call():
    plain = calls_of()
    assert plain < 160 and plain < calls_of(jvp=lambda ctx, t: 2 * t)


class TimeLimitError(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer signal")
@pytest.mark.parametrize("sleeps", ["forward", "backward"])
def test_a_time_limit_of_the_caller_is_no_finding(sleeps):
    def stop(*_):
        raise TimeLimitError

    def doubled(t, where):
        time.sleep(0.2 * (sleeps == where))
        return 2 * t

    asleep = function(
        lambda x: doubled(x, "forward"), lambda g, x: doubled(g, "backward")
    )
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(TimeLimitError):
            examine(asleep, ones(3))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Deep(torch.nn.Sequential):
    """Of many parameters, of which the first `wrong` are halved."""

    def __init__(self, wrong=0, layers=12):
        super().__init__(*[torch.nn.Linear(8, 8) for _ in range(layers)])
        self.wrong = wrong

    def forward(self, x):
        for k, layer in enumerate(self):
            weight = Half.apply(layer.weight) if k < self.wrong else layer.weight
            x = torch.tanh(torch.nn.functional.linear(x, weight, layer.bias))
        return x


@pytest.mark.parametrize(("wrong", "at_most"), [(0, 150), (1, 1500), (12, 1500)])
def test_many_inputs_are_judged_together(wrong, at_most):
    calls, hooks = [], torch.nn.modules.module
    handle = hooks.register_module_forward_pre_hook(
        lambda module, _: calls.append(1) if isinstance(module, Deep) else None
    )
    try:
        report = examine(Deep(wrong).double(), *draw((3, 8)), lines=False)
    finally:
        handle.remove()
    assert len(calls) < at_most
    found = errors(report)
    assert {f.code for f in found} == ({"scaled"} if wrong else set())
    assert wrong != 1 or [f.input for f in found] == ["0.weight"]
    assert wrong != 12 or str(report).count("that would take long)") == 24


def test_a_compiled_function_is_examined_and_still_works():
    compiled = torch.compile(lambda x: x.sin() * x, backend="eager", fullgraph=True)
    assert examine(compiled, ones(3)).ok
    assert examine(torch.sin, ones(3)).ok and compiled(ones(3)).numel() == 3
