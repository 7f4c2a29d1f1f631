"""How a cause is declared: one row of a table, its test beside it."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from ..function.raised import CallError
from ..report import TEXTS, Text, error

CAUSES = []  # in the order in which they are tried


@dataclass
class Cause:
    text: Text
    test: Callable


def cause(code, message=None, look=""):
    """Make a row of the decorated test; without a message it finds a cause that has another.

    The test takes the `Measurements` of one wrong gradient. It returns the words that fill the gaps
    of the sentence, or None; or it yields hypotheses, (words, holds): the words of the first one
    count for which holds(m) is true at all points.
    """

    def register(test):
        text = error(code, message, look) if message else TEXTS[code]
        tried = functools.partial(first_that_holds, test)
        CAUSES.append(Cause(text, tried if inspect.isgeneratorfunction(test) else test))
        return test

    return register


def first_that_holds(test, ms):
    for words, holds in test(ms):
        if all(true_of(holds, m) for m in ms):
            return words
    return None


def true_of(holds, m):
    """holds(m), or False where shapes do not fit, or backward does not take what it is given."""
    try:
        return bool(holds(m))
    except (CallError, RuntimeError):
        return False


def named(ms):
    """The text and the words of the first cause that fits."""
    for row in CAUSES:
        words = row.test(ms)
        if words is not None:
            return row.text, words
