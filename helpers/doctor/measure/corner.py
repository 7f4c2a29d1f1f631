"""A large input cut down, so that what is wrong with its gradient can be tried out."""

import contextlib
import copy

import torch
from torch import nn

from ..function.surroundings import CallError, forgiving
from ..function.tensors import Dice
from .measurement import Measurement, Point

CORNER, MORE = (5, 6, 8, 12), (64, 100)  # the size of a dimension, where forward permits it
FEWER = 4, 3, 6, 5  # of what is not large, but slow


def in_a_corner(exam, case, sizes=CORNER):
    """The same gradient for inputs of few elements, if it is wrong there, too; otherwise None.

    Sizes that forward insists on stay, as of what it views in another shape.
    """
    subject, whole, few = copy.copy(exam.subject), exam.subject.original, {}
    for n in sorted({n for t in whole for n in t.shape if n > sizes[0] + 1}, reverse=True):
        everywhere = [(n, m) for m in sizes[len(few) % 2 :: 2]]
        for key, m in [*everywhere, *(((0, n), m) for m in (2, *sizes)), *((n, m) for m in MORE)]:
            if m < n and runs_with(subject, whole, few | {key: m}, exam):
                few[key] = m
                break
    if not few or not runs_with(subject, whole, few, exam):
        return None
    with contextlib.suppress(CallError, RuntimeError, IndexError, ValueError, TypeError):
        found = Measurement(Point(subject, subject.values, Dice()), case.i, case.o, case.tolerance)
        return found if found.wrong.any() else None
    return None


def cut_down(tensors, few):
    """The first elements of each; few: {size, or (dimension, size): smaller size}."""
    found = []
    for t in tensors:
        shape = [few.get(n, few.get((d, n), n)) for d, n in enumerate(t.shape)]
        part = t[tuple(map(slice, shape))].contiguous()
        # What may be indices into something that is smaller now, are so, too.
        sizes = [n for n in few if type(n) is int and t.dtype is torch.int64 and (t < n).all()]
        found.append(part % few[min(sizes)] if sizes else part)
    return found


def runs_with(subject, whole, few, exam):
    """Does forward take what is cut down so? The subject has that from then on."""
    with forgiving():
        modules = subject.scope.module.modules() if subject.is_module else ()
        # PyTorch's do not look at the sizes of their parameters, and read what is beyond.
        fixed = any(isinstance(module, nn.RNNBase) for module in modules)
        own = len(whole) - len(subject.state) * fixed
        subject.original = cut_down(whole[:own], few) + whole[own:]
        subject.use(torch.float64 if exam.low else None)
        return all(y.numel() and y.isfinite().all() for y in subject.forward(subject.values))
    return False
