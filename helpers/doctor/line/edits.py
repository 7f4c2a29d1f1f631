"""A function's source, edited as text, and run in the place of the original."""

import ast
import contextlib
import functools
import inspect
import threading
import types
import warnings
from typing import NamedTuple

from ..function.source import Source, nodes_of

OTHER = 1.0625e-77  # a constant that no code holds; what is to run takes its place


class Edit(NamedTuple):
    """What stands in a function instead of something else.

    code: the `Code` that is edited; node: the node of its tree that is
    puts: ((start, end, new text), …) in the bytes of the source
    said: in words, if it is no expression that takes the place of another
    row:  what the row of the grammar that made it is called
    """

    code: "Code"
    node: ast.AST
    puts: tuple
    said: str = ""
    row: str = ""

    def words(self):
        """The clause: {"change": "right if: …", "place": "line 7, in `backward`"}."""
        said = self.said or "`{}` stood in place of `{}`".format(*self.code.quoted(self))
        place = f"line {self.code.line(self.node)}, in `{self.code.fn.__name__}`"
        return {"change": f"right if: {said}", "place": place}


class Code(Source):
    """A function that can be edited: its nodes, where each stands, and which is in which.

    cls:    the Function that it is part of, or None
    up:     {node: the node in which it is}; values: those that may have a number for a value
    factors: by which all of a gradient is off, if it is known
    parts, literals: expressions and numbers that stand here and in the Function's other methods
    """

    def __init__(self, fn, cls=None):
        super().__init__(inspect.unwrap(fn))
        self.cls, self.bytes, self.factors = cls, self.text.encode(), ()
        self.starts = [0]
        for line in self.bytes.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        pairs = [(n, up) for up in ast.walk(self.tree) for n in ast.iter_child_nodes(up)]
        self.up = {node: up for node, up in pairs}
        self.nodes = [n for line in self.tree.body for n in ast.walk(line)]
        self.values = dict.fromkeys(n for n in self.nodes if self.is_value(n))
        others = [getattr(cls, name) for name in ("forward", "setup_context") if cls]
        found = [n for of in others for n in nodes_of(of)] + self.nodes
        self.parts = [n for n in found if isinstance(n, (ast.BinOp, ast.Call, ast.Subscript))]
        self.literals = dict.fromkeys(n.value for n in found if isinstance(n, ast.Constant))

    def span(self, node):
        first, last = self.starts[node.lineno - 1], self.starts[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset

    def of(self, node):
        start, end = self.span(node)
        return self.bytes[start:end].decode()

    def with_puts(self, puts):
        text = self.bytes
        for start, end, new in sorted(puts, reverse=True):
            text = text[:start] + new.encode() + text[end:]
        return text.decode()

    def compiled(self, text=None, **more):
        """The function of this text, by default of its own; more: further names that it knows."""
        tree = ast.parse(self.text if text is None else text).body[0]
        tree.decorator_list, fn = [], self.fn
        outer = ast.parse(f"def outer({', '.join(fn.__code__.co_freevars)}): pass")
        outer.body[0].body = [tree]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            code = compile(outer, fn.__code__.co_filename, "exec")
        return made_of(inner_code(code, tree.name), fn, {**fn.__globals__, **more})

    def is_value(self, node):
        """Is it an expression that may have a number or a tensor for a value?"""
        kinds = ast.Name, ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Attribute, ast.IfExp
        if not isinstance(node, (*kinds, ast.Compare, ast.Constant)):
            return False
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        up = self.up.get(node)
        if isinstance(node, ast.Name) and inspect.ismodule(self.fn.__globals__.get(node.id)):
            return False
        is_called = isinstance(up, ast.Call) and up.func is node
        is_annotation = isinstance(up, (ast.arg, ast.AnnAssign)) and up.annotation is node
        names = "ctx", "self", "ctx.saved_tensors"
        bare = isinstance(up, ast.Expr) or self.of(node) in names
        return not (is_called or is_annotation or bare)

    def statement(self, node):
        while not isinstance(node, ast.stmt):
            node = self.up[node]
        return node

    def root(self, node):
        """The largest expression around it whose value is assigned, returned or handed over."""
        while node in self.up and not isinstance(node, ast.stmt):
            up = self.up[node]
            line = self.up.get(up) if isinstance(up, ast.Tuple) else up
            if isinstance(line, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)):
                return node if node is not getattr(line, "target", None) else None
            if isinstance(up, ast.Call) and isinstance(line := self.up[up], ast.Expr):
                return node if node in up.args else None
            if isinstance(up, (ast.comprehension, ast.Lambda)):
                return None
            node = up
        return None

    def quoted(self, edit):
        """(new, old): the smallest expression around the edit that shows where it is."""
        line, node = self.of(self.statement(edit.node)), edit.node
        while True:
            old, up = self.of(node), self.up[node]
            bare = isinstance(node, (ast.Name, ast.Constant, ast.Slice, ast.keyword))
            bare |= isinstance(up, ast.Subscript) and up.slice is node
            called = isinstance(up, ast.Call) and up.func is node
            plain = line.count(old) == 1 and not (bare or called or isinstance(up, ast.Attribute))
            if not isinstance(up, (ast.expr, ast.keyword)) or plain:
                break
            node = up
        start, end = self.span(node)
        moved = tuple((a - start, b - start, new) for a, b, new in edit.puts)
        new = self.bytes[start:end]
        for a, b, text in sorted(moved, reverse=True):
            new = new[:a] + text.encode() + new[b:]
        new = new.decode()
        with contextlib.suppress(SyntaxError):  # of a slice, which is no expression
            tree = ast.parse(new, mode="eval").body
            new = ast.unparse(tree)
            new = new[1:-1] if isinstance(tree, ast.Tuple) and old[:1] != "(" else new
        return one_line(new), one_line(old)


def one_line(text):
    return " ".join(text.split())


def inner_code(code, name):
    for wanted in ("outer", name):
        code = next(c for c in code.co_consts if getattr(c, "co_name", "") == wanted)
    return code


def made_of(code, fn, scope):
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, scope, fn.__name__, fn.__defaults__, closure)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


@functools.lru_cache(64)
def calling_other(name, free):
    """The code of a function that hands all it is given to the constant OTHER."""
    uses = f"if 0: {', '.join(free)}" if free else "pass"
    text = f"def outer({', '.join(free)}):\n def {name}(*args, **kwargs):\n"
    text += f"  {uses}\n  return ({OTHER!r})(*args, **kwargs)"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return inner_code(compile(text, "<edited>", "exec"), name)


@contextlib.contextmanager
def running(fn, other):
    """For a while, in this thread, `other` runs wherever the function `fn` is called."""
    here, code = threading.get_ident(), fn.__code__
    original = made_of(code, fn, fn.__globals__)

    def either(*args, **kwargs):
        return (other if threading.get_ident() == here else original)(*args, **kwargs)

    calling = calling_other(fn.__name__, code.co_freevars)
    consts = tuple(either if c == OTHER and type(c) is float else c for c in calling.co_consts)
    fn.__code__ = calling.replace(co_consts=consts)
    try:
        yield
    finally:
        fn.__code__ = code
