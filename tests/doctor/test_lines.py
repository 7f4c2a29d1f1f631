"""What the doctor leaves alone as it looks for a line."""

import ast
import linecache
import runpy
import sys
import threading

import pytest
import torch

from helpers.doctor import Budget, examine
from helpers.doctor.line.edits import Code
from helpers.doctor.line.grammar import EXPRESSIONS, edits_of
from helpers.doctor.line.sentences import written
from helpers.lessons.cases import PATIENTS
from helpers.lessons.cases.case import function, matrix
from helpers.lessons.cases.layers import Recurrence
from helpers.lessons.judge.source import edited, made_of, source_of
from tests.doctor.common import Half, errors, ones

ARGUMENTS = PATIENTS["Recurrence"].inputs
HEAD = """
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
CALLS = []

def shown(t):
    print(t)
    return t

def shrunk(t):
    while t.abs().max() > 1e9:
        t = t / 2
    return t
"""
HARMFUL = {  # what stands before the loop of backward
    "what is global": "CALLS.append(1)",
    "what the class holds": "Layer.calls = 1",
    "a builtin": "open('none.txt', 'a')",
    "a module": "import os",
    "an address": "address = g.data_ptr()",
    "NumPy": "g = torch.from_numpy(g.numpy())",
    "a helper that prints": "g = shown(g)",
    "a helper that may not end": "g = shrunk(g)",
}


def made(text):
    """The `Layer` of this source, whose lines can be quoted."""
    return made_of(text, {"__name__": "layer"}, "Layer")


def broken(line=""):
    """The source of a layer with a slip, and with this line in backward."""
    low = "        low, gt = t.clamp("
    edits = {
        "Recurrence": "Layer",
        "(t < 0.4)": "(t > 0.4)",
        low: f"        {line}\n{low}",
    }
    _, _, source = source_of(Recurrence).partition("class ")
    return HEAD + edited(f"class {source}", edits)


@pytest.mark.parametrize("line", HARMFUL.values(), ids=HARMFUL)
def test_what_does_more_than_compute_is_named_and_not_edited(
    line, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (found,) = errors(examine(made(broken(line)), *ARGUMENTS()))
    assert found.code == "other-mask" and "stood in place" not in found.change
    assert not found.first_wrong


@pytest.mark.parametrize(
    ("budget", "words"),
    [({"runs": 0}, "as often as"), ({"seconds": 0}, "by the clock")],
)
def test_a_search_that_stops_says_so(budget, words):
    report = examine(made(broken()), *ARGUMENTS(), lines=Budget(**budget))
    last = report.findings[-1]
    assert last.code == "stopped-looking" and words in last.message


def test_nothing_is_left_of_the_edits():
    layer = made(broken())

    def state():
        classes = dict(vars(layer)), dict(vars(type(layer)))
        return *classes, sys.getprofile(), sys.gettrace()

    before = state()
    assert errors(examine(layer, *ARGUMENTS()))[0].change
    assert state() == before


def test_a_file_that_has_changed_since_is_not_read(tmp_path):
    file = tmp_path / "layer.py"
    file.write_text(broken())
    layer = runpy.run_path(str(file))["Layer"]
    linecache.getlines(str(file))
    file.write_text(edited(broken(), {"slope - t * t": "slope - t * t * t"}))
    (found,) = errors(examine(layer, *ARGUMENTS()))
    assert found.code == "other-mask" and "stood in place" not in found.change


def test_other_threads_run_the_original():
    layer, inputs, seen = made(broken()), ARGUMENTS(), []
    stop = threading.Event()
    x = inputs[0].detach().requires_grad_()

    def gradient():
        return torch.autograd.grad(layer.apply(x, *inputs[1:]).sum(), x)[0]

    right = gradient()

    def run():
        while not stop.is_set():
            seen.append(torch.equal(gradient(), right))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert errors(examine(layer, *inputs))[0].change
    finally:
        stop.set()
        thread.join()
    assert seen and all(seen)


def test_a_loop_that_is_edited_ends():
    def backward(g, x):
        n = 5
        while n > 3:
            n = n - 1
        return g * n * x

    found = errors(examine(function(lambda x: x * x, backward), *matrix()))
    assert [f.code for f in found] == ["scaled"]


class Branches(torch.autograd.Function):
    """At other points, forward has other locals; a path is missing at all of them."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        s = x.sin()
        if x.sum() > 2.9:
            t = s.square()
            s = s + 0 * t
        return torch.sigmoid(s) * s

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x.sin())
        dx = g * x.sin() * gate * (1 - gate) * x.cos()
        return dx


def test_a_branch_that_another_point_does_not_take_hides_no_path():
    x = torch.tensor([0.8, 1.0, 1.2]).double()
    (found,) = errors(examine(Branches, x))
    assert "`dx` (line" in found.first_wrong, found
    assert "is missing" in found.first_wrong


def test_a_budget_serves_several_examinations():
    budget = Budget(4)
    for _once in range(3):
        report = examine(Half, ones(2, 3), lines=budget)
        assert report.findings[0].change, report


def starred(x):
    first, *others = x
    return first * others[0]


def test_an_edit_is_an_expression():
    edits = [*edits_of(Code(starred, None), {}, EXPRESSIONS)]
    texts = [text for edit in edits for text in edit.puts.values()]
    assert texts and all(ast.parse(text, mode="eval") for text in texts)


def test_an_operation_is_named_as_it_is_written():
    x = torch.ones(2, 2, requires_grad=True)
    w = torch.ones(2, 3, 2)
    named = {
        "x @ w.T + x": (x + x).grad_fn,
        "x.T @ w": x.T.grad_fn,
        "einsum('ij,jkl->ikl', x, w)": torch.einsum("ij,jkl->ikl", x, w).grad_fn,
        "x.square().mean(0)": x.square().grad_fn,
        "x / x.norm()": x.norm().grad_fn,
    }
    assert [*map(written, named.values(), named)] == (
        ["add", "T", "einsum", "square", "norm"]
    )
