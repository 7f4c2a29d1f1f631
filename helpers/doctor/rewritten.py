"""The one edit of a Function's source that makes a gradient right."""

import ast
import contextlib
import functools
import inspect
import itertools

import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from .around import is_rare
from .edited import calling, each, places, said_of
from .edits import parsed
from .effort import WITHOUT_LINES, Work
from .foreseen import Foresight
from .forward import nodes
from .omissions import omissions
from .raised import CallError, forgiving
from .repair import size_of
from .saved import others_stay
from .slips import of_no_shape, slips
from .source import at, backwards_seen, in_place_of, made_in
from .subject import graph
from .surroundings import reseed

FURTHER = 400  # runs that one more looks for an edit that serves other gradients, too
SMALL, LARGEST = 5000, 500_000  # elements of all inputs and outputs
FEW = 300  # runs for what has a name
QUICK = 250  # forwards in that time
HERE = ", for this call at least"
RUNS, SECONDS, COMPILING = 1600, 1.5, 30000  # at most, about


def rewritten(cases, known, edits=slips, few=False):
    """What tries these edits, as `Rewritten` does, or another that finds nothing.

    known: those that made another one right, which come first; what is found is added
    few: is it enough to try some, because what is wrong has a name?
    """
    size = size_of(cases[0])
    if size > SMALL:  # what broadcasts would fill the memory
        edits = {slips: of_no_shape, nothing: nothing}.get(edits)
    if size <= LARGEST and edits:
        with forgiving():
            return Rewritten(cases, known, edits, few)
    return NothingFound()


class NothingFound:
    """What stands for `Rewritten` where nothing is tried."""

    def found(self, likely_only=False):
        return None


class Mended(list):
    """The edits that made gradients right, as (Function, name, function, words).

    here: one that does so here, but not for some other sizes or whole numbers, which may be such as
    nobody means
    """

    here = None


class Rewritten:
    """The one edit that makes a gradient right: those first that are foreseen to."""

    def __init__(self, cases, known, edits, few=False):
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
        starts = allowed(forward, SECONDS)
        starts *= 4 if starts > QUICK else 1
        self.to_start = self.runs / max(1, starts)  # so many runs it takes
        self.runs = min(self.runs, FEW) if few else self.runs
        self.streams, self.foreseen = [], []
        for cls in {**self.seen, **self.within}:
            for name, helper in places(cls):
                self.streams.append(self.stream(cls, name, helper, edits))
                if name == "backward" and self.alone:
                    self.foreseen.append(self.streams[-1])

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
        case, run, vs = self.case, self.run, self.grad_outputs()
        if function and self.alone:
            grad = returned(function, self.alone[0], vs)[self.alone[1]]
            if grad is None or grad.shape != case.shape:
                return not self.is_shaped  # who knows what the engine makes of it?
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

    def grad_outputs(self):
        vs = [torch.zeros_like(t) for t in self.run.outputs]
        vs[self.case.o] = self.case.vs[0].clone()
        return vs

    @functools.cached_property
    def is_shaped(self):
        """Has what backward returns the shape of the input, without the engine's help?"""
        node, k = self.alone
        grad = returned(inspect.unwrap(node._forward_cls.backward), node, self.grad_outputs())[k]
        return grad is not None and grad.shape == self.case.shape

    def once(self):
        """Forward and backward."""
        self.start()
        self.fits_first()

    def holds(self, cls, name, function):
        """Is the gradient right with it, everywhere, and no other one touched?"""
        self.runs, self.holds_here = self.runs - 0.5, False
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
            fits = self.fits_first() and (name == "backward" or self.outputs_stay())
            self.runs -= 0.5  # unless it raises, in half the time
            if fits and is_right(self.cases):
                wrong = [case for case in self.cases.others if not is_right([case])]
                some = len(wrong) < len(self.cases.others) or not wrong
                of_sizes = all(is_of_other_numbers(case, self.case) for case in wrong)
                self.holds_here = some and of_sizes and self.others_stay()
                return not wrong and self.holds_here
        return False

    def found(self, likely_only=False):
        """The words for it, or None; likely_only: if it is foreseen. Goes on where it was left."""
        with forgiving():
            return self.sought(likely_only)
        return None

    def sought(self, likely_only):
        for *changed, words in self.known:
            if self.holds(*changed):
                return words
        if self.known.here and not (self.holds(*self.known.here[:-1]) or self.holds_here):
            self.known.here = None
        best, most = None, 0
        for changed, edit, said in self.edited(likely_only):
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
            elif self.holds_here and not (self.known.here or isinstance(edit.node, ast.Constant)):
                words = said()
                self.known.here = *changed, words | {"change": words["change"] + HERE}
        if best:
            self.known.append(best)
            return best[-1]
        return None

    def edited(self, likely_only):
        """((Function, name, function), the edit, what gives the words for it)."""
        while self.foreseen:
            yield from iter(functools.partial(next, self.foreseen[0], None), None)
            self.foreseen.pop(0)
        if not likely_only:
            yield from filter(None, itertools.chain(*self.streams))

    def stream(self, cls, name, helper, edits):
        """The same for one of its functions; None between those that are foreseen and others."""
        order = self.ordered if name == "backward" else None
        for found in each(cls, name, helper, edits, self.once, order):
            if found:
                source, function, edit = found
                said = functools.partial(said_of, source, edit, cls, helper)
                found = (cls, name, function), edit, said
            yield found

    def ordered(self, source, cls, helper, edits):
        """The edits, those first that may mend it, if one Function is all there is."""
        own, rights = inspect.unwrap(cls.backward), []
        for i in range(len(self.case.point.values)) if self.alone else ():
            if i not in self.cases.wrong:
                rights += numbers(self.alone[0], self.run, self.case, i)

        def run(function):
            function = calling(own, cls, helper[0], function) if helper else function
            found = returned(function, self.alone[0], self.grad_outputs(), records=True)
            return found[self.alone[1]], [found[k] for k in rights]

        if self.alone:
            with forgiving():
                return Foresight(source, run, self.case).ordered(edits)
        edits = itertools.filterfalse(is_rare, edits)
        return itertools.chain([None], edits if helper else self.sieve(source, cls, edits))

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

    def outputs_stay(self):
        pairs = zip(self.run.outputs, self.case.point.outputs, strict=True)
        return all(a.shape == b.shape and torch.allclose(a, b, equal_nan=True) for a, b in pairs)

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
    ks = numbers(own[0], run, case, case.i)
    return (own[0], ks[0]) if len(ks) == 1 else None


def numbers(node, run, case, i):
    """The numbers of what a Function returns for an input."""
    edges = [edge for edge, _ in node.next_functions if edge]
    needed = [k for k, needs in enumerate(node.needs_input_grad) if needs]
    x = run.passed[case.subject.examined[i]].grad_fn
    return [k for k, edge in zip(needed, edges, strict=True) if edge is x]


def returned(backward, ctx, grads, records=False):
    """What it returns, as a tuple; records: shall autograd record how?"""
    reseed(1)
    with torch.set_grad_enabled(records):
        found = backward(ctx, *grads)
    return found if isinstance(found, tuple) else (found,)


def in_order(edits, without, later):
    last = []
    for edit in edits:
        found = (at(*put[:2]) for put in edit.puts)
        nodes = [n for t in found for n in (t if isinstance(t, list) else [t])] or [edit.node]
        if not without.issuperset(nodes):
            if later.isdisjoint(nodes):
                yield edit
            else:
                last.append(edit)
    yield from last


def is_right(cases):
    return all(c.fits_rows(c.rows_of(c.subject.run(c.point.values))) for c in cases)


def is_of_other_numbers(case, given):
    """Is it one for other sizes, or whole numbers, than those that are given?"""
    pairs = [(a, case.subject.arguments.get(name)) for name, a in given.subject.arguments.items()]
    shapes = [[t.shape for t in c.point.values] for c in (case, given)]
    return shapes[0] != shapes[1] or any(type(a) is int and a != b for a, b in pairs)


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


def nothing(source, values):
    """No edits but those that are known."""
    return ()
