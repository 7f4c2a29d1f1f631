"""y[t] = decay[t] * y[t - 1] + x[t]: discounted sums, smoothing, diagonal state space models.

Source: https://arxiv.org/abs/1709.04057, which also computes it in parallel.

>>> recurrence(torch.tensor([1.0, 0, 0, 1]), torch.tensor(0.5)).tolist()
[1.0, 0.5, 0.25, 1.125]
>>> state = torch.zeros(())  # the same, in pieces
>>> for x in torch.tensor([[1.0, 0], [0, 1]]):
...     recurrence(x, torch.tensor(0.5), state=state).tolist()
[1.0, 0.5]
[0.25, 1.125]
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch.autograd.forward_ad import unpack_dual

NAME, FROM = "my_package::recurrence", "my_package::recurrence_from"
# Saved programs contain these lines, so what they promise must stay true.
torch.library.define(NAME, "(Tensor x, Tensor decay, bool reverse=False) -> Tensor")
# It writes into `state`, and says so: (a!). PyTorch gives such an operator no derivative.
torch.library.define(
    FROM, "(Tensor x, Tensor decay, Tensor(a!) state, bool reverse=False) -> Tensor"
)
_op = torch.ops.my_package.recurrence.default
_op_from = torch.ops.my_package.recurrence_from.default


def recurrence(x, decay, *, reverse=False, state=None):
    """The linear recurrence along the last dimension, which starts at 0 or continues from `state`.

    x: (..., steps), floating-point. decay: broadcasts with x, with its dtype and on its device.
    reverse: start at the end, y[t] = decay[t] * y[t + 1] + x[t]. Derivatives of every order by
    torch.autograd (not torch.func.grad). Under autocast, float16 and bfloat16 run in float32.

    state: for sequences that come in pieces: the sum before the first step, of shape (...),
    contiguous, float32 (float64 if x is). The sum after the last step is written into it. No
    derivatives.

    Raises TypeError or ValueError for arguments that do not fit, NotImplementedError in forward
    mode, and for a derivative with `state`.
    """
    for name, tensor in (("x", x), ("decay", decay)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {tensor.dtype}")
    if not isinstance(reverse, bool):
        raise TypeError(f"reverse must be a bool, got {type(reverse).__name__}")
    if x.device != decay.device:
        raise ValueError(f"decay must be on {x.device} as x is, got {decay.device}")
    casts = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (x.dtype, decay.dtype)
    if x.dtype != decay.dtype and not casts:
        raise TypeError(f"decay must be {x.dtype} as x is, got {decay.dtype}")
    try:
        x, decay = torch.broadcast_tensors(x, decay)
    except RuntimeError:
        sizes = f"{tuple(x.shape)} and {tuple(decay.shape)}"
        raise ValueError(f"the shapes of x and decay must broadcast, got {sizes}") from None
    if x.dim() == 0:
        raise ValueError("x must have shape (..., steps), got ()")
    if state is not None:
        _check_state(state, x)
    inputs = (x, decay) if state is None else (x, decay, state)
    if any(unpack_dual(t).tangent is not None for t in inputs):  # it would get zeros
        raise NotImplementedError("recurrence has no rule for forward mode (jvp, jacfwd)")
    if state is None:
        return _op(x, decay, reverse)
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        raise NotImplementedError(
            "recurrence has no derivative where it writes into a state: leave out `state`, or call "
            "it under torch.no_grad()"
        )
    y = _op_from(x, decay, state, reverse)
    torch.autograd.graph.increment_version(state)  # so that autograd knows, if it has saved it
    return y


def _check_state(state, x):
    if not isinstance(state, torch.Tensor):
        raise TypeError(f"state must be a torch.Tensor, got {type(state).__name__}")
    expected = (*x.shape[:-1],), _sum_dtype(x), x.device
    given = (*state.shape,), state.dtype, state.device
    if given != expected:
        expected, given = (", ".join(map(str, what)) for what in (expected, given))
        raise ValueError(f"state must have shape, dtype and device {expected}, got {given}")
    if not state.is_contiguous():
        raise ValueError(f"state must be contiguous, got strides {state.stride()}")


# Kernels


def _sum_dtype(x):
    return torch.promote_types(x.dtype, torch.float32)


def _zeros(x):
    return x.new_zeros(x.shape[:-1], dtype=_sum_dtype(x))


def _fake_from(x, decay, state, reverse=False):
    torch._check(x.dim() > 0 and x.shape == decay.shape and x.dtype == decay.dtype)
    torch._check(state.shape == x.shape[:-1] and state.dtype == _sum_dtype(x))
    torch._check(state.is_contiguous())
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _plain_from(x, decay, state, reverse=False):
    """The kernel where nothing was compiled: step by step, in PyTorch's own operations."""
    y = _fake_from(x, decay, state)
    steps = list(zip(x.unbind(-1), decay.unbind(-1), y.unbind(-1), strict=True))
    for x_t, decay_t, y_t in reversed(steps) if reverse else steps:
        y_t.copy_(state.mul_(decay_t).add_(x_t))
    return y


def _fake(x, decay, reverse=False):
    return _fake_from(x, decay, _zeros(x))


def _plain(x, decay, reverse=False):
    return _plain_from(x, decay, _zeros(x), reverse)


# Autograd. The recurrence is linear in x, and its transpose is a recurrence from the other end.
# So backward calls the operator itself, and therefore has derivatives, too.


def _next(tensor, reverse):
    """Each element's successor in the direction of the recurrence; 0 after the last one."""
    return F.pad(tensor, (1, 0))[..., :-1] if reverse else F.pad(tensor, (0, 1))[..., 1:]


def _setup_context(ctx, inputs, output):
    _, decay, ctx.reverse = inputs
    ctx.save_for_backward(decay, output if ctx.needs_input_grad[1] else None)


def _backward(ctx, grad_output):
    decay, y = ctx.saved_tensors
    grad_x = _op(grad_output, _next(decay, ctx.reverse), not ctx.reverse)
    grad_decay = None if y is None else grad_x * _next(y, not ctx.reverse)
    return grad_x, grad_decay, None


def _vmap(info, in_dims, x, decay, reverse=False):
    x, decay = (
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip((x, decay), in_dims, strict=False)
    )
    return _op(x, decay, reverse), 0


def _load(name):
    """Load a compiled library of this folder, if there is one; that registers its kernel."""
    for path in Path(__file__).parent.glob(f"{name}.*"):
        try:
            torch.ops.load_library(path)
        except OSError as error:
            raise ImportError(
                f"{path.name} of {__package__} does not load with torch {torch.__version__} "
                f"(CUDA {torch.version.cuda}): {error.__cause__ or error}"
            ) from error
        return (name[1:],)
    return ()


for _name, _kernel, _shape in ((NAME, _plain, _fake), (FROM, _plain_from, _fake_from)):
    torch.library.impl(_name, "default", _kernel)
    torch.library.register_fake(_name, _shape)
    for _device in ("cpu", "cuda"):
        torch.library.register_autocast(_name, _device, torch.float32)
torch.library.register_autograd(NAME, _backward, setup_context=_setup_context)
torch.library.register_vmap(NAME, _vmap)
# The devices that have a compiled kernel.
COMPILED = _load("_cpu") + (_load("_cuda") if torch.version.cuda else ())
