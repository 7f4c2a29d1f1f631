"""Eight right layers as text, and what goes wrong in each: one edit of it, and what is due.

A slip is (what stands there, what stands in its place, the code that names it or several, a part
of the change that is to be named). The part is "" where another line may be changed as well, and
None where no change has to be found.
"""

import torch

from tests.common import random

HEAD = """
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

class Layer(Function):
"""

LINEAR = """
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
"""
LINEAR_SLIPS = [
    ("ctx.scale * g", "g", "scaled", "ctx.scale"),
    ("ctx.scale * g", "ctx.scale * ctx.scale * g", "scaled", "ctx.scale"),
    ("ctx.scale * g", "-ctx.scale * g", "negated", "ctx.scale"),
    ("ctx.scale * g", "ctx.scale * g.clamp(-1, 1)", "not-linear", "g"),
    ("ctx.scale * g", "ctx.scale * torch.ones_like(g)", "grad-output-ignored", "g"),
    ("ctx.scale * g", "ctx.scale * g.detach()", "double-backward-wrong", "g"),
    ("ctx.scale * g", "ctx.scale * g.half().to(g.dtype)", "few-digits", "g"),
    ("ctx.scale = scale", "ctx.scale = 2.5", "arguments-ignored", None),
    ("inner.t() @ x", "g.t() @ x", "scaled", "inner"),
    ("inner.t() @ x", "x.t() @ inner", "transposed", ""),
    ("inner.t() @ x", "inner.t() @ x / len(x)", "mean-for-sum", "inner.t() @ x"),
    ("inner.t() @ x", "inner.t() @ x.flip(0)", "grad-output-scaled", "x"),
    ("inner @ weight", "inner @ weight.abs()", "gradient-wrong", "weight"),
    ("inner @ weight", "inner @ weight[0].expand_as(weight)", "gradient-wrong", "weight"),
    ("g.sum(0)", "g.mean(0)", "mean-for-sum", "g.sum(0)"),
    ("g.sum(0)", "g[0]", "grad-output-partly-ignored", "g.sum(0"),
    ("g.sum(0)", "g.sum().expand_as(g[0])", "gradient-wrong", None),
    ("g.sum(0)", "inner.sum(0)", "scaled", "g"),
    ("g.sum(0)", "g.sum(0, keepdim=True).squeeze(-1)", "engine-sums", None),
    ("input_grad[1]", "input_grad[0]", "needs-input-grad-wrong", ""),
    ("gx, gweight, gbias, None", "gx, gweight, None, gbias", "gradient-for-constant", None),
    ("gx, gweight, gbias, None", "gx, None, gbias, None", "gradient-none", None),
    ("save_for_backward(x, weight)", "save_for_backward(x, weight + 0.1)",
     {"gradient-wrong", "term-missing"}, None),
]  # fmt: skip

SOFTMAX = """
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
"""
SOFTMAX_SLIPS = [
    ("y * (g - total)", "y * g", "term-missing", "g - total"),
    ("y * (g - total)", "y * (g + total)", "term-missing", "g - total"),
    ("y * (g - total)", "y * (1 - y) * g", "contribution-lost", None),
    ("y * (g - total)", "(g - total)", "factor-missing", "y"),
    ("y * (g - total)", "y * y * (g - total)", "factor-missing", "y"),
    ("y * (g - total)", "(y * g - total)", "term-missing", None),
    (" / ctx.tau", "", "scaled", "ctx.tau"),
    (" / ctx.tau", " * ctx.tau", "scaled", "/ ctx.tau"),
    ("(g * y).sum(-1", "(g * y).sum(0", "gradient-wrong", "1, keepdim"),
    ("(g * y).sum(-1", "(g * y).mean(-1", "term-missing", "sum"),
    ("(g * y).sum(-1", "g.sum(-1", "term-missing", "g * y"),
    ("save_for_backward(y)", "save_for_backward(x.softmax(-1))", "gradient-wrong", None),
    ("(g * y).sum(-1", "(g * y).detach().sum(-1", "double-backward-wrong", "g * y"),
]

NORM = """
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
"""
NORM_SLIPS = [
    ("g - first - second", "g - first", "term-missing", "second"),
    ("g - first - second", "g - second", "term-missing", "`g - first - second`"),
    ("g - first - second", "g - first + second", "term-missing", "- second"),
    ("g - first - second", "g", "term-missing", None),
    ("inverse * (g", "inverse**2 * (g", "derivative-wrong", "inverse"),
    ("inverse * (g", "(g", "derivative-wrong", None),
    ("g = g * weight", "g = g + 0", "grad-output-scaled", "weight"),
    ("first = g.mean(-1", "first = g.mean(1", "gradient-wrong", None),
    ("normal * (g * normal).mean(-1", "normal * (g * normal).sum(-1", "term-missing", "mean"),
    ("sum((0, 1))", "sum(0)[0]", "grad-output-partly-ignored", "sum(0"),
    ("sum((0, 1))", "sum((0, 1), keepdim=True)", "engine-sums", None),
    ("        gweight = (g * normal).sum((0, 1))\n        g = g * weight\n",
     "        g = g * weight\n        gweight = (g * normal).sum((0, 1))\n",
     "factor-missing", ""),
    ("save_for_backward(normal,", "save_for_backward(centred,",
     {"term-missing", "gradient-wrong"}, ""),
    ("(normal, inverse, weight)\n", "(normal, weight, inverse)\n",
     "jacobian-transposed", None),
]  # fmt: skip

CONVOLUTION = """
    @staticmethod
    def forward(ctx, x, kernel, stride):
        ctx.save_for_backward(x, kernel)
        ctx.stride = stride
        n, k = x.shape[-1], kernel.shape[-1]
        out = (n - k) // stride + 1
        columns = [x[:, j : j + stride * (out - 1) + 1 : stride] for j in range(k)]
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
"""
CONVOLUTION_SLIPS = [
    ("gx[:, window] +=", "gx[:, window] =", "contribution-lost", "+="),
    ("gx[:, window] += kernel[j] * g", "gx[:, window] += kernel[-1 - j] * g",
     "misplaced", ""),
    ("gx[:, window] += kernel[j] * g", "gx[:, window] += g",
     "gradient-wrong", "kernel[j]"),
    ("gx[:, window] += kernel[j] * g", "gx[:, window] -= kernel[j] * g", "negated", "kernel[j]"),
    ("range(len(kernel))", "range(len(kernel) - 1)", "gradient-shape", None),
    ("(x[:, window] * g).sum()", "(x[:, window] * g).mean()", "mean-for-sum", "sum"),
    ("(x[:, window] * g).sum()", "(x[:, window] * g)[0].sum()",
     "grad-output-partly-ignored", None),
    ("torch.stack(gkernel)", "torch.stack(gkernel[::-1])", "reversed", "gkernel"),
    ("zeros_like(x), []", "empty_like(x).fill_(1.0), []", "not-linear", None),
]  # fmt: skip

ATTENTION = """
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
"""
ATTENTION_SLIPS = [
    ("p * (gp - (gp * p).sum(-1, keepdim=True))", "p * gp", "gradient-wrong", None),
    ("        gs = ctx.scale * gs\n", "", "scaled", None),
    ("gs = ctx.scale * gs", "gs = ctx.scale**2 * gs", "scaled", "ctx.scale"),
    ("gs.mT @ q", "gs @ q", "gradient-wrong", "gs.mT"),
    ("p.mT @ g,", "p @ g,", "jacobian-transposed", "p.mT"),
    ("return gq, gk", "return gk, gq", "swapped", "`gq, gk,"),
    ("gs @ k", "gs @ q", "gradient-wrong", "gs @ k"),
    ("gp = g @ v.mT", "gp = g @ k.mT", "gradient-wrong", "v.mT"),
    ("ctx.save_for_backward(q, k, v, p)", "ctx.save_for_backward(q, k, v, (q @ k.mT).softmax(-1))",
     "gradient-wrong", None),
]  # fmt: skip

RECURRENCE = """
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
            gt[k] = Layer.product(carry, w[rows[k]])
            gw[rows[k]] += carry * low[k]
        inner = gt * (t < 0.4)
        gt = inner * (slope - t * t)
        return gt[perm.argsort()], gw, None, None, None
"""
RECURRENCE_SLIPS = [
    ("decay, slope = ctx.rates", "slope, decay = ctx.rates", "gradient-wrong", "decay, slope"),
    ("range(len(t) - 1, -1, -1)", "range(len(t) - 1, 0, -1)",
     "partly-right", "-1, -1"),
    ("decay * carry", "carry", "gradient-wrong", ""),
    ("/ 2 + decay * carry", "/ 2 - decay * carry", "gradient-wrong", None),
    ("g[k] / 2", "g[k]", "scaled", "`g[k] / 2`"),
    ("gw[rows[k]] += carry", "gw[rows[k]] = carry",
     {"partly-right", "contribution-lost"}, "+="),
    ("* low[k]", "* t[k]", "partly-right", "low[k]"),
    ("carry, w[rows[k]]", "carry, w[rows[0]]", "partly-right", "rows[k]"),
    ("(t < 0.4)", "(t > 0.4)", "other-mask", "t < 0.4"),
    ("gt * (t < 0.4)", "gt * 1", "partly-right", None),
    ("(slope - t * t)", "(slope + t * t)", "derivative-wrong", "slope - t * t"),
    ("(slope - t * t)", "(slope - t)", "derivative-wrong", "slope - t"),
    ("gt[perm.argsort()]", "gt[perm]", "misplaced", "argsort"),
    ("gt[perm.argsort()]", "gt", "misplaced", None),
    ("            carry = g[k] / 2 + decay * carry\n"
     "            gt[k] = Layer.product(carry, w[rows[k]])\n",
     "            gt[k] = Layer.product(carry, w[rows[k]])\n"
     "            carry = g[k] / 2 + decay * carry\n", "gradient-wrong", " came "),
    ("save_for_backward(t, w,", "save_for_backward(x[perm], w,", "derivative-wrong", None),
    ("ctx.rates = decay, 1.0", "ctx.rates = decay, 2.0", "derivative-wrong", ""),
    ("a * b", "a + b", "not-linear", "a * b"),
]  # fmt: skip

LOSS = """
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
"""
LOSS_SLIPS = [
    (" * mask[:, None]", "", "partly-right", None),
    (" / count", "", "scaled", "count"),
    ("count = mask.sum()", "count = len(mask)", "scaled", None),
    ("-= 1 - ctx.eps", "-= 1", "partly-right", None),
    ("-= 1 - ctx.eps", "+= 1 - ctx.eps", "partly-right", "ctx.eps"),
    (" - ctx.eps / logs.shape[-1]", "", "term-missing", None),
    ("logs.exp()", "logs", "gradient-wrong", "exp("),
    ("g * gx", "gx", "grad-output-ignored", None),
    ("target] -=", "mask.long()] -=", "partly-right", None),
]

PRODUCT = """
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z * w.conj() + z.abs().square()

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        gw = (g.conj() * z).sum(0)
        return g * w + 2 * g.real * z, gw
"""
PRODUCT_SLIPS = [
    ("g * w + 2", "g * w.conj() + 2", "gradient-wrong", "w"),
    ("g.conj() * z", "g * z", "right-only-for-ones", "g.conj()"),
    ("g.conj() * z", "g * z.conj()", "conjugate", None),
    ("2 * g.real * z", "2 * g * z", "right-only-for-ones", "real"),
    ("2 * g.real * z", "g.real * z", "gradient-wrong", ""),
    ("g * w + 2 * g.real * z", "(g * w + 2 * g.real * z).real + 0 * z", "gradient-wrong", None),
]


def layers():
    """{name: (text, inputs, slips)}; inputs() makes new ones, always the same numbers."""
    rows, perm = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([1, 2, 0, 4, 3])
    above = torch.ones(2, 4, 4).triu(1) > 0
    target, mask = torch.tensor([1, 0, 3, 2, 1]), torch.tensor([1.0, 1, 0, 1, 0]).double()
    return {
        "linear": (LINEAR, lambda: (*drawn((3, 4), (4, 4), (4,)), 2.5), LINEAR_SLIPS),
        "softmax": (SOFTMAX, lambda: (*drawn((3, 4)), 1.7), SOFTMAX_SLIPS),
        "norm": (NORM, lambda: (*drawn((2, 3, 5), (5,)), 0.1), NORM_SLIPS),
        "convolution": (CONVOLUTION, lambda: (*drawn((2, 9), (3,)), 2), CONVOLUTION_SLIPS),
        "attention": (ATTENTION, lambda: (*drawn(*[(2, 4, 4)] * 3), above), ATTENTION_SLIPS),
        "recurrence": (
            RECURRENCE, lambda: (*drawn((5, 3), (3, 3)), rows, perm, 0.6), RECURRENCE_SLIPS,
        ),
        "loss": (LOSS, lambda: (*drawn((5, 4)), target, mask, 0.2), LOSS_SLIPS),
        "product": (
            PRODUCT, lambda: drawn((3, 4), (4,), dtype=torch.complex128), PRODUCT_SLIPS,
        ),
    }  # fmt: skip


def drawn(*shapes, dtype=torch.float64):
    return tuple(random(*shape, dtype=dtype, seed=k + 2) for k, shape in enumerate(shapes))
