"""What forward keeps, on ctx and elsewhere, and what backward uses of it."""

import ast
import inspect

import torch

from .forward import nodes
from .gradient import Case, Point
from .slopes import Dice
from .source import is_of_ctx, nodes_of
from .subject import Subject


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


def changes(method):
    return method in ("append", "update", "setdefault") or method.endswith("_")


def caches_of(cls):
    """The dicts of a Function's class, and of the modules of what it calls."""
    found = [value for value in vars(cls).values() if isinstance(value, dict)]
    methods = staticmethod, classmethod
    called = [of.__func__ for of in vars(cls).values() if isinstance(of, methods)]
    for fn in (inspect.unwrap(of) for of in called):
        values = [fn.__globals__.get(name) for name in fn.__code__.co_names]
        called += [of for of in values if inspect.isfunction(of) and of not in called]
        found += [value for value in values if isinstance(value, dict)]
    return list({id(value): value for value in found}.values())


def kept_outside(exam):
    """In words, what forward writes elsewhere than on ctx, and backward reads."""
    module = type(exam.subject.scope.module) if exam.subject.is_module else None
    others = [fn] if inspect.isfunction(fn := getattr(module, "forward", None)) else []
    found = {}
    for cls in dict.fromkeys(node._forward_cls for node in nodes(exam)):
        found |= left_outside(cls, *others)
    return [f"`{text}` (line {line})" for text, line in found.items()]


def replaced(case):
    """The names in the module that forward puts others in the place of, if that makes it wrong.

    That is, if the gradient is right where backward finds there what forward has found.
    """
    subject, run = case.subject, case.subject.run(case.point.values)
    before = dict(enumerate(subject.tensors)) | dict(
        zip(subject.examined, case.point.values, strict=True)
    )
    before = list(before.values())[len(before) - len(subject.state) :]
    pairs = zip(subject.state, before, run.state, strict=True)
    names = [name for name, a, b in pairs if not torch.equal(a, b)]
    run.state = [t.clone() for t in before]
    return names if names and case.fits_rows(case.rows_of(run)) else []


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


def of_the_first_call(exam, case):
    """Words for what a module keeps of its first call, if a fresh copy has the right gradient."""
    fresh = Subject(*exam.given[:3])
    fresh.use(torch.float64 if exam.low else None)
    before = held_by(fresh.scope.module)
    anew = Case(Point(fresh, case.point.values, Dice()), case.i, case.o, case.tolerance)
    where = new_in(fresh, before)
    return {"where": where} if where and anew.trusted.any() and not anew.wrong.any() else None
