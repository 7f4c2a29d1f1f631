"""The bounds of the doctor's rounds: seconds, a process of its own, what watching costs."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch.autograd import Function

from helpers.doctor import rounds
from helpers.doctor.__main__ import main
from helpers.doctor.program import bounds
from tests.doctor.programs import Half, leaf, that


def visits(*functions, **options):
    """{name: the visit} of rounds over these, each applied once."""
    with rounds(**options) as found:
        for k, cls in enumerate(functions):
            cls.apply(leaf(3 + k))
    return {visit.name: visit for visit in found.visits}


@pytest.fixture(params=["in a child", "in this process"])
def wherever(request, monkeypatch):
    if request.param == "in this process":
        monkeypatch.setattr(bounds, "can_fork", lambda: False)
    return request.param


def test_a_verdict_with_its_line(wherever):
    found = visits(Half)["Half"]
    assert [f.code for f in found.findings if f.severity == "error"] == ["scaled"]
    assert "right if" in str(found)


def test_what_takes_too_long_ends_with_its_share(wherever, capfd):
    naps = []
    slow = that(lambda: (naps.append(0), time.sleep(0.3)))
    start = time.monotonic()
    found = visits(Half, slow, seconds=4)
    assert time.monotonic() - start < 8
    assert not found["Half"].ok and found["Does"].ok and not found["Does"].examined
    assert found["Does"].missed.startswith("it used up its share of the seconds")
    assert "doctor: examining 2 of 2: `tests.doctor.programs.that.<locals>.Does`" in (
        capfd.readouterr().err
    )


def test_an_endless_loop_in_one_operation_is_ended():
    found = visits(that(lambda: math.factorial(3_000_000)), Half, seconds=4)  # C that asks nobody
    assert not found["Does"].examined and not found["Half"].ok


def test_what_has_no_seconds_left_is_said():
    assert visits(Half, seconds=0)["Half"].missed == "it used up its share of the seconds"


@pytest.mark.parametrize(
    "do, how",
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (os.abort, "SIGABRT"),
        (lambda: sys.exit(3), "SystemExit(3)"),
        (lambda: os._exit(3), "exit status 3"),
    ],
)
def test_what_ends_the_process_is_a_finding_of_this_function(do, how):
    found = visits(that(do), Half)
    (finding,) = found["Does"].findings
    assert finding.code == "crashed" and how in finding.message
    assert [f.code for f in found["Half"].findings if f.severity == "error"] == ["scaled"]


def test_system_exit_in_this_process(monkeypatch):
    monkeypatch.setattr(bounds, "can_fork", lambda: False)
    assert [f.code for f in visits(that(lambda: sys.exit(3)))["Does"].findings] == ["crashed"]


def test_who_was_killed_for_memory_is_not_accused():
    found = visits(that(lambda: os.kill(os.getpid(), signal.SIGKILL)))["Does"]
    assert found.ok and not found.examined and "memory ran out" in found.missed


def test_patterns_after_one_that_crashes_are_examined():
    class Picky(Half):
        @staticmethod
        def backward(ctx, grad_output):
            if len(grad_output) == 3:
                os.abort()
            return Half.backward(ctx, grad_output)

    with rounds() as found:
        Picky.apply(leaf(3)), Picky.apply(leaf(4))
    (visit,) = found.visits
    assert {f.code for f in visit.findings if f.severity == "error"} == {"crashed", "scaled"}


class Kept:
    """Told apart by what it is, so that no copy of it will do."""


KEPT = Kept()


class Through(Function):
    """Right, by autograd through a function that it is given, with a mark that must be KEPT."""

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


@pytest.mark.parametrize("mark", [KEPT, None])
def test_what_fails_with_copies_only_is_not_accused(mark, monkeypatch):
    if mark is None:  # not copied, so that it is the graph of the closure that matters
        monkeypatch.setattr(Kept, "__deepcopy__", lambda self, _: self, raising=False)
    with rounds() as found:
        scale = (2 * leaf(1)).exp()  # the program's own graph, which its backward frees
        Through.apply(leaf(3), lambda x: (x * scale) ** 2, KEPT).sum().backward()
        scale.sum().backward()
    (visit,) = found.visits
    assert visit.ok and not visit.examined and "called again with copies" in visit.missed


def test_an_examination_leaves_nothing_in_the_process(monkeypatch):
    seen, pids, fork = [], [], os.fork
    monkeypatch.setattr(os, "fork", lambda: pids.append(fork()) or pids[-1])
    visits(that(lambda: seen.append(torch.is_grad_enabled())))
    assert seen == []
    (pid,) = pids
    with pytest.raises(ChildProcessError):  # it is gone
        os.waitpid(pid, os.WNOHANG)


COMPILED_FIRST = """
import torch
from helpers.doctor import rounds
from tests.doctor.programs import Half, leaf

torch.compile(torch.sin, backend="eager")(torch.ones(3))  # before any backward pass
with rounds() as found:
    Half.apply(leaf(3))
print(found.visits[0].findings[0].code)
"""


def test_what_was_compiled_before_the_first_backward_pass():
    """Autograd then has threads, and refuses to run in a child, which is no fault of a Function."""
    run = subprocess.run([sys.executable, "-c", COMPILED_FIRST], capture_output=True, text=True)
    last = run.stdout.splitlines()[-1:]  # on another torch, the course says so first
    assert last == ["scaled"], run.stdout + run.stderr


def test_several_threads_of_the_parent():
    """A child of a process whose OpenMP threads have worked does not wait for them."""
    torch.set_num_threads(2)
    try:
        x = torch.randn(600, 600, requires_grad=True)
        (x @ x).exp().sum().backward()
        with rounds(seconds=20) as found:
            Half.apply(torch.randn(300, 300, requires_grad=True))
    finally:
        torch.set_num_threads(1)
    (visit,) = found.visits
    assert visit.examined and not visit.ok


def test_seconds_of_the_command_line(tmp_path, capsys):
    file = tmp_path / "program.py"
    file.write_text("""
import time, torch
from tests.doctor.programs import Half, leaf, that
that(lambda: time.sleep(99)).apply(leaf(3))
Half.apply(leaf(99))
""")
    assert main(["--seconds", "3", "--accept", "Half", "--run", str(file)]) == 0
    assert "it used up its share of the seconds" in capsys.readouterr().out
    assert main(["--skip", "Do*", "--run", str(file)]) == 1
    assert "Rounds: 1 Function, 1 wrong" in capsys.readouterr().out
