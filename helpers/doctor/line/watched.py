"""A function whose locals are watched while it runs."""

import ast
import contextlib
import functools
import inspect
from dataclasses import dataclass
from typing import NamedTuple

from ..function.source import UnsuitableError, names_in
from ..function.subject import argument_names
from .edits import WATCH, Code, parsed, rebuilt, watching
from .goals import bound_by, codes_of

BINDS = ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.For


@dataclass(frozen=True, eq=False)
class Binding:
    """Where a local is bound, or something returned, which has no name."""

    code: Code
    line: int
    name: str | None
    node: ast.stmt

    @property
    def is_argument(self):
        return self.node is self.code.tree

    @property
    def loops(self):
        """The lines of the loops in which it stands."""
        node, up, found = self.node, self.code.up, []
        while node := up.get(node):
            if isinstance(node, ast.For):
                found.append(self.code.line(node))
        return found

    @property
    def fills(self):
        """Does it change what has this name, as a list, rather than bind it anew?"""
        target = getattr(self.node, "targets", [None])[0]
        changes = isinstance(self.node, (ast.Expr, ast.AugAssign))
        return changes or isinstance(target, ast.Subscript)

    @property
    def again(self):
        """Does it make what has this name of what had it?"""
        return self.name in names_in(getattr(self.node, "value", self.node))


class Key(NamedTuple):
    """Of which binding a value is, in which turn, and of a tuple, list or dict which item."""

    binding: Binding
    turn: int
    item: int | str | None

    @property
    def name(self):
        """What the local is called there, or None of what is returned."""
        name = self.binding.name
        return name if self.item is None or name is None else f"{name}[{self.item!r}]"


def watched(code, bindings, returns, arguments):
    """Its tree, which calls the watch where a local is bound, or something returned.

    returns, arguments: of these, too? Arguments are made where it is called
    """
    own = {*code.fn.__code__.co_varnames, *code.fn.__code__.co_cellvars} - {"ctx"}
    inner = [n for n in code.nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))]

    def call(node, name, text):
        bindings.append(Binding(code, code.line(node), name, node))
        return f"{WATCH}({len(bindings) - 1}, {text})"

    def change(node, copy):
        if isinstance(node, ast.Return) and node.value and returns:
            return parsed(f"return {call(node, None, ast.unparse(node.value))}", node)
        if not isinstance(node, BINDS):
            return copy
        names, line = [x for x in bound_by(node) if x in own], head(node)
        watches = [parsed(f"{x} = {call(line, x, x)}", line) for x in names]
        if line is not node:
            copy.body[:0] = watches
            return copy
        return ast.If(ast.Constant(True), [copy, *watches], [])  # one statement

    within = {code.tree, *code.nodes}.difference(*map(ast.walk, inner))
    tree = rebuilt(code.tree, change, within)
    if arguments:
        tree.body[:0] = [parsed(call(code.tree, x, x), tree) for x in code.arguments]
    return ast.fix_missing_locations(tree)


def head(node):
    """Of a loop, its first line, as an assignment of what it runs over."""
    if not isinstance(node, ast.For):
        return node
    line = ast.copy_location(ast.Assign([node.target], node.iter), node)
    line.end_lineno, line.end_col_offset = (
        node.iter.end_lineno,
        node.iter.end_col_offset,
    )
    return line


class Method:
    """A method of a Function, or a reference, and what it calls: their locals are watched."""

    def __init__(self, method, cls, from_arguments=False):
        self.callee, method = method, lines_of(method)
        self.codes, self.bindings = codes_of([method], cls), []
        if not self.codes or self.codes[0].fn is not inspect.unwrap(method):
            raise UnsuitableError
        self.trees = {
            code: watched(code, self.bindings, not k, from_arguments and k)
            for k, code in enumerate(self.codes)
        }

    @contextlib.contextmanager
    def running(self, seen):
        """seen(key, value): what takes its place; key: a `Key`."""
        turns = {}

        def watch(number, value):
            turn = turns[number] = turns.get(number, -1) + 1
            binding = self.bindings[number]
            kind = type(value)
            if kind in (tuple, list, dict):
                pairs = [*(value.items() if kind is dict else enumerate(value))]
                items = [seen(Key(binding, turn, k), x) for k, x in pairs]
                if all(x is item for (_k, x), item in zip(pairs, items, strict=True)):
                    return value
                return kind(zip(value, items, strict=True) if kind is dict else items)
            return seen(Key(binding, turn, None), value)

        with watching(self.trees, watch):
            yield

    def argument(self, k):
        """What argument k is called."""
        return argument_names(self.callee, k + 1)[k]


def lines_of(callee):
    """The function whose lines it runs."""
    if isinstance(callee, functools.partial):
        return callee.func
    method = getattr(callee, "forward", callee)  # of a module
    return getattr(method, "__func__", method)
