"""Where a backward goes wrong first, told by forward itself under autograd.

That values are alike proves nothing. What a local should hold is said only if putting
it there makes the wrong gradients right, at all points and sizes that are known, and
leaves the right ones alone.
"""

import contextlib
import itertools
from dataclasses import dataclass, replace

from ..function.isolation import forgiving
from ..function.source import UnsuitableError
from ..measure.gradient import are_right, right_under
from .candidates import Candidates
from .chain import Chain
from .goals import guard_of
from .matches import Matches
from .sentences import PART, Sentences

PROOFS = 80  # interventions, at most


@dataclass(frozen=True)
class FirstWrong:
    """Where a backward goes wrong first.

    said: what is there, and what should be; right_so_far: what is right before it
    file, line, name: where it stands; is_part: is a path missing?
    mends: the numbers (input, output) of the gradients that are right with it; is_cause:
    are these all that are wrong? lines: its own and those that may be wrong in its place
    """

    said: str
    right_so_far: str
    file: str
    line: int
    name: str | None
    is_part: bool
    mends: frozenset
    is_cause: bool
    lines: tuple

    def is_of_it(self, edit):
        """Does this edit add to what that line has made, where it is read?"""
        return self.is_part and getattr(edit.node, "id", None) == self.name

    def words(self):
        """As a `Finding` holds it."""
        names = "right_so_far", "file", "line"
        own = {name: getattr(self, name) for name in names}
        return {"first_wrong": self.said, **own}


def first_wrong(wrong, budget):
    """The `FirstWrong` of this `WrongGradient`, or None where nothing is proved."""
    subject = wrong.here.subject
    forwards = dict.fromkeys([None, subject.reference])
    for cls, reference in itertools.product(subject.functions, forwards):
        with contextlib.suppress(UnsuitableError), forgiving():
            chain = Chain(cls, reference)
            if right_under(chain.instead(), wrong.at):
                if found := Search(chain, wrong, budget).found():
                    return found
    return None


class Search:
    """The first local of backward that is wrong, as interventions prove."""

    def __init__(self, chain, wrong, budget):
        self.chain, self.wrong, self.budget = chain, wrong, budget
        self.matches = Matches(chain, wrong)
        self.sentences = Sentences(self.matches)
        self.candidates = Candidates(self.matches, self.sentences)
        self.stay, self.proofs = guard_of(wrong), 0

    def found(self):
        """The first local that is wrong.

        What it may be meant for by its value or its name is tried of all before
        anything else is.
        """
        own = self.chain.backward.codes[0]  # what is called often is tried last
        wrong = sorted(
            self.matches.wrong,
            key=lambda k: k.binding.code is not own and self.matches.turns(k) > 1,
        )
        starts = [k for k in self.matches.of_runs if not k.turn]
        candidates, symptom = self.candidates, None
        tried = (
            (candidates.likely, wrong),
            (candidates.of_another_run, starts),
            (candidates.unlikely, wrong),
        )
        for kind, keys in tried:
            for key in keys:
                told, target, relation = self.told(key, kind(key))
                if told and told.is_cause:
                    # Of several lines that make one gradient, nobody knows which is
                    # wrong.
                    before = () if relation else self.matches.suspects_of(key)
                    numbers = filter(self.matches.targets.__contains__, before)
                    earlier = (self.told_before(k, target) for k in numbers)
                    return next((t for t in earlier if t and t.is_cause), told)
                symptom = symptom or told
        return symptom

    def told(self, key, candidates):
        """(`FirstWrong`, target, relation) of the first of them that is proved."""
        for target, relation in candidates:
            if self.proved(key, put := self.in_each_run(key, target)):
                if put.skipped is not None and (last := self.last_run(key, put)):
                    key, target = last
                    put, relation = target, None
                return self.in_words(key, target, put, relation), target, relation
        return None, None, None

    def last_run(self, key, put):
        """(key, target) of the last run of its loop, if that alone is enough, or None.

        Of a sum of what the items of a list give, nothing proves what earlier runs hold.
        """
        record = self.matches.record
        if not record.locals[put.local].is_item:
            return None
        turn = max(k.turn for k in self.matches.values if k.binding is key.binding)
        due = record.versions(record.locals[put.local])[put.skipped + turn :]
        if turn == key.turn or not due:
            return None
        number = next(j for j, local in enumerate(record.locals) if local is due[0])
        last = key._replace(turn=turn), replace(put, local=number, skipped=None)
        return last if self.proved(*last) else None

    def told_before(self, key, last):
        """The `FirstWrong` of a local that goes into one that should be `last`."""
        every = self.candidates.unlikely(key)
        others = (pair for pair in every if pair[0].local != last.local)
        return self.told(key, others)[0]

    def proved(self, key, target):
        """Does this target mend the wrong gradients, and keep the right ones?"""
        if self.proofs >= PROOFS or self.budget.is_spent:
            return False
        self.proofs += 1
        self.budget.spent += 1
        # With other sizes, a loop takes other turns.
        in_a_loop = self.matches.turns(key) > 1
        others = self.wrong.in_reverse if in_a_loop else self.wrong.others
        with forgiving(), self.chain.putting(key, target, self.matches.record):
            return are_right(self.wrong.at) and self.stay() and are_right(others)
        return False

    def in_each_run(self, key, target):
        """The same for each run of the loop in which the local stands, if it can be."""
        record, name = self.matches.record, key.name
        in_a_loop = self.matches.turns(key) > 1
        if not in_a_loop or name is None or target.uses or target.value:
            return target
        local = record.locals[target.local]
        if local.is_item and key.binding.fills:  # a sum, which is of one item
            return target
        of_name = record.versions(local)
        skipped = next(k for k, x in enumerate(of_name) if x is local) - key.turn
        return replace(target, skipped=skipped) if skipped >= 0 else target

    def in_words(self, key, target, put, relation):
        mends, together = frozenset(), self.wrong.together
        with forgiving(), self.chain.putting(key, put, self.matches.record):
            mends = frozenset((one.i, one.o) for one in together if are_right([one]))
        is_cause = len(mends) == len(together)
        before = () if relation or target.uses else self.matches.suspects_of(key)
        places = [key.binding, *(k.binding for k in before)]
        lines = dict.fromkeys((b.code.fn.__code__.co_filename, b.line) for b in places)
        return FirstWrong(
            self.sentences.first_wrong(key, target, relation, is_cause),
            self.sentences.right_so_far(key),
            key.binding.code.fn.__code__.co_filename,
            key.binding.line,
            key.name,
            relation is not None and relation[0] is PART,
            mends,
            is_cause,
            tuple(lines),
        )
