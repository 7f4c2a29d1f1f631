"""How much work an examination may be, and the line on a terminal that says it is under way.

What is measured of a gradient is bounded by counting, so that a report is always the same; the
search for lines has a `Budget`.
"""

import contextlib
import sys
import time

import torch
from torch.utils.flop_counter import flop_registry

from ..report import note
from .private import Mode

PER_ELEMENT = 7  # calls of forward, at least
AN_OPERATION = 2000  # takes as long as so many elements of its output
SECONDS = 2.0  # before a line is shown, and between two
SHOWN = []  # the progress of each examination under way, or None without a terminal
STOPPED_LOOKING = note(
    "stopped-looking",
    "The search for the line to change has stopped after {runs} runs and {seconds:.0f} s; the "
    "verdict stands.",
    look="smaller inputs, or a larger budget: examine(..., budget=Budget(runs, seconds))",
)


class Budget:
    """What the search for lines may cost in one examination: runs of the function, and seconds."""

    def __init__(self, runs=2000, seconds=10.0):
        self.runs, self.seconds, self.spent, self.start = runs, seconds, 0, time.monotonic()

    def spend(self, runs=1):
        self.spent += runs

    @property
    def is_spent(self):
        return self.spent >= self.runs or time.monotonic() - self.start > self.seconds

    def findings(self):
        """The note that the search has stopped, if it has: for the end of the report."""
        if self.spent and self.is_spent:
            yield STOPPED_LOOKING(runs=self.spent, seconds=time.monotonic() - self.start)


class Work(Mode):
    """Counts as FlopCounterMode does, but leaves modules alone, which backward may call."""

    def __init__(self):
        super().__init__()
        self.flops = self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        size = result.numel() if isinstance(result, torch.Tensor) else 0
        self.elements += AN_OPERATION + size
        return result


def calls_a_second(subject):
    """How often forward can be called in about a second, by what it computes."""
    with Work() as work:
        subject.forward(subject.values)
    return int(3e8 / (work.elements + work.flops / 10))


def calls_allowed(subject):
    """So many calls of forward a diagnosis may take: three times those until then, or a second."""
    return max(3 * subject.calls, subject.calls_a_second)


def shared(calls, inputs):
    """How many of so many inputs are examined element by element, and how many elements of each."""
    inputs = max(1, min(inputs, calls // (16 * PER_ELEMENT)))
    return inputs, min(512, max(16, calls // (PER_ELEMENT * inputs)))


class Progress:
    """The last line of a terminal, for as long as an examination takes."""

    def __init__(self, stream):
        self.stream, self.start, self.due = stream, time.monotonic(), time.monotonic() + SECONDS

    def write(self, text):
        with contextlib.suppress(Exception):  # the terminal is gone
            self.stream.write(f"\r{text}\033[K")  # what stood there before is erased
            self.stream.flush()

    def show(self, text):
        now = time.monotonic()
        if now > self.due:
            self.due = now + SECONDS / 4
            self.write(f"{text}, {now - self.start:.0f} s")


@contextlib.contextmanager
def progress():
    """Whoever waits more than two seconds is told so, if standard error is a terminal."""
    terminal = getattr(sys.stderr, "isatty", lambda: False)()
    SHOWN.append(Progress(sys.stderr) if terminal else None)
    try:
        yield
    finally:
        line = SHOWN.pop()
        if line and line.due > line.start + SECONDS:  # it has been shown
            line.write("")


def tell(subject):
    """Show how far the examination of this subject is."""
    if SHOWN and SHOWN[-1]:
        SHOWN[-1].show(f"doctor: {subject.label} under examination, {subject.calls} calls")
