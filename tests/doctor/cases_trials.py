"""What only another call, dtype, layout or argument shows: state, caches, flags, None, memory."""

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from helpers.lessons.patients import PATIENTS
from helpers.lessons.patients.patient import Square, function, slip, vector
from tests.doctor.cases import Table, drawn, ones

case = CASES = Table()
wrong = CASES.of_two
state = "state-between-calls"

# --- what is kept outside ctx ---------------------------------------------------------------------


class Asks(Function):
    @staticmethod
    def forward(ctx, x, owner):
        ctx.owner = owner
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.owner.last.cos(), None


class Remembers(nn.Module):
    def forward(self, x):
        self.last = x.detach()
        return Asks.apply(x, self)


case(state, "`self.last`", inputs=lambda: drawn((4,)), name="on a module")(Remembers())


class ByTheBatch(Function):
    @staticmethod
    def forward(ctx, x, owner):
        owner.scale = 1 + len(x) / 4
        ctx.owner = owner
        ctx.save_for_backward(x)
        return (owner.scale * x).sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        scale = ctx.owner.scale
        return grad_output * scale * (scale * x).cos(), None


class Owner(nn.Module):
    def forward(self, x):
        return ByTheBatch.apply(x, self)


case(state, inputs=lambda: drawn((4, 3)), name="a call with fewer rows comes between")(Owner())


class Counts(nn.Module):
    calls = 0

    def forward(self, x):
        Counts.calls += 1
        return CountedSquare.apply(x)


class CountedSquare(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x * Counts.calls


case(state, "`Counts.calls`", inputs=vector, name="said once")(Counts())


class KeepsWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x):
        if x.shape not in self.kept:
            self.kept[x.shape] = (x[:, None] - x[None]).square().neg().softmax(-1)
        return self.kept[x.shape] @ x


case(state, "`self.kept`", inputs=lambda: drawn((5,)), name="a cache with a graph")(KeepsWeights())


class CachesItsTable(nn.Module):
    """What it keeps of its first call has the dtype of that call, so of the doctor's own copies."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(drawn((4, 4))[0].detach().float())
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(4.0, dtype=x.dtype)
        return (x + self.table) @ self.w


case("", name="a cache of the doctor's own copies",
     inputs=lambda: drawn((3, 4), dtype=torch.float32))(CachesItsTable())  # fmt: skip


def halved():
    """A hook on a parameter changes its gradient."""
    layer = nn.Linear(4, 2).double()
    layer.weight.register_hook(lambda g: g / 2)
    return layer


case("scaled", "`weight` is right, but multiplied by 0.5", inputs=lambda: drawn((3, 4)))(halved())


# --- other arguments ------------------------------------------------------------------------------


class Norm(Function):
    @staticmethod
    def forward(ctx, x, p, shift):
        ctx.p = p
        ctx.save_for_backward(x)
        return (x.abs() + shift) ** p

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x.sign() * (x.abs() + 0.5), None, None


for p, other in ((2, "3"), (2.0, "1.6")):
    case("arguments-ignored", f"but wrong where `p` is {other}.", name=f"p is {p}",
         inputs=lambda p=p: (*drawn((5,)), p, 0.5))(Norm)  # fmt: skip


def collatz(x, n):
    """For other numbers than powers of two it does not end."""
    while n != 1:
        n = n // 2 if n % 2 == 0 else n
    return n * x


wrong("collatz", "", inputs=lambda: (*drawn((3,)), 8), forward=collatz, backward=lambda g, x, n: g)
slip("OnlyHere", "double-backward-missing", "", Square, lambda: (ones(6),),
     {"ctx.save_for": "assert x.sum() == 6; ctx.save_for"},
     "forward raises near the given point", register=CASES)  # fmt: skip

# --- flags, None, layouts, memory -----------------------------------------------------------------


class ByAnothersFlag(Function):
    @staticmethod
    def forward(ctx, x, s, b):
        ctx.save_for_backward(x, s)
        return x * s + b

    @staticmethod
    def backward(ctx, grad_output):
        x, s = ctx.saved_tensors
        gb = grad_output.sum() if ctx.needs_input_grad[1] else None
        return grad_output * s, (grad_output * x).sum(), gb


case("needs-input-grad-wrong", "no gradient for `b` as the", inputs=lambda: drawn((5,), (), ()))(
    ByAnothersFlag
)


class ScalesWhatArrives(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        doubled = grad_output.clone().mul_(2)  # its own
        grad_output.diagonal().add_(1e-3)
        return doubled


case("grad-output-modified",
     inputs=lambda: drawn((3, 3)))(ScalesWhatArrives)  # fmt: skip


@case("grad-output-modified", inputs=lambda: drawn((4, 3)))
def a_skip_connection(x):  # what follows from it is not said as well
    h = x.tanh()
    return PATIENTS["ChangesGradOutput"].fn.apply(h) + h


class Drops(Function):
    """Backward draws anew, whatever the state of the generator is."""

    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        before = torch.get_rng_state()
        keep = torch.rand_like(g) > 0.5
        torch.set_rng_state(before)
        return g * keep


case("backward-not-deterministic", "another gradient for another random state, because it draws",
     inputs=lambda: drawn((40,)))(Drops)  # fmt: skip


# Right, once: what was saved is gone afterwards. To read it would end Python.
for name, codes, more in (("Frees", "backward-only-once", ""),
                          ("FreesAndForgets", "not-linear", " * grad_output.exp()")):  # fmt: skip
    frees = f"grad = 2 * x * grad_output; x.untyped_storage().resize_(0); return grad{more}"
    slip(name, codes, "", Square, vector, {"return grad_output * 2 * x": frees}, register=CASES)

# --- numbers that are not finite ------------------------------------------------------------------


@case(
    "backward-not-finite",
    "`r`",
    "`z`",
    inputs=(torch.full((4,), 0.5).double(), torch.tensor([0.1, 0.7, -0.2, -0.9]).double()),
)
def height(r, z):  # fmt: skip
    square = r**2 - z**2
    root = torch.sqrt(square)
    return torch.where(square > 0, root, torch.zeros_like(root))


case(
    "low-precision",
    "float32: forward makes nan or inf",
    inputs=(torch.tensor([1.0, 100.0]),),
    name="overflow",
)(  # fmt: skip
    lambda x: torch.log(torch.cosh(x))
)

# --- what leaves autograd, and second derivatives -------------------------------------------------


INNER = function(lambda x, g: g * 3 * x**2, lambda gg, x, g: (gg * g * 3 * x, gg * 3 * x**2))
wrong("a Function that backward applies", "double-backward-wrong", "a Function that it applies",
      inputs=lambda: drawn((4,)), forward=lambda x: x**3, backward=lambda g, x: INNER.apply(x, g),
)  # fmt: skip


class SavesWhatItComputes(Function):
    """Said once, of both inputs, and by name."""

    @staticmethod
    def forward(ctx, x, w):
        wave = (x * w).tanh()
        ctx.save_for_backward(x, w, wave)
        return wave.exp()

    @staticmethod
    def backward(ctx, g):
        x, w, wave = ctx.saved_tensors
        g = g * wave.exp() * (1 - wave * wave)
        return g * w, g * x


case("double-backward-wrong", "`x` and `w` is right here", "with respect to `x` and `w` is",
     "look at: `wave` (line ", "in `forward`): what is saved", never=("`x` (line",),
     inputs=lambda: drawn((4,), (4,)))(SavesWhatItComputes)  # fmt: skip


class Hooked(nn.Linear):
    """Right, but its hook takes a part of the gradient for a constant."""

    def forward(self, x):
        y = super().forward(x).sin()
        y.register_hook(lambda g: g.detach() + 0 * g)
        return y


case("double-backward-wrong", inputs=lambda: drawn((4, 3)), name="a hook")(Hooked(3, 2).double())
case("gradient-none", inputs=lambda: drawn((4,), (4,)), faithful=False, name="a constant")(
    lambda p, z: (p * z.detach()).sum()
)


case("double-backward-missing", inputs=lambda: drawn((2, 3), (2, 3)), name="reentrant")(
    lambda x, y: checkpoint(torch.mul, x, y, use_reentrant=True)
)
