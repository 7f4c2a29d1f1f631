"""What the doctor says of forward: made in the source by hand, it is what it says."""

import inspect
import re
import textwrap

import pytest
import torch
from torch import nn
from torch.autograd import Function

from helpers.doctor import examine
from tests.common import random


class Mish(Function):
    """The derivative of softplus is forgotten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        s = torch.nn.functional.softplus(x)
        return x * s.tanh()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = torch.log1p(x.exp()).tanh()
        return grad_output * (t + x * (1 - t * t))


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


class OneSided(Energy):
    """Each difference acts on its right end only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        down = x[1:] - x[:-1]
        right = x[:, 1:] - x[:, :-1]
        return (down**4).sum() + (right**4).sum()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        found = torch.zeros_like(x)
        found[1:] += 4 * (x[1:] - x[:-1]) ** 3
        found[:, 1:] += 4 * (x[:, 1:] - x[:, :-1]) ** 3
        return grad_output * found


class Smoothed(Function):
    """The loss is smoothed, its gradient is not."""

    @staticmethod
    def forward(ctx, x, target, eps):
        logs = x.log_softmax(1)
        ctx.save_for_backward(logs, target)
        hard = logs.gather(1, target[:, None]).sum()
        return -(1 - eps) * hard - eps * logs.mean(1).sum()

    @staticmethod
    def backward(ctx, grad_output):
        logs, target = ctx.saved_tensors
        p = logs.exp()
        p[torch.arange(len(p)), target] -= 1
        return grad_output * p, None, None


class Ramp(Function):
    """The sum for the bias forgets the mask."""

    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x + b)
        return torch.relu(x + b)

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return grad_output * (z > 0), grad_output.sum(0)


class Mixed(Function):
    """Backward recomputes another function."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        t = torch.tanh(x)
        return t @ w + t @ w**2

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        t = torch.sigmoid(x)
        g = grad_output @ (w + w**2).mT
        return g * t * (1 - t), t.mT @ grad_output * (1 + 2 * w)


class Normal(Function):
    """The density has another width than the distribution."""

    @staticmethod
    def forward(ctx, x, mu):
        ctx.save_for_backward(x, mu)
        z = x - mu
        return z * torch.erf(z / 2)

    @staticmethod
    def backward(ctx, grad_output):
        x, mu = ctx.saved_tensors
        z = x - mu
        g = grad_output * (torch.erf(z) + z * 2 / torch.pi**0.5 * torch.exp(-z * z))
        return g, -g.sum(0)


class Form(Function):
    """x.mT (a + a.mT) x, of which one half is taken twice."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        y = x @ a
        return (y * x).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        g = grad_output[:, None]
        return 2 * g * (x @ a), x.mT @ (g * x)


class Sums(Function):
    """A running sum, along another dimension on the way back."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cumsum(1).exp()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        g = grad_output * x.cumsum(1).exp()
        turned = torch.zeros_like(g)
        for k in range(len(g)):
            turned[k] = g[k:].sum(0)
        return turned


class Gated(Function):
    """One factor is that of the other branch."""

    @staticmethod
    def forward(ctx, x, u, v):
        ctx.save_for_backward(x, u, v)
        a = x * u
        b = x * v
        return (a.sin() * b).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        x, u, v = ctx.saved_tensors
        g = grad_output[:, None]
        s, c = (x * u).sin(), (x * u).cos()
        return g * (c * u * x * u + s * v), g * c * x * x * v, g * s * x


class Weighted(Function):
    """The weight of a group is applied twice, inside."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        inner = (x * w).sin()
        return (inner + x.exp()).tanh().sum()

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        t = ((x * w).sin() + x.exp()).tanh()
        return grad_output * (1 - t * t) * ((x * w).cos() * w * w + x.exp()), None


class Recurrent(Function):
    """q meets the state of the round before."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        state, out = torch.zeros_like(k[0]), []
        for t in range(len(k)):
            state = 0.5 * state + k[t]
            out.append(q[t] * state)
        return torch.stack(out)

    @staticmethod
    def backward(ctx, grad_output):
        q, k = ctx.saved_tensors
        states, dk, later = [torch.zeros_like(k[0])], torch.zeros_like(k), 0
        for t in range(len(k)):
            states.append(0.5 * states[-1] + k[t])
        for t in reversed(range(len(k))):
            later = 0.5 * later + grad_output[t] * q[t]
            dk[t] = later
        return grad_output * torch.stack(states[:-1]), dk


class Filled(Function):
    """A result that is written row by row, one of them of nothing."""

    @staticmethod
    def forward(x, w):
        y = torch.empty_like(x)
        y[:1] = x[:1]
        y[1:] = w * x[1:].detach().exp() + x[1:] ** 2
        return y.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        inner = torch.cat((x[:1], w * x[1:].exp() + x[1:] ** 2))
        g = grad_output * inner.cos()
        dx = torch.cat((g[:1], g[1:] * w * x[1:].exp()))
        return dx, (g[1:] * x[1:].exp()).sum(0)


INDEX = torch.tensor([1, 0, 3])
AS_IF = [  # (Function, shapes, others, what is said, the same in the source of forward)
    (Mish, [(3, 4)], (), "the derivative of `torch.nn.functional.softplus(x)` were 1",
     ("softplus(x)\n", "softplus(x).detach() + x - x.detach()\n")),
    (Energy, [(6,)], (), "`(bends * bends).sum()` were a constant in",
     ("(bends * bends).sum()", "(bends * bends).sum().detach()")),
    (OneSided, [(4, 5)], (), "`x[:, :-1]` were a constant in `x[:, 1:] - x[:, :-1]`, and `x[:-1]`",
     [("- x[:-1]", "- x[:-1].detach()"), ("- x[:, :-1]", "- x[:, :-1].detach()")]),
    (Smoothed, [(3, 4)], (INDEX, 0.2), "`eps` were 0", ("logs =", "eps = 0; logs =")),
    (Ramp, [(3, 4), (4,)], (), "the derivative of `torch.relu(x + b)` were 1",
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
    (Filled, [(3, 4), (4,)], (), "`x[1:] ** 2` were a constant",
     [("x[1:] ** 2", "(x[1:] ** 2).detach()"), (".detach().exp()", ".exp()")]),
]  # fmt: skip


def edited(thing, edits):
    """The class or function with these changes of its source."""
    source = textwrap.dedent(inspect.getsource(thing)).removeprefix("@staticmethod\n")
    for old, new in [edits] if isinstance(edits, tuple) else edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    names = dict(globals())
    exec(source, names)
    return names[thing.__name__]


def gradients(forward, inputs, others, v):
    """Those of forward without its Function."""
    takes_ctx = "ctx" in inspect.signature(forward).parameters
    first = (torch.autograd.function.FunctionCtx(),) if takes_ctx else ()
    return torch.autograd.grad(forward(*first, *inputs, *others), inputs, v)


def errors(report):
    return [f for f in report.findings if f.severity == "error"]


@pytest.mark.parametrize(
    ("function", "shapes", "others", "said", "edits"),
    AS_IF,
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_the_gradient_is_that_of_the_forward_that_is_named(
    function, shapes, others, said, edits, monkeypatch
):
    monkeypatch.setattr("helpers.doctor.derivative.repair", lambda *_: None)  # which comes first
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
        assert start < line < start + len(lines)
        assert finding.place.endswith("in `forward`")


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


CUT = [  # (module, what is said, the same in its source)
    (Detached, "`x.mean(-1, keepdim=True).detach()` kept its gradient",
     ("keepdim=True).detach()", "keepdim=True)")),
    (WithoutGradients, "what is computed under `no_grad` kept its gradient",
     ("torch.no_grad()", "torch.enable_grad()")),
    (Decorated, "what is computed under `no_grad` kept its gradient",
     ("torch.no_grad()", "torch.enable_grad()")),
    (Data, "`x.data` kept its gradient", ("x.data", "x")),
    (Hooked, "`h.register_hook(lambda g: g.clamp(-0.5, 0.5))` were left out",
     ("if h.requires_grad", "if False")),
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


def test_no_grad_is_as_it_was():
    enter = torch.no_grad.__enter__
    examine(WithoutGradients(), random(3, 4))
    assert torch.no_grad.__enter__ is enter
    with torch.no_grad():
        assert not torch.is_grad_enabled()
