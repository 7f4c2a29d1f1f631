"""Functions as plain code: what autograd makes of forward, as if it stood in no Function."""

import contextlib

import torch

from ..function.private import is_a_users, methods, takes_ctx
from ..function.tensors import mapped, tensors


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
