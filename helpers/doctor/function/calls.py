"""Calls of Functions in a running program: noticed, told apart, copied, made again."""

import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import os
import sys
import traceback
import types
from inspect import Parameter

import torch

from ..words import _, listed
from .private import has_numbers, operator, without_modes
from .source import HERE, LIBRARIES, LIBRARY, closure, module_of
from .tensors import (
    as_vector,
    attributes_of,
    carry,
    equal,
    has_gradient,
    mapped,
    tensors,
    without_grads,
)

# --- which Function, and which call of it ---------------------------------------------


def full_name(cls):
    op = operator(cls)
    return op._name if op else f"{cls.__module__}.{cls.__qualname__}"


def kind(cls):
    """The same for a class that is defined again at each call."""
    return (
        full_name(cls),
        *(pattern(getattr(cls, name)) for name in ("forward", "backward")),
    )


PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)


def pattern(value, depth=4):
    """What calls that are examined only once have in common.

    It holds nothing of the program.
    """
    kind = type(value)
    if kind is float:
        return kind
    if torch.is_tensor(value):
        place = value.device.type
        return value.shape, value.dtype, value.layout, place, value.requires_grad
    if isinstance(value, PLAIN):
        return kind, value
    code = getattr(value, "__code__", kind)
    return (
        (code, *(pattern(part, depth - 1) for part in parts(value))) if depth else code
    )


def parts(value):
    """What is in a tuple, list or dict, a partial, or a closure."""
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    return closure(value).values() if isinstance(value, types.FunctionType) else ()


def held(value, replaced=True, depth=4):
    """The tensors in modules, closures, bound methods and objects.

    replaced: does the doctor replace the tensors in this value?
    """
    if torch.is_tensor(value):
        return [] if replaced else [value]
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if not depth or isinstance(value, (type, types.ModuleType, *PLAIN)):
        return []
    inner = [*parts(value)]
    if not isinstance(value, (tuple, list, dict)):
        replaced = False
        inner += [
            getattr(value, "__self__", None),
            *getattr(value, "__dict__", {}).values(),
        ]
        inner += globals_of(value) if isinstance(value, types.FunctionType) else ()
    return [t for item in inner for t in held(item, replaced, depth - 1)]


def globals_of(fn):
    """The tensors, modules and functions that a function finds among its globals."""
    if module_of(fn).startswith("torch."):
        return []
    kinds = torch.Tensor, torch.nn.Module, types.FunctionType, functools.partial
    named = [fn.__globals__.get(name) for name in fn.__code__.co_names]
    return [value for value in named if isinstance(value, kinds)]


def autocasts():
    """(device, dtype) of every autocast that is on."""
    on = filter(torch.is_autocast_enabled, ("cpu", "cuda", "xpu", "mps"))
    return tuple([(device, torch.get_autocast_dtype(device)) for device in on])


# --- a call, copied -------------------------------------------------------------------


@dataclasses.dataclass
class Call:
    """One call that will be examined, with copies of the tensors that it was handed."""

    cls: type
    args: tuple
    autocasts: tuple
    size: int  # bytes of the copies
    called: str  # where
    given: str  # shapes and dtypes
    # By place: what is handed over, and held by a module, say, that is, too.
    shared: dict
    # What a module, say, holds, and what it was at the call; and what was returned.
    values: list = dataclasses.field(default_factory=list)
    outputs: list | None = None
    records: bool = False  # did autograd record it, or another one of its pattern?
    goes_back: bool = False  # has a backward of its Function run in the program?

    @classmethod
    def of(cls, function, args, size):
        def copied(name, tensor):
            # One in a list, which has a name, is a constant: autograd looks at the
            # arguments themselves only.
            needs = tensor.requires_grad and not name
            made = tensor.detach().clone()
            if type(made) is not type(tensor) and not isinstance(
                tensor, torch.nn.Parameter
            ):
                raise TypeError(f"a copy of a {type(tensor).__name__} is none")
            carry(made, attributes_of(tensor))
            return made.requires_grad_(needs)

        known = {id(t) for a in args for t in held(a)}
        shared = {
            k: t for k, t in enumerate(args) if torch.is_tensor(t) and id(t) in known
        }
        given = ", ".join(
            f"({', '.join(map(str, t.shape))}) {t.dtype}".replace("torch.", "")
            for _, t in tensors(args)
        )
        with torch.no_grad(), without_modes():
            args = tuple(fresh(mapped(a, "", copied)) for a in args)
        called = where(sys._getframe(1))
        made = cls(function, args, autocasts(), size, called, given, shared)
        with torch.no_grad(), without_modes():
            made.values = [(t, t.detach().clone()) for t in made.held()]
        made.size += sum(t.numel() * t.element_size() for t, _value in made.values)
        return made

    def returned(self, result):
        """Keep what the program got, as numbers."""
        found = [t for _name, t in tensors(result) if has_gradient(t)]
        if all(map(has_numbers, found)):
            with torch.no_grad(), without_modes():
                self.outputs = [as_vector(t).clone() for t in found]

    @contextlib.contextmanager
    def as_then(self):
        """For a while, what a module holds is as it was at the call, without `.grad`."""
        now = [t.detach().clone() for t, _then in self.values]

        def put(values):
            with torch.no_grad():
                for (t, _then), value in zip(self.values, values, strict=True):
                    if not equal(t, value):
                        t.copy_(value)

        put(then for _t, then in self.values)
        try:
            with without_grads([t for t, _then in self.values if t.is_leaf]):
                yield
        finally:
            put(now)

    def held(self):
        """The tensors in the arguments that the doctor does not replace."""
        own = [getattr(v, "__func__", v) for v in vars(self.cls).values()]
        values = [*self.args, *own]  # of a static method, its function
        return {id(t): t for value in values for t in held(value)}.values()

    def to_examine(self):
        """(fn, args, kwargs) as `examine` takes them, with the call's autocast."""
        op, args, kwargs = operator(self.cls), self.args, {}

        def apply(*args, **kwargs):
            with contextlib.ExitStack() as stack:
                for device, dtype in self.autocasts:
                    stack.enter_context(torch.autocast(device, dtype))
                kwargs = {key: fresh(a) for key, a in kwargs.items()}
                args = [self.shared.get(k, fresh(a)) for k, a in enumerate(args)]
                return (op or self.cls.apply)(*args, **kwargs)

        if op:
            args, kwargs = args[:-1], args[-1].keyword_only_args
            apply.__name__ = op._name
            names = [argument.name for argument in op._schema.arguments]
            parameters = [
                Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names
            ]
            apply.__signature__ = inspect.Signature(parameters)
        else:
            # So that it is examined as the apply of a Function.
            apply.__self__ = self.cls
        return apply, args, kwargs


def fresh(value):
    """A copy of what may have a state, which is another after each call.

    Functions and modules are not copied, nor tensors, nor what they stand in.
    """
    if callable(value) or tensors(value):
        return value
    with contextlib.suppress(Exception):  # a file, a process group
        return copy.deepcopy(value)
    return value


# --- where ----------------------------------------------------------------------------


def where(frame):
    """In words, the line that called, and the module of which this is the forward."""
    owners = [f.f_locals.get("self") for f, _ in traceback.walk_stack(frame)]
    modules = [owner for owner in owners if isinstance(owner, torch.nn.Module)]
    frames = reversed(traceback.extract_stack(frame))
    frames = [f for f in frames if not f.filename.startswith((LIBRARY, HERE))]
    if not frames:
        return "a thread of the engine"
    said = [_("at {place}", place=spot(frames[0]))]
    said += [f"`{frames[0].line}`"] if frames[0].line else []
    far = (frames[0].filename, "<frozen", *LIBRARIES)
    callers = [f for f in frames if not f.filename.startswith(far)]
    said += [_("from {place}", place=spot(f)) for f in callers[:1]]
    if modules:
        names = [
            name for name, m in modules[-1].named_modules() if m is modules[0] and name
        ]
        kind = type(modules[0]).__name__
        which = f"`{names[0]}` ({kind})" if names else f"`{kind}`"
        said.append(_("in module {which}", which=which))
    return listed(said)


def spot(frame):
    """In words, the line that runs in this frame."""
    file, line = frame.filename, frame.lineno
    if "ipykernel" in file or file.startswith("<ipython"):
        said = _("line {line} of a cell", line=line)
    else:
        folders = [os.getcwd(), *filter(None, map(os.path.abspath, sys.path))]
        inside = [
            os.path.relpath(file, f) for f in folders if file.startswith(f + os.sep)
        ]
        said = f"{min(inside, key=len, default=file)}:{line}"
    if frame.name.startswith("<"):
        return said
    return _("{place} in {function}", place=said, function=frame.name)
