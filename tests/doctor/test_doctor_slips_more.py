"""The rarer slips: of bounds, turns, sizes, slices and names."""

import ast

import pytest

from helpers.doctor.edits import parsed
from helpers.doctor.slips import is_idle
from tests.doctor.test_doctor_slips import change_of

SLIPS = {  # what is wrong: (forward, backward, what is said)
    "a bound on one side only": (
        """        ctx.save_for_backward(x, w)
        return x.clamp(-0.9, 0.9) * w""",
        """        x, w = ctx.saved_tensors
        return g * w * (x <= 0.9), g * x.clamp(-0.9, 0.9), None""",
        "`x.abs() <= 0.9` stood in place of `x <= 0.9`",
    ),
    "one after the other in place of turns": (
        """        ctx.save_for_backward(x, w)
        pairs = x.unflatten(-1, (-1, 2)) if len(x) % 2 == 0 else x[:4].unflatten(-1, (-1, 2))
        return pairs[:, 0] * pairs[:, 1]""",
        """        x, w = ctx.saved_tensors
        a, b = x[:4:2], x[1:4:2]
        gx = torch.zeros_like(x)
        gx[:4] = torch.cat([g * b, g * a], -1)
        return gx, None, None""",
        "`torch.stack([g * b, g * a], -1).flatten(-2)` stood in place of",
    ),
    "a term at the indices": (
        """        k = torch.tensor([0, 2, 2, 1, 0])
        ctx.save_for_backward(x, w, k)
        return x.new_zeros(3).index_add_(0, k, x) + w[:3]""",
        """        x, w, k = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        gw[:3] = g
        return gx, gw, None""",
        "g[k]",
    ),
    "a slice of forward, by what ctx holds": (
        """        ctx.save_for_backward(x, w)
        first, every = 2, 3
        ctx.first, ctx.every = first, every
        return x[first::every].sin() * w[first::every]""",
        """        x, w = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        gx[:: ctx.every] = g * x.narrow(0, 2, 1).cos() * w.narrow(0, 2, 1)
        gw.narrow(0, 2, 1).copy_(g * x.narrow(0, 2, 1).sin())
        return gx, gw, None""",
        "`gx[ctx.first::ctx.every]` stood in place of `gx[:: ctx.every]`",
    ),
    "slices that are one too late": (
        """        ctx.save_for_backward(x, w)
        return torch.stack([(x[1:4] * w[:3]).sum(), (x[0:3] * w[:3]).sum()])""",
        """        x, w = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        gx[1:4] += g[0] * w[:3]
        gx[0:3] += g[1] * w[:3]
        gw[:3] = g[0] * x[2:5] + g[1] * x[1:4]
        return gx, gw, None""",
        "g[0] * x[2 - 1:5 - 1] + g[1] * x[1 - 1:4 - 1]",
    ),
    "a size in place of a count": (
        """        ctx.save_for_backward(x, w)
        n = (x > 0.1).sum()
        return (x * w).sum() / n""",
        """        x, w = ctx.saved_tensors
        n = (x > 0.1).sum().to(x.dtype)
        return g * w / len(x), g * x / n, None""",
        "`n` stood in place of `len(x)`",
    ),
    "a length that forward doubles": (
        """        ctx.save_for_backward(x, w)
        n = len(x)
        fx, fw = torch.fft.rfft(x, 2 * n), torch.fft.rfft(w, 2 * n)
        return torch.fft.irfft(fx * fw, 2 * n)[:n]""",
        """        x, w = ctx.saved_tensors
        size = len(x)
        n = size
        fg = torch.fft.rfft(g, n)
        gx = torch.fft.irfft(fg * torch.fft.rfft(w, n).conj(), n)[:size]
        return gx, torch.fft.irfft(fg * torch.fft.rfft(x, n).conj(), n)[:size], None""",
        "right if: `2 * size` stood in place of `size`",
    ),
    "twice in place of both ways round": (
        """        ctx.save_for_backward(x, w)
        return (x + x.mT) @ w""",
        """        x, w = ctx.saved_tensors
        s = g @ w.mT
        return 2 * s, (x + x.mT).mT @ g, None""",
        "`s + s.mT` stood in place of `2 * s`",
    ),
    "a name, with the sign that it has": (
        """        ctx.axis = step - 2
        ctx.save_for_backward(x, w)  # 3 @ 3
        return x.cumsum(ctx.axis) * w""",
        """        x, w = ctx.saved_tensors
        gx = (g * w).flip(ctx.axis).cumsum(-1).flip(ctx.axis)
        return gx, g * x.cumsum(ctx.axis), None""",
        "`ctx.axis` stood in place of `-1`",
    ),
    "with a helper of the class": (
        """        ctx.save_for_backward(x, w)
        return Layer._wave(x) * w""",
        """        x, w = ctx.saved_tensors
        return g * w * (Layer.RATES[1] * x).sin() * Layer.RATES[1], g * Layer._wave(x), None""",
        "`(Layer.RATES[1] * x).cos()` stood in place of `(Layer.RATES[1] * x).sin()`",
    ),
    "a number of forward": (
        """        ctx.save_for_backward(x, w)
        return torch.where(x < 0.0117, 9 * x, x.sin()) * w""",
        """        x, w = ctx.saved_tensors
        slope = torch.where(x < 0.4331, 9.0, x.cos())
        return g * slope * w, g * torch.where(x < 0.0117, 9 * x, x.sin()), None""",
        "`x < 0.0117` stood in place of `x < 0.4331`",
    ),
    "a sum over one dimension too few": (
        """        ctx.save_for_backward(w, cube := x.reshape(1, -1) * w[:3, None, None])
        return cube - cube.mean((1, 2), keepdim=True)""",
        """        w, cube = ctx.saved_tensors
        inner = g - g.mean((1,), keepdim=True)
        return (inner * w[:3, None, None]).sum((0, 1)), None, None""",
        "g.mean((1, 2), keepdim=True)",
    ),
    "the transposed system": (
        """        a = torch.diag(w) + torch.diag(w[1:], 1)
        ctx.save_for_backward(*torch.linalg.lu_factor(a))
        return torch.linalg.lu_solve(*ctx.to_save, x[:, None])""",
        """        lu, pivots = ctx.saved_tensors
        return torch.linalg.lu_solve(lu, pivots, g)[:, 0], None, None""",
        "torch.linalg.lu_solve(lu, pivots, g, adjoint=True)",
    ),
    "added along one dimension": (
        """        k = torch.tensor([0, 2, 2, 1, 0])
        ctx.save_for_backward(w, k)
        return x.expand(2, -1)[..., k] * w""",
        """        w, k = ctx.saved_tensors
        gx = g.new_zeros(2, 5)
        gx[..., k] += g * w
        return gx.sum(0), None, None""",
        "`gx.index_add_(-1, k, g * w)` stood in place of `gx[..., k] += g * w`",
    ),
    "scattered onto what was gathered": (
        """        k = torch.tensor([0, 2, 2, 1, 0])
        ctx.save_for_backward(w, k)
        return x[k] * w - x""",
        """        w, k = ctx.saved_tensors
        gx = -g
        return gx.scatter(0, k, g * w + gx.gather(0, k)), None, None""",
        "`gx.scatter_add(0, k, g * w)` stood in place of",
    ),
    "sizes of a view in another order": (
        """        ctx.save_for_backward(x, w)
        return (x[:3, None] * w[:2]).transpose(0, 1).reshape(-1)""",
        """        x, w = ctx.saved_tensors
        gx = torch.zeros_like(x)
        gx[:3] = (g.reshape(3, 2) * w[:2]).sum(1)
        return gx, None, None""",
        "g.reshape(2, 3).transpose(0, 1)",
    ),
    "dimensions that are not put back": (
        """        ctx.save_for_backward(x, w)
        return (x[:4].reshape(2, 2, 1) * w[:3]).permute(1, 2, 0).exp()""",
        """        x, w = ctx.saved_tensors
        g = g * (x[:4].reshape(2, 2, 1) * w[:3]).permute(1, 2, 0).exp()
        gx = torch.zeros_like(x)
        gx[:4] = (g.reshape(4, 3) * w[:3]).sum(1)
        return gx, None, None""",
        "`g.permute(2, 0, 1).reshape(4, 3)` stood in place of `g.reshape(4, 3)`",
    ),
    "right for what is symmetric": (
        """        ctx.save_for_backward(x, w)  # i, i
        return (x @ w * x).sum(1)""",
        """        x, w = ctx.saved_tensors
        return 2 * g[:, None] * (x @ w.T), None, None""",
        "`(x @ w.T + x @ w) / 2` stood in place of `x @ w.T`",
    ),
    "before a function, not after": (
        """        def lagged(t):
            return torch.nn.functional.pad(t, (1, 0))[:-1] + t

        ctx.save_for_backward(x, w)
        return lagged(x.sin()) * w""",
        """        def led(t):
            return torch.nn.functional.pad(t, (0, 1))[1:] + t

        x, w = ctx.saved_tensors
        return w * led(g) * x.cos(), None, None""",
        "`led(w * g)` stood in place of `w * led(g)`",
    ),
    "turned before and after": (
        """        ctx.save_for_backward(x, w)
        return torch.cat([x.cumsum(0), x.flip(0).cumsum(0).flip(0)])""",
        """        a, b = g.chunk(2)
        a, b = torch.cumsum(a.flip(0), 0).flip(0), torch.cumsum(b.flip(0), 0).flip(0)
        return a + b, None, None""",
        "torch.cumsum(b, 0)",
    ),
    "half precision in two places": (
        """        ctx.save_for_backward(x, w)
        return (x * w).cumsum(0)""",
        """        x, w = ctx.saved_tensors
        total = torch.zeros(5, dtype=torch.float16)
        total += g.flip(0).cumsum(0).flip(0).half()
        return total.to(g.dtype) * w, None, None""",
        "nothing were made in half precision",
    ),
    "saved, and then changed under the hood": (
        """        y = x.tanh()
        ctx.save_for_backward(y, w)
        y.data.mul_(2.5)
        return 1.0 * y""",
        """        y, w = ctx.saved_tensors
        return g * 2.5 * (1 - y * y), None, None""",
        "`save_for_backward` saved copies",
    ),
    "a formula, not the branch that it stands in": (
        """        ctx.save_for_backward(x, w)
        return torch.where(x.abs() < 0.7, 1 - x**2 / 6 + x**4 / 120, x.sin() / x)""",
        """        x, w = ctx.saved_tensors
        far = (x * x.cos() - x.sin()) / x**2
        return g * torch.where(x.abs() < 0.7, -x / 6 + x**3 / 30, far), None, None""",
        "`-x / 3` stood in place of `-x / 6`",
    ),
    "a slice as long, at the other end": (
        """        ctx.save_for_backward(x, w)
        return w[1] * x[2:] + x[1:-1] * x[:-2]""",
        """        x, w = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        gx[2:] += w[1] * g
        gx[1:-1] += g * x[:-2]
        gx[:-2] += g * x[1:-1]
        gw[1] = (g * x[1:-1]).sum()
        return gx, gw, None""",
        "`x[2:]` stood in place of `x[1:-1]`",
    ),
    "a bound that is rounded up": (
        """        ctx.save_for_backward(x, w)
        ends = [(k * 5 // 3, -(-(k + 1) * 5 // 3)) for k in range(3)]
        return torch.stack([w[0] * x[a:b].sum() for a, b in ends])""",
        """        x, w = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        for k in range(3):
            gx[k * 5 // 3 : (k + 1) * 5 // 3] += w[0] * g[k]
            gw[0] += g[k] * x[k * 5 // 3 : -(-(k + 1) * 5 // 3)].sum()
        return gx, gw, None""",
        "`gx[k * 5 // 3:-(-((k + 1) * 5) // 3)]` stood in place of",
    ),
    "padded at both ends": (
        """        ctx.save_for_backward(x, w)
        pad = ctx.pad = 1
        return torch.nn.functional.conv1d(x[None], w[None, None, :2])[0]""",
        """        x, w = ctx.saved_tensors
        pad, gw = ctx.pad, torch.zeros_like(w)
        gw[:2] = torch.stack([(g * x[k : k + 4]).sum() for k in range(2)])
        full = torch.nn.functional.pad(g[None], (2 * pad, 0))
        return torch.nn.functional.conv1d(full, w[None, None, :2].flip(-1))[0], gw, None""",
        "(pad, pad))` stood in place of",
    ),
    "the last one, as the first": (
        """        ctx.save_for_backward(x, w)
        y = w * x
        y[:-1] += x[1:].sin()
        y[1:] += x[:-1].sin()
        return y""",
        """        x, w = ctx.saved_tensors
        gx = g * w
        gx[1:-1] += (g[:-2] + g[2:]) * x[1:-1].cos()
        gx[0] += g[1] * x[0].cos()
        return gx, g * x, None""",
        "`gx[-1] += g[-2] * x[-1].cos()` came after `gx[0] += g[1] * x[0].cos()`",
    ),
    "sums that are multiplied": (
        """        ctx.save_for_backward(x, w)
        return w * x[0].exp()""",
        """        x, w = ctx.saved_tensors
        gx = torch.zeros_like(x)
        gx[0] = g.sum() * w.sum() * x[0].exp()
        return gx, g * x[0].exp(), None""",
        "`(g * w).sum()",
    ),
    "sums of three that are multiplied": (
        """        ctx.save_for_backward(x, w)
        return w * w * x[0]""",
        """        x, w = ctx.saved_tensors
        gx = torch.zeros_like(x)
        gx[0] = torch.einsum("b,b->", w, w) * g.sum()
        return gx, 2 * g * w * x[0], None""",
        "`torch.einsum('b,b,b->', g, w, w)` stood in place of",
    ),
    "the element that an index picks": (
        """        at = ctx.at = w.argmin(1)
        ctx.save_for_backward(x, w)
        return x.gather(1, at[:, None])[:, 0] ** 2  # of a 3 @ 3""",
        """        x, w = ctx.saved_tensors
        at, gx = ctx.at, torch.zeros_like(x)
        top = x.max(1).values
        gx.scatter_(1, at[:, None], (2 * g * top)[:, None])
        return gx, None, None""",
        "`x.gather(1, at.unsqueeze(1)).squeeze(1)` stood in place of `x.max(1).values`",
    ),
    "a view in the order of what it views": (
        """        ctx.save_for_backward(x, w)
        ctx.step = step
        return (x[:6].reshape(2, 3) * w).reshape(6)""",
        """        x, w = ctx.saved_tensors
        gx, step = torch.zeros_like(x), ctx.step
        gx[:6] = (g.reshape(2, 3) * w).reshape(6)
        both = g * x[:6]
        return gx, both.reshape(3, 2).permute(1, 0).sum(0), None""",
        "`both.reshape(2, 3).sum(0)` stood in place of `both.reshape(3, 2).permute(1, 0)",
    ),
    "the first term of a sum": (
        """        ctx.save_for_backward(x, w)
        return x * w""",
        """        x, w = ctx.saved_tensors
        gx = w * (g - g.mean() - x * (g * x).mean())
        return gx, g * x, None""",
        "`g` stood in place of `g - g.mean() - x * (g * x).mean()`",
    ),
    "a factor that comes first": (
        """        ctx.save_for_backward(x, w)
        ctx.n = torch.arange(1.0, 6.0, dtype=x.dtype)
        return w * (x + x.roll(1)) / ctx.n""",
        """        x, w = ctx.saved_tensors
        both = g * w
        total = both + both.roll(-1)
        return total / ctx.n, g * (x + x.roll(1)) / ctx.n, None""",
        "`total` stood in place of `total / ctx.n`, and `g / ctx.n` in place of `g` in",
    ),
    "put where it was taken": (
        """        order = ctx.order = torch.tensor([2, 0, 1, 4, 3])
        ctx.save_for_backward(x, w)
        return x.gather(0, order).exp()""",
        """        x, w = ctx.saved_tensors
        back = g * x.gather(0, ctx.order).exp()
        return back.gather(0, ctx.order), None, None""",
        "`torch.zeros_like(back).scatter(0, ctx.order, back)` stood in place of",
    ),
    "half of the diagonal": (
        """        ctx.save_for_backward(x, w)
        return torch.tril(x) + torch.tril(x, -1)""",
        """        x, w = ctx.saved_tensors  # 3 @ 3
        return 2 * torch.tril(g), None, None""",
        "`((torch.tril(g) + torch.tril(g, -1)) / 2)` stood in place of `torch.tril(g)`",
    ),
    "before a function of PyTorch, not after": (
        """        ctx.save_for_backward(x, w)
        return torch.roll(x, 1) * w""",
        """        x, w = ctx.saved_tensors
        return torch.roll(g, -1) * w, g * torch.roll(x, 1), None""",
        "`torch.roll(g * w, -1)` stood in place of `torch.roll(g, -1) * w`",
    ),
    "half of a number": (
        """        ctx.save_for_backward(x, w)
        return torch.where(x.abs() < 0.7, x**2 / 24, x.sin()) * w""",
        """        x, w = ctx.saved_tensors
        slope = torch.where(x.abs() < 0.7, x / 24, x.cos())
        return g * w * slope, g * torch.where(x.abs() < 0.7, x**2 / 24, x.sin()), None""",
        "`x / 12` stood in place of `x / 24`",
    ),
    "subtracted at an index that is repeated": (
        """        k = ctx.k = torch.tensor([0, 2, 2, 1, 0])
        ctx.save_for_backward(x, w)
        return w - x[k]""",
        """        x, w = ctx.saved_tensors
        gx = torch.zeros_like(x)
        gx[ctx.k] -= g
        return gx, g, None""",
        "`gx.index_put_((ctx.k,), -g, accumulate=True)` stood in place of `gx[ctx.k] -= g`",
    ),
    "a variance that is unbiased": (
        """        ctx.save_for_backward(x, w)
        return w * x.var(0, unbiased=False).sqrt()""",
        """        x, w = ctx.saved_tensors
        deviation = x.var(0).sqrt()
        centred = x - x.mean(0)
        of_x = (g * w).sum() * centred / (len(x) * x.var(0, unbiased=False).sqrt())
        return of_x, g * deviation, None""",
        "`x.var(0, unbiased=False).sqrt()` stood in place of `x.var(0).sqrt()`",
    ),
    "a number for a count of each": (
        """        ctx.k, ctx.counts = 3, torch.tensor([1.0, 2, 3, 2, 1], dtype=x.dtype)
        ctx.save_for_backward(x, w)
        return x * w / ctx.counts""",
        """        x, w = ctx.saved_tensors
        counts = ctx.counts
        return g * w / ctx.k, g * x / counts, None""",
        "`counts` stood in place of `ctx.k`",
    ),
}


@pytest.mark.parametrize(("forward", "backward", "said"), SLIPS.values(), ids=SLIPS)
def test_it_says_how_to_undo_rarer_slips(forward, backward, said, monkeypatch):
    monkeypatch.setattr("helpers.doctor.derivative.repair", lambda *_, **__: None)
    assert said in change_of(forward, backward)


@pytest.mark.parametrize(
    ("text", "old", "new", "idle"),
    [
        ("t.transpose(1, 2)", "1", "2", True),
        ("t.transpose(1, 2)", "1", "0", False),
        ("t.abs() < 0.5", "0.5", "-0.5", True),
        ("t.abs() < 0.5", "0.5", "0.25", True),  # nobody knows such a bound
        ("t.abs() < 0.5", "0.5", "0.75", False),
    ],
)
def test_no_edit_does_nothing_or_switches_a_branch_off(text, old, new, idle):
    whole = parsed(text)
    (node,) = [n for n in ast.walk(whole) if isinstance(n, ast.Constant) and ast.unparse(n) == old]
    assert is_idle(whole, node, parsed(new), literals=[0.75]) is idle
