"""The user's source: where it runs, as it reads, and does it nothing but compute?

An edited function hands arguments to what it calls that nobody has foreseen: a kernel
would end Python, a collective would wait forever, a file would be lost. So only what is
known to do nothing but compute is edited.
"""

import ast
import builtins
import contextlib
import dis
import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
import textwrap
import types

import torch
from torch.autograd import Function

from ..words import _
from .private import FunctionCtx, on_ctx

# --- which line runs, and what it saves -----------------------------------------------

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
LIBRARIES = {
    sysconfig.get_paths()[name]
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
}
LIBRARIES.add(os.path.dirname(os.path.dirname(LIBRARY)))  # torch may be elsewhere
LIBRARIES = tuple(os.path.join(folder, "") for folder in LIBRARIES)


def users_frame():
    """The frame that called PyTorch or the doctor, or None."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith((LIBRARY, HERE)):
        frame = frame.f_back
    return frame


def place(line, function):
    return _("line {line}, in `{function}`", line=line, function=function)


def place_of(frame):
    return place(frame.f_lineno, frame.f_code.co_name)


def saving(instead):
    """For a while, save_for_backward saves instead(tensors, frame that saves them)."""

    def way(save, ctx, *tensors):
        save(ctx, *instead(tensors, users_frame()))

    return on_ctx("save_for_backward", way)


# --- sources --------------------------------------------------------------------------


class UnsuitableError(Exception):
    """The function has no source, or its file has changed since it was imported."""


class Source:
    """The definition of a function.

    text: without its indent, with decorators
    tree: of it, without them; nodes: those of its body
    line(node): in its file
    """

    def __init__(self, fn):
        self.fn = fn
        try:
            self.text, self.start = read(fn.__code__, fn.__code__.co_filename)
            self.tree = ast.parse(self.text).body[0]
        except (OSError, TypeError, SyntaxError, AttributeError, IndexError):
            raise UnsuitableError from None
        if not isinstance(self.tree, ast.FunctionDef):
            raise UnsuitableError
        self.tree.decorator_list = []
        self.nodes = [n for line in self.tree.body for n in ast.walk(line)]
        if contents(code_of(self.tree, fn)) != contents(fn.__code__):
            raise UnsuitableError

    def line(self, node):
        return node.lineno + self.start - 1


@functools.lru_cache(256)
def read(code, file):  # equal codes may be of two files
    """The source of a function without its indent, and its first line's number."""
    # inspect.getsource would look at all imported modules, slowly.
    linecache.checkcache(file)
    lines = linecache.getlines(file)[code.co_firstlineno - 1 :]
    return textwrap.dedent("".join(inspect.getblock(lines))), code.co_firstlineno


def nodes_of(fn):
    """All nodes of its source, or none; not to be changed."""
    try:
        return list(ast.walk(Source(inspect.unwrap(fn)).tree))
    except UnsuitableError:
        return []


def names_in(*nodes):
    """The names that stand in these nodes."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def code_of(tree, fn):
    """This definition, compiled where `fn` is defined."""
    outer = ast.parse(f"def outer({', '.join(fn.__code__.co_freevars)}): pass")
    outer.body[0].body = [tree]
    code = compile(outer, fn.__code__.co_filename, "exec")
    for name in ("outer", tree.name):
        code = next(c for c in code.co_consts if getattr(c, "co_name", "") == name)
    return code


# Not calls and attributes: they depend on how a module was imported. FOR_ITER has no
# argument.
COMPARED = r"(BINARY|COMPARE|LOAD_(CONST|FAST|GLOBAL|SMALL_INT)|STORE|UNARY)"


def contents(code):
    """What it loads, computes and stores, in this order."""
    return [
        (i.opname, None if isinstance(i.argval, types.CodeType) else i.argval)
        for i in dis.get_instructions(code)
        if re.match(COMPARED, i.opname)
    ]


# --- do they nothing but compute? -----------------------------------------------------

BUILTINS = set(
    """
    abs all any bool complex dict divmod enumerate float int len list map max min
    pow range reversed round set slice sorted sum tuple zip isinstance
    AssertionError NotImplementedError RuntimeError TypeError ValueError
    """.split()
)
MODULES = set(
    """
    torch torch.nn torch.nn.functional torch.nn.grad torch.fft torch.linalg torch.special math
    operator itertools functools
    """.split()
)
OF_THESE = MODULES | {"_operator", "torch.functional", "torch._C._nn"}
NEVER = set(
    """
    backends classes cuda cycle data_ptr distributed from_blob hub jit library load
    manual_seed mps multiprocessing numpy ops resize_ save setitem storage
    untyped_storage utils xpu
    """.split()
)
REFUSED = tuple(
    getattr(ast, name)
    for name in "Import ImportFrom Global Nonlocal Yield "
    "YieldFrom Delete ClassDef Try While".split()
)
CHANGES = set(
    "append clear extend insert pop popitem remove reverse setdefault sort update".split()
)
SETTERS = {"set_grad_enabled", "set_materialize_grads"}
CONTEXTS = {"no_grad", "enable_grad", "set_grad_enabled", "autocast"}
DATA = (
    torch.Tensor,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.Generator,
    type(None),
    range,
    slice,
    type(...),
)


def only_compute(classes, depth=2):
    """Do these Functions nothing but compute?"""
    names = "forward", "setup_context", "backward", "vjp"
    methods = [
        (inspect.unwrap(getattr(cls, name)), cls) for cls in classes for name in names
    ]
    own = [(fn, cls) for fn, cls in methods if not module_of(fn).startswith("torch.")]
    return bool(own) and all(computes(fn, cls, depth + 1) for fn, cls in own)


def computes(value, cls, depth):
    """Is it a number, a tensor, a table, or a function that does nothing but compute?"""
    value = value.__func__ if isinstance(value, staticmethod) else value
    if isinstance(value, types.ModuleType):
        return value.__name__ in MODULES
    if isinstance(value, type(Function)):
        return only_compute([value], depth - 1)
    if inspect.isfunction(value) and not is_known(value):
        with contextlib.suppress(UnsuitableError):
            return depth > 0 and harmless(Source(value), cls, depth - 1)
        return False
    if isinstance(value, (tuple, list, dict)):
        items = value.values() if isinstance(value, dict) else value
        return all(computes(item, cls, depth) for item in items)
    return isinstance(value, DATA) or is_known(value)


def is_known(value):
    """Is it a function or a class of PyTorch or of MODULES, or one of BUILTINS?"""
    if not isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return False
    name, module = value.__name__, module_of(value)
    known = name in BUILTINS if module == "builtins" else module in OF_THESE
    return known and not is_refused(name)


def module_of(fn):
    """The name of its module: "" if its namespace has none, "torch" if written in C."""
    return fn.__module__ or ("" if inspect.isfunction(fn) else "torch")


def harmless(source, cls=None, depth=2):
    """Does the function of this `Source` nothing but compute, by PyTorch and Python?

    cls: the Function that it is part of; depth: of the functions that it calls, which
         are read, too
    """
    fn, nodes = source.fn, source.nodes
    names = names_in(*source.tree.body)
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    outside = names - {*fn.__code__.co_varnames, *fn.__code__.co_cellvars}
    known = {
        name: fn.__globals__[name] for name in outside & fn.__globals__.keys()
    } | closure(fn)
    known = {name: value for name, value in known.items() if value is not cls}
    own = vars(cls) if cls and cls.__name__ in names else {}  # its other methods
    strange = outside & vars(builtins).keys() - known.keys() - BUILTINS
    if strange or any(map(is_refused, attributes - own.keys())):
        return False
    fixed = {*known, cls.__name__} if cls else {*known}
    called = {name for node in nodes for name in defined(node, fixed)}
    called |= {*known, *BUILTINS}
    used = [*known.values(), *(own[name] for name in attributes & own.keys())]
    return all(is_fine(node, fixed, called) for node in nodes) and all(
        computes(value, cls, depth) for value in used
    )


def defined(node, fixed):
    """The names of the functions that a node defines, or has from what is `fixed`."""
    match node:
        case ast.FunctionDef(name=name):
            yield name
        case ast.Assign(targets=[target], value=value):
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            ones = zip(target.elts, value.elts, strict=False) if several else ()
            for one, of in ones or [(target, value)]:
                taken = isinstance(of, ast.Attribute) and root(of) in fixed
                if isinstance(one, ast.Name) and (taken or isinstance(of, ast.Lambda)):
                    yield one.id


def cells_of(fn):
    """{name: cell} of its closure."""
    return dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))


def closure(fn):
    """{name: value} of what the closure of a function holds."""
    found = {}
    for name, cell in cells_of(fn).items():
        with contextlib.suppress(ValueError):  # not filled yet
            found[name] = cell.cell_contents
    return found


def is_refused(name):
    return name in NEVER or name.startswith(("_", "set_")) and name not in SETTERS


def is_fine(node, fixed, called):
    """May this node run?

    fixed: names of what may not be changed; called: of what may be called
    """
    match node:
        case ast.With(items=items):
            return all(
                ast.unparse(item.context_expr).split("(")[0].split(".")[-1] in CONTEXTS
                for item in items
            )
        case ast.Call(func=ast.Name(id=name)):  # a variable may hold anything
            return name in called
        case ast.Call(func=ast.Attribute(value=ast.Name(id="ctx"), attr=name)):
            return hasattr(FunctionCtx, name)
        case ast.Call(func=ast.Attribute(attr=attr) as func):
            changes = attr.endswith("_") or attr in CHANGES
            return not changes or root(func) not in fixed
        case ast.Call():
            return False
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            return root(node) not in fixed
    return not isinstance(node, REFUSED)


def root(node):
    """The name of what an attribute or an item is taken of."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
