"""The same gradient once more with one thing changed, and compared with that of the first backward.

A row of `CIRCUMSTANCES` is one such change. To add one: a row, and a patient.
"""

import contextlib
import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..function.budget import Work
from ..function.source import only_compute
from ..function.subject import graph, of_fewer, with_other_arguments
from ..function.surroundings import CallError, forgiving, phase, reseed
from ..function.tensors import Dice, has_gradient, tensors
from ..function.watched import Effects, watching
from ..measure.measurement import Measurement, Point
from ..measure.measurements import Measurements
from ..measure.slopes import is_large, screen
from ..name.exceptions import told
from ..report import error, warning
from .examination import Trials
from .forward import name_of

trial = Trials()
STATE = ("backward-not-deterministic", "state-between-calls")  # after which the rest means nothing
NOT_DETERMINISTIC = error(
    "backward-not-deterministic",
    "The same backward gives another gradient {when}.",
    look="what backward changes, draws or adds to; what forward drew must be saved",
)
STATE_BETWEEN_CALLS = error(
    "state-between-calls",
    "The gradient of {x} is another {when}.",
    look="what is kept outside ctx, and memory never filled, as of torch.empty",
)
LAYOUT = error(
    "grad-output-layout",
    "Backward {fails} a grad_output that is {when}.",
    look="code that reads memory directly (.view, data_ptr, kernels), and assertions",
)
NONE_NOT_HANDLED = error(
    "none-not-handled",
    "Backward {fails} None, which arrives for an output that is not used.",
    look="set_materialize_grads(False) demands an answer to None",
)
ONLY_ONCE = warning(
    "backward-only-once",
    "Backward fails the second time, under retain_graph=True.",
    look="what backward deletes or changes",
)
NOT_ASKED = warning(
    "needs-input-grad-ignored",
    "When only {x} requires a gradient, backward still computes that of {others}.",
    look="ctx.needs_input_grad",
)
ONLY_ONE = error(
    "needs-input-grad-wrong",
    "Backward {fails} {x} as the only input that requires a gradient.",
    look="the use of ctx.needs_input_grad",
)


# --- one thing is changed: each takes the examination, and returns gradients ----------------------


def second_time(exam, seed=1):
    """The same backward, after it has run once."""
    run = exam.subject.run(exam.subject.values)
    exam.subject.backward(run, exam.vs, retain=True)
    return exam.subject.backward(run, exam.vs, retain=True, seed=seed)


def calls_between(exam):
    """With other inputs, other signs, fewer rows and other arguments."""
    subject, near = exam.subject, [exam.dice.nearby(v) for v in exam.subject.values]
    run = subject.run(subject.values)
    others = [(subject, near), (subject, [-v.flip(tuple(range(v.dim()))) for v in near])]
    others += [(other, other.values) for other in of_fewer(subject)]
    for other, values in (*others, *((other, near) for other in with_other_arguments(subject))):
        with contextlib.suppress(CallError):
            other.run(values, seed=3)
    try:
        return subject.backward(run, exam.vs)
    except CallError:  # with what another call has left
        return [None] * len(subject.values)


def contiguous_ones(exam):
    """A grad_output of ones."""
    ones = [torch.ones_like(o, memory_format=torch.contiguous_format) for o in exam.run.outputs]
    return exam.gradients(ones)


def expanded_ones(exam):
    """The same, as a view of one number."""
    return exam.gradients([o.new_ones(()).expand(o.shape) for o in exam.run.outputs])


def strided(exam):
    """The dimensions in another order in memory, and gaps, so that no .view is possible."""
    vs = []
    for v in exam.vs:
        back = tuple(range(v.dim()))[::-1]
        turned = v.permute(back).contiguous()
        vs.append(torch.stack([turned, turned], -1)[..., 0].permute(back))
    return exam.gradients(vs)


def none_used(exam):
    """Whatever comes back through an output of which nothing is used, it may only not raise."""
    run = exam.subject.run(exam.subject.values)
    run.outputs = [Nothing.apply(o) for o in run.outputs]
    exam.subject.backward(run, exam.vs)
    return exam.first.grads


class Nothing(torch.autograd.Function):
    """The identity, through which no gradient flows back: the node before it receives None."""

    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return None


def one_used(k, other):
    """Of output k alone: others receive other(their grad_output)."""
    return lambda exam: exam.gradients([v if j == k else other(v) for j, v in enumerate(exam.vs)])


# --- the table, and how it is gone through --------------------------------------------------------


@dataclass
class Circumstance:
    """One thing that is changed.

    text, when: the finding that is due where this changes the gradients, and a word in it.
    changed: takes the examination, and returns the gradients. expected: the same for those that
    are due, if not those of the first backward. raising: the finding if it raises, if another.
    hint: takes the examination, and returns words for where to look, or nothing.
    """

    text: Callable
    when: str
    changed: Callable
    expected: Callable = lambda exam: exam.first.grads
    raising: Callable | None = None
    hint: Callable = lambda exam: ""


def effects(exam):
    """Where backward changes in place what was there before it, or draws random numbers."""
    with contextlib.suppress(CallError), watching(Effects()) as watch:
        exam.gradients()
    for what, found in (("draws", watch.draws), ("changes", watch.changes)):
        if places := [f"{text} ({place})" for text, place in found.items()]:
            return f"what backward {what}: {', '.join(places[:3])}"
    return ""


def left_outside(exam):
    """What the calls of this examination have left elsewhere than on ctx."""
    names = exam.outside.changed(exam.outside.start)
    return names and f"what calls leave elsewhere than on ctx: {', '.join(names[:3])}"


REPEATED = (
    Circumstance(NOT_DETERMINISTIC, "the second time", second_time, raising=ONLY_ONCE,
                 hint=effects),
    Circumstance(NOT_DETERMINISTIC, "for another random state, because it draws random numbers",
                 lambda exam: second_time(exam, seed=2), raising=ONLY_ONCE),
    Circumstance(STATE_BETWEEN_CALLS, "in a later call with the same inputs",
                 lambda exam: exam.gradients(),
                 hint=left_outside),
    Circumstance(STATE_BETWEEN_CALLS,
                 "if forward runs once more, with other inputs, before backward", calls_between,
                 hint=left_outside),
)  # fmt: skip
LAYOUTS = (
    Circumstance(LAYOUT, "an expanded view, as `.sum()` makes it", expanded_ones, contiguous_ones),
    Circumstance(LAYOUT, "not contiguous", strided),
)


def in_turn(exam, circumstances):
    """The finding of the first of these circumstances where one is due."""
    for c in circumstances:
        changed, expected = functools.partial(c.changed, exam), c.expected(exam)
        for finding in exam.compare(c.text, changed, expected, raising=c.raising, when=c.when):
            finding.remedy = c.hint(exam) or finding.remedy
            yield finding
            return


@trial(unless=("saved-modified",))
def repeated(exam):
    """Is the gradient the same once more, and in other calls?"""
    yield from in_turn(exam, REPEATED)


def unused_outputs(exam):
    """All of them; then, where nothing else is the matter, all but one."""
    if not has_own_nodes(exam):
        return
    rows = [Circumstance(NONE_NOT_HANDLED, "", none_used)]
    for k, output in enumerate(exam.run.outputs):
        if output.requires_grad and len(exam.run.outputs) > 1 and not exam.has("error"):
            zeros = one_used(k, torch.zeros_like)
            rows.append(Circumstance(NONE_NOT_HANDLED, "", one_used(k, lambda v: None), zeros))
    yield from in_turn(exam, rows)


def has_own_nodes(exam):
    """Is a Function involved, or are all nodes PyTorch's own, which are right in these respects?"""
    names = [name_of(node) for node in graph(exam.run.outputs)]
    return not all(re.search(r"Backward\d+$|AccumulateGrad$|CopySlices$", name) for name in names)


def one_input(exam):
    """Each as the only one that requires a gradient: the same gradient, with less work."""
    subject, n = exam.subject, len(exam.subject.values)
    if n < 2 or not has_own_nodes(exam):
        return

    def alone(which):
        """Its gradients, what backward returned, the operations, whether an output requires one."""
        run = subject.run(subject.values, which)
        with Work() as work, exam.watched() as (_, returned):
            grads = subject.backward(run, exam.vs)
        return grads, returned, work.flops, any(o.requires_grad for o in run.outputs)

    _, _, total, _ = alone(True)
    for i, x in enumerate(subject.inputs):
        try:
            grads, returned, spent, graded = alone([j == i for j in range(n)])
        except CallError as raised:
            if raised.phase == "backward":  # else forward itself asks for a gradient
                severity = None if subject.cls and not exam.of_a_program else "warning"
                yield told(subject, raised, ONLY_ONE, x, severity=severity)
            return
        expected = [grad if j == i else None for j, grad in enumerate(exam.first.grads)]
        # Where no output requires one, as of a reentrant checkpoint, PyTorch itself warns.
        words = {"x": x, "severity": None if graded else "warning"}
        if not (yield from exam.compare(ONLY_ONE, lambda g=grads: g, expected, **words)):
            return
        vain = [f"`{name}`" for name in returned if name != x]
        if vain and spent == total > 0:
            seen = {f"operations for `{x}` alone": spent, "for all inputs": total}
            yield NOT_ASKED(x, seen=seen, others=" and ".join(vain))
            total = -1  # once is enough


@trial(unless=STATE)
def handed(exam):
    """Does backward take whatever grad_output may be?"""
    yield from in_turn(exam, LAYOUTS)
    yield from exam.with_line(unused_outputs, "backward")


@trial(unless=(*STATE, "swapped"))
def wanted(exam):
    """Is a gradient the same where no other is wanted?"""
    yield from exam.with_line(one_input, "backward")


STALE = error(
    "stale",
    "Forward does not notice that {x} was changed in place, as an optimiser does: its output stays "
    "that of an earlier call.",
    look="caches whose key is id() or data_ptr(), and what is made in the first call and kept",
)


@trial(unless=("error", "coarse-inside", "input-freed", *STATE))
def changes_are_noticed(exam):
    """Does forward compute anew where an input, or a parameter, has changed?"""
    subject = exam.subject
    if subject.records:  # it asks for a graph, which what is changed does not have
        return

    def outputs(given, contents):
        for t, content in zip(given, contents, strict=True):
            t.copy_(content)
        reseed(0)
        with phase("forward"):
            return [t for _, t in tensors(subject.call(given)) if has_gradient(t)]

    def unnoticed(which):
        """Is the output the same after a change, but another one without earlier calls?"""
        given, contents = [t.clone() for t in subject.tensors], list(subject.tensors)
        before = outputs(given, contents)
        for k in which:
            contents[k] = Dice().nearby(contents[k])
        after = outputs(given, contents)
        with exam.outside.as_before():
            anew = outputs([t.clone() for t in given], contents)
        return not exam.all_same(after, anew), exam.all_same(after, before)

    with contextlib.suppress(CallError):
        if unnoticed(subject.examined)[0]:  # of all together, for there may be many
            for k in subject.examined:
                if all(unnoticed([k])):
                    merged = subject.is_module and not subject.scope.module.training
                    finding = STALE(subject.names[k], severity="warning" if merged else None)
                    finding.remedy = left_outside(exam) or finding.remedy
                    yield finding


# --- other arguments -----------------------------------------------------------------------------

OTHERS = 6  # at most
CACHE_KEY = error(
    "cache-key",
    "Where {what}, forward gives something else after a call with the given arguments than "
    "without one.",
    look="a cache whose key leaves that out",
)
WRONG_ELSEWHERE = error(
    "arguments-ignored",
    "The gradient of {x} is right for the given arguments, but wrong where {what}.",
    look="numbers, branches and caches that do not depend on it, as what forward computes does",
)


@trial(unless=("error", *STATE, "too-coarse", "input-not-finite"))
def with_other_numbers(exam):
    """One after the other, until one is found."""
    subject = exam.subject
    if exam.of_a_program or is_large(subject.values) or subject.is_slow:
        return
    whole = functools.cache(lambda: only_compute(subject.applied, caches=True))
    for other in itertools.islice(with_other_arguments(subject, whole), OTHERS):
        with contextlib.suppress(CallError, RuntimeError):
            found = list(of_another(exam, other))
            yield from found
            if found:
                return


def of_another(exam, other):
    """The finding for other arguments, if one is due."""
    values = exam.subject.values
    after = other.forward(values)
    with exam.outside.as_before():
        anew = other.forward(values)
    if not exam.all_same(after, anew):
        yield CACHE_KEY(what=other.what)
        return
    point = Point(other, values, Dice())
    verdicts, *_ = screen(other.forward, point.vjp, values, Dice(), exam.subject.eps,
                          exam.tolerance, point.y0, 1)  # fmt: skip
    graded = [output.requires_grad for output in other.run(values).outputs]
    wrong = {io for io, verdict in verdicts.items() if verdict == "wrong" and graded[io[1]]}
    for i, o in sorted(wrong) if exam.faithful else ():
        case = Measurement(point, i, o, exam.tolerance)
        if case.wrong.any():
            words = {"seen": case.evidence, "what": other.what}
            with forgiving():  # the given arguments may make other outputs
                words |= mended(exam, case, wrong) if exam.line else {}
            yield WRONG_ELSEWHERE(exam.subject.inputs[i], **words)
            return


def mended(exam, case, wrong):
    """The words for the edit that makes it right, and leaves it so with the given arguments."""
    cases, point = Measurements([case]), Point(exam.subject, exam.subject.values, Dice())
    cases.wrong, cases.wrong_through = {i for i, _ in wrong}, wrong
    cases.all, cases.whole = [cases], [Measurement(point, case.i, case.o, case.tolerance)]
    return exam.line.find(cases, exam.budget)
