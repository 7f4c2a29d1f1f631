"""The one edit of a Function's source that makes a gradient right."""

import ast
import contextlib
import functools
import inspect
import itertools
import types

import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from .edits import parsed
from .effort import WITHOUT_LINES, Work
from .foreseen import Foresight
from .forward import nodes
from .harmless import is_data, is_plain
from .repair import forgiving, size_of
from .saved import others_stay
from .slips import of_no_shape, omissions, slips
from .source import Source, UnsuitableError, at, backwards_seen, in_place_of, made_in
from .subject import CallError, graph
from .surroundings import reseed

FURTHER = 400  # runs that one more looks for an edit that serves other gradients, too
SMALL, LARGEST = 5000, 500_000  # elements of all inputs and outputs
FEW = 300  # runs for what has a name
RUNS, SECONDS, COMPILING = 1600, 1.5, 30000  # at most, about


def rewritten(cases, known, edits=slips, few=False):
    """The words for the one edit that makes this gradient right, or None.

    known: those that made another one right, which come first; what is found is added
    few: is it enough to try some, because what is wrong has a name?
    """
    case = cases[0]
    if (size := size_of(case)) > LARGEST:
        return None
    if size > SMALL:  # what broadcasts would fill the memory
        edits = of_no_shape
    with forgiving():
        return Rewritten(cases, known, few).found(edits)
    return None


class Rewritten:
    def __init__(self, cases, known, few):
        self.cases, self.case, self.known = cases, cases[0], known
        for o in range(len(self.case.point.outputs)):
            self.case.point.given(o)  # by what is not edited, with which `others_stay` compares
        self.of_another = False  # is the run one of an edited forward?
        self.answers_none, self.within = self.of_one_output(), True
        with Work() as forward, backwards_seen() as self.within:  # it may ask for gradients
            self.start()
        with Work() as work, backwards_seen() as self.seen:
            self.fits_first()
        first = cases is cases.all[0]  # what mends it, mends others, too
        self.runs = allowed(work, SECONDS) // (1 if first else 4)
        self.to_start = self.runs / max(1, allowed(forward, SECONDS))  # so many runs it takes
        self.runs = min(self.runs, FEW) if few else self.runs

    def start(self):
        self.run = self.case.subject.run(self.case.point.values)
        self.nodes = [n for n in graph(self.run.outputs) if isinstance(n, BackwardCFunction)]
        self.guarded = [*self.run.saved, *self.run.passed, *self.run.outputs]
        self.versions = [t._version for t in self.guarded]
        self.alone = None if self.within else alone(self.run, self.case)

    def fits_first(self, function=None):
        """Is the gradient right for the first v, which stays what it is?

        function: this backward is asked itself, where that tells as much, in a third of the time
        """
        if [t._version for t in self.guarded] != self.versions or self.is_used_up:
            self.start()
        case, run = self.case, self.run
        vs = [torch.zeros_like(t) for t in run.outputs]
        vs[case.o] = case.vs[0].clone()
        if function and self.alone:
            grad = asked(function, *self.alone, vs)
            if grad is None or grad.shape != case.shape:
                return True  # who knows what the engine makes of it?
        else:
            grad = case.subject.backward(run, vs, retain=True)[case.i]
        near = (case.row(grad)[case.elements] - case.expected[0]).abs() <= case.close[0]
        return bool(near[case.trusted].all()) and torch.equal(vs[case.o], case.vs[0])

    @property
    def is_used_up(self):
        """Has something that was edited asked for a gradient through the whole, and let it go?"""
        try:
            return any(node.saved_tensors is None for node in self.nodes)
        except RuntimeError:
            return True

    def once(self):
        """Forward and backward."""
        self.start()
        self.fits_first()

    def holds(self, cls, name, function):
        """Is the gradient right with it, everywhere, and no other one touched?"""
        self.runs -= 0.5
        if name == "backward" and self.alone and not self.of_another:
            fits = False
            with forgiving():
                fits = self.fits_first(function)
            if not fits:
                return False
        with forgiving(), in_place_of(cls, name, function):
            if name != "backward" or self.of_another or self.within:
                self.runs -= self.to_start
                self.start()
                self.of_another = name != "backward"
            fits = self.fits_first()
            self.runs -= 0.5  # unless it raises, in half the time
            if fits and is_right(self.cases) and is_right(self.cases.others):
                return self.others_stay()
        return False

    def found(self, edits):
        for *changed, words in self.known:
            if self.holds(*changed):
                return words
        best, most = None, 0
        for changed, edit, said in self.edited(edits):
            if self.runs <= 0:
                break
            if self.holds(*changed):
                serves = sum(mends(changed, cases) for cases in self.cases.all)
                if any(ruins(changed, cases) for cases in self.cases.all):
                    continue
                if isinstance(edit.node, ast.Constant) and serves < len(self.cases.all):
                    continue  # a number that fits one of them is a chance
                if serves > most:
                    best, most = (*changed, said()), serves
                if most == len(self.cases.all):
                    break
                self.runs = min(self.runs, FURTHER)
        if best:
            self.known.append(best)
            return best[-1]
        return None

    def edited(self, edits):
        """((Function, name, function), the edit, what gives the words for it)."""
        for cls in {**self.seen, **self.within}:
            for name, helper in places(cls):
                order = self.ordered if name == "backward" else None
                for source, function, edit in each(cls, name, helper, edits, self.once, order):
                    said = functools.partial(said_of, source, edit, cls, helper)
                    yield (cls, name, function), edit, said

    def ordered(self, source, cls, helper, edits):
        """The edits, those first that may mend it, if one Function is all there is."""
        own = inspect.unwrap(cls.backward)

        def run(function):
            function = calling(own, cls, helper[0], function) if helper else function
            vs = [torch.zeros_like(t) for t in self.run.outputs]
            vs[self.case.o] = self.case.vs[0].clone()
            return asked(function, *self.alone, vs, records=True)

        if self.alone:
            with forgiving():
                return Foresight(source, run, self.case).ordered(edits)
        return edits if helper else self.sieve(source, cls, edits)

    def sieve(self, source, cls, edits):
        """The edits without those of what this gradient does not depend on.

        Those of what right ones depend on, too, come last. What a gradient depends on is tried: all
        that is assigned or returned is changed, one after the other.
        """
        if len(self.case.point.values) * len(self.case.point.outputs) == 1:
            return edits
        without, later = set(), set()
        for owner, key, node in made_in(source.body):
            with forgiving():  # not all can be multiplied
                more = parsed(f"({ast.unparse(node)}) * 1.37 + 0.21")
                with source.edited([(owner, key, more)]):
                    function = source.compiled()
                with in_place_of(cls, "backward", function):
                    off = self.case.vjp(self.case.vs[0]) - self.case.given[0]
                    if off.abs().max() <= self.case.limit[0].min():
                        without.update(ast.walk(node))
                    elif not self.others_stay():
                        later.update(ast.walk(node))
        return in_order(edits, without, later)

    def others_stay(self):
        stay = others_stay(self.cases, lambda o, v: self.case.point.vjp({o: v}))
        return stay and (not self.answers_none or self.of_one_output())

    def of_one_output(self):
        """Does backward run where only one output is used?"""
        subject, point = self.case.subject, self.case.point
        for o, vs in enumerate(point.vs if len(point.outputs) > 1 else ()):
            alone = [vs[0] if o == k else None for k in range(len(point.outputs))]
            with contextlib.suppress(CallError):
                subject.gradients(point.values, alone)
                continue
            return False
        return True


def alone(run, case):
    """(node, k): of the only Function, which returns this gradient as number k; or None."""
    own = [node for node in graph(run.outputs) if isinstance(node, BackwardCFunction)]
    if len(own) != 1 or run.others or case.subject.recalls or case.subject.protects:
        return None
    if getattr(own[0]._forward_cls, "boxed_grads_call", False):
        return None
    if any(o.grad_fn is not own[0] or o.output_nr != k for k, o in enumerate(run.outputs)):
        return None
    edges = [node for node, _ in own[0].next_functions if node]
    needed = [k for k, needs in enumerate(own[0].needs_input_grad) if needs]
    x = run.passed[case.subject.examined[case.i]].grad_fn
    ks = [k for k, node in zip(needed, edges, strict=True) if node is x]
    return (own[0], ks[0]) if len(ks) == 1 else None


def asked(backward, ctx, k, grads, records=False):
    """What it returns as number k; records: shall autograd record how?"""
    reseed(1)
    with torch.set_grad_enabled(records):
        found = backward(ctx, *grads)
    return found[k] if isinstance(found, tuple) else found


def in_order(edits, without, later):
    last = []
    for edit in edits:
        nodes = [n for put in edit.puts for n in listed(at(*put[:2]))] or [edit.node]
        if not without.issuperset(nodes):
            if later.isdisjoint(nodes):
                yield edit
            else:
                last.append(edit)
    yield from last


def listed(nodes):
    return nodes if isinstance(nodes, list) else [nodes]


def is_right(cases):
    return all(c.fits_rows(c.rows_of(c.subject.run(c.point.values))) for c in cases)


def mends(changed, cases):
    with forgiving(), in_place_of(*changed):
        return is_right(cases)
    return False


def ruins(changed, cases):
    """Is another wrong gradient nothing but zeros with it, which it was not?"""
    case = cases[0]
    with forgiving(), in_place_of(*changed):
        row = next(case.rows_of(case.subject.run(case.point.values)))
        return bool(case.given[0].any() and case.expected[0].any() and not row.any())
    return False


def with_line(exam, trial, name, edited=None):
    """What this trial finds; with the one edit, if there is one, after which it finds nothing.

    name: of what is edited, in the Functions that are applied; edited: the trial after an edit,
    if it asks for more
    """
    with Work() as work:
        found = list(trial(exam))
    if any(f.severity == "error" for f in found) and not WITHOUT_LINES:
        with forgiving():
            words = edit_after_which(exam, edited or trial, name, allowed(work, SECONDS))
            for finding in (f for f in found if words and f.severity == "error"):
                finding.change, finding.place = words["change"], words["place"]
    return found


def edit_after_which(exam, trial, name, runs):
    state = exam.dice.generator.get_state()
    classes = dict.fromkeys(node._forward_cls for node in nodes(exam))
    classes = [c for c in classes if getattr(c, name) is not getattr(Function, name)]
    for cls, kind in itertools.product(classes, (slips, omissions)):
        edits = each(cls, name, None, kind, lambda: list(trial(exam)))
        for source, function, edit in itertools.islice(edits, min(FEW, runs)):
            exam.dice.generator.set_state(state)
            raised, exam.given_up = [], False
            with forgiving(), in_place_of(cls, name, noting(function, raised)):
                fine = next(iter(trial(exam)), None) is None
                if fine and not raised and not exam.given_up:
                    return said_of(source, edit)
    return None


def noting(function, raised):
    """The function, which notes what it raises: some of that a trial accepts."""

    @functools.wraps(function)
    def noted(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raised.append(error)
            raise

    return noted


def allowed(work, seconds):
    return min(RUNS, int(seconds * 3e8 / (work.elements + work.flops / 10 + COMPILING)))


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

    order: (source, cls, helper, edits) -> those to try, in this order
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
    for edit in order(source, cls, helper, found) if order else found:
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


def said_of(source, edit, cls=None, helper=None):
    said, node = edit.said, edit.node
    if not said:
        owner, key = source.around(node)
        node = at(owner, key)
        with source.edited(edit.puts):
            new = ast.unparse(at(owner, key))
        if isinstance(node, ast.Tuple) and not source.quoted(node).startswith("("):
            new = new[1:-1]
        said = f"`{new}` stood in place of `{source.quoted(node)}`"
    place = f"line {source.line(node)}, in `{source.fn.__name__}`"
    if helper and helper[0] in inspect.unwrap(cls.forward).__code__.co_names:
        place += ", when backward calls it, not forward"
    return {"change": f"right if: {said}", "place": place}
