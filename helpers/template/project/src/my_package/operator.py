"""y[t] = decay[t] * y[t - 1] + x[t]: discounted sums, smoothing, diagonal state space models.

Source: https://arxiv.org/abs/1709.04057, which also computes it in parallel, as `_plain` does.

>>> recurrence(torch.tensor([1.0, 0, 0, 1]), torch.tensor(0.5)).tolist()
[1.0, 0.5, 0.25, 1.125]
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch.autograd.forward_ad import unpack_dual

NAME = "my_package::recurrence"
# Programs that others save hold this line: what it promises must go on being true.
torch.library.define(NAME, "(Tensor x, Tensor decay, bool reverse=False) -> Tensor")
_op = torch.ops.my_package.recurrence.default


def recurrence(x, decay, *, reverse=False):
    """The linear recurrence along the last dimension, which starts at 0.

    x: (..., steps), floating-point. decay: the same dtype and device, a shape that broadcasts with
    that of x. reverse: start at the end, y[t] = decay[t] * y[t + 1] + x[t]. Derivatives of every
    order by torch.autograd (not torch.func.grad). Under autocast, float16 and bfloat16 run in
    float32.

    Raises TypeError or ValueError for what does not fit, NotImplementedError in forward mode.
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
    if any(unpack_dual(t).tangent is not None for t in (x, decay)):  # it would get zeros
        raise NotImplementedError("recurrence has no rule for forward mode (jvp, jacfwd)")
    return _op(x, decay, reverse)


# Kernels


def _check_alike(x, decay):
    torch._check(x.dim() > 0 and x.shape == decay.shape and x.dtype == decay.dtype)


def _plain(x, decay, reverse=False):
    """The kernel where nothing was compiled: log2(steps) passes in PyTorch's own operations.

    Where a product of decays overflows it may give nan, and the loop would not.
    """
    _check_alike(x, decay)
    wide = torch.promote_types(x.dtype, torch.float32)
    y, factor = (t.to(wide).flip(-1) if reverse else t.to(wide) for t in (x, decay))
    near = 1  # y[t] sums over that many steps so far, factor[t] is the product of their decays
    while near < x.shape[-1]:
        y = torch.cat([y[..., :near], y[..., near:] + factor[..., near:] * y[..., :-near]], -1)
        factor = torch.cat([factor[..., :near], factor[..., near:] * factor[..., :-near]], -1)
        near *= 2
    y = y.flip(-1) if reverse else y
    return y.to(x.dtype, memory_format=torch.contiguous_format, copy=True)  # never x itself


def _fake(x, decay, reverse=False):
    _check_alike(x, decay)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# Autograd. The recurrence is linear in x, and its transpose is a recurrence from the other end.
# So backward is made of the operator itself, and has derivatives in turn.


def _next(tensor, reverse):
    """What stands one step later, in the direction of the recurrence, and 0 after the end."""
    return F.pad(tensor, (1, 0))[..., :-1] if reverse else F.pad(tensor, (0, 1))[..., 1:]


def _setup_context(ctx, inputs, output):
    _, decay, ctx.reverse = inputs
    ctx.save_for_backward(decay, output)


def _backward(ctx, grad_output):
    decay, y = ctx.saved_tensors
    grad_x = _op(grad_output, _next(decay, ctx.reverse), not ctx.reverse)
    return grad_x, grad_x * _next(y, not ctx.reverse), None


def _vmap(info, in_dims, x, decay, reverse=False):
    x, decay = (
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip((x, decay), in_dims, strict=False)
    )
    return _op(x, decay, reverse), 0


def _load(name):
    """Load a compiled library of this folder, which registers its kernel, if it is there."""
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


torch.library.impl(NAME, "default", _plain)
torch.library.register_fake(NAME, _fake)
torch.library.register_autograd(NAME, _backward, setup_context=_setup_context)
torch.library.register_vmap(NAME, _vmap)
for _device in ("cpu", "cuda"):
    torch.library.register_autocast(NAME, _device, torch.float32)
# The devices that have a compiled kernel.
COMPILED = _load("_cpu") + (_load("_cuda") if torch.version.cuda else ())
