"""One examination: what its trials share, computed when it is first asked for."""

import contextlib
import functools
import re
from dataclasses import replace

import torch

from ..causes.exceptions import as_finding
from ..function.budget import Budget
from ..function.isolation import CallError, draws
from ..function.private import has_numbers, methods, on_ctx, transforming
from ..function.subject import Subject, eps_of, graph, is_index, name_of
from ..function.tensors import Dice, as_vector, has_gradient, largest, tensors
from ..report import (
    ACCEPT,
    CUT_OFF,
    MEANT,
    NO_DIFFERENCES,
    NO_REPEAT,
    ONE_ROW,
    SEVERITIES,
    Judged,
    Output,
    Report,
    brief,
)
from ..words import N_, _, followed
from .state import State

try:
    from .. import line
except ImportError:  # it may be left out
    line = None


DONATED = N_(
    "it was compiled before, and gives away its memory in the backward pass: set "
    "torch._functorch.config.donated_buffer = False, or hand over what is compiled"
)


def join_shapes(findings):
    """Join the note on a gradient's shape to the error about that gradient."""
    for note in [f for f in findings if f.code == "engine-sums"]:
        for k, f in enumerate(findings):
            if f.severity == "error" and f.input == note.input:
                findings[k] = replace(f, message=followed(f.message, note.message))
                findings.remove(note)
                break


def what_is_open(exam):
    """What these inputs cannot show, in sentences: sums over one row, say."""
    subject = exam.subject
    tables = [k for k in subject.examined if subject.tensors[k].dim() > 1]
    if tables and len(subject.tensors[tables[0]]) == 1:
        yield _(ONE_ROW, x=subject.names[tables[0]])
    for x, t in zip(subject.names, subject.tensors, strict=True):
        if is_index(t) and t.dim() and len(t.unique()) == t.numel():
            yield _(NO_REPEAT, x=x)
    for y, t in exam.run.returned:
        if t.requires_grad and not has_gradient(t) and t.numel():
            yield _(NO_DIFFERENCES, y=y, dtype=brief(t.dtype))


class Examination:
    """One function with its inputs, what is known of it so far, and the findings.

    faithful, lines: as in `examine`; of_a_program: made by rounds, so that there are
    calls that the program would not make; as_given: in the dtype of its inputs, not in
    float64; shared: places of arguments that hold what another one holds, too.
    """

    # Errors of second order, or in the dtype that was given, or for one layout.
    APART = "double-backward-wrong", "low-precision", "input-layout"
    LAST = "needs-input-grad-ignored"  # of all findings

    def __init__(
        self,
        fn,
        args,
        kwargs,
        faithful,
        of_a_program=False,
        accept=ACCEPT,
        reference=None,
        shared=(),
        as_given=False,
        lines=True,
    ):
        self.given = fn, args, kwargs, faithful, of_a_program, accept, reference, shared
        self.faithful = faithful
        self.accept = accept  # how a gradient that is meant is accepted, in words
        self.subject, self.of_a_program = (
            Subject(fn, args, kwargs, reference),
            of_a_program,
        )
        if of_a_program:
            # The copies are, what was copied perhaps not.
            self.subject = self.subject.but(leaves=set())
        self.state = State(self.subject)
        self.findings, self.dice, self.examined = [], Dice(), True
        self.lines = (Budget() if lines is True else lines.afresh()) if lines else None
        if as_given:
            self.subject = self.subject.but(lower=None)
        self.first_gradients = None  # the gradients of the first backward pass
        self.judged = {x: Judged(x) for x in self.subject.inputs}
        same = {[*self.subject.arguments][k] for k in shared}
        if same:
            self.not_judged(_("another argument holds the same tensor"), *same)
        names = self.subject.names
        examined = [k for k in self.subject.examined if names[k] not in same]
        self.subject = self.subject.with_inputs(examined)
        for k, (owner, _parameter) in self.subject.shared_parameters.items():
            why = _(
                "it is a parameter of `{owner}`: examine the module that applies it",
                owner=owner,
            )
            self.not_judged(why, self.subject.names[k])

    def report(self, trials):
        """The report of these trials.

        They run as given, where in float64 something else is computed.
        """
        try:
            for finding in self.run_through(trials):
                what = finding.code, finding.input, finding.output
                if what not in [(f.code, f.input, f.output) for f in self.findings]:
                    self.findings.append(finding)
            if self.subject.lower and self.has("error") and self.copies_differ():
                anew = Examination(*self.given, as_given=True, lines=self.lines)
                return anew.report(trials)
        finally:
            self.state.restore()
        self.findings += self.lines.findings() if self.lines else ()
        join_shapes(self.findings)
        order = [*SEVERITIES]
        self.findings.sort(key=lambda f: (f.code == self.LAST, order.index(f.severity)))
        judged = [self.judged[x] for x in self.subject.names if x in self.judged]
        unseen, outputs = [], []
        if any(one.points for one in judged):
            unseen, outputs = [*what_is_open(self)], self.outputs()
        what = self.findings, self.examined, judged, unseen, outputs
        return Report(self.subject.label, *what)

    def outputs(self):
        """An `Output` for each, in the dtypes that the caller gets."""
        with contextlib.suppress(CallError):
            return [
                Output(name, str(t.dtype).removeprefix("torch."), t.requires_grad)
                for name, t in self.subject.with_dtype(None).run().returned
            ]
        return []

    @property
    def line(self):
        """The folder that finds lines, unless it is left out."""
        return line if self.lines else None

    @functools.cached_property
    def has_own_nodes(self):
        """Is a Function involved, or are all nodes PyTorch's own?"""
        names = [name_of(node) for node in graph(self.run.outputs)]
        own = r"Backward\d+$|AccumulateGrad$|CopySlices$"
        return not all(re.search(own, name) for name in names)

    @property
    def may_be_meant(self):
        """What a finding says of a gradient that nobody wrote.

        It may be cut on purpose.
        """
        if self.has_own_nodes:
            return {"accept": self.accept}
        return {"accept": self.accept, "meant": MEANT}

    @functools.cached_property
    def exits(self):
        """Where forward leaves autograd, in words; None if nobody knows."""
        return self.line and self.line.exits(self.subject)

    @property
    def cut_off(self):
        """The same, or what it might be."""
        return self.exits or _(CUT_OFF)

    def run_through(self, trials):
        """The findings of all trials.

        An exception of the function is the last of them.
        """
        try:
            for trial, unless in trials.items():
                if not self.has(*unless) and (yield from trial(self)):
                    return
        except CallError as raised:
            self.examined = (
                raised.phase != "forward" or self.first_gradients is not None
            )
            if "donated buffers" in str(raised.error):
                self.not_judged(_(DONATED))
                return
            yield as_finding(self.subject, raised)

    def has(self, *codes):
        """Is there a finding with one of these codes, or of one of these severities?

        An error that leaves other trials what they are counts by its code only.
        """
        return any(
            f.code in codes or f.severity in codes and f.code not in self.APART
            for f in self.findings
        )

    def is_faithful(self, x):
        """Is the gradient of this input meant to be the derivative of forward?"""
        given = self.faithful
        return given.get(x, True) if isinstance(given, dict) else given

    def not_judged(self, why, *inputs, meant=False):
        """Say in the report that the gradients of these, or of all, were not judged."""
        for x in inputs or self.subject.inputs:
            self.judged[x] = Judged(x, why=why, meant=meant)

    def note_judged(self, x, **changes):
        """The same for what was judged of it."""
        self.judged[x] = replace(self.judged[x], **changes)

    # --- in which precision, and of which inputs --------------------------------------

    def copies_differ(self):
        """Does it compute something else in float64, or gradients of other inputs?"""
        with contextlib.suppress(CallError):
            double, given = self.subject, self.subject.with_dtype(None)
            one, other = ([g is None for g in s.for_ones()] for s in (double, given))
            if one != other:
                return True
            for a, b in zip(double.forward(), given.forward(), strict=True):
                if a.shape != b.shape:
                    return True
                both = a.isfinite() & b.isfinite()
                if (a - b)[both].norm() > 0.5 * a[both].norm():
                    return not draws()
        return False

    @property
    def precision(self):
        """The eps of what was given."""
        low = self.subject.lower
        return torch.finfo(low).eps if low else eps_of(self.subject.values)

    @functools.cached_property
    def run(self):
        """The first forward pass; `marked`: what it says has no gradient."""
        self.marked = []

        def marks(method, ctx, *tensors):
            self.marked.extend(tensors)
            return method(ctx, *tensors)

        with on_ctx("mark_non_differentiable", marks):
            return self.subject.run()

    @functools.cached_property
    def graded(self):
        """The numbers of the outputs that require a gradient."""
        return [k for k, o in enumerate(self.run.outputs) if o.requires_grad]

    @functools.cached_property
    def draws(self):
        """Does forward draw random numbers?"""
        self.subject.run()
        return draws()

    @functools.cached_property
    def vs(self):
        """The grad_output of every output."""
        # Backwards, for the input may have been drawn in the same way from the same
        # seed.
        pairs = [(o, self.dice.normal(o)) for o in self.run.outputs]
        return [
            torch.where(o.isfinite(), v.flip(tuple(range(v.dim()))), 0)
            for o, v in pairs
        ]

    @contextlib.contextmanager
    def watched(self):
        """What backward is handed, and what it returns before the engine corrects it.

        Yields a list and a dict from the examined Function's arguments to their
        gradients.
        """
        handed, returned = [], {}

        def way(method, cls, ctx, *grads):
            if not transforming():
                found = [g for _name, g in tensors(grads) if has_numbers(g)]
                handed.extend((g, g.clone()) for g in found)
            result = method(ctx, *grads)
            if cls is self.subject.cls:
                each = result if isinstance(result, tuple) else (result,)
                for (x, t), grad in zip(
                    self.subject.arguments.items(), each, strict=False
                ):
                    if torch.is_tensor(t) and torch.is_tensor(grad):
                        returned[x] = grad
            return result

        with methods("backward", way):
            yield handed, returned

    @functools.cached_property
    def loud(self):
        """By which factor grad_output shows all of a gradient; 1 if it is linear."""
        with contextlib.suppress(CallError):
            grads = self.subject.backward(
                self.run, [-100 * v for v in self.vs], retain=True
            )
            for grad, first, floor in zip(
                grads, self.first_gradients, self.floors, strict=True
            ):
                if not self.same(
                    grad, None if first is None else -100 * first, 100 * floor
                ):
                    return 100.0
        return 1.0

    @functools.cached_property
    def sizes(self):
        """Each gradient's size before anything cancels: the output's by the input's."""
        pairs = zip(self.run.outputs, self.vs, strict=True)
        size = sum(largest(v * o) * o.numel() ** 0.5 for o, v in pairs)
        return [size / (largest(value) or 1.0) for value in self.subject.values]

    def nearby(self, dice=None):
        """Another point. What requires no gradient stays: it may lie on a manifold."""
        subject, dice = self.subject, dice or self.dice
        pairs = zip(subject.examined, subject.values, strict=True)
        return [v if k in subject.frozen else dice.nearby(v) for k, v in pairs]

    @property
    def floors(self):
        """What each gradient may be by rounding alone."""
        return [max(1e-10, 30 * self.subject.eps) * size for size in self.sizes]

    def same(self, a, b, floor=0.0):
        """Are two tensors the same apart from rounding? None is zero."""
        if a is None or b is None:
            return all(t is None or largest(as_vector(t)) <= floor for t in (a, b))
        a, b = as_vector(a), as_vector(b)
        limit = (1e-7 if self.subject.eps < 1e-10 else 1e-3) * largest(b) + floor
        both = a.isfinite() & b.isfinite()
        fine = torch.equal(a.isfinite(), b.isfinite())
        return fine and bool(((a - b)[both].abs() <= limit).all())

    def all_same(self, some, others):
        """The same of two lists, such as of outputs; they may differ in length."""
        return len(some) == len(others) and all(map(self.same, some, others))

    def compare(self, text, gradients, expected=None, x=None, raising=None, **words):
        """Does gradients() return those of the first backward, or as expected?

        Yields `text`, with these words, for the first that is not, and `raising`, or
        that, for an exception; returns whether all are.
        """
        try:
            found = gradients()
        except CallError as raised:
            yield as_finding(self.subject, raised, raising or text, x, **words)
            return False
        expected = expected or self.first_gradients
        pairs = zip(self.subject.inputs, found, expected, self.floors, strict=True)
        # What is not meant comes first.
        for name, *pair in sorted(pairs, key=lambda p: not self.is_faithful(p[0])):
            if not self.same(*pair):
                message = text.none if pair[0] is None else text.message
                yield text(x or name, message=message, **words)
                return False
        return True
