"""What autograd makes of forward, as if it stood in no Function, where differences confirm it.

It is asked for all elements at once, where differences need four calls of forward for each.
"""

import contextlib

import torch
from torch.autograd.function import Function, FunctionCtx
from torch.overrides import TorchFunctionMode

from ..function.variations import applied
from ..function.calls import is_a_users
from ..line.cuts import CUTS
from ..function.raised import forgiving
from .slopes import Dice, as_vector, shaped

DIRECTIONS, ALONE = 2, 3  # in which differences are taken: of all elements, of one
SURE = 1e-7  # of what is summed, by which the two may differ


class Plain(TorchFunctionMode):
    """All is recorded, what is detached, too, for differences know nothing of that."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch.enable_grad():
            if func in CUTS and is_number(args[0]):
                return args[0].view_as(args[0])
            return func(*args, **(kwargs or {}))


def is_number(value):
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


@contextlib.contextmanager
def as_plain_code(call, mode):
    """In this thread, what a Function's forward computes is differentiated by autograd.

    call(Function, args, kwargs): what forward returns, under this mode
    """
    inside = []

    def way(apply, cls, *args, **kwargs):
        if not is_a_users(cls):
            return apply(cls, *args, **kwargs)
        ctx = FunctionCtx()
        ctx.needs_input_grad = tuple(torch.is_tensor(a) and a.requires_grad for a in args)
        first = () if cls.setup_context is not Function.setup_context else (ctx,)
        inside.append(cls)
        with torch.enable_grad(), contextlib.nullcontext() if inside[1:] else mode:
            try:
                return call(cls, (*first, *args), kwargs)
            finally:
                inside.pop()

    with applied(way):
        yield


def by_autograd(point, i, elements):
    """What `Point.expected` says of each output, or None if that is unsure, or no less work."""
    x, sizes, found = point.values[i], [len(y) for y in point.y0], []
    few = [x.numel() * len(y) <= 4096 for y in point.y0]
    subject = point.subject
    passes = sum(3 + n * is_few for n, is_few in zip(sizes, few, strict=True))
    if passes + 4 * (DIRECTIONS + ALONE) > 4 * len(elements) or subject.eps > 1e-10:
        return None
    if subject.applied and not subject.only_computes:  # what it keeps elsewhere would have a graph
        return None
    with forgiving():
        with Plain(), as_plain_code(forward_of, contextlib.nullcontext()):
            run = subject.run(point.values)
        if not all(map(torch.equal, map(as_vector, run.outputs), point.y0)):
            return None
        rows = [graded(run, i, o, vs) for o, vs in enumerate(point.vs)]
        if not all(agree(point, i, rows, u) for u in directions(x, elements)):
            return None
        for o, is_few in enumerate(few):
            value = rows[o][:, elements]
            error = (point.rounding[o][:, None] / point.scales[i][elements]).expand(value.shape)
            one_hot = torch.eye(sizes[o] * is_few, dtype=x.real.dtype, device=x.device)
            jacobian = graded(run, i, o, [shaped(v, run.outputs[o]) for v in one_hot])
            trusted = torch.ones_like(elements, dtype=torch.bool)
            found.append((value, error, trusted, jacobian[:, elements] if is_few else None))
        return found
    return None


def forward_of(cls, args, kwargs):
    return cls.forward(*args, **kwargs)


def graded(run, i, o, vs):
    """The gradients of the sum of v · output o for input i, a row for each v."""
    x, y = run.leaves[i], run.outputs[o]
    rows = x.new_zeros(len(vs), x.numel())
    for row, v in zip(rows, vs, strict=True) if y.requires_grad else ():
        (grad,) = torch.autograd.grad(y, x, v, retain_graph=True, allow_unused=True)
        if grad is not None:
            row.copy_(grad.reshape(-1))
    return rows.detach()


def directions(x, elements):
    """Moves of all elements, and of some alone."""
    dice = Dice(7)
    yield from (dice.direction(x).reshape(-1) for _ in range(DIRECTIONS))
    alone = dice.direction(x).reshape(-1)
    for s in elements[:: max(1, len(elements) // ALONE)]:
        yield torch.zeros_like(alone).index_copy(0, s[None], alone[s][None])


def agree(point, i, rows, u):
    """Do these gradients and differences say the same of a move u, as they would not by chance?"""
    for o, slope in enumerate(point.slopes(i, u)):
        weights = point.weights[o]
        products = torch.stack([as_vector(row) for row in rows[o]]) * as_vector(u)
        size = torch.maximum(products.norm(dim=1), (weights * slope.value).norm(dim=1))
        off = (products.sum(1) - weights @ slope.value).abs()
        if not slope.trusted.all() or (off > SURE * size + point.rounding[o]).any():
            return False
    return True
