"""What only another call, dtype, layout or argument shows: state, caches, flags, None, memory."""

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from helpers.lessons.patients import PATIENTS
from helpers.lessons.patients.numbers import NaiveSoftplus
from helpers.lessons.patients.patient import Double, Square, function, vector
from tests.doctor.cases import Table, drawn, ones

case = CASES = Table()
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


case(state, "`self.last` (line", inputs=lambda: drawn((4,)), name="on a module")(Remembers())


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


case(state, inputs=vector, name="another gradient at each call, said once")(Counts())


class KeepsWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x):
        if x.shape not in self.kept:
            self.kept[x.shape] = (x[:, None] - x[None]).square().neg().softmax(-1)
        return self.kept[x.shape] @ x


case(state, "in a later call with the", "from one call to the next: `self.kept`",
     inputs=lambda: drawn((5,)), name="a cache with a graph")(KeepsWeights())  # fmt: skip


class Masked(Function):
    """By a mask that the module had before, or that forward makes."""

    @staticmethod
    def forward(ctx, x, module, mask):
        if mask is not None:
            module.mask = mask
        ctx.module = module
        return x * module.mask

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.module.mask, None, None


class Twice(nn.Module):
    """The second call has another mask than the first, before backward reads any."""

    def __init__(self, within):
        super().__init__()
        self.within = within

    def masked(self, x, k):
        mask = torch.arange(x.shape[1], dtype=x.dtype) + k
        self.mask = torch.zeros(()) if self.within else mask
        return Masked.apply(x, self, mask if self.within else None)

    def forward(self, a, b):
        return self.masked(a, 1) * self.masked(b, 2)


for within in (True, False):
    case("state-replaced", "right with the `mask` of the time of forward",
         inputs=lambda: drawn((4, 3), (4, 3)), name=f"within: {within}")(Twice(within))  # fmt: skip


class KeepsItsSpread(nn.Module):
    """Its weight is divided by its own spread, which is computed once."""

    def __init__(self):
        super().__init__()
        self.weight, self.spread = nn.Parameter(drawn((4, 3))[0].detach()), None

    def forward(self, x):
        if self.spread is None:
            self.spread = self.weight.detach().std(1, keepdim=True)
        return x @ (self.weight / self.spread).T


class Calibrates(KeepsItsSpread):
    """The first batch says in which units all are given: that is meant."""

    def forward(self, x):
        if self.spread is None:
            self.spread = x.detach().abs().max()
        return x @ self.weight.T / self.spread


class MadeForEachDtype(nn.Module):
    """It keeps what it has made of its parameter, without a gradient, until the dtype changes."""

    def __init__(self):
        super().__init__()
        self.log, self.kept = nn.Parameter(torch.tensor([0.3, -0.2, 0.5])), None

    def forward(self, x):
        if self.kept is None or self.kept.dtype != self.log.dtype:
            self.kept = self.log.detach().exp()
        return x * self.kept


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


case("parameter-cached", "`weight` gets only a part of its gradient: without what",
     "keeps: `self.spread`", inputs=lambda: drawn((5, 3)), name="in part")(
    KeepsItsSpread())  # fmt: skip
case("", inputs=lambda: drawn((5, 3)), name="a calibration")(Calibrates())
case("parameter-cached", "`log`", "once, and keeps: `self.kept`", name="until the dtype changes",
     inputs=lambda: drawn((4, 3), dtype=torch.float32))(MadeForEachDtype())  # fmt: skip
case("", name="a cache of the doctor's own copies",
     inputs=lambda: drawn((3, 4), dtype=torch.float32))(CachesItsTable())  # fmt: skip

MERGED = PATIENTS["KeepsItsShares"].fn.__class__().eval()  # where it may be kept
case("parameter-cached", inputs=PATIENTS["KeepsItsShares"].inputs, name="for inference")(MERGED)

TABLES = {}


def table(n, base):
    if n not in TABLES:  # whatever the base
        TABLES[n] = base ** -torch.arange(n, dtype=torch.float64)
    return TABLES[n]


class Scales(Function):
    @staticmethod
    def forward(ctx, x, base):
        ctx.base = base
        return x * base ** -torch.arange(len(x), dtype=x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g * table(len(g), ctx.base), None


@case("first-call-kept", ": `TABLES`; a key must", inputs=lambda: drawn((5,)))
def kept_within_one_call(x):
    return Scales.apply(x, 2.0) + Scales.apply(x, 5.0)


class Decays(Function):
    """A table of the module, which a function beside keeps."""

    @staticmethod
    def forward(ctx, x, rate):
        ctx.rate = rate
        return x * decay(len(x), rate)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * decay(len(grad_output), ctx.rate), None


DECAYS = {}


def decay(n, rate):
    if n not in DECAYS:
        DECAYS[n] = rate ** torch.arange(n).double()
    return DECAYS[n]


case("cache-key", "Where `rate` is 0.4", inputs=lambda: (*drawn((4,)), 0.5))(Decays)


class Powers(Function):
    """How often is a whole number; what is kept for it is kept for all."""

    made = {}

    @staticmethod
    def forward(ctx, x, times):
        ctx.times = times
        return x * 2.0**times

    @staticmethod
    def backward(ctx, grad_output):
        n = len(grad_output)
        if n not in Powers.made:
            Powers.made[n] = 2.0**ctx.times
        return grad_output * Powers.made[n], None


case("arguments-ignored", "where `times` is 4", inputs=lambda: (*drawn((4,)), 3))(Powers)
HANDLES, SEEN = {"kernel": 1}, []


class Registered(Function):
    """It does more than compute, so what it keeps is not to be taken from it."""

    @staticmethod
    def forward(ctx, x, rate):
        SEEN.append(len(HANDLES))
        ctx.rate = rate
        return torch.from_numpy(x.numpy() * rate)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.rate, None


case("", inputs=lambda: (*drawn((4,)), 0.5))(Registered)


def saved_then_changed(ctx, x):
    y = x.exp()
    ctx.save_for_backward(y)
    y += 1  # before forward returns, which nothing guards against
    return y, 2 * y, x * 1


class OneCauseForTwoOutputs(Function):
    forward = staticmethod(saved_then_changed)

    @staticmethod
    def backward(ctx, grad_one, grad_two, grad_same):
        (y,) = ctx.saved_tensors
        return grad_one * y + 2 * grad_two * y + grad_same


case("saved-modified", inputs=lambda: drawn((3,)))(OneCauseForTwoOutputs)

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


class OfSome(Function):
    @staticmethod
    def forward(ctx, x, mask):
        return x * mask / mask.sum()

    @staticmethod
    def backward(ctx, grad_output):
        mask = torch.tensor([True, True, False, True])
        return grad_output * mask / 3, None


case("arguments-ignored", "where `mask` has one element less",
     inputs=lambda: (*drawn((4,)), torch.tensor([True, True, False, True])))(OfSome)  # fmt: skip


class OfPieces(Function):
    """The fourth piece, which only another number makes, is wrong."""

    @staticmethod
    def forward(ctx, x, n):
        return tuple(2 * t for t in x.tensor_split(n))

    @staticmethod
    def backward(ctx, *grads):
        return torch.cat([(2 if k < 3 else 3) * g for k, g in enumerate(grads)]), None


case("arguments-ignored", "where `n` is 4.", inputs=lambda: (*drawn((8,)), 3))(OfPieces)


class Collatz(Function):
    """For other numbers than powers of two it does not end."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        while n != 1:
            n = n // 2 if n % 2 == 0 else n
        return n * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


case("", inputs=lambda: (*drawn((3,)), 8))(Collatz)


class OnlyHere(Square):
    @staticmethod
    def forward(ctx, x):
        if x.sum() != 6:
            raise ValueError("x must have the sum 6")
        return Square.forward(ctx, x)


case("double-backward-missing", "forward raises near the given point", inputs=(ones(6),))(OnlyHere)

# --- flags, None, layouts, memory -----------------------------------------------------------------


class Chain(Function):
    """The gradient of b is made from, so it is needed for that of a alone."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.linalg.solve(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        of_b = torch.linalg.solve(a.mT, grad_output)
        return -of_b @ torch.linalg.solve(a, b).mT, of_b


case("needs-input-grad-ignored", "only `b` requires", "not only `a` requires",
     inputs=lambda: (drawn((4, 4))[0] + 4 * torch.eye(4).double(), *drawn((4, 2))))(
    Chain)  # fmt: skip


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


case("needs-input-grad-wrong", "`b` as the only input", inputs=lambda: drawn((5,), (), ()))(
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


case("grad-output-modified", "`grad_output.diagonal().add_(1e-3)` (line ", "not mul_",
     inputs=lambda: drawn((3, 3)))(ScalesWhatArrives)  # fmt: skip


class AddsNothing(Double):
    @staticmethod
    def backward(ctx, grad_output):
        grad_output += 0
        return 2 * grad_output


case("grad-output-modified", inputs=(ones(3),), name="what an expanded one forbids")(AddsNothing)


@case("grad-output-modified", inputs=lambda: drawn((4, 3)))
def a_skip_connection(x):  # what follows from it is not said as well
    h = x.tanh()
    return PATIENTS["ChangesGradOutput"].fn.apply(h) + h


class RefusesStrides(Double):
    @staticmethod
    def backward(ctx, grad_output):
        assert grad_output.is_contiguous() or not any(grad_output.stride())
        return 2 * grad_output


case("grad-output-layout", "that is not contiguous", inputs=(ones(2, 3),))(RefusesStrides)


class SilencesTheOthers(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, grad_double, grad_triple):
        if grad_double is None:
            return None
        return 2 * grad_double + (0 if grad_triple is None else 3 * grad_triple)


case("none-not-handled", inputs=(ones(3),))(SilencesTheOthers)


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


class Frees(Square):
    """Right, once: what was saved is gone afterwards. To read it would end Python."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = 2 * x * grad_output
        x.untyped_storage().resize_(0)
        return grad


class FreesAndForgets(Frees):
    @staticmethod
    def backward(ctx, grad_output):
        return Frees.backward(ctx, grad_output) * grad_output.exp()


class FreesItsOutput(Function):
    factor = 2

    @classmethod
    def forward(cls, ctx, x):
        y = 2 * x
        ctx.save_for_backward(y)
        return y

    @classmethod
    @once_differentiable
    def backward(cls, ctx, grad_output):
        ctx.saved_tensors[0].untyped_storage().resize_(0)
        return cls.factor * grad_output


case("backward-only-once", inputs=vector)(Frees)
case("not-linear", inputs=vector)(FreesAndForgets)
for dtype in (torch.float64, torch.float32):
    case("", inputs=(torch.ones(3, 4, dtype=dtype),), name=f"{dtype}")(FreesItsOutput)
    wrong = type("FreesAndIsWrong", (FreesItsOutput,), {"factor": 3})
    case("scaled", inputs=(torch.ones(3, 4, dtype=dtype),), name=f"{dtype}")(wrong)

# --- numbers that are not finite ------------------------------------------------------------------


class Overflows(NaiveSoftplus):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        double = 2 * x
        large = double.exp()
        return g * (large / (large + double.exp() ** 0.5))


case("backward-not-finite", "first of all in `double.exp()` (line",
     inputs=(torch.tensor([0.5, 800.0], dtype=torch.float64),))(Overflows)  # fmt: skip


@case(
    "backward-not-finite",
    ": `root = torch.sqrt(square)` (line",
    inputs=(torch.full((4,), 0.5).double(), torch.tensor([0.1, 0.7, -0.2, -0.9]).double()),
)
def height(r, z):  # fmt: skip
    square = r**2 - z**2
    root = torch.sqrt(square)
    return torch.where(square > 0, root, torch.zeros_like(root))


case(
    "low-precision",
    "nan or inf in the output from finite inputs of float32",
    inputs=(torch.tensor([1.0, 100.0]),),
    name="overflow",
)(  # fmt: skip
    lambda x: torch.log(torch.cosh(x))
)

# --- what leaves autograd, and second derivatives -------------------------------------------------


class Times(nn.Module):
    """An input of which nobody asks a gradient may go to NumPy; a parameter may not."""

    def __init__(self):
        super().__init__()
        self.rates, self.out = nn.Parameter(drawn((4,))[0].detach()), nn.Linear(4, 2).double()

    def forward(self, t):
        phases = torch.as_tensor(t.numpy()[:, None]) * self.rates.detach()
        return self.out(phases.sin())


TIMES = torch.linspace(0, 1, 5, dtype=torch.float64)
case("gradient-none", "`rates`", inputs=(TIMES,), name="of an input to NumPy")(Times())
case("numpy-detour", inputs=lambda: (TIMES.clone().requires_grad_(),), name="asked")(Times())


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, gain, x):
        return gain * checkpoint(self.layer, x, use_reentrant=True)


case("gradient-none", "`layer.weight`", "`layer.bias`", "not The gradient of `gain`",
     inputs=lambda: (*drawn((4, 2)), drawn((4, 3))[0].detach()),
     name="no input of a checkpoint requires a gradient")(Frozen())  # fmt: skip


class Inner(Function):
    @staticmethod
    def forward(ctx, x, g):
        ctx.save_for_backward(x, g)
        return g * 3 * x**2

    @staticmethod
    def backward(ctx, gg):
        x, g = ctx.saved_tensors
        return gg * g * 3 * x, gg * 3 * x**2


class Cube(Function):
    """The Function that backward applies has a wrong backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return Inner.apply(x, grad_output)


class KeepsTanh(Function):
    @staticmethod
    def forward(ctx, x):
        t = x.tanh()
        ctx.save_for_backward(t)
        return x * t

    @staticmethod
    def backward(ctx, grad_output):
        (t,) = ctx.saved_tensors
        x = t.atanh()
        return grad_output * (t + x * (1 - t * t))


case("double-backward-wrong", "In `Inner`, which backward applies: The gradient of `x` is right",
     inputs=lambda: drawn((4,)))(Cube)  # fmt: skip
case("double-backward-wrong", "what backward takes for a constant: `t`, which forward made",
     inputs=lambda: drawn((4,)))(KeepsTanh)  # fmt: skip


class Hooked(nn.Linear):
    """Right, but its hook takes a part of the gradient for a constant."""

    def forward(self, x):
        y = super().forward(x).sin()
        y.register_hook(lambda g: g.detach() + 0 * g)
        return y


class Reentrant(nn.Linear):
    def forward(self, x):
        whole = super().forward
        return checkpoint(lambda x: whole(x).sin(), x, use_reentrant=True) + x.sum()


case("double-backward-wrong", inputs=lambda: drawn((4, 3)), name="a hook")(Hooked(3, 2).double())
case("needs-input-grad-wrong", "note double-backward-wrong", name="PyTorch's own checkpoint",
     inputs=lambda: drawn((4, 3), dtype=torch.float32))(Reentrant(3, 2))  # fmt: skip
case("gradient-none", inputs=lambda: drawn((4,), (4,)), faithful=False, name="a constant")(
    lambda p, z: (p * z.detach()).sum()
)


class Windowed(Function):
    @staticmethod
    def forward(ctx, x, window):
        ctx.kept = torch.hann_window(len(x), dtype=x.dtype) if window else 2 * x
        return x * ctx.kept

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.kept * (1 if len(ctx.kept) == 5 else 2), None


case("", "not ctx.kept", inputs=lambda: (*drawn((5,)), True), name="a constant on ctx")(Windowed)


class KeepsAnIndex(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.index, ctx.size = index, len(x)
        return x[index]

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.new_zeros(ctx.size).index_add_(0, ctx.index, grad_output), None


case("tensor-on-ctx", "`ctx.index` holds an input outside `save_for_backward`",
     inputs=lambda: (*drawn((4,)), torch.tensor([1, 1, 3])))(KeepsAnIndex)  # fmt: skip
case("double-backward-missing", inputs=lambda: drawn((2, 3), (2, 3)), name="reentrant")(
    lambda x, y: checkpoint(torch.mul, x, y, use_reentrant=True)
)
case("", inputs=lambda: (drawn((40,))[0].detach().half(),), name="an output in float64, too")(
    function(lambda x: x.double().sin(), lambda g, x: (g * x.double().cos()).to(x.dtype)).apply
)
