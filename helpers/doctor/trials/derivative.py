"""The trial on which the others wait: is the gradient the derivative of forward?

Which gradients may be wrong (`screened`); which are, element by element (`wrong_gradients`);
what that is called and what mends it (`diagnosis`); how it is told.
"""

import itertools
from dataclasses import replace

from ..function.isolation import CallError
from ..function.tensors import as_vector, largest, worst
from ..measure.screening import too_much
from ..report import MEANT, POINTS, error, note
from ..words import N_, _, quoted
from .diagnosis import but_for_in_place, diagnosis, is_estimator
from .judgement import wrong_gradients
from .screened import points_of, screened

ESTIMATOR = note(
    "estimator",
    "Forward draws random numbers, and the gradient of {which} is not the derivative "
    "for this draw. Whether it is right on average is not examined.",
)
ALSO = N_("For the same reason, what backward returns for {these} is wrong, too.")
RAISES = N_("forward raises near the given point, so that there are no differences")
REFERENCE_DIFFERS = error(
    "reference-differs",
    "The reference computes something else: {y} {how}.",
    look="forward, or the reference",
)
DIFFERS = N_("the reference computes something else")
FIRST = N_("what is said of {x} first; then examine again, for this may only follow")
NOT_NEARBY = N_("near the given point, forward raises or is not finite")


def derivative_of_forward(exam):
    """Screen all gradients, measure what is suspected, and name what is wrong."""
    if exam.subject.reference and (differs := other_outputs(exam)):
        exam.not_judged(_(DIFFERS))
        yield differs
        return
    try:
        suspected, notes = screened(exam, points_of(exam))
        wrong, more = wrong_gradients(exam, suspected)
    except CallError as raised:
        if raised.phase != "forward":
            raise
        exam.not_judged(_(RAISES))
        return
    for x, one in exam.judged.items():
        if 0 < one.points < POINTS and not one.why:
            exam.note_judged(x, why=too_much(exam.subject.values) or _(NOT_NEARBY))
    yield from (*notes, *more)
    wrong = but_for_in_place(exam, wrong)
    # What somebody trains comes before what was given as a constant. And what explains
    # a gradient that is not zero may explain that another one is.
    in_order = sorted(
        wrong.items(),
        key=lambda item: (
            exam.subject.examined[item[0][0]] in exam.subject.frozen,
            not item[1].here.given.any(),
        ),
    )
    found = {io: diagnosis(exam, one) for io, one in in_order}
    if found and is_estimator(exam, wrong, found):
        inputs = dict.fromkeys(one.input for one in found.values())
        why = _("it is an estimator's, not this draw's")
        exam.not_judged(why, *inputs, meant=True)
        yield ESTIMATOR(which=quoted(inputs))
        return
    found = as_meant(found)
    # Of what has a line, the rest may follow.
    told = sorted(told_once(found).items(), key=lambda item: not item[1][0].has_line)
    known = next((one.input for _io, (one, _of) in told if one.has_line), None)
    for (i, o), (one, others) in told:
        finding = finding_of(exam, i, o, one, found, others)
        if known and not one.has_line and one.words.get("nameless"):
            finding = replace(finding, remedy=_(FIRST, x=quoted([known])))
        yield finding


def other_outputs(exam):
    """The finding that the reference computes something else, or None."""
    outputs = exam.subject.referred.run().outputs
    own = exam.run.outputs
    names = [*exam.run.names, *(N_("another output") for _more in outputs[len(own) :])]
    for y, one, other in itertools.zip_longest(names, own, outputs):
        if one is None or other is None:
            return REFERENCE_DIFFERS(y=y, how=_("is returned by one of them only"))
        if one.shape != other.shape:
            shapes = {"one": tuple(one.shape), "other": tuple(other.shape)}
            how = _("has shape {one}, and {other} in the reference", **shapes)
            return REFERENCE_DIFFERS(y=y, how=how)
        off = (as_vector(one) - as_vector(other)).abs()
        if not bool(
            (off <= exam.subject.tolerance * largest(as_vector(other)) + 1e-12).all()
        ):
            seen = worst(one.detach(), other.detach())
            return REFERENCE_DIFFERS(y=y, how=_("has other values"), values=seen)
    return None


def told_once(found):
    """{io: (its diagnosis, those of the same cause)} of one for each cause."""
    for io, one in found.items():
        if one.mends_all:
            return {io: (one, [other for other in found if other != io])}
    causes = [
        io for io, one in found.items() if one.first_wrong and one.first_wrong.is_cause
    ]
    if causes:
        cause = min(causes, key=lambda io: not found[io].first_wrong.is_part)
        others = [io for io in found if io != cause]
        return {cause: (replace(found[cause], change=None), others)}
    reached = {io: reach(one, found) - {io} for io, one in found.items()}
    told, left = {}, {*found}
    for io in sorted(found, key=lambda io: -len(reached[io])):
        if io in left:
            others = reached[io] & left
            left -= {io, *others}
            told[io] = found[io], [other for other in found if other in others]
    return {io: told[io] for io in found if io in told}


def reach(one, found):
    """Which of them have the same cause, as its change or its first wrong line says."""
    if one.change:
        return {io for io, other in found.items() if other.change == one.change}
    without = {io for io, other in found.items() if not other.change}
    return without & one.first_wrong.mends if one.first_wrong else set()


def as_meant(found):
    """The same, without multiples beside a gradient that passes straight through."""
    if not any(one.text.code == "straight-through" for one in found.values()):
        return found
    return {
        io: replace(one, change=None, words=one.words | {"meant": MEANT})
        if one.text.code == "scaled"
        else one
        for io, one in found.items()
    }


def finding_of(exam, i, o, one, found, others):
    """The finding of a diagnosis: through which output, and what to look at.

    found: all diagnoses; others: those of the same cause, which are not told
    """
    y = exam.run.names[o]
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
    also = dict.fromkeys(found[io].input for io in others)
    also = [x for x in also if x != one.input]
    if also:
        said = _(ALSO, these=quoted(also))
        words["further"] = [*words.get("further", ()), said]
    first = one.first_wrong
    if change and first and not first.is_part:  # a path says why the change is due
        first = None
    finding = one.text(
        one.input, y, change=change, first_wrong=first, also_wrong=also, **words
    )
    if finding.remedy and not exam.has_own_nodes:
        return replace(finding, remedy=exam.cut_off)
    if finding.remedy and exam.exits:
        remedy = _("{look}; {exits}", look=finding.remedy, exits=exam.exits)
        return replace(finding, remedy=remedy)
    return finding
