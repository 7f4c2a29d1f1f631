"""What a call of `involution2d` costs the processor, where the launches do nothing."""

import sys

import pytest
import torch

from helpers.ops.involution import cuda, involution2d, launch
from tools.benchmark import host_seconds, launches_that_do_nothing


@pytest.fixture
def plans(monkeypatch):
    """The names of the kernels for which a plan was made."""
    made = []

    def noted(*arguments, **options):
        planned = launch.plan(*arguments, **options)
        made.append(planned.name)
        return planned

    monkeypatch.setattr(cuda, "plan", noted)
    with launches_that_do_nothing():
        yield made


def test_a_plan_is_made_once_for_what_it_depends_on(plans):
    x = torch.randn(8, 16, 56, 56, requires_grad=True)
    weight = torch.randn(8, 1, 3, 3, 56, 56, requires_grad=True)
    for _ in range(3):
        involution2d(x, weight, padding=1).sum().backward()
    assert len(plans) == 3  # the output, and a gradient each
    involution2d(x.half(), weight.half(), padding=1)
    involution2d(x.to(memory_format=torch.channels_last), weight, padding=1)
    shifted = torch.randn(x.numel() + 1)[1:].view_as(x)
    involution2d(shifted, weight, padding=1)
    involution2d(x[:4], weight[:4], padding=1)
    assert len(plans) == 7
    assert plans[5] != plans[0]  # wide loads need aligned addresses
    involution2d(shifted.clone(), weight, padding=1)
    assert len(plans) == 7


def test_plans_are_forgotten_before_they_fill_the_memory(plans, monkeypatch):
    monkeypatch.setattr(cuda, "MOST_PLANS", 2)
    for size in (3, 4, 5, 3):
        involution2d(torch.ones(1, 1, size, size), torch.ones(1, 1, 1, 1, size, size))
    assert len(plans) == 4 and len(cuda._plans) == 2


def calls(function):
    """How many functions it calls, in Python and in C: time is noise where others work."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_a_warm_call_calls_few_functions():
    """`tools.benchmark.host_seconds` said 65 µs for the first and 221 for the other, at its best of
    1000 rounds of 3 calls on an AMD EPYC that was busy with other work."""
    x, weight = torch.randn(1, 16, 4, 4), torch.randn(1, 1, 3, 3, 4, 4)
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    ones = torch.ones_like(x)

    def gradients():
        torch.autograd.grad(involution2d(*leaves, padding=1), leaves, ones)

    with launches_that_do_nothing():
        for _ in range(5):  # the first few calls also fill caches of PyTorch's
            plain, both = (
                calls(lambda: involution2d(x, weight, padding=1)),
                calls(gradients),
            )
    assert 50 < plain <= 185
    assert 150 < both <= 500


def test_the_benchmark_times_what_it_names():
    best = host_seconds(rounds=1, calls=1)
    assert len(best) == 5 and all(0 < seconds < 1 for seconds in best.values())
