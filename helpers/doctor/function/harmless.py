"""May a function run in another form? Only if it does nothing but compute, by PyTorch and Python.

What it calls would get arguments that nobody has foreseen: a kernel would end Python, a collective
would wait for ever, a file would be lost. So what is not known to be harmless is not edited.
"""

import ast
import builtins
import inspect
import itertools
import re
import textwrap
import types

import torch
from torch.autograd import Function

BUILTINS = {
    "abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "float", "int", "len",
    "list", "map", "max", "min", "pow", "range", "reversed", "round", "set", "slice", "sorted",
    "sum", "tuple", "zip", "isinstance", "AssertionError", "NotImplementedError", "RuntimeError",
    "TypeError", "ValueError",
}  # fmt: skip
MODULES = {"torch", "torch.nn", "torch.nn.functional", "torch.fft", "torch.linalg", "torch.special",
           "math", "operator", "itertools", "functools"}  # fmt: skip
OF_THESE = MODULES | {"builtins", "_operator", "torch.functional", "torch._C._nn", None}
NEVER = {
    "backends", "classes", "cuda", "data_ptr", "distributed", "from_blob", "hub", "jit", "library",
    "load", "mps", "multiprocessing", "numpy", "ops", "resize_", "save", "set_", "storage",
    "untyped_storage", "utils", "xpu",
}  # fmt: skip
REFUSED = (
    ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Await, ast.Yield,
    ast.YieldFrom, ast.Delete, ast.ClassDef, ast.Try,
)  # fmt: skip
CONTEXTS = {"no_grad", "enable_grad", "set_grad_enabled", "autocast"}
DATA = (torch.Tensor, int, float, complex, str, torch.dtype, torch.device, torch.memory_format,
        torch.Generator, type(None), range, slice, type(...))  # fmt: skip


def harmless(fn, lines, cls=None, depth=2, caches=False, held=False):
    """Do these lines of a function nothing but compute? cls: the Function that it is part of.

    caches: may they keep something in a dict, too?
    held: may they call what ctx and variables hold, because that is looked at, too?
    """
    nodes = [node for line in lines for node in ast.walk(line)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    code, cells = fn.__code__, inspect.getclosurevars(fn).nonlocals
    outside = names - {*code.co_varnames, *code.co_cellvars}
    known = {**{n: fn.__globals__[n] for n in outside & fn.__globals__.keys()}, **cells}
    known = {name: value for name, value in known.items() if value is not cls}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    unknown = outside & vars(builtins).keys() - known.keys() - BUILTINS
    if unknown or attributes & NEVER:
        return False
    of_class = cls and cls.__name__ in names and vars(cls)
    if any(name.startswith("_") for name in attributes - set(of_class or ())):
        return False
    inner = [known[name] for name in names & known.keys()]
    inner += [of_class[name] for name in attributes & of_class.keys()] if of_class else []
    within = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    for name, value in itertools.chain(*map(assigned, nodes)):
        if isinstance(value, ast.Lambda) or is_of_torch(value, known):
            within.add(name)
    called = known.keys() | within | BUILTINS
    called |= {*code.co_varnames, *code.co_cellvars} if held else set()
    started = {
        name for node in nodes for name, value in assigned(node)
        if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0
    }  # fmt: skip
    nodes = [  # in what is edited, each loop is made to end
        node for node in nodes
        if not (isinstance(node, ast.While) and (depth == 2 or counts(node, started)))
    ]  # fmt: skip
    return all(is_fine(node, known, called, cls, caches) for node in nodes) and all(
        computes(value, depth, cls, caches, held) for value in inner
    )


def assigned(line):
    """(name, expression) of each name that an assignment binds to one."""
    match line:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            if len(names) == len(values):
                pairs = zip(names, values, strict=True)
                yield from ((name.id, v) for name, v in pairs if isinstance(name, ast.Name))


def is_of_torch(node, known):
    """Is it a function of PyTorch, under its own name?"""
    if not isinstance(node, ast.Attribute):
        return False
    value = known.get(root(node))
    for name in ast.unparse(node).split(".")[1:]:
        value = getattr(value, name, None)
    return is_function(value)


def is_function(value):
    """Of PyTorch, or of math?"""
    kinds = types.BuiltinFunctionType, types.FunctionType
    name = value.__module__ or "torch" if isinstance(value, kinds) else ""
    return name.split(".")[0] in ("torch", "math")


def is_fine(node, known, called, cls, caches=False):
    match node:
        case ast.With(items=items):
            return all(ast.unparse(item.context_expr).split("(")[0].split(".")[-1] in CONTEXTS
                       for item in items)  # fmt: skip
        case ast.Call(func=ast.Name(id=name)):  # what a variable holds, nobody knows
            return name in called
        case ast.Call(func=ast.Attribute(value=ast.Name(id="ctx"), attr=name)):
            return "ctx" in called or hasattr(torch.autograd.function.FunctionCtx, name)
        case ast.Call(func=ast.Call() | ast.Subscript() | ast.Lambda()):
            return False
        case ast.Call(func=ast.Attribute(attr=attr) as func) if attr.endswith("_"):
            return root(func) not in known
        case ast.Subscript(ctx=ast.Store()) if caches:
            return True
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            return root(node) not in known and root(node) != getattr(cls, "__name__", None)
        case ast.While():
            return ends(node)
    return not isinstance(node, REFUSED)


def counts(loop, started):
    """Does a whole number that started above zero grow in each round, up to one that stays?"""
    match loop.test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Lt() | ast.LtE()], comparators=[bound]):
            nodes = [n for line in loop.body for n in ast.walk(line)]
            made = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            if made.count(name) != 1 or any(isinstance(n, ast.Continue) for n in nodes):
                return False
            grows = any(re.fullmatch(rf"{name} (\*= [2-9]|\+= [1-9])", ast.unparse(line))
                        for line in loop.body)  # fmt: skip
            plain = isinstance(bound, (ast.Name, ast.Constant))
            return name in started and grows and plain and getattr(bound, "id", "") not in made
    return False


def ends(loop):
    """Does each round take away one dimension of what the loop waits for?"""
    if len(loop.body) != 1 or loop.orelse:
        return False
    match loop.body[0]:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            waits = [f"{name}.dim()", f"{name}.ndim", f"len({name}.shape)"]
            match value:
                case ast.Call(func=ast.Attribute(attr="sum" | "mean"), args=[_], keywords=[]):
                    shorter = ast.unparse(value.func.value) == name
                case ast.Subscript(slice=ast.Constant(value=k)):
                    shorter = ast.unparse(value.value) == name and type(k) is int
                case _:
                    return False
            left, *_ = ast.unparse(loop.test).split(" > ")
            return shorter and left in waits
    return False


def root(node):
    """The name of what is changed."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def computes(value, depth, cls=None, caches=False, held=False):
    """Is it a number, a tensor, or a function that does nothing but compute?"""
    if isinstance(value, types.ModuleType):
        return value.__name__ in MODULES
    if isinstance(value, staticmethod):
        value = value.__func__
    if isinstance(value, type) and issubclass(value, Function):
        own = [getattr(value, name) for name in ("forward", "setup_context", "backward")]
        return all(of.__module__.startswith("torch.") or computes(of, depth) for of in own)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        if value.__module__ in OF_THESE:
            return value.__name__ not in NEVER
        itself = inspect.isfunction(value) and depth > 0
        return itself and computes_itself(value, depth, cls, caches, held)
    return is_data(value) and not isinstance(value, list if caches else (list, dict))


def computes_itself(fn, depth, cls, caches, held=False):
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(fn))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    lines = definition.body if isinstance(definition, ast.FunctionDef) else []
    return bool(lines) and harmless(fn, lines, cls, depth - 1, caches, held)


def is_plain(value):
    """Is it a module, or a function, that does nothing but compute, and stays what it is?"""
    if inspect.isfunction(value):
        return computes(value, 1)
    if not isinstance(value, torch.nn.Module) or next(value.buffers(), None) is not None:
        return False
    return all(map(is_plain_part, value.modules()))


def is_plain_part(module):
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return False
    if type(module).__module__.startswith("torch.nn."):
        return True
    own = {name: fn for name, fn in vars(type(module)).items() if inspect.isfunction(fn)}
    own.pop("__init__", None)
    return all(computes(fn, 1) and not changes_self(fn) for fn in own.values())


def changes_self(fn):
    tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                of = root(node)
            case ast.Call(func=ast.Attribute(attr=attr) as func) if attr.endswith("_"):
                of = root(func)
            case _:
                continue
        if of == "self":
            return True
    return False


def is_data(value, fn=None):
    """Has it nothing that could do something? So are the variables of a harmless function.

    fn: this function, whose own functions are harmless, too
    """
    if is_function(value):
        return True
    if inspect.isfunction(value):
        return fn is not None and f"{fn.__name__}.<locals>" in value.__qualname__
    if isinstance(value, (tuple, list, dict)):
        items = value.values() if isinstance(value, dict) else value
        return all(map(is_data, itertools.islice(items, 100)))
    return isinstance(value, DATA) and not isinstance(value, torch.nn.Module)
