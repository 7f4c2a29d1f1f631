"""What a function keeps elsewhere than on ctx: where that may stand, what it was, and put back."""

import ast
import contextlib
import functools
import inspect
import sys
import types
import weakref

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..function.calls import LIBRARIES
from ..function.private import BackwardCFunction
from ..function.source import nodes_of
from ..function.subject import graph
from ..function.surroundings import forgiving
from ..function.watched import saving
from ..measure.measurement import Measurement, Point
from ..report import error

DEPTH, PLACES = 5, 300  # how far, and in how many objects, it is looked for at most
MANY = 10_000  # entries of a dict of which no copy is kept
BOUND = (types.MethodType, types.BuiltinMethodType, functools.partial, staticmethod, classmethod)
NEVER = (type, types.ModuleType, types.FunctionType, property, torch.nn.Module, torch.nn.Parameter,
         functools._lru_cache_wrapper, *BOUND)  # fmt: skip
# Not other mappings, which may be files.
DICTS = dict, weakref.WeakKeyDictionary, WeakIdKeyDictionary
OF_MODULES = vars(torch.nn.Module()).keys()  # such as `_parameters`


class Outside:
    """The places where one call of a function may find what another one has left.

    These are the globals that its code names, and the attributes of the functions, classes, modules
    and objects that can be reached from there, from its closure and from its arguments.
    """

    def __init__(self, subject):
        self.spaces, self.caches, known = [], [], set()
        owner = subject.scope.module if subject.is_module else subject.cls
        found = [("", subject.fn), *subject.arguments.items(), ("self", owner)]
        for _ in range(DEPTH):
            found = {id(value): (label, value) for label, value in found if id(value) not in known}
            known |= found.keys()
            found = list(found.values())[:PLACES]
            self.caches += [v for _, v in found if isinstance(v, functools._lru_cache_wrapper)]
            new = [space for pair in found for space in spaces(*pair)]
            self.spaces += new
            found = [(name, v) for _, _, held in map(opened, new) for name, v in held.items()]
        self.start = self.now()

    def now(self):
        """{in words: (owner, name, value, its entries if it is a dict)} of what stands there."""
        found = {}
        for prefix, owner, held in map(opened, self.spaces):
            for name, value in held.items():
                own = name not in OF_MODULES and not str(name).startswith("__")
                if own and not isinstance(value, NEVER):
                    small = isinstance(value, DICTS) and len(value) < MANY
                    entries = dict(value) if small else None
                    found[f"`{prefix}{name}`"] = owner, name, value, entries
        return found

    def changed(self, before, after=None):
        """In words, where something else stands, or a dict has other entries."""
        after = self.now() if after is None else after
        return [place for place in sorted({*before, *after})
                if not is_same(before.get(place), after.get(place))]  # fmt: skip

    def restore(self, state=None):
        """Put back what stood there at that time; by default, before the first call."""
        state, now = self.start if state is None else state, self.now()
        for place in self.changed(state, now):
            owner, name, *what = state.get(place) or now[place][:2]
            put_back(owner, name, *what)
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
    """The places in a value: (prefix, dict or class, names that count there or None for all)."""
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, BOUND):  # it leads to what it is bound to
        known = {name: getattr(value, name, None) for name in ("__self__", "__func__", "func")}
        yield "", known, None
    elif isinstance(value, types.FunctionType) and is_own(value):
        names = {name for code in codes(value.__code__) for name in code.co_names}
        yield "", value.__globals__, names
        for name in names & value.__globals__.keys():
            module = value.__globals__[name]
            if isinstance(module, types.ModuleType) and is_own(module):
                yield f"{name}.", vars(module), names
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        with contextlib.suppress(ValueError):  # not filled yet
            yield "", {name: cell.cell_contents for name, cell in cells}, None
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


def opened(space):
    """(prefix, owner, {name: value}) of a space, as it is now."""
    prefix, owner, names = space
    held = dict(vars(owner) if isinstance(owner, type) else owner)
    return prefix, owner, {k: v for k, v in held.items() if names is None or k in names}


def codes(code):
    """A code and those within it, as of lambdas."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes(inner)


def is_own(value):
    """Is it a function, a class or a module of the user, not of a library?"""
    name = getattr(value, "__module__", None) or value.__name__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    if isinstance(value, types.FunctionType):
        file = value.__code__.co_filename
    return name not in sys.builtin_module_names and not file.startswith(LIBRARIES)


def is_same(one, other):
    """Is it the same value, with the same entries if it is a dict?"""
    if one is None or other is None:
        return one is other
    (*_, a, was), (*_, b, now) = one, other
    if a is b:
        return was is None or ids(was) == ids(now)
    return type(a) is type(b) and isinstance(a, (int, float, str)) and a == b


def ids(entries):
    """What tells whether the entries of a dict are others."""
    return [(id(key), id(value)) for key, value in entries.items()]


def put_back(owner, name, *what):
    """Let this value stand there, with these entries; nothing, where none is given."""
    held = vars(owner) if isinstance(owner, type) else owner
    if not what:
        delattr(owner, name) if isinstance(owner, type) else held.pop(name, None)
        return
    value, entries = what
    if held.get(name) is not value:
        setattr(owner, name, value) if isinstance(owner, type) else held.update({name: value})
    if entries is not None:
        value.clear()
        value.update(entries)


# --- why a gradient is wrong, or another one ------------------------------------------------------


def nodes(exam):
    """The nodes of Functions written in Python, between outputs and inputs."""
    return [node for node in graph(exam.run.outputs) if isinstance(node, BackwardCFunction)]


def idle(exam):
    """In words, what a backward has at hand and never uses."""
    found = []
    for cls, held in {node._forward_cls: vars(node) for node in nodes(exam)}.items():
        names = [n for n in nodes_of(cls.backward) if isinstance(n, (ast.Name, ast.Attribute))]
        used = {ast.unparse(n) for n in names if not isinstance(n.ctx, ast.Store)}
        here = {ast.unparse(n) for n in names if isinstance(n, ast.Name)}
        kept = {f"ctx.{name}" for name, t in held.items() if isinstance(t, torch.Tensor)}
        found += [name for name in sorted(here | kept) if name not in used and name[0] != "_"]
    names = [f"`{name}`" for name in found]
    which = f"{', '.join(names[:-1])} or {names[-1]}" if names[1:] else "".join(names)
    return f"; and why backward never uses {which}" if names else ""


FIRST_CALL_KEPT = error(
    "first-call-kept",
    "The gradient of {x} is right only while nothing is kept of another call: it follows what that "
    "one has left.",
    look="what is made once, and kept: {names}; a key must tell apart all that is kept under it",
)


def of_other_calls(exam, case):
    """The words of FIRST_CALL_KEPT, if a wrong gradient is right without earlier calls; or None."""
    names = exam.outside.changed(exam.outside.start)
    for late in (False, True) if names else ():
        with forgiving(), exam.outside.as_before():
            run = case.subject.run(case.point.values)
            if late:
                exam.outside.restore()
            if case.fits(case.rows_of(run)):
                return {"names": " and ".join(names)}
    return None


def right_with_copies(exam, case):
    """Where tensors are saved, in words, if the gradient is right with copies of them."""
    places = {}

    def copies(saved, frame):
        places[f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"] = None
        return [None if t is None else t.clone() for t in saved]

    with saving(copies):
        point = Point(exam.subject, case.point.values, exam.dice)
        right = not Measurement(point, case.i, case.o, exam.tolerance).wrong.any()
    return ", and ".join(places) if right else None
