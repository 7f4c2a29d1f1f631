"""Where in the user's code PyTorch is called, and what its calls in backward make."""

import contextlib
import functools
import itertools
import linecache
import os
import re
import sys

import torch
from torch.overrides import TorchFunctionMode

from .private import BackwardCFunction, methods

STEPS = 300  # at most
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
STATEMENT = r"^(return |[\w, ]+ [-+*/@]?= )"


def is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def frame_of_a_step():
    """The frame that called PyTorch, unless it is a module's of PyTorch, or ours."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename.startswith(TORCH):
        if frame.f_code.co_name == "_call_impl":
            return None
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith(HERE) else frame


def source(frame):
    return source_at(frame.f_code, frame.f_lasti, frame.f_lineno)


@functools.lru_cache(STEPS)
def source_at(code, instruction, line):
    """The expression that is computed there."""
    text = linecache.getline(code.co_filename, line)
    places = itertools.islice(code.co_positions(), instruction // 2, None)
    first, last, start, end = next(places)
    if first == last == line and start is not None:
        return f"`{text.encode()[start:end].decode()}`"
    return f"`{re.sub(STATEMENT, '', text.strip()).rstrip(',')}`"


def place_of(frame):
    return f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"


def variables_of(frame):
    """(name, value) of the variables of a frame, of what is in its lists, and of its ctx."""
    for name, value in list(frame.f_locals.items()):
        if isinstance(value, (list, tuple)) and len(value) < 9:
            yield from ((f"`{name}[{k}]`", item) for k, item in enumerate(value))
        elif isinstance(value, BackwardCFunction):
            yield from ((f"`{name}.{k}`", item) for k, item in list(vars(value).items()))
        else:
            yield f"`{name}`", value


CHANGING = r"^(?!requires_grad)\w*[a-z]_$|^__(i\w+|setitem)__$"
DRAWING = r"^(rand|bernoulli|normal_?$|uniform_|multinomial|poisson|exponential_)|dropout"


class Effects(TorchFunctionMode):
    """Notes where backward `changes` what was there before, and `draws`: {expression: line}."""

    def __init__(self):
        super().__init__()
        self.changes, self.draws = {}, {}
        self.made = {}  # by the address of a storage, which stays while it lives

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, frame = getattr(func, "__name__", ""), frame_of_a_step()
        value = func(*args, **(kwargs or {}))
        changed = args[0] if args and re.search(CHANGING, name) else None
        place = frame is not None and f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"
        if place and re.search(DRAWING, name):
            self.draws[source(frame)] = place
        if place and is_float(changed) and address(changed) not in self.made:
            self.changes[source(frame)] = place
        elif is_float(value) and address(value) not in [address(a) for a in args if is_float(a)]:
            self.made[address(value)] = value
        return value


def address(tensor):
    return tensor.untyped_storage().data_ptr()


@contextlib.contextmanager
def watching(watch):
    """The backward of every Function in Python is watched."""

    def way(method, cls, *args):
        with watch:
            return method(*args)

    with methods("backward", way):
        yield watch
