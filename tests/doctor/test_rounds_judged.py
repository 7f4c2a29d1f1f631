"""What rounds judge, and what they say that they did not."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from helpers.doctor import examine, rounds
from helpers.doctor.program import bounds
from helpers.lessons.cases.case import Square, function
from helpers.lessons.cases.formulas import Quantize
from helpers.lessons.cases.healthy import (
    OfWeightOnly,
    RefusesX,
    RMSNorm,
    frozen_beside_weight,
)
from tests.doctor.programs import Half, leaf


@pytest.mark.parametrize(
    ("fn", "ok", "missed"),
    [(RMSNorm, False, False), (OfWeightOnly, True, False), (RefusesX, True, True)],
)
def test_a_gradient_of_a_frozen_input_is_judged(fn, ok, missed):
    with rounds() as found:
        fn.apply(*frozen_beside_weight())
    (visit,) = found.visits
    assert found.ok == ok and ("not judged: `x`" in str(found)) == bool(visit.missed) == missed


def test_what_was_not_judged_and_why_is_data():
    report = examine(OfWeightOnly, *frozen_beside_weight(), lines=False)
    (x,) = (one for one in report.judged if one.input == "x")
    told = json.loads(report.to_json())["judged"]
    assert x.meant and x.why in [one["why"] for one in told]


LOG = function(lambda x: x.log(), lambda g, x: g / x)  # right, until its input is negative


def test_a_later_call_with_nan_is_seen_with_more():
    def program():
        for shift in (0, 0.1, -0.7, 0.2):
            LOG.apply((leaf(3) + shift).detach().requires_grad_())

    with rounds() as found:
        program()
    assert "none wrong" in str(found).split("\n")[0] and "nan" not in str(found)
    with rounds(more=True) as found:
        program()
    (visit,) = found.visits
    assert (visit.calls, visit.patterns) == (4, 1)
    assert "Rounds: 1 Function, none wrong, 1 warned of" in str(found)
    assert "Forward makes nan or inf" in str(found)


class HalfLater(Square):
    """Wrong where the first element is above 1."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (1 if x.reshape(-1)[0] > 1 else 2) * g * x


def test_the_last_call_is_seen_with_more():
    def program():
        for shift in (-0.3, 1.0):
            HalfLater.apply((leaf(3) + shift).detach().requires_grad_())

    for more in (False, True):
        with rounds(more=more) as found:
            program()
        assert found.ok != more


def test_one_input_alone_may_be_unfaithful():
    for name, wrong in (("Quantize", False), ("Quantize(x)", True)):
        with rounds(faithful=[f"*{name}"]) as found:
            Quantize.apply(leaf(6), leaf())
        assert found.ok != wrong


def test_a_name_that_no_function_has_is_said():
    with rounds(skip=["Halve"], faithful=["Sqare(x)", "Half"]) as found:
        Half.apply(leaf(3))
    assert found.unmatched == ["Halve", "Sqare(x)"]
    assert "no Function is called Halve" in str(found)


POOL = ThreadPoolExecutor(1)


class InThreads(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return POOL.submit(torch.square, x).result()  # a child process has no such thread


def test_what_waits_for_threads_is_examined_here_when_asked():
    InThreads.apply(leaf(3))
    with rounds(seconds=2) as found:
        InThreads.apply(leaf(3))
    assert found.ok and "examine it here: `child=False`" in found.visits[0].missed
    with rounds(seconds=20, child=False) as found:
        InThreads.apply(leaf(3))
    assert found.visits[0].examined and not found.visits[0].missed, found


def test_what_has_started_threads_of_numba_is_examined_here(monkeypatch):
    module = type(torch)("numba.np.ufunc.parallel")
    module._is_initialized = True
    assert bounds.can_fork()
    monkeypatch.setitem(bounds.sys.modules, module.__name__, module)
    assert not bounds.can_fork()
