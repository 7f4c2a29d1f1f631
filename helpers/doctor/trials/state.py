"""The state that calls keep elsewhere than on ctx: noticed, and put back."""

import contextlib
import functools
import inspect
import random
import types

import torch

from ..function.calls import held
from ..function.source import LIBRARIES, closure
from ..function.tensors import equal

DEPTH, PLACES = 4, 300  # how far, and in how many objects, it is looked for at most
MANY = 10_000  # entries of a dict of which no copy is kept
OF_MODULES = vars(torch.nn.Module()).keys()  # such as `_parameters`
ABSENT = object()


class State:
    """The places where one call of a function may find what another one has left.

    These are the globals that its code names, the attributes of functions, classes,
    modules and objects, and the entries of dicts, that can be reached from there, from
    its closure and from its arguments.

    places: pairs (dict or class, names that count there or None for all)
    """

    def __init__(self, subject):
        self.places, known = [], {}
        owner = subject.scope.module if subject.is_module else subject.cls
        found = [subject.fn, owner, *subject.arguments.values()]
        for _depth in range(DEPTH):
            found = {id(value): value for value in found if id(value) not in known}
            known |= found
            new = [place for v in [*found.values()][:PLACES] for place in places(v)]
            self.places += new
            found = [value for place in new for value in contents(*place).values()]
        known |= {id(value): value for value in found}
        self.start = self.now()
        self.generators = [g for value in known.values() for g in rewinding(value)]
        reached = (
            t for v in (subject.fn, *subject.arguments.values()) for t in held(v)
        )
        leaves = {id(t): t for t in reached if t.is_leaf}.values()
        self.grads = [
            (t, t.grad, None if t.grad is None else t.grad.clone()) for t in leaves
        ]

    def now(self):
        """What stands in each of the places: {name: value}."""
        return [contents(*place) for place in self.places]

    def differences(self, before):
        """(owner, name, value before or ABSENT) where something else stands now."""
        triples = zip(self.places, before, self.now(), strict=True)
        for (owner, _names), old, new in triples:
            for name in {**old, **new}:
                if not is_same(old.get(name, ABSENT), new.get(name, ABSENT)):
                    yield owner, name, old.get(name, ABSENT)

    def changed(self):
        """Does something else stand anywhere than before the first call?"""
        return any(True for _place in self.differences(self.start))

    def restore(self, state=None):
        """Put back what stood there at that time; by default, before the first call."""
        if state is None:
            for rewind, start in self.generators:
                rewind(start)
            for leaf, grad, numbers in self.grads:
                leaf.grad = grad
                if grad is not None and not equal(grad, numbers):
                    grad.data.copy_(numbers)
            state = self.start
        for owner, name, value in list(self.differences(state)):
            if isinstance(owner, type):
                delattr(owner, name) if value is ABSENT else setattr(owner, name, value)
            elif value is ABSENT:
                owner.pop(name, None)
            else:
                owner[name] = value

    @contextlib.contextmanager
    def as_before(self):
        """Inside, all is as it was before the first call; then as it is now again."""
        now = self.now()
        self.restore()
        try:
            yield
        finally:
            self.restore(now)


def rewinding(value):
    """Yields what sets it back, and to what, if it is a generator of random numbers."""
    if isinstance(value, torch.Generator):
        yield value.set_state, value.get_state()
    elif isinstance(value, random.Random):
        yield value.setstate, value.getstate()
    elif hasattr(type(value), "_bit_generator"):  # of NumPy
        bits = value._bit_generator
        yield functools.partial(setattr, bits, "state"), bits.state


def places(value):
    """The places of a value; of libraries, none."""
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, types.MethodType):
        yield {"self": value.__self__, "function": value.__func__}, None
    elif isinstance(value, types.FunctionType) and is_own(value):
        yield value.__globals__, set(value.__code__.co_names)
        yield closure(value), None
        yield vars(value), None
    elif isinstance(value, type) and is_own(value):
        yield from ((cls, None) for cls in value.__mro__ if is_own(cls))
    elif isinstance(value, dict) and len(value) < MANY:
        yield value, None
    elif isinstance(value, torch.nn.Module) or is_own(type(value)):
        for part in value.modules() if isinstance(value, torch.nn.Module) else [value]:
            yield getattr(part, "__dict__", {}), None
            yield getattr(part, "_buffers", {}), None
            yield {"class": type(part)}, None


def contents(owner, names):
    """{name: value} of what stands in a place now."""
    held = dict(vars(owner) if isinstance(owner, type) else owner)
    if names is None:
        texts = {name for name in held if isinstance(name, str)}
        names = held.keys() - {n for n in texts if n in OF_MODULES or n[:2] == "__"}
    return {name: held[name] for name in names if name in held}


def is_own(value):
    """Is it a function or a class of the user, not of a library?"""
    try:
        return not inspect.getfile(value).startswith(LIBRARIES)
    except (TypeError, OSError):  # of C, or of no file
        return value.__module__ not in ("builtins", None)


def is_same(one, other):
    """Is it the same object, or an equal number or text?"""
    alike = type(one) is type(other) and isinstance(one, (int, float, str))
    return one is other or alike and one == other
