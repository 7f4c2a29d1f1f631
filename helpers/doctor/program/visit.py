"""What the rounds found of one Function."""

from collections import Counter
from dataclasses import dataclass, field

from ..report import PREVENTED, SUMMARY, Report, shown, what_was, wrapped
from ..said import Name, Said, listed

NO_GRADIENT = "no input required a gradient"
CALLS = "{n} call", "{n} calls"  # of one, of another number
PATTERNS = "{n} pattern examined", "{n} patterns examined"
LEFT_OUT = "{calls} left out ({why})"


@dataclass(repr=False)
class Visit(Report):
    """The report on one Function, over all patterns with which it was examined.

    full_name: with its module
    defined:   (file, line) of its backward, or None
    first:     what ran when it was applied first: a test, if pytest runs
    calls:     how often it was applied
    left:      how many calls were not examined, by reason
    patterns:  how many of its patterns were examined
    called, given: where the call stands of which the worst was found, and what it was given
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
        """How much of it was examined: `Said`."""
        parts = [number(self.calls, CALLS), number(self.patterns, PATTERNS)]
        parts += [Said(LEFT_OUT, calls=number(n, CALLS), why=why) for why, n in self.left.items()]
        return listed(parts)

    def add(self, other):
        """Count in another Function of which the same is said."""
        self.calls, self.patterns = self.calls + other.calls, self.patterns + other.patterns
        self.left, self.judged = self.left + other.left, least(self.judged + other.judged)

    @property
    def missed(self):
        """Why not all of it was examined that could have been, or ""."""
        harmless = NO_GRADIENT if self.examined else None
        inputs = [
            Said("`{x}`: {why}", x=Name(one.input), why=one.why or PREVENTED)
            for one in self.unjudged
        ]
        return str(listed([*(why for why in self.left if why != harmless), *inputs]))

    @property
    def unjudged(self):
        """What was judged nowhere, of inputs that are neither constants nor accused."""
        known = {finding.input for finding in self.findings if finding.severity != "note"}
        return [one for one in self.judged if not (one.points or one.meant or one.input in known)]

    def text(self, translate=str):
        """Notes are left out: a float32 program has one for each Function."""
        serious = [finding for finding in self.findings if finding.severity != "note"]
        head = Report(self.name, serious).headline() if self.examined else None
        head = head or Said(SUMMARY, name=Name(self.name), found="not examined")
        about = [self.counts(), *what_was(self.unjudged)]
        about[1:1] = [Said("first in {test}", test=self.first)] if self.first else []
        about += [Said("called {place}", place=self.called)] if self.called else []
        about += [Said("given {these}", these=self.given)] if self.given else []
        lines = [line for one in about for line in wrapped(one.text(translate), "  ", "    ")]
        lines += [line for finding in serious for line in shown(finding, translate)]
        return "\n".join([head.text(translate), *lines])


def least(judged):
    """Of each input, that `Judged` of which the least was judged."""
    found = {}
    for one in judged:
        before = found.setdefault(one.input, one)
        found[one.input] = min(one, before, key=lambda j: (j.points > 0, j.points, j.order))
    return list(found.values())


def number(n, templates):
    """`Said`: the first template if it is one, else the second."""
    return Said(templates[n != 1], n=n)
