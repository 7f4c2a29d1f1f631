"""What autograd makes of forward, as if it stood in no Function, where differences confirm it.

It is asked for all elements at once, where differences need four calls of forward for each.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode

from ..function.private import is_a_users, methods, takes_ctx
from ..function.surroundings import forgiving
from ..function.tensors import Dice, as_vector, mapped, shaped, tensors
from .slopes import agrees

DETACHING = torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__
DIRECTIONS, ALONE = 2, 3  # in which differences are taken: of all elements, of one
SURE = 1e-7  # of what is summed, by which the two may differ


class Plain(TorchFunctionMode):
    """All is recorded, what is detached, too, for differences know nothing of that."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch.enable_grad():
            if func in DETACHING and is_number(args[0]):
                return args[0].view_as(args[0])
            return func(*args, **(kwargs or {}))


def is_number(value):
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


@contextlib.contextmanager
def as_plain_code():
    """In this thread, the backward of a user's Function is what autograd makes of its forward."""
    made, last = {}, []  # {ctx: (outputs, leaves)}

    def forward(method, cls, *given):
        if not is_a_users(cls):
            return method(*given)
        first, given = given[: takes_ctx(cls)], given[takes_ctx(cls) :]
        leaves = [a.detach().requires_grad_() if is_number(a) and a.requires_grad else None
                  for a in given]  # fmt: skip
        with torch.enable_grad():
            pairs = zip(given, leaves, strict=True)
            result = method(*first, *(a if leaf is None else leaf.clone() for a, leaf in pairs))
        if first:
            made[first[0]] = tensors(result), leaves
        else:
            last.append((tensors(result), leaves))
        return mapped(result, "", lambda _, t: t.detach())

    def setup_context(method, cls, ctx, *given):
        if last:
            made[ctx] = last.pop()
        return method(ctx, *given)

    def backward(method, cls, ctx, *grads):
        if ctx not in made:
            return method(ctx, *grads)
        (outputs, leaves), wanted = made[ctx], [x for x in made[ctx][1] if x is not None]
        pairs = [(y, g) for (_, y), g in zip(outputs, grads, strict=False)
                 if y.requires_grad and g is not None]  # fmt: skip
        found = iter([None] * len(wanted))
        if pairs:
            ys, gs = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(ys, wanted, gs, True, True, allow_unused=True))
        return tuple(None if leaf is None else next(found) for leaf in leaves)

    with methods("forward", forward), methods("setup_context", setup_context):
        with methods("backward", backward):
            yield


def by_autograd(point, i, elements):
    """What `Point.expected` says of each output, or None if that is unsure, or no less work."""
    subject, found = point.subject, []
    few = [point.values[i].numel() * len(y) <= 4096 for y in point.y0]
    passes = sum(3 + len(y) * is_few for y, is_few in zip(point.y0, few, strict=True))
    if passes + 4 * (DIRECTIONS + ALONE) > 4 * len(elements) or subject.eps > 1e-10:
        return None
    if subject.applied and not subject.only_computes:  # what it keeps elsewhere would have a graph
        return None
    with forgiving(), as_plain_code():
        with Plain():
            run = subject.run(point.values)
        if not all(map(torch.equal, map(as_vector, run.outputs), point.y0)):
            return None
        rows = [graded(run, i, o, vs) for o, vs in enumerate(point.vs)]
        for u in directions(point.values[i], elements):
            for o, slope in enumerate(point.slopes(i, u)):
                for v, row, off in zip(point.weights[o], rows[o], point.rounding[o], strict=True):
                    products = as_vector(row) * as_vector(u)
                    if not slope.trusted.all() or not agrees(v, slope, products, SURE, off):
                        return None
        for o, is_few in enumerate(few):
            value = rows[o][:, elements]
            error = (point.rounding[o][:, None] / point.scales[i][elements]).expand(value.shape)
            one_hot = torch.eye(len(point.y0[o]) * is_few, device=value.device).to(point.y0[o])
            jacobian = graded(run, i, o, [shaped(v, run.outputs[o]) for v in one_hot])
            trusted = torch.ones_like(elements, dtype=torch.bool)
            found.append((value, error, trusted, jacobian[:, elements] if is_few else None))
        return found
    return None


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
