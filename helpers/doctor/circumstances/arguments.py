"""The trial with other numbers as arguments: is the gradient right there, too?"""

import contextlib
import functools
import itertools

from ..function.source import only_compute
from ..function.subject import with_other_arguments
from ..function.surroundings import CallError, forgiving
from ..function.tensors import Dice
from ..measure.measurement import Measurement, Point
from ..measure.screen import is_large, screen
from ..name.measurements import Measurements
from ..report import error
from .examination import Trials
from .kept import caches_of, dicts_kept

trial = Trials()
CACHE_KEY = error(
    "cache-key",
    "Where {what}, forward gives something else after a call with the given arguments than "
    "without one.",
    look="a cache whose key leaves that out",
)

OTHERS = 6  # at most
WRONG_ELSEWHERE = error(
    "arguments-ignored",
    "The gradient of {x} is right for the given arguments, but wrong where {what}.",
    look="numbers, branches and caches that do not depend on it, as what forward computes does",
)


@contextlib.contextmanager
def caches_kept(subject):
    """Yields the dicts of its Functions, which are what they were afterwards."""
    caches = [d for cls in subject.applied for d in caches_of(cls).values()]
    with dicts_kept(caches):
        yield caches


@trial(unless=("error", "backward-not-deterministic", "too-coarse", "input-not-finite"))
def with_other_numbers(exam):
    """One after the other, until one is found."""
    subject = exam.subject
    if exam.of_a_program or is_large(subject.values) or subject.is_slow:
        return
    with caches_kept(subject) as caches:
        whole = functools.cache(lambda: only_compute(subject.applied, caches=True))
        caches = [d for d in caches if d and whole()]  # what else does more may need its own
        for other in itertools.islice(with_other_arguments(subject, whole), OTHERS):
            with contextlib.suppress(CallError, RuntimeError):
                found = list(of_another(exam, other, caches))
                yield from found
                if found:
                    return


def of_another(exam, other, caches):
    subject, values = exam.subject, exam.subject.values
    if caches:
        after = other.forward(values)
        with contextlib.suppress(CallError), caches_kept(subject):
            for cache in caches:
                cache.clear()
            if not all(map(exam.same, after, other.forward(values))):
                yield CACHE_KEY(what=other.what)
                return
    if not exam.faithful:
        return
    point = Point(other, values, Dice())
    verdicts, *_ = screen(other.forward, point.vjp, values, Dice(), subject.eps,
                          exam.tolerance, point.y0, 1)  # fmt: skip
    wrong = {io for io, verdict in verdicts.items() if verdict == "wrong"}
    for i, o in sorted(wrong):
        case = Measurement(point, i, o, exam.tolerance)
        if case.wrong.any():
            words = {"seen": case.evidence, "what": other.what}
            with forgiving():  # the given arguments may make other outputs
                words |= mended(exam, case, wrong) if exam.line else {}
            yield WRONG_ELSEWHERE(subject.inputs[i], **words)
            return


def mended(exam, case, wrong):
    """The words for the edit that makes it right, and leaves it so with the given arguments."""
    cases, point = Measurements([case]), Point(exam.subject, exam.subject.values, Dice())
    cases.wrong, cases.wrong_through = {i for i, _ in wrong}, wrong
    cases.all, cases.whole = [cases], [Measurement(point, case.i, case.o, case.tolerance)]
    return exam.line.find(cases, exam.budget)
