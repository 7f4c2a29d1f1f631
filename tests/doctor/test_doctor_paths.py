"""What the doctor says of forward: made in the source by hand, it is what it says."""

import inspect
import re
import textwrap
import threading

import pytest
import torch
from torch import nn
from torch.autograd import Function

from helpers.doctor import examine
from helpers.doctor.cuts import Uncut, uncut
from helpers.doctor.rewritten import NothingFound
from helpers.doctor.through import operands
from tests.common import random
from tests.doctor import other_forwards
from tests.doctor.other_forwards import (
    Carried,
    Chunked,
    Decay,
    Energy,
    Filled,
    Form,
    Gated,
    Migrated,
    Mish,
    Mixed,
    Normal,
    OneSided,
    Outer,
    Phase,
    Pieces,
    Pooled,
    Power,
    Ramp,
    Recurrent,
    Slices,
    Smoothed,
    Sums,
    Twice,
    Weighted,
)  # fmt: skip

INDEX = torch.tensor([1, 0, 3])
AS_IF = [  # (Function, shapes, others, what is said, the same in the source of forward)
    (Mish, [(3, 4)], (), "the derivative of `torch.nn.functional.softplus(x)` were 1",
     ("softplus(x)\n", "softplus(x).detach() + x - x.detach()\n")),
    (Energy, [(6,)], (), "`(bends * bends).sum()` were a constant in",
     ("(bends * bends).sum()", "(bends * bends).sum().detach()")),
    (OneSided, [(4, 5)], (), "`x[:, :-1]` were a constant in `x[:, 1:] - x[:, :-1]`, and `x[:-1]`",
     [("- x[:-1]", "- x[:-1].detach()"), ("- x[:, :-1]", "- x[:, :-1].detach()")]),
    (Smoothed, [(3, 4)], (INDEX, 0.2), "`eps` were 0", ("logs =", "eps = 0; logs =")),
    (Power, [(3, 4)], (5,), "`n` were 4", ("** n", "** (n - 1)")),
    (Ramp, [(3, 4), (4,)], (),
     "the derivative of `torch.relu(x + b)` with respect to `x + b` were 1",
     ("torch.relu(x + b)", "torch.relu(x + b).detach() + (x + b) - (x + b).detach()")),
    (Mixed, [(3, 4), (4, 2)], (), "`sigmoid` stood in place of `tanh` in `torch.tanh(x)`",
     ("torch.tanh(x)", "torch.sigmoid(x)")),
    (Normal, [(3, 4), (4,)], (), "`z` stood in place of `z / 2`", ("erf(z / 2)", "erf(z)")),
    (Form, [(3, 4), (4, 4)], (), "`a` were transposed in the derivative of `x @ a`",
     ("y = x @ a", "y = (x @ a).detach() + x @ a.mT - (x @ a.mT).detach()")),
    (Sums, [(4, 5)], (), "0 stood in place of 1 in the derivative of `x.cumsum(1)`",
     ("x.cumsum(1)", "(x.cumsum(1).detach() + x.cumsum(0) - x.cumsum(0).detach())")),
    (Gated, [(3, 4), (3, 4), (3, 4)], (),
     "`a` stood in place of `b` in the derivative of `a.sin() * b`",
     ("a.sin() * b", "a.sin() * a.detach() + a.sin().detach() * b - (a.sin() * a).detach()")),
    (Weighted, [(3, 4)], (random(3, 4, seed=5).detach(),),
     "the derivative of `(x * w).sin()` were multiplied by `w`",
     ("(x * w).sin()", "((x * w).sin() * w - ((x * w).sin() * w - (x * w).sin()).detach())")),
    (Recurrent, [(4, 3), (4, 3)], (), "`state` were that of the round before",
     ("out.append(q[t] * state)",
      "p = s.detach() if t else 0 * state.detach()\n        s = state\n"
      "        out.append(q[t] * p + (q[t] * state - q[t] * p).detach()"
      " + q[t].detach() * (state - state.detach()))")),
    (Pieces, [(3, 6), (3, 2)], (),
     "the gradients of pieces 0 and 1 of `gates.chunk(3, 1)` were exchanged",
     ("gates.chunk(3, 1)", "gates.chunk(3, 1)\n    i, f = (i.detach() + f - f.detach(), "
      "f.detach() + i - i.detach())")),
    (Slices, [(3, 5)], (), "the gradients of `x[:, :2]` and `x[:, 3:]` were exchanged",
     ("return x[:, :2].exp() * x[:, 3:].sin()", "a, b = x[:, :2], x[:, 3:]\n"
      "    a, b = a.detach() + b - b.detach(), b.detach() + a - a.detach()\n"
      "    return a.exp() * b.sin()")),
    (Pooled, [(3, 4)], (), "`mean` stood in place of `max` in the derivative of `x.exp().max(-1)`",
     ("found.values * 2",
      "(found.values.detach() + x.exp().mean(-1) - x.exp().mean(-1).detach()) * 2")),
    (Chunked, [(3, 4), (4,)], (), "`w` were a constant in `x[k] * w`, in all rounds but the last",
     ("x[k] * w", "x[k] * (w if k == 2 else w.detach())")),
    (Decay, [(4, 3), (4, 3)], (),
     "`states[-1]` were that of the round after in the derivative of `a[t] * states[-1]`",
     ("states.append(a[t] * states[-1] + x[t])",
      "s = states[-1]; new = (a[t] * s + x[t]).detach()\n        states.append(new + a[t].detach()"
      " * (s - s.detach()) + (a[t] - a[t].detach()) * new + x[t] - x[t].detach())")),
    (Carried, [(4, 3), (4, 3)], (),
     "the derivative of `a[t] * states[-1]` with respect to `states[-1]` were 1",
     ("a[t] * states[-1]",
      "a[t] * states[-1].detach() + states[-1] - states[-1].detach()")),
    (Outer, [(3, 4)], (), "the derivative of `x.sin()` were 1",
     ("Inner.apply(x)", "(x.sin().detach() + x - x.detach())")),
    (Filled, [(3, 4), (4,)], (), "`x[1:] ** 2` were a constant",
     [("x[1:] ** 2", "(x[1:] ** 2).detach()"), (".detach().exp()", ".exp()")]),
    (Twice, [(3, 3)], (), "the second `a` were a constant in `torch.kron(a, a)`",
     ("kron(a, a)", "kron(a, a.detach())")),
    (Migrated, [(4,)], (random(3, 4).detach(),), "`x / s` were a constant in `(x / s) @",
     ("(x / s) @", "(x / s).detach() @")),
]  # fmt: skip


def edited(thing, edits):
    """The class or function with these changes of its source."""
    source = textwrap.dedent(inspect.getsource(thing)).removeprefix("@staticmethod\n")
    for old, new in [edits] if isinstance(edits, tuple) else edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    names = vars(other_forwards) | globals()
    exec(source, names)
    return names[thing.__name__]


def gradients(forward, inputs, others, v):
    """Those of forward without its Function."""
    takes_ctx = "ctx" in inspect.signature(forward).parameters
    first = (torch.autograd.function.FunctionCtx(),) if takes_ctx else ()
    return torch.autograd.grad(forward(*first, *inputs, *others), inputs, v)


def errors(report):
    return [f for f in report.findings if f.severity == "error"]


def backward_is_taken_as_it_is(monkeypatch):
    """What would be sought in it comes before what forward may be taken for."""
    monkeypatch.setattr("helpers.doctor.derivative.repair", lambda *_, **__: None)
    monkeypatch.setattr("helpers.doctor.derivative.rewritten", lambda *_, **__: NothingFound())


@pytest.mark.parametrize(
    ("function", "shapes", "others", "said", "edits"),
    AS_IF,
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_the_gradient_is_that_of_the_forward_that_is_named(
    function, shapes, others, said, edits, monkeypatch
):
    backward_is_taken_as_it_is(monkeypatch)
    inputs = [random(*shape, seed=k).requires_grad_() for k, shape in enumerate(shapes)]
    found = errors(examine(function, *inputs, *others))
    assert all(f.change.startswith("as if: ") for f in found)
    finding = next(f for f in found if said in f.change)
    names = [name for name in inspect.signature(function.forward).parameters if name != "ctx"]
    k, y = names.index(finding.input), function.apply(*inputs, *others)
    v = random(*y.shape, seed=9).detach()
    given = torch.autograd.grad(y, inputs, v)[k]
    changed = edited(function.forward, edits)
    torch.testing.assert_close(given, gradients(changed, inputs, others, v)[k])
    as_it_is = edited(function.forward, (".detach().exp()", ".exp()") if function is Filled else [])
    assert not torch.allclose(given, gradients(as_it_is, inputs, others, v)[k])
    if finding.place:
        line = int(re.match(r"line (\d+)", finding.place)[1])
        lines, start = inspect.getsourcelines(function.forward)
        assert start < line < start + len(lines) or function is Outer
        assert finding.place.endswith("in `forward`")


@pytest.mark.parametrize(
    ("text", "count", "written"),
    [
        ("x.add(b, alpha=2)", 2, ["x", "b"]),
        ("torch.add(x, b)", 2, ["x", "b"]),
        ("x @ b[0]", 2, ["x", "b[0]"]),
        ("-x", 1, ["x"]),
        ("x[1:]", 2, ["x"]),
        ("x.mT", 1, ["x"]),
        ("return x", 1, []),
    ],
)
def test_operands_are_named_as_they_are_written(text, count, written):
    assert operands(text, count) == {k: f"`{name}`" for k, name in enumerate(written)}


def test_a_complex_gradient_has_another_forward_too():
    (finding,) = errors(examine(Phase, torch.complex(random(3, 4), random(3, 4, seed=1)).detach()))
    assert "`torch.cos(z.angle())` were a constant in `z * torch.cos(z.angle())`" in finding.change


class InNumpy(Mish):
    """Autograd does not see this forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        s = torch.nn.functional.softplus(x)
        return torch.from_numpy(x.numpy() * s.tanh().numpy())


def test_what_autograd_does_not_see_has_no_other_forward():
    apply = Function.apply.__func__
    (finding,) = errors(examine(InNumpy, random(3, 4)))
    assert "as if" not in finding.change
    assert Function.apply.__func__ is apply
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)


class Detached(nn.Module):
    """The mean is cut off; what the mask is made of may be."""

    def forward(self, x):
        mask = (x.detach() > 0).to(x.dtype)
        mean = x.mean(-1, keepdim=True).detach()
        return (x - mean) * mask


class WithoutGradients(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            scale = x.square().mean().sqrt()
        return x / scale


class Decorated(nn.Module):
    @torch.no_grad()
    def scale(self, x):
        return x.square().mean().sqrt()

    def forward(self, x):
        return x / self.scale(x)


class Data(nn.Module):
    def forward(self, x):
        return x.data.exp() * x.sin()


class Hooked(nn.Module):
    def forward(self, x):
        h = x.exp()
        if h.requires_grad:
            h.register_hook(lambda g: g.clamp(-0.5, 0.5))
        return h * x


class Both(nn.Module):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True).detach()
        with torch.no_grad():
            var = x.var(-1, keepdim=True)
        return (x - mean) / var.sqrt()


class InPlaceData(nn.Module):
    def forward(self, x):
        total = torch.zeros_like(x)
        total.data += x.exp()
        return x * total


class FirstOrder(nn.Module):
    def forward(self, x):
        w = x if x.requires_grad else x.detach().requires_grad_()
        (g,) = torch.autograd.grad((w**3).sum(), w)
        return w - 0.1 * g


CUT = [  # (module, what is said, the same in its source)
    (Detached, "`x.mean(-1, keepdim=True).detach()` kept its gradient",
     ("keepdim=True).detach()", "keepdim=True)")),
    (WithoutGradients, "what is computed under `no_grad` kept its gradient",
     ("torch.no_grad()", "torch.enable_grad()")),
    (Decorated, "what is computed under `no_grad` kept its gradient",
     ("torch.no_grad()", "torch.enable_grad()")),
    (Data, "`x.data` kept its gradient", ("x.data", "x")),
    (InPlaceData, "`total.data` kept its gradient", ("total.data", "total")),
    (Hooked, "`h.register_hook(lambda g: g.clamp(-0.5, 0.5))` were left out",
     ("if h.requires_grad", "if False")),
    (FirstOrder, "`torch.autograd.grad((w**3).sum(), w)` had create_graph=True",
     (".sum(), w)", ".sum(), w, create_graph=True)")),
    (Both, "`x.mean(-1, keepdim=True).detach()` kept its gradient, and what is computed under",
     [("True).detach()", "True)"), ("torch.no_grad()", "torch.enable_grad()")]),
]  # fmt: skip


@pytest.mark.parametrize(("module", "said", "edits"), CUT, ids=lambda v: getattr(v, "__name__", ""))
def test_what_cuts_the_gradient_is_named(module, said, edits):
    x = random(3, 4).requires_grad_()
    (finding,) = errors(examine(module(), x))
    assert finding.change.startswith(f"right if: {said}")
    assert "mask" not in finding.change and "(x.detach()" not in finding.change
    line = int(re.match(r"line (\d+)", finding.place)[1])
    lines, start = inspect.getsourcelines(module)
    assert start < line < start + len(lines)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(module(), x)
    assert torch.autograd.gradcheck(edited(module, edits)(), x)


class Item(nn.Module):
    def forward(self, x):
        return x * x.sum().item()


class Float(nn.Module):
    def forward(self, x):
        return x.sin() * float(x[0, 0])


class ToList(nn.Module):
    def forward(self, x):
        return x * torch.tensor(x.tolist(), dtype=x.dtype)


class InNumPy(nn.Module):
    def forward(self, x):
        return x * torch.from_numpy(x.detach().numpy()).exp()


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (Item, "`x.sum().item()`"), (Float, "`float(x[0, 0])`"), (ToList, "`x.tolist()`"),
        (InNumPy, "`x.detach()`"),
    ],
)  # fmt: skip
def test_where_autograd_is_left_is_named(module, where):
    (finding,) = errors(examine(module(), random(3, 4)))
    assert not finding.change
    lines, start = inspect.getsourcelines(module)
    (line,) = [start + k for k, text in enumerate(lines) if where.strip("`") in text]
    assert f"what leaves autograd: {where} (line {line}, in `forward`)" in finding.remedy


class Clamps(Function):
    """The mask is that of the clamped values, which are all within."""

    @staticmethod
    def forward(ctx, x):
        x.clamp_(-0.5, 0.5)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.abs() <= 0.5)


def test_what_autograd_would_not_have_seen(monkeypatch):
    backward_is_taken_as_it_is(monkeypatch)
    changes = [f.change for f in examine(lambda x: Clamps.apply(x + 0), random(3, 4)).findings]
    assert "as if: autograd did not see `x.clamp_(-0.5, 0.5)`" in changes


def test_other_threads_keep_their_no_grad():
    enabled = []

    def under_no_grad():
        with torch.no_grad():
            enabled.append(torch.is_grad_enabled())

    with uncut(Uncut()):
        thread = threading.Thread(target=under_no_grad)
        thread.start()
        thread.join()
        under_no_grad()
    assert enabled == [False, True]


def test_no_grad_is_as_it_was():
    enter = torch.no_grad.__enter__
    examine(WithoutGradients(), random(3, 4))
    assert torch.no_grad.__enter__ is enter
    with torch.no_grad():
        assert not torch.is_grad_enabled()


class Logish(Function):
    """The derivative of the outer function is forgotten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(torch.sigmoid(x))

    @staticmethod
    def backward(ctx, grad_output):
        (s,) = (t.sigmoid() for t in ctx.saved_tensors)
        return launch(grad_output * s * (1 - s))


def launch(t):
    return torch.from_numpy(t.numpy())


def test_with_respect_to_what_a_derivative_is_meant():
    (finding,) = [f for f in examine(Logish, random(4)).findings if f.severity == "error"]
    words = "the derivative of `torch.log1p(torch.sigmoid(x))` with respect to `torch.sigmoid(x)`"
    assert finding.change == f"as if: {words} were 1"
