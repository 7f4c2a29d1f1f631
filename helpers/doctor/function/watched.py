"""What is watched while the function runs: dtypes, what is saved, and which line calls PyTorch."""

import contextlib
import linecache
import os
import sys

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .private import Mode, methods, on_ctx
from .surroundings import CallError
from .tensors import tensors

# --- the coarsest dtype on the way ----------------------------------------------------------------


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
        """The eps of the coarsest dtype on the way from `start` to what outputs() returns, or 0."""
        try:
            with cls(start) as watch:
                return max(filter(None, watch.of(outputs())), default=0.0)
        except CallError:  # what does not run under a mode
            outputs()
            return 0.0

    def note(self, found, eps=0.0):
        for t in found:
            if t.is_floating_point() or t.is_complex():
                key = StorageWeakRef(t.untyped_storage())
                self.known[key] = max(self.known.get(key, 0.0), eps, torch.finfo(t.dtype).eps)

    def of(self, found):
        """The coarsest eps on the way to each; None for one to which there was none."""
        return [self.known.get(StorageWeakRef(t.untyped_storage())) for t in found]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = self.of(strided((args, kwargs)))
        if any(given):
            self.note(strided(result), max(filter(None, given)))
        return result


def strided(obj):
    return [t for _, t in tensors(obj) if t.layout is torch.strided and not t.is_nested]


def dtype_of(eps):
    known = torch.float32, torch.float16, torch.bfloat16
    return next((dtype for dtype in known if torch.finfo(dtype).eps >= eps), "float8")


# --- lines of the user's code ---------------------------------------------------------------------

TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def caller(*folders):
    """The frame that called, leaving out those of these folders."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename.startswith(folders):
        frame = frame.f_back
    return frame


def frame_of_a_step():
    """The frame that called PyTorch, unless it is ours."""
    frame = caller(TORCH)
    return None if frame is None or frame.f_code.co_filename.startswith(HERE) else frame


def place_of(frame):
    return f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"


def source(frame):
    """The line that runs there."""
    return f"`{linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}`"


def saving(instead):
    """For a while, save_for_backward saves instead(tensors, frame of its caller)."""

    def way(save, ctx, *tensors):
        save(ctx, *instead(tensors, caller(HERE)))

    return on_ctx("save_for_backward", way)


def is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@contextlib.contextmanager
def watching(watch):
    """For a while, the backward of every Function in Python runs under this mode."""

    def way(method, cls, *args):
        with watch:
            return method(*args)

    with methods("backward", way):
        yield watch
