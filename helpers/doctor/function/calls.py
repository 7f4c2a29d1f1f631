"""The calls of Functions in a running program: noticed, told apart, copied, and made again."""

import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import linecache
import os
import sys
import sysconfig
import types
from inspect import Parameter

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .private import methods, operator, transforming
from .tensors import mapped, tensors
from .variations import takes_ctx

# --- which Function, and which call of it ---------------------------------------------------------


def full_name(cls):
    op = operator(cls)
    return op._name if op else f"{cls.__module__}.{cls.__qualname__}"


def kind(cls):
    """The same for a class that is defined anew at each call."""
    return (full_name(cls), *(pattern(getattr(cls, name)) for name in ("forward", "backward")))


PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)


def pattern(value, depth=4):
    """What calls that are examined only once have in common; it holds nothing of the program."""
    if isinstance(value, torch.Tensor):
        return (*value.shape, value.dtype, value.layout, value.device.type, value.requires_grad)
    if isinstance(value, PLAIN):
        return (type(value), value)
    if depth and isinstance(value, (tuple, list)):
        return (type(value), *(pattern(item, depth - 1) for item in value))
    if depth and isinstance(value, dict):
        return (dict, *((str(key), pattern(item, depth - 1)) for key, item in value.items()))
    if depth and isinstance(value, functools.partial):
        return pattern((value.func, value.args, value.keywords), depth - 1)
    if depth and isinstance(value, types.FunctionType):
        return (value.__code__, *(pattern(item, depth - 1) for item in cells(value)))
    return type(value)


def cells(fn):
    """What the closure of a function holds."""
    held = []
    for cell in getattr(fn, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not filled yet
            held.append(cell.cell_contents)
    return held


def autocasts():
    """(device, dtype) of every autocast that is on."""
    devices = {"cpu"}
    if torch.accelerator.is_available():
        devices.add(torch.accelerator.current_accelerator().type)
    on = sorted(device for device in devices if torch.is_autocast_enabled(device))
    return tuple((device, torch.get_autocast_dtype(device)) for device in on)


# --- a call, copied -------------------------------------------------------------------------------


@dataclasses.dataclass
class Call:
    """One call that will be examined, with copies of the tensors that it was handed."""

    cls: type
    args: tuple
    kwargs: dict
    autocasts: tuple
    size: int  # bytes of the copies
    called: str  # where
    given: str  # shapes and dtypes
    shared: dict  # by place: what is handed over, and held by a module, say, that is, too

    @classmethod
    def of(cls, function, args, kwargs, size):
        def copied(name, tensor):
            # One in a list is a constant: autograd looks at the arguments themselves only.
            needs = tensor.requires_grad and "[" not in name and "." not in name
            made = tensor.detach().clone()
            if type(made) is not type(tensor) and not isinstance(tensor, torch.nn.Parameter):
                raise TypeError(f"a copy of a {type(tensor).__name__} is none")
            return made.requires_grad_(needs)

        known = {id(t) for a in (*args, *kwargs.values()) for t in held(a)}
        shared = {
            k: t for k, t in enumerate(args) if isinstance(t, torch.Tensor) and id(t) in known
        }
        given = ", ".join(shaped_as(t) for _, t in tensors((args, kwargs)))
        with torch.no_grad(), _disable_current_modes():
            args = tuple(fresh(mapped(a, "", copied)) for a in args)
            kwargs = {key: fresh(mapped(a, "", copied)) for key, a in kwargs.items()}
        called = where(sys._getframe(1))
        return cls(function, args, kwargs, autocasts(), size, called, given, shared)

    def again(self):
        """(fn, args, kwargs), as `examine` takes them."""
        op, args, kwargs = operator(self.cls), self.args, self.kwargs
        if op:
            args, kwargs = args[:-1], args[-1].keyword_only_args
        return Again(op, self), args, kwargs

    def held(self):
        """The tensors that the arguments hold where the doctor does not replace them."""
        values = [*self.args, *self.kwargs.values(), *vars(self.cls).values()]
        values = [getattr(v, "__func__", v) for v in values]  # of a static method
        return {id(t): t for value in values for t in held(value)}.values()


def heard_by(hear):
    """For a while, in all threads, hear(cls, args) runs before the forward of a Function.

    What it returns, if anything, is called if forward raises.
    """

    def way(method, cls, *given):
        if transforming():
            return method(*given)
        take_back = hear(cls, given[takes_ctx(cls) :])
        try:
            return method(*given)
        except BaseException:
            if take_back:
                take_back()
            raise

    return methods("forward", way, everywhere=True)


class Again:
    """The apply of a Function (or its operator), under the autocast of the call, with fresh state.

    `__self__` tells the doctor that it is the bound method of a Function.
    """

    def __init__(self, op, call):
        if op is None:
            self.__self__ = call.cls
        self.target, self.autocasts, self.shared = op or call.cls.apply, call.autocasts, call.shared
        self.__name__ = op._name if op else call.cls.__name__
        if op:
            names = [argument.name for argument in op._schema.arguments]
            parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
            self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *args, **kwargs):
        with contextlib.ExitStack() as stack:
            for device, dtype in self.autocasts:
                stack.enter_context(torch.autocast(device, dtype))
            kwargs = {key: fresh(a) for key, a in kwargs.items()}
            args = [self.shared.get(k, fresh(a)) for k, a in enumerate(args)]
            return self.target(*args, **kwargs)


def fresh(value):
    """A copy of what may have a state, which is another after each call.

    No copies of functions and modules, and none of tensors or of what they stand in.
    """
    if isinstance(value, (torch.Tensor, float, *PLAIN)) or callable(value) or tensors(value):
        return value
    with contextlib.suppress(Exception):  # a file, a process group
        return copy.deepcopy(value)
    return value


def held(value, replaced=True, depth=4):
    """The tensors in modules, closures, bound methods and objects, but in no list of tensors."""
    if isinstance(value, torch.Tensor):
        return [] if replaced else [value]
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if not depth or isinstance(value, (type, types.ModuleType, *PLAIN)):
        return []
    if isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, functools.partial):
        inner, replaced = (value.func, *value.args, *value.keywords.values()), False
    else:
        inner = [*cells(value), *globals_of(value), getattr(value, "__self__", None)]
        inner += getattr(value, "__dict__", {}).values()
        replaced = False
    return [t for item in inner for t in held(item, replaced, depth - 1)]


def globals_of(fn):
    """The tensors, modules and functions that a function finds among its globals."""
    if not isinstance(fn, types.FunctionType) or (fn.__module__ or "").startswith("torch."):
        return []
    named = [fn.__globals__.get(name) for name in fn.__code__.co_names]
    kinds = torch.Tensor, torch.nn.Module, types.FunctionType, functools.partial
    return [value for value in named if isinstance(value, kinds)]


def shaped_as(tensor):
    sizes = ", ".join(map(str, tensor.shape))
    return f"({sizes}) {tensor.dtype}".replace("torch.", "")


# --- where ----------------------------------------------------------------------------------------

LIBRARIES = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
LIBRARIES = tuple(os.path.join(folder, "") for folder in LIBRARIES)
NEVER = tuple(os.path.join(os.path.dirname(f), "") for f in (torch.__file__, __file__))


def where(frame):
    """The line that called, who called that from another file, and the path of the module."""
    lines, modules = [], []
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and not any(owner is m for m in modules):
            modules.append(owner)
        never = (*NEVER, *LIBRARIES, "<frozen") if lines else NEVER
        if len(lines) < 2 and not file.startswith(never) and file not in [f for f, *_ in lines]:
            lines.append((file, frame.f_lineno, name, frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    if not lines:
        return "a thread of the engine"
    said = [f"{word} {place(*line)}" for word, line in zip(("at", "from"), lines, strict=False)]
    text = linecache.getline(*lines[0][:2]).strip()
    said[0] += f", `{text}`" if text else ""
    if modules:
        said.append(f"in module {path(modules[0], modules[-1])}")
    return ", ".join(said)


def place(file, number, function, module):
    below = os.path.join(os.getcwd(), "")
    if "ipykernel" in file or file.startswith("<ipython"):
        spot = f"line {number} of a cell"
    elif file.startswith(below) or module == "__main__":
        spot = f"{file.removeprefix(below)}:{number}"
    else:  # from the folder on that holds the package
        depth = module.count(".") + 1 + (os.path.basename(file) == "__init__.py")
        spot = "/".join(file.split(os.sep)[-depth:]) + f":{number}"
    return spot if function.startswith("<") else f"{spot} in {function}"


def path(module, root):
    kind = type(module).__name__
    names = [name for name, m in root.named_modules() if m is module and name]
    return f"`{names[0]}` ({kind})" if names else f"`{kind}`"
