"""What the rounds found: of one Function a `Visit`, and all of them."""

import json
from collections import Counter
from dataclasses import dataclass, field

from ..report import (
    PREVENTED,
    SCHEMA,
    Report,
    WrongGradientError,
    shown,
    what_was,
    wrapped,
)
from ..words import N_, _, listed, number

NO_GRADIENT = N_("no input required a gradient")
CALLS = N_("{n} call"), N_("{n} calls")  # of one, of another number
PATTERNS = N_("{n} pattern examined"), N_("{n} patterns examined")
FUNCTIONS = N_("{n} Function"), N_("{n} Functions")


@dataclass(repr=False)
class Visit(Report):
    """The report on one Function, over all patterns with which it was examined.

    full_name: with its module
    defined:   (file, line) of its backward, or None
    first:     what ran when it was applied first: a test, if pytest runs
    calls:     how often it was applied
    left:      how many calls were not examined, by reason
    patterns:  how many of its patterns were examined
    called, given: where the call stands of which the worst was found, and what it was
        given
    judged:    of each input, the `Judged` of that pattern of which the least was judged
    """

    full_name: str = ""
    defined: tuple | None = None
    first: str = ""
    calls: int = 0
    left: Counter = field(default_factory=Counter)
    patterns: int = 0
    called: str = ""
    given: str = ""

    def counts(self):
        """How much of it was examined."""
        parts = [number(self.calls, CALLS), number(self.patterns, PATTERNS)]
        for why, n in self.left.items():
            calls = number(n, CALLS)
            parts.append(_("{calls} left out ({why})", calls=calls, why=why))
        return listed(parts)

    def add(self, other):
        """Count in another Function of which the same is said."""
        self.calls += other.calls
        self.patterns += other.patterns
        self.left += other.left
        self.judged = least(self.judged + other.judged)

    @property
    def missed(self):
        """Why not all of it was examined that could have been, or ""."""
        harmless = _(NO_GRADIENT) if self.examined else None
        inputs = [f"`{one.input}`: {one.why or _(PREVENTED)}" for one in self.unjudged]
        return listed([*(why for why in self.left if why != harmless), *inputs])

    @property
    def unjudged(self):
        """What was judged nowhere, of inputs that are neither constants nor accused."""
        known = {f.input for f in self.findings if f.severity == "error"}
        known |= {one.input for one in self.judged if one.points or one.meant}
        return [one for one in self.judged if one.input not in known]

    @property
    def may_be_meant(self):
        """Is it wrong, but by nothing that may not be meant, as a surrogate is?"""
        found = [f for f in self.findings if f.severity == "error"]
        return bool(found) and all(f.meant for f in found)

    @property
    def serious(self):
        """Errors and warnings. Notes are left out: a float32 program has many."""
        return [finding for finding in self.findings if finding.severity != "note"]

    def __repr__(self):
        head = Report(self.name, self.serious, judged=self.judged).headline()
        if not self.examined:
            head = _("{name}: {found}", name=self.name, found=_("not examined"))
        about = [self.counts(), *what_was(self.unjudged)]
        if self.first:
            about.insert(1, _("first in {test}", test=self.first))
        if self.called:
            about.append(_("called {place}", place=self.called))
            about.append(_("given {these}", these=self.given))
        lines = [line for one in about for line in wrapped(one, "  ", "    ")]
        lines += shown(self.serious)
        return "\n".join([head, *lines])


def least(judged):
    """Of each input, that `Judged` of which the least was judged."""
    found = {}
    for one in judged:
        before = found.setdefault(one.input, one)
        pair = one, before
        found[one.input] = min(pair, key=lambda j: (j.points > 0, j.points, j.order))
    return list(found.values())


class Found:
    """What the rounds found: a `Visit` for each Function, with errors first.

    skipped: the names of those that were left out as `skip` says
    unmatched: names in `skip` and `faithful` that match no Function that was applied
    """

    def __init__(self):
        self.visits, self.skipped, self.unmatched, self.ended = [], set(), [], False

    @property
    def ok(self):
        return all(visit.ok for visit in self.visits)

    @property
    def summary(self):
        """What was found, in one line."""
        if not self.ended:
            return _("Rounds: still under way")
        wrong = sum(not visit.ok for visit in self.visits)
        meant = sum(visit.may_be_meant for visit in self.visits)
        warned = sum(visit.ok and bool(visit.serious) for visit in self.visits)
        missed = sum(bool(visit.missed) for visit in self.visits)
        counts = [number(len(self.visits), FUNCTIONS)]
        counts.append(_("{n} wrong", n=wrong - meant or _("none")))
        if meant:
            counts.append(_("{n} wrong unless that is meant", n=meant))
        if warned:
            counts.append(_("{n} warned of", n=warned))
        if missed:
            counts.append(_("{n} not judged or not all of it", n=missed))
        return _("Rounds: {counts}", counts=listed(counts))

    def __repr__(self):
        strange = [_("no Function is called {name}", name=x) for x in self.unmatched]
        return "\n".join([self.summary, *strange, *map(str, self.visits)])

    def to_json(self, jacobians=False):
        """What was found of each Function, as README.md describes it."""
        functions = [visit.as_dict(jacobians) for visit in self.visits]
        return json.dumps({"version": SCHEMA, "ok": self.ok, "functions": functions})

    def raise_if_wrong(self):
        """Raise WrongGradientError if there is an error, else return what was found."""
        if not self.ok:
            raise WrongGradientError(str(self))
        return self
