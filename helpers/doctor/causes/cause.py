"""How a cause is declared: one row of a table, its test beside it."""

import inspect

from ..function.isolation import forgiving
from ..report import TEXTS, error

CAUSES = []  # (text, test), in the order in which they are tried
# Kinds of causes: the sentence tells what to write, or no more than that it is wrong.
SHARP, VAGUE = "sharp", "vague"


def gaps_of(test, wrong):
    """What fills the gaps of the sentence, if this is the cause; or None."""
    if not inspect.isgeneratorfunction(test):
        return test(wrong)
    tried = (
        gaps
        for gaps, holds in test(wrong)
        if all(true_of(holds, here) for here in wrong.at)
    )
    return next(tried, None)


def cause(code, message=None, look="", kind=""):
    """Make a row of the decorated test.

    Without a message it finds a cause that has another. kind: SHARP, VAGUE or neither.

    The test takes the `WrongGradient` of one wrong gradient. It returns what fills the
    gaps of the sentence, or None; or it yields hypotheses, (gaps, holds): the first one
    counts for which holds(here) is true at all points.
    """

    def register(test):
        text = error(code, message, look, kind=kind) if message else TEXTS[code]
        CAUSES.append((text, test))
        return test

    return register


def true_of(holds, here):
    """holds(here), or False where shapes do not fit or backward refuses."""
    with forgiving():
        return bool(holds(here))
    return False


def named(wrong):
    """The text of the first cause that fits, and what fills its gaps.

    The last cause always fits.
    """
    found = ((text, gaps_of(test, wrong)) for text, test in CAUSES)
    return next((text, gaps) for text, gaps in found if gaps is not None)
