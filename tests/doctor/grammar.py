"""One slip for each row of the doctor's grammar that no other case needs.

A row of `of` is what stands in a right Function, what stands in its place, the code that
names it, and a part of the change that the doctor is to name.
"""

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from helpers.lessons.cases.case import draw, with_a_slip
from tests.doctor.today import TODAY, case

__all__ = ["TODAY"]


def of(right, inputs, *rows):
    case("", inputs, name=right.__name__)(right)
    for old, new, codes, line in rows:
        name = f"{right.__name__}: {old} => {new}"
        case(codes, inputs, name=name, line=line)(
            with_a_slip(right, right.__name__, {old: new})
        )


class Terms(Function):
    """Each term of its gradient is a function that may be taken for another."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        waves = x.sin() - x.cos() + x.cosh() + F.softplus(x)
        return waves + x * x.log() + 2 * x.sqrt() + (x - 1).abs()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        ones = x.cos() + x.sinh() + torch.sin(x) + torch.sign(x - 1)
        return g * (ones + torch.sigmoid(x) + x.log() + 1 + x.rsqrt())


of(
    Terms,
    lambda: draw((4,), positive=True),
    ("ones = x.cos()", "ones = x.sin()", "derivative-wrong", "cos(x)"),
    ("x.sinh()", "x.cosh()", "derivative-wrong", "x.sinh()"),
    ("torch.sigmoid(x)", "torch.tanh(x)", "derivative-wrong", "torch.sigmoid(x)"),
    ("x.log() + 1", "x.log1p() + 1", "derivative-wrong", "x.log()"),
    ("x.rsqrt()", "x.sqrt()", "derivative-wrong", "x.rsqrt()"),
    ("torch.sign(x - 1)", "torch.abs(x - 1)", "derivative-wrong", "torch.sign(x - 1)"),
    ("ones = x.cos()", "ones = x", "derivative-wrong", "torch.cos(x)"),
    ("torch.sin(x)", "x", "derivative-wrong", "torch.sin(x)"),
    ("torch.sigmoid(x)", "x", "derivative-wrong", "torch.sigmoid(x)"),
    ("x.log() + 1", "x + 1", "derivative-wrong", "torch.log(x)"),
)


class Gates(Function):
    """What is returned for each input is the derivative of another function."""

    @staticmethod
    def forward(ctx, a, b, c):
        y, p = a.tanh(), b.sigmoid()
        ctx.save_for_backward(y, p, c)
        return y + p + c.relu()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, p, c = ctx.saved_tensors
        return g * (1 - y**2), g * p * (1 - p), g * (c > 0)


of(
    Gates,
    lambda: draw((6,), (6,), (6,), seed=3),
    ("g * (1 - y**2)", "g", "inner-derivative-forgotten", "(1 - y ** 2)"),
    ("g * p * (1 - p)", "g", "inner-derivative-forgotten", "p * (1 - p)"),
    ("g * (c > 0)", "g * c", "gradient-wrong", "(c > 0)"),
)


class Normalized(Function):
    """Of unit length; then centred and of unit variance."""

    @staticmethod
    def forward(ctx, x, z):
        size = x.norm(dim=-1, keepdim=True)
        centred = z - z.mean(-1, keepdim=True)
        std = centred.square().mean(-1, keepdim=True).sqrt()
        ctx.save_for_backward(x / size, size, centred / std, std)
        return x / size, centred / std

    @staticmethod
    @once_differentiable
    def backward(ctx, g, h):
        y, size, n, std = ctx.saved_tensors
        tangent = g - y * (g * y).sum(-1, keepdim=True)
        first = h.mean(-1, keepdim=True)
        second = n * (h * n).mean(-1, keepdim=True)
        return tangent / size, (h - first - second) / std


of(
    Normalized,
    lambda: draw((3, 5), (3, 5)),
    ("g - y * (g * y).sum(-1, keepdim=True)", "g", "term-missing", ").sum(-1"),
    ("(h * n).mean(-1, keepdim=True)", "(h * n)", "gradient-wrong", ".mean(-1"),
    ("(h - first - second)", "h", "term-missing", "- h.mean("),
)


class MeanSquare(Function):
    @staticmethod
    def forward(ctx, x):
        inverse = x.square().mean(-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x * inverse, inverse)
        return x * inverse

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, inverse = ctx.saved_tensors
        return (g - y * (g * y).mean(-1, keepdim=True)) * inverse


of(
    MeanSquare,
    lambda: draw((3, 5)),
    ("(g - y * (g * y).mean(-1, keepdim=True))", "g", "term-missing", ".mean"),
)


class Causal(Function):
    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(w, x)
        return w.tril() @ x

    @staticmethod
    def backward(ctx, g):
        w, x = ctx.saved_tensors
        gw = (g @ x.mT).tril() if ctx.needs_input_grad[0] else None
        return gw, w.tril().mT @ g


of(
    Causal,
    lambda: draw((4, 4), (4, 4)),
    ("x.mT).tril()", "x.mT).triu()", "other-mask", "tril"),
    ("(g @ x.mT)", "(x.mT @ g)", "gradient-wrong", "g @ x.mT"),
)


class Looked(Function):
    """Up in a table, weighted by row, the unknown left out."""

    @staticmethod
    def forward(ctx, table, index, row, mask):
        ctx.save_for_backward(index, row, mask)
        ctx.rows = len(table)
        each = (table[index] * row[:, None]).roll(-1, -1)
        return torch.where(mask, 0, each), table.gather(0, index[:, None])

    @staticmethod
    def backward(ctx, g, of_first):
        index, row, mask = ctx.saved_tensors
        each = (g * ~mask).roll(1, -1) * row[:, None]
        first = g.new_zeros(ctx.rows, 1).scatter_add_(0, index[:, None], of_first)
        summed = g.new_zeros(ctx.rows, g.shape[-1]).index_add_(0, index, each)
        return summed + F.pad(first, (0, g.shape[-1] - 1)), None, None, None


of(
    Looked,
    lambda: (
        *draw((4, 4)),
        torch.tensor([0, 1, 1, 3]),
        torch.tensor([2, 3, 5, 7]),
        torch.ones(4, 4).triu(2) > 0,
    ),
    ("g * ~mask", "g * mask", "gradient-wrong", "~mask"),
    ("(g * ~mask).roll(1, -1)", "(g * ~mask)", "shifted", "roll(1, -1)"),
    (
        "row[:, None]\n        first",
        "row\n        first",
        "gradient-wrong",
        "unsqueeze",
    ),
    ("scatter_add_", "scatter_", "contribution-lost", "scatter_add_"),
    ("scatter_add_", "scatter", "contribution-lost", "scatter_add("),
    ("index_add_", "index_copy_", "contribution-lost", "index_add_"),
)


class Filtered(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        y = F.conv1d(x, w.double(), padding=1)
        return y, torch.fft.fft(x)

    @staticmethod
    def backward(ctx, g, of_waves):
        (w,) = ctx.saved_tensors
        gx = F.conv_transpose1d(g, w.double(), padding=1)
        return gx + g.shape[-1] * torch.fft.ifft(of_waves).real, None


of(
    Filtered,
    lambda: (*draw((2, 2, 6)), torch.tensor([[[1, 2, 4], [3, 0, 5]]] * 2)),
    ("conv_transpose1d(g", "conv1d(g", "jacobian-transposed", "transpose"),
    ("fft.ifft(", "fft.fft(", "derivative-wrong", "ifft"),
)


class Mixed(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        a, b = x.chunk(2, -1)
        turned = torch.cat([-b, a], -1)
        y = torch.einsum("bi,ij->bj", x, w) + x * x + turned
        return y, (x * x).mean(), x.mean(0)

    @staticmethod
    def backward(ctx, g, of_mean, of_rows):
        x, w = ctx.saved_tensors
        gx = of_rows / len(x) + torch.einsum("bj,ij->bi", g, w)
        a, b = g.chunk(2, -1)
        gx = gx + torch.cat([b, -a], -1) + 2 * x * g
        gw = x.mT @ g if ctx.needs_input_grad[1] else None
        return gx + 2 * x * of_mean / x.numel(), gw


of(
    Mixed,
    lambda: draw((4, 4), (4, 4)),
    ('"bj,ij->bi"', '"bj,ji->bi"', "gradient-wrong", "bj,ij->bi"),
    ("torch.cat([b, -a]", "torch.cat([-a, b]", "gradient-wrong", "[b, -a]"),
    ("of_mean / x.numel()", "of_mean / len(x)", "sum-for-mean", "x.numel()"),
    ("of_mean / x.numel()", "of_mean", "sum-for-mean", ".numel()"),
    ("of_rows / len(x)", "of_rows", "sum-for-mean", ".shape[0]"),
)
