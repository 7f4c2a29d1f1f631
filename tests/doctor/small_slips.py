"""Slips of loops, indices and sizes, each in a small backward, and what the doctor says of them."""

HEAD = """
import torch
from torch.autograd import Function

def repeated(function, t, times):
    for _ in range(times):
        t = function(t)
    return t

def turned(t):
    return t.flip(-1).cumsum(-1).flip(-1)

class Layer(Function):
    @staticmethod
    def forward(ctx, x, w, n):
        ctx.save_for_backward(x, w)
        ctx.n = n
"""
BACKWARD = """

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        n = ctx.n
"""
SLIPS = {  # (shapes, n, what forward returns, backward, what is said)
    "a factor of what a loop carries": (
        [(4, 3), (4, 3)], 1,
        """        h, hs = torch.zeros_like(x[0]), []
        for t in range(len(x)):
            h = w[t] * h + x[t].tanh()
            hs.append(h)
        return torch.stack(hs)""",
        """        h, hs = torch.zeros_like(x[0]), []
        for t in range(len(x)):
            hs.append(h)
            h = w[t] * h + x[t].tanh()
        gx, gw, carry = torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(x[0])
        for t in range(len(x) - 1, -1, -1):
            d = g[t] + carry
            gx[t] = d * (1 - x[t].tanh() ** 2)
            gw[t] = d * hs[t]
            carry = d
        return gx, gw, None""",
        "`d * w[t]` stood in place of `d`",
    ),
    "a factor that stands elsewhere": (
        [(5,), (5,)], 3,
        "        return (x * w / (n + 2)).sin() + x * (n + 2)",
        """        inner = (x * w / (n + 2)).cos()
        return g * inner * w / (n + 2) + g, g * inner * x / (n + 2), None""",
        "g * (n + 2)",
    ),
    "a product or a ratio of two": (
        [(5,), (5,)], 1,
        "        return (x * x / w.exp()).tanh()",
        """        t = (x * x / w.exp()).tanh()
        slope = g * (1 - t * t)
        scale = w.exp()
        return 2 * slope, -slope * x * x / scale, None""",
        "x / scale",
    ),
    "a term within a function, in a comprehension": (
        [(4, 3), (3, 3)], 1,
        "        return sum((x[t][:, None] + w + x[t + 1]).exp() for t in range(len(x) - 1))",
        """        gw = sum(g * (x[t][:, None] + w).exp() for t in range(len(x) - 1))
        gx = torch.zeros_like(x)
        for t in range(len(x) - 1):
            e = g * (x[t][:, None] + w + x[t + 1]).exp()
            gx[t] += e.sum(1)
            gx[t + 1] += e.sum(0)
        return gx, gw, None""",
        "x[t + 1]",
    ),
    "a sum over the rounds of a loop": (
        [(5,), (5,)], 3,
        "        return sum((k + 1) * x * w for k in range(n))",
        """        gx = gw = torch.zeros_like(x)
        left = n
        while left > 0:
            gx = g * left * w
            gw = gw + g * left * x
            left -= 1
        return gx, gw, None""",
        "`gx = gx + g * left * w` stood in place of `gx = g * left * w`",
    ),
    "another round of a loop": (
        [(5,), ()], 1,
        """        y, ys = x[0], [x[0]]
        for t in range(1, len(x)):
            y = w * y + 0.3 * x[t]
            ys.append(y)
        return torch.stack(ys)""",
        """        y, ys = x[0], [x[0]]
        for t in range(1, len(x)):
            y = w * y + 0.3 * x[t]
            ys.append(y)
        gx, gw, carry = torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(w)
        for t in range(len(x) - 1, -1, -1):
            carry = g[t] + w * carry
            gx[t] = 0.3 * carry
            gw = gw + (carry * ys[t - 1] if t else 0)
        return gx, gw, None""",
        "`0.3 * carry if t else carry` stood in place of `0.3 * carry`",
    ),
    "two draws in the other order": (
        [(5,), (5,)], 1,
        """        ctx.seed = 7
        dice = torch.Generator().manual_seed(7)
        a, b = torch.rand(5, generator=dice), torch.randn(5, generator=dice)
        return x * a.double() + (w * b).square()""",
        """        dice = torch.Generator().manual_seed(ctx.seed)
        b, a = torch.randn(5, generator=dice), torch.rand(5, generator=dice)
        return g * a.double(), 2 * g * w * b.square(), None""",
        "`a, b = (torch.rand(5, generator=dice), torch.randn(5, generator=dice))` stood",
    ),
    "what comes in again at the other end": (
        [(3, 6), (2,)], 1,
        "        return sum(w[k] * torch.nn.functional.pad(x, (k, 0))[:, : 6] for k in range(2))",
        """        padded = [torch.nn.functional.pad(x, (k, 0))[:, :6] for k in range(2)]
        gx = sum(torch.roll(g, -k, 1) * w[k] for k in range(2))
        return gx, torch.stack([(g * p).sum() for p in padded]), None""",
        "`torch.roll(g, -k, 1)` made zeros of what comes in again",
    ),
    "one dimension elsewhere": (
        [(12, 5), (5,)], 3,
        "        return x.reshape(2, 3, 2, 5).permute(3, 0, 2, 1).reshape(-1) * w.sum()",
        """        y = x.reshape(2, 3, 2, 5).permute(3, 0, 2, 1).reshape(-1)
        gx = (g * w.sum()).reshape(5, 2, 2, 3).permute(1, 2, 0, 3)
        return gx.reshape(12, 5), (g * y).sum() * torch.ones_like(w), None""",
        "permute(1, 3, 2, 0)",
    ),
    "both slices of a line": (
        [(3, 7), (6,)], 1,
        "        return ((x[:, 1:] - x[:, :-1]) * w).sin()",
        """        d = x[:, 1:] - x[:, :-1]
        v = g * (d * w).cos()
        gx = -torch.nn.functional.pad(v * w, (0, 1))
        gx[:, 1:-1] += (v * w)[:, :-1]
        return gx, (v * d).sum(0), None""",
        "`gx[:, 1:] += (v * w)[:, :]` stood in place of",
    ),
    "each n-th, n times": (
        [(4, 3), (6,)], 1,
        "        return x.repeat_interleave(2, dim=1) * w",
        """        gy = g * w
        return 2 * gy[:, 0::2], (g * x.repeat_interleave(2, dim=1)).sum(0), None""",
        "`gy[:, 0::2] + gy[:, 1::2]` stood in place of `2 * gy[:, 0::2]`",
    ),
    "added, not put": (
        [(4, 3), (5, 3)], 1,
        """        i = torch.tensor([0, 2, 2, 1, 0])
        return x[i] * w - x.sum(0)""",
        """        i = torch.tensor([0, 2, 2, 1, 0])
        gx = -g.sum(0).expand_as(x)
        return gx.index_copy(0, i, gx[i] + g * w), g * x[i], None""",
        "`gx.index_add(0, i, g * w)` stood in place of",
    ),
    "the last, as the first": (
        [(3, 8), (5,)], 1,
        "        return torch.fft.rfft(x).real * w",
        """        gw = (g * torch.fft.rfft(x).real).sum(0)
        share = torch.full_like(w, 0.5)
        share[0] = 1.0
        return torch.fft.irfft(torch.complex(g * w * share, 0 * g), n=8) * 8, gw, None""",
        "`share[[0, -1]] = 1.0` stood in place of `share[0] = 1.0`",
    ),
    "a ratio upside down": (
        [(5,), (5,)], 3,
        "        return (x * 0.7 / (n + 1)).sin() * w",
        """        t = x * 0.7 / (n + 1)
        return g * w * t.cos() * (n + 1) / 0.7, g * t.sin(), None""",
        "/ (n + 1) * 0.7` stood in place of",
    ),
    "two sizes": (
        [(2, 6, 4, 7), (6,)], 3,
        """        y = x.reshape(2, n, -1)
        return (y * y.mean(-1, keepdim=True)).reshape_as(x) * w[:, None, None]""",
        """        N, C, H, W = x.shape
        m = C // n
        y = x.reshape(2, n, -1)
        gy = (g * w[:, None, None]).reshape(2, n, -1)
        mean = y.mean(-1, keepdim=True)
        gx = (m * gy * mean + (gy * y).sum(-1, keepdim=True)) / m
        return gx.reshape_as(x), (g * (y * mean).reshape_as(x)).sum((0, 2, 3)), None""",
        "`C // n * (H * W)` stood in place of `C // n`",
    ),
    "a whole number for a computed one": (
        [(4, 6), ()], 2,
        """        out = x.new_zeros(3 * n + 6)
        for k in range(4):
            out[k * n : k * n + 6] += x[k]
        return out * w""",
        """        out = x.new_zeros(3 * n + 6)
        for k in range(4):
            out[k * n : k * n + 6] += x[k]
        index = torch.arange(4)[:, None] * (6 // 2) + torch.arange(6)
        return w * g[index.clamp(max=len(g) - 1)], (g * out).sum(), None""",
        "stood in place of `6 // 2`",
    ),
    "from the other end": (
        [(3, 7), ()], 1,
        "        return torch.cat([x[:, :1], x[:, 1:] - w * x[:, :-1]], -1)",
        """        gw = -(g[:, 1:] * x[:, :-1]).sum()
        return torch.cat([g[:, :1], g[:, 1:] - w * g[:, :-1]], -1), gw, None""",
        "ran from the other end of dimension -1",
    ),
    "the maximum of each group": (
        [(6, 3), (3,)], 1,
        """        group = torch.tensor([0, 1, 0, 2, 1, 2])
        top = x.new_full((3, 3), -9.0).index_reduce(0, group, x, "amax")
        return top * w""",
        """        group = torch.tensor([0, 1, 0, 2, 1, 2])
        top = x.new_full((3, 3), -9.0).index_reduce(0, group, x, "amax")
        won = x == top.amax(0)
        return (g * w)[group] * won, (g * top).sum(0), None""",
        "`top[group]` stood in place of `top.amax(0)`",
    ),
    "what a normalisation passes on": (
        [(4, 6), (6,)], 1,
        """        c = x - x.mean(-1, keepdim=True)
        return w * c / c.square().mean(-1, keepdim=True).sqrt()""",
        """        c = x - x.mean(-1, keepdim=True)
        size = c.square().mean(-1, keepdim=True).sqrt()
        h, gh = c / size, g * w
        gx = (gh - (gh * h).mean(-1, keepdim=True)) / size
        return gx, (g * h).sum(0), None""",
        "`gh - gh.mean(-1, keepdim=True) - h * (gh * h).mean(-1, keepdim=True)` stood",
    ),
    "a factor that belongs inside": (
        [(5, 5), (5,)], 1,
        "        return w * x.cumsum(-1).sin()",
        """        slope = x.cumsum(-1).cos()
        return turned(g * w) * slope, (g * x.cumsum(-1).sin()).sum(0), None""",
        "`turned(g * w * slope)` stood in place of `turned(g * w) * slope`",
    ),
    "a mask that is at hand": (
        [(9,), ()], 1,
        "        return x.clamp(max=0.4) * w",
        """        below, above = x < 0.4, x >= 0.4
        return g * w * (x > 0), (g * torch.where(above, 0.4, x)).sum(), None""",
        "`below` stood in place of `x > 0`",
    ),
    "another mode of a pad": (
        [(2, 7), ()], 1,
        """        y = torch.nn.functional.pad(x, (1, 1), mode="circular")
        return w * (y[:, 2:] + y[:, :-2])""",
        """        y = torch.nn.functional.pad(x, (1, 1), mode="circular")
        gy = torch.nn.functional.pad(g * w, (1, 1))
        return gy[:, 2:] + gy[:, :-2], (g * (y[:, 2:] + y[:, :-2])).sum(), None""",
        "mode='circular')` stood in place of",
    ),
    "states used one step late": (
        [(3,), ()], 4,
        """        ys = [x]
        for _ in range(n):
            ys.append(ys[-1] + w * ys[-1].sin())
        return ys[-1]""",
        """        ys, gw = [x], torch.zeros_like(w)
        for _ in range(n):
            ys.append(ys[-1] + w * ys[-1].sin())
        for y in ys[:0:-1]:
            gw = gw + (g * y.sin()).sum()
            g = g + g * w * y.cos()
        return g, gw, None""",
        "`ys[-2::-1]` stood in place of `ys[:0:-1]`",
    ),
    "two sizes that are exchanged in two lines": (
        [(5, 2), (3, 4)], 1,
        """        H, W = w.shape
        a, b = (x[:, 0] + 1) * (W - 1) / 2, (x[:, 1] + 1) * (H - 1) / 2
        return a.sin() + b.cos() * w.sum()""",
        """        H, W = w.shape
        a = g * ((x[:, 0] + 1) * (W - 1) / 2).cos()
        b = -g * ((x[:, 1] + 1) * (H - 1) / 2).sin() * w.sum()
        ga = a * (H - 1) / 2
        gb = b * (W - 1) / 2
        gw = (g * ((x[:, 1] + 1) * (H - 1) / 2).cos()).sum() * torch.ones_like(w)
        return torch.stack([ga, gb], 1), gw, None""",
        "`H` and `W` were exchanged in `ga = a * (H - 1) / 2` and `gb = b * (W - 1) / 2`",
    ),
    "in a helper that calls what it is given": (
        [(5,), (5,)], 2,
        "        return x * w ** (n + 1)",
        """        power = repeated(lambda t: t * w, w, n)
        return g * w, g * x * (n + 1) * w**n + 0 * power, None""",
        "`g * power` stood in place of `g * w`",
    ),
    "what is put where an index repeats, in two lines' worth": (
        [(4,), (5, 2)], 1,
        """        ends = torch.tensor([[0, 1], [1, 2], [2, 1]])
        return (x[ends[:, 0]] * x[ends[:, 1]].sin()) + w.sum()""",
        """        ends = torch.tensor([[0, 1], [1, 2], [2, 1]])
        a, b = x[ends[:, 0]], x[ends[:, 1]]
        gx = torch.zeros_like(x)
        gx[ends[:, 0]] = gx[ends[:, 0]] + g * b.sin()
        gx[ends[:, 1]] = gx[ends[:, 1]] + g * a * b.cos()
        return gx, g.sum().expand(w.shape), None""",
        "gx.index_put_((ends[:, 1],), g * a * b.cos(), accumulate=True)` stood in place of `gx[",
    ),
    "what a call is given by name elsewhere": (
        [(1, 2, 6), (2, 3, 3)], 2,
        """        step = ctx.step = n
        return torch.nn.functional.conv_transpose1d(x, w, stride=step)""",
        """        gx = torch.nn.functional.conv1d(g, w)[..., : x.shape[-1]]
        frames = g.unfold(-1, w.shape[-1], n)
        return gx, torch.einsum("ncl,nolk->cok", x, frames), None""",
        "torch.nn.functional.conv1d(g, w, stride=ctx.step)` stood in place of",
    ),
    "shifts that go back": (
        [(5, 7), ()], 1,
        """        shifts = [x.shape[0] // 2, x.shape[1] // 2]
        ctx.shifts = shifts
        return x.roll(shifts, (0, 1)) * w""",
        """        shifts = ctx.shifts
        return (g * w).roll(shifts, (0, 1)), (g * x.roll(shifts, (0, 1))).sum(), None""",
        "roll([-n for n in shifts], (0, 1))` stood in place of",
    ),
    "a difference in the place of a name that stands twice": (
        [(6,), (6,)], 1,
        "        return torch.where(x > 0, w * x, (w - 1) * x)",
        """        slope = torch.where(x > 0, 1 - w, -w)
        return g * slope, g * x, None""",
        "`(1 - w)` stood in place of each `w` in `slope = ",
    ),
    "a factor that belongs inside, before a slice": (
        [(6,), (6,)], 1,
        "        return torch.nn.functional.pad(x[:-2], (2, 0)) * w + x",
        """        late = torch.nn.functional.pad(g[2:], (0, 2)) * w
        return late + g, g * torch.nn.functional.pad(x[:-2], (2, 0)), None""",
        "pad((g * w)[2:], (0, 2))` stood in place of",
    ),
}  # fmt: skip
