"""Rounds over a test suite: what turns it red, what is printed and written."""

import json
import os
import re
import signal
import sys

import pytest

HEAD = """
import os, signal
import torch
from torch.autograd import Function

def make(name, backward=lambda g, x: 2 * g * x, forward=lambda x: (x * x, x)):
    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            y, *saved = forward(x)
            ctx.save_for_backward(*saved)
            return y
        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)
    Made.__name__ = Made.__qualname__ = name
    return Made

def leaf(n=2):
    return torch.linspace(0.5, 1.5, n).requires_grad_()

Right = make("Right")
Half = make("Half", lambda g, x: g * x)
"""
WRONG = """
def test_one():
    Half.apply(leaf(2))
def test_two():
    Half.apply(leaf(3)), Right.apply(leaf())
"""
# Right, but its derivative is silently wrong, for a constant takes the place of x.
SECOND = """
Second = make("Second", lambda g, x: 2 * g * x.detach())
def test_second():
    Second.apply(leaf())
"""
FLAT = """
Round = make("Round", lambda g: g, lambda x: [x.round()])
def test_round():
    Round.apply(leaf(4))
"""
# None of these gives the derivative of its forward, and none is meant to.
ESTIMATORS = """
def score(x):  # REINFORCE: the action 1 is rewarded
    p = x.sigmoid()
    action = (torch.rand_like(p) < p).to(p)
    return action, action, p
def gumbel(x):
    soft = (x - torch.empty_like(x).exponential_().log()).softmax(-1)
    return torch.nn.functional.one_hot(soft.argmax(-1), x.shape[-1]).to(x), soft
def of_softmax(g, soft):
    return soft * (g - (g * soft).sum(-1, keepdim=True))
def test_score():
    make("Score", lambda g, action, p: g * action * (action - p), score).apply(leaf(3))
def test_gumbel():
    make("Gumbel", of_softmax, gumbel).apply(leaf(3))
def test_reversal():
    make("Reverse", lambda g: -g, lambda x: [x.view_as(x)]).apply(leaf(4))
def test_clipping():
    make("Clip", lambda g: g.clamp(-1, 1), lambda x: [x.view_as(x)]).apply(leaf(4))
"""


class Suite:
    """A suite in a folder of its own, run in this process."""

    def __init__(self, folder, capsys):
        self.folder, self.capsys = folder, capsys
        (folder / "pytest.ini").write_text("[pytest]\n")

    def __call__(self, tests, *options, doctor=("--doctor",)):
        """(exit status, what it printed, its JSON) of a run with these options."""
        (self.folder / "test_it.py").write_text(HEAD + tests)
        sys.modules.pop("test_it", None)
        told, ini = self.folder / "doctor.json", self.folder / "pytest.ini"
        status = pytest.main(
            [
                *("--disable-plugin-autoload", "-p", "helpers.doctor.plugin", *doctor),
                *(*options, "-c", str(ini), "--rootdir", str(self.folder)),
                *(f"--doctor-json={told}", "-p", "no:cacheprovider", "-W", "error"),
                *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
                str(self.folder / "test_it.py"),
            ]
        )
        out = " ".join(" ".join(self.capsys.readouterr()).split())
        functions = json.loads(told.read_text())["functions"] if told.exists() else []
        return status, out, functions


@pytest.fixture(autouse=True)
def heeds_ctrl_c():
    """Processes that a shell has put into the background do not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def suite(tmp_path, capsys):
    return Suite(tmp_path, capsys)


def outcomes(functions):
    return {one["full_name"]: one["outcome"] for one in functions}


def test_without_the_flag_nothing_is_examined(suite):
    status, out, _ = suite(WRONG, doctor=())
    assert status == 0 and "doctor" not in out


def test_a_suite_fails_and_names_the_first_test_and_the_line(suite):
    status, out, told = suite(WRONG)
    assert status == 1
    for words in (
        "2 passed",
        "Half: 1 error",
        "2 calls, 2 patterns examined",
        "multiplied by 0.5",
        "first in test_it.py::test_one",
        "in test_one, `Half.apply(leaf(2))`",
        "2 Functions, 1 wrong",
    ):
        assert words in out, out
    assert outcomes(told) == {"test_it.Half": "failed", "test_it.Right": "passed"}
    section = '11 Which line is wrong: "right if"'
    assert told[0]["findings"][0]["section"] == section
    assert f"read: chapter {section}" in out


def test_workers_of_xdist_tell_what_they_found(suite, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    junit = suite.folder / "junit.xml"
    status, out, told = suite(WRONG, "-p", "xdist", "-n2", f"--junitxml={junit}")
    assert status == 1 and "2 Functions, 1 wrong" in out and len(told) == 2
    assert "multiplied by 0.5" in junit.read_text()


def test_two_classes_of_one_name_are_two(suite):
    tests = """
def scale(k):
    class Scale(Function):
        @staticmethod
        def forward(ctx, x): return k * x
        @staticmethod
        def backward(ctx, g): return (k + 1) * g
    return Scale.apply
def test_it():
    scale(2)(leaf()), scale(3)(leaf())
"""
    status, out, told = suite(tests)
    assert (
        status == 1
        and out.count("Scale: 1 error") == 2
        and "2 Functions, 2 wrong" in out
    )
    assert [one["outcome"] for one in told] == ["failed", "failed"]


def test_options_that_leave_out_and_accept(suite):
    accept = "--doctor-unfaithful=Other,test_it.Half"
    status, out, _ = suite(WRONG, "--doctor-skip", "Ri*", accept)
    assert status == 0 and "left out by --doctor-skip: test_it.Right" in out
    assert "1 Function, none wrong" in out


def test_a_suite_of_estimators_is_quiet_once_its_advice_is_taken(suite):
    status, out, _ = suite(FLAT + ESTIMATORS + WRONG)
    assert status == 1 and "examine(" not in out
    assert out.count(" error (") == 3 and out.count(" warning (") == 1, out
    counts = "1 wrong, 2 wrong unless that is meant, 1 warned of"
    assert f"7 Functions, {counts}" in out
    advised = re.findall(r"`(--doctor-unfaithful=test_it\.\w+)` accepts it", out)
    assert {name.split(".")[1] for name in advised} == {"Clip", "Reverse", "Round"}
    names = "\n ".join(name.split("=")[1] for name in advised)
    (suite.folder / "pytest.ini").write_text(
        f"[pytest]\ndoctor_unfaithful =\n {names}\n"
    )
    status, out, _ = suite(FLAT + ESTIMATORS)
    assert status == 0 and "5 Functions, none wrong" in out
    assert " error (" not in out and " warning (" not in out, out


@pytest.mark.parametrize(
    "fail, tests, errors, warnings",
    [
        ("first", SECOND + FLAT, 0, 2),
        ("all", SECOND + FLAT, 2, 0),
        ("never", WRONG, 0, 1),
    ],
)
def test_what_turns_a_run_red_is_chosen(suite, fail, tests, errors, warnings):
    status, out, told = suite(tests, f"--doctor-fail={fail}")
    assert status == (errors > 0)
    assert [*outcomes(told).values()].count("failed") == errors
    assert (out.count("1 error"), out.count("1 warning")) == (errors, warnings), out


def test_only_what_a_baseline_does_not_hold_turns_a_run_red(suite):
    baseline = suite.folder / "known.txt"
    options = f"--doctor-baseline={baseline}", "--doctor-fail=all"
    status, _, _ = suite(WRONG + SECOND, *options, "--doctor-baseline-update")
    lines = baseline.read_text().splitlines()
    assert (
        status == 0 and lines == sorted(lines) and lines[0] == "test_it.Half gradient x"
    )
    assert [line.split()[0] for line in lines] == ["test_it.Half", "test_it.Second"]
    status, out, told = suite(WRONG + SECOND, *options)
    assert status == 0 and "none wrong" in out and all(one["ok"] for one in told)
    baseline.write_text(lines[1] + "\n")
    status, out, _ = suite(WRONG + SECOND, *options)
    assert status == 1 and "Half: 1 error" in out and "3 Functions, 1 wrong" in out


def test_what_was_not_examined_is_listed_and_strict_fails(suite):
    tests = """
Other = make("Other")
class Own(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl
class InPart(Function):
    @staticmethod
    def forward(ctx, x, c):
        ctx.save_for_backward(c)
        return x * c
    @staticmethod
    def backward(ctx, g):
        if ctx.needs_input_grad[1]:
            raise NotImplementedError
        return g * ctx.saved_tensors[0], None
def test_it():
    Right.apply(torch.ones(2)), Other.apply(leaf().as_subclass(Own))
    InPart.apply(leaf(), torch.ones(2))
"""
    for options, *expected in (
        ([], "skipped", "passed"),
        (["--doctor-strict"], *["failed"] * 2),
    ):
        status, out, told = suite(tests, *options)
        assert status == len(options)
        names = "test_it.Right", "test_it.Other", "test_it.InPart"
        due = expected[0], *expected
        assert outcomes(told) == dict(zip(names, due, strict=True))
        assert (
            "examined in part: test_it.InPart (`c`: it requires no gradient, and" in out
        )
        assert "test_it.Right (no input required a gradient)" in out
        assert "test_it.Other (the inputs could not be copied)" in out


# Only when it is examined, for the suite itself asks for no gradients.
KILLS = """
Kills = make("Kills", lambda g, x: os.kill(os.getpid(), signal.SIGSEGV))
def test_kills():
    Kills.apply(leaf())
"""


def test_a_function_that_ends_its_process_leaves_the_summary(suite):
    status, out, told = suite(KILLS + WRONG, "--doctor-child")
    assert status == 1 and "3 passed" in out and "3 Functions, 2 wrong" in out
    assert "process in which it was examined ended: SIGSEGV" in out
    assert outcomes(told)["test_it.Kills"] == "failed"


def test_tests_that_are_interrupted(suite):
    status, out, _ = suite(WRONG + "def test_three(): raise KeyboardInterrupt\n")
    assert status == pytest.ExitCode.INTERRUPTED
    assert "test_it.Half (the tests were interrupted)" in out


@pytest.mark.parametrize(
    "options, words",
    [
        (["--doctor-fail=often"], "doctor-fail is one of"),
        (["--doctor-seconds=long"], "doctor-seconds: could not convert"),
        (["--doctor-baseline=nowhere"], "there is no"),
        (["--doctor-baseline-update"], "needs --doctor-baseline"),
    ],
)
def test_options_that_say_nothing(suite, options, words):
    status, out, _ = suite(WRONG, *options)
    assert status == pytest.ExitCode.USAGE_ERROR and words in out
