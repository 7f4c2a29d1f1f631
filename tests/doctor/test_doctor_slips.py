"""More slips of the pen, each in a small backward, and what the doctor says would undo it."""

import pytest
import torch

from helpers.doctor import examine
from tests.common import random
from tests.doctor.test_doctor_edits import errors, made

SLIPS = {  # forward, backward, what is said
    "each of a name": (
        """        ctx.save_for_backward(x, w)
        ctx.step = step
        return sum(w[j] * x[j * step : j * step + 3] for j in range(len(w)))""",
        """        x, w = ctx.saved_tensors
        step, gx = ctx.step, torch.zeros_like(x)
        for j in range(len(w)):
            gx[j * step : j * step + 3] += w[j] * g
        gw = []
        for j in range(len(w)):
            gw.append((g * x[j : j + 3]).sum())
        return gx, torch.stack(gw), None""",
        "`x[j * step:j * step + 3]` stood in place of `x[j : j + 3]`",
    ),
    "each of an operation": (
        """        ctx.save_for_backward(x, w)
        return w.square() @ x.sin() @ w.square()""",
        """        x, w = ctx.saved_tensors
        a = w.square()
        gx = (a / a.sum(0)).mT @ g @ (a / a.sum(0)).mT
        gx = gx * x.cos()
        b = x.sin()
        return gx, 2 * w * (g @ (b @ a).mT + (a @ b).mT @ g), None""",
        "`gx = a.mT @ g @ a.mT` stood in place of",
    ),
    "a function within": (
        """        ctx.save_for_backward(x, w)
        return (3 * x).exp() * w""",
        """        x, w = ctx.saved_tensors
        times = lambda t: t + g
        return times(3 * (3 * x).exp() * w), g * (3 * x).exp(), None""",
        "`t * g` stood in place of `t + g`",
    ),
    "a slice of forward": (
        """        ctx.save_for_backward(x, w)
        return sum(w[i, i] * x[i : i + 2, i : i + 2] for i in range(2))""",
        """        x, w = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        for i in range(2):
            gx[i : i + 2].narrow(1, i, 2).add_(w[i, i] * g)
            gw[i, i] = (g * x[i : i + 2, :2]).sum()
        return gx, gw, None""",
        "i:i + 2, i:i + 2` stood in place of `",
    ),
    "two slices from the other end": (
        """        ctx.save_for_backward(x, w)
        return torch.nn.functional.pad(x @ w, (0, 2, 0, 2))""",
        """        x, w = ctx.saved_tensors
        g = g[-len(x) :, -len(x) :]
        return g @ w.mT, x.mT @ g, None""",
        "`g = g[:len(x), :len(x)]` stood in place of",
    ),
    "a slice that moves with the loop": (
        """        ctx.save_for_backward(x, w)
        return torch.stack([(x[k : k + 3] * w).sum() for k in range(len(x) - 2)])""",
        """        x, w = ctx.saved_tensors
        gx, steps = torch.zeros_like(x), len(x) - 2
        for j in range(len(w)):
            gx.narrow(0, j, steps).add_(g * w[j])
        return gx, torch.stack([(g * x[0:steps]).sum() for j in range(len(w))]), None""",
        "`x[j:steps + j]` stood in place of `x[0:steps]`",
    ),
    "two operations in another order": (
        """        ctx.save_for_backward(x, w)
        return (x * w[0]) @ w""",
        """        x, w = ctx.saved_tensors
        gw = (x * w[0]).mT @ g
        gw[0] += ((g @ w.mT) * x).sum(0)
        return (g * w[0]) @ w.mT, gw, None""",
        "`g @ w.mT * w[0]` stood in place of `(g * w[0]) @ w.mT`",
    ),
    "a product before a call": (
        """        ctx.save_for_backward(x, w)
        return x.flip(0) * w""",
        """        x, w = ctx.saved_tensors
        return g.flip(0) * w, g * x.flip(0), None""",
        "`(g * w).flip(0)` stood in place of `g.flip(0) * w`",
    ),
    "brackets": (
        """        ctx.save_for_backward(x, w)
        return (x.square() + x) / w""",
        """        x, w = ctx.saved_tensors
        return g * (2 * x + 1 / w), -g * (x.square() + x) / w.square(), None""",
        "`(2 * x + 1) / w` stood in place of `2 * x + 1 / w`",
    ),
    "what forward computes under a name": (
        """        ctx.save_for_backward(x, w)
        inner = torch.sigmoid(x - w - 0.7 * w.sin())
        return inner.log()""",
        """        x, w = ctx.saved_tensors
        inner = torch.sigmoid(x - w)
        return g * (1 - inner), g * (inner - 1) * (1 + 0.7 * w.cos()), None""",
        "`torch.sigmoid(x - w - 0.7 * w.sin())` stood in place of `torch.sigmoid(x - w)`",
    ),
    "what forward has changed in place": (
        """        work = x * w
        ctx.save_for_backward(x, w, work)
        gate = work.data.sigmoid_()
        return x * gate""",
        """        x, w, work = ctx.saved_tensors
        gate = torch.sigmoid(work)
        slope = gate * (1 - gate) * x
        return g * (gate + slope * w), g * slope * x, None""",
        "`save_for_backward` saved copies",
    ),
    "the modulus": (
        """        ctx.save_for_backward(x, w)
        return x.to(torch.complex128) * (1 + 2j) * w""",
        """        x, w = ctx.saved_tensors
        g = g * (1 - 2j)
        return (g * w).abs(), (g * x).real, None""",
        "`(g * w).real` stood in place of `(g * w).abs()`",
    ),
    "an element of a variable": (
        """        ctx.save_for_backward(x > 0)
        acc, out = torch.zeros_like(x[0]), []
        for k in range(len(x)):
            acc = torch.where(x[k] > 0, x[k], 0.5 * acc)
            out.append(acc)
        return torch.stack(out)""",
        """        (reset,) = ctx.saved_tensors
        gx, acc = torch.zeros_like(g), torch.zeros_like(g[0])
        for k in range(len(g) - 1, -1, -1):
            acc = acc + g[k]
            gx[k] = torch.where(reset[k], acc, 0.0)
            acc = 0.5 * acc
        return gx, None, None""",
        "`0.5 * acc * ~reset[k]` stood in place of `0.5 * acc`",
    ),
    "what a comprehension counts": (
        """        ctx.save_for_backward(x, w)
        return sum((rate * x).sin() for rate in Layer.RATES) * w.exp()""",
        """        x, w = ctx.saved_tensors
        rates = Layer.RATES
        gx = sum(rates[0] * (rate * x).cos() for rate in rates) * w.exp()
        return g * gx, g * sum((rate * x).sin() for rate in rates) * w.exp(), None""",
        "`rate` stood in place of `rates[0]`",
    ),
    "a function within, left out": (
        """        ctx.save_for_backward(x, w)
        return x * (x.flip(0) * w).cumsum(0)""",
        """        x, w = ctx.saved_tensors
        back = lambda t: t.flip(0).cumsum(0).flip(0)
        gx = g * (x.flip(0) * w).cumsum(0) + (g * x * w).flip(0)
        return gx, back(g * x) * x.flip(0), None""",
        "`back(g * x)` stood in place of `g * x`",
    ),
    "one step too far": (
        """        ctx.save_for_backward(x, w)
        return torch.stack([x[k] * w[k] for k in range(4)])""",
        """        x, w = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        for k in range(4):
            gx[k] = g[k] * w[k + 1]
            gw[k] = g[k] * x[k]
        return gx, gw, None""",
        "right if: `w[k]` stood in place of `w[k + 1]`",
    ),
    "right for symmetric matrices only": (
        """        ctx.save_for_backward(x, w)
        return x @ w @ x.mT""",
        """        x, w = ctx.saved_tensors
        return 2 * g @ x @ w, x.mT @ g @ x, None""",
        "` stood in place of `2 * g @ x @ w`",
    ),
    "a product with the other one transposed": (
        """        ctx.save_for_backward(x, w)
        return x @ w @ x.mT""",
        """        x, w = ctx.saved_tensors
        return g @ x @ w.mT, x.mT @ g @ x, None""",
        "`g @ x @ w.mT + g.mT @ x @ w` stood in place of `g @ x @ w.mT`",
    ),
    "a sum over the other dimension, too": (
        """        ctx.save_for_backward(x, w)
        return (x[:, None] - x).square() * w""",
        """        x, w = ctx.saved_tensors
        pairs = 2 * g * (x[:, None] - x) * w
        return pairs.sum(1), (g * (x[:, None] - x).square()).sum(0), None""",
        "`pairs.sum(1) - pairs.sum(-2)` stood in place of `pairs.sum(1)`",
    ),
    "the first for the sum": (
        """        ctx.save_for_backward(x, w)
        return x[:, None] * w""",
        """        x, w = ctx.saved_tensors
        return (g * w)[:, 0], (g * x[:, None]).sum(0), None""",
        "`(g * w).sum(1)` stood in place of `(g * w)[:, 0]`",
    ),
    "every second for the sum of two": (
        """        ctx.save_for_backward(x, w)
        return x.repeat_interleave(2, 0).repeat_interleave(2, 1) * w[0, 0]""",
        """        x, w = ctx.saved_tensors
        gw = torch.zeros_like(w)
        gw[0, 0] = (g * x.repeat_interleave(2, 0).repeat_interleave(2, 1)).sum()
        return w[0, 0] * g[::2, ::2], gw, None  # in place of sums of 2 @ 2""",
        "`g.unflatten(-1, (-1, 2)).sum(-1).unflatten(-2, (-1, 2)).sum(-2)` stood in place of",
    ),
    "what an inverse transform counts twice": (
        """        ctx.save_for_backward(x, w)
        return torch.fft.rfft(x).abs().square() * w[:3]""",
        """        x, w = ctx.saved_tensors
        z = torch.fft.rfft(x)
        gw = torch.zeros_like(w)
        gw[:3] = g * z.abs().square()
        gz = 2 * g * w[:3] * z
        return torch.fft.irfft(gz, n=5, norm="forward"), gw, None""",
        "`torch.fft.ifft(gz, n=5, norm='forward').real` stood in place of",
    ),
    "a triangle": (
        """        ctx.save_for_backward(x, w)
        return x.tril() @ w""",
        """        x, w = ctx.saved_tensors
        return g @ w.mT, x.tril().mT @ g, None""",
        "`(g @ w.mT).tril()",
    ),
    "a kernel that is not turned": (
        """        ctx.save_for_backward(x, w)
        x = torch.nn.functional.pad(x, (1, 1, 1, 1))
        return sum(w[i, j] * x[i : i + 3, j : j + 3] for i in range(3) for j in range(3))""",
        """        x, w = ctx.saved_tensors
        gp, xp = (torch.nn.functional.pad(t, (1, 1, 1, 1)) for t in (g, x))
        gx, gw = 0, torch.zeros_like(w)
        for i in range(3):
            for j in range(3):  # of 3 @ 3
                gx = gx + w[i, j] * gp[i : i + 3, j : j + 3]
                gw[i, j] = (g * xp[i : i + 3, j : j + 3]).sum()
        return gx, gw, None""",
        "`w.flip(-2, -1)[i, j]` stood in place of `w[i, j]`",
    ),
    "a copy of what is changed in place": (
        """        power = 1.3 * x
        e = power.exp()
        ctx.e = e
        ctx.save_for_backward(x, w)
        return e.sin_() * w""",
        """        x, w = ctx.saved_tensors
        e = ctx.e
        return g * w * e.cos() * e * 1.3, g * e.sin(), None""",
        "`e.clone()` stood in place of `e`",
    ),
    "a helper that loops": (
        """        ctx.save_for_backward(x, w)
        return x[:, None] * w.sin()""",
        """        x, w = ctx.saved_tensors
        gw = fitted(g * x[:, None] * w.cos(), w)
        return (g * w.sin()).sum(1), gw, None""",
        "`t.sum(0)` stood in place of `t.mean(0)`",
    ),
    "a chain of methods before an operation": (
        """        ctx.save_for_backward(x, w)
        return x.cumsum(0) / w""",
        """        x, w = ctx.saved_tensors
        return g.flip(0).cumsum(0).flip(0) / w, -g * x.cumsum(0) / w**2, None""",
        "`(g / w).flip(0).cumsum(0).flip(0)` stood in place of",
    ),
    "late in place of early": (
        """        ctx.save_for_backward(x, w)
        return torch.nn.functional.pad(x, (2, 0))[: len(x)] * w""",
        """        x, w = ctx.saved_tensors
        pad, n = torch.nn.functional.pad, len(x)
        return pad(g * w, (2, 0))[:n], g * pad(x, (2, 0))[:n], None""",
        "`pad(g * w, (0, 2))[-n:]` stood in place of `pad(g * w, (2, 0))[:n]`",
    ),
    "added where it is put": (
        """        k = torch.tensor([0, 2, 2, 1, 0])
        ctx.save_for_backward(x, w, k)
        return x[k] * w - x""",
        """        x, w, k = ctx.saved_tensors
        gx = -g
        return gx.index_put((k,), gx[k] + g * w), g * x[k], None""",
        "`gx.index_put((k,), g * w, accumulate=True)` stood in place of",
    ),
    "of another, by an index": (
        """        k = torch.tensor([0, 2, 2, 1, 0])
        ctx.save_for_backward(x, w, k)
        sums = x.new_zeros(3).index_add_(0, k, x)
        return sums.square() / 2 * w.sum()""",
        """        x, w, k = ctx.saved_tensors
        sums = x.new_zeros(3).index_add(0, k, x)
        gw = (g * sums.square() / 2).sum().expand_as(w)
        return g[k] * x * w.sum(), gw, None""",
        "`g[k] * sums[k]` stood in place of `g[k] * x`",
    ),
    "one factor of a power": (
        """        ctx.save_for_backward(x, w)
        return (x * w) ** 3 / 3""",
        """        x, w = ctx.saved_tensors
        y = x * w
        return g * y**3, g * y**2 * x, None""",
        "`(y ** 2 * w)` stood in place of `y**3`",
    ),
    "a dimension in parts": (
        """        ctx.save_for_backward(x, w)
        return x.repeat(2, 2) * w[0, 0]""",
        """        x, w = ctx.saved_tensors
        n, m = x.shape  # 3 @ 3
        gw = torch.zeros_like(w)
        gw[0, 0] = (g * x.repeat(2, 2)).sum()
        return w[0, 0] * g.reshape(n, 2, m, 2).sum((1, 3)), gw, None""",
        "`g.reshape(2, n, 2, m).sum((0, 2))` stood in place of",
    ),
    "a dimension in parts, in the middle": (
        """        ctx.save_for_backward(x, w)
        return x.repeat(1, 2) * w[0, 0]""",
        """        x, w = ctx.saved_tensors
        n = len(x)  # 3 @ 3
        gw = torch.zeros_like(w)
        gw[0, 0] = (g * x.repeat(1, 2)).sum()
        return w[0, 0] * g.unflatten(1, (n, 2)).sum(2), gw, None""",
        "`g.unflatten(1, (2, n)).sum(1)` stood in place of",
    ),
    "in pieces in place of turns": (
        """        ctx.save_for_backward(x, w)
        return torch.stack([x, 2 * w], -1).flatten()""",
        """        x, w = ctx.saved_tensors
        gx, gw = g.chunk(2, -1)
        return gx, 2 * gw, None""",
        "`g.unflatten(-1, (-1, 2)).unbind(-1)` stood in place of `g.chunk(2, -1)`",
    ),
    "under a name of its own": (
        """        ctx.save_for_backward(x, w)
        return torch.sin(x) * w""",
        """        x, w = ctx.saved_tensors
        wave = torch.sin
        return g * torch.cos(x), g * wave(x), None""",
        "`g * torch.cos(x) * w",
    ),
    "one number twice in a line": (
        """        ctx.save_for_backward(x, w)  # 3 @ 3
        return x - x.mean(0, keepdim=True) - w * (x * w).mean(0, keepdim=True)""",
        """        x, w = ctx.saved_tensors
        gw = -g * (x * w).mean(0, keepdim=True) - x * (g * w).mean(0, keepdim=True)
        gx = g - g.mean(1, keepdim=True) - w * (g * w).mean(1, keepdim=True)
        return gx, gw, None""",
        "`gx = g - g.mean(0, keepdim=True) - w * (g * w).mean(0, keepdim=True)` stood in",
    ),
}


@pytest.mark.parametrize(("forward", "backward", "said"), SLIPS.values(), ids=SLIPS)
def test_it_says_how_to_undo_more_slips(forward, backward, said, monkeypatch):
    monkeypatch.setattr("helpers.doctor.derivative.repair", lambda *_, **__: None)
    assert said in change_of(forward, backward)


def change_of(forward, backward):
    head = """
import torch
from torch.autograd import Function

def launch(parts):
    return torch.from_numpy(sum(part.numpy() for part in parts))

def fitted(t, like):
    while t.dim() > like.dim():
        t = t.mean(0)
    return t

class Layer(Function):
    RATES = 0.3, 1.7, 2.9

    @staticmethod
    def _wave(t):
        return (Layer.RATES[1] * t).sin()

    @staticmethod
    def forward(ctx, x, w, step):
"""
    between = "\n\n    @staticmethod\n    def backward(ctx, g):\n"
    layer = made(head + forward + between + backward + "\n")
    square = "@" in forward + backward or "i, i" in forward
    shapes = ((8,), (3,)) if "step" in backward else ((3, 3), (3, 3)) if square else ((5,), (5,))
    x, w = (random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))
    with torch.no_grad():
        x[0] = 0.2  # between the two bounds
    found = errors(examine(layer, x, w, 2))
    return found[0].change
