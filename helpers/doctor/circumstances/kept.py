"""What forward keeps, on ctx and elsewhere, what backward uses of it, and what it finds instead."""

import ast
import contextlib
import inspect

import torch

from ..function.private import methods, takes_ctx
from ..function.source import nodes_of, only_compute
from ..function.surroundings import CallError, forgiving
from ..function.tensors import Dice, tensors
from ..function.watched import saving
from ..measure.measurement import Measurement, Point
from .forward import nodes


def unused(cls):
    """What backward has at hand and never uses: its variables, and what forward puts on ctx."""
    backward = nodes_of(cls.backward)
    kept = [n for of in (cls.forward, cls.setup_context) for n in nodes_of(of) if is_of_ctx(n)]
    kept = [n for n in kept if n.attr != "needs_input_grad"] if is_all_there_is(backward) else []
    backward = [n for n in backward if n not in filled(backward)]
    for node in backward:
        match node:  # what has a shape has sizes that nobody needs
            case ast.Assign(targets=[ast.Tuple() as names], value=value):
                if not ast.unparse(value).endswith("saved_tensors"):
                    backward = [n for n in backward if n not in names.elts]
    named = [n for n in (*backward, *kept) if isinstance(getattr(n, "ctx", None), ast.Store)]
    used = {ast.unparse(n) for n in backward if isinstance(getattr(n, "ctx", None), ast.Load)}
    texts = [ast.unparse(n) for n in named if isinstance(n, ast.Name) or is_of_ctx(n)]
    return [text for text in dict.fromkeys(texts) if text not in used and text[0] != "_"]


def idle(exam):
    """In words, what a backward has at hand and never uses."""
    some = {node._forward_cls: vars(node) for node in nodes(exam)}
    pairs = [(name, held) for cls, held in some.items() for name in unused(cls)]
    names = [f"`{name}`" for name, held in pairs
             if "." not in name or isinstance(held.get(name[4:]), torch.Tensor)]  # fmt: skip
    which = f"{', '.join(names[:-1])} or {names[-1]}" if names[1:] else "".join(names)
    return f"; and why backward never uses {which}" if names else ""


def filled(nodes):
    """The names of what is not read, only filled."""
    return [n.value for n in nodes
            if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]  # fmt: skip


def is_all_there_is(nodes):
    """Is ctx used for its attributes only, and not handed over?"""
    names = [n for n in nodes if isinstance(n, ast.Name) and n.id == "ctx"]
    return len(names) == sum(map(is_of_ctx, nodes))


def left_outside(cls, *others):
    """{expression: line} of what forward, or one of the others, writes and backward reads."""
    # Not what is on ctx, nor what has a name in the function only.
    found, read = {}, nodes_of(cls.backward)
    names = {n.id for n in read if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    names |= {n.attr for n in read if isinstance(n, ast.Attribute) and not is_of_ctx(n)}
    for fn in (cls.forward, cls.setup_context, *others):
        nodes = nodes_of(fn)
        known = {name for n in nodes if isinstance(n, ast.Global) for name in n.names}
        for node in nodes:
            match node:
                case ast.Attribute(ctx=ast.Store()):
                    of = node
                case ast.Subscript(value=of, ctx=ast.Store()):
                    known |= fn.__globals__.keys() & {ast.unparse(of)}
                case ast.Call(func=ast.Attribute(value=of, attr=how)) if changes(how):
                    known |= fn.__globals__.keys() & {ast.unparse(of)}
                case ast.Name(id=name, ctx=ast.Store()) if name in known:
                    of = node
                case _:
                    continue
            is_attribute = isinstance(of, ast.Attribute) and not is_of_ctx(of)
            name = of.attr if is_attribute else getattr(of, "id", None)
            if name in names and (is_attribute or name in known):
                found.setdefault(ast.unparse(of), node.lineno)
    return found


def is_of_ctx(node):
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ctx"


def changes(method):
    return method in ("append", "update", "setdefault") or method.endswith("_")


def caches_of(cls):
    """{name: dict} of those of a Function's class, and of the modules of what it calls."""
    own = {f"`{cls.__name__}.{name}`": value for name, value in vars(cls).items()}
    methods = staticmethod, classmethod
    called = [of.__func__ for of in vars(cls).values() if isinstance(of, methods)]
    return {a: value for a, value in own.items() if isinstance(value, dict)} | dicts_of(called)


def dicts_of(functions):
    """{name: dict} of the modules of these functions, and of what they call, by its name there."""
    called, found = list(functions), {}
    for fn in (inspect.unwrap(of) for of in called):
        values = {name: fn.__globals__.get(name) for name in fn.__code__.co_names}
        called += [of for of in values.values() if inspect.isfunction(of) and of not in called]
        found |= {f"`{name}`": value for name, value in values.items() if isinstance(value, dict)}
    return found


@contextlib.contextmanager
def dicts_kept(dicts):
    """Afterwards, they are what they were."""
    before = [(d, dict(d)) for d in dicts]
    try:
        yield
    finally:
        for d, content in before:
            d.clear()
            d.update(content)


def kept_outside(exam):
    """In words, what forward writes elsewhere than on ctx, and backward reads."""
    module = type(exam.subject.scope.module) if exam.subject.is_module else None
    others = [fn] if inspect.isfunction(fn := getattr(module, "forward", None)) else []
    found = {}
    for cls in dict.fromkeys(node._forward_cls for node in nodes(exam)):
        found |= left_outside(cls, *others)
    return [f"`{text}` (line {line})" for text, line in found.items()]


def replaced(case):
    """The names of what is put elsewhere than on ctx, and replaced before backward reads it.

    That is, if the gradient is right where backward finds there what was there before forward, or
    right after it.
    """
    for late in (False, True):
        held, names = {}, {}

        def way(method, cls, *given, held=held, late=late):
            ctx, given = (given[0], given[1:]) if takes_ctx(cls) else (None, given)
            found = held_outside(cls, given)
            before = [(t, t.detach().clone()) for _, t in tensors(given)]
            result = method(*((ctx, *given) if ctx is not None else given))
            if ctx is not None:
                held[ctx] = held_outside(cls, (*given, *vars(ctx).values())) if late else found
                held[ctx] = held[ctx] + on_ctx(ctx, None if late else before)
            return result

        with forgiving(), methods("forward", way):
            run = case.subject.run(case.point.values)
            with read_as(held, names) if any(held.values()) else contextlib.nullcontext():
                if case.fits_rows(case.rows_of(run)) and names:
                    return list(names)
    return []


def of_caches(case):
    """The names of the dicts that Functions keep, if the gradient is right once they are empty.

    Empty before each forward; or before each backward, too.
    """
    caches = {a: d for cls in case.subject.applied for a, d in caches_of(cls).items()}

    def way(method, cls, *given):
        for cache in caches.values():
            cache.clear()
        return method(*given)

    if any(caches.values()) and only_compute(case.subject.applied, caches=True):
        for late in (False, True):
            emptied = methods("backward", way) if late else contextlib.nullcontext()
            with forgiving(), dicts_kept(caches.values()), methods("forward", way), emptied:
                if case.fits_rows(case.rows_of(case.subject.run(case.point.values))):
                    return [name for name, cache in caches.items() if cache]
    return []


def held_outside(cls, values):
    """(owner, name, value) of the tensors and numbers that a class and some objects hold."""
    owners = [cls, *(v for v in values if hasattr(v, "__dict__") and not torch.is_tensor(v))]
    found = [(o, name, value) for o in owners for name, value in attributes(o).items()]
    return [(o, name, v.detach().clone() if torch.is_tensor(v) else v) for o, name, v in found]


def on_ctx(node, given):
    """(node, name, value) of the tensors on ctx, as they are, or as some of them were given."""
    held = [(name, t) for name, t in vars(node).items() if torch.is_tensor(t)]
    if given is None:
        return [(node, name, t.detach().clone()) for name, t in held]
    return [(node, name, before) for name, t in held for x, before in given if x is t]


def attributes(owner):
    """Those that are tensors and numbers, buffers included."""
    own = {**vars(owner), **getattr(owner, "_buffers", {})}
    return {name: v for name, v in own.items() if isinstance(v, (torch.Tensor, int, float))}


def is_same(a, b):
    if torch.is_tensor(a) and torch.is_tensor(b):
        return a.shape == b.shape and torch.equal(a, b)
    return a is b or type(a) is type(b) and a == b


def read_as(held, names):
    """For a while, backward finds what is held for its node; names: of what is another."""

    def way(method, cls, node, *grads):
        now = [(o, name, getattr(o, name), v) for o, name, v in held.get(node, ())]
        now = [(o, name, here, v) for o, name, here, v in now if not is_same(here, v)]
        names.update({name: None for _, name, *_ in now})
        try:
            for o, name, _, v in now:
                setattr(o, name, v)
            return method(node, *grads)
        finally:
            for o, name, here, _ in now:
                setattr(o, name, here)

    return methods("backward", way)


def held_by(module):
    """{name: (id, length of a dict)} of all attributes of a module and of those within it."""
    found = {}
    for path, part in module.named_modules():
        for name, value in (vars(part) | part._buffers).items():
            size = len(value) if isinstance(value, dict) else None
            found[".".join(filter(None, ("self", path, name)))] = id(value), size
    return found


def new_in(subject, before):
    """In words, what its module holds that it did not hold before; or nothing."""
    new = held_by(subject.scope.module).items() - before.items()
    where = " and ".join(sorted(f"`{name}`" for name, _ in new))
    return where and f": {where}"


def kept_by(exam):
    """In words, what a module has after its first call that it had not before."""
    with contextlib.suppress(CallError):
        fresh = exam.before_calls()
        before = held_by(fresh.scope.module)
        fresh.forward(exam.subject.values)
        return new_in(fresh, before)
    return ""


def of_the_first_call(exam, case):
    """Words for what a module keeps of its first call, if a fresh copy has the right gradient."""
    fresh = exam.before_calls()
    before = held_by(fresh.scope.module)
    anew = Measurement(Point(fresh, case.point.values, Dice()), case.i, case.o, case.tolerance)
    where = new_in(fresh, before)
    return {"where": where} if where and anew.trusted.any() and not anew.wrong.any() else None


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
