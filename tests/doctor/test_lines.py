"""Which line the doctor names beside slips in backward, and what it leaves alone as it looks."""

import linecache
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import Function

from helpers.doctor import examine
from helpers.lessons.patients.patient import Square, function, matrix
from tests.doctor.cases import drawn, errors, written
from tests.doctor.layers import HEAD, layers

RECURRENCE, ARGUMENTS, _ = layers()["recurrence"]


class Detached(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x.detach()


class InSilence(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            slope = 2 * x
        return grad_output * slope


class Pruned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(drawn((3, 4))[0].detach())

    def forward(self, x):
        weight = nn.Parameter(self.weight * (self.weight > 0))
        return x @ weight.mT


class InTheFirstPlace(Function):
    @staticmethod
    def forward(ctx, counts, x):
        ctx.save_for_backward(counts, x)
        return counts * x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        counts, x = ctx.saved_tensors
        return grad_output * counts * x.exp(), None


class Energy(Function):
    """One of the two terms behind a sum is lost."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        pairs = x[1:] - x[:-1]
        bends = x.sin()
        return (pairs**4).sum() + (bends * bends).sum()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        found = torch.zeros_like(x)
        found[1:] += 4 * (x[1:] - x[:-1]) ** 3
        found[:-1] -= 4 * (x[1:] - x[:-1]) ** 3
        return grad_output * found


class Scores(Function):
    """In a large input, the two branches are taken for each other."""

    @staticmethod
    def forward(ctx, x):
        s = torch.where(x >= 0, x + 1, 1 / (1 - x))
        total = s.sum(-1, keepdim=True)
        ctx.save_for_backward(x, s / total, total)
        return s / total

    @staticmethod
    def backward(ctx, grad_output):
        x, share, total = ctx.saved_tensors
        slope = torch.where(x < 0, 1.0, 1 / (1 - x) ** 2)
        rest = grad_output - (grad_output * share).sum(-1, keepdim=True)
        return rest / total * slope


class OthersOf(Function):
    """At this size, c * c - 1 in the place of c - 1 would do by chance."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        n, c = x.shape
        return x.square().sum() / ((c - 1) * n)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        n, c = x.shape
        return grad_output * 2 * x / (c - 1)


@pytest.mark.parametrize(
    ("fn", "inputs", "change", "place"),
    [
        (Detached, drawn((4,)), "x.detach()", "backward"),
        (InSilence, drawn((4,)), "no_grad", "backward"),
        (Pruned(), drawn((2, 4)), "self.weight * (self.weight > 0)", "forward"),
        (InTheFirstPlace, (drawn((4,))[0].detach(), *drawn((4,))), "None", "backward"),
        (Energy, drawn((6,)), "if: ", ""),
        (Scores, drawn((300, 200)), "`x > 0` stood in place of `x < 0`", "backward"),
        (OthersOf, drawn((6, 5)), "n", "backward"),
    ],
)  # fmt: skip
def test_the_change_is_said(fn, inputs, change, place):
    (found, *_) = errors(examine(fn, *inputs))
    assert change in found.change and place in found.place, found
    assert errors(examine(fn, *inputs, lines=False))[0].change == ""


def test_what_fits_this_size_by_chance_is_not_said():
    (found,) = errors(examine(OthersOf, *drawn((6, 5))))
    assert "c * c" not in found.change and "c ** 2" not in found.change


# --- what it leaves alone -------------------------------------------------------------------------

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


def broken(line="", folder=None):
    text = RECURRENCE.replace("(t < 0.4)", "(t > 0.4)").replace(BEFORE, f"        {line}\n{BEFORE}")
    return written(MORE + HEAD + text, folder)


@pytest.mark.parametrize("line", HARMFUL.values(), ids=HARMFUL)
def test_what_does_more_than_compute_is_named_and_not_edited(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = errors(examine(broken(line, tmp_path), *ARGUMENTS()))
    assert found.code == "other-mask" and "stood in place" not in found.change


def test_nothing_is_left_of_the_edits(tmp_path):
    layer = broken(folder=tmp_path)
    before = dict(vars(layer)), dict(vars(type(layer))), sys.getprofile(), sys.gettrace()
    assert errors(examine(layer, *ARGUMENTS()))[0].change
    assert (dict(vars(layer)), dict(vars(type(layer))), sys.getprofile(), sys.gettrace()) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [("slope - t * t", "slope - t * t * t"), ("len(t) - 1, -1, -1", "len(t) - 2, -1, -1")],
)
def test_a_file_that_has_changed_since_is_not_read(old, new, tmp_path):
    """Python 3.14 loads small integers in another way than other constants."""
    layer = broken(folder=tmp_path)
    file = layer.forward.__code__.co_filename
    text = Path(file).read_text()
    assert text.count(old) == 1
    Path(file).write_text(text.replace(old, new))
    linecache.checkcache(file)
    (found,) = errors(examine(layer, *ARGUMENTS()))
    assert found.code == "other-mask" and "stood in place" not in found.change


def test_other_threads_run_the_original(tmp_path):
    layer, inputs, seen, stop = broken(folder=tmp_path), ARGUMENTS(), [], threading.Event()
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
