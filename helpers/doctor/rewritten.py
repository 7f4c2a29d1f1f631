"""The one edit of a Function's source that makes a gradient right."""

import ast
import inspect

from .edits import omissions, slips
from .effort import Work
from .repair import forgiving
from .saved import others_stay
from .source import Source, Unsuitable, at, backwards_seen, in_place_of, locals_of

LARGEST = 5000  # elements of all inputs and outputs
RUNS, SECONDS, COMPILING = 1500, 0.5, 30000  # at most, about


def rewritten(cases, known, edits=slips):
    """The words for the one edit that makes this gradient right, or None."""
    case = cases[0]
    size = sum(t.numel() for t in (*case.point.values, *case.point.outputs))
    if size > LARGEST:
        return None
    protects, case.subject.protects = case.subject.protects, True  # an edit may change grad_output
    try:
        with forgiving():
            return Rewritten(cases, known).found(edits)
    finally:
        case.subject.protects = protects
    return None


class Rewritten:
    def __init__(self, cases, known):
        self.cases, self.case, self.known = cases, cases[0], known
        self.start()
        with Work() as work, backwards_seen() as self.seen:
            self.fits_first()
        self.runs = min(RUNS, int(SECONDS * 3e8 / (work.elements + work.flops / 10 + COMPILING)))

    def start(self):
        self.run = self.case.subject.run(self.case.point.values)
        self.guarded = [*self.run.saved, *self.run.passed, *self.run.outputs]
        self.versions = [t._version for t in self.guarded]

    def fits_first(self):
        """Is the gradient right for the first v?"""
        if [t._version for t in self.guarded] != self.versions:
            self.start()
        case = self.case
        row = next(case.rows_of(self.run))
        near = (row[case.elements] - case.expected[0]).abs() <= case.limit[0]
        return bool(near[case.trusted].all())

    def holds(self, cls, name, function):
        """Is the gradient right with it, everywhere, and no other one touched?"""
        self.runs -= 1
        with forgiving(), in_place_of(cls, name, function):
            if name != "backward":
                self.start()
            if not self.fits_first():
                return False
            if all(c.fits_rows(c.rows_of(c.subject.run(c.point.values))) for c in self.cases):
                point = self.case.point
                return others_stay(self.cases, lambda o, v: point.vjp({o: v}))
        return False

    def found(self, edits):
        for *changed, words in self.known:
            if self.holds(*changed):
                return words
        places = [(cls, "backward") for cls in self.seen]
        places += [(cls, name) for cls in self.seen for name in ("forward", "setup_context")]
        for cls, name in places:
            for source, function, edit in each(cls, name, edits, self.fits_first, self.start):
                if self.runs <= 0:
                    return None
                if self.holds(cls, name, function):
                    words = said_of(source, edit)
                    self.known.append((cls, name, function, words))
                    return words
        return None


def each(cls, name, edits, run, forward):
    """(source, function, edit): the function of this name after each edit of it."""
    saves = name in ("forward", "setup_context")
    try:
        source = Source(inspect.unwrap(getattr(cls, name)), cls, saves)
    except Unsuitable:
        return
    with locals_of(source.fn) as values:
        (forward if saves else run)()
    for edit in edits(source, values):
        function = None
        with forgiving(), source.edited(edit.puts):
            function = source.compiled()
        if function:
            yield source, function, edit


def said_of(source, edit):
    said, node = edit.said, edit.node
    if not said:
        owner, key = source.around(node)
        node = at(owner, key)
        with source.edited(edit.puts):
            new = ast.unparse(at(owner, key))
        if isinstance(node, ast.Tuple) and not source.quoted(node).startswith("("):
            new = new.strip("()")
        said = f"`{new}` stood in place of `{source.quoted(node)}`"
    place = f"line {source.line(node)}, in `{source.fn.__name__}`"
    return {"change": f"right if: {said}", "place": place}
