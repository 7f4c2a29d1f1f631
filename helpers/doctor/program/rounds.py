"""Rounds: every Function that a running program applies is examined, with the inputs it was given.

    from helpers.doctor import rounds

    with rounds() as found:          # a context manager, also a decorator
        train_step(model, batch)     # your program, unchanged
    print(found)                     # one report a Function, and the line that called it
    found.raise_if_wrong()

    python -m helpers.doctor --run train.py --epochs 1
    pytest -p helpers.doctor.plugin --doctor

Inside, the inputs of a call are copied, once for each Function and pattern of shapes, dtypes and
flags. They are examined at the end of the block, and the copies are let go.

It does not see Functions written in C++, operators of torch.library that take lists of tensors,
calls inside the transforms of torch.func, code that torch.compile has compiled, other processes,
nor a branch that the first call of a pattern does not take. In a program of several processes, skip
the Functions that communicate: their examination would wait for the other processes.
"""

import contextlib
import fnmatch
import functools
import itertools
import textwrap
import weakref
from collections import Counter
from dataclasses import dataclass, field

import torch

from ..circumstances.examination import Examination
from ..circumstances.forward import NOT_EXAMINED
from ..circumstances.trials import TRIALS
from ..function.calls import Call, autocasts, full_name, heard_by, kind, pattern
from ..function.private import LOCK, has_numbers, is_a_users, operator, self_test
from ..function.surroundings import of_a_signal, undisturbed
from ..function.tensors import tensors
from ..report import SEVERITIES, Report, WrongGradientError

TOO_LARGE = "too large for max_bytes"
TOO_MANY = "more patterns than max_patterns"
NO_GRADIENT = "no input required a gradient"
NO_COPY = "the inputs could not be copied"
NO_NUMBERS = "the inputs hold no numbers: a compiler traced the call"
RAISED = "it raised in the program, too"
BROKE_OFF = "the program raised before the end of the block"
EXAMINING = []  # not empty during an examination, whose own calls are not noted


@dataclass(repr=False)
class Visit(Report):
    """The report on one Function, over all patterns with which it was examined.

    full_name: with its module
    calls:    how often it was applied
    patterns: how many of its patterns were examined
    called, given: where the call stands of which the worst was found, and what it was given
    first:    what ran when it was applied first: a test, if pytest runs
    left:     how many calls were not examined, by reason
    """

    full_name: str = ""
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

    def __repr__(self):
        """Notes are left out: a float32 program has one for each Function."""
        serious = [finding for finding in self.findings if finding.severity != "note"]
        head, *rest = str(Report(self.name, serious)).split("\n")
        head = head if self.patterns else f"{self.name}: not examined"
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


@dataclass
class Record:
    """What is noted of one Function while the program runs."""

    name: str
    full_name: str
    first: str
    calls: int = 0
    patterns: dict = field(default_factory=dict)
    left: Counter = field(default_factory=Counter)


def rounds(*, max_bytes=2**28, max_patterns=32, only=(), skip=(), faithful=()):
    """Examine every Function that is applied inside the `with` block; yields a `Found`.

    max_bytes: how much memory the copies of inputs may take. The largest calls are left out first,
               and the report says so.
    max_patterns: how many patterns of one Function are examined. Calls have the same pattern if
               they have the same shapes, dtypes and flags; floats may differ.
    only, skip: Functions, or their names (with or without the module; * stands for anything), that
               alone are examined, or are left out. PyTorch's own always are.
    faithful:  those that are not meant to be the derivative of their forward, as in `examine`.

    The program's numbers, its random state and the `.grad` of its tensors are not changed. Tensors
    that an argument holds in a closure or a module are not copied: they have the values of the end
    of the block, and what they lack in precision the gradient is not blamed for.

    A decorated function makes rounds at each call, and raises WrongGradientError if there is an
    error. If the block raises, nothing is examined.
    """
    for name, value in (("max_bytes", max_bytes), ("max_patterns", max_patterns)):
        if not isinstance(value, (int, float)) or value < 0:
            raise ValueError(f"{name} must be a number from 0 on, got {value!r}")
    names = {"only": only, "skip": skip, "faithful": faithful}
    return Rounds(max_bytes, max_patterns, **{k: listed(k, v) for k, v in names.items()})


def listed(name, given):
    given = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
    for item in given:
        if not isinstance(item, (str, type)):
            raise TypeError(f"{name} must hold Functions or their names, got {item!r}")
    return [item if isinstance(item, str) else full_name(item) for item in given]


class Rounds:
    def __init__(self, max_bytes, max_patterns, only, skip, faithful):
        self.options = max_bytes, max_patterns, only, skip, faithful
        self.max_bytes, self.max_patterns, self.only, self.skip, self.faithful = self.options
        self.during = str  # called for what runs at the moment

    def __enter__(self):
        self_test()
        self.known, self.records, self.size = weakref.WeakKeyDictionary(), {}, 0
        self.found, self.listening = Found(), contextlib.ExitStack()
        self.listening.enter_context(heard_by(self.hear))
        return self.found

    def __exit__(self, kind, error, trace):
        self.listening.close()
        records, self.known, self.records = self.records.values(), {}, {}
        visits = [self.visit(record, broke_off=kind is not None) for record in records]
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
                return self.note(record, cls, args, {})

    def record(self, cls):
        name, op = full_name(cls), operator(cls)
        if among(name, self.skip) or self.only and not among(name, self.only):
            return None
        new = Record(name if op else cls.__name__, name, self.during())
        return self.records.setdefault(kind(cls), new)

    def note(self, record, cls, args, kwargs):
        given = (*args, *kwargs.values())
        if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in given):
            record.left[NO_GRADIENT] += 1
            return
        key = pattern(args), pattern(kwargs), autocasts()
        if key not in record.patterns:
            if len(record.patterns) >= self.max_patterns:
                record.left[TOO_MANY] += 1
                return
            record.patterns[key] = self.kept(cls, args, kwargs)
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

    def kept(self, cls, args, kwargs):
        found = [t for _, t in tensors((args, kwargs))]
        if not all(map(has_numbers, found)):
            return Pattern(reason=NO_NUMBERS)
        size = sum(t.numel() * t.element_size() for t in found)
        if not self.has_room(size):
            return Pattern(reason=TOO_LARGE)
        try:
            call = Call.of(cls, args, kwargs, size)
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

    def visit(self, record, broke_off):
        left, done = record.left, []
        for p in record.patterns.values():
            if p.kept and broke_off:
                p.kept, p.reason = None, BROKE_OFF
            if p.kept:
                try:
                    report = examined(p.kept, not among(record.full_name, self.faithful))
                    for k in p.kept.shared:
                        what = f"The gradient of argument {k} is"
                        why = "another argument holds the same tensor"
                        report.findings.append(NOT_EXAMINED(f"argument {k}", what=what, why=why))
                    done.append((report, (p.kept.called, p.kept.given)))
                except Exception as error:
                    if of_a_signal(error):
                        raise
                    p.reason = f"the doctor raised {type(error).__name__}: {error}"
            if p.reason:
                left[p.reason] += p.calls
        findings = {}
        for report, _ in done:
            for finding in report.findings:
                findings.setdefault((finding.code, finding.input, finding.through), finding)
        order = sorted(done, key=lambda pair: (pair[0].ok, not pair[0].findings))
        called, given = order[0][1] if order else ("", "")
        findings = sorted(findings.values(), key=lambda f: list(SEVERITIES).index(f.severity))
        return Visit(
            record.name, findings, bool(done), record.full_name, record.calls, len(done), called,
            given, record.first, left,
        )  # fmt: skip


def among(name, patterns):
    """Does "module.Class" match one of them? The module may be left out."""
    short = [name.split(".")[-1], name.split("::")[-1], name]
    return any(fnmatch.fnmatchcase(n, p) for n in short for p in patterns)


def examined(call, faithful):
    """The report on one call."""
    EXAMINING.append(call)
    try:
        with undisturbed(), unchanged(call):
            # What is held in low precision cannot be doubled, nor can what it makes.
            held = [t.dtype for t in call.held() if t.is_floating_point() or t.is_complex()]
            low = any(torch.finfo(dtype).eps > 1e-10 for dtype in held)
            fn, args, kwargs = call.again()
            exam = Examination(fn, args, kwargs, faithful, as_given=low)
            exam.of_a_program = True
            exam.subject.leaves = set()  # the copies are, what was copied perhaps not
            if exam.subject.lower and call.autocasts:
                exam.subject.lower = call.autocasts[0][1]  # in which the outcome is precise
            return exam.report(TRIALS)
    finally:
        EXAMINING.remove(call)


@contextlib.contextmanager
def unchanged(call):
    """Afterwards the tensors that arguments hold are what they were, and the class, too."""
    held = [(t, t.detach().clone(), t.grad if t.is_leaf else None) for t in call.held()]
    attributes = dict(vars(call.cls))
    for tensor, _, grad in held:
        if grad is not None:
            tensor.grad = None
    try:
        yield
    finally:
        for tensor, value, grad in held:
            if not torch.equal(tensor, value):
                with torch.no_grad():
                    tensor.copy_(value)
            if tensor.is_leaf:
                tensor.grad = grad
        for name, value in vars(call.cls).copy().items():
            if name not in attributes:
                delattr(call.cls, name)
            elif value is not attributes[name]:
                setattr(call.cls, name, attributes[name])
