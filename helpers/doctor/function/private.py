"""All that the doctor uses of PyTorch which PyTorch does not document, and a test that it works.

Known to work on torch 2.10 to 2.15. Python looks `forward` up on the class of a Function each time
one is applied, and `backward` each time the engine runs one. Classes ask their own class for it,
which hands out another method for as long as somebody watches.
"""

import contextlib
import functools
import inspect
import threading

import torch
from torch._subclasses import FakeTensor
from torch.autograd.function import BackwardCFunction, Function, FunctionCtx, FunctionMeta
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import CheckpointFunction

__all__ = ["BackwardCFunction", "CheckpointFunction", "FunctionCtx"]  # for the other folders

CUSTOM_OPS = "torch._library.autograd"  # makes the Functions of torch.library.register_autograd
FUNCTORCH = inspect.getfile(torch._functorch.autograd_function)
without_modes = _disable_current_modes  # what runs inside, no mode sees
LOCK = threading.RLock()
WAYS = []  # (name of a method, thread or None, way)


@contextlib.contextmanager
def methods(name, way, everywhere=False):
    """For a while, way(method, cls, *args) runs in the place of this method of every Function.

    name: "forward", "setup_context", "backward" (a `vjp`, too) or another static method
    way: it may call method(*args); only in this thread, or everywhere, in all threads
    """
    ours = name, None if everywhere else threading.get_ident(), way
    with LOCK:
        WAYS.append(ours)
        FunctionMeta.__getattribute__ = looked_up
    try:
        yield
    finally:
        with LOCK:
            WAYS.remove(ours)
            if not WAYS:
                del FunctionMeta.__getattribute__


def looked_up(cls, name):
    """What type.__getattribute__ finds; of a method that is watched, what runs in its place."""
    found = type.__getattribute__(cls, name)
    kind = "backward" if name == "vjp" else name
    ways = [w for n, thread, w in WAYS if n == kind and thread in (None, threading.get_ident())]
    if not ways or found is type.__getattribute__(Function, name):  # its own, which only raises
        return found
    made = found
    for way in ways:
        made = functools.partial(way, made, cls)

    @functools.wraps(found)
    def method(*args, **kwargs):
        node = args[0] if args else None
        is_lent = isinstance(node, BackwardCFunction) and type(node)._forward_cls is not cls
        return (found if is_lent else made)(*args, **kwargs)  # lent to another Function

    return method


@contextlib.contextmanager
def on_ctx(name, way):
    """For a while, way(method, ctx, *args) runs in the place of this method of every ctx."""
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
    if cls.__module__ != CUSTOM_OPS or "apply" in vars(cls):  # as it is for lists of tensors
        return None
    return inspect.getclosurevars(inspect.unwrap(cls.forward)).nonlocals.get("op")


def has_numbers(tensor):
    """Not one that a compiler traces with."""
    traced = isinstance(tensor, FakeTensor) or torch._is_functional_tensor(tensor)
    return not (traced or tensor.is_meta)


def transforming():
    """Is a transform of torch.func at work?"""
    return torch._C._are_functorch_transforms_active()


class Mode(TorchDispatchMode):
    """A mode under which what is compiled is compiled, and which does not import the compiler."""

    @classmethod
    def ignore_compile_internals(cls):
        return True

    @classmethod
    def _should_skip_dynamo(cls):  # else it would, only to say that the mode is not compiled
        return False


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
    """Raises BlindError unless the forward and the backward of a Function are seen here."""
    seen = []

    def way(method, cls, *args):
        seen.append(cls)
        return method(*args)

    with methods("forward", way), methods("backward", way), torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        BOUND(x).sum().backward()
    if seen != [Probe, Probe]:
        raise BlindError(
            f"the doctor does not see Functions on torch {torch.__version__}; it is known to work "
            f"on torch 2.10 to 2.15"
        )
