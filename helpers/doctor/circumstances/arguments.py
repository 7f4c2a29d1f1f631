"""The trial with other numbers as arguments: is the gradient right there, too?"""

import contextlib
import functools
import itertools

from ..function.raised import CallError, forgiving
from ..function.source import only_compute
from ..function.tensors import Dice
from ..function.variations import with_other_arguments
from ..measure.measurement import Measurement, Point
from ..measure.screen import is_large, screen
from ..name.measurements import Measurements
from ..report import error
from .examination import Trials

trial = Trials()
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


@trial(unless=("error", "backward-not-deterministic", "too-coarse", "input-not-finite"))
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
