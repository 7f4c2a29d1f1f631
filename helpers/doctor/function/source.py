"""The source of a backward: edited, compiled, and run in the place of the original."""

import ast
import contextlib
import dis
import functools
import inspect
import textwrap
import threading
import types

import torch
from torch.autograd.function import BackwardCFunction

from .variations import applied
from .flows import methods_of, only_kept
from .harmless import assigned, ends, harmless

KEEP, ROUNDS = "what_the_doctor_keeps", 1000
WRAPPINGS = ast.keyword, ast.Slice, ast.Starred, ast.comprehension


class UnsuitableError(Exception):
    """The function has no source, or one that is not to be run in another form."""


class Source:
    """The definition of a function, which can be edited and compiled.

    body: {node: None} of those to edit; of forward, saves=True, those of what it keeps for backward
    up: node -> (owner, key, parent), where owner[key] or owner.key is the node
    siblings: functions of the class, of one argument; constants: its numbers
    literals, slices: the numbers that forward is written with, and {text: node} of its slices
    elsewhere: (name, expression) of what other methods assign to a name; returned: by them
    calls_held: does it call what ctx, or a variable, holds? That is to be looked at
    """

    def __init__(self, fn, cls, saves=False, caches=False):
        self.fn, self.saves, self.siblings, self.constants = fn, saves, [], {}
        if fn.__globals__.get(cls.__name__) is cls:
            own = {
                name: of.__func__ for name, of in vars(cls).items() if isinstance(of, staticmethod)
            }
            others = {n: of for n, of in own.items() if of is not fn and inspect.isfunction(of)}
            names = [n for n, of in others.items() if of.__code__.co_argcount == 1
                     and not hasattr(torch.autograd.Function, n)]  # fmt: skip
            self.siblings = [f"{cls.__name__}.{name}" for name in names]
            numbers = {name: n for name, n in vars(cls).items() if type(n) in (int, float)}
            self.constants = {f"{cls.__name__}.{name}": n for name, n in numbers.items()}
        self.literals, self.slices = written_in(cls.forward)
        helpers = [of.__func__ for of in vars(cls).values() if isinstance(of, staticmethod)]
        others = dict.fromkeys(map(inspect.unwrap, (*methods_of(cls), *helpers)))
        others = [of for of in others if of is not fn and inspect.isfunction(of)]
        lines = [line for of in others for line in nodes_of(of)]
        self.elsewhere = [pair for line in lines for pair in assigned(line)]
        values = [line.value for line in lines if isinstance(line, ast.Return)]
        self.returned = [value for value in values if value]
        try:
            self.text, first = text_of(fn)
            self.definition = ast.parse(self.text).body[0]
        except (OSError, TypeError, SyntaxError, IndentationError):
            raise UnsuitableError from None
        if not isinstance(self.definition, ast.FunctionDef):
            raise UnsuitableError
        self.lines_before, self.definition.decorator_list = first - 1, []
        outer = ast.parse(f"def outer({', '.join(fn.__code__.co_freevars)}): pass")
        outer.body[0].body = [self.definition]
        self.module = outer
        ast.fix_missing_locations(self.module)
        if contents(self.compiled()) != contents(fn):  # the file has changed since
            raise UnsuitableError
        lines = self.definition.body
        if saves:
            lines = [n for n in ast.walk(self.definition) if isinstance(n, ast.stmt) and keeps(n)]
            more = [*lines, *only_kept(self.definition, lines)]
            lines = more if harmless(fn, more, cls, caches=caches) else lines
        self.calls_held = not harmless(fn, lines, cls, caches=caches)
        if self.calls_held and not harmless(fn, lines, cls, caches=caches, held=True):
            raise UnsuitableError
        Counted().visit(self.definition)
        self.up = {}  # node -> (owner, key, parent)
        for parent in ast.walk(self.definition):
            for name, value in ast.iter_fields(parent):
                if isinstance(value, list):
                    items = [(value, k, item) for k, item in enumerate(value)]
                else:
                    items = [(parent, name, value)]
                for owner, key, node in items:
                    if isinstance(node, ast.AST):
                        self.up[node] = owner, key, parent
        nodes = [n for line in lines for n in ast.walk(line)]
        self.body = dict.fromkeys(n for n in nodes if not hasattr(n, "is_no_ones"))

    def kept(self, found):
        """The function, which puts its variables, and what ctx has, in `found` as it returns."""

        def keep(values):
            found.update(values)
            of_ctx = vars(values["ctx"]) if "ctx" in values else {}
            found.update({f"ctx.{name}": value for name, value in of_ctx.items()})

        call = ast.parse(f"{KEEP}(locals())").body
        ends = [
            self.up[node][:2] for node in ast.walk(self.definition) if isinstance(node, ast.Return)
        ]
        ends += [(self.definition.body, len(self.definition.body))]
        puts = [(block, slice(k, k), call) for block, k in sorted(ends, key=lambda end: -end[1])]
        with self.edited(puts):
            return self.compiled({KEEP: keep})

    def within(self):
        """{name: number like it} of what comprehensions count."""
        loops = [n for n in self.body if isinstance(n, ast.comprehension)]
        return {
            n.target.id: 1 if ast.unparse(n.iter).startswith("range") else 1.0
            for n in loops if isinstance(n.target, ast.Name)
        }  # fmt: skip

    def compiled(self, more=None):
        code = compile(self.module, self.fn.__code__.co_filename, "exec")
        for name in ("outer", self.definition.name):
            code = next(c for c in code.co_consts
                        if isinstance(c, types.CodeType) and c.co_name == name)  # fmt: skip
        cells = dict(zip(self.fn.__code__.co_freevars, self.fn.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in code.co_freevars)
        scope = {**self.fn.__globals__, **more} if more else self.fn.__globals__
        made = types.FunctionType(code, scope, code.co_name, self.fn.__defaults__,
                                  closure)  # fmt: skip
        made.__kwdefaults__ = self.fn.__kwdefaults__
        return made

    @contextlib.contextmanager
    def edited(self, puts):
        """For a while, (owner, key, new) stand in it; what is put in a list may be several."""
        for *_, new in puts:
            for node in new if isinstance(new, list) else [new]:
                located(node)
        undo = [put(*each) for each in puts]
        try:
            yield
        finally:
            for each in reversed(undo):
                put(*each)

    def quoted(self, node):
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def head(self, line):
        """The first line of a statement."""
        return self.quoted(line).split("\n")[0]

    def statement(self, node):
        while not isinstance(node, ast.stmt):
            *_, node = self.up[node]
        return node

    def is_in_a_loop(self, node):
        while node in self.up:
            *_, node = self.up[node]
            if isinstance(node, (ast.For, ast.comprehension)):
                return True
        return False

    def slice_of(self, node):
        """The slice in which it stands, or None."""
        while not isinstance(node, (ast.stmt, ast.Slice)):
            *_, node = self.up[node]
        return node if isinstance(node, ast.Slice) else None

    def around(self, node):
        """The expression to quote, so that it is clear which is meant: (owner, key)."""
        line, best = self.quoted(self.statement(node)), node
        while True:
            said, parent = self.quoted(best), self.up[best][2]
            bare = isinstance(best, (ast.Name, ast.Constant, ast.Slice, ast.Starred))
            while isinstance(parent, WRAPPINGS) or is_method(self, parent):
                parent, bare = self.up[parent][2], True
            if not isinstance(parent, ast.expr) or (line.count(said) == 1 and not bare):
                return self.up[best][:2]
            best = parent

    def line(self, node):
        return node.lineno + self.lines_before


def text_of(fn):
    """The source of a function, without its indent, and the number of its first line."""
    return read(fn.__code__, fn.__code__.co_filename)


@functools.lru_cache(256)
def read(code, file):  # equal codes may be of two files
    lines, first = inspect.getsourcelines(code)
    return textwrap.dedent("".join(lines)), first


def nodes_of(fn):
    """All nodes of its source, with the lines of its file, or none; not to be changed."""
    fn = inspect.unwrap(fn)
    with contextlib.suppress(OSError, TypeError, SyntaxError, AttributeError):
        return parsed(fn.__code__, fn.__code__.co_filename)
    return []


@functools.lru_cache(256)
def parsed(code, file):
    text, first = read(code, file)
    return list(ast.walk(ast.increment_lineno(ast.parse(text), first - 1)))


def written_in(fn):
    """The numbers in the source of a function, and its slices, {text: node}."""
    numbers, slices = {}, {}
    for node in nodes_of(fn):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            numbers[node.value] = None
        elif isinstance(node, ast.Slice):
            slices[ast.unparse(node)] = node
    return list(numbers), slices


class Counted(ast.NodeTransformer):
    """Each `while` as a loop that ends, for an edit may be such that it would not."""

    def visit_While(self, node):
        self.generic_visit(node)
        (loop,) = ast.parse(f"for {KEEP} in range({ROUNDS}):\n    if not 0: break").body
        for ours in ast.walk(loop):
            ours.is_no_ones = True
        loop.body[0].test.operand = node.test
        loop.body += node.body
        return ast.fix_missing_locations(ast.copy_location(loop, node))


def made_in(nodes):
    """(owner, key, node) of all that is assigned or returned."""
    for node in nodes:
        match node:
            case ast.Assign(value=ast.Tuple(elts=parts)) | ast.Return(value=ast.Tuple(elts=parts)):
                yield from ((parts, k, part) for k, part in enumerate(parts))
            case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.Return(value=value):
                yield node, "value", value


def is_of_ctx(node):
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ctx"


def contents(fn):
    """What it loads, computes and stores, in this order."""
    # Not its calls: how a module's function is called depends on where the module was imported.
    kinds = "BINARY", "COMPARE", "FOR", "LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "STORE", "UNARY"
    found = [(i.opname, i.argval) for i in dis.get_instructions(fn) if i.opname.startswith(kinds)]
    return [(name, None if isinstance(arg, types.CodeType) else arg) for name, arg in found
            if name != "FOR_ITER"]  # fmt: skip


def only_compute(classes, caches=False):
    """Do these Functions nothing but compute, by PyTorch and Python, so that nothing is lost?

    caches: but for what they keep in a dict
    """
    try:
        for cls in classes:
            for method in (cls.forward, cls.backward):
                if Source(inspect.unwrap(method), cls, caches=caches).calls_held:
                    return False
                loops = [n for n in nodes_of(method) if isinstance(n, ast.While)]
                if not all(map(ends, loops)):  # nobody knows whether with other numbers, too
                    return False
    except (UnsuitableError, AttributeError):
        return False
    return bool(classes)


def is_method(source, node):
    parent = source.up[node][2] if isinstance(node, ast.Attribute) else None
    return isinstance(parent, ast.Call) and parent.func is node


def put(owner, key, new):
    """new in the place of what is there; returns how to undo that."""
    old = at(owner, key)
    if not isinstance(owner, list):
        setattr(owner, key, new)
        return owner, key, old
    owner[key] = new
    return owner, slice(key.start, key.start + len(new)) if isinstance(key, slice) else key, old


def located(node):
    """With the places that the compiler asks for."""
    if isinstance(node, (ast.expr, ast.stmt, ast.keyword)) and not hasattr(node, "lineno"):
        node.lineno = node.end_lineno = 1
        node.col_offset = node.end_col_offset = 0
        for child in ast.iter_child_nodes(node):
            located(child)


def at(owner, key):
    return owner[key] if isinstance(owner, list) else getattr(owner, key)


def keeps(line):
    """Is it a line of forward that keeps something for backward?"""
    match line:
        case ast.Assign(targets=[target]):
            return any(is_of_ctx(node) for node in ast.walk(target))
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="save_for_backward"))):
            return True
    return False


@contextlib.contextmanager
def in_place_of(cls, name, function):
    """In this thread, this is what runs in the place of cls.name, a Function's."""
    if name == "backward":  # of any node, whenever it was made
        here = threading.get_ident()

        def way(method, node, *grads):
            if node._forward_cls is not cls or threading.get_ident() != here:
                return method(node, *grads)
            boxed = getattr(cls, "boxed_grads_call", False)
            return function(node, list(grads)) if boxed else function(node, *grads)

        with backward_by(way):
            yield
    elif name == "vmap":  # which functorch asks the class for
        here, rule, own = threading.get_ident(), cls.vmap, vars(cls).get("vmap")

        def vmap(*args):
            return (function if threading.get_ident() == here else rule)(*args)

        cls.vmap = staticmethod(vmap)
        try:
            yield
        finally:
            if own is None:
                del cls.vmap
            else:
                cls.vmap = own
    else:
        other = type(cls)(cls.__name__, (cls,), {name: staticmethod(function)})

        def way(apply, of, *args, **kwargs):
            return apply(other if of is cls else of, *args, **kwargs)

        with applied(way):
            yield


@contextlib.contextmanager
def backward_by(way):
    """For a while, way(method, node, *grads) runs each backward in Python, as method would.

    One that asks for a gradient through itself, without end, is stopped.
    """
    method, running = BackwardCFunction.apply, set()

    def apply(node, *grads):
        this = threading.get_ident(), id(node)
        if this in running:
            raise RuntimeError("backward runs within itself")
        running.add(this)
        try:
            return way(method, node, *grads)
        finally:
            running.discard(this)

    BackwardCFunction.apply = apply
    try:
        yield
    finally:
        BackwardCFunction.apply = method


@contextlib.contextmanager
def backwards_seen():
    """The Functions in Python whose backward runs, in this order."""
    seen = {}

    def way(method, node, *grads):
        seen.setdefault(node._forward_cls, node)
        return method(node, *grads)

    with backward_by(way):
        yield seen


def own_grads():
    """For a while, no backward is handed what others are handed, too."""

    def way(method, node, *grads):
        return method(node, *(None if grad is None else grad.clone() for grad in grads))

    return backward_by(way)
