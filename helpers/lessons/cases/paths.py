"""Functions whose forward goes by several paths, and backwards that forget one.

A row is what stands there, what stands in its place, the code that names it, and words
of what the doctor says of the first local that is wrong.
"""

from functools import partial

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .case import draw, slips

paths = partial(slips, due="first")


class GatedUnit(Function):
    """SwiGLU, of which backward computes everything anew."""

    @staticmethod
    def forward(ctx, x, w_gate, w_up):
        gate = x @ w_gate.T
        up = x @ w_up.T
        act = gate * torch.sigmoid(gate)
        ctx.save_for_backward(x, w_gate, w_up)
        return act * up

    @staticmethod
    def backward(ctx, g):
        x, w_gate, w_up = ctx.saved_tensors
        gate, up = x @ w_gate.T, x @ w_up.T
        s = torch.sigmoid(gate)
        d_up = g * gate * s
        d_act = g * up
        d_gate = d_act * (s + gate * s * (1 - s))
        return d_gate @ w_gate + d_up @ w_up, d_gate.T @ x, d_up.T @ x


paths(
    GatedUnit,
    lambda: draw((3, 4), (5, 4), (5, 4)),
    [
        (
            "s + gate * s * (1 - s)",
            "s",
            "gradient-wrong",
            "gradient of `gate` in line 6: what comes through `sigmoid` in line 8, "
            "`act = gate * torch.sigmoid(gate)` is missing",
            "`d_act` (line 18) is the gradient of `act`",
            "for `w_gate` is wrong, too",
        ),
        (
            "d_gate = d_act * (s + gate * s * (1 - s))",
            "d_gate = d_act",
            "gradient-wrong",
            "`d_gate` (line 19) should be the gradient of `gate` in line 6",
        ),
        (
            "return d_gate @ w_gate + d_up @ w_up,",
            "return d_gate @ w_gate,",
            "gradient-wrong",
            "of the gradient of `x`: what comes through line 7, `up = x @ w_up.T`",
        ),
    ],
    warned="needs-input-grad-ignored",
)


class Leapfrog(Function):
    """A step of a pendulum's simulation: two outputs, and each goes on to the other."""

    @staticmethod
    def forward(x, v, k):
        a = -k * x
        x_new = x + 0.2 * v + 0.02 * a
        a_new = -k * x_new
        return x_new, v + 0.1 * (a + a_new)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[0])

    @staticmethod
    def backward(ctx, g_x, g_v):
        x, v, k, x_new = ctx.saved_tensors
        d_a_new = 0.1 * g_v
        d_x_new = g_x - k * d_a_new
        d_a = 0.1 * g_v + 0.02 * d_x_new
        return d_x_new - k * d_a, g_v + 0.2 * d_x_new, -(x_new * d_a_new + x * d_a)


paths(
    Leapfrog,
    lambda: draw((3,), (3,), (3,)),
    [
        (
            "*inputs, output[0]",
            "*inputs, output[1]",
            "derivative-wrong",
            "`x_new` (line 17) is not what forward has as `x_new` in line 7",
        ),
        (
            "d_x_new = g_x - k * d_a_new",
            "d_x_new = g_x",
            "derivative-wrong",
            "what comes through line 8, `a_new = -k * x_new` is missing",
        ),
        (
            "-(x_new * d_a_new + x * d_a)",
            "-(x_new * d_a_new)",
            "derivative-wrong",
            "what comes through line 6, `a = -k * x` is missing",
            "is the gradient of `a`",
        ),
    ],
)


class Retention(Function):
    """A state that decays and takes in an outer product; read out at each step."""

    @staticmethod
    def forward(ctx, q, k, v):
        state, out = q.new_zeros(q.shape[-1], v.shape[-1]), torch.zeros_like(v)
        for t in range(len(q)):
            state = 0.7 * state
            state = state + torch.outer(k[t], v[t])
            out[t] = q[t] @ state
        ctx.save_for_backward(q, k, v)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        states = [q.new_zeros(q.shape[-1], v.shape[-1])]
        for t in range(len(q)):
            states.append(0.7 * states[-1] + torch.outer(k[t], v[t]))
        d_q, d_k, d_v = [], [], []
        d_state = torch.zeros_like(states[0])
        for t in reversed(range(len(q))):
            d_q.append(states[t + 1] @ g[t])
            d_state = d_state + torch.outer(q[t], g[t])
            d_k.append(d_state @ v[t])
            d_v.append(k[t] @ d_state)
            d_state = 0.7 * d_state
        return tuple(torch.stack(found[::-1]) for found in (d_q, d_k, d_v))


paths(
    Retention,
    lambda: draw((4, 3), (4, 3), (4, 2)),
    [
        (
            "d_state = d_state + torch.outer(q[t], g[t])",
            "d_state = torch.outer(q[t], g[t])",
            "contribution-lost",
            "",
        ),
    ],
    warned="needs-input-grad-ignored",
)


class Relaxation(Function):
    """Three steps towards sin(w h), each from what the one before has left."""

    @staticmethod
    def forward(ctx, h, w):
        ctx.save_for_backward(h, w)
        for _ in range(3):
            h = h + 0.1 * (torch.sin(w * h) - h)
        return h

    @staticmethod
    def backward(ctx, g):
        h, w = ctx.saved_tensors
        states = [h]
        for _ in range(2):
            states.append(states[-1] + 0.1 * (torch.sin(w * states[-1]) - states[-1]))
        d_w = torch.zeros_like(w)
        for h in reversed(states):
            slope = 0.1 * g * torch.cos(w * h)
            d_w = d_w + slope * h
            g = 0.9 * g + slope * w
        return g, d_w


paths(
    Relaxation,
    lambda: draw((4,), (4,)),
    [
        (
            "g = 0.9 * g + slope * w",
            "g = 0.9 * g",
            "derivative-wrong",
            "`g` (line 21, run 1 of 3) holds only a part of the gradient of `h` in line "
            "8: what comes through `mul` in line 8",
            "for `w` is wrong, too",
        ),
        (
            "for h in reversed(states):",
            "for h in states:",
            "derivative-wrong",
            "",
            "`reversed(states)` stood in place of `states`",
        ),
    ],
)


class Leaky(Function):
    """States that keep a share of themselves, and move towards v.

    The gradient of `state` is also a part of that of `kept`.
    """

    @staticmethod
    def forward(ctx, keep, v):
        state, states = torch.zeros_like(v[0]), []
        for t in range(len(v)):
            kept = keep[t] * state
            gap = torch.tanh(v[t] - kept)
            state = kept + gap
            states.append(state)
        ctx.save_for_backward(keep, v)
        return torch.stack(states)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        keep, v = ctx.saved_tensors
        d_keep, d_v, before = torch.zeros_like(keep), torch.zeros_like(v), [0 * v[0]]
        for t in range(len(v) - 1):
            kept = keep[t] * before[-1]
            before.append(kept + torch.tanh(v[t] - kept))
        d_state = torch.zeros_like(v[0])
        for t in reversed(range(len(v))):
            d_state = d_state + g[t]
            slope = 1 - torch.tanh(v[t] - keep[t] * before[t]) ** 2
            d_v[t] = d_state * slope
            d_kept = d_state - d_state * slope
            d_keep[t] = d_kept * before[t]
            d_state = keep[t] * d_kept
        return d_keep, d_v


paths(
    Leaky,
    lambda: draw((3, 4), (3, 4)),
    [
        (
            "d_kept = d_state - d_state * slope",
            "d_kept = d_state",
            "gradient-wrong",
            "",
            "`d_state - d_v[t]` stood in place of `d_state`",
            "for `v` is wrong, too",
        ),
    ],
)


class LogBeta(Function):
    """The logarithm of the beta function at exp(x) and 2, which uses exp(x) twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = x.exp()
        return torch.lgamma(a) - torch.lgamma(a + 2)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = x.exp()
        slope = torch.digamma(a) - torch.digamma(a + 2)
        grad_x = g * slope * a
        return grad_x


paths(
    LogBeta,
    lambda: draw((4,)),
    [
        (
            " - torch.digamma(a + 2)",
            "",
            "derivative-wrong",
            "what comes through `add` in line 8, `return torch.lgamma(a) -",
        ),
    ],
)


class ThreeTaps(Function):
    """A product of neighbours, whose backward adds three pieces."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        left = x[:, :-2]
        middle = x[:, 1:-1]
        right = x[:, 2:]
        return left * middle + right.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        left, middle, right = x[:, :-2], x[:, 1:-1], x[:, 2:]
        grad_x = functional.pad(g * middle, (0, 2))
        grad_x = grad_x + functional.pad(g * left, (1, 1))
        grad_x = grad_x + functional.pad(g * right.cos(), (2, 0))
        return grad_x


paths(
    ThreeTaps,
    lambda: draw((3, 6)),
    [
        (
            "g * left, (1, 1)",
            "2 * g * left * middle, (1, 1)",
            "partly-right",
            "`grad_x` (line 17) should be what comes to `x` through line 7, `left = "
            "x[:, :-2]` and line 8, `middle",
        ),
    ],
)


class Tilted(Function):
    """A square of a sigmoid, whose two gradients share a slope."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.sigmoid(x * w).square()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        s = torch.sigmoid(x * w)
        slope = 2 * s * s * (1 - s)
        return g * slope * w, g * slope * x


paths(
    Tilted,
    lambda: draw((4,), (4,)),
    [
        (
            "slope = 2 * s * s * (1 - s)",
            "slope = (3 - x) * s * (2 + s)",
            "derivative-wrong",
            "",
            "all that is wrong goes through `s` (line 12), `slope` (line 13)",
        ),
        (
            "return g * slope * w, g",
            "return g * slope.mul_(w), g",
            "factor-wrong",
            "",
            "`slope.mul(w)` stood in place of `slope.mul_(w)`",
        ),
    ],
)


class OfEachChannel(Function):
    """x - its mean over all but the channels."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean((0, 2, 3), keepdim=True)

    @staticmethod
    def backward(ctx, g):
        n = g.numel() / g.shape[1]
        return g - g.sum((0, 2, 3), keepdim=True) / n


paths(
    OfEachChannel,
    lambda: draw((5, 2, 3, 4)),
    [
        (
            "n = g.numel() / g.shape[1]",
            "n = g.shape[0]",
            "term-wrong",
            "",
            "g.numel() / g.shape[1]",
        ),
    ],
)


class Bilinear(Function):
    """x · W y of each row."""

    @staticmethod
    def forward(ctx, x, w, y):
        ctx.save_for_backward(x, w, y)
        return torch.einsum("bi,ij,bj->b", x, w, y)

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        d_x = torch.einsum("b,ij,bj->bi", g, w, y)
        d_w = torch.einsum("b,bi,bj->ij", g, x, y)
        return d_x, d_w, torch.einsum("b,bi,ij->bj", g, x, w)


paths(
    Bilinear,
    lambda: draw((2, 3), (3, 3), (2, 3)),
    [
        (
            "b,ij,bj->bi",
            "b,ij,bj->bj",
            "gradient-wrong",
            "",
            "torch.einsum('b,ij,bj->bi', g, w, y)",
        ),
    ],
    warned="needs-input-grad-ignored",
)


class LearnedStep(Function):
    """Rounds to multiples of a step that is learned: right by decision, as LSQ is."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward(x, step)
        return (x / step).clamp(-4, 3).round() * step

    @staticmethod
    def backward(ctx, g):
        x, step = ctx.saved_tensors
        at = (x / step).clamp(-4, 3)
        inside = (x / step == at).to(g.dtype)
        return g * inside, (g * (at.round() - inside * x / step)).sum()


BESIDE = "beside the reference"


def by_decision(x, step):
    at = (x / step).clamp(-4, 3)
    return (at + (at.round() - at).detach()) * step


paths(
    LearnedStep,
    lambda: (2 * draw((3, 4))[0], torch.tensor(0.5, dtype=torch.float64)),
    [
        ("return g * inside,", "return g,", "inner-derivative-forgotten", "", BESIDE),
        (" - inside * x / step", "", "gradient-wrong", "", BESIDE),
        ("clamp(-4, 3).round() * step\n", "round() * step\n", "reference-differs", ""),
    ],
    reference=by_decision,
)
