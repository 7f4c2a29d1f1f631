"""The coarsest dtype on the way from one tensor to another."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .isolation import CallError
from .private import Mode
from .tensors import as_vector, is_dense, is_number, tensors


class Grain(Mode):
    """Follows what is computed from some tensors, and through which dtypes it has gone.

    Integers and truth values end a trail, as of a mask; so does what leaves PyTorch.
    """

    def __init__(self, start):
        super().__init__()
        self.known = {}
        self.note(start)

    @classmethod
    def within(cls, start, outputs):
        """The eps of the coarsest dtype between `start` and outputs(); None: unknown."""
        try:
            with cls(start) as watch:
                return max(filter(None, watch.of(outputs())), default=None)
        except CallError:  # what does not run under a mode
            outputs()
            return 0.0

    def note(self, found, eps=0.0):
        for t in found:
            if is_number(t):
                key = StorageWeakRef(t.untyped_storage())
                self.known[key] = max(
                    self.known.get(key, 0.0), eps, torch.finfo(t.dtype).eps
                )

    def of(self, found):
        """The coarsest eps on the way to each; None for one to which there was none."""
        return [self.known.get(StorageWeakRef(t.untyped_storage())) for t in found]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = self.of(dense((args, kwargs)))
        if any(given):
            self.note(dense(result), max(filter(None, given)))
        return result


def are_single(t):
    """Are these float64 numbers all of float32, and not all of float16, as of a kernel?"""
    t = as_vector(t)
    return torch.equal(t, t.float().double()) and not torch.equal(t, t.half().double())


def dense(obj):
    return [t for _, t in tensors(obj) if is_dense(t)]


def dtype_of(eps):
    known = torch.float32, torch.float16, torch.bfloat16
    return next((dtype for dtype in known if torch.finfo(dtype).eps >= eps), "float8")
