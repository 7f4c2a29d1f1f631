"""Rounds: every Function that a running program applies is examined, with the inputs it was given.

    from helpers.doctor import rounds

    with rounds() as found:          # a context manager, also a decorator
        train_step(model, batch)     # your program, unchanged
    print(found)                     # one report a Function, and the line that called it
    found.raise_if_wrong()

Inside, the inputs of a call are copied, once for each Function and pattern of shapes, dtypes and
flags. They are examined at the end of the block, within its seconds, and the copies are let go.

It does not see Functions written in C++, operators of torch.library that take lists of tensors,
calls inside the transforms of torch.func, code that torch.compile has compiled, other processes,
nor a branch that the first call of a pattern does not take. In a program of several processes, skip
the Functions that communicate: their examination would wait for the other processes.
"""

import contextlib
import fnmatch
import functools
import inspect
import itertools
import sys
import textwrap
import time
import weakref
from collections import Counter
from dataclasses import dataclass, field

import torch

from ..circumstances.forward import NOT_EXAMINED
from ..function.calls import Call, autocasts, full_name, heard_by, kind, pattern
from ..function.private import LOCK, has_numbers, is_a_users, operator, self_test
from ..function.surroundings import of_a_signal
from ..function.tensors import tensors
from ..report import SEVERITIES, Report, WrongGradientError
from .bounds import CRASHED, EXAMINING, LEAST, SECONDS, StoppedError, bounded, reports, warm_up

TOO_LARGE = "too large for max_bytes"
TOO_MANY = "more patterns than max_patterns"
NO_GRADIENT = "no input required a gradient"
NO_COPY = "the inputs could not be copied"
NO_NUMBERS = "the inputs hold no numbers: a compiler traced the call"
RAISED = "it raised in the program, too"
BROKE_OFF = "the program raised before the end of the block"
NO_TIME = "no seconds were left"
INTERRUPTED = "interrupted"
NOTHING = {"nothing-to-examine", "no-output"}  # codes: the program had no use for a gradient, too


@dataclass(repr=False)
class Visit(Report):
    """The report on one Function, over all patterns with which it was examined.

    full_name: with its module
    defined:   (file, line) of its backward, or None
    calls:     how often it was applied
    patterns:  how many of its patterns were examined
    called, given: where the call stands of which the worst was found, and what it was given
    first:     what ran when it was applied first: a test, if pytest runs
    left:      how many calls were not examined, by reason
    """

    full_name: str = ""
    defined: tuple | None = None
    calls: int = 0
    patterns: int = 0
    called: str = ""
    given: str = ""
    first: str = ""
    left: dict = field(default_factory=dict)

    @property
    def counts(self):
        said = [number(self.calls, "call"), f"{number(self.patterns, 'pattern')} examined"]
        said += [f"{number(n, 'call')} left out ({why})" for why, n in self.left.items()]
        return ", ".join(said)

    @property
    def missed(self):
        """Why not all of it was examined that could have been, or ""."""
        why = [w for w in self.left if not self.examined or w not in (NO_GRADIENT, RAISED)]
        return ", ".join(why)

    def __repr__(self):
        """Notes are left out: a float32 program has one for each Function."""
        serious = [finding for finding in self.findings if finding.severity != "note"]
        head, *rest = str(Report(self.name, serious)).split("\n")
        head = head if self.examined else f"{self.name}: not examined"
        lines = [self.counts, self.first and f"first in {self.first}"]
        lines += [self.called and f"called {self.called}", self.given and f"given {self.given}"]
        indents = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
        wrapped = [textwrap.wrap(t, 96, break_long_words=False, **indents) for t in lines if t]
        return "\n".join([head, *itertools.chain(*wrapped), *rest])


def number(n, what):
    return f"{n} {what}{'' if n == 1 else 's'}"


class Found:
    """What the rounds found: `visits`, one `Visit` for each Function, those with errors first."""

    def __init__(self):
        self.visits, self.ended = [], False

    @property
    def ok(self):
        return all(visit.ok for visit in self.visits)

    @property
    def summary(self):
        if not self.ended:
            return "Rounds: still under way; what was found is known at the end of the block"
        wrong = sum(not visit.ok for visit in self.visits)
        return f"Rounds: {number(len(self.visits), 'Function')}, {wrong or 'none'} wrong"

    def __repr__(self):
        return "\n".join([self.summary, *map(str, self.visits)])

    def raise_if_wrong(self):
        """Raise WrongGradientError if there is an error; otherwise return what was found."""
        if not self.ok:
            raise WrongGradientError(str(self))
        return self


@dataclass
class Pattern:
    """The calls that have one pattern; the first of them is kept, unless there is a reason."""

    calls: int = 0
    kept: Call | None = None
    reason: str = ""
    report: Report | None = None


@dataclass
class Record:
    """What is noted of one Function while the program runs, and found when it is examined."""

    name: str
    full_name: str
    defined: tuple | None
    first: str
    calls: int = 0
    patterns: dict = field(default_factory=dict)
    left: Counter = field(default_factory=Counter)

    def waiting(self):
        """Its patterns that are still to be examined, those with small inputs first."""
        kept = [p for p in self.patterns.values() if p.kept and not p.report and not p.reason]
        return sorted(kept, key=lambda p: p.kept.size)

    def examine(self, seconds, faithful, show):
        """Examine them, for so many seconds."""
        waiting = self.waiting()
        work = functools.partial(reports, [p.kept for p in waiting], faithful)
        try:
            for k, waiting[k].report, waiting[k].reason in bounded(work, seconds, show):
                pass
        except StoppedError as stopped:
            rest = self.waiting()
            if stopped.crashed and rest:
                rest.pop(0).report = Report(self.name, [CRASHED(how=str(stopped))])
                stopped = "an earlier call ended the process"
            for p in rest:
                p.reason = str(stopped)

    def visit(self):
        patterns = sorted(self.patterns.values(), key=lambda p: p.kept.size if p.kept else 0)
        findings, done, left = {}, [], Counter(self.left)
        for p in patterns:
            if p.report and {f.code for f in p.report.findings} & NOTHING:
                p.reason, p.report = p.report.findings[0].message.rstrip("."), None
            if p.reason:
                left[p.reason] += p.calls
            if p.report:
                done.append(p)
                for k in p.kept.shared:
                    what = f"The gradient of argument {k} is"
                    why = "another argument holds the same tensor"
                    p.report.findings.append(NOT_EXAMINED(f"argument {k}", what=what, why=why))
                for finding in p.report.findings:
                    findings.setdefault((finding.code, finding.input, finding.through), finding)
        worst = min(done, key=lambda p: (p.report.ok, not p.report.findings), default=None)
        called, given = (worst.kept.called, worst.kept.given) if worst else ("", "")
        findings = sorted(findings.values(), key=lambda f: list(SEVERITIES).index(f.severity))
        return Visit(
            self.name, findings, bool(done), self.full_name, self.defined, self.calls, len(done),
            called, given, self.first, dict(left),
        )  # fmt: skip


def rounds(
    *, seconds=SECONDS, max_bytes=2**28, max_patterns=32, only=(), skip=(), faithful=()
):  # fmt: skip
    """Examine every Function that is applied inside the `with` block; yields a `Found`.

    seconds:   how long all examinations may take, at the end of the block. Each Function has its
               share; what it did not come to is said.
    max_bytes: how much memory the copies of inputs may take. The largest calls are left out first,
               and the report says so.
    max_patterns: how many patterns of one Function are examined. Calls have the same pattern if
               they have the same shapes, dtypes and flags; floats may differ.
    only, skip: Functions, or their names (with or without the module; * stands for anything), that
               alone are examined, or are left out. PyTorch's own always are.
    faithful:  those that are not meant to be the derivative of their forward, as in `examine`.

    Where the system can fork and no GPU is in use, each Function is examined in a child process: a
    crash or an endless loop there is reported, and ends nothing else.
    The program's numbers, its random state and the `.grad` of its tensors are not changed. Tensors
    that an argument holds in a closure or a module are not copied: they have the values of the end
    of the block, and what they lack in precision the gradient is not blamed for.

    A decorated function makes rounds at each call, and raises WrongGradientError if there is an
    error. If the block raises, nothing is examined.
    Raises BlindError if this version of PyTorch does not let the doctor see Functions.
    """
    limits = {"seconds": seconds, "max_bytes": max_bytes, "max_patterns": max_patterns}
    for name, value in limits.items():
        if not isinstance(value, (int, float)) or not value >= 0:
            raise ValueError(f"{name} must be a number from 0 on, got {value!r}")
    names = {"only": only, "skip": skip, "faithful": faithful}
    return Rounds(**limits, **{name: listed(name, given) for name, given in names.items()})


def listed(name, given):
    given = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
    for item in given:
        if not isinstance(item, (str, type)):
            raise TypeError(f"{name} must hold Functions or their names, got {item!r}")
    return [item if isinstance(item, str) else full_name(item) for item in given]


class Rounds:
    def __init__(self, seconds, max_bytes, max_patterns, only, skip, faithful):
        self.options = seconds, max_bytes, max_patterns, only, skip, faithful
        self.seconds, self.max_bytes, self.max_patterns = seconds, max_bytes, max_patterns
        self.only, self.skip, self.faithful = only, skip, faithful
        self.during = str  # called for what runs at the moment
        self.say = functools.partial(print, file=sys.stderr, flush=True)

    def __enter__(self):
        self_test()
        self.known, self.records, self.size = weakref.WeakKeyDictionary(), {}, 0
        self.found, self.skipped, self.listening = Found(), set(), contextlib.ExitStack()
        self.listening.enter_context(heard_by(self.hear))
        return self.found

    def __exit__(self, kind, error, trace):
        self.listening.close()
        records, self.known, self.records = list(self.records.values()), {}, {}
        try:
            self.examine(records, why=BROKE_OFF if kind else "")
        finally:
            visits = [record.visit() for record in records]
            self.found.visits = sorted(visits, key=lambda visit: visit.ok)
            self.found.ended = True

    def __call__(self, function):
        @functools.wraps(function)
        def with_rounds(*args, **kwargs):
            with Rounds(*self.options) as found:
                result = function(*args, **kwargs)
            found.raise_if_wrong()
            return result

        return with_rounds

    # --- while the program runs -------------------------------------------------------------------

    def hear(self, cls, args):
        if EXAMINING or not is_a_users(cls):
            return
        with LOCK:
            if cls not in self.known:
                self.known[cls] = self.record(cls)
            record = self.known[cls]
            if record is not None:
                record.calls += 1
                return self.note(record, cls, args)

    def record(self, cls):
        name, op = full_name(cls), operator(cls)
        if among(name, self.skip) or self.only and not among(name, self.only):
            self.skipped.add(name)
            return None
        code = getattr(inspect.unwrap(cls.backward), "__code__", None)
        defined = (code.co_filename, code.co_firstlineno) if code and not op else None
        new = Record(name if op else cls.__name__, name, defined, self.during())
        return self.records.setdefault(kind(cls), new)

    def note(self, record, cls, args):
        if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            record.left[NO_GRADIENT] += 1
            return
        key = pattern(args), autocasts()
        if key not in record.patterns:
            if len(record.patterns) >= self.max_patterns:
                record.left[TOO_MANY] += 1
                return
            record.patterns[key] = self.kept(cls, args)
        record.patterns[key].calls += 1
        return functools.partial(self.take_back, record, key)

    def take_back(self, record, key):
        """The call raised, so that it says nothing of the gradient."""
        with LOCK:
            record.left[RAISED] += 1
            record.patterns[key].calls -= 1
            if not record.patterns[key].calls:
                gone = record.patterns.pop(key)
                self.size -= gone.kept.size if gone.kept else 0

    def kept(self, cls, args):
        found = [t for _, t in tensors(args)]
        if not all(map(has_numbers, found)):
            return Pattern(reason=NO_NUMBERS)
        size = sum(t.numel() * t.element_size() for t in found)
        if not self.has_room(size):
            return Pattern(reason=TOO_LARGE)
        try:
            call = Call.of(cls, args, {}, size)
        except Exception as error:  # of a subclass of Tensor, for example
            if of_a_signal(error):
                raise
            return Pattern(reason=NO_COPY)
        self.size += size
        return Pattern(kept=call)

    def has_room(self, size):
        """Is there room for so many bytes, if larger calls make way?"""
        patterns = [p for r in self.records.values() for p in r.patterns.values() if p.kept]
        patterns.sort(key=lambda p: p.kept.size)
        larger = [p for p in patterns if p.kept.size > size]
        if self.size + size - sum(p.kept.size for p in larger) > self.max_bytes:
            return False
        while self.size + size > self.max_bytes:
            largest = larger.pop()
            self.size -= largest.kept.size
            largest.kept, largest.reason = None, TOO_LARGE
        return True

    # --- afterwards -------------------------------------------------------------------------------

    def examine(self, records, why):
        """Examine each Function, within its share of the seconds; those with small inputs first."""
        waiting = [record for record in records if record.waiting()]
        waiting.sort(key=lambda record: sum(p.kept.size for p in record.waiting()))
        try:
            if waiting and not why:
                warm_up()
            ends = time.monotonic() + self.seconds
            for k, record in enumerate(waiting):
                left = ends - time.monotonic()
                share = max(left / (len(waiting) - k), min(left, LEAST))
                if why or left <= 0:
                    for p in record.waiting():
                        p.reason = why or NO_TIME
                    continue
                text = f"doctor: examining {k + 1} of {len(waiting)}: `{record.full_name}`"
                faithful = not among(record.full_name, self.faithful)
                record.examine(share, faithful, functools.partial(self.say, text))
        finally:
            for record in waiting:
                for p in record.waiting():  # somebody has pressed Ctrl-C
                    p.reason = INTERRUPTED


def among(name, patterns):
    """Does "module.Class" match one of them? The module may be left out."""
    short = [name.split(".")[-1], name.split("::")[-1], name]
    return any(fnmatch.fnmatchcase(n, p) for n in short for p in patterns)
