"""Slips in Functions of everyday kinds, and the line that is named: what would make it right."""

from functools import partial

import torch
from torch import nn
from torch.autograd import Function

from helpers.lessons.patients.patient import Square, draw, slip
from tests.doctor.cases import Table, drawn

CASES = Table()
case = partial(CASES, lines=True)
slip = partial(slip, register=CASES, lines=True)
FOUR = drawn((4,))

slip("Detached", "double-backward-wrong", "", Square, lambda: FOUR, {"2 * x": "2 * x.detach()"},
     "`x` stood in place of `x.detach()` (line 10, in `backward`)")  # fmt: skip
slip("InSilence", "double-backward-wrong", "", Square, lambda: FOUR,
     {"return grad_output * 2 * x":
      "with torch.no_grad():\n            slope = 2 * x\n        return grad_output * slope"},
     "in place of `torch.no_grad()` (line 10, in `backward`)")  # fmt: skip


class Pruned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(drawn((3, 4))[0].detach())

    def forward(self, x):
        weight = nn.Parameter(self.weight * (self.weight > 0))
        return x @ weight.mT


case("gradient-none", "right if: `self.weight * (self.weight > 0)` stood in", "in `forward`",
     inputs=drawn((2, 4)))(Pruned())  # fmt: skip


@case("gradient-none swapped", "if: `None, grad_output * counts * x.exp()` stood", "in `backward`",
      inputs=(FOUR[0].detach(), *FOUR))  # fmt: skip
class InTheFirstPlace(Function):
    @staticmethod
    def forward(ctx, counts, x):
        ctx.save_for_backward(counts, x)
        return counts * x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        counts, x = ctx.saved_tensors
        return grad_output * counts * x.exp(), None


@case("jacobian-transposed gradient-wrong", "`matrix` stood in place of `matrix.T`",
      inputs=lambda: (drawn((2, 3))[0], 0.2 * drawn((3, 3))[0]))  # fmt: skip
class Equilibrium(Function):
    """An edit, `found += step`, would write into grad_output."""

    @staticmethod
    def forward(ctx, x, matrix):
        z = x
        for _ in range(60):
            z = torch.tanh(z @ matrix.T + x)
        ctx.save_for_backward(z, matrix)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        z, matrix = ctx.saved_tensors
        slope = 1 - z * z
        found = grad_output
        for _ in range(60):
            step = grad_output + (found * slope) @ matrix.T
            found = step
        found = found * slope
        return found, found.T @ z


@case("partly-right", "at [0] it should be zero", never=("as if",), inputs=lambda: drawn((3,), ()))
class Overwrites(Function):
    """To autograd, .data hides already what a detached value would."""

    @staticmethod
    def forward(ctx, x, value):
        out = x.clone()
        out.data[0] = value
        return out

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, grad_output[0]


@case("scaled", "right if: `known.sum()` stood in place of `len(x)`", inputs=drawn((10,)))
class MeanOfKnown(Function):
    """Chapter 11's loss in small: the mean over some, divided by the number of all."""

    @staticmethod
    def forward(ctx, x):
        known = torch.arange(len(x)) % 5 > 0
        ctx.save_for_backward(x, known)
        return x[known].square().mean()

    @staticmethod
    def backward(ctx, grad_output):
        x, known = ctx.saved_tensors
        return grad_output * 2 * x * known / len(x)


@case("gradient-wrong", "as if: `x.sin().detach()` stood", inputs=drawn((6,)))
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


@case("derivative-wrong", "`x > 0` stood in place of `x < 0`", "in `backward`",
      inputs=drawn((300, 200)))  # fmt: skip
class Scores(Function):
    """In a large input, the two branches are taken for each other."""

    @staticmethod
    def forward(ctx, x):
        s = torch.where(x >= 0, x + 1, 1 / (1 - x))
        total = s.sum(-1, keepdim=True)
        ctx.save_for_backward(x, s / total, total)
        return s / total

    @staticmethod
    def backward(ctx, grad_output):
        x, share, total = ctx.saved_tensors
        slope = torch.where(x < 0, 1.0, 1 / (1 - x) ** 2)
        rest = grad_output - (grad_output * share).sum(-1, keepdim=True)
        return rest / total * slope


@case("sum-for-mean", "/ (c - 1) / n` stood", "in `backward`", never=("c * c", "c ** 2"),
      inputs=drawn((6, 5)))  # fmt: skip
class OthersOf(Function):
    """At this size, c * c - 1 in the place of c - 1 would do by chance."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        n, c = x.shape
        return x.square().sum() / ((c - 1) * n)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        n, c = x.shape
        return grad_output * 2 * x / (c - 1)


def turned():
    """It needs pairs of features, and nobody trains the angles."""
    angles = torch.arange(5.0)[:, None] / 10 ** torch.arange(3.0)
    return draw((2, 5, 6))[0].float().requires_grad_(), angles.cos(), angles.sin()


@case("partly-right", "`a * cos + b * sin` stood in place of `a * cos - b * sin`",
      "not judged: `cos` (it requires no gradient, and backward returns None for it)",
      "not judged: `sin` (it requires no gradient, and backward returns None for it)",
      inputs=turned)  # fmt: skip
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


@case("gradient-wrong", "`torch.softmax(x, 0)` stood in place of `torch.softmax(x, -1)`",
      inputs=(torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4),))  # fmt: skip
class OtherDimension(Function):
    """A negative constant is a constant."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.softmax(x, 0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        y = torch.softmax(x, -1)
        return y * (g - (g * y).sum(0, keepdim=True))


@case("", inputs=lambda: (draw((4, 4))[0] + 4 * torch.eye(4).double(), *draw((4,))))
class Solve(Function):
    """Right; the gradient of b is a step on the way to that of the matrix."""

    @staticmethod
    def forward(ctx, matrix, b):
        x = torch.linalg.solve(matrix, b)
        ctx.save_for_backward(matrix, x)
        return x

    @staticmethod
    def backward(ctx, g):
        matrix, x = ctx.saved_tensors
        of_b = torch.linalg.solve(matrix.mT, g)
        return -of_b.unsqueeze(-1) @ x.unsqueeze(-2), of_b


@case("term-missing", "/ size) / size` stood", never=("(1 / ",), inputs=draw((5,)))
class Ratio(Function):
    """Its gradient lacks a division by what backward has at hand, which is written as one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        size = x.square().sum() + 1
        return (x / size).sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        size = x.square().sum() + 1
        return g * (1 - 2 * x * x.sum() / size)


def half(g, x):
    if x.dtype != torch.float16:  # with <, this raises
        return g * x
    return 2 * g * x


@case("scaled", "`g * x * 2` stood in place of `g * x`", inputs=draw((4,)))
class AnswersItself(Function):
    """An exception of what backward tries first is no cure."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        try:
            return half(g, x)
        except Exception:
            return 2 * g * x


@case("needs-input-grad-wrong",
      "`ctx.needs_input_grad[1]` stood in place of `ctx.needs_input_grad[0]`",
      inputs=lambda: drawn((3, 2), (2, 2)))  # fmt: skip
class AsksAboutTheOther(Function):
    """A flag is exchanged for another, not for True."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g if ctx.needs_input_grad[0] else None


@case("gradient-wrong", "`(g * y).sum(ctx.dim, keepdim=True)` stood in place of",
      inputs=lambda: (*drawn((4, 5)), 0))  # fmt: skip
class AlongTheLast(Function):
    """A dimension that is written as -1, and is an argument."""

    @staticmethod
    def forward(ctx, x, dim):
        y = x.softmax(dim)
        ctx.save_for_backward(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)), None


@case("contribution-lost", "`grad.index_add_(0, rows, g)` stood in place of",
      inputs=lambda: (*drawn((5, 3)), torch.tensor([0, 2, 2, 4])))  # fmt: skip
class OneOfSeveral(Function):
    """A call whose value nothing takes."""

    @staticmethod
    def forward(ctx, table, rows):
        ctx.save_for_backward(rows)
        return table[rows]

    @staticmethod
    def backward(ctx, g):
        (rows,) = ctx.saved_tensors
        grad = g.new_zeros(5, 3)
        grad.index_copy_(0, rows, g)
        return grad, None


@case("scaled", "`valid.sum()` stood in place of `valid.numel()`",
      inputs=lambda: (*drawn((5, 4)), torch.tensor([0, 2, -1, 1, 3])))  # fmt: skip
class MeanOfAll(Function):
    """Of two counts that are 4, that of the tensor that is counted already."""

    @staticmethod
    def forward(ctx, logits, target):
        valid, safe = target >= 0, target.clamp_min(0)
        logs = logits.log_softmax(-1)
        n = valid.sum()
        ctx.save_for_backward(logs, safe, valid)
        return -(logs.gather(1, safe[:, None])[:, 0] * valid).sum() / n

    @staticmethod
    def backward(ctx, g):
        logs, safe, valid = ctx.saved_tensors
        grad = logs.exp() - torch.nn.functional.one_hot(safe, 4)
        grad = grad * valid[:, None]
        return g * grad / valid.numel(), None
