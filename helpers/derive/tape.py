"""A forward, run once, as a list of steps: what was called, with what, and on which line.

Sizes carry the text that made them, so that a constant of the shape is written as the
shape, and each comparison of them leaves a guard.
"""

import ast
import contextlib
import math
import operator
import re
import sys
import types

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from .rules import KNOWN, Refused
from .simple import AS_IS
from .source import definition, shown

SIGNS = dict(
    zip(
        "add sub mul div truediv floordiv mod pow gt lt ge le eq ne".split(),
        "+ - * / / // % ** > < >= <= == !=".split(),
        strict=True,
    )
)
# What is written otherwise than as a call.
SPELLED = {op: f"{{}} {sign} {{}}" for op, sign in SIGNS.items()}
SPELLED |= {"matmul": "{} @ {}", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}"}
SPELLED |= {
    "neg": "-{}",
    "invert": "~{}",
    "getitem": "{}[{}]",
    "T": "{}.T",
    "mT": "{}.mT",
}
INSTEAD = {"max": ", but amax and maximum are", "min": ", but amin and minimum are"}
MASKS = torch.bool, torch.uint8
FACTORIES = set("arange eye full full_like linspace ones zeros".split())
IDS = re.compile(r"\b_\d+\b")
NOTHING = [("add", [0]), ("mul", [1])]  # as in the first round of a loop
ATTRIBUTES = {"dim", "dtype", "device", "ndim", "numel", "shape", "size"}
# What PyTorch's own wrappers add to a call.
ADDED = dict(_stacklevel=3, dtype=None, out=None, inplace=False, p="fro", alpha=1.0)
ADDED |= dict(dim=None, keepdim=False, negative_slope=0.01)
SCOPE = {"torch": torch, "F": torch.nn.functional, "math": math}
SCOPE[AS_IS] = lambda value: value
_tapes = []


class Size(int):
    """A whole number made of sizes, with its text."""


class Number(float):
    """A number made of sizes, with its text."""


def number(value, source, known_to_trace=False):
    """known_to_trace: whether it is a size that the trace alone knows, without a text."""
    made = (Size if isinstance(value, int) else Number)(value)
    made.text, made.of_trace = source, known_to_trace
    return made


def of_trace(*numbers):
    return any(getattr(one, "of_trace", False) for one in numbers)


def items(values):
    """Of a tuple or list; a shape's, without a guard of its rank."""
    return tuple.__iter__(values) if isinstance(values, Shape) else values


def plain(value):
    """The same without texts."""
    if isinstance(value, (tuple, list)):
        return (list if isinstance(value, list) else tuple)(map(plain, items(value)))
    if isinstance(value, slice):
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    if isinstance(value, Size):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, Number) else value


def text(value):
    if isinstance(value, slice):
        bounds = value.start, value.stop, value.step
        return ":".join("" if bound is None else text(bound) for bound in bounds)
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(text, items(value)))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
    return getattr(value, "text", None) or ("..." if value is ... else shown(value))


def literal(value):
    return text(value) == repr(plain(value))


def _arithmetic(name, swap=False):
    def method(self, other):
        if not isinstance(other, (int, float)):
            if isinstance(other, torch.Tensor):
                _tapes[-1].left = True  # who is asked next
            elif isinstance(other, (list, tuple, str)):  # which is repeated
                _tapes[-1].leak(self)
            return NotImplemented
        a, b = (other, self) if swap else (self, other)
        value = getattr(operator, name)(plain(a), plain(b))
        source = f"({text(a)} {SIGNS[name]} {text(b)})"
        if not isinstance(value, bool):
            known = isinstance(value, int) and literal(a) and literal(b)
            return number(value, repr(value) if known else source, of_trace(a, b))
        if of_trace(a, b):
            _tapes[-1].leak(a, b)
        elif "_" in source:  # of a tensor's shape
            _tapes[-1].guards[source] = value
        return value

    return method


def _leak(name):
    def method(self, *others):
        _tapes[-1].leak(self)
        return getattr(plain(self), name)(*others)

    return method


for _class, _base in ((Size, int), (Number, float)):
    for _name in "add sub mul floordiv truediv mod pow".split():
        setattr(_class, f"__{_name}__", _arithmetic(_name))
        setattr(_class, f"__r{_name}__", _arithmetic(_name, swap=True))
    for _name in "gt lt ge le eq ne".split():
        setattr(_class, f"__{_name}__", _arithmetic(_name))
    _class.__neg__ = lambda self: number(
        -plain(self), f"(-{text(self)})", of_trace(self)
    )
    for _name in (set(dir(_base)) - set(dir(object))) | {
        "__hash__",
        "__str__",
        "__format__",
    }:
        if _name not in vars(_class):
            setattr(_class, _name, _leak(_name))


class Shape(tuple):
    """`x.shape`, whose sizes are counted from the end from which the forward counted."""

    def __len__(self):
        count = super().__len__()
        self.tape.guards[f"({self.node}.dim() == {count})"] = True
        return count

    def __iter__(self):
        len(self)
        return super().__iter__()

    def __add__(self, other):
        return tuple(self) + tuple(other)

    def __radd__(self, other):
        return tuple(other) + tuple(self)

    def __getitem__(self, index):
        found = super().__getitem__(index)
        if isinstance(index, slice):
            count = super().__len__()
            if len(found) != len(range(count + 1)[plain(index)]):
                len(self)
            return found
        return self.tape.sized(self.node, index)


class Node:
    """One step: `op` of `args`, of which nodes are steps, too."""

    def __init__(self, tape, op, source, value, args=(), kwargs=None):
        self.op, self.source, self.value, self.name = op, source, value, None
        self.line = tape.line
        self.args, self.kwargs, self.pieces = args, kwargs or {}, []
        self.text, self.shape = f"_{len(tape.nodes)}", ()
        tape.nodes.append(self)
        if op != "number":
            self.shape = tuple(value.shape)
            tape.of[id(value)] = self

    def __str__(self):
        return self.text


class Numbered(ast.NodeTransformer):
    """Constants with their text: a plain float times a Size would be a plain float.

    And what is taken from a list by a Size is told.
    """

    def visit_Subscript(self, tree):  # noqa: N802
        tree = self.generic_visit(tree)
        if not isinstance(tree.ctx, ast.Load):
            return tree
        given = [tree.value, self.index(tree.slice)]
        return ast.Call(ast.Name("_item", ast.Load()), given, [])

    def index(self, tree):
        if isinstance(tree, ast.Tuple):
            return ast.Tuple([*map(self.index, tree.elts)], ast.Load())
        if not isinstance(tree, ast.Slice):
            return tree
        bounds = tree.lower, tree.upper, tree.step
        given = [bound or ast.Constant(None) for bound in bounds]
        return ast.Call(ast.Name("_slice", ast.Load()), given, [])

    def visit(self, tree):
        with contextlib.suppress(ValueError):
            if type(ast.literal_eval(tree)) in (int, float):
                return ast.Call(ast.Name("_constant", ast.Load()), [tree], [])
        # A number of a `case` is no expression.
        return tree if isinstance(tree, ast.MatchValue) else super().visit(tree)


class Tape(TorchFunctionMode):
    """What `function` does with `arguments`: tensors and Python values, by name.

    at_zero: whether a norm of zero is to have PyTorch's gradient there, which is zero.
    """

    def __init__(self, function, arguments, at_zero):
        super().__init__()
        self.at_zero, self.line = at_zero, 0
        self.nodes, self.of, self.guards, self.leaks = [], {}, {}, set()
        self.refusal, self.left, self.asked, self.kept = "", False, {}, []
        self.of_trace = False
        self.globals = function.__globals__
        arguments, self.numbers = dict(arguments), {}
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                value = value.detach().requires_grad_(value.is_floating_point())
                Node(self, "input", None, value).name = name
            elif type(value) is float:
                node = Node(self, "number", None, value)
                self.numbers[name], node.name = str(node), f"ctx.{name}"
                value = number(value, str(node))
            arguments[name] = value
        self.inputs = [node for node in self.nodes if node.op == "input"]
        names = {**function.__globals__, "range": self.range}
        names["_constant"] = lambda value: number(value, repr(value))
        names |= {"_item": self.item, "_slice": slice}
        for name, value in function.__globals__.items():
            if type(value) in (int, float):
                names[name] = number(value, name)
            elif value is math:
                names[name] = Math()
            elif getattr(value, "__module__", "") == "math":
                names[name] = getattr(Math(), value.__name__)
        tree = ast.fix_missing_locations(Numbered().visit(definition(function)[0]))
        before = sys.gettrace()
        _tapes.append(self)
        try:
            exec(compile(ast.Module([tree], []), "<traced>", "exec"), names)
            run = names[tree.name]
            self.words = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            self.code = run.__code__
            sys.settrace(self.trace)
            with self:
                result = run(**arguments)
        except Exception as error:
            self.refusal = self.refusal or f"line {self.line}: {error}"
        finally:
            sys.settrace(before)
            _tapes.pop()
        if self.refusal:
            raise Refused(self.refusal)
        # The numbers, and the tensors, that what has leaked was made of.
        sources = {str(n): n.source or "" for n in self.nodes if n.op == "number"}
        for known in (pinned := list(self.leaks)):
            pinned += [sources[i] for i in IDS.findall(known) if sources.get(i)]
        self.leaks = set(IDS.findall(" ".join(pinned)))
        self.exact = self.of_trace or not self.leaks <= sources.keys()
        results = (result,) if isinstance(result, torch.Tensor) else result
        if not isinstance(results, tuple):
            raise Refused(f"{function.__name__} returns a {type(result).__name__}")
        self.outputs = [self.of.get(id(r)) for r in results]
        storages = {n.value.untyped_storage().data_ptr() for n in self.inputs}
        for k, node in enumerate(self.outputs):
            if node is None or not node.value.requires_grad:
                raise Refused(
                    f"output {k} depends on no input that has a gradient: return it from "
                    "another function"
                )
            storage = node.value.untyped_storage().data_ptr()
            if storage in storages:
                raise Refused(
                    "an output is an input, or a view of one or of another output"
                )
            storages.add(storage)

    def leak(self, *numbers):
        self.leaks.update(known for known in map(text, numbers) if "_" in known)
        self.of_trace |= of_trace(*numbers)

    def item(self, of, index):
        """A part of something, which nothing else would tell of a list."""
        if isinstance(index, slice):
            known = index.start, index.stop, index.step
        else:
            known = () if isinstance(of, Shape) else (index,)
        if isinstance(of, (list, tuple, dict, str)):
            self.leak(*known)
        return of[index]

    def range(self, *bounds):
        self.leak(*bounds)
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
            made = list if isinstance(value, list) else tuple
            return made(map(self.node, items(value)))
        if isinstance(value, (torch.dtype, torch.device)):
            return self.asked.get(value, value)
        return plain(value) if literal(value) else value

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, called = dict(kwargs or {}), resolve_name(func) or func.__name__
        if "input" in kwargs and "condition" not in kwargs:
            args = kwargs.pop("input"), *args
        home, _, name = called.removesuffix(".__get__").rpartition(".")
        op = name.strip("_").replace("truediv", "div")
        if name.endswith("_") and name[0] != "_" or op == "setitem":
            self.refuse(f"`{name}` changes a tensor in place")
        swap = op[0] == "r" and op[1:] in SIGNS
        op = op[1:] if swap else op
        if not torch.is_grad_enabled():
            self.refuse("no_grad: write x.detach()")
        if op not in KNOWN | ATTRIBUTES or home == "torch.linalg":
            self.refuse(f"`{op}`: not in the table{INSTEAD.get(op, '')}")
        given, named = self.node(args), {k: self.node(v) for k, v in kwargs.items()}
        if op in ATTRIBUTES:
            return self.attribute(op, *given, *named.values())
        self.refuse_shapes_of_data(op, given, named)
        value = func(*plain(args), **{k: plain(v) for k, v in kwargs.items()})
        named = {
            k: v
            for k, v in named.items()
            if plain(v) != ADDED.get(k, self) or not literal(v)
        }
        if swap or self.left and op in ("add", "mul"):
            given = given[::-1]
        self.left = False
        done = op, [plain(a) for a in given if literal(a)]
        step = next((a for a in given if isinstance(a, Node)), None)
        if done in NOTHING and not named and value.dtype == step.value.dtype:
            self.of[id(value)] = step
            self.kept.append(value)
            return value
        source = self.spelled(home, name, op, given, named)
        self.guard_bounds(op, given, named)
        pieces = () if isinstance(value, torch.Tensor) else value
        node = Node(self, op, source, pieces[0] if pieces else value, given, named)
        node.pieces = [
            Node(self, "piece", f"{node}[{i}]", v) for i, v in enumerate(pieces)
        ]
        return value

    def refuse_shapes_of_data(self, op, given, named):
        """What decides on a shape by a tensor's numbers."""
        index = given[1] if op == "getitem" else ()
        index = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, Node) and i.value.dtype in MASKS for i in index):
            self.refuse("an index by a mask: its result has no shape of its own")
        if op == "where" and len(given) + len(named) == 1:
            self.refuse("`where` of one argument: its result has no shape of its own")
        numbers = [*given[op.endswith("_like") :], *named.values()]
        if op in FACTORIES and any(isinstance(a, Node) for a in numbers):
            self.refuse(f"`{op}` reads a tensor's number")

    def guard_bounds(self, op, given, named):
        """On which side of a size a slice or a split ends, which may take less there."""
        bounds = []
        if op == "getitem":
            index = given[1] if isinstance(given[1], tuple) else (given[1],)
            index = [one for one in index if one is not None]
            at = index.index(...) if ... in index else len(index)
            dims = [*range(at), *range(at - len(index), 0)]
            for one, dim in zip(index, dims, strict=True):
                if isinstance(one, slice):
                    bounds += [(one.start, dim), (one.stop, dim)]
        elif op == "split":
            known = dict(zip(("split_size", "dim"), given[1:], strict=False)) | named
            bounds = [(known.get("split_size"), known.get("dim", 0))]
        sources = {str(n): n.source for n in self.nodes if n.op == "number"}
        for bound, dim in bounds:
            if not isinstance(bound, int) or abs(plain(bound)) < 2:
                continue
            size, much = self.size(given[0], dim), abs(plain(bound))
            source = text(bound) if plain(bound) > 0 else f"(-{text(bound)})"
            source = source if "_" in source else repr(much)
            if "_" in size and size not in (sources.get(source) or source):
                self.guards[f"({source} < {size})"] = much < given[0].shape[dim]

    def spelled(self, home, name, op, given, named):
        """The text of a step, as the forward calls it."""
        first, *rest = [
            *map(text, given),
            *(f"{k}={text(v)}" for k, v in named.items()),
        ]
        if op == "getitem" and isinstance(given[1], tuple):
            rest = [rest[0][1:-2]]
        if op in SPELLED and name != "pow" and not named:
            source = SPELLED[op].format(first, *rest)
        elif home == "torch.Tensor":
            source = f"{first}.{name}({', '.join(rest)})"
        else:
            home = "F" if home == "torch.nn.functional" else "torch"
            source = f"{home}.{name}({', '.join([first, *rest])})"
        return ast.unparse(ast.parse(source))

    def attribute(self, name, node, *rest):
        if name in ("dtype", "device"):
            found = getattr(node.value, name)
            self.asked[found] = types.SimpleNamespace(text=f"{node}.{name}")
            return found
        if name in ("dim", "ndim"):
            return number(len(node.shape), f"{node}.dim()")
        if name == "numel":
            counted = self.count(node)
            return number(math.prod(node.shape), counted, "_" not in counted)
        shape = Shape(self.sized(node, i) for i in range(len(node.shape)))
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

    def sized(self, node, dim):
        """The size as a number; of an intermediate, it may have no text."""
        known = self.size(node, dim)
        return number(node.shape[plain(dim)], known, "_" not in known)

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
                _tapes[-1].leak(*numbers)
                return made
            texts = ", ".join(map(text, numbers))
            return number(made, f"math.{name}({texts})", of_trace(*numbers))

        return call
