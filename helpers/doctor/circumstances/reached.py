"""Which lines of the examined code no call has reached, so that nothing is known of them."""

import ast
import contextlib
import dis
import inspect
import sys
import textwrap
import types

from ..function.calls import place
from ..function.private import BackwardCFunction
from ..function.subject import graph
from ..report import note

NOT_REACHED = note(
    "not-reached",
    "Not reached: {where}, `{text}`{more}, so that nothing is known of what happens there.",
    look="inputs that lead there",
)

METHODS = ("forward", "setup_context", "backward", "vjp", "jvp")
RAISE = dis.opmap["RAISE_VARARGS"]


def functions(outputs):
    """The methods of the Functions that were applied, as the user has written them."""
    nodes = [node for node in graph(outputs) if isinstance(node, BackwardCFunction)]
    found = [getattr(node._forward_cls, name, None) for node in nodes for name in METHODS]
    found = [inspect.unwrap(fn) for fn in found if isinstance(fn, types.FunctionType)]
    return [fn for fn in dict.fromkeys(found) if not fn.__module__.startswith("torch.")]


def codes(code):
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes(inner)


def lines(code):
    return {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}


def that_raise(code):
    raising = {k for k in range(0, len(code.co_code), 2) if code.co_code[k] == RAISE}
    return {line for a, b, line in code.co_lines() if not raising.isdisjoint(range(a, b))}


@contextlib.contextmanager
def unwatched():
    """For a while lines are not noted, which takes a third of the time of many short calls."""
    watch = sys.gettrace()
    watch = watch if isinstance(getattr(watch, "__self__", None), Reached) else None
    if watch:
        sys.settrace(None)
    try:
        yield
    finally:
        if watch:
            sys.settrace(watch)


class Reached:
    """Notes the lines that are reached, until there is none left; a debugger is not disturbed."""

    def __init__(self):
        self.functions, self.left, self.wait = [], {}, {}

    def watch(self, functions):
        if sys.gettrace() is None:
            self.functions = functions
            found = [code for fn in functions for code in codes(fn.__code__)]
            self.left = {id(code): lines(code) for code in found}
            waiting = {id(code): lines(code) - that_raise(code) for code in found}
            self.wait = {k: left for k, left in waiting.items() if left}
            sys.settrace(self.called if self.wait else None)

    def stop(self):
        if sys.gettrace() == self.called:
            sys.settrace(None)

    def called(self, frame, event, arg):
        return self.at_a_line if id(frame.f_code) in self.wait else None

    def at_a_line(self, frame, event, arg):
        if event == "line":
            k, line = id(frame.f_code), frame.f_lineno
            self.left[k].discard(line)
            if waiting := self.wait.get(k):
                waiting.discard(line)
                if not waiting:
                    del self.wait[k]
            if not self.wait:
                self.stop()
        return self.at_a_line

    def findings(self):
        places = list(self.places())
        if places:
            fn, line, text = places[0]
            where = place(fn.__code__.co_filename, line, fn.__name__, fn.__module__)
            n = len(places) - 1
            more = f", and {n} more place{'s' * (n > 1)}" if n else ""
            yield NOT_REACHED(where=where, text=text, more=more)

    def places(self):
        """(function, line, text) of each statement that was not reached, but for what raises."""
        for fn in self.functions:
            inner = list(codes(fn.__code__))
            left = set().union(*(self.left[id(code)] for code in inner))
            every = set().union(*(lines(code) for code in inner))
            if not left or left == every:  # or never called, or in another thread
                continue
            try:
                source, first = inspect.getsourcelines(fn)
                body = ast.parse(textwrap.dedent("".join(source))).body[0].body
            except (OSError, SyntaxError, AttributeError):  # no source; a lambda
                continue
            left, every = ({line - first + 1 for line in found} for found in (left, every))
            for statement in unreached(body, left, every):
                number = statement.lineno
                yield fn, number + first - 1, source[number - 1].strip()


def unreached(body, left, every):
    """The first statement of each block that was not entered."""
    for statement in [s for s in body if not isinstance(s, ast.Assert)]:
        inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        inner += [c.body for name in ("handlers", "cases") for c in getattr(statement, name, [])]
        ends = inner[0][0].lineno if inner[0] else statement.end_lineno + 1
        own = every & set(range(statement.lineno, max(ends, statement.lineno + 1)))
        if own and own <= left:
            if not only_raises(body) and not only_raises([statement]):
                yield statement
            return
        if not isinstance(statement, ast.FunctionDef) or ends not in left:  # or never called
            for block in inner:
                yield from unreached(block, left, every)


def only_raises(body):
    if not body or isinstance(body[-1], ast.Raise):
        return True
    return (
        isinstance(body[-1], ast.If) and only_raises(body[-1].body) and only_raises(body[-1].orelse)
    )
