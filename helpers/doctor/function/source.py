"""The sources of functions, read, never edited; do they nothing but compute?"""

import ast
import contextlib
import dis
import functools
import inspect
import textwrap
import types

from .harmless import ends, harmless


class UnsuitableError(Exception):
    """The function has no source, or one that is not to be run in another form."""


class Source:
    """The definition of a function, as a tree and as it is compiled.

    text, tree: of the definition; lines_before: in its file
    """

    def __init__(self, fn):
        self.fn = fn
        try:
            self.text, first = text_of(fn)
            self.tree = ast.parse(self.text).body[0]
        except (OSError, TypeError, SyntaxError, AttributeError):
            raise UnsuitableError from None
        if not isinstance(self.tree, ast.FunctionDef):
            raise UnsuitableError
        self.lines_before, self.tree.decorator_list = first - 1, []
        if contents(self.compiled().__code__) != contents(fn.__code__):  # the file has changed
            raise UnsuitableError

    def compiled(self, **more):
        """The function, of the tree as it is now; more: further names that it knows."""
        fn = self.fn
        outer = ast.parse(f"def outer({', '.join(fn.__code__.co_freevars)}): pass")
        outer.body[0].body = [self.tree]
        code = compile(ast.fix_missing_locations(outer), fn.__code__.co_filename, "exec")
        for name in ("outer", self.tree.name):
            code = next(c for c in code.co_consts if getattr(c, "co_name", "") == name)
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in code.co_freevars)
        scope = {**fn.__globals__, **more} if more else fn.__globals__
        made = types.FunctionType(code, scope, code.co_name, fn.__defaults__, closure)
        made.__kwdefaults__ = fn.__kwdefaults__
        return made

    def line(self, node):
        return node.lineno + self.lines_before

    def quoted(self, node):
        return ast.get_source_segment(self.text, node) or ast.unparse(node)


def only_compute(classes, caches=False):
    """Do these Functions nothing but compute, by PyTorch and Python, so that nothing is lost?

    caches: but for what they keep in a dict
    """
    try:
        for cls in classes:
            for method in (cls.forward, cls.backward):
                source = Source(inspect.unwrap(method))
                loops = [n for n in ast.walk(source.tree) if isinstance(n, ast.While)]
                fine = harmless(source.fn, source.tree.body, cls, caches=caches)
                if not fine or not all(map(ends, loops)):  # nobody knows, with other numbers
                    return False
    except (UnsuitableError, AttributeError):
        return False
    return bool(classes)


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


def is_of_ctx(node):
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ctx"


def contents(code):
    """What it loads, computes and stores, in this order."""
    # Not its calls: how a module's function is called depends on where the module was imported.
    kinds = (
        "BINARY",
        "COMPARE",
        "FOR",
        "LOAD_CONST",
        "LOAD_FAST",
        "LOAD_GLOBAL",
        "LOAD_SMALL",
        "STORE",
        "UNARY",
    )
    found = [(i.opname, i.argval) for i in dis.get_instructions(code) if i.opname.startswith(kinds)]
    return [(name, None if isinstance(arg, types.CodeType) else arg) for name, arg in found
            if name != "FOR_ITER"]  # fmt: skip
