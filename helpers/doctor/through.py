"""Forward, seen through: each call of PyTorch that its code makes, and its derivative changed."""

import ast
import contextlib
import functools
import inspect
import re

import torch
from torch.autograd.graph import get_gradient_edge

from .cuts import CUTS
from .plain import is_number
from .steps import STEPS, Step, Watch, frame_of_a_step, source


class ForwardStep(Step):
    """One call of PyTorch in forward; `text` is its derivative, `whole` the call.

    parts: which of its arguments have a gradient, each a tuple of places: a tensor may stand twice
    round: how often this call was made before; rounds: the steps of all rounds, of another run
    recorded: {site: steps} of that run
    """

    def __init__(self, frame, scope, func, args, kwargs, recorded):
        super().__init__(frame, scope, func, args, kwargs)
        self.whole, self.text = self.text, f"the derivative of {self.text}"
        parts = {}
        for where in (*range(len(args)), *kwargs):
            t = self.argument(where)
            if is_number(t) and t.requires_grad:
                parts.setdefault(id(t), []).append(where)
        self.parts = [tuple(part) for part in parts.values()]
        self.recorded, self.pieces, self.value, self.in_place = recorded, (), None, False

    def made_of(self, value):
        """Notes what the call made; of a tuple in which one tensor has a gradient, this one."""
        if isinstance(value, (tuple, list)):
            self.pieces = [k for k, t in enumerate(value) if is_number(t) and t.requires_grad]
            if self.pieces != [0]:
                return
            value = value[0]
        self.in_place = value is None or any(value is a for a in self.args[:1])
        if is_number(value) and value.requires_grad and not self.in_place:
            self.made(value)
            self.edge = get_gradient_edge(value)

    def makes(self, change):
        """What is returned to forward, after this change."""
        if self.rounds[0].pieces != [0]:
            return change(self)
        everything, func = [], self.func

        def first(*args, **kwargs):
            everything[:] = [func(*args, **kwargs)]
            return everything[0][0]

        self.func = first
        new = change(self)
        return type(everything[0])((new, *everything[0][1:]))

    def written_as(self, part):
        """How these arguments are written; of those that are written alike, which one it is."""
        written = operands(self.whole.split("`")[1], len(self.args))
        name = written.get(part[0], "an operand")
        alike = [where for where, other in written.items() if other == name]
        if not alike[1:] or set(part) == set(alike):
            return name
        return f"the {('first', 'second', 'third')[alike.index(part[0]) % 3]} {name}"

    def call(self, new=None):
        """The call, with other arguments: {place: argument}."""
        new = new or {}
        args = [new.get(k, a) for k, a in enumerate(self.args)]
        return self.func(*args, **{k: new.get(k, a) for k, a in self.kwargs.items()})

    def without(self, *kept):
        """{place: constant} for all arguments that have a gradient, but for these."""
        places = (where for part in self.parts for where in part if where not in kept)
        return {where: self.argument(where).detach() for where in places}

    def in_round(self, n, where):
        """The argument of another round; before the first, zeros; after the last, what was made."""
        if 0 <= n < len(self.rounds):
            return self.rounds[n].argument(where)
        _, *later = [step.argument(where) for step in self.rounds]
        for made in self.recorded.values() if n > 0 else ():
            if len(made) == n and all(map(same, [step.value for step in made], later)):
                return made[-1].value
        return torch.zeros_like(later[0])

    def with_argument(self, where, new):
        """The derivative with another argument in this place, and that to the one which was there.

        Its value is that of the call with the other argument.
        """
        made = self.call({where: new.detach() if torch.is_tensor(new) else new})
        if not is_number(made) or made.dim() > self.value.dim():
            raise ValueError("what follows could not use it")
        if any(where in part for part in self.parts):
            own = self.call(self.without(where))
            made = made + own - own.detach()
        return made.expand(self.value.shape)

    def of_leaves(self):
        """The same step with leaves for the parts; and these."""
        local = object.__new__(type(self))
        vars(local).update(vars(self))
        leaves = [self.argument(p[0]).detach().clone().requires_grad_() for p in self.parts]
        new = {where: t for part, t in zip(self.parts, leaves, strict=True) for where in part}
        local.args = tuple(new.get(k, a) for k, a in enumerate(self.args))
        local.kwargs = {k: new.get(k, a) for k, a in self.kwargs.items()}
        with torch.enable_grad():
            made = local.call()
        local.value = made[0] if self.pieces else made
        return local, leaves


@functools.lru_cache
def operands(text, count):
    """{place: how it is written} of the arguments of the call that this expression is."""
    with contextlib.suppress(SyntaxError):
        match ast.parse(text, mode="eval").body:
            case ast.BinOp(left=left, right=right):
                found = [left, right]
            case ast.UnaryOp(operand=one) | ast.Attribute(value=one) | ast.Subscript(value=one):
                found = [one]
            case ast.Call(func=ast.Attribute(value=one), args=args) if len(args) == count - 1:
                found = [one, *args]
            case ast.Call(args=args):
                found = args
            case _:
                found = []
        return {k: f"`{ast.unparse(node)}`" for k, node in enumerate(found)}
    return {}


def is_plain(name):
    """Is it clear with respect to what a derivative is meant, if nothing is said?"""
    return re.fullmatch(r"`[\w.]+`|an operand", name) is not None


def same(a, b):
    return is_number(a) and a.shape == b.shape and torch.equal(a, b)


class Through(Watch):
    """Notes the calls of forward, of which autograd makes a graph, or changes some.

    changes: {site: change}, what is computed in the place of the calls of this site; and
             {(Function, name): number} of an argument of its forward
    recorded: {site: steps}, those of a run without changes
    numbers: {(Function, name): number}, those that forward was given
    """

    def __init__(self, changes=None, recorded=None):
        super().__init__({}, changes=changes)
        self.sites, self.numbers = {}, {}
        self.recorded = self.sites if recorded is None else recorded

    def call(self, cls, args, kwargs):
        """What forward returns for these arguments, or for those that are changed."""
        bound = inspect.signature(cls.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self.numbers[cls, name] = value
                bound.arguments[name] = (self.changes or {}).get((cls, name), value)
        return cls.forward(*bound.args, **bound.kwargs)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, frame = kwargs or {}, frame_of_a_step()
        with torch.enable_grad():
            if func in CUTS and is_number(args[0]):
                return args[0].view_as(args[0])
            value = self.step(frame, func, args, kwargs)
        if frame is not None and is_number(value):
            self.note(source(frame), value, frame.f_code)
        return value

    def step(self, frame, func, args, kwargs):
        site = frame and (frame.f_code, frame.f_lasti)
        graded = any(t.requires_grad for t in (*args, *kwargs.values()) if is_number(t))
        looks = self.changes is None or site in self.changes
        if frame is None or not graded or not looks or len(self.steps) >= STEPS:
            return func(*args, **kwargs)
        step = ForwardStep(frame, self.scope(frame), func, args, kwargs, self.recorded)
        of_site = self.sites.setdefault(site, [])
        step.round, step.rounds = len(of_site), self.recorded.get(site, of_site)
        of_site.append(step)
        if self.changes is not None:
            return step.makes(self.changes[site])
        value = func(*args, **kwargs)
        step.made_of(value)
        self.steps.append(step)
        return value
