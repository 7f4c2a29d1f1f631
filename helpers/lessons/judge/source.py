"""The source of programs: read, edited, run; and what of it is not empty."""

import ast
import dis
import inspect
import linecache
import re
import textwrap
from functools import cache


@cache  # inspect parses the whole file each time
def source_of(value):
    """The source of a class or a function, from a notebook's cell, too."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):  # a class of a cell has no file
        methods = (
            getattr(method, "__func__", method) for method in vars(value).values()
        )
        code = next(method.__code__ for method in methods if inspect.isfunction(method))
        cell = "".join(linecache.getlines(code.co_filename))
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                if node.lineno <= code.co_firstlineno <= node.end_lineno:
                    return ast.get_source_segment(cell, node) + "\n"
        raise


def edited(source, edits):
    """The source, each old text replaced by its new one, in order.

    edits: {old: new}. Raises ValueError if an old text does not occur.
    """
    for old, new in edits.items():
        if old not in source:
            raise ValueError(f"{old!r} does not occur in\n{source}")
        source = source.replace(old, new)
    return source


def made_of(source, names, name):
    """What the source defines under this name, among copies of `names`."""
    # Known to linecache, so that its lines can be quoted.
    cell = f"<cell {hash(source)}>"
    linecache.cache[cell] = len(source), None, source.splitlines(keepends=True), cell
    names = dict(names)
    exec(compile(source, cell, "exec"), names)
    return names[name]


def outline(value):
    """The kind of a value, and what of its code is not empty.

    Comments, layout, and docstrings where nothing else stands do not count.
    """
    if isinstance(value, str):  # a source in C
        return str, re.sub(r"//[^\n]*|/\*.*?\*/", " ", value, flags=re.DOTALL).split()
    if inspect.isclass(value):
        methods = {name: getattr(m, "__func__", m) for name, m in vars(value).items()}
        functions = {name: m for name, m in methods.items() if inspect.isfunction(m)}
        code = {n: _code(f) for n, f in functions.items() if not _is_blank(f)}
        return value.__bases__, code | {
            n: m for n, m in methods.items() if isinstance(m, bool)
        }
    if inspect.isfunction(value):
        return "function", {} if _is_blank(value) else _code(value)
    return None, None


def _code(value):
    """What a function compiles to, without where it stands."""
    code = getattr(value, "__code__", value)
    constants = tuple(_code(c) if inspect.iscode(c) else c for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames


def _is_blank(function):
    """Does nothing stand in it but `...`, `pass` or a docstring?

    What they compile to is that of `return None`, which is an attempt: its source
    tells.
    """
    steps = [
        i for i in dis.get_instructions(function) if i.opname not in ("RESUME", "NOP")
    ]
    loads = [i for i in steps if i.opname in ("LOAD_CONST", "RETURN_CONST")]
    if len(steps) > 2 or [i.argval for i in loads] != [None]:
        return False
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # no file, or a lambda in the middle of a line
        return True
    return not any(isinstance(node, ast.Return) for node in ast.walk(source))
