"""Right once, but not under other circumstances: what is left behind, shared, asked again."""

import torch
from torch.autograd import Function

from helpers.ops.exp import Exp

from .patient import (
    Double,
    Linear,
    Square,
    affine,
    broken,
    draw,
    linear,
    matrix,
    slip,
    vector,
    wrong,
)

# --- what forward leaves behind -------------------------------------------------------------------


@broken("saved-modified", "changed between save_for_backward and return", vector,
        "before forward returned, so the gradient of `x` is wrong")  # fmt: skip
class SavedThenChanged(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.save_for_backward(y)
        y += 1
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


wrong("ChangedByBackward", "saved-modified", "changed by backward", vector,
      lambda x: x * x, lambda g, x: x.mul_(2 * g), "by backward itself")  # fmt: skip


@broken("saved-modified", "the caller changes the result, which was saved", vector)
def changed_by_caller(x):
    return Exp.apply(x).add_(1)


slip("NotMarkedDirty", "input-modified", "mark_dirty is missing", Double, vector,
     {"return 2 * x": "return x.mul_(2).clone()"})  # fmt: skip


@broken("input-modified", "an index is changed for the caller, too",
        lambda: (*vector(), torch.tensor([1, 3])))  # fmt: skip
class ChangesTheIndex(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index.sub_(1))
        ctx.size = len(x)
        return x[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return grad_output.new_zeros(ctx.size).index_add(0, index, grad_output), None


@broken("reference-cycle", "the output on ctx", vector, "`ctx.result` holds an output")
class OutputOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = torch.exp(x)
        return ctx.result

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.result


slip("InputOnCtx", "tensor-on-ctx", "an input on ctx", Square, vector,
     {"ctx.save_for_backward(x)": "ctx.x = x",
      "(x,) = ctx.saved_tensors": "x = ctx.x"})  # fmt: skip


# --- the second derivative ------------------------------------------------------------------------


@broken("double-backward-wrong", "an intermediate on ctx is a constant to backward", vector)
class IntermediateOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = torch.cosh(x)
        return torch.sinh(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.slope


wrong("ThroughData", "double-backward-wrong", ".data cuts the graph", vector,
      lambda x: x * x, lambda g, x: g * 2 * x.data)  # fmt: skip
wrong(
    "ThroughNumPy", "double-backward-missing", "NumPy leaves no graph", vector, lambda x: x * x,
    lambda g, x: torch.from_numpy(g.detach().numpy() * 2 * x.detach().numpy()),
)  # fmt: skip


# --- the protocol of backward ---------------------------------------------------------------------


wrong(
    "NeverAsks", "needs-input-grad-ignored", "matrix products that no caller asked for", affine,
    linear, lambda g, input, weight, bias: (g @ weight, g.t() @ input, g.sum(0)),
    "computes that of `weight` and `bias`",
)  # fmt: skip


slip("AsksTheWrongFlag", "needs-input-grad-wrong", "the wrong flag is asked", Linear, affine,
     {"needs_input_grad[1]": "needs_input_grad[0]"})  # fmt: skip


@broken("none-not-handled", "None arrives for the unused output", vector)
class UnhandledNone(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, grad_double, grad_triple):
        return 2 * grad_double + 3 * grad_triple


slip("AssertsContiguity", "grad-output-layout", "an expanded grad_output is refused",
     Square, matrix, {"(x,) =": "assert grad_output.is_contiguous(); (x,) ="})  # fmt: skip


wrong(
    "ViewsGradOutput", "grad-output-layout", "a view of what has another order in memory", matrix,
    lambda x: x * x, lambda g, x: (g.view(-1) * 2 * x.view(-1)).view(x.shape),
)  # fmt: skip


@broken("grad-output-layout", "memory is read as if it were contiguous", matrix)
class ReadsMemory(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        flat = torch.empty(0, dtype=x.dtype).set_(grad_output.untyped_storage())
        flat = torch.cat([flat, flat.new_zeros(x.numel())])[: x.numel()]
        return flat.reshape(x.shape) * 2 * x


@broken("grad-output-modified", "grad_output belongs to the engine", vector)
class ChangesGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.mul_(2 * x)


wrong("ReshapesGradOutput", "grad-output-modified", "a dimension is added to it", vector,
      lambda x: x * x, lambda g, x: (g.unsqueeze_(0) * 2 * x).squeeze(0))  # fmt: skip


@broken("state-between-calls", "the last call overwrites what the first one saved", vector)
class SavesOnTheClass(Function):
    saved = None

    @staticmethod
    def forward(ctx, x):
        SavesOnTheClass.saved = x
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2 * SavesOnTheClass.saved


@broken("state-between-calls", "the next mask overwrites that of this call", lambda: draw((40,)))
class MaskOnTheClass(Function):
    @staticmethod
    def forward(ctx, x):
        MaskOnTheClass.mask = torch.rand_like(x) > 0.5
        return x * MaskOnTheClass.mask

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * MaskOnTheClass.mask


@broken("state-between-calls", "a mask by a number, that of the next call", lambda: (*vector(), 7))
class NumberedMaskOnTheClass(Function):
    @staticmethod
    def forward(ctx, x, seed):
        generator = torch.Generator().manual_seed(seed)
        NumberedMaskOnTheClass.mask = torch.rand(x.shape, generator=generator) > 0.3
        return x * NumberedMaskOnTheClass.mask

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * NumberedMaskOnTheClass.mask, None


def powers(x, rate):
    powers.last = rate ** torch.arange(len(x), dtype=x.dtype)
    return powers.last


@broken("state-between-calls", "the powers of the last call's rate", lambda: (*vector(), 0.7))
class KeepsItsPowers(Function):
    @staticmethod
    def forward(ctx, x, rate):
        return x * powers(x, rate)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * powers.last, None


slip("DeletesWhatItNeeds", "backward-only-once", "backward deletes what it needs", Double, vector,
     {"return 2 * x": "ctx.factor = 2; return 2 * x",
      "return 2 * grad": "factor = ctx.factor; del ctx.factor; return factor * grad"})  # fmt: skip


@broken("forward-not-deterministic", "a counter", vector)
class CountsItsCalls(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        CountsItsCalls.calls += 1
        return x * CountsItsCalls.calls

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * CountsItsCalls.calls


@broken("backward-not-deterministic", "backward draws a mask of its own", lambda: draw((40,)),
        "because it draws random numbers")  # fmt: skip
class DrawsTwice(Function):
    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (torch.rand_like(grad_output) > 0.5)


@broken("backward-not-deterministic", "a sum that is never reset", vector)
class Accumulates(Square):
    total = 0

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        Accumulates.total = Accumulates.total + grad_output * 2 * x
        return Accumulates.total
