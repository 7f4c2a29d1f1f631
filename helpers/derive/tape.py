"""A forward, run once, as a list of steps: what was called, with what, and on which line.

Sizes carry the text that made them, so that a constant of the shape is written as the
shape, and each comparison of them leaves a guard.
"""

import ast
import copy
import math
import operator
import sys
import types

import torch
from torch.overrides import TorchFunctionMode

from .rules import KNOWN, Refused
from .source import definition

SIGNS = dict(
    zip(
        "add sub mul div truediv floordiv mod pow gt lt ge le eq ne".split(),
        "+ - * / / // % ** > < >= <= == !=".split(),
        strict=True,
    )
)
ATTRIBUTES = {"dim", "dtype", "device", "ndim", "numel", "shape", "size"}
# What PyTorch's own wrappers add to a call.
ADDED = dict(_stacklevel=3, dtype=None, out=None, inplace=False, p="fro", alpha=1.0)
SCOPE = {"torch": torch, "F": torch.nn.functional, "math": math}
PIECES = {"chunk", "split", "unbind"}
_tapes = []


class Size(int):
    """A whole number made of sizes, with its text."""


class Number(float):
    """A number made of sizes, with its text."""


def number(value, source):
    made = (Size if isinstance(value, int) else Number)(value)
    made.text = source
    return made


def plain(value):
    """The same without texts."""
    if isinstance(value, (tuple, list)):
        return (list if isinstance(value, list) else tuple)(map(plain, value))
    if isinstance(value, slice):
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    if isinstance(value, Size):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, Number) else value


def text(value):
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return getattr(value, "text", None) or ("..." if value is ... else repr(value))


def _arithmetic(name, swap=False):
    def method(self, other):
        if not isinstance(other, (int, float)):
            return NotImplemented
        a, b = (other, self) if swap else (self, other)
        value = getattr(operator, name)(plain(a), plain(b))
        source = f"({text(a)} {SIGNS[name]} {text(b)})"
        if not isinstance(value, bool):
            return number(value, source)
        if "_" in source:  # of a tensor's shape
            _tapes[-1].guards[source] = value
        return value

    return method


def _leak(name):
    def method(self, *others):
        _tapes[-1].leaks.add(self.text)
        found = getattr(plain(self), name)
        return found(*others) if callable(found) else found

    return method


for _class, _base in ((Size, int), (Number, float)):
    for _name in "add sub mul floordiv truediv mod pow".split():
        setattr(_class, f"__{_name}__", _arithmetic(_name))
        setattr(_class, f"__r{_name}__", _arithmetic(_name, swap=True))
    for _name in "gt lt ge le eq ne".split():
        setattr(_class, f"__{_name}__", _arithmetic(_name))
    _class.__neg__ = lambda self: number(-plain(self), f"(-{text(self)})")
    for _name in (set(dir(_base)) - set(dir(object))) | {
        "__hash__",
        "__str__",
        "__format__",
    }:
        if _name not in vars(_class):
            _method = callable(getattr(_base, _name))
            setattr(_class, _name, _leak(_name) if _method else property(_leak(_name)))


class Shape(tuple):
    """`x.shape`, whose sizes are counted from the end from which the forward counted."""

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self)[index]
        return number(plain(tuple(self)[index]), self.tape.size(self.node, index))


class Node:
    """One step: `op` of `args`, of which nodes are steps, too."""

    def __init__(self, tape, op, source, value, args=(), kwargs=None):
        self.op, self.source, self.value, self.name = op, source, value, None
        self.args, self.kwargs, self.shape = args, kwargs or {}, ()
        if op != "number":
            self.shape = tuple(value.shape)
        self.text = f"_{len(tape.nodes)}"
        tape.nodes.append(self)
        if op != "number":
            tape.of[id(value)] = self

    def __str__(self):
        return self.text


def place(tree):
    return tree.lineno, tree.col_offset, tree.end_lineno, tree.end_col_offset


class Spelled(ast.NodeTransformer):
    """The user's own text, in which steps stand for what is known."""

    def __init__(self, tape, names):
        self.tape, self.names = tape, names

    def visit(self, tree):
        found = self.found(tree) if isinstance(tree, ast.expr) else ...
        if found is ... or callable(found):
            return self.generic_visit(tree)
        return ast.parse(text(self.tape.node(found)), mode="eval").body

    def found(self, tree):
        if isinstance(tree, ast.Name):
            return self.names.get(tree.id, ...)
        if isinstance(tree, ast.Subscript):
            whole = self.found(tree.value)
            if isinstance(whole, tuple):
                return whole[eval(ast.unparse(tree.slice), {}, self.names)]
        return self.tape.spot.get(place(tree), ...)


class Tape(TorchFunctionMode):
    """What `function` does with `arguments`: tensors and Python values, by name.

    at_zero: whether a norm of zero is to have PyTorch's gradient there, which is zero.
    """

    def __init__(self, function, arguments, at_zero):
        super().__init__()
        self.at_zero = at_zero
        self.nodes, self.of, self.guards, self.leaks = [], {}, {}, set()
        tree, self.spot = definition(function)[0], {}
        self.trees = {place(t): t for t in ast.walk(tree) if isinstance(t, ast.expr)}
        self.indent = tree.indent
        # float * Size would be a plain float: constants carry their text, too.
        consts = (
            number(c, repr(c)) if type(c) is float else c
            for c in function.__code__.co_consts
        )
        self.code = function.__code__.replace(co_consts=tuple(consts))
        self.line, self.refusal = self.code.co_firstlineno, ""
        self.globals = function.__globals__
        arguments = dict(arguments)
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                value = value.detach().requires_grad_(value.is_floating_point())
                Node(self, "input", None, value).name = name
                arguments[name] = value
        self.inputs = list(self.nodes)
        self.numbers = {n: v for n, v in arguments.items() if type(v) is float}
        for name, value in self.numbers.items():
            node = Node(self, "number", None, value)
            self.numbers[name], node.name = str(node), f"ctx.{name}"
            arguments[name] = number(value, str(node))
        names = {**function.__globals__, "range": self.range}
        for name, value in function.__globals__.items():
            if type(value) in (int, float):
                names[name] = number(value, name)
            elif value is math:
                names[name] = Math()
            elif getattr(value, "__module__", "") == "math":
                names[name] = getattr(Math(), value.__name__)
        before = sys.gettrace()
        _tapes.append(self)
        try:
            sys.settrace(self.trace)
            with self:
                result = types.FunctionType(self.code, names)(**arguments)
        except Exception as error:
            self.refusal = self.refusal or f"line {self.line}: {error}"
        finally:
            sys.settrace(before)
            _tapes.pop()
        if self.refusal:
            raise Refused(self.refusal)
        self.exact = bool(self.leaks.difference(self.numbers.values()))
        results = (result,) if isinstance(result, torch.Tensor) else result
        if not isinstance(results, tuple):
            raise Refused(f"{function.__name__} returns a {type(result).__name__}")
        self.outputs = [self.of.get(id(r)) for r in results]
        storages = {n.value.untyped_storage().data_ptr() for n in self.inputs}
        for node in self.outputs:
            if node is None or not node.value.requires_grad:
                raise Refused("an output depends on no input that has a gradient")
            storage = node.value.untyped_storage().data_ptr()
            if storage in storages:
                raise Refused(
                    "an output is an input, or a view of one or of another output"
                )
            storages.add(storage)

    def range(self, *bounds):
        self.leaks.update(text(b) for b in bounds if isinstance(b, Size))
        if len(range(*plain(bounds))) > 8:
            self.refuse("a loop of more than 8 rounds")
        return range(*plain(bounds))

    def trace(self, frame, event, argument):
        """A tensor's name is what the forward called it."""
        if frame.f_code is not self.code:
            return None
        self.line = frame.f_lineno
        self.locals = {n: self.of.get(id(v)) for n, v in frame.f_locals.items()}
        for name, value in frame.f_locals.items():
            node = self.locals[name]
            if isinstance(value, (Size, Number)) and "(" in value.text:
                node = Node(self, "number", value.text, plain(value))
                value.text = str(node)
            if node and not node.name:
                node.name = name
        return self.trace

    def refuse(self, why):
        self.refusal = f"line {self.line}: {why}"
        raise Refused(self.refusal)

    def node(self, value):
        if isinstance(value, torch.Tensor):
            if id(value) not in self.of:
                self.refuse("a tensor that is no argument of the function")
            return self.of[id(value)]
        if isinstance(value, (tuple, list)):
            return (list if isinstance(value, list) else tuple)(map(self.node, value))
        for attribute in ("dtype", "device"):
            if value == getattr(self.inputs[0].value, attribute):
                return types.SimpleNamespace(text=f"{self.inputs[0]}.{attribute}")
        return value

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.__name__
        if name == "__get__":
            name = func.__self__.__name__
        op = name.strip("_")
        if name.endswith("_") and name[0] != "_" or op in ("setitem", "iadd"):
            self.refuse(f"`{name}` changes a tensor in place")
        swap = op[0] == "r" and (op[1:] in SIGNS)
        op = op[1:] if swap else op
        if not torch.is_grad_enabled():
            self.refuse("no_grad: write x.detach()")
        if op == "T" and args[0].dim() != 2:
            self.refuse("`.T` of other than two dimensions: write .mT")
        if op not in KNOWN | ATTRIBUTES:
            self.refuse(f"`{op}`: not in the table")
        given, named = self.node(args), {k: self.node(v) for k, v in kwargs.items()}
        place, names = self.here()
        self.spot.pop(place, None)
        if op in ATTRIBUTES:
            self.spot[place] = self.attribute(op, *given)
            return self.spot[place]
        texts = []
        if place:
            tree = Spelled(self, names).visit(copy.deepcopy(self.trees[place]))
            texts = [ast.unparse(tree)]
        value = func(*plain(args), **{k: plain(v) for k, v in kwargs.items()})
        named = {
            k: v for k, v in named.items() if k not in ADDED or plain(v) != ADDED[k]
        }
        given = given[::-1] if swap else given
        first = value if isinstance(value, torch.Tensor) else value[0]
        node = Node(
            self, op, self.spelled(texts, op, first, given, named), first, given, named
        )
        if first is not value:
            node.pieces = [
                Node(self, "piece", f"{node}[{i}]", v, (node, i))
                for i, v in enumerate(value)
            ]
        self.spot[place] = value
        return value

    def spelled(self, texts, op, value, given, named):
        """The text of a step: the user's own, or a plain one where that does more."""
        args = [*map(text, given), *(f"{k}={text(v)}" for k, v in named.items())]
        plainly = f"{'torch' if hasattr(torch, op) else 'F'}.{op}({', '.join(args)})"
        if op in SIGNS:
            plainly = f"{args[0]} {SIGNS[op]} {args[1]}"
        values = {str(n): n.value for n in self.nodes}
        for found in (*texts, plainly):
            try:
                again = eval(found, self.globals | SCOPE, values)
                again = again[0] if op in PIECES else again
                if ((again == value) | (value != value)).all():
                    return found
            except Exception:  # of a text that is not this step's
                continue
        self.refuse(f"`{op}`: write it as a call of its own")

    def here(self):
        """The expression that runs, and the variables."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename != self.code.co_filename:
            frame = frame.f_back
        line, end, left, right = [*frame.f_code.co_positions()][frame.f_lasti // 2]
        line, end = (n - self.code.co_firstlineno + 1 for n in (line, end))
        left, right = left - self.indent, right - self.indent
        # A chain of calls on several lines says only where its last name begins.
        fits = [
            p for p in self.trees if p[2:] == (end, right) and p[:2] <= (line, left)
        ]
        return max(fits, default=None), frame.f_locals

    def attribute(self, name, node, *rest):
        if name in ("dtype", "device"):
            return getattr(node.value, name)
        if name in ("dim", "ndim"):
            return number(len(node.shape), f"{node}.dim()")
        if name == "numel":
            return number(math.prod(node.shape), self.count(node))
        shape = Shape(number(s, self.size(node, i)) for i, s in enumerate(node.shape))
        shape.node, shape.tape = node, self
        return shape[rest[0]] if rest else shape

    # Sizes as text, of the inputs: no intermediate is computed for its shape alone.

    def donor(self, node):
        alike = (i for i in self.inputs if i.shape == node.shape)
        return node if node.op == "input" else next(alike, None)

    def size(self, node, dim):
        donor = self.donor(node)
        if donor:
            return f"{donor}.shape[{text(dim)}]"
        for other in self.nodes:
            sizes = other.args[1:] if other.op in ("reshape", "view") else ()
            sizes = sizes[0] if sizes and isinstance(sizes[0], tuple) else sizes
            if other.shape == node.shape and sizes and plain(sizes[dim]) != -1:
                return text(sizes[dim])
        axes = ((i, k) for i in self.inputs for k in range(-1, -len(i.shape) - 1, -1))
        wanted = node.shape[dim]
        found = (f"{i}.shape[{k}]" for i, k in axes if i.shape[k] == wanted != 1)
        return next(found, repr(wanted))

    def sizes(self, node):
        donor = self.donor(node)
        if donor:
            return f"{donor}.shape"
        return ", ".join(self.size(node, d) for d in range(len(node.shape))) or "()"

    def count(self, node, dims=()):
        donor = self.donor(node)
        if donor and not dims:
            return f"{donor}.numel()"
        dims = dims or range(len(node.shape))
        return " * ".join(self.size(node, d) for d in dims) or "1"

    text, plain = staticmethod(text), staticmethod(plain)


class Math:
    """`math`, whose results remember how they were made."""

    def __getattr__(self, name):
        found = getattr(math, name)
        if not callable(found):
            return number(found, f"math.{name}")

        def call(*numbers):
            made = found(*plain(numbers))
            if isinstance(made, bool):
                _tapes[-1].leaks.update(map(text, numbers))
                return made
            return number(made, f"math.{name}({', '.join(map(text, numbers))})")

        return call
