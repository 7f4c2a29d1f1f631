"""How much work an examination may be, counted, not timed: a report is always the same.

And the line that shows on a terminal that an examination is under way.
"""

import contextlib
import sys
import time

import torch
from torch.utils.flop_counter import flop_registry

from .private import Mode

PER_ELEMENT = 7  # calls of forward, at least
AN_OPERATION = 2000  # takes as long as so many elements of its output


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


def calls_allowed(subject):
    """So many calls of forward a diagnosis may take: three times those until then, or a second."""
    return max(3 * subject.calls, subject.calls_a_second)


def calls_a_second(subject):
    with Work() as work:
        subject.forward(subject.values)
    return int(3e8 / (work.elements + work.flops / 10))


def shared(calls, inputs):
    """How many of so many inputs are examined element by element, and how many elements of each."""
    inputs = max(1, min(inputs, calls // (16 * PER_ELEMENT)))
    return inputs, min(512, max(16, calls // (PER_ELEMENT * inputs)))


class Budget:
    """What looking for lines may cost, in all: runs of the function, and seconds."""

    def __init__(self, runs=2000, seconds=10.0):
        self.runs, self.ends, self.known = runs, time.monotonic() + seconds, []

    def spend(self, runs=1):
        self.runs -= runs

    @property
    def is_spent(self):
        return self.runs <= 0 or time.monotonic() > self.ends


SECONDS = 2.0
SHOWN = []


class Line:
    """The last line of a terminal, for as long as an examination takes."""

    def __init__(self, stream):
        self.stream, self.start, self.last, self.width = stream, time.monotonic(), 0.0, 0

    def write(self, text):
        with contextlib.suppress(Exception):  # the terminal is gone
            self.stream.write("\r" + text.ljust(self.width))
            self.stream.flush()
        self.width = len(text)

    def show(self, text):
        now = time.monotonic()
        if now - self.start > SECONDS and now - self.last > 0.5:
            self.last = now
            self.write(f"{text}, {now - self.start:.0f} s")


@contextlib.contextmanager
def progress():
    """Whoever waits more than two seconds is told so, if standard error is a terminal."""
    terminal = getattr(sys.stderr, "isatty", lambda: False)()
    SHOWN.append(Line(sys.stderr) if terminal else None)
    try:
        yield
    finally:
        line = SHOWN.pop()
        if line and line.width:
            line.write("")  # blanks over what was there
            line.write("")  # and back to the start


def tell(subject):
    if SHOWN and SHOWN[-1]:
        SHOWN[-1].show(f"doctor: {subject.label} under examination, {subject.calls} calls")
