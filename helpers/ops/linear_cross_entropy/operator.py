"""The operator: the losses or their sum, and the gradients that are wanted, chunk by chunk."""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

NAMESPACE, NAME = "extending_pytorch", "linear_cross_entropy"
SCHEMA = (
    "(Tensor input, Tensor linear_weight, Tensor? linear_bias, Tensor target, Tensor? weight,"
    " Tensor? share, bool reduce, bool[3] wanted, bool predict, SymInt chunk_size,"
    " SymInt ignore_index, float label_smoothing, float z_loss, float softcap)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
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


def operator(*args):
    """(share · losses or their sum, the three gradients of that sum, the predicted classes)

    What is not wanted is empty.
    """
    return getattr(getattr(torch.ops, NAMESPACE), NAME)(*args)


def wide(tensor):
    """The dtype of sums: float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


def where(wanted, items):
    return [item if want else None for want, item in zip(wanted, items, strict=True)]


def _run(sweep, *args):
    """`sweep` goes through the chunks; not for fake tensors, of which `len` is no symbol."""
    args = Arguments(*args)
    x, w = args.input, args.linear_weight
    losses = x.new_zeros(x.shape[:1], dtype=wide(x))
    shapes = zip((x.shape, w.shape, w.shape[:1]), args.wanted, strict=True)
    grads = [x.new_zeros(shape if want else 0, dtype=wide(x)) for shape, want in shapes]
    predicted = x.new_zeros(x.shape[:1] if args.predict else 0, dtype=torch.int64)
    share = torch.ones_like(losses) if args.share is None else args.share.expand(losses.shape)
    sweep(args, share, losses, where(args.wanted, grads), predicted)
    if x.dtype != torch.float16:  # whose range is too small for a sum over all rows
        grads = [g.to(x.dtype) for g in grads]
    if args.share is not None:
        losses = losses * share
    return losses.sum() if args.reduce else losses, *grads, predicted


def _sweep(args, share, losses, grads, predicted):
    """Fill `losses`, `predicted` if wanted, and those of `grads` that are not None."""
    x, w = args.input, args.linear_weight
    indices = not args.target.is_floating_point()
    if indices and x.device.type == "cpu":  # elsewhere it would mean waiting
        _check_range(args.target, args.ignore_index, len(w))
    grad_x, grad_w, grad_b = grads
    expected = _expected_classes if indices else _expected_probabilities
    for start in range(0, len(x), args.chunk_size):
        z = dz = slope = subtract = None  # the last chunk's go before the next one's are made
        rows = slice(start, start + args.chunk_size)
        z = F.linear(x[rows], w, args.linear_bias)  # chunk x V, like z, slope and dz below
        z = z.to(wide(z))
        if args.predict:
            predicted[rows] = z.argmax(1)
        if args.softcap:
            z = z.div_(args.softcap).tanh_()
            slope = z.square().neg_().add_(1)
            z *= args.softcap
        top = z.amax(1, keepdim=True)  # chunk x 1, like all that follows but z, slope and dz
        z -= top
        ignored, of_all, of_z, subtract = expected(args, rows, z)
        total = z.exp_().sum(1, keepdim=True)
        log_total = total.log()
        loss = of_all * log_total - of_z
        if args.z_loss:
            log_sum = log_total + top
            loss += args.z_loss * log_sum.square()
            of_all = of_all + 2 * args.z_loss * log_sum
        losses[rows] = loss.masked_fill(ignored, 0)[:, 0]
        if grad_x is grad_w is grad_b is None:
            continue
        of_row = share[rows, None].masked_fill(ignored, 0)
        dz = z.mul_(of_row * of_all / total)
        subtract(dz, of_row)
        if args.softcap:
            dz *= slope
        if grad_b is not None:
            grad_b += dz.sum(0)
        if grad_w is not None and x.dtype == torch.float16:  # where the chunk's sum could overflow
            grad_w.addmm_(dz.t(), x[rows].to(dz.dtype))
        dz = dz.to(x.dtype)
        if grad_w is not None and x.dtype == torch.bfloat16:
            grad_w += dz.t() @ x[rows]
        elif grad_w is not None and x.dtype != torch.float16:
            grad_w.addmm_(dz.t(), x[rows])
        if grad_x is not None:
            grad_x[rows] = dz @ w


def _check_range(target, ignore_index, classes):
    wrong = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
    if len(wrong):
        known = f"from 0 to {classes - 1}, or ignore_index {ignore_index}"
        raise ValueError(f"target must be {known}, got {wrong[0].item()}")


# What is expected of a chunk, q: which rows are ignored, Σ q, Σ q · z (all chunk x 1), and how to
# subtract q from dz.


def _of_every_class(args, z):
    """The factors of the classes, and what label smoothing expects of each of them: V."""
    classes = z.shape[1]
    weight = z.new_ones(1) if args.weight is None else args.weight.to(z.dtype)
    return weight.expand(classes), (args.label_smoothing / classes * weight).expand(classes)


def _expected_classes(args, rows, z):
    weight, rest = _of_every_class(args, z)
    target = args.target[rows, None]
    ignored = target == args.ignore_index
    target = target.masked_fill(ignored, 0)
    at_target = (1 - args.label_smoothing) * weight[target]
    of_z = at_target * z.gather(1, target)
    if args.label_smoothing:
        of_z += (z @ rest)[:, None]

    def subtract(dz, of_row):
        dz.scatter_add_(1, target, -of_row * at_target)
        if args.label_smoothing:
            dz.addr_(of_row[:, 0], rest, alpha=-1)  # no tensor of their product

    return ignored, at_target + rest.sum(), of_z, subtract


def _expected_probabilities(args, rows, z):
    weight, rest = _of_every_class(args, z)
    q = args.target[rows].to(z.dtype) * (1 - args.label_smoothing)  # chunk x V
    q.mul_(weight).add_(rest)
    ignored = torch.zeros_like(z[:, :1], dtype=torch.bool)
    of_z = (q[:, None] @ z[:, :, None])[:, 0]  # no tensor of their product

    def subtract(dz, of_row):
        dz.addcmul_(of_row, q, value=-1)

    return ignored, q.sum(1, keepdim=True), of_z, subtract


def define(setup_context, backward):
    """Two copies of this folder in one process share the operator of the first one."""
    if hasattr(getattr(torch.ops, NAMESPACE), NAME):
        return
    qualified = f"{NAMESPACE}::{NAME}"
    torch.library.define(qualified, SCHEMA)
    torch.library.impl(qualified, "default", partial(_run, _sweep))
    torch.library.register_fake(qualified, partial(_run, lambda *args: None))
    torch.library.register_autograd(qualified, backward, setup_context=setup_context)
