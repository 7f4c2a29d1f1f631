r"""Cross-entropy of a linear layer whose logits never exist whole.

    z = x Wᵀ + b                                  (N, V), made for a few rows at a time
    loss of a row = log(sum of exp(z)) - q · z    q: 1 at the target, or smoothed
    dz = share · (softmax(z) - q)                 share: dL/d(loss of the row), 0 where ignored
    dx = dz · W        dW = dzᵀ · x        db = sum of dz over N

Under a sum or a mean all rows have one share. So the gradients are made in forward, while the
logits of the rows are there, and backward only multiplies them by a number.

Source: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models (what the logits cost),
https://arxiv.org/abs/2411.09009; Hsu et al., Liger Kernel (chunks of rows, gradients in forward),
https://arxiv.org/abs/2410.10989

>>> import torch
>>> x, weight = torch.zeros(6, 3), torch.ones(4, 3, requires_grad=True)
>>> loss = linear_cross_entropy(x, weight, torch.tensor([0, 1, 2, 3, 0, -100]), chunk_size=2)
>>> loss.backward()
>>> round(loss.item(), 4), weight.grad.shape
(1.3863, torch.Size([4, 3]))
"""

import math

import torch
import torch.nn.functional as F
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

NAMESPACE = "extending_pytorch"
INTS = (int, torch.SymInt)
LAYER = "Tensor input, Tensor weight, Tensor? bias, Tensor target"
OPTIONS = "bool[3] wanted, SymInt chunk_size, SymInt ignore_index, float label_smoothing"
READY = "Tensor? ready_input, Tensor? ready_weight, Tensor? ready_bias"


def _ops():
    return getattr(torch.ops, NAMESPACE)


def _wide(tensor):
    return torch.promote_types(tensor.dtype, torch.float32)


# Kernels


def _loss(input, weight, bias, target, reduce, wanted, *options):
    """The losses or their sum, and those gradients of the sum that are wanted, in float32."""
    if target.device.type == "cpu":  # elsewhere looking would wait for the device, which also looks
        _check_range(target, len(weight), options[1])
    losses = input.new_empty(len(input), dtype=_wide(input))
    share = losses.new_ones(()).expand(len(input))
    grads = _sweep(losses, share, input, weight, bias, target, wanted, *options)
    return losses.sum() if reduce else losses, *grads


def _loss_backward(
    grad, input, weight, bias, target, ready_input, ready_weight, ready_bias, wanted, *options
):
    """The gradients that are wanted: `grad` times those of the sum if they are ready, or anew."""
    grads = ready_input, ready_weight, ready_bias
    if any(want and done is None for want, done in zip(wanted, grads, strict=True)):
        share = grad if grad.dim() else torch.ones_like(grad).expand(len(input))
        grads = _sweep(None, share, input, weight, bias, target, wanted, *options)
    if grad.dim() == 0:
        grads = [
            done * grad if want else grad.new_empty(0)
            for want, done in zip(wanted, grads, strict=True)
        ]
    return tuple(g.to(input.dtype) for g in grads)


def _check_range(target, classes, ignore_index):
    wrong = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
    if len(wrong):
        raise ValueError(
            f"target must be a class from 0 to {classes - 1}, or ignore_index {ignore_index}, "
            f"got {wrong[0].item()}"
        )


def _gradients(make, input, weight, wanted, dtype):
    """Three tensors for the gradients; an operator cannot return None, so some have no elements."""
    shapes = input.shape, weight.shape, weight.shape[:1]
    return [
        make(shape if want else 0, dtype=dtype, device=input.device)
        for shape, want in zip(shapes, wanted, strict=True)
    ]


def _sweep(losses, share, input, weight, bias, target, wanted, chunk_size, *options):
    """Fill `losses`, if it is not None, and return the gradients that are wanted, in float32."""
    grads = _gradients(torch.zeros, input, weight, wanted, _wide(input))
    for start in range(0, len(input), chunk_size):
        rows = slice(start, start + chunk_size)
        # A call, after which the logits of these rows are gone: there is one chunk at a time.
        _sweep_rows(rows, losses, share, input, weight, bias, target, grads, wanted, *options)
    return grads


def _sweep_rows(
    rows, losses, share, input, weight, bias, target, grads, wanted, ignore_index, smoothing
):
    x, target, share = input[rows], target[rows, None], share[rows, None]
    ignored = target == ignore_index
    target = target.masked_fill(ignored, 0)
    z = F.linear(x, weight, bias)
    z = z.to(_wide(z))
    z -= z.amax(1, keepdim=True)
    if losses is not None:
        expected = (1 - smoothing) * z.gather(1, target)
        if smoothing:
            expected += smoothing * z.mean(1, keepdim=True)
    z.exp_()
    total = z.sum(1, keepdim=True)
    if losses is not None:
        losses[rows] = (total.log() - expected).masked_fill(ignored, 0).squeeze(1)
    if not any(wanted):
        return
    share = share.masked_fill(ignored, 0)
    dz = z.mul_(share / total)
    if smoothing:
        dz -= share * (smoothing / len(weight))
    dz.scatter_add_(1, target, share * (smoothing - 1))
    grad_input, grad_weight, grad_bias = grads
    if wanted[0]:
        grad_input[rows] = dz.to(weight.dtype) @ weight
    if wanted[1] and x.dtype == torch.bfloat16:
        grad_weight += dz.to(x.dtype).t() @ x
    elif wanted[1]:  # for float16, too: there the sum over a chunk could overflow
        grad_weight.addmm_(dz.t(), x.to(dz.dtype))
    if wanted[2]:
        grad_bias += dz.sum(0)


def _fake_loss(input, weight, bias, target, reduce, wanted, *options):
    loss = input.new_empty(() if reduce else len(input), dtype=_wide(input))
    return loss, *_gradients(torch.empty, input, weight, wanted, loss.dtype)


def _fake_loss_backward(grad, input, weight, bias, target, *ready_wanted_options):
    wanted = ready_wanted_options[3]
    return tuple(_gradients(torch.empty, input, weight, wanted, input.dtype))


# Autograd


class _Operator(torch.autograd.Function):
    """What the two operators share where gradients are needed.

    `torch.library.register_autograd` would write such a class, but on torch 2.13.0 it raises
    under `torch.func.grad`, and forward mode gets zeros without a word.
    """

    @classmethod
    def apply(cls, *args):
        # The dispatcher comes here once for each level of torch.func. Function.apply would start
        # with the outermost again, so this is the apply of its base class.
        with enable_single_level_autograd_function():
            modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
            return super(torch.autograd.Function, cls).apply(modes, *args)

    @staticmethod
    def below(modes, operator, *args):
        # Both modes are off inside forward, but the levels below may want to record, too.
        with (
            torch.set_grad_enabled(modes[0]),
            _set_fwd_grad_enabled(modes[1]),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return operator(*args)


def _primals(ctx):
    return [t if t is None else unpack_dual(t, level=0).primal for t in ctx.saved_tensors]


class _Loss(_Operator):
    @staticmethod
    def forward(ctx, modes, input, weight, bias, target, reduce, wanted, *options):
        ctx.modes, ctx.reduce, ctx.options = modes, reduce, options
        ctx.save_for_backward(input, weight, bias, target)
        ctx.save_for_forward(input, weight, bias, target)
        loss, *grads = _Operator.below(
            modes,
            _ops().linear_cross_entropy,
            input,
            weight,
            bias,
            target,
            reduce,
            wanted,
            *options,
        )
        ctx.ready = [g if want else None for g, want in zip(grads, wanted, strict=True)]
        ctx.mark_non_differentiable(*grads)
        ctx.set_materialize_grads(False)  # or backward gets zeros of their sizes for them
        return loss, *grads

    @staticmethod
    def backward(ctx, grad, *_):
        needed = ctx.needs_input_grad[1:4]
        ready = ctx.ready
        grads = [None, None, None]
        if (
            all(done is not None for done, need in zip(ready, needed, strict=True) if need)
            and not torch.is_grad_enabled()
            and not torch._C._are_functorch_transforms_active()
        ):
            # No history is asked for. They are multiplied in place and given away, so that there
            # is never a second set; who comes again (retain_graph) has them made anew.
            ctx.ready = grads
            dtype = ctx.saved_tensors[0].dtype
            grads = [
                done.mul_(grad).to(dtype) if need else None
                for done, need in zip(ready, needed, strict=True)
            ]
        else:
            grads = _ops().linear_cross_entropy_backward(
                grad, *ctx.saved_tensors, *ready, needed, *ctx.options
            )
            grads = [g if need else None for g, need in zip(grads, needed, strict=True)]
        return None, *grads, *[None] * 6

    @staticmethod
    def jvp(ctx, _, *tangents):
        with _set_fwd_grad_enabled(ctx.modes[1]):
            slopes = _second(None, *_primals(ctx), *tangents[:3], *ctx.options)
            return slopes.sum() if ctx.reduce else slopes, None, None, None


class _LossBackward(_Operator):
    @staticmethod
    def forward(ctx, modes, grad, input, weight, bias, target, *ready_wanted_options):
        ctx.modes = modes
        *_, ctx.wanted, chunk_size, ignore_index, smoothing = ready_wanted_options
        ctx.options = chunk_size, ignore_index, smoothing
        ctx.save_for_backward(grad, input, weight, bias, target)
        ctx.save_for_forward(grad, input, weight, bias, target)
        ctx.set_materialize_grads(False)
        grads = _Operator.below(
            modes,
            _ops().linear_cross_entropy_backward,
            grad,
            input,
            weight,
            bias,
            target,
            *ready_wanted_options,
        )
        ctx.mark_non_differentiable(
            *[g for g, want in zip(grads, ctx.wanted, strict=True) if not want]
        )
        return grads

    @staticmethod
    def backward(ctx, *along):
        # The matrix of second derivatives is symmetric: backward is forward mode along `along`.
        grad = ctx.saved_tensors[0]
        slopes, *grads = _second(*ctx.saved_tensors, *along, *ctx.options)
        slopes = slopes.sum() if grad.dim() == 0 else slopes
        grads = [
            g if need else None for g, need in zip(grads, ctx.needs_input_grad[2:5], strict=True)
        ]
        return None, slopes, *grads, *[None] * 8

    @staticmethod
    def jvp(ctx, _, grad_tangent, *tangents):
        with _set_fwd_grad_enabled(ctx.modes[1]):
            primals = _primals(ctx)
            parts = []
            if any(t is not None for t in tangents[:3]):
                parts.append(_second(*primals, *tangents[:3], *ctx.options)[1:])
            if grad_tangent is not None:
                parts.append(
                    _ops().linear_cross_entropy_backward(
                        grad_tangent, *primals[1:], None, None, None, ctx.wanted, *ctx.options
                    )
                )
            return tuple(
                sum(part[1:], part[0]) if want else None
                for want, part in zip(ctx.wanted, zip(*parts, strict=True), strict=True)
            )


def _second(
    grad, input, weight, bias, target, dx, dweight, dbias, chunk_size, ignore_index, smoothing
):
    """Of the layer moving along (dx, dweight, dbias), each of which may be None: the slope of each
    loss and, if `grad` is not None, of the three gradients. Plain operations, chunk by chunk.
    """
    dtype, wide = input.dtype, _wide(input)
    x, w, b, dx, dw, db = (
        t if t is None else t.to(wide) for t in (input, weight, bias, dx, dweight, dbias)
    )
    share = None if grad is None else grad.expand(len(input))
    slopes, grad_input, grad_weight, grad_bias = [], [], torch.zeros_like(w), w.new_zeros(len(w))
    for start in range(0, max(len(input), 1), chunk_size):
        rows = slice(start, start + chunk_size)
        ignored = target[rows, None] == ignore_index
        at = target[rows, None].masked_fill(ignored, 0)
        p = torch.softmax(F.linear(x[rows], w, b), 1)
        dlogits = (p - smoothing / len(w)).scatter_add(1, at, (smoothing - 1) * torch.ones_like(p))
        dlogits = dlogits.masked_fill(ignored, 0)
        step = torch.zeros_like(p)
        if dx is not None:
            step = step + dx[rows] @ w.t()
        if dw is not None:
            step = step + x[rows] @ dw.t()
        if db is not None:
            step = step + db
        slopes.append((dlogits * step).sum(1))
        if grad is None:
            continue
        g = share[rows, None].masked_fill(ignored, 0)
        first, second = g * dlogits, g * p * (step - (p * step).sum(1, keepdim=True))
        part = second @ w
        grad_input.append(part if dw is None else part + first @ dw)
        grad_weight = grad_weight + second.t() @ x[rows]
        if dx is not None:
            grad_weight = grad_weight + first.t() @ dx[rows]
        grad_bias = grad_bias + second.sum(0)
    slopes = torch.cat(slopes)
    if grad is None:
        return slopes
    return slopes, *[t.to(dtype) for t in (torch.cat(grad_input), grad_weight, grad_bias)]


# Registration


def _sample_by_sample(operator):
    # A batch of chunks would be as large as what the chunks are there to avoid.
    def rule(info, in_dims, *args):
        results = [
            operator(
                *[
                    arg.select(dim, index) if isinstance(dim, int) else arg
                    for arg, dim in zip(args, in_dims, strict=True)
                ]
            )
            for index in range(info.batch_size)
        ]
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    return rule


def _register(name, schema, kernel, fake, function):
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, schema)
    torch.library.impl(qualified, "default", kernel)
    torch.library.register_fake(qualified, fake)
    torch.library.impl(qualified, "Autograd", function.apply)
    torch.library.register_vmap(qualified, _sample_by_sample(getattr(_ops(), name)))


# Two copies of this file in one process share the operators of the first one.
if not hasattr(_ops(), "linear_cross_entropy"):
    _register(
        "linear_cross_entropy",
        f"({LAYER}, bool reduce, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
        _loss,
        _fake_loss,
        _Loss,
    )
    _register(
        "linear_cross_entropy_backward",
        f"(Tensor grad_output, {LAYER}, {READY}, {OPTIONS}) -> (Tensor, Tensor, Tensor)",
        _loss_backward,
        _fake_loss_backward,
        _LossBackward,
    )


def linear_cross_entropy(
    input,
    weight,
    target,
    bias=None,
    *,
    ignore_index=-100,
    reduction="mean",
    label_smoothing=0.0,
    chunk_size=None,
):
    """`F.cross_entropy(F.linear(input, weight, bias), target)` without the logits in memory."""
    _check(input, weight, target, bias, ignore_index, reduction, label_smoothing, chunk_size)
    device_type = input.device.type
    dtype = input.dtype
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        # Cast out here, where autograd records it, so that every gradient returns in its own dtype.
        to = torch.get_autocast_dtype(device_type)
        input, weight, bias = (
            t if t is None or t.dtype == torch.float64 else t.to(to) for t in (input, weight, bias)
        )
        dtype = _wide(input)  # autocast wants cross-entropy in float32
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != input.dtype:
            raise TypeError(f"{name} is {tensor.dtype}, but input is {input.dtype}")
    if chunk_size is None:
        chunk_size = max(256, weight.shape[1] // 4)
    reduce = reduction != "none"
    wanted = [
        reduce and torch.is_grad_enabled() and t is not None and t.requires_grad
        for t in (input, weight, bias)
    ]
    rows = input.reshape(math.prod(input.shape[:-1]), input.shape[-1])
    loss, *_ = _ops().linear_cross_entropy(
        rows,
        weight,
        bias,
        target.reshape(-1),
        reduce,
        wanted,
        chunk_size,
        ignore_index,
        label_smoothing,
    )
    if reduction == "none":
        loss = loss.reshape(target.shape)
    elif reduction == "mean":
        count = (target != ignore_index).sum()
        # Without a row it is nan, as PyTorch's, and its gradient 0.
        loss = torch.where(count > 0, loss / count.clamp(min=1), math.nan)
    return loss.to(dtype)


def _check(input, weight, target, bias, ignore_index, reduction, label_smoothing, chunk_size):
    floats = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    for name, tensor in (floats | {"target": target}).items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.device != input.device:
            raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")
    for name, tensor in floats.items():
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {tensor.dtype}")
    if target.dtype != torch.int64:
        raise TypeError(f"target must hold classes as torch.int64, got {target.dtype}")
    if weight.dim() != 2 or len(weight) == 0:
        raise ValueError(
            f"weight must have shape (V, D) with at least one class, got {tuple(weight.shape)}"
        )
    classes, features = weight.shape
    if input.dim() == 0 or input.shape[-1] != features:
        raise ValueError(
            f"input must have shape (..., {features}) to fit weight {tuple(weight.shape)}, "
            f"got {tuple(input.shape)}"
        )
    if target.shape != input.shape[:-1]:
        raise ValueError(
            f"target must have shape {tuple(input.shape[:-1])} to fit input "
            f"{tuple(input.shape)}, got {tuple(target.shape)}"
        )
    if bias is not None and bias.shape != (classes,):
        raise ValueError(
            f"bias must have shape ({classes},) to fit weight {tuple(weight.shape)}, "
            f"got {tuple(bias.shape)}"
        )
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    for name, value in (("ignore_index", ignore_index), ("chunk_size", chunk_size)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, INTS)):
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be 1 or more, got {chunk_size}")
    if isinstance(label_smoothing, bool) or not isinstance(label_smoothing, (int, float)):
        raise TypeError(f"label_smoothing must be a number, got {type(label_smoothing).__name__}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be from 0 to 1, got {label_smoothing}")
