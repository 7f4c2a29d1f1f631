"""Examinations in a child process, and their seconds."""

import math
import os
import signal
import sys
import time

import pytest
import torch
from torch.autograd import Function

from helpers.doctor import rounds
from tests.doctor.common import Half, Square, errors, leaf, that, visits


def both(*functions):
    for k, cls in enumerate(functions):
        cls.apply(leaf(3 + k))


@pytest.fixture(params=[False, True], ids=["here", "in a child"])
def child(request):
    return request.param


def test_a_verdict_with_its_line(child):
    found = visits(lambda: both(Half), child=child)["Half"]
    assert [f.code for f in errors(found)] == ["scaled"] and "right if" in str(found)


def test_what_takes_too_long_ends_with_its_share(child):
    slow = that(lambda: time.sleep(0.3))
    start = time.monotonic()
    found = visits(lambda: both(Half, slow), seconds=4, child=child)
    assert time.monotonic() - start < 8
    assert not found["Half"].ok and not found["Does"].examined
    assert found["Does"].missed.startswith("it used up its share of the seconds")


def test_an_endless_loop_in_one_operation_is_ended():
    endless = that(lambda: math.factorial(6_000_000))  # C that asks nobody
    found = visits(lambda: both(endless, Half), seconds=8, child=True)
    assert not found["Does"].examined and not found["Half"].ok


def test_what_has_no_seconds_left_is_said():
    found = visits(lambda: both(Half), seconds=0)["Half"]
    assert found.missed == "it used up its share of the seconds"


@pytest.mark.parametrize(
    ("do", "how"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (os.abort, "SIGABRT"),
        (lambda: sys.exit(3), "SystemExit(3)"),
        (lambda: os._exit(3), "exit status 3"),
    ],
)
def test_what_ends_the_process_is_a_finding_of_this_function(do, how):
    found = visits(lambda: both(that(do), Half), child=True)
    (finding,) = found["Does"].findings
    assert finding.code == "crashed" and how in finding.message
    assert [f.code for f in errors(found["Half"])] == ["scaled"]


def test_who_was_killed_for_memory_is_not_accused():
    killed = that(lambda: os.kill(os.getpid(), signal.SIGKILL))
    found = visits(lambda: both(killed), child=True)["Does"]
    assert found.ok and not found.examined and "memory ran out" in found.missed


def test_patterns_after_one_that_crashes_are_examined():
    class Picky(Half):
        @staticmethod
        def backward(ctx, grad_output):
            if len(grad_output) == 3:
                os.abort()
            return Half.backward(ctx, grad_output)

    found = visits(lambda: both(Picky, Picky), child=True)["Picky"]
    assert {f.code for f in errors(found)} == {"crashed", "scaled"}


class Kept:
    """Told apart by what it is, so that no copy of it will do."""


KEPT = Kept()


class Through(Function):
    """Right, through a function that it is given, with a mark that must be KEPT."""

    @staticmethod
    def forward(ctx, x, fn, mark):
        if mark is not KEPT:
            raise TypeError("another mark")
        ctx.fn = fn
        ctx.save_for_backward(x)
        with torch.no_grad():
            return fn(x)

    @staticmethod
    def backward(ctx, grad_output):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            ctx.fn(x).backward(grad_output, retain_graph=True)
        return x.grad, None, None


@pytest.mark.parametrize("is_copied", [True, False])
def test_what_fails_with_copies_only_is_not_accused(is_copied, monkeypatch):
    if not is_copied:  # so that it is the graph of the closure that matters
        monkeypatch.setattr(Kept, "__deepcopy__", lambda self, _: self, raising=False)
    with rounds() as found:
        scale = (2 * leaf(1)).exp()  # the program's own graph, which its backward frees
        Through.apply(leaf(3), lambda x: (x * scale) ** 2, KEPT).sum().backward()
        scale.sum().backward()
    (visit,) = found.visits
    assert visit.ok and not visit.examined
    assert "called again with copies" in visit.missed


def test_a_child_leaves_nothing_in_the_process(monkeypatch):
    seen, pids, fork = [], [], os.fork
    monkeypatch.setattr(os, "fork", lambda: pids.append(fork()) or pids[-1])
    both_right = that(lambda: seen.append(1)), Square
    found = visits(lambda: both(*both_right), child=True)
    assert seen == [] and all(visit.examined for visit in found.values())
    for pid in pids:
        with pytest.raises(ChildProcessError):  # it is gone
            os.waitpid(pid, os.WNOHANG)
