"""Slips of the pen: each is made in right code, and the doctor says how to undo it."""

import itertools
import linecache
import re

import pytest
import torch

from helpers.doctor import examine
from tests.common import random

CODE = '''
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

def halved(t):
    return t / 2

class Layer(Function):
    """h = decay * h + w[rows] * clamp(tanh(x[perm])), rotated by 90 degrees, over 2."""
    @staticmethod
    def product(a, b):
        return torch.stack([a[0] * b[0] - a[1] * b[1], a[0] * b[1] + 3 * a[1] * b[0]])

    @staticmethod
    def forward(ctx, x, w, rows, perm, decay):
        t = x[perm].tanh()
        h, hs = torch.zeros_like(t[0]), []
        for k in range(len(t)):
            h = decay * h + w[rows[k]] * t[k].clamp(max=0.4)
            hs.append(h)
        ctx.save_for_backward(t, w, rows, perm)
        ctx.rates = decay, 1.0
        return halved(torch.stack(hs))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        t, w, rows, perm = ctx.saved_tensors
        decay, slope = ctx.rates
        g = halved(g)
        low, gt = t.clamp(max=0.4), torch.zeros_like(t)
        gw, carry = torch.zeros_like(w), torch.zeros_like(g[0])
        for k in range(len(t) - 1, -1, -1):
            carry = g[k] + decay * carry
            gt[k] = carry * w[rows[k]]
            gw[rows[k]] += carry * low[k]
        gt = gt * (t < 0.4) * (slope - t * t)
        return gt[perm.argsort()], gw, None, None, None
'''
SLIPS = [  # (what is right, what is written, what is said)
    ("decay, slope = ctx.rates", "slope, decay = ctx.rates", "were exchanged in `"),
    ("slope = ctx.rates", "slope = ctx.rates[0], 3.0", "`ctx.rates[0], 1.0` stood"),
    ("range(len(t) - 1, -1, -1)", "range(len(t) - 1, 0, -1)", "range(len(t) - 1, -1, -1)"),
    ("g[k] + decay * carry", "g[k] - decay * carry", "`g[k] + decay * carry` stood"),
    ("g[k] + decay * carry", "g[k] + carry", "`g[k] + carry * decay` stood"),
    ("gw[rows[k]] += carry", "gw[rows[k]] = carry", "`gw[rows[k]] += carry * low[k]` stood"),
    ("* low[k]", "* t[k]", "`low[k]` stood in place of `t[k]`"),
    ("w[rows[k]]\n            gw", "w[rows[0]]\n            gw", "`w[rows[k]]` stood"),
    ("(t < 0.4)", "(t > 0.4)", "`t < 0.4` stood in place of `t > 0.4`"),
    ("(slope - t * t)", "(slope + t * t)", "`slope - t * t` stood"),
    ("(slope - t * t)", "(t * t - slope)", "`slope - t * t` stood"),
    ("(slope - t * t)", "(slope - t)", "`slope - t * t` stood"),
    ("gt[perm.argsort()]", "gt[perm]", "`gt[perm.argsort()]` stood in place of `gt[perm]`"),
    ("gt[perm.argsort()]", "gt", "`gt[perm.argsort()], gw,"),
    ("            carry = g[k] + decay * carry\n            gt[k] = carry * w[rows[k]]\n",
     "            gt[k] = carry * w[rows[k]]\n            carry = g[k] + decay * carry\n",
     "` came after `"),
    ("save_for_backward(t, w,", "save_for_backward(x[perm], w,", "`t` stood in place of `x[perm]`"),
    ("ctx.rates = decay, 1.0", "ctx.rates = decay, 2.0", "`decay, 1.0` stood"),
    ("gt = gt * (t < 0.4)", "gt = gt.flip(0) * (t < 0.4)", "`gt` stood in place of `gt.flip(0)`"),
    ("* low[k]", "* low[k]\n            carry = carry * decay", "`carry` stood"),
    ("gw[rows[k]] += carry * low[k]\n", "gw[rows[k]] += carry * low[k]\n            gt = gt / 2\n",
     "`gt` stood in place of `gt / 2`"),
    ("        g = halved(g)\n", "", "were multiplied by 0.5"),
]  # fmt: skip
NUMBERS = itertools.count()


def made(text, name="Layer"):
    """What this source defines, which `inspect` finds."""
    file = f"<slip {next(NUMBERS)}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    names = {"__name__": "slip"}
    exec(compile(text, file, "exec"), names)
    return names[name]


def mended(text, finding):
    """The source with what the doctor says done in its line."""
    new, old = re.fullmatch(r"right if: `(.+)` stood in place of `(.+)`", finding.change).groups()
    lines, k = text.splitlines(True), int(re.match(r"line (\d+)", finding.place)[1]) - 1
    assert lines[k].count(old) == 1
    lines[k] = lines[k].replace(old, f"({new})" if "=" not in new else new)
    return "".join(lines)


def arguments():
    x, w = random(5, 3, seed=2), random(3, 3, seed=3)
    rows, perm = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([1, 2, 0, 4, 3])
    return x.requires_grad_(), w.requires_grad_(), rows, perm, 0.6


def errors(report):
    return [f for f in report.findings if f.severity == "error"]


def test_it_is_right():
    layer = made(CODE)
    assert examine(layer, *arguments()).ok
    assert torch.autograd.gradcheck(layer.apply, arguments())


@pytest.mark.parametrize(("right", "written", "said"), SLIPS, ids=lambda text: text[:30].strip())
def test_it_says_how_to_undo_a_slip(right, written, said):
    assert CODE.count(right) == 1
    text = CODE.replace(right, written)
    found = errors(examine(made(text), *arguments()))
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(made(text).apply, arguments())
    assert found and all(said in f.change for f in found), [f.change for f in found]
    if "stood in place" in found[0].change and len({f.change for f in found}) == 1:
        assert torch.autograd.gradcheck(made(mended(text, found[0])).apply, arguments())
