"""What people write now, right and wrong: what the doctor says of it."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from helpers.doctor import examine
from tests.doctor.common import codes, drawn, errors

CASES = []


def case(due, *says, inputs, **options):
    """Register the decorated callable with the codes that are due, and words of the
    report.

    due: of errors, or of warnings if there is none, as one string; inputs: tensors, or
         a function that makes them
    """

    def register(fn):
        CASES.append(pytest.param(fn, inputs, due, says, options, id=fn.__name__))
        return fn

    return register


def f64(*shapes):
    return drawn(*shapes)


def f32(*shapes):
    return drawn(*shapes, dtype=torch.float32)


# --- layouts --------------------------------------------------------------------------


def rows(t, like):
    return torch.as_strided(t, like.shape, like.stride(), t.storage_offset())


def dense_last(t):
    return t if t.stride(-1) == 1 else t.contiguous()


@case("grad-output-layout", "a slice of a wider tensor", inputs=f64((3, 4)))
class SinCos(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, gs, gc):
        (x,) = ctx.saved_tensors
        gs, gc = (rows(dense_last(g), x) for g in (gs, gc))
        return gs * x.cos() - gc * x.sin()


class Sin(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()


@case("grad-output-layout", "a slice of a wider tensor", inputs=f64((3, 4)))
class FromTheStart(Sin):
    """It reads the memory of grad_output from its start, without the offset."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.as_strided(g, g.shape, g.stride(), 0) * x.cos()


@case("input-layout", "The gradient of `x`", inputs=f64((3, 4)))
class DenseInput(Sin):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.as_strided(x, x.shape, (4, 1), x.storage_offset()).cos()


@case("", inputs=f64((3, 4)))
class Strided(Sin):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return rows(g.contiguous(), g.contiguous()) * x.cos()


# --- control flow, subclasses, compiled code ------------------------------------------


@case("double-backward-missing", inputs=f64((3,)))  # as it is with torch 2.15
def of_cond(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


case("", "at 3 points", inputs=f32((3,)))(torch.compile(of_cond, backend="aot_eager"))


def of_scan(xs, carry):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: ((c * x).sin(), (c + x).sin()), carry, xs)[1].sum(0)


if torch.__version__ >= "2.13":  # before, the prototype computes what nobody asks for
    case("", inputs=f64((5, 3), (3,)))(of_scan)


@case("", inputs=f64((5, 3)))
def of_map(xs):
    from torch._higher_order_ops.map import map as map_over

    return map_over(lambda x: x.sin() * x, xs)


class Plain(torch.Tensor):
    pass


@case("", inputs=lambda: (torch.ones(2, 3).as_subclass(Plain).requires_grad_(),))
def of_a_subclass(x):
    return torch.sin(x)


compiled = torch.compile(lambda x, a, b: F.gelu(x @ a) @ b, backend="aot_eager")
case("", "at 3 points", inputs=f32((3, 4), (4, 4), (4, 2)))(compiled)


# --- randomness -----------------------------------------------------------------------


@case("", inputs=(*f64((6,)), 0.5))
class Noisy(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * scale + torch.randn_like(x) * scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, None


@case("gradient-wrong", inputs=f64((4, 5), (5,)))
class ForgottenMask(Function):
    @staticmethod
    def forward(ctx, x, w):
        mask = (torch.rand_like(x) > 0.5) * 2.0
        ctx.save_for_backward(x, w, mask)
        return x * mask * w

    @staticmethod
    def backward(ctx, g):
        x, w, mask = ctx.saved_tensors
        return g * w, (g * x * mask).sum(0)


@case("partly-right", inputs=f64((4, 5)))
class OneMaskTwice(Function):
    """Two masks were drawn; backward uses one of them twice."""

    @staticmethod
    def forward(ctx, x):
        one, other = ((torch.rand_like(x) > 0.5) * 2.0 for _ in range(2))
        ctx.save_for_backward(one, other)
        return x * one * other

    @staticmethod
    def backward(ctx, g):
        one, _other = ctx.saved_tensors
        return g * one * one


# --- repairs --------------------------------------------------------------------------


def halves(n, d):
    angle = torch.outer(torch.arange(n).double(), 0.5 ** torch.arange(d // 2))
    return [torch.cat([t, t], -1) for t in (angle.cos(), angle.sin())]


def turned(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


@case(
    "jacobian-transposed",
    "right if: `g * cos - turned(g) * sin`",
    inputs=lambda: (f64((3, 8))[0].requires_grad_(), *halves(3, 8)),
    lines=True,
)
class RoPE(Function):
    """Of which the right form needs the halves of `sin` to be equal."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return x * cos + turned(x) * sin

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return g * cos + turned(g) * sin, None, None


@case("shifted", "right if: ", inputs=f64((2, 3, 5), (3, 4)), lines=True)
class CausalConv(Function):
    """A depthwise one; the slip stands in the first window."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        x = F.pad(x, (w.shape[1] - 1, 0))
        return (x.unfold(-1, w.shape[1], 1) * w[None, :, None]).sum(-1)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        k = w.shape[1]
        gw = F.pad(x, (k - 1, 0)).unfold(-1, k, 1) * g[..., None]
        wide = torch.zeros_like(F.pad(x, (k - 1, 0)))
        for j in range(k):
            wide[..., j : j + x.shape[-1]] += g * w[None, :, j, None]
        return wide[..., k - 2 : k - 2 + x.shape[-1]], gw.sum((0, 2))


# --- names of what is large -----------------------------------------------------------


@case("swapped gradient-zero", "that of `k`", inputs=f64((20, 30), (20, 30)))
class QueryAndKey(Function):
    """Of so many elements that only a sample is looked at."""

    @staticmethod
    def forward(ctx, q, k):
        return q.flip(-1) * 3, k.flip(-1) * 3

    @staticmethod
    def backward(ctx, gq, gk):
        return gk.flip(-1) * 3, gq.flip(-1) * 3


# --- coincidences ---------------------------------------------------------------------


@case("scaled", inputs=(*f64((2, 6), (6,)), 2))
class GroupScale(Function):
    """The gradient of `w` is a mean over a batch of two, and there are two groups."""

    @staticmethod
    def forward(ctx, x, w, groups):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).mean(0), None


@case("partly-right", "it is multiplied by 0.5.", inputs=(*f64((12,)), 2))
class HalfAboveZero(Function):
    """By 1/2, which has nothing to do with the number of groups."""

    @staticmethod
    def forward(ctx, x, groups):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 0, x, 2 * x), None


# --- one finding beside another -------------------------------------------------------


def tiny_weight():
    return (*f32((3, 4)), torch.tensor([1.0, 2.0, 1e-6, 1.0]), *f32((4,)))


@case("double-backward-wrong low-precision", inputs=tiny_weight)
class NormFromOutput(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        r = x.var(-1, keepdim=True, unbiased=False).add(1e-5).rsqrt()
        n = (x - x.mean(-1, keepdim=True)) * r
        y = n * w + b
        ctx.save_for_backward(y, w, b, r)
        return y

    @staticmethod
    def backward(ctx, g):
        y, w, b, r = ctx.saved_tensors
        n, gn = (y - b) / w, g * w
        mean, along = gn.mean(-1, keepdim=True), (gn * n).mean(-1, keepdim=True)
        return r * (gn - mean - n * along), (g * n).sum(0), g.sum(0)


@case("raised", "torch.enable_grad()", inputs=f64((4,)))
class Unrecorded(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        return torch.autograd.grad(x.sin(), x, g)[0]


@case("double-backward-wrong", "`ctx.x` is kept", inputs=f64((4,)))
class ArrayOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach().numpy()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * torch.from_numpy(ctx.x).cos()


@case("double-backward-wrong", "A tensor was changed in place", inputs=f64((4,)))
class WritesPastAutograd(Function):
    """By memory that autograd does not watch, as a kernel writes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        grad = g * slope
        slope.detach().numpy().fill(0)
        return grad


# --- lines ----------------------------------------------------------------------------


class Cubed(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3


@case("scaled", "right if: ", "3", inputs=f64((5,)), lines=True)
class ForgottenThree(Cubed):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * x


@case("scaled", "right if: ", inputs=f64((5,)), lines=True)
class WithALambda(Cubed):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        square = lambda t: t * t  # noqa: E731
        return g * square(x)


@case(
    "jacobian-transposed", ".flip(0).cumsum(0).flip(0)`", inputs=f64((5, 2)), lines=True
)
class ForwardSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, g):
        return g.cumsum(0)


@case("term-missing", "sum(-1, keepdim=True)`", inputs=f64((3, 4)), lines=True)
class SumOfAll(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum())


@case("shifted", "came before", inputs=(*f64((5, 2)), 0.5), lines=True)
class LeakySum(Function):
    """Of two lines in a loop, the one that should come first comes second."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.a, carry, sums = a, torch.zeros_like(x[0]), []
        for row in x:
            carry = a * carry + row
            sums.append(carry)
        return torch.stack(sums)

    @staticmethod
    def backward(ctx, g):
        carry, grads = torch.zeros_like(g[0]), []
        for t in reversed(range(len(g))):
            grads.append(carry)
            carry = ctx.a * carry + g[t]
        return torch.stack(grads[::-1]), None


# --- what nobody accuses, or with the hint that accepts what is meant -----------------


@case(
    "",
    "FrozenBias: nothing found",
    inputs=lambda: (f64((3, 4))[0].requires_grad_(), *f64((4,))),
)
class FrozenBias(Function):
    @staticmethod
    def forward(ctx, x, b):
        return x + b

    @staticmethod
    def backward(ctx, g):
        return g, g


@case(
    "needs-input-grad-ignored",
    "note (few-digits)",
    inputs=lambda: [t.bfloat16() for t in f32((8, 4), (4, 4))],
)
class HalfMatmul(Function):
    """Right in the dtype that was given."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = (t.bfloat16() for t in ctx.saved_tensors)
        g16 = g.bfloat16()
        return (g16 @ w.T).to(g.dtype), (x.T @ g16).to(g.dtype)


@case(
    "straight-through scaled gradient-zero",
    "faithful=False",
    inputs=f64((6, 3), (4, 3)),
)
def of_a_codebook(x, codes):
    nearest = codes[torch.cdist(x, codes).argmin(1)]
    loss = (nearest.detach() - x).square().mean() + (
        nearest - x.detach()
    ).square().mean()
    return x + (nearest - x).detach(), loss


@pytest.mark.parametrize(("fn", "inputs", "due", "says", "options"), CASES)
def test_what_is_said(fn, inputs, due, says, options):
    inputs = inputs() if callable(inputs) else inputs
    report = examine(fn, *inputs, **{"lines": False, **options})
    text = " ".join(str(report).split())
    found = [f.code for f in errors(report)] or codes(report)
    assert list(dict.fromkeys(found)) == due.split(), text
    assert all(words in text for words in says), text
