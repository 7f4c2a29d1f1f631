"""A large input cut down, so that what is wrong with its gradient can be tried out."""

import contextlib
import copy

import torch
from torch import nn

from ..function.surroundings import CallError, forgiving
from .measurements import Measurements

CORNER, MORE = (5, 6, 8, 12), (64, 100)  # the size of a dimension, where forward permits it
FEWER = 4, 3, 6, 5  # of what is not large, but slow


def in_a_corner(ms, sizes=CORNER):
    """The same gradient for inputs of few elements, if it is wrong there, too; otherwise None.

    Sizes that forward insists on stay, as of what it views in another shape.
    """
    subject, few = copy.copy(ms[0].subject), {}
    whole, dtype = subject.original, torch.float64 if subject.eps < 1e-10 else None
    for n in sorted({n for t in whole for n in t.shape if n > sizes[0] + 1}, reverse=True):
        everywhere = [(n, m) for m in sizes[len(few) % 2 :: 2]]
        for key, m in [*everywhere, *(((0, n), m) for m in (2, *sizes)), *((n, m) for m in MORE)]:
            if m < n and runs_with(subject, whole, few | {key: m}, dtype):
                few[key] = m
                break
    if not few or not runs_with(subject, whole, few, dtype):
        return None
    with contextlib.suppress(CallError, RuntimeError, IndexError, ValueError, TypeError):
        corner = Measurements([ms[0].at(subject, subject.values)])
        corner.wrong, corner.wrong_through = ms.wrong, ms.wrong_through
        corner.all, corner.whole = [corner], ms
        return corner if corner[0].wrong.any() else None
    return None


def runs_with(subject, whole, few, dtype):
    """Does forward take the first elements of each? The subject has these from then on.

    few: {size, or (dimension, size): smaller size}
    """
    with forgiving():
        modules = subject.scope.module.modules() if subject.is_module else ()
        # PyTorch's do not look at the sizes of their parameters, and read what is beyond.
        fixed = any(isinstance(module, nn.RNNBase) for module in modules)
        own, subject.original = len(whole) - len(subject.state) * fixed, []
        for t in whole[:own]:
            shape = [few.get(n, few.get((d, n), n)) for d, n in enumerate(t.shape)]
            part = t[tuple(map(slice, shape))].contiguous()
            # What may be indices into something that is smaller now, are so, too.
            ints = [n for n in few if type(n) is int and t.dtype is torch.int64 and (t < n).all()]
            subject.original.append(part % few[min(ints)] if ints else part)
        subject.original += whole[own:]
        subject.use(dtype)
        return all(y.numel() and y.isfinite().all() for y in subject.forward(subject.values))
    return False
