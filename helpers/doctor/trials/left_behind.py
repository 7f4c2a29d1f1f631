"""What a function keeps elsewhere than on ctx: where that may stand, what it was, and put back."""

import contextlib
import functools
import inspect
import sys
import types
import weakref

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..function.frames import LIBRARIES
from ..function.source import closure
from ..said import Said, listed

DEPTH, PLACES = 5, 300  # how far, and in how many objects, it is looked for at most
MANY = 10_000  # entries of a dict of which no copy is kept
DICTS = dict, weakref.WeakKeyDictionary, WeakIdKeyDictionary  # other mappings may be files
OF_MODULES = vars(torch.nn.Module()).keys()  # such as `_parameters`
LEFT = "what calls leave elsewhere than on ctx: {names}"
OUTSIDE = "what is kept outside ctx, and memory never filled, as of torch.empty"
CACHE, ABSENT = functools._lru_cache_wrapper, object()


class Outside:
    """The places where one call of a function may find what another one has left.

    These are the globals that its code names, and the attributes of the functions, classes, modules
    and objects, and the entries of dicts, that can be reached from there, from its closure and from
    its arguments.

    spaces: (prefix, dict or class, names that count there or None for all)
    """

    def __init__(self, subject):
        self.spaces, self.caches, known = [], [], set()
        owner = subject.scope.module if subject.is_module else subject.cls
        found = [("", subject.fn), *subject.arguments.items(), ("self", owner)]
        for _ in range(DEPTH):
            found = {id(value): (label, value) for label, value in found if id(value) not in known}
            known |= found.keys()
            self.caches += [value for _, value in found.values() if isinstance(value, CACHE)]
            new = [space for pair in list(found.values())[:PLACES] for space in spaces(*pair)]
            self.spaces += new
            found = [(said(s, name), value) for s in new for name, value in contents(s).items()]
        self.start = self.now()

    def now(self):
        """What stands in each of the spaces: {name: value}."""
        return [contents(space) for space in self.spaces]

    def differences(self, before, after):
        """(space, name, value before or ABSENT) where something else stands."""
        for space, old, new in zip(self.spaces, before, after, strict=True):
            for name in {**old, **new}:
                if not is_same(old.get(name, ABSENT), new.get(name, ABSENT)):
                    yield space, name, old.get(name, ABSENT)

    @property
    def left(self):
        """Where to look for what calls have left, by name if it is known: `Said`."""
        names = [f"`{place}`" for place in self.changed()[:3]]
        return Said(LEFT, names=listed(names)) if names else Said(OUTSIDE)

    def changed(self):
        """The names of the places where something else stands now than before the first call."""
        found = self.differences(self.start, self.now())
        return sorted({said(space, name) for space, name, _ in found})

    def restore(self, state=None):
        """Put back what stood there at that time; by default, before the first call."""
        state = self.start if state is None else state
        for (_, owner, _), name, value in list(self.differences(state, self.now())):
            if isinstance(owner, type):
                delattr(owner, name) if value is ABSENT else setattr(owner, name, value)
            elif value is ABSENT:
                owner.pop(name, None)
            else:
                owner[name] = value
        for cache in self.caches:
            cache.cache_clear()

    @contextlib.contextmanager
    def as_before(self):
        """Inside, all is as it was before the first call; at the end, it is as it is now again."""
        now = self.now()
        self.restore()
        try:
            yield
        finally:
            self.restore(now)


def spaces(label, value):
    """The spaces of a value: its own, and of what it is bound to; of libraries, none."""
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, DICTS) and len(value) < MANY:
        yield label, value, None
    elif isinstance(value, (types.MethodType, functools.partial)):
        bound = {"self": "__self__", "func": "__func__", "call": "func"}
        yield "", {name: getattr(value, there, None) for name, there in bound.items()}, None
    elif isinstance(value, types.FunctionType) and is_own(value):
        yield "", value.__globals__, set(value.__code__.co_names)
        yield "", closure(value), None
        yield f"{value.__name__}.", vars(value), None
    elif isinstance(value, torch.nn.Module):
        for path, part in value.named_modules():
            prefix = "".join(f"{name}." for name in (label, path) if name)
            yield from ((prefix, held, None) for held in (vars(part), part._buffers))
            yield "", {type(part).__name__: type(part)}, None
    elif isinstance(value, type) and is_own(value):
        yield from ((f"{value.__name__}.", cls, None) for cls in value.__mro__ if is_own(cls))
    elif hasattr(value, "__dict__") and is_own(type(value)):
        yield f"{label}.", vars(value), None
        yield "", {type(value).__name__: type(value)}, None


def contents(space):
    """{name: value} of what stands in a space now."""
    _, owner, names = space
    held = dict(vars(owner) if isinstance(owner, type) else owner)
    if names is not None:
        return {name: held[name] for name in names & held.keys()}
    private = {n for n in held if isinstance(n, str) and (n in OF_MODULES or n.startswith("__"))}
    return {name: value for name, value in held.items() if name not in private}


def said(space, name):
    """In words, a place: an entry of a dict is said to be the dict."""
    prefix = space[0]
    return prefix if prefix and not prefix.endswith(".") else f"{prefix}{name}"


def is_own(value):
    """Is it a function or a class of the user, not of a library?"""
    name = getattr(value, "__module__", None) or value.__name__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    if isinstance(value, types.FunctionType):
        file = value.__code__.co_filename
    return name not in sys.builtin_module_names and not file.startswith(LIBRARIES)


def is_same(one, other):
    """Is it the same object, or an equal number or text?"""
    alike = type(one) is type(other) and isinstance(one, (int, float, str))
    return one is other or alike and one == other
