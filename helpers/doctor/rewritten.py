"""The one edit of a Function's source that makes a gradient right."""

import ast
import inspect
import itertools
import types

from torch.autograd import Function

from .effort import WITHOUT_LINES, Work
from .forward import nodes
from .harmless import is_data
from .repair import forgiving
from .saved import others_stay
from .slips import omissions, slips
from .source import Source, UnsuitableError, at, backwards_seen, in_place_of, locals_of

LARGEST = 5000  # elements of all inputs and outputs
RUNS, SECONDS, COMPILING = 1500, 0.7, 30000  # at most, about


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
        self.runs = allowed(work, SECONDS)

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

    def once(self):
        """Forward and backward."""
        self.start()
        self.fits_first()

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
        for cls in self.seen:
            for name, helper in places(cls):
                for source, function, edit in each(cls, name, helper, edits, self.once):
                    if self.runs <= 0:
                        return None
                    if self.holds(cls, name, function):
                        words = said_of(source, edit)
                        if helper and is_in(cls.forward, helper):
                            words["place"] += ", when backward calls it, not forward"
                        self.known.append((cls, name, function, words))
                        return words
        return None


def with_line(exam, trial, name):
    """What this trial finds; with the one edit, if there is one, after which it finds nothing.

    name: of what is edited, in the Functions whose backward runs, or that are applied
    """
    with Work() as work, backwards_seen() as seen:
        found = list(trial(exam))
    if any(f.severity == "error" for f in found) and not WITHOUT_LINES:
        with forgiving():
            words = edit_after_which(exam, trial, name, seen, allowed(work, SECONDS))
            for finding in found if words else ():
                finding.change, finding.place = words["change"], words["place"]
    return found


def edit_after_which(exam, trial, name, seen, runs):
    state = exam.dice.generator.get_state()
    classes = [*seen] if name == "backward" else [node._forward_cls for node in nodes(exam)]
    classes = [c for c in dict.fromkeys(classes) if getattr(c, name) is not getattr(Function, name)]
    for cls, kind in itertools.product(classes, (slips, omissions)):
        for source, function, edit in each(cls, name, None, kind, lambda: list(trial(exam))):
            runs -= 1
            if runs < 0:
                return None
            exam.dice.generator.set_state(state)
            with forgiving(), in_place_of(cls, name, function):
                if not list(trial(exam)) and gradients_stay(exam):
                    return said_of(source, edit)
    return None


def gradients_stay(exam):
    again = exam.subject.gradients(exam.subject.values, exam.vs)
    return all(map(exam.same, again, exam.first.grads, exam.floors))


def allowed(work, seconds):
    return min(RUNS, int(seconds * 3e8 / (work.elements + work.flops / 10 + COMPILING)))


def places(cls):
    """(name, helper) of what is edited: backward, a function that it calls, what forward keeps."""
    yield "backward", None
    backward = inspect.unwrap(cls.backward)
    for name in backward.__code__.co_names:
        of_class, of_module = vars(cls).get(name), backward.__globals__.get(name)
        if isinstance(of_class, staticmethod) and cls.__name__ in backward.__code__.co_names:
            yield "backward", (name, of_class.__func__)
        elif isinstance(of_module, types.FunctionType) and of_module.__module__ == cls.__module__:
            yield "backward", (name, of_module)
    yield from (("forward", None), ("setup_context", None))


def is_in(function, helper):
    return helper[0] in inspect.unwrap(function).__code__.co_names


def each(cls, name, helper, edits, run):
    """(source, function, edit): the function of this name after each edit of it; run() runs it."""
    function, saves = inspect.unwrap(getattr(cls, name)), name in ("forward", "setup_context")
    try:
        source = Source(helper[1] if helper else function, cls, saves)
    except UnsuitableError:
        return
    with locals_of(source.fn) as values:
        run()
    if not all(is_data(v) for name, v in values.items() if name not in ("ctx", cls.__name__)):
        return
    for edit in edits(source, values):
        made = None
        with forgiving(), source.edited(edit.puts):
            made = source.compiled()
        if made and helper:
            made = calling(function, cls, helper[0], made)
        if made:
            yield source, made, edit


def calling(function, cls, name, helper):
    """The function, but it calls this in the place of its helper of that name."""
    if name in vars(cls):
        name, helper = cls.__name__, type(cls)(cls.__name__, (cls,), {name: staticmethod(helper)})
    scope = {**function.__globals__, name: helper}
    code = function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    return types.FunctionType(*code)


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
