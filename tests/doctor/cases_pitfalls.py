"""Right functions that are easily accused, and wrong ones that are easily misnamed."""

import torch
from torch.autograd import Function

from helpers.lessons.patients.patient import draw
from tests.doctor.cases import Table, drawn

case = CASES = Table()


class SecondIsMarked(Function):
    """What is marked as non-differentiable does not count where other arguments are tried."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        y, size = k * x.sin(), k * x.cos()
        ctx.mark_non_differentiable(size)
        return y, size

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return ctx.k * g * x.cos(), None


case("", inputs=lambda: (*drawn((5,)), 2.0))(SecondIsMarked)


class SineAndCosine(Function):
    """A generated rule for vmap wants the same tensors saved for both modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx, of_sin, of_cos):
        sin, cos = ctx.saved_tensors
        return of_sin * cos - of_cos * sin

    @staticmethod
    def jvp(ctx, t):
        sin, cos = ctx.saved_tensors
        return t * cos, -t * sin


class SavesOther(SineAndCosine):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * x.cos(), -t * x.sin()


case("", inputs=lambda: drawn((4, 3)))(SineAndCosine)
case("", inputs=lambda: drawn((4, 3)), name="vmap of a Function")(
    lambda x: torch.func.vmap(SineAndCosine.apply)(x)[0]
)
case("vmap-fails", "save_for_forward", never=("dimension",),
     inputs=lambda: drawn((4, 3)))(SavesOther)  # fmt: skip


class Equilibrium(torch.nn.Module):
    """Its backward is a hook."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Parameter(torch.eye(4).double() / 3)

    def step(self, z, x):
        return torch.tanh(z @ self.inner + x)

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(80):
                z = self.step(z, x)
        z = self.step(z, x)
        if z.requires_grad:
            start = z.detach().requires_grad_()
            again = self.step(start, x)

            def solve(grad):
                g = grad
                for _ in range(80):
                    g = torch.autograd.grad(again, start, g, retain_graph=True)[0] + grad
                return g

            z.register_hook(solve)
        return z


case("double-backward-wrong", inputs=draw((3, 4)), name="an equilibrium")(
    Equilibrium()
)  # a warning
for fn, values in (
    (torch.log, [1e-300, 1e-30, 1]), (torch.log, [1e-30, 1e-30]), (torch.rsqrt, [1e-30, 1]),
    (torch.reciprocal, [1e-30, 1e-30]), (torch.reciprocal, [1e-300, 1e-30, 1e-3, 1]),
):  # fmt: skip
    case("", inputs=(torch.tensor(values, dtype=torch.float64),), name=f"{values}")(fn)


CASES.of_two(
    "one note, not three errors", "", note="estimator", inputs=lambda: drawn((5,), (5,), (5,)),
    forward=lambda p, scale, shift: torch.bernoulli(
        p.sigmoid() * scale.sigmoid() * shift.sigmoid()
    ),
    backward=lambda g, p, scale, shift: (g, g * 0.5, g * scale.cos()),
)  # fmt: skip
KEEP = torch.zeros(9, dtype=torch.bool).index_fill(0, torch.tensor([2, 4]), True).view(3, 3)
CASES.of_two(
    "wrong at most elements", "partly-right", "wrong at 7 of 9 elements", never=("right in part",),
    inputs=lambda: drawn((3, 3)), forward=lambda x: x * x,
    backward=lambda g, x: torch.where(KEEP, 2 * g * x, 2.6 * g * x**3),
)  # fmt: skip


class InAByte(Function):
    """The derivative is saved in 8 bits, rounded at random: right on average."""

    floor = -0.044

    @classmethod
    def forward(cls, ctx, x):
        s = (x - 1).sigmoid()
        slope = x * s * (1 - s) + s
        ctx.save_for_backward(((slope - cls.floor) * 205 + torch.rand_like(x)).to(torch.uint8))
        return x * s

    @classmethod
    def backward(cls, ctx, g):
        (of_255,) = ctx.saved_tensors
        return g * (of_255 / 205 - 0.0436)  # a little off, as in a library


for n in (3, 5, 8):  # the same words, whatever the numbers are
    case("", note="estimator", inputs=draw((n,)), name=f"{n} in 8 bits")(InAByte)


class OfRounding(Function):
    """In float32 only; the gradient of x, which should be zero, is what rounding leaves."""

    @staticmethod
    def forward(ctx, x, w):
        if x.dtype != torch.float32:
            raise TypeError("x must be of float32")
        return w.sum() + 0 * x.sum()

    @staticmethod
    def backward(ctx, g):
        return 3e-7 * g.expand(3), g.expand(3)


case("", inputs=lambda: drawn((3,), (3,), dtype=torch.float32))(OfRounding)


class Mixture(Function):
    """A gradient that is right on average over what was drawn elsewhere, too."""

    @staticmethod
    def forward(ctx, x, which):
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise, which)
        return x * (1 + noise) * which

    @staticmethod
    def backward(ctx, g):
        noise, which = ctx.saved_tensors
        return g * (1 + noise) * (0.2 + 0.4 * which), None


case("derivative-wrong", "if the gradient is an estimator's, `examine(",
     inputs=lambda: (*drawn((5,)), torch.tensor([1, 2, 3, 4, 5])))(Mixture)  # fmt: skip


KEPT = {}
case("forward-not-deterministic", "after a call with another input", inputs=lambda: drawn((3, 4)))(
    lambda x: x * KEPT.setdefault(x.shape, x.detach().sigmoid())
)
case("low-precision", "nor is the output", inputs=(2e4 + drawn((12,), dtype=torch.float32)[0],))(
    lambda x: (x - x.mean()) / ((x * x).mean() - x.mean() ** 2).clamp(min=1e-6).sqrt()
)
