"""All that the doctor uses of PyTorch and PyTorch does not document, and a self-test.

Known to work on torch 2.10 to 2.15. Python looks up `forward` on the class of a
Function each time the Function is applied, and `backward` each time the engine runs it.
A descriptor of this name on the metaclass, FunctionMeta, comes first: while the doctor
watches, it returns a wrapped method.
"""

import contextlib
import functools
import inspect
import sys
import threading

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.function import (
    BackwardCFunction,
    Function,
    FunctionCtx,
    FunctionMeta,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import CheckpointFunction

__all__ = [
    "BackwardCFunction",
    "CheckpointFunction",
    "FunctionCtx",
]  # for the other folders

# Makes the Functions of torch.library.register_autograd.
CUSTOM_OPS = "torch._library.autograd"
FUNCTORCH = inspect.getfile(torch._functorch.autograd_function)
without_modes = _disable_current_modes  # what runs inside, no mode sees
LOCK = threading.RLock()
WAYS = {}  # by the name of a method: pairs (thread or None, way)


@contextlib.contextmanager
def methods(name, way, everywhere=False):
    """For a while, way(method, cls, *args) runs instead of each Function's method.

    name: "forward", "setup_context", "backward" (a `vjp`, too) or another static method
    way: it may call method(*args); only in this thread, or everywhere, in all threads
    """
    names = (name, "vjp") if name == "backward" else (name,)
    ours = None if everywhere else threading.get_ident(), way
    with LOCK:
        for each in names:
            WAYS[each] = [*WAYS.get(each, ()), ours]
            setattr(FunctionMeta, each, OnClass(each))
    try:
        yield
    finally:
        with LOCK:
            for each in names:
                WAYS[each] = [pair for pair in WAYS[each] if pair is not ours]
                if not WAYS[each]:
                    delattr(FunctionMeta, each)


class OnClass:
    """The descriptor on FunctionMeta.

    It returns the method of a Function, wrapped in WAYS.
    """

    def __init__(self, name):
        self.name, self.of_function = name, getattr(Function, name)

    def __get__(self, cls, _):
        held = next(vars(c)[self.name] for c in cls.__mro__ if self.name in vars(c))
        found = held.__get__(None, cls) if hasattr(held, "__get__") else held
        if found is self.of_function:  # it only raises, or is compared with
            return found
        made = found
        for thread, way in WAYS[self.name]:
            if thread is None or thread == threading.get_ident():
                made = functools.partial(way, made, cls)
        if made is found:
            return found

        def watched(*args, **kwargs):
            node = args[0] if args else None
            # To another Function.
            is_lent = getattr(type(node), "_forward_cls", cls) is not cls
            return (found if is_lent else made)(*args, **kwargs)

        watched.__wrapped__, watched.__name__ = found, self.name
        return watched

    def __set__(self, cls, value):
        with LOCK, self.away():
            setattr(cls, self.name, value)

    def __delete__(self, cls):
        with LOCK, self.away():
            delattr(cls, self.name)

    @contextlib.contextmanager
    def away(self):
        delattr(FunctionMeta, self.name)
        try:
            yield
        finally:
            setattr(FunctionMeta, self.name, self)


@contextlib.contextmanager
def on_ctx(name, way):
    """For a while, way(method, ctx, *args) runs instead of this method of every ctx."""
    method = getattr(FunctionCtx, name)
    setattr(FunctionCtx, name, lambda ctx, *args: way(method, ctx, *args))
    try:
        yield
    finally:
        setattr(FunctionCtx, name, method)


def takes_ctx(cls):
    """Is ctx the first argument of its forward?"""
    return inspect.unwrap(cls.setup_context) is Function.setup_context


def is_a_users(cls):
    """Not one of PyTorch's own, and no wrapper of functorch's."""
    own = cls.__module__ == "torch" or cls.__module__.startswith("torch.")
    return issubclass(cls, Function) and (operator(cls) is not None or not own)


def operator(cls):
    """The operator of torch.library whose derivative this Function is, or None."""
    # Where there are lists of tensors, it has an apply of its own.
    if cls.__module__ != CUSTOM_OPS or "apply" in vars(cls):
        return None
    return inspect.getclosurevars(inspect.unwrap(cls.forward)).nonlocals.get("op")


def has_numbers(tensor):
    """Not one that a compiler traces with."""
    traced = isinstance(tensor, (FakeTensor, FunctionalTensor))
    return not (traced or torch._is_functional_tensor(tensor) or tensor.is_meta)


def transforming():
    """Is a transform of torch.func at work?"""
    return torch._C._are_functorch_transforms_active()


class Mode(TorchDispatchMode):
    """A mode that control flow passes through, without importing the compiler."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls):
        return True

    @classmethod
    def _should_skip_dynamo(cls):
        # Else it would, only to say that the mode is not compiled.
        return False


def buffers_kept():
    """For a while, what is compiled keeps its memory for a second backward pass."""
    config = sys.modules.get("torch._functorch.config")
    return config.patch(donated_buffer=False) if config else contextlib.nullcontext()


class BlindError(RuntimeError):
    """On this version of torch, the doctor sees no Functions."""


class Probe(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


BOUND = Probe.apply  # as programs bind theirs, before anybody watches


@functools.cache
def self_test():
    """Raises BlindError unless a Function's forward and backward are seen here."""
    seen = []

    def way(method, cls, *args):
        seen.append(cls)
        return method(*args)

    with methods("forward", way), methods("backward", way), torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        BOUND(x).sum().backward()
    if seen != [Probe, Probe]:
        raise BlindError(
            f"the doctor does not see Functions on torch {torch.__version__}; it is "
            "known to work on torch 2.10 to 2.15"
        )
