"""What breaks the protocol of a Function: at once, later, or under a transform."""

import numpy as np
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from .case import (
    Double,
    Linear,
    Matmul,
    Square,
    affine,
    broken,
    draw,
    function,
    healthy,
    matrix,
    numbers,
    pair,
    slip,
    slips,
    square,
    vector,
    with_a_slip,
    wrong,
)
from .formulas import linear

# --- what PyTorch or Python refuses ---------------------------------------------------


slips(
    Square,
    vector,
    [
        ("grad_output * 2 * x", "2.0", "gradient-type", None, "returned `float`"),
        ("2 * x", "2j", "complex-for-real", None),
        ("2 * x", "ctx.x", "attribute-missing", None),
        ("2 * x", "two * x", "raised", None, "Backward raised"),
        ("2 * x", 'torch.empty_like(x, device="meta")', "raised", None),
        ("(x,) =", "x, y =", "saved-count", None),
        (
            "(x,) =",
            "assert grad_output.is_contiguous(); (x,) =",
            "grad-output-layout",
            None,
        ),
        ("backward(x)", "backward(x, 2)", "saved-no-tensor", None),
        ("backward(ctx", "backwards(ctx", "method-missing", None),
    ],
)
slip(
    "DeletesWhatItNeeds",
    Double,
    vector,
    {
        "return 2 * x": "ctx.factor = 2; return 2 * x",
        "return 2 * grad": "two = ctx.factor; del ctx.factor; return two * grad",
    },
    "backward-only-once",
)
slips(
    Double,
    vector,
    [
        ("2 * x", "2 * x, 3 * x", "backward-arguments", None),
        (
            "return 2 * x",
            "ctx.mark_dirty(x.mul_(2)); return x.clone()",
            "dirty-not-returned",
            None,
        ),
        (
            "2 * x",
            "torch.autograd.grad(x.sin().sum(), x)[0]",
            "raised",
            None,
            "torch.enable_grad(), around what is differentiated there",
        ),
    ],
)
slip(
    "ReadsItsInput",
    Square,
    matrix,
    {
        "return x * x": "flat = torch.empty(0, dtype=x.dtype)\n"
        "        flat.set_(x.untyped_storage())\n"
        "        return flat[: x.numel()].view(x.shape) * x"
    },
    "input-layout",
)
slip(
    "MissingTranspose",
    Linear,
    affine,
    {"grad_output @ weight": "grad_output @ weight.t()"},
    "shapes-do-not-fit",
)
wrong(
    "GradientForIndex",
    "gradient-for-index",
    lambda: (*vector(), torch.tensor([0, 3])),
    lambda x, index: x[index],
    lambda g, x, index: (torch.zeros_like(x).index_add(0, index, g), index.double()),
)


@broken("not-static", vector)
def called_as_in_2017(x):
    return Square()(x)


for code, fn in {
    "layout": lambda x: x.t().view(-1),
    "numpy-detour": lambda x: torch.from_numpy(x.numpy()),
    "output-detached": lambda x: torch.from_numpy(np.exp(x.detach().numpy())),
    "input-modified": lambda x: x.add_(1) * x,
}.items():
    broken(code, matrix, name=code)(fn)
broken("nothing-to-examine", lambda: (torch.tensor([1, 2]),), name="integers")(
    lambda x: 2 * x
)


@broken("raised", vector, "Forward raised", "`return torch.sinus(x)` (line ")
def misspelt(x):
    return torch.sinus(x)


@broken("no-output", vector)
def returns_nothing(x):
    torch.sin(x)


@broken("in-place-leaf", lambda: (vector()[0].requires_grad_(),))
def adds_to_its_input(x):
    x.add_(1)
    return x * x


# --- what forward leaves behind -------------------------------------------------------


@broken(
    "saved-modified",
    vector,
    "before forward returned, so the gradient of `x` is wrong",
)
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


wrong(
    "ChangedByBackward",
    "saved-modified",
    vector,
    lambda x: x * x,
    lambda g, x: x.mul_(2 * g),
    "by backward itself",
)
slip(
    "NotMarkedDirty",
    Double,
    vector,
    {"return 2 * x": "return x.mul_(2).clone()"},
    "input-modified",
)


@broken("reference-cycle", vector, "`ctx.result` holds an output")
class OutputOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = torch.exp(x)
        return ctx.result

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.result


slip(
    "InputOnCtx",
    Square,
    vector,
    {"ctx.save_for_backward(x)": "ctx.x = x", "(x,) = ctx.saved_tensors": "x = ctx.x"},
    "tensor-on-ctx",
)


@broken("double-backward-wrong", vector)
class IntermediateOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = torch.cosh(x)
        return torch.sinh(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.slope


# --- a second time, or otherwise ------------------------------------------------------

slip(
    "SavesBfloat16",
    Square,
    lambda: draw((3, 4), dtype=torch.float32),
    {"backward(x)": "backward(x.bfloat16())", "2 * x": "2 * x.float()"},
    "double-backward-wrong",
)
broken("double-backward-missing", pair, name="reentrant")(
    lambda x, y: checkpoint(torch.mul, x, y, use_reentrant=True)
)


class Hooked(torch.nn.Linear):
    """Right, but its hook takes a part of the gradient for a constant."""

    def forward(self, x):
        y = super().forward(x).sin()
        y.register_hook(lambda g: g.detach() + 0 * g)
        return y


broken("double-backward-wrong", lambda: draw((4, 3)))(Hooked(3, 2).double())
wrong(
    "NeverAsks",
    "needs-input-grad-ignored",
    affine,
    linear,
    lambda g, input, weight, bias: (g @ weight, g.t() @ input, g.sum(0)),
    "`ctx.needs_input_grad` is not asked",
)


@broken("none-not-handled", vector)
class UnhandledNone(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, grad_double, grad_triple):
        return 2 * grad_double + 3 * grad_triple


@broken("grad-output-layout", matrix)
class ReadsMemory(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        flat = torch.empty(0, dtype=x.dtype).set_(grad_output.untyped_storage())
        flat = torch.cat([flat, flat.new_zeros(x.numel())])[: x.numel()]
        return flat.reshape(x.shape) * 2 * x


@broken("grad-output-modified", vector)
class ChangesGradOutput(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.mul_(2 * x)


@broken("grad-output-modified", matrix)
def a_skip_connection(x):
    h = x.tanh()
    return ChangesGradOutput.apply(h) + h


# --- what calls share -----------------------------------------------------------------


@broken("state-between-calls", vector)
class SavesOnTheClass(Function):
    saved = None

    @staticmethod
    def forward(ctx, x):
        SavesOnTheClass.saved = x
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2 * SavesOnTheClass.saved


class WithoutOutliers(torch.nn.Module):
    """The mask is that of the first batch of this shape."""

    def __init__(self):
        super().__init__()
        self.masks = {}

    def forward(self, x):
        mask = x.abs() < 1.2 * x.std()
        return MASKED.apply(x, mask, self.masks.setdefault(x.shape, mask))


MASKED = function(lambda x, mask, kept: x * mask, lambda g, x, mask, kept: g * kept)
broken("state-between-calls", lambda: draw((6, 5)))(WithoutOutliers())
KEPT = {}
broken(
    "forward-not-deterministic",
    lambda: draw((3, 4)),
    "after a call with another input",
    name="a cache",
)(lambda x: x * KEPT.setdefault(x.shape, x.detach().sigmoid()))


@broken("forward-not-deterministic", vector)
class CountsItsCalls(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        CountsItsCalls.calls += 1
        return x * CountsItsCalls.calls

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * CountsItsCalls.calls


slip(
    "InputsThenWeights",  # takes each backward pass for one half, as in a pipeline
    Matmul,
    square,
    {
        "ctx.save_for_backward(input, weight)": "ctx.save_for_backward(input, weight)\n"
        "        ctx.is_second = False",
        "return grad_output": "if ctx.is_second:\n"
        "            return None, input.t() @ grad_output\n"
        "        ctx.is_second = True\n"
        "        return grad_output",
        ", input.t() @ grad_output": ", None",
    },
    "backward-not-deterministic",
    "the second time",
)


@broken(
    "backward-not-deterministic", lambda: draw((40,)), "because it draws random numbers"
)
class DrawsTwice(Function):
    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (torch.rand_like(grad_output) > 0.5)


# --- a jvp, and a rule for vmap -------------------------------------------------------


class Cube(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * 3 * x**2


slips(
    Cube,
    vector,
    [
        ("tangent * 3", "tangent", "jvp-wrong", None),
        ("ctx.save_for_forward(*inputs)", "", "jvp-fails", None),
    ],
)
slip(
    "SavesOther",  # a generated rule wants the same tensors saved for both modes
    Cube,
    matrix,
    {
        "forward(*inputs)": "forward(*inputs, output)",
        "(x,) = ctx.saved_tensors\n        return tangent": "x, _ = ctx.saved_tensors\n"
        "        return tangent",
    },
    "vmap-fails",
    "save_for_forward",
)


@broken("jvp-wrong", vector, "does not change with that of `x`")
class ForgottenTangent(Cube):
    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2


class Axpy(Function):
    """2x + y, where None arrives for what does not move."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return 2 * x + y

    @staticmethod
    def backward(ctx, grad_output):
        return None if grad_output is None else 2 * grad_output, grad_output

    @staticmethod
    def jvp(ctx, x, y):
        if x is None or y is None:
            return y if x is None else 2 * x
        return 2 * x + y


slips(  # right for each input, wrong for both
    Axpy, pair, [("if x is None or y is None", "if True", "jvp-wrong", None)]
)


class Hadamard(Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y, grad_output * x

    @classmethod
    def vmap(cls, info, in_dims, *tensors):
        pairs = zip(tensors, in_dims, strict=True)
        tensors = [t if d is None else t.movedim(d, 0) for t, d in pairs]
        return cls.apply(*(t.expand(info.batch_size, 3, 4) for t in tensors)), 0


@broken("vmap-wrong", pair)
class ZeroTakenForNone(Hadamard):
    @staticmethod
    def vmap(info, in_dims, x, y):
        x_dim, y_dim = in_dims
        x = x.movedim(x_dim, -1) if x_dim else x.unsqueeze(-1)
        y = y.movedim(y_dim, -1) if y_dim else y.unsqueeze(-1)
        x, y = torch.broadcast_tensors(x, y)
        return Hadamard.apply(x, y).movedim(-1, 0), 0


slips(
    Hadamard,
    pair,
    [
        ("t if d is None else ", "", "vmap-fails", None),
        ("tensors)), 0", "tensors)), -1", "vmap-wrong", None),
        ("t.movedim", "t.data.movedim", "vmap-wrong", None),
    ],
)


healthy(pair)(
    with_a_slip(
        Hadamard,
        "RefusesABatch",
        {
            "pairs =": "if in_dims[1] is not None:\n"
            '            raise NotImplementedError("y has no batch")\n'
            "        pairs ="
        },
    )
)


# --- what a copy does not tell, and where a second derivative ends ---------------------


@broken(
    "input-layout", lambda: draw((3, 4)), "ctx.needs_input_grad, in place of `flat."
)
class AsksACopy(Function):
    @staticmethod
    def forward(ctx, x):
        flat = x.reshape(-1)
        ctx.needed, ctx.shape = flat.requires_grad, x.shape
        return 2 * flat

    @staticmethod
    def backward(ctx, g):
        return (2 * g).reshape(ctx.shape) if ctx.needed else None


healthy(vector, None, "an output of dtype float8_e5m2 has no arithmetic")(
    function(lambda x: x.to(torch.float8_e5m2), lambda g, x: g.double(), "ToFloat8")
)


@broken("double-backward-not-finite", numbers(0, 0, 0))
def cubed_norm(x):
    return x.norm() ** 3


if hasattr(torch.autograd.function.FunctionCtx, "input_grad_buffers"):  # torch 2.15
    slip(
        "AddsTooMuch",
        Double,
        vector,
        {
            "return 2 * grad_output": "(sum_so_far,) = ctx.input_grad_buffers\n"
            "        if sum_so_far is None:\n"
            "            return 2 * grad_output\n"
            "        sum_so_far.add_(3 * grad_output)"
        },
        "another-user",
    )

slip(
    "WritesWhatItSaved",
    Square,
    vector,
    {
        "ctx.save_for_backward(x)": "ctx.save_for_backward(2 * x)",
        "grad_output * 2 * x": "x.mul_(grad_output)",
    },
    "saved-modified",
)


def rows_in_order(t):
    """As kernels read that check the last stride only, and take rows to be in order."""
    t = t if t.stride(-1) == 1 else t.contiguous()
    return t.as_strided((6, 4), (t.stride(1), 1)).reshape(2, 3, 4)


wrong(
    "ReadsRows",
    "input-layout",
    lambda: draw((2, 3, 4)),
    lambda x: 2 * rows_in_order(x),
    lambda g, x: 2 * g,
    "every second row",
)
