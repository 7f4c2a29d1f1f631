"""Layers of everyday kinds, each right, and what goes wrong in each: one edit of it.

A row is what stands there, what stands in its place, the code that names it, and a part
of the change that the doctor is to name. The part is "" where another line may be
changed as well, and None where no change has to be found.
"""

import math

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .case import Linear, Square, affine, broken, draw, slip, slips


class ScaledLinear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, scale):
        ctx.save_for_backward(x, weight)
        ctx.scale = scale
        return scale * (x @ weight.t()) + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gx = gweight = gbias = None
        inner = ctx.scale * g
        if ctx.needs_input_grad[0]:
            gx = inner @ weight
        if ctx.needs_input_grad[1]:
            gweight = inner.t() @ x
        if ctx.needs_input_grad[2]:
            gbias = g.sum(0)
        return gx, gweight, gbias, None


slips(
    ScaledLinear,
    lambda: (*draw((3, 4), (4, 4), (4,)), 2.5),
    [
        ("ctx.scale * g", "g", "scaled", "ctx.scale"),
        ("ctx.scale * g", "-ctx.scale * g", "negated", "ctx.scale"),
        ("ctx.scale * g", "ctx.scale * g.clamp(-1, 1)", "not-linear", "g"),
        ("ctx.scale * g", "ctx.scale * torch.ones_like(g)", "grad-output-ignored", "g"),
        ("ctx.scale * g", "ctx.scale * g.detach()", "double-backward-wrong", "g"),
        ("ctx.scale * g", "ctx.scale * g.half().to(g.dtype)", "few-digits", "g"),
        ("inner.t() @ x", "g.t() @ x", "scaled", "inner"),
        ("inner.t() @ x", "x.t() @ inner", "transposed", ""),
        ("inner.t() @ x", "inner.t() @ x / len(x)", "mean-for-sum", "inner.t() @ x"),
        ("inner.t() @ x", "inner.t() @ x.flip(0)", "grad-output-scaled", "x"),
        ("inner @ weight", "inner @ weight.abs()", "gradient-wrong", "weight"),
        ("g.sum(0)", "g[0]", "grad-output-partly-ignored", "g.sum(0"),
        ("input_grad[1]", "input_grad[0]", "needs-input-grad-wrong", "grad[1]"),
        ("gbias, None", "None, gbias", "gradient-for-constant", None),
        ("gweight, gbias, None", "None, gbias, None", "gradient-none", None),
    ],
)


class TemperedSoftmax(Function):
    @staticmethod
    def forward(ctx, x, tau):
        ctx.tau = tau
        y = (x / tau).softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        total = (g * y).sum(-1, keepdim=True)
        return y * (g - total) / ctx.tau, None


slips(
    TemperedSoftmax,
    lambda: (*draw((3, 4)), 1.7),
    [
        ("y * (g - total)", "y * g", "term-wrong", "g - total"),
        ("y * (g - total)", "y * (1 - y) * g", "contribution-lost", None),
        ("y * (g - total)", "(g - total)", "factor-wrong", "y"),
        (" / ctx.tau", " * ctx.tau", "scaled", "/ ctx.tau"),
        ("(g * y).sum(-1", "(g * y).sum(0", "gradient-wrong", "1, keepdim"),
        ("(g * y).sum(-1", "(g * y).mean(-1", "term-wrong", "sum"),
        ("(g * y).sum(-1", "g.sum(-1", "term-wrong", "g * y"),
        ("(g * y).sum", "(g * y).detach().sum", "double-backward-wrong", "g * y"),
        ("backward(y)", "backward(x.softmax(-1))", "gradient-wrong", None),
    ],
)


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        centred = x - x.mean(-1, keepdim=True)
        inverse = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
        normal = centred * inverse
        ctx.save_for_backward(normal, inverse, weight)
        return normal * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        normal, inverse, weight = ctx.saved_tensors
        gweight = (g * normal).sum((0, 1))
        g = g * weight
        first = g.mean(-1, keepdim=True)
        second = normal * (g * normal).mean(-1, keepdim=True)
        return inverse * (g - first - second), gweight, None


slips(
    LayerNorm,
    lambda: (*draw((2, 3, 5), (5,)), 0.1),
    [
        ("g - first - second", "g - first", "term-wrong", "second"),
        ("g - first - second", "g - first + second", "term-wrong", "- second"),
        ("second = normal * (", "second = (", "term-wrong", "* normal"),
        ("inverse * (g", "inverse**2 * (g", "derivative-wrong", "inverse"),
        ("g = g * weight", "g = g + 0", "grad-output-scaled", "weight"),
        ("(g * normal).mean(-1", "(g * normal).sum(-1", "term-wrong", "mean"),
        ("sum((0, 1))", "sum(0)[0]", "grad-output-partly-ignored", "sum(0"),
        (
            "gweight = (g * normal).sum((0, 1))\n        g = g * weight",
            "g = g * weight\n        gweight = (g * normal).sum((0, 1))",
            "factor-wrong",
            "",
        ),
    ],
)


class Convolution(Function):
    @staticmethod
    def forward(ctx, x, kernel, stride):
        ctx.save_for_backward(x, kernel)
        ctx.stride = stride
        n, k = x.shape[-1], kernel.shape[-1]
        last = (n - k) // stride * stride
        columns = [x[:, j : j + last + 1 : stride] for j in range(k)]
        return sum(kernel[j] * columns[j] for j in range(k))

    @staticmethod
    def backward(ctx, g):
        x, kernel = ctx.saved_tensors
        stride, last = ctx.stride, ctx.stride * (g.shape[-1] - 1) + 1
        gx, gkernel = torch.zeros_like(x), []
        for j in range(len(kernel)):
            window = slice(j, j + last, stride)
            gx[:, window] += kernel[j] * g
            gkernel.append((x[:, window] * g).sum())
        return gx, torch.stack(gkernel), None


slips(
    Convolution,
    lambda: (*draw((2, 9), (3,)), 2),
    [
        ("gx[:, window] +=", "gx[:, window] =", "contribution-lost", "+="),
        ("+= kernel[j] * g", "+= kernel[-1 - j] * g", "partly-right", ""),
        ("+= kernel[j] * g", "-= kernel[j] * g", "negated", "kernel[j]"),
        ("range(len(kernel))", "range(len(kernel) - 1)", "gradient-shape", None),
        (" * g).sum()", " * g).mean()", "mean-for-sum", "sum"),
        (" * g).sum()", " * g)[0].sum()", "grad-output-partly-ignored", None),
        ("stack(gkernel)", "stack(gkernel[::-1])", "reversed", "gkernel"),
        ("zeros_like(x)", "ones_like(x)", "not-linear", None),
    ],
)


class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v, mask):
        scale = q.shape[-1] ** -0.5
        p = (scale * (q @ k.mT)).masked_fill(mask, -torch.inf).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        gp = g @ v.mT
        gs = p * (gp - (gp * p).sum(-1, keepdim=True))
        gs = ctx.scale * gs
        gq = gs @ k
        gk = gs.mT @ q
        return gq, gk, p.mT @ g, None


slips(
    Attention,
    lambda: (*draw(*[(2, 4, 4)] * 3), torch.ones(2, 4, 4).triu(1) > 0),
    [
        ("- (gp * p).sum(-1, keepdim=True)", "", "gradient-wrong", None),
        ("gs = ctx.scale * gs", "gs = ctx.scale**2 * gs", "scaled", "ctx.scale"),
        ("p.mT @ g,", "p @ g,", "jacobian-transposed", "p.mT"),
        ("return gq, gk", "return gk, gq", "swapped", "`gq, gk,"),
        ("gp = g @ v.mT", "gp = g @ k.mT", "gradient-wrong", "v.mT"),
        ("q, k, v, p)\n", "q, k, v, (q @ k.mT).softmax(-1))\n", "gradient-wrong", None),
    ],
    warned="needs-input-grad-ignored",
)


class Recurrence(Function):
    @staticmethod
    def product(a, b):
        return a * b

    @staticmethod
    def forward(ctx, x, w, rows, perm, decay):
        t = x[perm].tanh()
        h, hs = torch.zeros_like(t[0]), []
        for k in range(len(t)):
            h = decay * h + w[rows[k]] * t[k].clamp(max=0.4)
            hs.append(h)
        ctx.save_for_backward(t, w, rows, perm)
        ctx.rates = decay, 1.0
        return torch.stack(hs) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        t, w, rows, perm = ctx.saved_tensors
        decay, slope = ctx.rates
        low, gt = t.clamp(max=0.4), torch.zeros_like(t)
        gw, carry = torch.zeros_like(w), torch.zeros_like(g[0])
        for k in range(len(t) - 1, -1, -1):
            carry = g[k] / 2 + decay * carry
            gt[k] = Recurrence.product(carry, w[rows[k]])
            gw[rows[k]] += carry * low[k]
        inner = gt * (t < 0.4)
        gt = inner * (slope - t * t)
        return gt[perm.argsort()], gw, None, None, None


slips(
    Recurrence,
    lambda: (
        *draw((5, 3), (3, 3), seed=2),
        torch.tensor([0, 2, 2, 1, 0]),
        torch.tensor([1, 2, 0, 4, 3]),
        0.6,
    ),
    [
        ("decay, slope = ctx", "slope, decay = ctx", "gradient-wrong", "decay, slope"),
        ("- 1, -1, -1)", "- 1, 0, -1)", "partly-right", "-1, -1"),
        ("decay * carry", "carry", "gradient-wrong", None),
        ("g[k] / 2", "g[k]", "scaled", "`g[k] / 2`"),
        ("* low[k]", "* t[k]", "partly-right", "low[k]"),
        ("carry, w[rows[k]]", "carry, w[rows[0]]", "partly-right", "rows[k]"),
        ("(t < 0.4)", "(t > 0.4)", "other-mask", "t < 0.4"),
        ("gt * (t < 0.4)", "gt * 1", "partly-right", None),
        ("(slope - t * t)", "(slope + t * t)", "derivative-wrong", "slope - t * t"),
        ("gt[perm.argsort()]", "gt[perm]", "partly-right", "argsort"),
        ("(t, w, rows", "(x[perm], w, rows", "derivative-wrong partly-right", None),
        ("a * b", "a + b", "not-linear", "a * b"),
    ],
)


class Echo(Function):
    """y[k] = x[k] + a y[k - 1] + b y[k - 2], filled in place."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.rates = a, b
        y = x.new_zeros(len(x) + 2)
        for k in range(len(x)):
            y[k + 2] = x[k] + a * y[k + 1] + b * y[k]
        return y[2:].clone()

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.rates
        e = g.new_zeros(len(g) + 2)
        for k in range(len(g) - 1, -1, -1):
            two = e[k + 2]
            e[k] = g[k] + a * e[k + 1] + b * two
        return e[:-2].clone(), None, None


slips(
    Echo,
    lambda: (*draw((6,)), 0.7, 0.4),
    [
        ("a * e[k + 1]", "e[k + 1]", "partly-right", "`e[k + 1] * a`"),
        (
            " + b * two",
            "",
            "partly-right",
            None,
            "what is at hand and never used",
            "`two` (line 17",
        ),
    ],
    lines=True,
)


class Average(Function):
    @staticmethod
    def forward(ctx, x, old, rate):
        ctx.rate = rate
        return (1 - rate) * x + rate * old

    @staticmethod
    def backward(ctx, g):
        return (1 - ctx.rate) * g, ctx.rate * g, None


slips(
    Average,
    lambda: (*draw((3, 4), (3, 4)), 0.3),
    [("(1 - ctx.rate) * g", "g", "scaled", "(1 - ctx.rate)")],
)


def quarter(x):
    a, b = x.unflatten(-1, (2, -1)).unbind(-2)  # of an odd number, there is none
    return torch.cat((-b, a), -1)


class Turn(Function):
    """Queries and keys, turned by the same angle."""

    @staticmethod
    def forward(ctx, q, k, angle):
        ctx.turn = cos, sin = math.cos(angle), math.sin(angle)
        return q * cos + quarter(q) * sin, k * cos + quarter(k) * sin

    @staticmethod
    def backward(ctx, of_q, of_k):
        cos, sin = ctx.turn
        gq = of_q * cos - quarter(of_q * sin)
        of_sin = of_k * sin
        gk = of_k * cos - quarter(of_sin)
        return gq, gk, None


slips(
    Turn,
    lambda: (*draw((3, 4), (3, 4)), 0.7),
    [
        ("quarter(of_sin)", "of_sin", "gradient-wrong", "quarter(of_sin)"),
        (
            "of_sin = of_k * sin\n        gk = of_k * cos - quarter(of_sin)",
            "gk = of_q * cos - quarter(of_q * sin)",
            "swapped",
            "gk = of_k * cos - quarter(of_k * sin)",
        ),
    ],
)


class SmoothedLoss(Function):
    @staticmethod
    def forward(ctx, x, target, mask, eps):
        logs = x.log_softmax(-1)
        hard = logs.gather(1, target[:, None])[:, 0]
        each = -(1 - eps) * hard - eps * logs.mean(-1)
        ctx.save_for_backward(logs, target, mask)
        ctx.eps = eps
        return (each * mask).sum() / mask.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        logs, target, mask = ctx.saved_tensors
        count = mask.sum()
        gx = logs.exp() - ctx.eps / logs.shape[-1]
        gx[torch.arange(len(gx)), target] -= 1 - ctx.eps
        return g * gx * mask[:, None] / count, None, None, None


slips(
    SmoothedLoss,
    lambda: (
        *draw((5, 4)),
        torch.tensor([1, 0, 3, 2, 1]),
        torch.tensor([1, 1, 0, 1, 0]) > 0,
        0.2,
    ),
    [
        (" * mask[:, None]", "", "partly-right", None),
        (" / count", "", "scaled", "/ mask.sum()"),
        ("-= 1 - ctx.eps", "+= 1 - ctx.eps", "partly-right", "ctx.eps"),
        (" - ctx.eps / logs.shape[-1]", "", "term-wrong", None),
        ("logs.exp()", "logs", "gradient-wrong", "exp("),
        ("g * gx", "gx", "grad-output-ignored", None),
    ],
)


class ComplexProduct(Function):
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z * w.conj() + z.abs().square()

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        gw = (g.conj() * z).sum(0)
        return g * w + 2 * g.real * z, gw


slips(
    ComplexProduct,
    lambda: draw((3, 4), (4,), dtype=torch.complex128),
    [
        ("g * w + 2", "g * w.conj() + 2", "gradient-wrong", "w"),
        ("g.conj() * z", "g * z", "right-only-for-ones", "g.conj()"),
        ("g.conj() * z", "g * z.conj()", "conjugate", None),
    ],
)

# --- slips with a name, and what is peculiar to a layer -------------------------------


slip(
    "MeanOverBatch",
    Linear,
    affine,
    {"grad_output.sum(0)": "grad_output.mean(0)"},
    "mean-for-sum",
    "1/3 of what it should be, and 3 is the size of dimension 0",
)
slip(
    "TooFewGradients",
    Linear,
    affine,
    {"tuple(grads)": "tuple(grads[:2])"},
    "gradient-count",
    "returned 2 gradient(s), but forward has 3 argument(s)",
)
slip(
    "AsksTheWrongFlag",
    Linear,
    affine,
    {"needs_input_grad[1]": "needs_input_grad[0]"},
    "needs-input-grad-wrong",
)
slip(
    "InSilence",
    Square,
    lambda: draw((4,), seed=0),
    {
        "return grad_output * 2 * x": "with torch.no_grad():\n"
        "            slope = 2 * x\n"
        "        return grad_output * slope"
    },
    "double-backward-wrong",
    line="torch.no_grad()",
)


class Pruned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(*draw((3, 4)))

    def forward(self, x):
        weight = nn.Parameter(self.weight * (self.weight > 0))
        return x @ weight.mT


broken("gradient-none", lambda: draw((2, 4)), line="self.weight * (self.weight > 0)")(
    Pruned()
)


@broken("scaled", lambda: draw((10,)), line="`known.sum()` stood in place of `len(x)`")
class MeanOfKnown(Function):
    """The mean over some, divided by the number of all, as chapter 11's loss does."""

    @staticmethod
    def forward(ctx, x):
        known = torch.arange(len(x)) % 5 > 0
        ctx.save_for_backward(x, known)
        return x[known].square().mean()

    @staticmethod
    def backward(ctx, grad_output):
        x, known = ctx.saved_tensors
        return grad_output * 2 * x * known / len(x)


def turned():
    """It needs pairs of features, and nobody trains the angles."""
    angles = torch.arange(5.0)[:, None] / 10 ** torch.arange(3.0)
    x = draw((2, 5, 6))[0].float()
    return x.requires_grad_(), angles.cos(), angles.sin()


@broken(
    "partly-right",
    turned,
    "not judged: `cos` (it requires no gradient, and backward returns None for it)",
    line="`a * cos + b * sin` stood in place of `a * cos - b * sin`",
)
class Rotary(Function):
    """Pairs of features are turned; backward turns one of the two the wrong way."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        a, b = g.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos - a * sin), -1), None, None


@broken(
    "jacobian-transposed",
    lambda: (draw((2, 3))[0], 0.2 * draw((3, 3))[0]),
    line="`matrix` stood in place of `matrix.T`",
)
class Equilibrium(Function):
    """An edit, `found += step`, would write into grad_output."""

    @staticmethod
    def forward(ctx, x, matrix):
        z = x
        for _ in range(45):
            z = torch.tanh(z @ matrix.T + x)
        ctx.save_for_backward(z, matrix)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        z, matrix = ctx.saved_tensors
        slope = 1 - z * z
        found = grad_output
        for _ in range(45):
            step = grad_output + (found * slope) @ matrix.T
            found = step
        found = found * slope
        return found, found.T @ z


class SlopeOfFourthPower(Function):
    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return g * 4 * x**3

    @staticmethod
    def backward(ctx, of_slope):
        g, x = ctx.saved_tensors
        return of_slope * 4 * x**3, of_slope * g * 12 * x


@broken(
    "double-backward-wrong",
    lambda: draw((5,)),
    "look at: `SlopeOfFourthPower`, which backward applies: `examine` it alone",
)
class FourthPower(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**4

    @staticmethod
    def backward(ctx, g):
        return SlopeOfFourthPower.apply(g, *ctx.saved_tensors)
