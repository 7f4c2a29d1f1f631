"""What people write now, right and wrong: more rows of the table of cases."""

import functools

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.utils import spectral_norm

from helpers.lessons.cases.case import (
    Case,
    Linear,
    Multiply,
    affine,
    broken,
    draw,
    function,
    slip,
)
from helpers.lessons.cases.layers import TemperedSoftmax

TODAY = []
case = functools.partial(broken, cases=TODAY)


def f64(*shapes):
    return lambda: draw(*shapes)


def f32(*shapes):
    return lambda: draw(*shapes, dtype=torch.float32)


# --- layouts --------------------------------------------------------------------------


def rows(t, like):
    return torch.as_strided(t, like.shape, like.stride(), t.storage_offset())


def dense_last(t):
    return t if t.stride(-1) == 1 else t.contiguous()


@case("grad-output-layout", f64((3, 4)), "a slice of a wider tensor")
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


@case("grad-output-layout", f64((3, 4)), "a slice of a wider tensor")
class FromTheStart(Sin):
    """It reads the memory of grad_output from its start, without the offset."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.as_strided(g, g.shape, g.stride(), 0) * x.cos()


@case("input-layout", f64((3, 4)), "The gradient of `x`")
class DenseInput(Sin):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.as_strided(x, x.shape, (4, 1), x.storage_offset()).cos()


@case("", f64((3, 4)))
class Strided(Sin):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return rows(g.contiguous(), g.contiguous()) * x.cos()


# --- control flow, subclasses, compiled code ------------------------------------------


@case("double-backward-missing", f64((3,)))  # as it is with torch 2.15
def of_cond(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


case("", f32((3,)), "at 3 points")(torch.compile(of_cond, backend="aot_eager"))


def of_scan(xs, carry):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: ((c * x).sin(), (c + x).sin()), carry, xs)[1].sum(0)


if torch.__version__ >= "2.13":  # before, the prototype computes what nobody asks for
    case("", f64((5, 3), (3,)))(of_scan)


@case("", f64((5, 3)))
def of_map(xs):
    from torch._higher_order_ops.map import map as map_over

    return map_over(lambda x: x.sin() * x, xs)


class Plain(torch.Tensor):
    pass


@case("", lambda: (torch.ones(2, 3).as_subclass(Plain).requires_grad_(),))
def of_a_subclass(x):
    return torch.sin(x)


compiled = torch.compile(lambda x, a, b: F.gelu(x @ a) @ b, backend="aot_eager")
case("", f32((3, 4), (4, 4), (4, 2)), "at 3 points")(compiled)


# --- randomness -----------------------------------------------------------------------


@case("", lambda: (*draw((6,)), 0.5))
class Noisy(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * scale + torch.randn_like(x) * scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale, None


@case("gradient-wrong", f64((4, 5), (5,)))
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


@case("partly-right", f64((4, 5)))
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
    lambda: (draw((3, 8))[0].requires_grad_(), *halves(3, 8)),
    "right if: `g * cos - turned(g) * sin`",
    line="",
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


@case("shifted", f64((2, 3, 5), (3, 4)), line="")
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


@case("swapped gradient-zero", f64((20, 30), (20, 30)), "that of `k`")
class QueryAndKey(Function):
    """Of so many elements that only a sample is looked at."""

    @staticmethod
    def forward(ctx, q, k):
        return q.flip(-1) * 3, k.flip(-1) * 3

    @staticmethod
    def backward(ctx, gq, gk):
        return gk.flip(-1) * 3, gq.flip(-1) * 3


# --- coincidences ---------------------------------------------------------------------


@case("scaled", lambda: (*draw((2, 6), (6,)), 2))
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


@case("partly-right", lambda: (*draw((12,)), 2), "it is multiplied by 0.5.")
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
    return (*f32((3, 4))(), torch.tensor([1.0, 2.0, 1e-6, 1.0]), *f32((4,))())


@case("double-backward-wrong low-precision", tiny_weight)
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


@case("raised", f64((4,)), "torch.enable_grad()")
class Unrecorded(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        return torch.autograd.grad(x.sin(), x, g)[0]


@case("double-backward-wrong", f64((4,)), "`ctx.x` is kept")
class ArrayOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach().numpy()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * torch.from_numpy(ctx.x).cos()


@case("double-backward-wrong", f64((4,)), "A tensor was changed in place")
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


@case("scaled", f64((5,)), line="3")
class ForgottenThree(Cubed):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * x


@case("scaled", f64((5,)), line="")
class WithALambda(Cubed):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        square = lambda t: t * t  # noqa: E731
        return g * square(x)


@case("jacobian-transposed", f64((5, 2)), line=".flip(0).cumsum(0).flip(0)`")
class ForwardSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, g):
        return g.cumsum(0)


@case("term-missing", f64((3, 4)), line="sum(-1, keepdim=True)`")
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


@case("shifted", lambda: (*draw((5, 2)), 0.5), line="came before")
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
    lambda: (draw((3, 4))[0].requires_grad_(), *draw((4,))),
    "FrozenBias: nothing found",
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
    lambda: [t.bfloat16() for t in draw((8, 4), (4, 4))],
    "note (few-digits)",
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


@case("straight-through scaled gradient-zero", f64((6, 3), (4, 3)), "faithful=False")
def of_a_codebook(x, codes):
    nearest = codes[torch.cdist(x, codes).argmin(1)]
    loss = (nearest.detach() - x).square().mean() + (
        nearest - x.detach()
    ).square().mean()
    return x + (nearest - x).detach(), loss


# --- what is proposed, and what is not ------------------------------------------------


@case("derivative-wrong", lambda: (draw((4, 3))[0].sigmoid(), 2.0), line="gamma - 1")
class FocalLoss(Function):
    """It is right divided by 1 - p, too, but where that is 0."""

    @staticmethod
    def forward(ctx, p, gamma):
        ctx.save_for_backward(p)
        ctx.gamma = gamma
        return -((1 - p) ** gamma) * p.log()

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        gamma = ctx.gamma
        slope = gamma * (1 - p).pow(gamma) * p.log()
        return g * (slope - (1 - p).pow(gamma) / p), None


@case("gradient-zero", lambda: (*draw((3, 2)), 3), never=("-W",))
class LastRows(Function):
    """With -W for W it is right for more than one row."""

    @staticmethod
    def forward(ctx, x, W):
        T = len(x)
        ctx.sizes = T, W
        return x[max(0, T - (W - 1)) :].sum(0)

    @staticmethod
    def backward(ctx, g):
        T, W = ctx.sizes
        grad = g.new_zeros(T, *g.shape)
        for t in range(max(W, T - (W - 1)), T):
            grad[t] += g
        return grad, None


@case("needs-input-grad-wrong", f64((3, 4), (4,), (4,)), line="grad[2]` stood in place")
class AskedOfAnother(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x * w + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        b = g.sum(0) if ctx.needs_input_grad[1] else None
        return g * w, (g * x).sum(0), b


@case("gradient-none", f64((3, 4), (4,), (4,)), line="grad[1]` stood in place")
class AskedOfNone(AskedOfAnother):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad = None
        if any(ctx.needs_input_grad[3:]):
            grad = (g * x).sum(0)
        return g * w, grad, g.sum(0)


@case(
    "straight-through scaled",
    lambda: (*draw((4, 3)), torch.tensor(0.5, dtype=torch.float64)),
    "multiplied by 0.167. If that is meant",
    never=("right if",),
)
class StepSize(Function):
    """Its own factor is what makes a step size learn slowly."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward(x, step)
        return (x / step).round() * step

    @staticmethod
    def backward(ctx, g):
        x, step = ctx.saved_tensors
        slowly = 1 / (3 * x.numel()) ** 0.5
        return g, (g * (x / step).round()).sum() * slowly


class NormInPlace(Function):
    @staticmethod
    def forward(ctx, x, weight):
        inverse = (x.square().mean(-1, keepdim=True) + 0.1).rsqrt()
        x.mul_(inverse)
        ctx.save_for_backward(x, weight, inverse)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight, inverse = ctx.saved_tensors
        normal, inner = x * inverse, g * weight
        along = (inner * normal).mean(-1, keepdim=True)
        return inverse * (inner - normal * along), (g * normal).sum(0)


FOLLOWS = "so what is returned for `x` and `weight` is wrong"
case("input-modified", f64((3, 4), (4,)), FOLLOWS)(NormInPlace)
case(
    "in-place-leaf",
    lambda: [t.requires_grad_() for t in draw((3, 4), (4,))],
    FOLLOWS,
    name="of a leaf",
)(NormInPlace)
case(
    "negated",
    f64((3,)),
    "Through `output[1]`: The gradient of `x` is right, but negated",
)(function(lambda x: (x.sin(), x.cos()), lambda gs, gc, x: gs * x.cos() + gc * x.sin()))
case("", f64(*[(3,)] * 5), "not at more: there are more than 4 inputs")(
    lambda a, b, c, d, e: a * b * c * d * e
)


slip(
    "AsksTheOpposite",
    Linear,
    affine,
    {"if ctx.needs_input_grad[1]": "if not ctx.needs_input_grad[1]"},
    "gradient-none",
    line="`ctx.needs_input_grad[1]` stood in place",
    cases=TODAY,
)


# --- one cause, one finding -----------------------------------------------------------


def squared(t):
    return torch.from_numpy(t.detach().numpy() ** 2)


@case("scaled", f64((3,)), "leaves autograd: `t.detach().numpy()` (line ", lines=True)
def through_numpy(x):
    return Multiply.apply(x, squared(x))


slip(
    "Unsummed",
    Multiply,
    f64((3, 4), (4,)),
    {"grad_output * x": "2 * grad_output * x"},
    "scaled",
    "by 2. Backward returns shape (3, 4) for `y` of shape (4,)",
    never=("(engine-sums)",),
    cases=TODAY,
)
case(
    "",
    lambda: (torch.tensor([[1, 2], [0, 4]]),),
    note="double-backward-refused",
    never=("once_differentiable",),
)(torch.nn.EmbeddingBag(5, 3).double())


# --- gradients that go elsewhere, too -------------------------------------------------


def trained(**kept):
    """An input, and a weight with what the program has made for it."""
    x, weight = f64((3, 4), (5, 4))()
    for name, value in kept.items():
        setattr(weight.requires_grad_(), name, torch.full_like(weight, value))
    return x.requires_grad_(), weight.requires_grad_()


@case("", trained, "`x`, `weight` at 3 points, first order")
class ToGrad(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad += g.t() @ x
        return g @ weight, None


slip(
    "ToGradTwice",
    ToGrad,
    trained,
    {"g.t() @ x": "2 * g.t() @ x"},
    "scaled",
    cases=TODAY,
)


@case(
    "", functools.partial(trained, grad=3.0), "`x`, `weight` at 3 points, first order"
)
class ToGradThatIs(ToGrad):
    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        weight.grad += g.t() @ x
        return g @ weight, None


@case(
    "needs-input-grad-ignored",
    functools.partial(trained, main_grad=0.0),
    "first and second order",
)
class ToBoth(ToGrad):
    """Returns the gradient, and keeps its sum and that of its squares."""

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad = g.t() @ x
        weight.main_grad += grad.detach() + grad.detach() ** 2
        return g @ weight, grad


class Rounded(Function):
    """Rounds its gradients at random, as one who trains in few bits wants it."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx, gy = g * y, g * x
        return torch.floor(4 * gx + torch.rand_like(gx)) / 4, gy


RANDOM = "backward-not-deterministic"
TODAY += [
    Case("Rounded", Rounded, f64((3,), (3,)), RANDOM),
    Case(
        "RoundedAsMeant",
        Rounded,
        f32((3,), (3,)),
        note=RANDOM,
        says=("not judged: `x` (it is another each time)",),
        options={"faithful": {"x": False}},
    ),
    Case(
        "OtherMeant", Rounded, f32((3,), (3,)), RANDOM, options={"faithful": {"y": 0}}
    ),
]


# --- a backward that runs once ----------------------------------------------------------


@case("reference-cycle backward-only-once", f64((3,)), "Backward breaks the cycle")
class LetsGo(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y = ctx.y
        del ctx.y
        return g * y


@case("tensor-on-ctx backward-only-once", f64((3, 4), (3, 4)), "at 3 points")
class Pops(Multiply):
    @staticmethod
    def forward(ctx, x, y):
        ctx.factors = [x, y]
        return x * y

    @staticmethod
    def backward(ctx, g):
        gy = g * ctx.factors.pop(0)
        return g * ctx.factors.pop(), gy


# --- inputs that share their memory -----------------------------------------------------


@case("input-layout", f64((3, 4), (3, 4)), "one and the same tensor")
class ByAddress(Multiply):
    """Takes what lies at one address for one input."""

    @staticmethod
    def backward(ctx, grad_output):
        (x, y), grads = ctx.saved_tensors, {}
        for t, other in ((x, y), (y, x)):
            grads[t.data_ptr()] = grads.get(t.data_ptr(), 0) + grad_output * other
        return grads[x.data_ptr()], grads[y.data_ptr()]


@case("input-layout", f64((3, 4)), "an expanded view of one row")
class RowByRow(Sin):
    """Lays its gradient out as the input, whose rows may lie in one place."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        for k, row in enumerate(grad_output * x.cos()):
            grad[k] = row
        return grad


@case("", f64((4, 4), (4, 4)), "at 3 points")
class LogVolume(Function):
    """Of two inputs that are the same, or of equal rows, only rounding is left."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.linalg.slogdet(x).logabsdet + (x - y + 1e-13).norm().log()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        off = x - y + 1e-13
        grad = g * off / off.norm() ** 2
        return g * torch.linalg.pinv(x).mT + grad, -grad


@case(
    "",
    lambda: tuple(1 * t.requires_grad_() for t in draw((3,), (3,))),
    note="input-modified",
)
class TimesInPlace(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x.clone(), y)
        ctx.mark_dirty(x)
        return x.mul_(y)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


# --- in 16 bits -------------------------------------------------------------------------

SIXTEEN = torch.bfloat16, torch.float16


class OfSixteen(Multiply):
    @staticmethod
    def backward(ctx, grad_output):
        if grad_output.dtype in SIXTEEN:
            grad_output = 1.1 * grad_output
        return Multiply.backward(ctx, grad_output)


def far():
    return [(10 * t).bfloat16() for t in draw(*3 * [(4, 8, 32)])]


@case("needs-input-grad-ignored", far)
class SteepAttention(Function):
    """Of logits so large that rounding takes most of a gradient."""

    @staticmethod
    def forward(ctx, q, k, v):
        weights = (q @ k.mT).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, weights = ctx.saved_tensors
        grad = g @ v.mT
        grad = weights * (grad - (grad * weights).sum(-1, keepdim=True))
        return grad @ k, grad.mT @ q, weights.mT @ g


def cancelled():
    """Of a gradient of `w` that is so small a sum that rounding takes a tenth of it."""
    return [t.bfloat16() for t in (*draw((12, 8)), torch.tensor(0.5))]


case("", cancelled)(
    function(lambda x, w: x * w, lambda g, x, w: (g * w, (g * x).sum()), "Gain")
)
for dtype in SIXTEEN:
    few = functools.partial(draw, (4, 8), (4, 8), dtype=dtype)
    case("low-precision", few, "of `x`", "of `y`", name=f"1.1 in {dtype}")(OfSixteen)


# --- what several wrong gradients go through ------------------------------------------


def labelled():
    return *draw((6, 3), (5, 3)), torch.tensor([1, -1, 4, -1, 2, 0])


THROUGH = "all that is wrong goes through `d_y` (line"


@case(
    "partly-right gradient-wrong",
    labelled,
    THROUGH,
    never=("`rows` (line",),
    lines=True,
)
class EachHalf(Function):
    """Backward forgets which rows have no label."""

    @staticmethod
    def forward(ctx, x, w, label):
        ctx.save_for_backward(x, w, label)
        total = x.new_zeros(())
        for start in (0, 3):
            rows = slice(start, start + 3)
            y = x[rows] @ w.T
            total = total + (y.logsumexp(-1) * (label[rows] >= 0)).sum()
        return total

    @staticmethod
    def backward(ctx, g):
        x, w, label = ctx.saved_tensors
        d_x = torch.zeros_like(x)
        d_w = torch.zeros_like(w)
        for start in (0, 3):
            rows = slice(start, start + 3)
            y = x[rows] @ w.T
            d_y = g * y.softmax(-1)
            d_x[rows] = d_y @ w
            d_w = d_w + d_y.T @ x[rows]
        return d_x, d_w, None


# --- on a manifold ----------------------------------------------------------------------


def pose():
    """Columns, and beside them, given as constants, an orthogonal matrix and a place."""
    x, a, place = draw((3, 4), (3, 3), (3, 1))
    return x.requires_grad_(), torch.cat([torch.linalg.qr(a).Q, place], -1)


@case("", pose, "`x`, `pose` at 3 points")
class Turned(Function):
    """Backward takes the transpose of the matrix for its inverse."""

    @staticmethod
    def forward(ctx, x, pose):
        ctx.save_for_backward(x, pose)
        return torch.linalg.solve(pose[:, :3], x - pose[:, 3:])

    @staticmethod
    def backward(ctx, g):
        x, pose = ctx.saved_tensors
        turn, place = pose[:, :3], pose[:, 3:]
        grad = turn @ g
        of_turn = -grad @ (x - place).mT @ turn
        return grad, torch.cat([of_turn, -grad.sum(-1, keepdim=True)], -1)


@case("partly-right", pose, "of `pose`", "If that is meant", never=("of `x`",))
class TurnedAlongTheGroup(Turned):
    @staticmethod
    def backward(ctx, g):
        grad, of_pose = Turned.backward(ctx, g)
        turn, of_turn = ctx.saved_tensors[1][:, :3], of_pose[:, :3]
        along = turn.mT @ of_turn
        along = turn @ (along - along.mT) / 2
        return grad, torch.cat([along, of_pose[:, 3:]], -1)


def mirrored():
    x, normal = draw((5, 3), (5, 3))
    return x, F.normalize(normal, dim=-1)


@case("term-missing", mirrored, "of `normal`", "If that is meant", never=("of `x`",))
class Mirrored(Function):
    """The gradient of a unit vector is one along the sphere."""

    @staticmethod
    def forward(ctx, x, normal):
        ctx.save_for_backward(x, normal)
        return x - 2 * (x * normal).sum(-1, keepdim=True) * normal

    @staticmethod
    def backward(ctx, g):
        x, normal = ctx.saved_tensors
        of_g, of_x = ((t * normal).sum(-1, keepdim=True) for t in (g, x))
        grad = -2 * (of_g * x + of_x * g)
        along = grad - (grad * normal).sum(-1, keepdim=True) * normal
        return g - 2 * of_g * normal, along


def plane():
    x, normal, place = draw((5, 3), (5, 3), (5, 1))
    return x, torch.cat([place, F.normalize(normal, dim=-1)], -1)


@case("partly-right", plane, "of `plane`", "If that is meant", never=("of `x`",))
class MirroredAtPlane(Function):
    """The same, where the unit vector is a part of each row."""

    @staticmethod
    def forward(ctx, x, plane):
        return Mirrored.forward(ctx, x, plane[:, 1:]) + plane[:, :1]

    @staticmethod
    def backward(ctx, g):
        grad, along = Mirrored.backward(ctx, g)
        return grad, torch.cat([g.sum(-1, keepdim=True), along], -1)


# --- a module whose buffers take a step at each call --------------------------------------


def normed(*more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(spectral_norm(torch.nn.Linear(3, 4)), *more).double()


class Squared(torch.nn.Module):
    def forward(self, x):
        return Multiply.apply(x, x)


class Cut(torch.nn.Module):
    def forward(self, x):
        return x + x.detach()


class CutInTraining(torch.nn.BatchNorm1d):
    def forward(self, x):
        x = super().forward(x)
        return x + x.detach() if self.training else 2 * x


HEDGED = "warning (gradient-wrong)", "If that is meant"
for name, module in (("", normed()), (" and a Function", normed(Squared()))):
    case("gradient-wrong", f64((5, 3)), *HEDGED, name=f"spectral_norm{name}")(module)
case("scaled", f64((5, 3)), "error (scaled)")(CutInTraining(3).double())
case("scaled gradient-wrong", f64((5, 3)), "error (sc", name="cut after spectral_norm")(
    normed(Cut())
)


# --- guarantees that no other case asks for -----------------------------------------------


def spread():
    return (torch.linspace(-8, 8, 24).double(),)


case("derivative-wrong", spread, name="an error that fades is no matter of a bound")(
    function(lambda x: x + torch.erf(x), lambda g, x: g * (1 + torch.exp(-x * x)))
)
for says, plain in (("and () in the", torch.sum), ("by one of", lambda x: (x * x, x))):
    case("reference-differs", f64((3, 4)), says, name=says, reference=plain)(
        function(lambda x: x * x, lambda g, x: 2 * g * x)
    )


@case("needs-input-grad-wrong", f64((3, 4), (4,)), "fails with `b` as the only")
class OnlyWithTheOther(Function):
    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x)
        return x * x + b

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            gx = 2 * g * x
        return gx, g.sum(0) if ctx.needs_input_grad[1] else None


@case("input-modified", f64((3, 4)), "without telling autograd")
class ByItsData(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return x.data.square_().clone()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


@case("input-modified", lambda: (*draw((3, 4)), torch.zeros(3).long()), "warning")
class Counts(Function):
    @staticmethod
    def forward(ctx, x, seen):
        seen += 1
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g, None


def symmetric():
    x, w = draw((4, 4), (4, 4))
    return x + x.mT, w


TURNED = {"grad_output * y,": "(grad_output * y).mT,"}
slip(
    "LargeSoftmax",
    TemperedSoftmax,
    lambda: (*draw((30, 40)), 1.7),
    {"y * (g - total)": "y * g"},
    "term-missing",
    "Seen in a corner",
    cases=TODAY,
    lines=False,
)
slip("OfSymmetric", Multiply, symmetric, TURNED, "transposed", cases=TODAY)


@case("gradient-zero", f64((3, 4)), line="(1 + h) + of_h")
class ReturnedAndUsed(Function):
    @staticmethod
    def forward(ctx, x):
        h = x.tanh()
        ctx.save_for_backward(h)
        return h, h * h.exp()

    @staticmethod
    def backward(ctx, of_h, g):
        (h,) = ctx.saved_tensors
        d_h = g * h.exp() * (1 + h)
        return d_h * (1 - h * h)


@case("partly-right", lambda: (*draw((6, 4), (6, 4)), 0.8), "of `x` - `y`")
class Huber(Function):
    @staticmethod
    def forward(ctx, x, y, beta):
        ctx.save_for_backward(x, y)
        return F.huber_loss(x, y, reduction="none", delta=beta)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (x - y), g * (y - x), None


@case("transposed", f64((2, 3, 4)), "permuted by permute")
class Folded(Function):
    """Its batch and its heads change places, and backward folds them as they come."""

    @staticmethod
    def forward(ctx, x):
        return x.transpose(0, 1).reshape(6, 4).clone()

    @staticmethod
    def backward(ctx, g):
        return g.reshape(2, 3, 4)


@case("grad-output-layout", f64((2, 3, 4)), "transposed in its first two dimensions")
class RowsOfRows(Function):
    """It takes the rows of a matrix, whose length is the stride, for all there is."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        g = g if g.stride(-1) == 1 else g.contiguous()
        rows = torch.as_strided(g, (6, 4), (g.stride(-2), 1), g.storage_offset())
        return 2 * rows.reshape(2, 3, 4)


class WithABrokenRule(Function):
    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 2 * g

    @staticmethod
    def vmap(info, in_dims, x):
        return x.no_method, in_dims[0]


@case("vmap-fails", f64((4, 3)), "Under vmap, `WithABrokenRule` fails")
def in_other_code(x):
    return WithABrokenRule.apply(x.sin())


class OfDegreeOne(Function):
    """At 0 it has slopes along each axis, and along the diagonal another than their sum."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x[:, 0] ** 3 / x.square().sum(1)).nan_to_num()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a, b = x.unbind(1)
        r = x.square().sum(1)
        slopes = a**2 * (a**2 + 3 * b**2) / r**2, -2 * a**3 * b / r**2
        return g[:, None] * torch.stack(slopes, 1).nan_to_num()


AT_ZERO = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
case("", lambda: (AT_ZERO.clone().requires_grad_(),), note="kink")(OfDegreeOne)
