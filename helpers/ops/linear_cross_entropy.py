r"""Cross-entropy of a linear layer whose logits never exist whole.

    z = x Wᵀ + b                             (N, V), made for a few rows at a time
    loss of a row = Σ q · (log Σ exp(z) - z) q: 1 at the target, or smoothed, or given
    dz = share · (Σ q · softmax(z) - q)      share: dL/d(loss of the row); 0: ignored
    dx = dz · W      dW = dzᵀ · x      db = sum of dz over N

Under a sum or a mean, the share of each row is known up to one factor for all rows. So
the gradients are made in forward, while the logits of the rows are there, and backward
only multiplies them by that factor.

Forward and backward of the mean, 4,096 rows of 512 features, 32,768 classes, two
threads on two cores of an AMD EPYC, the best of five rounds of
`python -m tools.benchmark linear_cross_entropy`; the peak is beyond the arguments, and
72 MiB of it, 36 in bfloat16, are the two gradients:

                                      float32           bfloat16
                                      MiB    seconds    MiB    seconds
F.cross_entropy(F.linear(...))      1,536       3.06    768       1.47
F.linear_cross_entropy(options=...)    80       3.46    304       7.28
linear_cross_entropy                  144       2.59    264       1.64

In bfloat16, the logits of a chunk are widened and their gradients narrowed, which the
plain one does not do. On an H100, with 4,096 x 2,048 x 131,072, this one needs 2,112 MiB
in float32, where the plain one needs 6,144, and 1.07 times its time; in bfloat16, 1,952
where that needs 3,072, and 2.6 times its time.

Source: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models (what logits
cost), https://arxiv.org/abs/2411.09009; Hsu et al., Liger Kernel (chunks, gradients in
forward), https://arxiv.org/abs/2410.10989

Needs torch 2.10 or later. Private: `_are_functorch_transforms_active`,
`_set_fwd_grad_enabled`.

>>> import torch
>>> x, weight = torch.zeros(6, 3), torch.ones(4, 3, requires_grad=True)
>>> target = torch.tensor([0, 1, 2, 3, 0, -100])
>>> loss = linear_cross_entropy(x, weight, target, chunk_size=2)
>>> loss.backward()
>>> round(loss.item(), 4), weight.grad.shape
(1.3863, torch.Size([4, 3]))
"""

import math
from functools import partial
from numbers import Real
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

NAMESPACE, NAME = "extending_pytorch", "linear_cross_entropy"
SCHEMA = (
    "(Tensor input, Tensor linear_weight, Tensor? linear_bias, Tensor target,"
    " Tensor? weight, Tensor? share, bool reduce, bool[3] wanted, bool predict,"
    " SymInt chunk_size, SymInt ignore_index, float label_smoothing, float z_loss,"
    " float softcap) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


class Arguments(NamedTuple):
    """What the operator is called with, in the order of its schema."""

    input: torch.Tensor  # N x D
    linear_weight: torch.Tensor  # V x D
    linear_bias: torch.Tensor | None  # V
    target: torch.Tensor  # N: classes, or N x V: their probabilities
    weight: torch.Tensor | None  # V: a factor for each class
    share: torch.Tensor | None  # N, or one number: a factor for each loss, 1 if None
    reduce: bool  # is the sum of the losses wanted, or each of them?
    wanted: list  # are gradients wanted, of input, linear_weight, linear_bias?
    predict: bool  # is the class of the largest logit wanted?
    chunk_size: int  # rows that have logits at a time
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float


TENSORS = Arguments._fields[:6]


def _operator(*args):
    """(share · losses or their sum, the three gradients of that sum, the classes).

    What is not wanted is empty.
    """
    return getattr(getattr(torch.ops, NAMESPACE), NAME)(*args)


def _wide(tensor):
    """The dtype of sums: float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _where(wanted, items):
    return [item if want else None for want, item in zip(wanted, items, strict=True)]


# The operator


def _run(sweep, *args):
    """`sweep` goes through the chunks, which are not there for fake tensors."""
    args = Arguments(*args)
    x, w = args.input, args.linear_weight
    losses = x.new_zeros(x.shape[:1], dtype=_wide(x))
    shapes = zip((x.shape, w.shape, w.shape[:1]), args.wanted, strict=True)
    grads = [
        x.new_zeros(shape if want else 0, dtype=_wide(x)) for shape, want in shapes
    ]
    predicted = x.new_zeros(x.shape[:1] if args.predict else 0, dtype=torch.int64)
    share = torch.ones_like(losses)
    if args.share is not None:
        share = args.share.expand(losses.shape)
    sweep(args, share, losses, _where(args.wanted, grads), predicted)
    if x.dtype != torch.float16:  # whose range is too small for a sum over all rows
        grads = [g.to(x.dtype) for g in grads]
    if args.share is not None:
        losses = losses * share
    return losses.sum() if args.reduce else losses, *grads, predicted


def _sweep(args, share, losses, grads, predicted):
    """Fill `losses`, `predicted` if wanted, and those of `grads` that are not None."""
    x, w = args.input, args.linear_weight
    classes, smoothing = len(w), args.label_smoothing
    has_indices = not args.target.is_floating_point()
    if has_indices and x.device.type == "cpu":  # elsewhere it would mean waiting
        _check_range(args.target, args.ignore_index, classes)
    weight = losses.new_ones(1) if args.weight is None else args.weight.to(losses.dtype)
    # V, and what smoothing expects of each class, V
    weight, uniform = (
        factor.expand(classes) for factor in (weight, smoothing / classes * weight)
    )
    # Memory is slow to come where each chunk asks for it anew.
    chunk = min(args.chunk_size, len(x))
    buffer = x.new_empty((chunk, classes), dtype=losses.dtype)
    narrow = buffer if x.dtype == buffer.dtype else x.new_empty((chunk, classes))
    for start in range(0, len(x), args.chunk_size):
        rows = slice(start, start + args.chunk_size)
        size = len(x[rows])
        slope = q = None  # the last chunk's go before the next one's are made
        # z is chunk x V, like q; all that follows but these is chunk x 1
        logits, z = narrow[:size], buffer[:size]
        if args.linear_bias is None:
            torch.mm(x[rows], w.t(), out=logits)
        else:
            torch.addmm(args.linear_bias, x[rows], w.t(), out=logits)
        if narrow is not buffer:
            z.copy_(logits)
        if args.predict:
            predicted[rows] = z.argmax(1)
        if args.softcap:
            z.div_(args.softcap).tanh_()
            slope = z.square().neg_().add_(1)  # chunk x V
            z *= args.softcap
        top = z.amax(1, keepdim=True)
        z -= top
        if has_indices:
            target = args.target[rows, None]
            ignored = target == args.ignore_index
            target = target.masked_fill(ignored, 0)
            q_of_target = (1 - smoothing) * weight[target]
            q_sum = q_of_target + uniform.sum()
            q_dot_z = q_of_target * z.gather(1, target)
            if smoothing:
                q_dot_z += (z @ uniform)[:, None]
        else:
            q = args.target[rows].to(z.dtype) * (1 - smoothing)
            q.mul_(weight).add_(uniform)
            ignored = torch.zeros_like(top, dtype=torch.bool)
            q_sum = q.sum(1, keepdim=True)
            q_dot_z = (q[:, None] @ z[:, :, None])[:, 0]  # no tensor of their product
        total = z.exp_().sum(1, keepdim=True)
        log_total = total.log()
        loss = q_sum * log_total - q_dot_z
        if args.z_loss:
            log_sum = log_total + top
            loss += args.z_loss * log_sum.square()
            q_sum = q_sum + 2 * args.z_loss * log_sum
        losses[rows] = loss.masked_fill(ignored, 0)[:, 0]
        if not any(args.wanted):
            continue
        of_row = share[rows, None].masked_fill(ignored, 0)
        dz = z.mul_(of_row * q_sum / total)
        if not has_indices:
            dz.addcmul_(of_row, q, value=-1)
        else:
            dz.scatter_add_(1, target, -of_row * q_of_target)
            if smoothing:
                dz.addr_(of_row[:, 0], uniform, alpha=-1)  # no tensor of their product
        if args.softcap:
            dz *= slope
        _add_products(x[rows], w, dz, logits, rows, grads)


def _add_products(x, w, dz, narrow, rows, grads):
    """dx, dW and db of a chunk; narrow: memory for dz in the dtype of x."""
    grad_x, grad_w, grad_b = grads
    if grad_b is not None:
        grad_b += dz.sum(0)
    if grad_w is not None and x.dtype == torch.float16:  # a chunk's sum could overflow
        grad_w.addmm_(dz.t(), x.to(dz.dtype))
    narrow = narrow.copy_(dz) if narrow.dtype != dz.dtype else dz
    if grad_w is not None and x.dtype == torch.bfloat16:
        grad_w += narrow.t() @ x
    elif grad_w is not None and x.dtype != torch.float16:
        grad_w.addmm_(narrow.t(), x)
    if grad_x is not None:
        grad_x[rows] = narrow @ w


def _check_range(target, ignore_index, classes):
    is_class = (0 <= target) & (target < classes)
    wrong = target[(target != ignore_index) & ~is_class]
    if len(wrong):
        known = f"from 0 to {classes - 1}, or ignore_index {ignore_index}"
        raise ValueError(f"target must be {known}, got {wrong[0].item()}")


# Its derivatives


def _plain_logits(x, w, b, softcap):
    """All logits at once, in PyTorch's operations: N x V."""
    z = F.linear(*(t if t is None else t.to(_wide(x)) for t in (x, w, b)))
    return softcap * torch.tanh(z / softcap) if softcap else z


def _plain_losses(x, w, b, args):
    """The losses in PyTorch's operations; all but x, w and b as in `args`: N."""
    z, target = _plain_logits(x, w, b, args.softcap), args.target
    has_indices = not target.is_floating_point()
    losses = F.cross_entropy(
        z,
        target if has_indices else target.to(z.dtype),
        args.weight if args.weight is None else args.weight.to(z.dtype),
        reduction="none",
        label_smoothing=args.label_smoothing,
        **({"ignore_index": args.ignore_index} if has_indices else {}),
    )
    if args.z_loss:
        square = args.z_loss * torch.logsumexp(z, 1).square()
        if has_indices:
            square = square.masked_fill(target == args.ignore_index, 0)
        losses = losses + square
    return losses


def _second(args, along):
    """How losses and gradients of share · losses change along (dx, dw, db), or None.

    Second derivatives are symmetric, so these are the gradients of the product of the
    gradients and that direction. They are made of PyTorch's own operations, so that
    there are derivatives of every order.
    """
    x, w, b = args.input, args.linear_weight, args.linear_bias
    dtype = x.dtype
    b = w.new_zeros(w.shape[:1]) if b is None else b
    x, *others = (t.to(_wide(x)) for t in (x, w, b))
    dx, *along = (
        torch.zeros_like(t) if d is None else d.to(t.dtype)
        for t, d in zip((x, *others), along, strict=True)
    )
    share = x.new_ones(()) if args.share is None else args.share
    share = share.expand(x.shape[:1])
    slopes, grads, sums = [], [], [torch.zeros_like(t) for t in others]
    for start in range(0, max(x.shape[0], 1), args.chunk_size):
        rows = slice(start, start + args.chunk_size)
        losses = partial(_plain_losses, args=args._replace(target=args.target[rows]))

        def gradients(share, *tensors, losses=losses):
            return torch.func.vjp(losses, *tensors)[1](share)

        _, pull_back = torch.func.vjp(gradients, share[rows], x[rows], *others)
        slope, grad, *more = pull_back((dx[rows], *along))
        slopes.append(slope)
        grads.append(grad)
        sums = [a + b for a, b in zip(sums, more, strict=True)]
    return torch.cat(slopes), *(g.to(dtype) for g in (torch.cat(grads), *sums))


class LinearCrossEntropy(torch.autograd.Function):
    """The operator, differentiable in all floating-point numbers that it returns.

    The gradients are made in forward, and have a history, since they are outputs. So
    backward may multiply them, or call this again for another `share`, and is
    differentiable either way.
    """

    @staticmethod
    def forward(*args):
        return _operator(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        args = Arguments(*inputs)
        _, *grads, predicted = output
        tensors = [getattr(args, name) for name in TENSORS]
        ctx.others = args._replace(**dict.fromkeys(TENSORS))
        ctx.save_for_backward(*tensors, *_where(args.wanted, grads))
        ctx.save_for_forward(*tensors)
        empty = [g for g, want in zip(grads, args.wanted, strict=True) if not want]
        ctx.mark_non_differentiable(predicted, *empty)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad_output, *others):
        saved = ctx.saved_tensors  # once: under `checkpoint`, each may be unpacked once
        args = ctx.others._replace(**dict(zip(TENSORS, saved, strict=False)))
        made, along = saved[len(TENSORS) :], others[:3]
        needed = Arguments(*ctx.needs_input_grad)
        needs = [needed.input, needed.linear_weight, needed.linear_bias]
        grads, of_share = [None] * 3, None
        if grad_output is not None:
            is_missing = any(n and g is None for n, g in zip(needs, made, strict=True))
            if args.reduce and not is_missing:
                grads = [g if g is None else g * grad_output.expand_as(g) for g in made]
            else:
                share = grad_output
                if args.share is not None:
                    share = grad_output * args.share
                again = args._replace(share=share, wanted=needs)
                _, *grads, _ = _apply(again)
            if needed.share:
                losses, *_ = _apply(args._replace(share=None, wanted=[False] * 3))
                of_share = losses * grad_output
        if any(d is not None for d in along):
            slopes, *more = _second(args, along)
            of_share = slopes if of_share is None else of_share + slopes
            grads = [
                m if g is None else g + m for g, m in zip(grads, more, strict=True)
            ]
        if needed.share:
            of_share = of_share if args.share.dim() else of_share.sum()
        of_x, of_w, of_b = _where(needs, grads)
        nothing = Arguments(*[None] * len(Arguments._fields))
        return tuple(
            nothing._replace(
                input=of_x,
                linear_weight=of_w,
                linear_bias=of_b,
                share=of_share if needed.share else None,
            )
        )

    @staticmethod
    def jvp(ctx, *tangents):
        along = Arguments(*tangents)
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            primals = [
                t if t is None else unpack_dual(t).primal for t in ctx.saved_tensors
            ]
            args = ctx.others._replace(**dict(zip(TENSORS, primals, strict=True)))
            directions = along.input, along.linear_weight, along.linear_bias
            slopes, *grads = _second(args, directions)
            if args.share is not None:
                slopes = slopes * args.share
            if along.share is not None:
                again = args._replace(share=along.share, wanted=[True] * 3)
                of_losses, *of_grads, _ = _apply(again)
                slopes = slopes + of_losses
                grads = [g + more for g, more in zip(grads, of_grads, strict=True)]
            slopes = slopes.sum() if args.reduce else slopes
            return slopes, *_where(args.wanted, grads), None

    @staticmethod
    def vmap(info, in_dims, *args):
        # One after the other, since the logits of a batch of chunks would be large.
        def sample(index, value, dim):
            if not isinstance(value, torch.Tensor) or dim is None:
                return value
            # Of no sample, the sum: zeros, whose results have the shapes.
            return value.select(dim, index) if info.batch_size else value.sum(dim)

        results = [
            LinearCrossEntropy.apply(*map(partial(sample, index), args, in_dims))
            for index in range(max(info.batch_size, 1))
        ]
        of_each = zip(*results, strict=True)
        stacked = tuple(torch.stack(of)[: info.batch_size] for of in of_each)
        return stacked, (0,) * len(stacked)


def _apply(args):
    """The losses of the rows, each times its share, and the gradients."""
    return LinearCrossEntropy.apply(*args._replace(reduce=False, predict=False))


def _define():
    """Two copies of this file in one process share the operator of the first one."""
    if hasattr(getattr(torch.ops, NAMESPACE), NAME):
        return
    name = f"{NAMESPACE}::{NAME}"
    torch.library.define(name, SCHEMA)
    torch.library.impl(name, "default", partial(_run, _sweep))
    torch.library.register_fake(name, partial(_run, lambda *args: None))
    torch.library.register_autograd(
        name,
        LinearCrossEntropy.backward,
        setup_context=LinearCrossEntropy.setup_context,
    )


_define()


# The function to call, and its layer


def linear_cross_entropy(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    weight=None,
    row_weight=None,
    reduction="mean",
    ignore_index=-100,
    label_smoothing=0.0,
    z_loss=0.0,
    softcap=0.0,
    chunk_size=None,
    return_predicted=False,
):
    """`F.cross_entropy(F.linear(input, linear_weight, linear_bias), target, weight)`.

    The logits never exist whole. What `F.linear_cross_entropy` has, too, is named as there.

    input: (..., D); linear_weight: (V, D); linear_bias: (V) or None; of one
        floating-point dtype.
    target: (...), int64: for each row of D features a class from 0 to V - 1, or
        `ignore_index`; or (..., V), floating-point: the probabilities of the classes.
        It gets no gradient.
    weight: (V) or None: a factor for each class. It gets no gradient.
    row_weight: (...) or None: a factor for the loss of each row, floating-point.
    reduction: "mean", "sum", or "none": one loss for each row, in the shape (...). The
        mean counts rows by the weight of their class, as PyTorch's own, and by their
        own weight. It is nan with a gradient of 0 if all are ignored. A mean of the
        means of parts is not the mean of all rows, if some are ignored: to accumulate
        gradients, take sums, and divide by the count of all.
    label_smoothing: from 0 to 1, the share of the uniform distribution in what is
        expected.
    z_loss: this times the square of log Σ exp(z) is added to the loss of each row, as
        in PaLM.
    softcap: if not 0, the logits are softcap · tanh(z / softcap), as in Gemma 2.
    chunk_size: how many rows have logits at a time; by default 512, or D / 4 if that is
        more. Fewer take less memory. With very few, adding to the gradient of the
        weight takes the time.
    return_predicted: if True, the result is a pair, (loss, predicted): (...), int64,
        the class of each row's largest logit, for the accuracy.
    Returns the loss, in the dtype of `input`. Under autocast, all but float64 is cast
        to its dtype, and the loss is in float32 at least, as PyTorch's own.

    Softmax, losses, and sums over chunks are in float32 at least. Memory beyond the
    arguments: the logits of a chunk, as much again for each of `softcap` and
    probabilities, half as much again in half precision, some 14 times those for a
    second derivative, and twice the gradients that are required, as backward returns
    multiples of what forward made. For "none", backward computes the logits again.

    Derivatives of every order, in backward and forward mode, alone and under
    `torch.func`; vmap takes one sample after the other. The backward of a gradient, and
    forward mode, raise RuntimeError while hooks on saved tensors are on, such as
    `save_on_cpu`, since torch.func computes them. Under `torch.compile` and
    `torch.export` it is one operator, with one derivative, in backward mode; a
    transform of `torch.func` that is compiled gets all logits at once.

    Raises TypeError or ValueError for arguments that do not fit. Targets are looked up
    on the CPU only; one out of range on a CUDA device fails an assertion in a kernel.
    """
    _check_tensors(
        input,
        linear_weight,
        target,
        linear_bias=linear_bias,
        weight=weight,
        row_weight=row_weight,
    )
    _check_options(
        reduction, ignore_index, chunk_size, label_smoothing, z_loss, softcap
    )
    x, w, b, dtype = _cast(input, linear_weight, linear_bias)
    shape, reduce = input.shape[:-1], reduction != "none"
    rows = math.prod(shape)  # spelled out: reshape(-1, 0) would be ambiguous
    x = x.reshape(rows, w.shape[1])
    target = target.reshape(rows, *target.shape[len(shape) :])
    share = row_weight
    if share is not None:
        share = share.reshape(rows).to(_wide(x))
    grad = reduce and torch.is_grad_enabled()
    args = Arguments(
        input=x,
        linear_weight=w,
        linear_bias=b,
        target=target,
        weight=weight,
        share=share,
        reduce=reduce,
        wanted=[grad and t is not None and t.requires_grad for t in (x, w, b)],
        predict=return_predicted,
        chunk_size=max(512, w.shape[1] // 4) if chunk_size is None else chunk_size,
        ignore_index=ignore_index,
        label_smoothing=float(label_smoothing),
        z_loss=float(z_loss),
        softcap=float(softcap),
    )
    loss, predicted = _loss_and_predicted(args)
    if reduction == "mean":
        count = _count(args, loss.dtype)
        is_some = count != 0
        loss = torch.where(is_some, loss / torch.where(is_some, count, 1), math.nan)
    # A view: a hook on an output of the Function is called with None at times.
    loss = loss.reshape(() if reduce else shape).to(dtype)
    return (loss, predicted.reshape(shape)) if return_predicted else loss


def _count(args, dtype):
    """The number of rows that the mean counts, by their weights."""
    if args.target.is_floating_point():
        counts = args.target.new_ones(args.target.shape[:1])
    else:
        counts = args.target != args.ignore_index
        if args.weight is not None:
            target = args.target.masked_fill(~counts, 0)
            counts = args.weight.to(dtype)[target] * counts
    return (counts if args.share is None else counts * args.share).sum()


def _cast(*layer):
    """input, weight and bias as autocast wants them, and the dtype of the loss."""
    x, w, b = layer
    dtype = x.dtype
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        # Out here, autograd records the casts: every gradient returns in its own dtype.
        to = torch.get_autocast_dtype(x.device.type)
        x, w, b = (
            t if t is None or t.dtype == torch.float64 else t.to(to) for t in layer
        )
        dtype = _wide(x)
    for name, t in (("linear_weight", w), ("linear_bias", x if b is None else b)):
        if t.dtype != x.dtype:
            raise TypeError(f"{name} is {t.dtype}, but input is {x.dtype}")
    return x, w, b, dtype


def _loss_and_predicted(args):
    """Losses or their sum, each times its share, and the classes of largest logits."""
    if not torch.compiler.is_compiling():
        loss, *_, predicted = LinearCrossEntropy.apply(*args)
    elif not torch._C._are_functorch_transforms_active():
        # Of a Function a compiler takes no jvp, and an exporter no backward.
        loss, *_, predicted = _operator(*args)
    else:
        layer = args.input, args.linear_weight, args.linear_bias
        loss = _plain_losses(*layer, args)
        loss = loss if args.share is None else loss * args.share
        loss = loss.sum() if args.reduce else loss
        predicted = None
        if args.predict:
            predicted = _plain_logits(*layer, args.softcap).argmax(-1)
    return loss, predicted


def _check_tensors(input, linear_weight, target, **others):
    tensors = {"input": input, "linear_weight": linear_weight, "target": target}
    tensors |= {name: t for name, t in others.items() if t is not None}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name} must be a torch.Tensor, got {type(tensor).__name__}"
            )
        if tensor.device != input.device:
            raise ValueError(
                f"{name} is on {tensor.device}, but input is on {input.device}"
            )
        is_index = name == "target" and tensor.dtype == torch.int64
        if not is_index and not tensor.is_floating_point():
            kind = "floating-point"
            if name == "target":
                kind = "torch.int64 or floating-point"
            raise TypeError(f"{name} must be {kind}, got {tensor.dtype}")
        if name in ("target", "weight") and tensor.requires_grad:
            raise ValueError(f"{name} must not require a gradient: it would get none")
    got = tuple(linear_weight.shape)
    if len(got) != 2 or got[0] == 0:
        raise ValueError(f"linear_weight must have shape (V, D), V > 0, got {got}")
    classes, features = got
    rows = tuple(input.shape[:-1])
    if input.dim() == 0 or input.shape[-1] != features:
        got = tuple(input.shape)
        raise ValueError(f"input must have shape (..., {features}), got {got}")
    shapes = {
        "linear_bias": (classes,),
        "weight": (classes,),
        "row_weight": rows,
        "target": (*rows, classes) if target.is_floating_point() else rows,
    }
    for name, shape in shapes.items():
        if name in tensors and (got := tuple(tensors[name].shape)) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {got}")


def _check_options(
    reduction="mean",
    ignore_index=-100,
    chunk_size=None,
    label_smoothing=0.0,
    z_loss=0.0,
    softcap=0.0,
    return_predicted=False,
):
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}"
        )
    if not isinstance(ignore_index, int | torch.SymInt):
        kind = type(ignore_index).__name__
        raise TypeError(f"ignore_index must be an int, got {kind}")
    if not (chunk_size is None or isinstance(chunk_size, int | torch.SymInt)):
        kind = type(chunk_size).__name__
        raise TypeError(f"chunk_size must be an int, got {kind}")
    numbers = {"label_smoothing": label_smoothing, "z_loss": z_loss, "softcap": softcap}
    for name, value in numbers.items():
        if not isinstance(value, (Real, torch.SymFloat)):
            raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be 1 or more, got {chunk_size}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be from 0 to 1, got {label_smoothing}")
    for name, value in (("z_loss", z_loss), ("softcap", softcap)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value}")


class LinearCrossEntropyLoss(torch.nn.Module):
    """`linear_cross_entropy` of a linear layer of its own.

    Called with input (..., in_features), target, and row_weight or None. Parameters:
    `linear.weight`, of shape (num_classes, in_features), and `linear.bias`, if wanted,
    as those of `torch.nn.LinearCrossEntropyLoss`. options: of `linear_cross_entropy`.
    """

    def __init__(
        self,
        in_features,
        num_classes,
        bias=False,
        *,
        weight=None,
        device=None,
        dtype=None,
        **options,
    ):
        super().__init__()
        _check_options(**options)
        self.linear = torch.nn.Linear(in_features, num_classes, bias, device, dtype)
        self.options = options
        self.register_buffer("weight", weight)

    def forward(self, input, target, row_weight=None):
        return linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            linear_bias=self.linear.bias,
            weight=self.weight,
            row_weight=row_weight,
            **self.options,
        )
