"""Which gradients may be wrong, by v · J · u at up to three points."""

import contextlib
import functools
from dataclasses import dataclass

import torch

from ..function.budget import affordable
from ..function.isolation import CallError
from ..measure.gradient import measured
from ..measure.point import Point
from ..measure.screening import Screening, edges, too_much
from ..report import NOT_COMPARED, NOT_FINITE
from ..words import _


@dataclass(frozen=True)
class Suspected:
    """A gradient that is wrong at a point, or may be.

    factors: of the v that show it; verdict: that of `Screening`; here: is it the given
             point?
    """

    point: Point
    factors: list
    i: int
    o: int
    verdict: str
    here: bool


def points_of(exam):
    """The given point, and others near it where forward is finite."""
    points = [exam.subject.values]
    for _turn in range(1 if too_much(points[0]) else 2):
        other = exam.nearby()
        with contextlib.suppress(CallError):
            if all(y.isfinite().all() for y in exam.subject.forward(other)):
                points.append(other)
    return points


def screened(exam, points):
    """All that is `Suspected`, and notes where differences prove nothing."""
    subject, suspected, notes = exam.subject, [], []
    for values in points:
        here = values is points[0]
        try:
            point = Point(subject, exam.dice, values)
            if subject.reference:
                suspected += beside_reference(exam, point, here)
                continue
            judge = functools.partial(Screening, point, turns=2 if here else 1)
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
            _number, limit = affordable(subject, len(found.doubts))
            point.limit = min(point.limit, limit)
        if "unknown" in verdicts.values():
            break
    return suspected, notes


def beside_reference(exam, point, here):
    """What is `Suspected` where the gradients are not those of the reference."""
    verdicts = {
        (i, o): "wrong" if measured(point, i, o).wrong.any() else "right"
        for o in exam.graded
        for i in range(len(point.values))
    }
    count_judged(exam, verdicts)
    for x in exam.judged:
        exam.note_judged(x, beside="reference")
    ones = [torch.ones_like(y) for y in point.y0]
    return [Suspected(point, ones, *io, v, here) for io, v in verdicts.items()]


def count_judged(exam, verdicts):
    """One point more for each input that was judged there through all outputs."""
    for i, x in enumerate(exam.subject.inputs):
        of_this = {verdicts[i, o] for o in exam.graded}
        if of_this <= {"right", "wrong"}:
            exam.note_judged(x, points=exam.judged[x].points + 1, order=1)
        else:
            finite = exam.subject.values[i].isfinite().all()
            exam.note_judged(x, why=_(NOT_COMPARED if finite else NOT_FINITE))


def judged_but_for_edges(judge, point, verdicts, doubts):
    """Judge again while the elements at a kink or a jump hold still.

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
