"""What the doctor leaves alone as it looks for a line; cases_lines.py holds which it names."""

import linecache
import runpy
import sys
import threading

import pytest
import torch

from helpers.doctor import Budget, examine
from helpers.doctor.function.subject import Subject
from helpers.doctor.line.goals import backward_codes, in_place
from helpers.doctor.line.grammar import lines_of
from helpers.lessons.judge.source import made_of
from helpers.lessons.patients.patient import function, matrix
from tests.doctor.cases import errors, made
from tests.doctor.layers import HEAD, layers

RECURRENCE, ARGUMENTS, _ = layers()["recurrence"]


HARMFUL = {  # what stands before the loop of backward
    "what is global": "CALLS.append(1)",
    "what the class holds": "Layer.calls = 1",
    "a builtin": "open('none.txt', 'a')",
    "a module": "import os",
    "an address": "address = g.data_ptr()",
    "NumPy": "g = torch.from_numpy(g.numpy())",
    "a helper that prints": "g = shown(g)",
    "a helper that may not end": "g = shrunk(g)",
    "another thing's method": "g = Thing().same(g)",
}
MORE = """
CALLS = []

def shown(t):
    print(t)
    return t

def shrunk(t):
    while t.abs().max() > 1e9:
        t = t / 2
    return t

class Thing:
    def same(self, t):
        return t
"""
BEFORE = "        low, gt = t.clamp("


def broken(line=""):
    """The source of a layer with a slip, and with this line in backward."""
    text = RECURRENCE.replace("(t < 0.4)", "(t > 0.4)").replace(BEFORE, f"        {line}\n{BEFORE}")
    return MORE + HEAD + text


@pytest.mark.parametrize("line", HARMFUL.values(), ids=HARMFUL)
def test_what_does_more_than_compute_is_named_and_not_edited(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = errors(examine(made(broken(line)), *ARGUMENTS()))
    assert found.code == "other-mask" and "stood in place" not in found.change


@pytest.mark.parametrize(
    ("line", "is_edited"), [("", True), (HARMFUL["a helper that prints"], False)]
)
def test_a_namespace_without_a_name(line, is_edited):
    """Where `exec` makes a class, nothing need say of which module it is."""
    (found,) = errors(examine(made_of(broken(line), {}, "Layer"), *ARGUMENTS()))
    assert found.code == "other-mask" and ("stood in place" in found.change) == is_edited
    text, inputs, _ = layers()["convolution"]
    assert examine(made_of(HEAD + text, {}, "Layer"), *inputs()).ok  # a whole number among them


ALIAS = """
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x + x * x / 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        total = START
        total = g * x
        return total
"""


@pytest.mark.parametrize(("start", "is_cure"), [("g", False), ("g.clone()", True)])
def test_what_writes_into_grad_output_is_no_cure(start, is_cure):
    (x,), layer = matrix(), made(HEAD + ALIAS.replace("START", start))
    subject = Subject(layer, (x,), {})
    (code,) = backward_codes(subject)
    (edit,) = (edit for edit in lines_of(code) if "`total += g * x`" in str(edit.said))

    def is_right():
        return torch.equal(subject.gradients([x], [torch.ones_like(x)])[0], 1 + x)

    assert not is_right() and in_place(subject, edit, is_right) == is_cure


def test_a_search_that_stops_says_so():
    note = examine(made(broken()), *ARGUMENTS(), lines=Budget(runs=0)).findings[-1]
    assert note.code == "stopped-looking" and note.evidence["runs"] == 0


def test_nothing_is_left_of_the_edits():
    layer = made(broken())
    before = dict(vars(layer)), dict(vars(type(layer))), sys.getprofile(), sys.gettrace()
    assert errors(examine(layer, *ARGUMENTS()))[0].change
    assert (dict(vars(layer)), dict(vars(type(layer))), sys.getprofile(), sys.gettrace()) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [("slope - t * t", "slope - t * t * t"), ("len(t) - 1, -1, -1", "len(t) - 2, -1, -1")],
)
def test_a_file_that_has_changed_since_is_not_read(old, new, tmp_path):
    """Python 3.14 loads small integers in another way than other constants."""
    file = tmp_path / "layer.py"
    file.write_text(broken())
    layer = runpy.run_path(str(file))["Layer"]
    linecache.getlines(str(file))
    assert broken().count(old) == 1
    file.write_text(broken().replace(old, new))
    (found,) = errors(examine(layer, *ARGUMENTS()))
    assert found.code == "other-mask" and "stood in place" not in found.change


def test_other_threads_run_the_original():
    layer, inputs, seen, stop = made(broken()), ARGUMENTS(), [], threading.Event()
    x = inputs[0].detach().requires_grad_()
    right = torch.autograd.grad(layer.apply(x, *inputs[1:]).sum(), x)[0]

    def run():
        while not stop.is_set():
            grad = torch.autograd.grad(layer.apply(x, *inputs[1:]).sum(), x)[0]
            seen.append(torch.equal(grad, right))

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
