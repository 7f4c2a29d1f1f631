"""The trial on which the others wait: is the gradient the derivative of forward?"""

import contextlib
import functools
import itertools
from collections import namedtuple
from dataclasses import replace

import torch

from ..causes.cause import named
from ..causes.exceptions import SAVED_MODIFIED
from ..causes.whole import grad_output_ignored
from ..function.budget import calls_allowed, shared
from ..function.isolation import CallError, forgiving
from ..function.private import methods
from ..function.source import place_of, saving
from ..function.tensors import as_vector, largest, worst
from ..measure.comparison import Comparison, Point, in_a_corner
from ..measure.slopes import Screening, edges, too_much
from ..report import DRAWN, MEANT, NOT_COMPARED, POINTS, TEXTS, Change, error, note
from ..words import N_, _, listed
from .again import STATE_BETWEEN_CALLS
from .judgement import Judgement

UNFAITHFUL = note(
    "unfaithful",
    "The gradient of {x} is not the derivative of forward, which faithful=False "
    "accepts.",
)
ESTIMATOR = note(
    "estimator",
    "Forward draws random numbers, and the gradient of {which} is not the derivative "
    "for this draw. Whether it is right on average is not examined.",
)
ALSO = N_("For the same reason, what backward returns for {these} is wrong, too.")
AS_BEFORE = N_(
    "Backward takes it for what it was before, so what is returned for {these} is wrong."
)
IN_PLACE = "input-modified", "in-place-leaf"
RAISES = N_("forward raises near the given point, so that there are no differences")
REFERENCE_DIFFERS = error(
    "reference-differs",
    "The reference computes something else: {y} {how}.",
    look="forward, or the reference",
)
DIFFERS = N_("the reference computes something else")
NOT_NEARBY = N_("near the given point, forward raises or is not finite")
SMALL = 5000  # elements
SEEDS, DIRECTIONS = 100, 4  # over which an estimator is averaged
STAYS = 0.1  # of the square of its error, at most, in the mean; noise leaves 1 / SEEDS
# Where not all elements are known.
NAMELESS = "gradient-wrong", "derivative-wrong", "partly-right"
SHARP = (  # which say what to write
    "conjugate",
    "gradient-none",
    "grad-output-ignored",
    "negated",
    "not-linear",
    "reversed",
    "right-here-only",
    "straight-through",
    "transposed",
)


# A gradient that is wrong at a point, or may be; factors: of the v that show it; here:
# is it the given point?
Suspected = namedtuple("Suspected", "point, factors, i, o, verdict, here")


def derivative_of_forward(exam):
    """Screen all gradients at up to three points, measure what is suspected, name what
    is wrong."""
    if exam.subject.reference and (differs := other_outputs(exam)):
        for x in exam.subject.inputs:
            exam.not_judged(x, _(DIFFERS))
        yield differs
        return
    try:
        suspected, notes = screened(exam, points_of(exam))
        judgement = Judgement(exam, suspected)
    except CallError as raised:
        if raised.phase != "forward":
            raise
        for x in exam.subject.inputs:
            exam.not_judged(x, _(RAISES))
        return
    for one in exam.judged.values():
        if 0 < one.points < POINTS:
            one.why = one.why or too_much(exam.subject.values) or _(NOT_NEARBY)
    yield from notes
    yield from judgement.notes
    wrong = but_for_in_place(exam, judgement.wrong_gradients())
    # What somebody trains comes before what was given as a constant. And what explains
    # a gradient that is not zero may explain that another one is.
    in_order = sorted(
        wrong.items(),
        key=lambda item: (
            exam.subject.examined[item[0][0]] in exam.subject.frozen,
            not item[1][0].given.any(),
        ),
    )
    found = {io: diagnosis(exam, ms) for io, ms in in_order}
    if found and is_estimator(exam, wrong, found):
        inputs = dict.fromkeys(one.input for one in found.values())
        yield ESTIMATOR(which=listed((f"`{x}`" for x in inputs), last=" and "))
        return
    kept = told_once(exam, found)
    for i, o in kept:
        yield finding_of(exam, i, o, found, kept)


def but_for_in_place(exam, wrong):
    """Of wrong gradients, those that are not so because forward has changed an argument
    that it saves. The finding about that change tells of the others."""
    finding = next((f for f in exam.findings if f.code in IN_PLACE), None)
    # What was saved too early is mended by copies, but for a leaf.
    if not finding or (exam.run.stale and finding.code == "input-modified"):
        return wrong
    with arguments_as_handed():
        rest = {
            io: ms
            for io, ms in wrong.items()
            if not exam.is_faithful(ms[0].input) or not is_right(ms)
        }
    told = dict.fromkeys(ms[0].input for io, ms in wrong.items() if io not in rest)
    if told:
        these = listed((f"`{x}`" for x in told), last=_(" and "))
        exam.findings[exam.findings.index(finding)] = replace(
            finding,
            severity="error",
            message=f"{finding.message} {_(AS_BEFORE).format(these=these)}",
            also_wrong=tuple(told),
        )
    return rest


def is_right(ms):
    with forgiving():
        return all(m.fits(m.rows_of(m.subject.run(m.point.values))) for m in ms)
    return False


@contextlib.contextmanager
def arguments_as_handed():
    """For a while, each argument is saved for backward as it was handed to forward."""
    before = {}

    def heard(method, cls, *args):
        given = [t for t in args if isinstance(t, torch.Tensor)]
        before.update({id(t): (t, t.detach().clone()) for t in given})
        return method(*args)

    def handed(saved, frame):
        return [before.get(id(t), (t, t))[1] for t in saved]

    with methods("forward", heard), saving(handed):
        yield


def other_outputs(exam):
    """The finding that the reference computes something else, or None."""
    outputs, _leaves = exam.subject.refer(exam.subject.values)
    own = exam.run.outputs
    names = [*exam.run.names, *(N_("another output") for _more in outputs[len(own) :])]
    for y, one, other in itertools.zip_longest(names, own, outputs):
        if one is None or other is None:
            return REFERENCE_DIFFERS(y=y, how=_("is returned by one of them only"))
        if one.shape != other.shape:
            how = _("has shape {one}, and {other} in the reference")
            how = how.format(one=tuple(one.shape), other=tuple(other.shape))
            return REFERENCE_DIFFERS(y=y, how=how)
        off = (as_vector(one) - as_vector(other)).abs()
        if not bool((off <= exam.tolerance * largest(as_vector(other)) + 1e-12).all()):
            seen = worst(one.detach(), other.detach())
            return REFERENCE_DIFFERS(y=y, how=_("has other values"), values=seen)
    return None


def told_once(exam, found):
    """Those to be told: if one change, or one local of backward, makes all right, only
    the first input for which it was found."""
    if any(one.text.code == "straight-through" for one in found.values()):
        for one in found.values():
            if one.text.code == "scaled":  # as of a step size that is learned
                one.change, one.words["meant"] = None, MEANT
    lines = exam.lines
    if not lines or not (lines.mends_all or lines.one_cause):
        return found
    for one in found.values():
        one.change = one.change and lines.mends_all and lines.mends_all.change()
    if lines.mends_all:
        cause = next(i for (i, _o), one in found.items() if one.change)
        return {io: one for io, one in found.items() if io[0] == cause}
    causes = [io for io, one in found.items() if one.first]
    cause = min(causes, key=lambda io: not found[io].first.is_part)
    return {cause: found[cause]}


def points_of(exam):
    """The given point, and others near it where forward is finite."""
    points = [exam.subject.values]
    for _turn in range(1 if too_much(points[0]) else 2):
        other = [exam.dice.nearby(v) for v in exam.subject.values]
        with contextlib.suppress(CallError):
            if all(y.isfinite().all() for y in exam.subject.forward(other)):
                points.append(other)
    return points


def screened(exam, points):
    """All that is `Suspected`, and notes about inputs of which differences prove
    nothing."""
    subject, suspected, notes = exam.subject, [], []
    for values in points:
        here = values is points[0]
        try:
            point = Point(subject, values, exam.dice)
            if subject.reference:
                suspected += beside_reference(exam, point, here)
                continue
            judge = functools.partial(
                Screening,
                subject.forward,
                point.vjp,
                values,
                exam.dice,
                subject.eps,
                exam.tolerance,
                point.y0,
                2 if here else 1,
            )
            found = judge()
            verdicts, factors = found.verdict, found.weights
            if found.doubts and here:
                notes = judged_but_for_edges(judge, point, verdicts, found.doubts)
        except CallError:
            if here:
                raise
            continue  # it does not take what lies near the given point
        if exam.loud > 1 and "wrong" not in verdicts.values():
            verdicts = dict.fromkeys(verdicts, "wrong")
            factors = [torch.full_like(w, exam.loud) for w in factors]
        suspected += [
            Suspected(point, factors, *io, verdict, here)
            for io, verdict in verdicts.items()
            if io[1] in exam.graded
        ]
        count_judged(exam, verdicts)
        if here:
            point.limit = min(
                point.limit, shared(calls_allowed(subject), len(found.doubts) or 1)[1]
            )
        if "unknown" in verdicts.values():
            break
    return suspected, notes


def beside_reference(exam, point, here):
    """What is `Suspected` where the gradients are not those of the reference."""
    verdicts = {}
    for o in exam.graded:
        for i in range(len(point.values)):
            m = Comparison(point, i, o, exam.tolerance)
            verdicts[i, o] = "wrong" if m.wrong.any() else "right"
    count_judged(exam, verdicts)
    for one in exam.judged.values():
        one.beside = "reference"
    ones = [torch.ones_like(y) for y in point.y0]
    return [Suspected(point, ones, *io, v, here) for io, v in verdicts.items()]


def count_judged(exam, verdicts):
    """One point more for each input that was judged there through all outputs."""
    for i, x in enumerate(exam.subject.inputs):
        judged, of_this = exam.judged[x], {verdicts[i, o] for o in exam.graded}
        if of_this <= {"right", "wrong"}:
            judged.points += 1
            judged.order = 1
        else:
            judged.why = _(NOT_COMPARED)


def judged_but_for_edges(judge, point, verdicts, doubts):
    """Judge again while the elements at a kink or a jump, by which all may be moved,
    hold still.

    Corrects the verdicts, of which these elements can no longer hide any; returns notes
    about them.
    """
    found = {i: edges(point, i) for i in doubts}
    still = {i: mask for i, (mask, _) in found.items()}
    if any(mask.any() for mask in still.values()):
        for pair, verdict in judge(still=still).verdict.items():
            if verdict == "wrong" or verdicts[pair] == "unsure":
                verdicts[pair] = verdict
    return [note for _, note in found.values()]


def is_estimator(exam, wrong, found):
    """Does forward draw, and is the true gradient zero, or is what backward gives right
    on average?

    A name that says what is wrong, as of a mask that is drawn anew, is better than
    that.
    """
    if not exam.draws:
        return False
    codes = {io: one.text.code for io, one in found.items()}
    noisy = "few-digits", *NAMELESS
    # Where another gradient is that of this draw, so should be one that is not zero.
    accused = {i for i, _o in wrong}
    exact = [g for i, g in enumerate(exam.first) if i not in accused]
    if any(g is not None and g.any() for g in exact):
        noisy = ()
    return all(
        code == "straight-through" or code in noisy and right_on_average(wrong[io][0])
        for io, code in codes.items()
    )


def right_on_average(m):
    """Does the error of the gradient, along some directions, vanish in the mean over
    many seeds?"""
    vs = torch.stack([as_vector(v) for v in m.vs])
    us, off = [m.point.dice.direction(m.x) for _ in range(DIRECTIONS)], []

    def output(move, seed):
        moved = [v + move if i == m.i else v for i, v in enumerate(m.point.values)]
        return as_vector(m.subject.run(moved, seed=seed).outputs[m.o])

    for seed in range(SEEDS):
        rows = torch.stack([*m.rows_of(m.subject.run(m.point.values, seed=seed))])
        along = [
            (rows.conj() @ m.row(u)).real
            - vs @ (output(1e-5 * u, seed) - output(-1e-5 * u, seed)) / 2e-5
            for u in us
        ]
        off.append(torch.stack(along))
    off = torch.stack(off)
    stays, all_of_it = off.mean(0).square().sum(), off.square().mean(0).sum()
    return bool(stays < STAYS * all_of_it)


class Diagnosis:
    """What a wrong gradient is called, before it is known through which outputs it is
    so.

    words: further keyword arguments of the text
    """

    def __init__(self, text, x, change=None, first=None, **words):
        self.text, self.input, self.words = text, x, words
        self.change, self.first = change, first

    @property
    def said(self):
        """What must be the same for all outputs, if it is to be said once."""
        change = self.change and self.change.change
        if self.text.code in SHARP:
            change = None
        return self.text, change, self.words.get("other"), self.words.get("what")


def diagnosis(exam, ms):
    """The `Diagnosis` of a wrong gradient."""
    m = ms[0]
    if not exam.is_faithful(m.input):
        return accepted(exam, ms)
    if not m.wrong.any():
        return Diagnosis(TEXTS["gradient-wrong"], m.input, nameless="")
    if known := elsewhere(exam, m):
        return known
    text, gaps = named(ms)
    sharp, corner, further = text.code in SHARP, None, []
    change = first = None
    size = sum(t.numel() for t in (*m.point.values, *m.point.outputs))
    if not sharp and (m.sparse or size > SMALL):
        corner = in_a_corner(ms)
    if corner and m.sparse and text.code in NAMELESS:
        there, its_gaps = named(corner)
        if there.code not in NAMELESS:
            m, text, gaps = corner[0], there, its_gaps
            shape = tuple(m.shape)
            further = [_("Seen in a corner of shape {shape}.").format(shape=shape)]
    drawn = DRAWN if text.code in NAMELESS and exam.draws else ""
    gaps = {"meant": MEANT if m.is_identity else drawn, **gaps}
    if exam.line and text.code != "straight-through":
        sharp &= text.code != "gradient-none" or not exam.has_own_nodes
        change, first = exam.line.find(corner or ms, exam.lines, few=sharp)
        first = first if not change or (first and first.is_part) else None
    if change or first:
        gaps["nameless"] = ""
    if first and first.is_part and text.code == "few-digits":
        text = TEXTS["gradient-wrong"]  # that few are lost is chance
    evidence = {"values": m.evidence, "further": further}
    return Diagnosis(text, m.input, change, first, **evidence, **gaps)


def accepted(exam, ms):
    """What there is to say of a gradient that need not be the derivative of forward."""
    if ms[0].given.any() and grad_output_ignored(ms):
        return Diagnosis(TEXTS["grad-output-ignored"], ms[0].input, only="")
    if all(m.none for m in ms) and any(g is not None for g in exam.first):
        none = TEXTS["gradient-none"]
        return Diagnosis(none, ms[0].input, severity="warning")
    return Diagnosis(UNFAITHFUL, ms[0].input)


def elsewhere(exam, m):
    """The diagnosis of a wrong gradient that is right under another circumstance, or
    None.

    Where copies are saved of what is changed in place, or where no other call has left
    anything.
    """
    places = {}

    def copies(saved, frame):
        places[place_of(frame)] = None
        return [None if t is None else t.clone() for t in saved]

    def right_under(circumstance):
        with forgiving(), circumstance:
            return m.fits(m.rows_of(m.subject.run(m.point.values)))

    if exam.run.stale and right_under(saving(copies)):
        which = _(" and before forward returned, so the gradient of `{x}` is wrong")
        which = which.format(x=m.input)
        copied = _("right if: `save_for_backward` saved copies")
        change = Change(copied, listed(places, last=", and "))
        return Diagnosis(SAVED_MODIFIED, None, change, values=m.evidence, which=which)
    if exam.state.changed() and right_under(exam.state.as_before()):
        when = _("one, the right one, where no other call has left anything")
        return Diagnosis(STATE_BETWEEN_CALLS, m.input, values=m.evidence, when=when)
    return None


def finding_of(exam, i, o, found, kept):
    """The finding of a diagnosis: through which output, and what to look at; kept: those
    that are told."""
    one, y = found[i, o], exam.run.names[o]
    of_this = [other for (j, _o), other in found.items() if j == i]
    everywhere = (
        len(of_this) == len(exam.graded) and len({other.said for other in of_this}) == 1
    )
    change, words = one.change, dict(one.words)
    if exam.is_faithful(one.input):
        words |= exam.may_be_meant
    if everywhere and len({other.change for other in of_this}) > 1:
        change = None
    if not everywhere:
        words["through"] = y
    others = {
        other.input: None for other in found.values() if other not in kept.values()
    }
    also = [x for x in others if x != one.input]
    if also:
        these = listed((f"`{x}`" for x in also), last=_(" and "))
        words["further"] = [*words.get("further", ()), _(ALSO).format(these=these)]
    first = None if change else one.first
    finding = one.text(
        one.input, y, change=change, first=first, also_wrong=also, **words
    )
    if finding.remedy and not exam.has_own_nodes:
        return replace(finding, remedy=exam.cut_off)
    return finding
