"""The derivatives of the operator, of every order."""

from functools import partial

import torch
import torch.nn.functional as F
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

from .operator import Arguments, define, operator, where, wide

TENSORS = Arguments._fields[:6]
NO_GRADIENTS = Arguments(*[None] * len(Arguments._fields))


def plain_logits(x, w, b, softcap):
    """All logits at once, in PyTorch's operations: N x V."""
    z = F.linear(*(t if t is None else t.to(wide(x)) for t in (x, w, b)))
    return softcap * torch.tanh(z / softcap) if softcap else z


def plain_losses(x, w, b, args):
    """The losses in PyTorch's operations; everything but x, w and b as in `args`: N."""
    z, target, weight = plain_logits(x, w, b, args.softcap), args.target, args.weight
    indices = not target.is_floating_point()
    options = {"reduction": "none", "label_smoothing": args.label_smoothing}
    if indices:
        options["ignore_index"] = args.ignore_index
    else:
        target = target.to(z.dtype)
    losses = F.cross_entropy(z, target, weight if weight is None else weight.to(z.dtype), **options)
    if args.z_loss:
        square = args.z_loss * torch.logsumexp(z, 1).square()
        if indices:
            square = square.masked_fill(target == args.ignore_index, 0)
        losses = losses + square
    return losses


def _second(args, along):
    """How losses, and gradients of share · losses, change along (dx, dw, db); each may be None.

    Second derivatives are symmetric, so these are the gradients of the product of the gradients
    and that direction. Of PyTorch's own operations, so that there are derivatives of every order.
    """
    x, w, b = args.input, args.linear_weight, args.linear_bias
    dtype = x.dtype
    x, *others = (t.to(wide(x)) for t in (x, w, w.new_zeros(w.shape[:1]) if b is None else b))
    dx, *along = (
        torch.zeros_like(t) if d is None else d.to(t.dtype)
        for t, d in zip((x, *others), along, strict=True)
    )
    share = (x.new_ones(()) if args.share is None else args.share).expand(x.shape[:1])
    slopes, grads, sums = [], [], [torch.zeros_like(t) for t in others]
    for start in range(0, max(x.shape[0], 1), args.chunk_size):
        rows = slice(start, start + args.chunk_size)
        losses = partial(plain_losses, args=args._replace(target=args.target[rows]))

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

    The gradients are made in forward, and have a history, since they are outputs. So backward may
    multiply them, or call this again for another `share`, and is differentiable either way.
    """

    @staticmethod
    def forward(*args):
        return operator(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        args = Arguments(*inputs)
        _, *grads, predicted = output
        tensors = [getattr(args, name) for name in TENSORS]
        ctx.others = args._replace(**dict.fromkeys(TENSORS))
        ctx.save_for_backward(*tensors, *where(args.wanted, grads))
        ctx.save_for_forward(*tensors)
        unwanted = where([not want for want in args.wanted], grads)
        ctx.mark_non_differentiable(predicted, *[g for g in unwanted if g is not None])
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
            missing = any(need and g is None for need, g in zip(needs, made, strict=True))
            if args.reduce and not missing:
                grads = [g if g is None else g * grad_output for g in made]
            else:
                share = grad_output if args.share is None else grad_output * args.share
                again = args._replace(share=share, reduce=False, wanted=needs, predict=False)
                _, *grads, _ = LinearCrossEntropy.apply(*again)
            if needed.share:
                losses = args._replace(share=None, reduce=False, wanted=[False] * 3, predict=False)
                of_share = LinearCrossEntropy.apply(*losses)[0] * grad_output
        if any(d is not None for d in along):
            slopes, *more = _second(args, along)
            of_share = slopes if of_share is None else of_share + slopes
            grads = [m if g is None else g + m for g, m in zip(grads, more, strict=True)]
        if needed.share:
            of_share = of_share if args.share.dim() else of_share.sum()
        of_x, of_w, of_b = where(needs, grads)
        return tuple(
            NO_GRADIENTS._replace(
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
            primals = [t if t is None else unpack_dual(t).primal for t in ctx.saved_tensors]
            args = ctx.others._replace(**dict(zip(TENSORS, primals, strict=True)))
            slopes, *grads = _second(args, (along.input, along.linear_weight, along.linear_bias))
            slopes = slopes if args.share is None else slopes * args.share
            if along.share is not None:
                again = args._replace(share=along.share, reduce=False, wanted=[True] * 3)
                of_losses, *of_grads, _ = LinearCrossEntropy.apply(*again._replace(predict=False))
                slopes = slopes + of_losses
                grads = [g + more for g, more in zip(grads, of_grads, strict=True)]
            return slopes.sum() if args.reduce else slopes, *where(args.wanted, grads), None

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


define(LinearCrossEntropy.setup_context, LinearCrossEntropy.backward)
