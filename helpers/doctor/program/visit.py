"""What the rounds found of one Function."""

import itertools
import textwrap
from collections import Counter
from dataclasses import dataclass, field

from ..report import NOT_COMPARED, Report

NO_GRADIENT = "no input required a gradient"


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

    @property
    def counts(self):
        said = [number(self.calls, "call"), f"{number(self.patterns, 'pattern')} examined"]
        said += [f"{number(n, 'call')} left out ({why})" for why, n in self.left.items()]
        return ", ".join(said)

    @property
    def missed(self):
        """Why not all of it was examined that could have been, or ""."""
        harmless = NO_GRADIENT if self.examined else None
        inputs = [f"`{one.input}`: {one.why or NOT_COMPARED}" for one in self.unjudged]
        return ", ".join([*(why for why in self.left if why != harmless), *inputs])

    @property
    def unjudged(self):
        """What was judged nowhere, of inputs that are neither constants nor accused."""
        known = {finding.input for finding in self.findings if finding.severity != "note"}
        return [one for one in self.judged if not (one.points or one.meant or one.input in known)]

    def __repr__(self):
        """Notes are left out: a float32 program has one for each Function."""
        serious = [finding for finding in self.findings if finding.severity != "note"]
        head, *rest = str(Report(self.name, serious)).split("\n")
        head = head if self.examined else f"{self.name}: not examined"
        lines = [self.counts, self.first and f"first in {self.first}"]
        lines += [f"not judged: `{one.input}` ({one.why or NOT_COMPARED})" for one in self.unjudged]
        lines += [self.called and f"called {self.called}", self.given and f"given {self.given}"]
        indents = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
        wrapped = [textwrap.wrap(t, 96, break_long_words=False, **indents) for t in lines if t]
        return "\n".join([head, *itertools.chain(*wrapped), *rest])


def number(n, what):
    return f"{n} {what}{'' if n == 1 else 's'}"
