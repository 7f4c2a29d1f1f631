"""The functions of a Function after each edit of their source, and the words for it."""

import ast
import contextlib
import inspect
import itertools
import types

from .around import is_rare
from .edits import parsed
from .harmless import is_data, is_plain
from .raised import forgiving
from .source import Source, UnsuitableError, at, in_place_of


def places(cls):
    """(name, helper) of what is edited: backward, what it calls, what forward keeps."""
    backward, found = inspect.unwrap(cls.backward), [("backward", None)]
    for name in names_in(backward.__code__):
        of_class, of_module = vars(cls).get(name), backward.__globals__.get(name)
        if isinstance(of_class, staticmethod) and cls.__name__ in names_in(backward.__code__):
            found.append(("backward", (name, of_class.__func__)))
        elif isinstance(of_module, types.FunctionType) and of_module.__module__ == cls.__module__:
            found.append(("backward", (name, of_module)))
    return [*found, ("forward", None), ("setup_context", None)]


def names_in(code):
    """What it calls by a name, in its inner functions, too."""
    inner = [names_in(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return list(dict.fromkeys(itertools.chain(code.co_names, *inner)))


def each(cls, name, helper, edits, run, order=None):
    """(source, function, edit): the function of this name after each edit of it; run() runs it.

    order: (source, cls, helper, edits) -> those to try, in this order; None may be among them
    """
    function, saves = inspect.unwrap(getattr(cls, name)), name in ("forward", "setup_context")
    try:
        source = Source(helper[1] if helper else function, cls, saves)
    except UnsuitableError:
        return
    values = {}
    made = source.kept(values)
    made = calling(function, cls, helper[0], made) if helper else made
    with forgiving(), in_place_of(cls, name, made):
        run()
    if not all(
        is_data(v, source.fn) or source.calls_held and is_plain(v)
        for name, v in values.items()
        if name not in ("ctx", cls.__name__)
    ):
        return
    found = edits(source, source.within() | values | source.constants)
    found = order(source, cls, helper, found) if order else itertools.filterfalse(is_rare, found)
    for edit in found:
        made = None
        with forgiving(), source.edited(edit.puts if edit else ()):
            made = source.compiled() if edit else None
        if made and helper:
            made = calling(function, cls, helper[0], made)
        if made:
            yield source, made, edit
        elif not edit:
            yield None


def calling(function, cls, name, helper):
    """The function, but it calls this in the place of its helper of that name."""
    if name in vars(cls):
        name, helper = cls.__name__, type(cls)(cls.__name__, (cls,), {name: staticmethod(helper)})
    scope = {**function.__globals__, name: helper}
    code = function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    return types.FunctionType(*code)


def is_to_be_bracketed(source, node, new):
    """Would it be another expression, written where this one stands?"""
    parent = source.up[node][2]
    if isinstance(new, ast.expr) and isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.Attribute)):
        text, old = source.quoted(parent), source.quoted(node)
        with contextlib.suppress(SyntaxError):
            literal = parsed(text.replace(old, ast.unparse(new), 1))
            return text.count(old) == 1 and ast.unparse(literal) != ast.unparse(parent)
    return False


def said_of(source, edit, cls=None, helper=None):
    said, node = edit.said, edit.node
    if not said:
        owner, key = source.around(node)
        node = at(owner, key)
        with source.edited(edit.puts):
            new = ast.unparse(at(owner, key))
            new = f"({new})" if is_to_be_bracketed(source, node, at(owner, key)) else new
        if isinstance(node, ast.Tuple) and not source.quoted(node).startswith("("):
            new = new[1:-1]
        said = f"`{new}` stood in place of `{source.quoted(node)}`"
    place = f"line {source.line(node)}, in `{source.fn.__name__}`"
    if helper and helper[0] in inspect.unwrap(cls.forward).__code__.co_names:
        place += ", when backward calls it, not forward"
    return {"change": f"right if: {said}", "place": place}
