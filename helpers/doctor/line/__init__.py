"""Which line to change: one engine, one grammar. Without this folder, the rest works.

grammar.py    what may have been written instead: a table; add a row here
edits.py      a function's source, edited as text, and run in place of the original
foresight.py  what an edit would change, foreseen by autograd
goals.py      what is looked for, and the loop that looks
chain.py      where a backward goes wrong first, by forward's own gradients
"""

import functools

from ..function.isolation import forgiving
from . import goals
from .chain import first_wrong
from .goals import exits, other_flag

__all__ = ["exits", "find", "other_flag", "uncut_if"]


def find(wrong, budget, few):
    """(`Change`, `FirstWrong`) of a wrong gradient: what mends it, and where it goes
    wrong first; None for what is not known.

    wrong: the `WrongGradient`
    few: is what is foreseen enough, because it has a name?
    """
    subject, right = wrong[0].subject, functools.partial(goals.is_right, wrong)
    first = None
    with forgiving():
        budget.fit(subject)
        codes = [code for code in goals.forward_codes(subject) if not code.cls]
        if change := goals.uncut_if(subject, codes, right):
            return change, None
        first = first_wrong(wrong, budget)
        return goals.right_if(wrong, budget, few, first), first
    return None, first


def uncut_if(subject, right):
    """The `Change` of backward with which right() is true, as more stays in autograd;
    or None."""
    return goals.uncut_if(subject, goals.backward_codes(subject), right)
