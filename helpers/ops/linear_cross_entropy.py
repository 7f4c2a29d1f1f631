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
from functools import partial

import torch
import torch.nn.functional as F
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

NAMESPACE = "extending_pytorch"
LAYER = "Tensor input, Tensor weight, Tensor? bias, Tensor target"
READY = "Tensor? ready_x, Tensor? ready_w, Tensor? ready_b"
OPTIONS = "bool[3] wanted, SymInt chunk_size, SymInt ignore_index, float label_smoothing"
INTS = (int, torch.SymInt)


def _ops():
    return getattr(torch.ops, NAMESPACE)


def _wide(tensor):
    return torch.promote_types(tensor.dtype, torch.float32)


def _where(wanted, items):
    return [item if want else None for want, item in zip(wanted, items, strict=True)]


# Kernels. `sweep` goes through the chunks; for fake tensors it does nothing. No `len`: of a fake
# tensor it would be a number, and a compiler would compile again for the next one.


def _loss(sweep, input, weight, bias, target, reduce, wanted, *options):
    """The losses or their sum, and the gradients of the sum that are wanted; float32 at least."""
    losses = input.new_zeros(input.shape[0], dtype=_wide(input))
    grads = _zeros(input, weight, wanted)
    share = torch.ones_like(losses)
    sweep(losses, share, input, weight, bias, target, _where(wanted, grads), *options)
    return losses.sum() if reduce else losses, *grads


def _loss_backward(
    sweep, grad, input, weight, bias, target, ready_x, ready_w, ready_b, wanted, *options
):
    """The gradients that are wanted. For a sum `grad` is one number, else one for each row."""
    grads = _where(wanted, (ready_x, ready_w, ready_b))
    if any(want and ready is None for want, ready in zip(wanted, grads, strict=True)):
        grads = _zeros(input, weight, wanted)
        share = grad if grad.dim() else torch.ones_like(grad).expand(input.shape[0])
        sweep(None, share, input, weight, bias, target, _where(wanted, grads), *options)
    if grad.dim() == 0:
        grads = [grad.new_empty(0) if g is None else g * grad for g in grads]
    return tuple(g.to(input.dtype) for g in grads)


def _zeros(input, weight, wanted):
    """Three sums to add to; without elements where not wanted, as an operator returns no None."""
    shapes = input.shape, weight.shape, weight.shape[:1]
    return [
        input.new_zeros(shape if want else 0, dtype=_wide(input))
        for shape, want in zip(shapes, wanted, strict=True)
    ]


def _sweep(losses, share, input, weight, bias, target, grads, chunk_size, ignore_index, smoothing):
    """Fill `losses` and `grads`, where they are not None; `share` is that of each row in dL."""
    if losses is not None and target.device.type == "cpu":  # elsewhere it would mean waiting
        wrong = target[(target != ignore_index) & ((target < 0) | (target >= len(weight)))]
        if len(wrong):
            raise ValueError(
                f"target must be from 0 to {len(weight) - 1}, or ignore_index {ignore_index}, "
                f"got {wrong[0].item()}"
            )
    grad_x, grad_w, grad_b = grads
    for start in range(0, len(input), chunk_size):
        z = dz = None  # the logits of the last chunk go before those of the next are made
        rows = slice(start, start + chunk_size)
        ignored = target[rows, None] == ignore_index
        at = target[rows, None].masked_fill(ignored, 0)
        z = F.linear(input[rows], weight, bias)
        z = z.to(_wide(z))
        z -= z.amax(1, keepdim=True)
        if losses is not None:
            expected = (1 - smoothing) * z.gather(1, at)
            if smoothing:
                expected += smoothing * z.mean(1, keepdim=True)
        total = z.exp_().sum(1, keepdim=True)
        if losses is not None:
            losses[rows] = (total.log() - expected).masked_fill(ignored, 0).squeeze(1)
        if grad_x is grad_w is grad_b is None:
            continue
        of_row = share[rows, None].masked_fill(ignored, 0)
        dz = z.mul_(of_row / total)
        if smoothing:
            dz -= of_row * (smoothing / len(weight))
        dz.scatter_add_(1, at, of_row * (smoothing - 1))
        if grad_x is not None:
            grad_x[rows] = dz.to(weight.dtype) @ weight
        if grad_w is not None and input.dtype == torch.bfloat16:
            grad_w += dz.to(input.dtype).t() @ input[rows]
        elif grad_w is not None:  # in float16 the sum over a chunk could overflow
            grad_w.addmm_(dz.t(), input[rows].to(dz.dtype))
        if grad_b is not None:
            grad_b += dz.sum(0)


# Autograd


class _Operator(torch.autograd.Function):
    """What both operators need to be differentiated.

    `torch.library.register_autograd` would write such classes, but on torch 2.13.0 they raise
    under `torch.func.grad`, and forward mode gets zeros without a word.
    """

    @classmethod
    def apply(cls, *args):
        # The dispatcher comes here once for each level of torch.func. Function.apply would start
        # with the outermost again, so this is the apply of its base class.
        with enable_single_level_autograd_function():
            modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
            return super(torch.autograd.Function, cls).apply(modes, *args)


def _forward(ctx, modes, operator, tensors, *args):
    *_, ctx.wanted, chunk_size, ignore_index, smoothing = args
    ctx.modes, ctx.options = modes, (chunk_size, ignore_index, smoothing)
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)
    # Both modes are off inside forward, but the levels below may want to record, too.
    with (
        torch.set_grad_enabled(modes[0]),
        _set_fwd_grad_enabled(modes[1]),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        return operator(*tensors, *args)


def _primals(ctx):
    return [t if t is None else unpack_dual(t, level=0).primal for t in ctx.saved_tensors]


class _Loss(_Operator):
    @staticmethod
    def forward(ctx, modes, input, weight, bias, target, *args):
        operator, layer = _ops().linear_cross_entropy, (input, weight, bias, target)
        loss, *grads = _forward(ctx, modes, operator, layer, *args)
        ctx.reduce, ctx.ready = args[0], _where(ctx.wanted, grads)
        ctx.mark_non_differentiable(*grads)
        return loss, *grads

    @staticmethod
    def backward(ctx, grad, *_):
        layer, needed, ready = ctx.saved_tensors, ctx.needs_input_grad[1:4], ctx.ready
        if grad is None:
            return (None,) * 10
        missing = any(n and r is None for n, r in zip(needed, ready, strict=True))
        # A compiler's tensors are of a class of their own; a transform's have keys of their own.
        keys, plain = torch._C._dispatch_keys, type(grad) is torch.Tensor
        plain = plain and all(r is None or keys(r) == keys(grad) for r in ready)
        if torch.is_grad_enabled() or missing or not plain:
            grads = _ops().linear_cross_entropy_backward(grad, *layer, *ready, needed, *ctx.options)
        else:
            # They are multiplied in place and given away, so that there never is a second set.
            # Who comes again (retain_graph=True) has them made again.
            ctx.ready = [None] * 3
            grads = [r if r is None else r.mul_(grad).to(layer[0].dtype) for r in ready]
        return None, *_where(needed, grads), *[None] * 6

    @staticmethod
    def jvp(ctx, _, *tangents):
        with _set_fwd_grad_enabled(ctx.modes[1]):
            slopes, *_ = _second(None, *_primals(ctx), *tangents[:3], *ctx.options)
            return slopes.sum() if ctx.reduce else slopes, None, None, None


class _LossBackward(_Operator):
    @staticmethod
    def forward(ctx, modes, grad, input, weight, bias, target, *args):
        operator, tensors = (
            _ops().linear_cross_entropy_backward,
            (grad, input, weight, bias, target),
        )
        grads = _forward(ctx, modes, operator, tensors, *args)
        ctx.mark_non_differentiable(*[g for g, w in zip(grads, ctx.wanted, strict=True) if not w])
        return grads

    @staticmethod
    def backward(ctx, *along):
        # Second derivatives are symmetric: what flows back is a slope in the direction of `along`.
        slopes, *grads = _second(*ctx.saved_tensors, *along, *ctx.options)
        # Where `grad` is one number for all rows, autograd adds up the slopes.
        return None, slopes, *_where(ctx.needs_input_grad[2:5], grads), *[None] * 8

    @staticmethod
    def jvp(ctx, _, grad_tangent, *tangents):
        with _set_fwd_grad_enabled(ctx.modes[1]):
            grad, *layer = _primals(ctx)
            _, *slopes = _second(grad, *layer, *tangents[:3], *ctx.options)
            if grad_tangent is not None:
                more = _ops().linear_cross_entropy_backward(
                    grad_tangent, *layer, None, None, None, (True,) * 3, *ctx.options
                )
                slopes = [slope + m for slope, m in zip(slopes, more, strict=True)]
            return tuple(_where(ctx.wanted, slopes))


def _second(grad, input, weight, bias, target, dx, dw, db, chunk_size, ignore_index, smoothing):
    """How losses and gradients change along (dx, dw, db), each of which may be None.

    The slope of each loss and, unless `grad` is None, of the three gradients; in plain operations,
    so that there are derivatives of every order.
    """
    wide, tensors = _wide(input), (input, weight, bias, dx, dw, db)
    x, w, b, dx, dw, db = [t if t is None else t.to(wide) for t in tensors]
    dx, dw = torch.zeros_like(x) if dx is None else dx, torch.zeros_like(w) if dw is None else dw
    grads_x, grad_w, grad_b = [], torch.zeros_like(w), w.new_zeros(len(w))
    share = None if grad is None else grad.expand(len(x))
    slopes = []
    for start in range(0, max(len(x), 1), chunk_size):
        rows = slice(start, start + chunk_size)
        ignored = target[rows, None] == ignore_index
        at = target[rows, None].masked_fill(ignored, 0)
        p = torch.softmax(F.linear(x[rows], w, b), 1)
        at_target = torch.full_like(at, smoothing - 1, dtype=wide)
        dz = (p - smoothing / len(w)).scatter_add(1, at, at_target).masked_fill(ignored, 0)
        step = dx[rows] @ w.t() + F.linear(x[rows], dw, db)  # of the logits
        slopes.append((dz * step).sum(1))
        if grad is None:
            continue
        ddz = (p * (step - (p * step).sum(1, keepdim=True))).masked_fill(ignored, 0)
        dz, ddz = share[rows, None] * dz, share[rows, None] * ddz
        grads_x.append(ddz @ w + dz @ dw)
        grad_w = grad_w + ddz.t() @ x[rows] + dz.t() @ dx[rows]
        grad_b = grad_b + ddz.sum(0)
    if grad is None:
        return (torch.cat(slopes),)
    grads = torch.cat(grads_x), grad_w, grad_b
    return torch.cat(slopes), *[g.to(input.dtype) for g in grads]


# Registration


def _one_by_one(operator):
    # The logits of a batch of chunks would be as large as what the chunks avoid.
    def rule(info, in_dims, *args):
        results = []
        for index in range(info.batch_size):
            pairs = zip(args, in_dims, strict=True)
            sample = [a.select(dim, index) if isinstance(dim, int) else a for a, dim in pairs]
            results.append(operator(*sample))
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    return rule


def _register(name, schema, kernel, function):
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, schema)
    torch.library.impl(qualified, "default", partial(kernel, _sweep))
    torch.library.register_fake(qualified, partial(kernel, lambda *args: None))
    torch.library.impl(qualified, "Autograd", function.apply)
    torch.library.register_vmap(qualified, _one_by_one(getattr(_ops(), name)))


# Two copies of this file in one process share the operators of the first one.
if not hasattr(_ops(), "linear_cross_entropy"):
    schema = f"({LAYER}, bool reduce, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)"
    _register("linear_cross_entropy", schema, _loss, _Loss)
    schema = f"(Tensor grad, {LAYER}, {READY}, {OPTIONS}) -> (Tensor, Tensor, Tensor)"
    _register("linear_cross_entropy_backward", schema, _loss_backward, _LossBackward)


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
    """`F.cross_entropy(F.linear(input, weight, bias), target)`, without the logits in memory.

    input: (..., D); weight: (V, D); bias: (V) or None; all of one floating-point dtype.
    target: (...), int64: for each row of D features a class from 0 to V - 1, or `ignore_index`.
    reduction: "mean" over the rows that are not ignored (nan with a gradient of 0 if all are),
        "sum", or "none": one loss for each row, in the shape of `target`.
    label_smoothing: from 0 to 1, the share of the uniform distribution in what is expected.
    chunk_size: how many rows have logits at a time; by default 512, or D / 4 if that is more.
        Fewer take less memory; with very few, adding to the gradient of `weight` takes the time.
    Returns the loss, in the dtype of `input`. Under autocast the tensors are cast to its dtype,
        and the loss is in float32, as PyTorch's own.

    Softmax, losses, and sums over chunks are in float32 at least. Memory beyond the arguments: the
    logits of one chunk, and those gradients that are required, none under `torch.no_grad`. Under a
    sum or a mean they are made in forward; a second backward (`retain_graph`), and one for "none",
    computes the logits again.

    Derivatives of every order, in backward and forward mode; what records a third keeps the logits.
    An operator of the dispatcher: it works under `torch.func`, `torch.compile` with static and
    dynamic shapes, and `torch.export`, in any combination. vmap takes one sample after the other.

    Raises TypeError or ValueError for arguments that do not fit. Whether a target is out of range
    is looked up on the CPU only. On a CUDA device that would make the CPU wait; there an assertion
    in the kernel of `gather` fails, as one does under `F.cross_entropy`.
    """
    _check(input, weight, target, bias, ignore_index, reduction, label_smoothing, chunk_size)
    device_type, dtype = input.device.type, input.dtype
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        # Cast out here, where autograd records it, so that every gradient returns in its own dtype.
        to = torch.get_autocast_dtype(device_type)
        input, weight, bias = (
            t if t is None or t.dtype == torch.float64 else t.to(to) for t in (input, weight, bias)
        )
        dtype = _wide(input)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != input.dtype:
            raise TypeError(f"{name} is {tensor.dtype}, but input is {input.dtype}")
    reduce = reduction != "none"
    wanted = [
        reduce and torch.is_grad_enabled() and t is not None and t.requires_grad
        for t in (input, weight, bias)
    ]
    if chunk_size is None:
        chunk_size = max(512, weight.shape[1] // 4)
    # Spelled out because reshape(-1, 0) would be ambiguous for rows without features.
    layer = input.reshape(target.numel(), weight.shape[1]), weight, bias, target.reshape(-1)
    options = chunk_size, ignore_index, label_smoothing
    loss, *_ = _ops().linear_cross_entropy(*layer, reduce, wanted, *options)
    if reduction == "mean":
        count = (target != ignore_index).sum()
        loss = torch.where(count > 0, loss / count.clamp(min=1), math.nan)
    return (loss if reduce else loss.reshape(target.shape)).to(dtype)


def _check(input, weight, target, bias, ignore_index, reduction, label_smoothing, chunk_size):
    tensors = {"input": input, "weight": weight, "target": target, "bias": bias}
    if bias is None:
        del tensors["bias"]
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.device != input.device:
            raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")
        if name == "target" and tensor.dtype != torch.int64:
            raise TypeError(f"target must be torch.int64, got {tensor.dtype}")
        if name != "target" and not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {tensor.dtype}")
    if weight.dim() != 2 or len(weight) == 0:
        raise ValueError(f"weight must have shape (V, D), V > 0, got {tuple(weight.shape)}")
    classes, features = weight.shape
    if input.dim() == 0 or input.shape[-1] != features:
        raise ValueError(f"input must have shape (..., {features}), got {tuple(input.shape)}")
    shapes = {"target": input.shape[:-1], "bias": (classes,)}
    for name, shape in shapes.items():
        if name in tensors and tensors[name].shape != shape:
            got = tuple(tensors[name].shape)
            raise ValueError(f"{name} must have shape {tuple(shape)}, got {got}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    for name, value, kinds, least, most in (
        ("ignore_index", ignore_index, INTS, -math.inf, math.inf),
        ("label_smoothing", label_smoothing, (int, float), 0, 1),
        ("chunk_size", 1 if chunk_size is None else chunk_size, INTS, 1, math.inf),
    ):
        if isinstance(value, bool) or not isinstance(value, kinds):
            kind = "an int" if kinds is INTS else "a number"
            raise TypeError(f"{name} must be {kind}, got {type(value).__name__}")
        if not least <= value <= most:
            bounds = f"{least} or more" if most == math.inf else f"from {least} to {most}"
            raise ValueError(f"{name} must be {bounds}, got {value}")
