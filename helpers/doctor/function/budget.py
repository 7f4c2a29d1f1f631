"""What an examination may cost.

What is measured of a gradient is bounded by counting, so that a report is always the
same; the search for lines has a `Budget`.
"""

import time

import torch
from torch.utils.flop_counter import flop_registry

from ..report import note
from ..words import N_, _
from .private import Mode

PER_ELEMENT = 7  # calls of forward, at least
AN_OPERATION = 2000  # takes as long as this many elements of its output
AT_EASE, CALLS_A_RUN, LEAST = 10, 8, 40  # seconds, estimated; calls of forward; runs
STOPPED_LOOKING = note(
    "stopped-looking",
    "The search for the line to change stopped {when}; the verdict stands.",
    look="smaller inputs; or more of both: `lines=Budget(runs, seconds)`",
)


AFTER_RUNS = N_("when backward had run as often as its budget allows")
BY_THE_CLOCK = N_(
    "by the clock, before it had tried all: a machine with less to do may find more"
)


class Budget:
    """What the search for lines may cost in one examination.

    runs: of backward, with an edit; of a slow function, so many fewer that they take
          some ten seconds on an idle machine, by what is counted of its work
    seconds: since the examination began; the last bound, so that the words do not
          depend on how busy a machine is

    An examination takes `afresh`, so that one Budget may be given to several.
    """

    def __init__(self, runs=2000, seconds=60.0):
        self.runs, self.seconds, self.start = runs, seconds, time.monotonic()
        self.spent, self.stopped = 0, ""
        self.known = []  # edits found for one gradient, tried first for the next

    def afresh(self):
        """The same, of which nothing is spent."""
        return Budget(self.runs, self.seconds)

    def fit(self, subject):
        """No more runs than this function may take."""
        self.runs = min(
            self.runs, max(LEAST, AT_EASE * subject.calls_a_second // CALLS_A_RUN)
        )

    @property
    def is_spent(self):
        """Must the search stop? The report then says that it did."""
        if self.spent >= self.runs:
            self.stopped = AFTER_RUNS
        elif time.monotonic() - self.start > self.seconds:
            self.stopped = BY_THE_CLOCK
        return bool(self.stopped)

    def findings(self):
        """The note that the search has stopped, if it has."""
        if self.stopped:
            seconds = round(time.monotonic() - self.start)
            seen = {"runs": self.spent, "seconds": seconds}
            yield STOPPED_LOOKING(values=seen, when=_(self.stopped))


class Work(Mode):
    """Counts as FlopCounterMode does, but leaves modules alone."""

    def __init__(self):
        super().__init__()
        self.flops = self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        size = result.numel() if torch.is_tensor(result) else 0
        self.elements += AN_OPERATION + size
        return result


def calls_a_second(subject):
    """How often forward can be called in about a second, by its operations."""
    with Work() as work:
        subject.forward()
    return int(3e8 / (work.elements + work.flops / 10))


def affordable(subject, inputs, points=1):
    """How many of these inputs, and how many elements, a diagnosis can examine.

    It may call forward three times as often as until then, or for a second.
    """
    calls = max(3 * subject.counts["calls"], subject.calls_a_second) // points
    inputs = max(1, min(inputs, calls // (16 * PER_ELEMENT)))
    return inputs, min(512, max(16, calls // (PER_ELEMENT * inputs)))
