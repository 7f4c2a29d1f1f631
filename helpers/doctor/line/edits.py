"""Edits of a function's source, and the edited function in its place."""

import ast
import contextlib
import functools
import inspect
import threading
import types
from dataclasses import dataclass

from ..function.source import Source, cells_of, code_of, nodes_of, place
from ..report import Change
from ..words import N_, _

RIGHT_IF = N_("right if: {what}")
RIGHT_HERE = N_("right for inputs like these, if: {what}")
STANDS = N_("`{new}` stood in place of `{old}`")
VALUES = (
    ast.Name,
    ast.Call,
    ast.BinOp,
    ast.UnaryOp,
    ast.Subscript,
    ast.Attribute,
    ast.IfExp,
    ast.Compare,
    ast.Constant,
)
WATCH = "the_doctor_watches"
OTHER = 1.0625e-77  # a constant that no code holds; what is to run takes its place


@dataclass(frozen=True, eq=False)
class Edit:
    """What stands in a function instead of something else.

    code: the `Code` that is edited; node: the node of its tree that is
    puts: {node: text that takes its place}
    said: in words, unless an expression takes the place of another
    """

    code: "Code"
    node: ast.AST
    puts: dict
    said: str = ""

    @property
    def is_in_place(self):
        """Is it of a method that changes a tensor, whose effect may be elsewhere?"""
        return any(getattr(node, "attr", "").endswith("_") for node in self.puts)

    def made_in(self, tree):
        """A copy of a tree of its code, or of a part, with its texts in their places."""
        news = {node: parsed(text, node) for node, text in self.puts.items()}
        within = set()
        for node in self.puts:
            while node is not None and node not in within:
                within.add(node)
                node = self.code.up.get(node)
        return rebuilt(tree, lambda node, copy: news.get(node, copy), within)

    def place(self):
        """Where it is, in words."""
        return place(self.code.line(self.node), self.code.fn.__name__)

    def quoted(self):
        """(new, old) as text; both empty if lines change places.

        Of expressions, they are the smallest around the edit that show its place.
        """
        code = self.code
        if self.said and len(self.puts) > 1:
            return "", ""
        if self.said:
            ((node, new),) = self.puts.items()
            return new, code.source_of(node)
        line, node = code.source_of(code.statement(self.node)), self.node
        while True:
            up, bare = code.up[node], (ast.Name, ast.Constant, ast.Slice, ast.keyword)
            parts = [getattr(up, name, None) for name in ("slice", "func")]
            within = isinstance(up, ast.Attribute) or node in parts
            minus = isinstance(node, ast.UnaryOp) and isinstance(
                node.operand, ast.Constant
            )
            plain = not (isinstance(node, bare) or minus or within)
            plain = plain and line.count(code.source_of(node)) == 1
            if plain or not isinstance(up, (ast.expr, ast.keyword)):
                break
            node = up
        if line.count(code.source_of(node)) > 1:  # the line alone shows which
            node = code.statement(node)
        new, old = ast.unparse(self.made_in(node)), code.source_of(node)
        if isinstance(up, (ast.BinOp, ast.UnaryOp, ast.Compare)):
            before = code.statement(node)
            after = ast.unparse(self.made_in(before))
            if f"({new})" in after and f"({ast.unparse(node)})" not in ast.unparse(
                before
            ):
                new = f"({new})"  # as it did not need them
        is_bare = isinstance(node, ast.Tuple) and old[:1] != "("
        return new[1:-1] if is_bare else new, old

    def change(self, tried=True):
        """The `Change` that it is; tried: does it hold for other inputs, too?"""
        new, old = self.quoted()
        return Change(
            _(
                RIGHT_IF if tried else RIGHT_HERE,
                what=self.said or _(STANDS, new=new, old=old),
            ),
            self.place(),
            self.code.fn.__code__.co_filename,
            self.code.line(self.node),
            old,
            new,
        )


class Code(Source):
    """A function that can be edited: its nodes, and which is in which.

    cls:    the Function that it is part of, or None
    up:     {node: the node in which it is}; values: those that may have a number for a
            value
    parts, literals: expressions and numbers that stand here and in the Function's other
        methods
    """

    def __init__(self, fn, cls):
        super().__init__(inspect.unwrap(fn))
        self.cls = cls
        self.up = {
            n: up for up in ast.walk(self.tree) for n in ast.iter_child_nodes(up)
        }
        self.values = dict.fromkeys(n for n in self.nodes if self.is_value(n))
        arguments = [arg.arg for arg in self.tree.args.args]
        self.arguments = [name for name in arguments if name not in ("ctx", "self")]
        others = [getattr(cls, name) for name in ("forward", "setup_context") if cls]
        found = [n for of in others for n in nodes_of(of)] + self.nodes
        self.parts = [
            n for n in found if isinstance(n, (ast.BinOp, ast.Call, ast.Subscript))
        ]
        self.literals = dict.fromkeys(
            n.value for n in found if isinstance(n, ast.Constant)
        )

    def compiled(self, tree, **more):
        """The function of this tree; more: further names that it knows."""
        scope = {**self.fn.__globals__, **more}
        return made_of(code_of(tree, self.fn), self.fn, scope)

    def is_value(self, node):
        """Is it an expression that may have a number or a tensor for a value?"""
        loaded = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not (loaded and isinstance(node, VALUES)):
            return False
        up, text = self.up.get(node), ast.unparse(node)
        is_called = getattr(up, "func", None) is node
        bare = text in ("ctx", "self", "ctx.saved_tensors")
        return not (
            is_called or bare or inspect.ismodule(self.fn.__globals__.get(text))
        )

    def statement(self, node):
        while not isinstance(node, ast.stmt):
            node = self.up[node]
        return node

    def beyond(self, node):
        """The node in which it is, or in which its tuple or list is, if it is in one."""
        up = self.up.get(node)
        return self.up.get(up) if isinstance(up, (ast.Tuple, ast.List)) else up

    def root(self, node):
        """The largest expression around it that is assigned or handed over."""
        while node in self.up and not isinstance(node, ast.stmt):
            up, line = self.up[node], self.beyond(node)
            if isinstance(line, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)):
                return node if node is not getattr(line, "target", None) else None
            if isinstance(up, ast.Call) and isinstance(line := self.up[up], ast.Expr):
                return node if node in up.args else None
            if isinstance(up, (ast.comprehension, ast.Lambda)):
                return None
            node = up
        return None

    def source_of(self, node):
        """As it stands in the file, in one line."""
        return " ".join(ast.get_source_segment(self.text, node).split())


def rebuilt(node, change, within):
    """A tree in which change(node, copy of it) stands for each node of `within`, a set.

    `within` holds what is around each of its nodes, too. The other nodes are those of
    this tree.
    """
    if isinstance(node, list):
        return [rebuilt(one, change, within) for one in node]
    if node not in within:
        return node
    fields = {
        name: rebuilt(value, change, within) for name, value in ast.iter_fields(node)
    }
    return change(node, ast.copy_location(type(node)(**fields), node))


def parsed(text, old):
    """The node that a text says, to stand in the place of another."""
    if isinstance(old, ast.stmt):
        return ast.copy_location(ast.parse(text).body[0], old)
    return expression(text, type(getattr(old, "ctx", ast.Load())))


@functools.lru_cache(10_000)  # as most texts are tried in many places
def expression(text, ctx):
    """The node of an expression, not to be changed; ctx: whether it is assigned to."""
    new = ast.parse(text, mode="eval").body
    if hasattr(new, "ctx"):
        new.ctx = ctx()
    return new


def made_of(code, fn, scope):
    cells = cells_of(fn)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, scope, fn.__name__, fn.__defaults__, closure)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


@contextlib.contextmanager
def running(fn, other):
    """For a while, in this thread, `other` runs where `fn` is called."""
    here, code = threading.get_ident(), fn.__code__
    original = made_of(code, fn, fn.__globals__)

    def either(*args, **kwargs):
        return (other if threading.get_ident() == here else original)(*args, **kwargs)

    # The code that takes its place must have as many free variables.
    text = f"def {fn.__name__}(*args, **kwargs):\n if 0: {(*code.co_freevars,)}\n"
    text = text.replace("'", "") + f" return ({OTHER!r})(*args, **kwargs)"
    calling = code_of(ast.parse(text).body[0], fn)
    consts = tuple(
        either if c == OTHER and type(c) is float else c for c in calling.co_consts
    )
    fn.__code__ = calling.replace(co_consts=consts)
    try:
        yield
    finally:
        fn.__code__ = code


@contextlib.contextmanager
def watching(trees, watch):
    """For a while, {code: tree} run, in which `watch` is called by the name WATCH."""
    with contextlib.ExitStack() as stack:
        for code, tree in trees.items():
            made = code.compiled(tree, **{WATCH: watch})
            stack.enter_context(running(code.fn, made))
        yield
