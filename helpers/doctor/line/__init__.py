"""Which line to change: one engine, one grammar. Without this folder, the rest works.

The edit:

grammar.py      what may have been written instead: a table; add a row here
edits.py        a function's source, edited as text, and run in place of the original
foresight.py    what an edit would change, foreseen by autograd
goals.py        what is looked for, and the loop that looks

The first wrong line, by forward's own gradients:

watched.py      a function whose locals are watched while it runs
record.py       forward once more, while autograd records
chain.py        forward and backward together; a `Target` is what a local should hold
matches.py      what each local of backward holds, and what of it is right
candidates.py   what a wrong one may be meant to hold
sentences.py    that in words
search.py       the first that is wrong, proved by putting there what it should hold
"""

from dataclasses import replace

from ..function.isolation import forgiving
from ..measure.gradient import are_right
from ..words import listed
from . import goals
from .goals import exits, other_flag
from .grammar import CUTS
from .search import first_wrong

__all__ = ["exits", "find", "other_flag", "uncut_if"]


def find(wrong, budget, few):
    """(the `Change` that mends a wrong gradient; does it mend all? `FirstWrong`, gaps).

    Each may be None, where nothing is known. gaps: what this fills of those in its text
    wrong: the `WrongGradient`; few: is what is foreseen enough, because it has a name?
    """
    change = mends_all = first = clue = None
    subject = wrong.here.subject
    with forgiving():
        budget.fit(subject)
        plain = goals.plain_codes(subject)
        change = goals.right_by(CUTS, subject, plain, are_right, wrong.at)
        if not change:
            first = first_wrong(wrong, budget)
            change, mends_all = goals.right_if(wrong, budget, few, first)
            clues = [goals.unused(subject)]
            if not first:
                with forgiving():  # a clue only: what was found stands without it
                    clues.append(goals.common(subject, wrong))
            clue = listed(filter(None, clues), "; ")
    if first and clue:
        first = replace(first, said=listed((first.said, clue), "; "))
    if change or first:
        return change, mends_all, first, {"nameless": "", "guess": ""}
    return None, None, None, {"remedy": clue} if clue else {}


def uncut_if(subject, right):
    """The `Change` of backward, or of what is saved for it, that makes right() true."""
    codes = goals.backward_codes(subject) + goals.forward_codes(subject)
    return goals.right_by(CUTS, subject, codes, right)
