r"""Cross-entropy of a linear layer whose logits never exist whole.

    z = x Wᵀ + b                                  (N, V), made for a few rows at a time
    loss of a row = Σ q · (log Σ exp(z) - z)      q: 1 at the target, or smoothed, or given
    dz = share · (Σ q · softmax(z) - q)           share: dL/d(loss of the row), 0 where ignored
    dx = dz · W        dW = dzᵀ · x        db = sum of dz over N

Under a sum or a mean all rows have one share. So the gradients are made in forward, while the
logits of the rows are there, and backward only multiplies them by a number.

Source: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models (what logits cost),
https://arxiv.org/abs/2411.09009; Hsu et al., Liger Kernel (chunks, gradients in forward),
https://arxiv.org/abs/2410.10989

Needs torch 2.10 or later. Private: `_are_functorch_transforms_active`, `_set_fwd_grad_enabled`.

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
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

NAMESPACE, NAME = "extending_pytorch", "linear_cross_entropy"
SCHEMA = (
    "(Tensor input, Tensor linear_weight, Tensor? linear_bias, Tensor target, Tensor? weight,"
    " Tensor? grad, bool reduce, bool[3] wanted, SymInt chunk_size, SymInt ignore_index,"
    " float label_smoothing, float z_loss, float softcap) -> (Tensor, Tensor, Tensor, Tensor)"
)
INTS = (int, torch.SymInt)


def _op():
    return getattr(getattr(torch.ops, NAMESPACE), NAME)


def _wide(tensor):
    return torch.promote_types(tensor.dtype, torch.float32)


def _where(wanted, items):
    return [item if want else None for want, item in zip(wanted, items, strict=True)]


# The operator: losses or their sum, and the gradients that are wanted, of grad · losses.


def _run(sweep, input, linear_weight, bias, target, weight, grad, reduce, wanted, *options):
    """`sweep` goes through the chunks; not for fake tensors, of which `len` is no symbol."""
    shapes, wide = (input.shape, linear_weight.shape, linear_weight.shape[:1]), _wide(input)
    losses = input.new_zeros(input.shape[:1], dtype=wide)
    shapes = [s if want else 0 for s, want in zip(shapes, wanted, strict=True)]  # none returns None
    grads = [input.new_zeros(shape, dtype=wide) for shape in shapes]
    share = torch.ones_like(losses) if grad is None else grad.expand(losses.shape)
    layer = input, linear_weight, bias, target, weight
    sweep(losses, share, _where(wanted, grads), *layer, *options)
    if input.dtype != torch.float16:  # whose range is too small for a sum over all rows
        grads = [g.to(input.dtype) for g in grads]
    return losses.sum() if reduce else losses, *grads


def _sweep(
    losses, share, grads, input, linear_weight, bias, target, weight, chunk_size, ignore_index,
    smoothing, z_loss, softcap,
):  # fmt: skip
    """Fill `losses`, and `grads` where they are not None; `share` is that of each row in dL."""
    classes, indices = len(linear_weight), not target.is_floating_point()
    if indices and target.device.type == "cpu":  # elsewhere it would mean waiting
        wrong = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
        if len(wrong):
            known = f"from 0 to {classes - 1}, or ignore_index {ignore_index}"
            raise ValueError(f"target must be {known}, got {wrong[0].item()}")
    grad_x, grad_w, grad_b = grads
    weight = share.new_ones(1) if weight is None else weight.to(share.dtype)
    rest = (smoothing / classes * weight).expand(classes)  # of q, for every row
    for start in range(0, len(input), chunk_size):
        z = dz = q = slope = None  # the logits of the last chunk go before those of the next
        rows = slice(start, start + chunk_size)
        z = F.linear(input[rows], linear_weight, bias)
        z = z.to(_wide(z))
        if softcap:
            z = z.div_(softcap).tanh_()
            slope = z.square().neg_().add_(1)
            z *= softcap
        top = z.amax(1, keepdim=True)
        z -= top
        of_row = share[rows, None]
        if indices:
            ignored = target[rows, None] == ignore_index
            at = target[rows, None].masked_fill(ignored, 0)
            of_row = of_row.masked_fill(ignored, 0)
            at_target = (1 - smoothing) * weight.expand(classes)[at]
            of_all, expected = at_target + rest.sum(), at_target * z.gather(1, at)
            if smoothing:
                expected += (z @ rest)[:, None]
        else:
            q = (target[rows].to(z.dtype) * (1 - smoothing)).mul_(weight).add_(rest)
            of_all, expected = q.sum(1, keepdim=True), (q[:, None] @ z[:, :, None])[:, 0]
        total = z.exp_().sum(1, keepdim=True)
        loss = of_all * total.log() - expected
        if z_loss:
            of_all = of_all + 2 * z_loss * (log_sum := total.log() + top)
            loss += z_loss * log_sum.square()
        losses[rows] = (loss.masked_fill(ignored, 0) if indices else loss).squeeze(1)
        if grad_x is grad_w is grad_b is None:
            continue
        dz = z.mul_(of_row * of_all / total)
        if not indices:
            dz.addcmul_(of_row, q, value=-1)
        else:
            dz.scatter_add_(1, at, -of_row * at_target)
            if smoothing:
                dz.addr_(of_row[:, 0], rest, alpha=-1)  # no tensor of their product
        if softcap:
            dz *= slope
        if grad_x is not None:
            grad_x[rows] = dz.to(linear_weight.dtype) @ linear_weight
        if grad_w is not None and input.dtype == torch.bfloat16:
            grad_w += dz.to(input.dtype).t() @ input[rows]
        elif grad_w is not None:  # in float16 the sum over a chunk could overflow
            grad_w.addmm_(dz.t(), input[rows].to(dz.dtype))
        if grad_b is not None:
            grad_b += dz.sum(0)


# Derivatives


def _plain(x, w, b, target, weight, options):
    """The losses in PyTorch's operations, all logits at once."""
    ignore_index, smoothing, z_loss, softcap = options
    wide, indices = _wide(x), not target.is_floating_point()
    z = F.linear(*(t if t is None else t.to(wide) for t in (x, w, b)))
    if softcap:
        z = softcap * torch.tanh(z / softcap)
    weight = weight if weight is None else weight.to(wide)
    options = {"reduction": "none", "label_smoothing": smoothing}
    if not indices:
        losses = F.cross_entropy(z, target.to(wide), weight, **options)
    else:
        losses = F.cross_entropy(z, target, weight, ignore_index=ignore_index, **options)
    if z_loss:
        square = z_loss * torch.logsumexp(z, 1).square()
        losses = losses + (square.masked_fill(target == ignore_index, 0) if indices else square)
    return losses


def _second(grad, layer, along, chunk_size, *options):
    """How losses, and gradients of grad · losses, change along (dx, dw, db); each may be None.

    Second derivatives are symmetric, so these are the gradients of the product of the gradients
    and that direction. Of PyTorch's own operations, so that there are derivatives of every order.
    """
    x, w, b, target, weight = layer
    wide, dtype = _wide(x), x.dtype
    x, *others = (t.to(wide) for t in (x, w, w.new_zeros(w.shape[:1]) if b is None else b))
    dx, *along = (
        torch.zeros_like(t) if d is None else d.to(wide)
        for t, d in zip((x, *others), along, strict=True)
    )
    share = (x.new_ones(()) if grad is None else grad).expand(target.shape[:1])
    slopes, grads, sums = [], [], [torch.zeros_like(t) for t in others]
    for start in range(0, max(target.shape[0], 1), chunk_size):
        rows = slice(start, start + chunk_size)

        def gradients(share, *tensors, rows=rows):
            losses = partial(_plain, target=target[rows], weight=weight, options=options)
            return torch.func.vjp(losses, *tensors)[1](share)

        _, pull_back = torch.func.vjp(gradients, share[rows], x[rows], *others)
        slope, grad, *more = pull_back((dx[rows], *along))
        slopes, grads = [*slopes, slope], [*grads, grad]
        sums = [a + b for a, b in zip(sums, more, strict=True)]
    return torch.cat(slopes), *(g.to(dtype) for g in (torch.cat(grads), *sums))


class LinearCrossEntropy(torch.autograd.Function):
    """The operator, differentiable in all that it returns: loss, and gradients of grad · losses.

    These are made in forward, and have a history, since they are outputs. So backward may multiply
    them, or call this again for another `grad`, and is differentiable either way.
    """

    @staticmethod
    def forward(*args):
        return _op()(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *layer, grad, ctx.reduce, ctx.wanted = inputs[:8]
        ctx.options = inputs[8:]
        ctx.save_for_backward(*layer, grad, *_where(ctx.wanted, output[1:]))
        ctx.save_for_forward(*layer, grad)
        pairs = zip(output[1:], ctx.wanted, strict=True)
        ctx.mark_non_differentiable(*[g for g, want in pairs if not want])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad_loss, *along):
        # Read once, as `checkpoint` wants it.
        layer, grad, *made = (saved := ctx.saved_tensors)[:5], *saved[5:]
        grads, needed, slopes = [None] * 3, ctx.needs_input_grad[:3], None
        if grad_loss is not None:
            if not ctx.reduce or any(n and g is None for n, g in zip(needed, made, strict=True)):
                again = *layer, grad_loss, False, needed, *ctx.options
                _, *grads = LinearCrossEntropy.apply(*again)
            else:
                grads = [g if g is None else g * grad_loss for g in made]
        if any(d is not None for d in along):
            slopes, *more = _second(grad, layer, along, *ctx.options)
            slopes = None if grad is None else slopes if grad.dim() else slopes.sum()
            grads = [m if g is None else g + m for g, m in zip(grads, more, strict=True)]
        return *_where(needed, grads), None, None, slopes, *[None] * 7

    @staticmethod
    def jvp(ctx, *tangents):
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            *layer, grad = (t if t is None else unpack_dual(t).primal for t in ctx.saved_tensors)
            slopes, *more = _second(grad, layer, tangents[:3], *ctx.options)
            if tangents[5] is not None:
                again = *layer, tangents[5], False, (True,) * 3, *ctx.options
                _, *of_grad = LinearCrossEntropy.apply(*again)
                more = [m + g for m, g in zip(more, of_grad, strict=True)]
            return slopes.sum() if ctx.reduce else slopes, *_where(ctx.wanted, more)

    @staticmethod
    def vmap(info, in_dims, *args):
        # One after the other, since the logits of a batch of chunks would be large.
        def sample(index, a, dim):
            if dim is None or not isinstance(a, torch.Tensor):
                return a
            return a.select(dim, index) if info.batch_size else a.new_zeros(a.sum(dim).shape)

        results = [
            LinearCrossEntropy.apply(*map(partial(sample, index), args, in_dims))
            for index in range(max(info.batch_size, 1))
        ]
        stacked = tuple(torch.stack(r)[: info.batch_size] for r in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)


# Two copies of this file in one process share the operator of the first one.
if not hasattr(getattr(torch.ops, NAMESPACE), NAME):
    qualified = f"{NAMESPACE}::{NAME}"
    torch.library.define(qualified, SCHEMA)
    torch.library.impl(qualified, "default", partial(_run, _sweep))
    torch.library.register_fake(qualified, partial(_run, lambda *args: None))
    torch.library.register_autograd(
        qualified, LinearCrossEntropy.backward, setup_context=LinearCrossEntropy.setup_context
    )


def linear_cross_entropy(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    weight=None,
    reduction="mean",
    ignore_index=-100,
    label_smoothing=0.0,
    z_loss=0.0,
    softcap=0.0,
    chunk_size=None,
):
    """`F.cross_entropy(F.linear(input, linear_weight, linear_bias), target, weight)`, without the
    logits in memory. The names are those of `F.linear_cross_entropy`.

    input: (..., D); linear_weight: (V, D); linear_bias: (V) or None; of one floating-point dtype.
    target: (...), int64: for each row of D features a class from 0 to V - 1, or `ignore_index`; or
        (..., V), floating-point: the probabilities of the classes. It gets no gradient.
    weight: (V) or None: a factor for each class. It gets no gradient.
    reduction: "mean", "sum", or "none": one loss for each row, in the shape (...). The mean counts
        rows by the weight of their class, as PyTorch's own; nan with a gradient of 0 if all are
        ignored.
    label_smoothing: from 0 to 1, the share of the uniform distribution in what is expected.
    z_loss: this times the square of log Σ exp(z) is added to the loss of each row (of PaLM).
    softcap: if not 0, the logits are softcap · tanh(z / softcap) (of Gemma 2).
    chunk_size: how many rows have logits at a time; by default 512, or D / 4 if that is more.
        Fewer take less memory; with very few, adding to the gradient of the weight takes the time.
    Returns the loss, in the dtype of `input`; under autocast in float32, as PyTorch's own.

    Softmax, losses, and sums over chunks are in float32 at least. Memory beyond the arguments: the
    logits of a chunk, as much again for each of `softcap` and probabilities, some 14 times those
    for a second derivative, and twice the gradients that are required, as backward returns
    multiples of what forward made; for "none", it computes the logits again.

    Derivatives of every order, in backward and forward mode, alone and under `torch.func`; vmap
    takes one sample after the other. Under `torch.compile`, static and dynamic shapes, and
    `torch.export` it is one operator, with one derivative, in backward mode; a transform of
    `torch.func` that is compiled gets all logits at once.

    Raises TypeError or ValueError for arguments that do not fit. Targets are looked up on the CPU
    only; one out of range on a CUDA device fails an assertion in the kernel of `gather`.
    """
    _check_tensors(input, linear_weight, target, linear_bias=linear_bias, weight=weight)
    _check_options(reduction, ignore_index, chunk_size, label_smoothing, z_loss, softcap)
    layer, dtype = (input, linear_weight, linear_bias), input.dtype
    if not input.is_meta and torch.is_autocast_enabled(input.device.type):
        # Cast out here, where autograd records it, so that every gradient returns in its own dtype.
        to = torch.get_autocast_dtype(input.device.type)
        layer = [t if t is None or t.dtype == torch.float64 else t.to(to) for t in layer]
        dtype = _wide(layer[0])
    x, w, b = layer
    for name, t in (("linear_weight", w), ("linear_bias", x if b is None else b)):
        if t.dtype != x.dtype:
            raise TypeError(f"{name} is {t.dtype}, but input is {x.dtype}")
    shape, reduce, indices = input.shape[:-1], reduction != "none", not target.is_floating_point()
    rows = math.prod(shape)  # spelled out because reshape(-1, 0) would be ambiguous
    x, target = x.reshape(rows, w.shape[1]), target.reshape(rows, *target.shape[len(shape) :])
    grad = reduce and torch.is_grad_enabled()
    wanted = [grad and t is not None and t.requires_grad for t in (x, w, b)]
    options = ignore_index, float(label_smoothing), float(z_loss), float(softcap)
    if torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        loss = _plain(x, w, b, target, weight, options)
        loss = loss.sum() if reduce else loss
    else:
        size = max(512, w.shape[1] // 4) if chunk_size is None else chunk_size
        # Of a Function a compiler takes no jvp, and an exporter no backward.
        call = _op() if torch.compiler.is_compiling() else LinearCrossEntropy.apply
        loss, *_ = call(x, w, b, target, weight, None, reduce, wanted, size, *options)
    if reduction == "mean":
        count = target != ignore_index if indices else target.new_ones(rows)
        if indices and weight is not None:
            count = weight.to(loss.dtype)[target.masked_fill(~count, 0)] * count
        count = count.sum()
        loss = torch.where(count > 0, loss / torch.where(count > 0, count, 1), math.nan)
    return (loss if reduce else loss.reshape(shape)).to(dtype)


def _check_tensors(input, linear_weight, target, **others):
    others = {name: tensor for name, tensor in others.items() if tensor is not None}
    tensors = {"input": input, "linear_weight": linear_weight, "target": target, **others}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.layout is not torch.strided:
            raise TypeError(f"{name} must be dense (torch.strided), got {tensor.layout}")
        if tensor.device != input.device:
            raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")
        if not tensor.is_floating_point() and (name != "target" or tensor.dtype != torch.int64):
            kind = "torch.int64 or floating-point" if name == "target" else "floating-point"
            raise TypeError(f"{name} must be {kind}, got {tensor.dtype}")
        if name in ("target", "weight") and tensor.requires_grad:
            raise ValueError(f"{name} must not require a gradient, as it would get none")
    got = tuple(linear_weight.shape)
    if len(got) != 2 or got[0] == 0:
        raise ValueError(f"linear_weight must have shape (V, D), V > 0, got {got}")
    classes, features = got
    if input.dim() == 0 or input.shape[-1] != features:
        raise ValueError(f"input must have shape (..., {features}), got {tuple(input.shape)}")
    shapes = dict.fromkeys(others, (classes,))
    shapes["target"] = (*input.shape[:-1], *[classes] * target.is_floating_point())
    for name, shape in shapes.items():
        if (got := tuple(tensors[name].shape)) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {got}")


def _check_options(reduction, ignore_index, chunk_size, label_smoothing, z_loss, softcap):
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    for name, value, kinds, least, most in (
        ("ignore_index", ignore_index, INTS, -math.inf, math.inf),
        ("chunk_size", 1 if chunk_size is None else chunk_size, INTS, 1, math.inf),
        ("label_smoothing", label_smoothing, (int, float), 0, 1),
        ("z_loss", z_loss, (int, float), 0, math.inf),
        ("softcap", softcap, (int, float), 0, math.inf),
    ):
        if isinstance(value, bool) or not isinstance(value, kinds):
            kind = "an int" if kinds is INTS else "a number"
            raise TypeError(f"{name} must be {kind}, got {type(value).__name__}")
        if value == math.inf:
            raise ValueError(f"{name} must be finite, got {value}")
        if not least <= value <= most:
            bounds = f"{least} or more" if most == math.inf else f"from {least} to {most}"
            raise ValueError(f"{name} must be {bounds}, got {value}")


class LinearCrossEntropyLoss(torch.nn.Module):
    """`linear_cross_entropy` of a linear layer of its own, as `torch.nn.LinearCrossEntropyLoss`.

    Called with input (..., in_features) and target. Parameters: `linear.weight`, of shape
    (num_classes, in_features), and `linear.bias`, if wanted. options: of `linear_cross_entropy`.
    """

    def __init__(self, in_features, num_classes, bias=False, *, weight=None, **options):
        super().__init__()
        like = {key: options.pop(key, None) for key in ("device", "dtype")}
        self.linear, self.options = torch.nn.Linear(in_features, num_classes, bias, **like), options
        self.register_buffer("weight", weight)

    def forward(self, input, target):
        layer = {"linear_bias": self.linear.bias, "weight": self.weight}
        return linear_cross_entropy(input, self.linear.weight, target, **layer, **self.options)
