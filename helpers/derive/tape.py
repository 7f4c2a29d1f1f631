"""A forward, as a list of steps: what was called, with what, and on which line.

Numbers carry the text that made them, so that a constant of the shape is written as the
shape, and each comparison of them leaves a guard.
"""

import ast
import dataclasses
import inspect
import itertools
import math
import re

import torch

from .rules import KNOWN, Refused, shown
from .simple import AS_IS

# What is written otherwise than as a call.
SIGNS = dict(
    zip(
        "add sub mul div truediv pow gt lt ge le eq ne matmul and or xor".split(),
        "+ - * / / ** > < >= <= == != @ & | ^".split(),
        strict=True,
    )
)
SPELLED = {op: f"({{}}) {sign} ({{}})" for op, sign in SIGNS.items()}
SPELLED |= {
    "neg": "-{}",
    "invert": "~{}",
    "getitem": "{}[{}]",
    "T": "{}.T",
    "mT": "{}.mT",
}
INSTEAD = {
    "max": ", but amax and maximum are",
    "min": ", but amin and minimum are",
    "while": ", but for is",
    "with": ", for no_grad write x.detach()",
    "import": ", write it above",
    "from": ", write it above",
}
LINALG = "cross", "vector_norm"
STRIDES = set("chunk conv1d conv2d".split())  # and slices
LARGEST = 1024  # of the sizes that are tried, and of what they have to go beyond
DECIDES = "a tensor's numbers decide a shape or a Python value"
IDS = re.compile(r"\b_\d+\b")
NOTHING = [("add", [0]), ("mul", [1])]  # as in the first round of a loop
SCOPE = {"torch": torch, "F": torch.nn.functional, "math": math}
SCOPE[AS_IS] = lambda value: value


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """A Python value, with its text."""

    value: object
    text: str
    unwritten: bool = False  # whether it is a size that the trace alone knows
    far: int = 1  # by what the sizes were divided that made it

    def __str__(self):
        return self.text

    def __neg__(self):
        return dataclasses.replace(self, value=-self.value, text=f"(-{self})")


def constant(value):
    return Known(value, shown(value))


class Shape:
    """`x.shape`, whose sizes are counted from the end from which the forward counted."""

    def __init__(self, tape, node):
        self.tape, self.node = tape, node
        sizes = tuple(tape.sized(node, k) for k in range(len(node.shape)))
        donor = tape.donor(node)
        self.text = f"{donor}.shape" if donor else text(sizes)

    def elements(self):
        count = len(self.node.shape)
        self.tape.guards[f"({self.node}.dim() == {count})"] = True
        return tuple(self.tape.sized(self.node, k) for k in range(count))

    def __getitem__(self, index):
        if not isinstance(index, slice):
            return self.tape.sized(self.node, index)
        self.tape.pin(index)
        return self.elements()[plain(index)]


def flat(value):
    """The Knowns in it, of whole numbers, too."""
    if isinstance(value, slice):
        value = value.start, value.stop, value.step
    if isinstance(value, (tuple, list)):
        return [one for part in value for one in flat(part)]
    value = constant(value) if type(value) is int else value
    return [value] if isinstance(value, Known) else []


def plain(value, of=None):
    """What Python has in its place; in that of a tensor, what `of` makes of it."""
    if isinstance(value, (tuple, list)):
        return type(value)(plain(one, of) for one in value)
    if isinstance(value, slice):
        return slice(*(plain(b, of) for b in (value.start, value.stop, value.step)))
    if isinstance(value, Shape):
        return value.node.shape
    if isinstance(value, Node):
        if of is None:
            raise ValueError(DECIDES)
        return of(value)
    return value.value if isinstance(value, Known) else value


def text(value):
    if isinstance(value, slice):
        bounds = value.start, value.stop, value.step
        return ":".join("" if bound is None else text(bound) for bound in bounds)
    if isinstance(value, (tuple, list)):
        inner = "".join(f"{text(one)}, " for one in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return getattr(value, "text", None) or shown(value)


def literal(value):
    return text(value) == shown(plain(value, str))


def call(function, given, named, of):
    return function(*plain(given, of), **{k: plain(v, of) for k, v in named.items()})


def unwrapped(value):
    """The same with numbers that are written as they are in place of Knowns."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(unwrapped, value))
    if isinstance(value, slice):
        bounds = value.start, value.stop, value.step
        return slice(*map(unwrapped, bounds))
    return value.value if isinstance(value, Known) and literal(value) else value


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

    def __str__(self):
        return self.text


class Tape:
    """Of a forward that is read line by line.

    at_zero: whether a norm of zero is to have PyTorch's gradient there, which is zero.
    """

    def __init__(self, function, tree, at_zero):
        self.globals, self.code = function.__globals__, function.__code__
        self.words = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        self.at_zero, self.line, self.outputs = at_zero, 0, []
        self.nodes, self.inputs, self.numbers = [], [], {}
        self.guards, self.pinned, self.exact = {}, set(), False
        self.met, parameters = set(), inspect.signature(function).parameters
        self.optional = {n for n, p in parameters.items() if p.default is None}

    def argument(self, name, value):
        if isinstance(value, torch.Tensor):
            value = value.detach().requires_grad_(value.is_floating_point())
            self.inputs.append(self.named(Node(self, "input", None, value), name))
            return self.inputs[-1]
        if type(value) is not float:
            return constant(value)
        node = self.numbers[name] = Node(self, "number", None, value)
        node.name = f"ctx.{name}"
        return Known(value, str(node))

    def end(self, result, variables):
        self.variables = {n: v for n, v in variables.items() if isinstance(v, Node)}
        # The numbers, and the tensors, that what was pinned was made of.
        sources = {str(n): n.source or "" for n in self.nodes if n.op == "number"}
        for known in (pinned := list(self.pinned)):
            pinned += [sources[i] for i in IDS.findall(known) if sources.get(i)]
        self.pinned = set(IDS.findall(" ".join(pinned)))
        self.exact |= not self.pinned <= sources.keys()
        self.outputs = list(result) if isinstance(result, tuple) else [result]
        storages = {n.value.untyped_storage().data_ptr() for n in self.inputs}
        for k, node in enumerate(self.outputs):
            if not isinstance(node, Node):
                raise Refused(f"output {k} is no tensor")
            if not node.value.requires_grad:
                raise Refused(
                    f"output {k} depends on no input that has a gradient: return it from "
                    "another function"
                )
            storage = node.value.untyped_storage().data_ptr()
            if storage in storages:
                raise Refused(
                    "an output is an input, or one plus 0 or times 1, or a view of one or of "
                    "another output"
                )
            storages.add(storage)

    def refusals(self):
        """Of each guard, when it does not hold, as a text of the arguments."""
        for guard, held in self.guards.items():
            for node in reversed(self.nodes):
                known = f"({node.source})" if node.source else node.name
                guard = re.sub(rf"\b{node}\b", known.removeprefix("ctx."), guard)
            left, _, right = guard[1:-1].partition(" == ")
            if left != right:
                yield ast.unparse(ast.parse(f"not {guard}" if held else guard))

    def refuse(self, why):
        raise Refused(f"line {self.line}: {why}")

    def unknown(self, name):
        self.refuse(f"`{name}`: not in the table{INSTEAD.get(name, '')}")

    def pin(self, *values):
        """What the text does not follow holds for these numbers alone."""
        self.pinned |= {known.text for known in flat(values)}
        if any(".dtype" in known.text for known in flat(values)):
            self.refuse("a number of the dtype that is rounded")
        self.exact |= any(known.unwritten for known in flat(values))

    def meet(self, *values, divided=True):
        """By what sizes were divided, and whether that is beyond the sizes that are tried."""
        whole = [n for n in flat(values) if type(n.value) is int]
        met = {1, *(abs(n.value) for n in whole if not IDS.search(n.text))}
        far = max([1, *(n.far for n in whole)]) * (max(met) if divided else 1)
        self.met |= {far, *met}
        return far, max(far, *met) >= LARGEST

    def known(self, value, written, *of, divided=False):
        """A value that is made of others; a truth is one for these, and guarded."""
        unwritten = any(known.unwritten for known in flat(of))
        far, beyond = self.meet(*of, divided=divided)
        if isinstance(value, bool):
            self.exact |= unwritten
            if not unwritten and IDS.search(written):
                self.guards[written] = value
            return constant(value)
        if isinstance(value, (int, str)) and all(map(literal, flat(of))):
            written = repr(value)
        elif type(value) is int:  # where n // 2048 is another, nobody tries
            self.exact |= beyond
        return Known(value, written, unwritten, far)

    def named(self, value, name):
        """A tensor's name is what the forward called it; a number made of others has one, too."""
        made = value
        if isinstance(value, Known) and "(" in value.text:
            made = Node(self, "number", value.text, value.value)
            value = dataclasses.replace(value, text=str(made))
        if isinstance(made, Node) and not made.name and name != "_":
            made.name = name
        return value

    def step(self, called, function, given, named):
        """The result of one call, by the name that PyTorch gives what is called."""
        home, _, name = called.rpartition(".")
        op = name.strip("_").replace("truediv", "div")
        in_place = "out" in named or plain(named.get("inplace", False))
        in_place |= home.endswith("functional") and any(
            isinstance(a, Known) and a.value is True for a in given
        )
        if in_place or name.endswith("_") and name[0] != "_":
            self.refuse(f"`{name}` changes a tensor in place")
        if op not in KNOWN or home == "torch.linalg" and op not in LINALG:
            self.unknown(op)
        given, named = unwrapped(given), {k: unwrapped(v) for k, v in named.items()}
        if "input" in named and "condition" not in named:
            given = named.pop("input"), *given
        self.refuse_numbers_of(function, op, given, named)
        value = call(function, given, named, lambda node: node.value)
        done = op, [plain(a) for a in given if literal(a)]
        step = next((a for a in given if isinstance(a, Node)), None)
        if done in NOTHING and not named and value.dtype == step.value.dtype:
            return step
        source = self.spelled(home, name, op, given, named)
        self.meet(given, *named.values(), divided=False)
        self.guard_bounds(op, given, named)
        if isinstance(value, torch.Tensor):
            return Node(self, op, source, value, given, named)
        node = Node(self, op, source, value[0], given, named)
        node.pieces = [
            Node(self, "piece", f"{node}[{i}]", v) for i, v in enumerate(value)
        ]
        return tuple(node.pieces)

    def refuse_numbers_of(self, function, op, given, named):
        """What cannot be done with tensors that have shapes, and no numbers."""
        read = []
        plain((*given, *named.values()), read.append)
        if op == "to" or all(n.shape and n.value.is_floating_point() for n in read):
            return
        try:
            call(function, given, named, lambda node: node.value.detach().to("meta"))
        except Exception:  # as of where(mask), or of item
            self.refuse(f"`{op}`: {DECIDES}")

    def guard_bounds(self, op, given, named):
        """On which side of a size a slice or a split ends, which may take less there."""
        bounds, numbers = [], [*given, *named.values()]
        strides = given[2:] or "step" in named if op == "arange" else op in STRIDES
        steps = numbers if strides else []
        if op == "getitem":
            index = given[1] if isinstance(given[1], tuple) else (given[1],)
            index = [one for one in index if one is not None]
            at = index.index(...) if ... in index else len(index)
            dims = [*range(at), *range(at - len(index), 0)]
            for one, dim in zip(index, dims, strict=True):
                if isinstance(one, slice):
                    bounds += [(one.start, dim), (one.stop, dim)]
                    steps += [one] * (one.step is not None)
        elif op == "split":
            known = dict(zip(("split_size", "dim"), given[1:], strict=False)) | named
            bounds = [(known.get("split_size"), known.get("dim", 0))]
        self.exact |= self.meet(*steps)[1]
        if op == "arange":  # whose shape is rounded
            self.pin(*(n for n in flat(numbers) if type(n.value) is float))
        sources = {str(n): n.source for n in self.nodes if n.op == "number"}
        for bound, dim in bounds:
            number = plain(bound)
            if not isinstance(number, int) or literal(bound) and abs(number) < 2:
                continue
            size, much = self.size(given[0], dim), abs(number)
            source = text(bound) if number >= 0 else f"(-{text(bound)})"
            source = source if "_" in source else repr(much)
            if "_" in size + source and size not in (sources.get(source) or source):
                self.guards[f"({source} < {size})"] = much < given[0].shape[dim]

    def spelled(self, home, name, op, given, named):
        """The text of a step, as the forward calls it."""
        first, *rest = [
            *map(text, given),
            *(f"{k}={text(v)}" for k, v in named.items()),
        ]
        if op == "getitem" and isinstance(given[1], tuple) and given[1]:
            rest = [rest[0][1:-3]]
        if op in SPELLED and name != "pow" and not named:
            source = SPELLED[op].format(first, *rest)
        elif home == "torch.Tensor":
            source = f"{first}.{name}({', '.join(rest)})"
        else:
            homes = {"torch.nn.functional": "F", "torch.linalg": home}
            home = homes.get(home, "torch")
            source = f"{home}.{name}({', '.join([first, *rest])})"
        return ast.unparse(ast.parse(source))

    def attribute(self, node, name, *rest):
        if name in ("dtype", "device"):
            return Known(getattr(node.value, name), f"{node}.{name}")
        if name in ("dim", "ndim"):
            return Known(len(node.shape), f"{node}.dim()")
        if name == "numel":
            sizes = [self.sized(node, k) for k in range(len(node.shape))]
            unwritten = any(size.unwritten for size in sizes) and not self.donor(node)
            return Known(math.prod(node.shape), f"({self.count(node)})", unwritten)
        return Shape(self, node)[rest[0]] if rest else Shape(self, node)

    # Sizes as text, of the inputs: no intermediate is computed for its shape alone.

    def donor(self, node):
        alike = [i for i in self.inputs if i.shape == node.shape]
        alike.sort(key=lambda i: i not in node.args)
        return node if node.op == "input" else next(iter(alike), None)

    def size(self, node, dim):
        donor = self.donor(node)
        if donor:
            return f"{donor}.shape[{text(dim)}]"
        for other in self.nodes:
            sizes = other.args[1:] if other.op in ("reshape", "view") else ()
            sizes = sizes[0] if sizes and isinstance(sizes[0], tuple) else sizes
            if other.shape == node.shape and sizes and plain(sizes[plain(dim)]) != -1:
                return text(sizes[plain(dim)])
        axes = ((i, k) for i in self.inputs for k in range(-1, -len(i.shape) - 1, -1))
        wanted = node.shape[plain(dim)]
        found = (f"{i}.shape[{k}]" for i, k in axes if i.shape[k] == wanted != 1)
        # In backward, steps of the forward are at hand.
        steps = self.nodes if self.outputs and wanted != 1 else ()
        steps = (n for n in steps if n.name and n.shape == node.shape)
        found = itertools.chain(found, (f"{n}.shape[{text(dim)}]" for n in steps))
        return next(found, repr(wanted))

    def sized(self, node, dim):
        """The size as a number; of an intermediate, it may have no text."""
        known = self.size(node, dim)
        return Known(node.shape[plain(dim)], known, not IDS.search(known))

    def sizes(self, node):
        donor = self.donor(node)
        if donor:
            return f"{donor}.shape"
        sizes = [self.size(node, d) for d in range(len(node.shape))]
        steps = {size.split(".")[0] for size in sizes} & {str(n) for n in self.nodes}
        inner = steps - {str(n) for n in self.inputs}
        return f"{min(inner)}.shape" if inner else ", ".join(sizes) or "()"

    def count(self, node, dims=()):
        donor = self.donor(node)
        if donor and not dims:
            return f"{donor}.numel()"
        dims = dims or range(len(node.shape))
        return " * ".join(self.size(node, d) for d in dims) or "1"

    text, plain = staticmethod(text), staticmethod(plain)
