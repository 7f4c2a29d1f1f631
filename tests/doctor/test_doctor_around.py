"""Edits that are foreseen many at once, and slips of loops, indices and sizes that they undo."""

import ast
import inspect

import pytest
import torch
from torch import nn
from torch.autograd import Function

from helpers.doctor import examine
from helpers.doctor.around import Around, Foreseen, Operands, key_of, written
from helpers.doctor.edits import parsed
from helpers.doctor.harmless import computes
from tests.common import random
from tests.doctor.small_slips import BACKWARD, HEAD, SLIPS
from tests.doctor.test_doctor_edits import errors, made


def layer_of(forward, backward):
    return made(HEAD + forward + BACKWARD + backward + "\n")


def inputs_of(shapes):
    return [random(*shape, seed=k).requires_grad_() for k, shape in enumerate(shapes)]


@pytest.mark.parametrize(("shapes", "n", "forward", "backward", "said"), SLIPS.values(), ids=SLIPS)
def test_it_says_how_to_undo_this(shapes, n, forward, backward, said):
    found = errors(examine(layer_of(forward, backward), *inputs_of(shapes), n))
    assert found and all(said in f.change for f in found), [f.change for f in found]


def test_what_mends_this_call_only_is_said_so():
    forward = "        return torch.fft.rfft(x).real * w"
    backward = """        size = x.shape[1]
        share = x.new_full((size // 2 + 1,), 0.5)
        share[0] = 1.0
        gx = torch.fft.irfft(torch.complex(g * w * share, 0 * g), n=size) * size
        return gx, (g * torch.fft.rfft(x).real).sum(), None"""
    (found,) = errors(examine(layer_of(forward, backward), *inputs_of([(3, 8), ()]), 1))
    assert found.change.startswith("right if: `share[[0, -1]] = 1.0` stood")
    assert found.change.endswith(", for this call at least")  # seven have no middle


@pytest.mark.parametrize("template", ["{0} * {1}", "{0} - {1}", "{0} * ~{1}", "{0} / {1}", "-{}"])
def test_what_is_foreseen_at_once_is_what_each_makes(template):
    value, slope = random(3, 2), random(5, 6, seed=1)
    scope = {"a": random(2, seed=2), "b": random(3, 1, seed=3), "mask": random(3, 2, seed=4) > 0}
    names = {"mask": 0} if "~" in template else {"a": 0, "b": 1}
    codes = [compile(name, "<name>", "eval") for name in names]

    class Part:
        is_reduced = True

    seen = Foreseen({key_of(template, name): None for name in names}, names, Part)
    for turn in range(2):  # a loop
        seen.see(value + turn, slope, Operands(codes, scope))
    for name in names:
        edit = Around((None, None, parsed("value")), template, name)
        change, idle = seen.of(edit)
        news = [written(template)(value + turn, scope[name]) for turn in range(2)]
        by = sum(new - value - turn for turn, new in enumerate(news))
        torch.testing.assert_close(change, slope @ by.reshape(-1))
        assert not idle


def test_an_edit_around_something_is_parsed_only_when_it_is_asked_for():
    node = parsed("x.sum()")
    edit = Around(("owner", "key", node), "{0} * ~{1}", "mask")
    assert "puts" not in vars(edit)
    ((owner, key, new),) = edit.puts
    assert (owner, key, ast.unparse(new)) == ("owner", "key", "x.sum() * ~mask")


class Turns(Function):
    """Complex: what goes across the radius lacks its factor."""

    @staticmethod
    def forward(ctx, z, b):
        ctx.save_for_backward(z, b)
        r = z.abs()
        return torch.relu(r + b) * z / r

    @staticmethod
    def backward(ctx, g):
        z, b = ctx.saved_tensors
        r = z.abs()
        u = z / r
        radial = (u.conj() * g).real
        across = g - radial * u
        return radial * u + across, (radial * ((r + b) > 0)).sum(0)


def test_complex_numbers_are_foreseen():
    z = torch.complex(random(4, 3), random(4, 3, seed=1)).requires_grad_()
    found = errors(examine(Turns, z, random(3, seed=2).abs().requires_grad_()))
    assert [f.input for f in found] == ["z"] and "(r + b) / r" in found[0].change


class Pools(Function):
    """The index that it keeps lacks the width of a window."""

    @staticmethod
    def forward(ctx, x, k):
        n, t = x.shape
        value, index = x.reshape(n, t // k, k).max(-1)
        index = index + torch.arange(t // k)
        ctx.save_for_backward(index)
        ctx.t = t
        return value

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(g.shape[0], ctx.t).scatter_add(1, index, g), None


class Segments(Function):
    """The indices that it keeps in a list lack the first one of their segment."""

    @staticmethod
    def forward(ctx, x, ends):
        values, where = [], []
        for a, b in zip(ends[:-1], ends[1:], strict=True):
            value, k = x[a:b].max(0)
            values.append(value)
            where.append(k)
        ctx.rows = len(x)
        ctx.save_for_backward(torch.stack(where))
        return torch.stack(values)

    @staticmethod
    def backward(ctx, g):
        (where,) = ctx.saved_tensors
        return g.new_zeros(ctx.rows, g.shape[1]).scatter_add(0, where, g), None


@pytest.mark.parametrize(
    ("function", "x", "more", "said"),
    [
        (Pools, random(4, 15), 3, "`torch.arange(t // k) * k` stood in place of"),
        (Segments, random(9, 4), [0, 2, 5, 9], "`where.append(k + a)` stood in place of"),
    ],
)
def test_an_index_that_forward_keeps_is_mended_there(function, x, more, said):
    (found,) = errors(examine(function, x.requires_grad_(), more))
    assert said in found.change and found.place.endswith("in `forward`")


class Guards(Function):
    """It asks whether another input requires a gradient."""

    @staticmethod
    def forward(ctx, x, scale, shift):
        ctx.save_for_backward(x, scale)
        return x * scale + shift

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        gx = g * scale if ctx.needs_input_grad[1] else None
        return gx, None, g.sum(0)


def test_the_input_that_is_meant_comes_first():
    x, shift = random(4, 3).requires_grad_(), random(3, seed=2).requires_grad_()
    scale = random(3, seed=1).detach()
    found = errors(examine(lambda x, shift: Guards.apply(x, scale, shift), x, shift))
    assert found[0].input == "x" and "`ctx.needs_input_grad[0]` stood" in found[0].change


def height(r, z):
    square = r**2 - z**2
    root = torch.sqrt(square)
    return torch.where(square > 0, root, torch.zeros_like(root))


def test_where_nan_is_made_without_a_backward():
    r, z = torch.full((4,), 0.5).double(), torch.tensor([0.1, 0.7, -0.2, -0.9]).double()
    found = errors(examine(height, r.requires_grad_(), z.requires_grad_()))
    line = inspect.getsourcelines(height)[1] + 2
    assert {f.code for f in found} == {"backward-not-finite"}
    for finding in found:
        assert f": `root = torch.sqrt(square)` (line {line}, in `height`), which" in finding.remedy


class Silent(Function):
    @staticmethod
    def forward(ctx, x, tau):
        ctx.save_for_backward(x, tau)
        return x * tau.exp()

    @staticmethod
    def backward(ctx, g):
        _, tau = ctx.saved_tensors
        return g * tau.exp(), None


class Curve(nn.Module):
    def forward(self, x, gaps):
        return Silent.apply(x, gaps.cumsum(0))


def test_the_function_within_that_returns_none_is_named():
    found = errors(examine(Curve(), random(4).requires_grad_(), random(4, seed=1).requires_grad_()))
    assert [(f.code, f.input) for f in found] == [("gradient-none", "gaps")]
    assert found[0].remedy.startswith("`Silent`, which is wrong by itself: The gradient of `tau`")


TABLES = {}


def table(n, base):
    if n not in TABLES:  # whatever the base
        TABLES[n] = base ** -torch.arange(n, dtype=torch.float64)
    return TABLES[n]


class Scales(Function):
    @staticmethod
    def forward(ctx, x, base):
        ctx.base = base
        return x * base ** -torch.arange(len(x), dtype=x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g * table(len(g), ctx.base), None


def two_scales(x):
    return Scales.apply(x, 2.0) + Scales.apply(x, 5.0)


def test_what_is_kept_within_one_call_is_named():
    TABLES.clear()
    (found,) = errors(examine(two_scales, random(5).requires_grad_()))
    assert found.code == "first-call-kept" and ": `TABLES`; a key must" in found.remedy


class MadeForEachDtype(nn.Module):
    """It keeps what it has made of its parameter, without a gradient, until the dtype changes."""

    def __init__(self):
        super().__init__()
        self.log, self.kept = nn.Parameter(torch.tensor([0.3, -0.2, 0.5])), None

    def forward(self, x):
        if self.kept is None or self.kept.dtype != self.log.dtype:
            self.kept = self.log.detach().exp()
        return x * self.kept


def test_what_is_kept_of_a_parameter_until_the_dtype_changes():
    (found,) = errors(examine(MadeForEachDtype(), random(4, 3).detach().float()))
    assert (found.code, found.input) == ("parameter-cached", "log")
    assert found.remedy.endswith("once, and keeps: `self.kept`")


LOOPS = {  # a `while`, and whether a helper with it ends, whatever it is given
    "h = 1\n    while h < n:\n        h *= 2": True,
    "h = 1\n    while h < n:\n        h += 1": True,
    "h = 0\n    while h < n:\n        h *= 2": False,
    "h = 1\n    while h < n:\n        h *= 2\n        h = 1": False,
    "h = 1\n    while h < n:\n        if n > 3:\n            continue\n        h *= 2": False,
    "h = 1\n    while h < n:\n        h *= 2\n        n += h": False,
}


@pytest.mark.parametrize(("loop", "is_to_end"), LOOPS.items())
def test_a_loop_that_counts_is_known_to_end(loop, is_to_end):
    helper = made(f"def helper(t):\n    n = len(t)\n    {loop}\n    return t * h\n", "helper")
    assert computes(helper, 1) is is_to_end
