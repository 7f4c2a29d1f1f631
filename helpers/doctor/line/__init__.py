"""Which line to change: one engine, one grammar. Without this folder, the rest works.

grammar.py    what may have been written instead: a table; add a row here
edits.py      a function's source, edited as text, and run in place of the original
foresight.py  what an edit would change, foreseen by autograd
goals.py      what is looked for, and the loop that looks
chain.py      where a backward goes wrong first, by forward's own gradients
"""

import functools
from dataclasses import dataclass, replace

from ..function.isolation import forgiving
from ..measure.gradient import are_right
from ..report import Change
from ..words import listed
from . import goals
from .chain import FirstWrong, first_wrong
from .goals import exits, other_flag
from .grammar import CUTS

__all__ = ["exits", "find", "other_flag", "uncut_if"]


@dataclass(frozen=True)
class Repair:
    """What mends a wrong gradient, and where it goes wrong first, as far as known.

    change: the `Change` that mends it, or None; mends_all: and all others, too?
    first_wrong: the `FirstWrong` of backward, or None
    clue:   what its source tells, in words, or None
    """

    change: Change | None = None
    mends_all: bool = False
    first_wrong: FirstWrong | None = None
    clue: str | None = None

    @property
    def gaps(self):
        """What it fills of the gaps in the text of a wrong gradient."""
        if self.change or self.first_wrong:
            return {"nameless": ""}
        return {"remedy": self.clue} if self.clue else {}


def find(wrong, budget, few):
    """The `Repair` of a wrong gradient.

    wrong: the `WrongGradient`
    few: is what is foreseen enough, because it has a name?
    """
    subject, right = wrong.here.subject, functools.partial(are_right, wrong.at)
    first = None
    with forgiving():
        budget.fit(subject)
        codes = [code for code in goals.forward_codes(subject) if not code.cls]
        if change := goals.right_by(CUTS, subject, codes, right):
            return Repair(change)
        first = first_wrong(wrong, budget)
        found = goals.right_if(wrong, budget, few, first)
        clues = [goals.unused(subject)]
        if not (first and first.is_cause):
            with forgiving():  # a clue only: what was found stands without it
                clues.append(goals.common(subject, wrong))
        clue = listed(filter(None, clues), "; ") or None
        if first and clue:
            first = replace(first, said=listed((first.said, clue), "; "))
        return Repair(*found, first, clue)
    return Repair(first_wrong=first)


def uncut_if(subject, right):
    """The `Change` of backward, or of what is saved for it, that makes right() true."""
    saving = [code for code in goals.forward_codes(subject) if code.cls]
    codes = goals.backward_codes(subject) + saving
    return goals.right_by(CUTS, subject, codes, right)
