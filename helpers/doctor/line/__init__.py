"""Which line to change: one engine, one grammar. The rest of the doctor works without this folder.

grammar.py    what may have been written instead: a table; add a row here
edits.py      a function's source, edited as text, and run in the place of the original
foresight.py  what an edit would change, foreseen by autograd
goals.py      what is looked for: a backward that is right, a forward of which the given gradient is
              that, a method with which a trial passes
"""

import functools

from ..function.raised import forgiving
from . import goals
from .goals import after_which, exits

__all__ = ["after_which", "exits", "find", "uncut_if"]


def find(measurements, budget, few=False):
    """The `Clause` that mends a wrong gradient, or explains it; or None.

    measurements: of one wrong gradient
    few: is what is foreseen enough, because it has a name?
    """
    subject, clause = measurements[0].subject, None
    with forgiving():
        budget.fit(subject)
        if not subject.cls:
            codes = [code for code in goals.forward_codes(subject) if not code.cls]
            clause = goals.uncut_if(subject, codes, functools.partial(goals.is_right, measurements))
        clause = clause or goals.right_if(measurements, budget, few)
        if not (clause or few):
            clause = goals.as_if(measurements, budget)
    return clause


def uncut_if(subject, right):
    """The `Clause` of backward with which right() is true, as more stays in autograd; or None."""
    return goals.uncut_if(subject, goals.backward_codes(subject), right)
