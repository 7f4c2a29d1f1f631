"""Rounds: every Function that a running program applies is examined, with the inputs it was given.

    from doctor import rounds

    with rounds() as found:
        train_step(model, batch)     # your program, unchanged
    print(found)                     # one report a Function, and the line that called it
    found.raise_if_wrong()

Inside, the inputs of a call are copied: those of the first call of each Function and pattern of
shapes, dtypes and flags. With `more=True` these are two more: the first call whose output is not
finite, and the last one. They are examined at the end of the block, within its seconds, and the
copies are let go. What is wrong in another call of the same pattern only is not seen.

It does not see Functions written in C++, operators of torch.library that take lists of tensors,
calls inside the transforms of torch.func, other processes, nor a branch that the first call of a
pattern does not take. Compiled code breaks its graph at each Function (seen with torch 2.15), so
what was compiled with `fullgraph=True` raises. In a program of several processes, skip the
Functions that communicate: their examination would wait for the other processes.
"""

import builtins
import contextlib
import fnmatch
import functools
import inspect
import re
import sys
import time
import weakref
from dataclasses import dataclass

import torch

from ..function.calls import Call, autocasts, full_name, heard_by, kind, pattern
from ..function.private import LOCK, has_numbers, is_a_users, operator, self_test
from ..function.raised import of_a_signal
from ..function.tensors import tensors, values_of
from ..report import SEVERITIES, Report, WrongGradientError
from ..said import Said, listed
from ..trials.forward import NOT_EXAMINED
from .bounds import EXAMINING, LEAST, OVER, SECONDS, bounded, reports, warm_up
from .visit import NO_GRADIENT, Visit, least, number

MOST = 32  # patterns of one Function
FUNCTIONS = "{n} Function", "{n} Functions"  # of one, of another number
UNDER_WAY = "Rounds: still under way; what was found is known at the end of the block"


@dataclass
class Pattern:
    """The calls that have one pattern; some of them are kept, to be examined.

    Another `Pattern` holds each further call that is examined, with no calls of its own.
    outcome: the report on it, or why there is none
    """

    calls: int = 0
    kept: Call | None = None
    outcome: Report | str | None = None


def waiting(patterns):
    """Those that are still to be examined, those with small inputs first."""
    return sorted((p for p in patterns if p.outcome is None), key=lambda p: p.kept.size)


def examine(patterns, seconds, faithful, show, child=True):
    """Examine the patterns of one Function, for at most this many seconds."""
    ends = time.monotonic() + seconds
    while (some := waiting(patterns)) and (left := ends - time.monotonic()) > 0:
        work = functools.partial(reports, [p.kept for p in some], faithful)
        for k, outcome in bounded(work, left, show, child):
            if k < len(some):  # else it ended when only a line was looked for
                some[k].outcome = outcome
    for p in waiting(patterns):
        p.outcome = OVER


def conclude(visit, patterns, advice):
    """Fill in what was found for each pattern, once; nothing of the program is kept."""
    found, judged, worst = {}, [], None
    for p in patterns:
        if isinstance(p.outcome, str):
            visit.left[p.outcome] += p.calls or 1
            continue
        visit.patterns, visit.examined = visit.patterns + bool(p.calls), True
        for k in p.kept.shared:
            what = Said("The gradient of argument {k} is", k=k)
            why = "another argument holds the same tensor"
            p.outcome.findings.append(NOT_EXAMINED(f"argument {k}", what=what, why=why))
        judged += p.outcome.judged
        accused = {f.input for f in found.values() if f.severity == "error" and f.input}
        for f in p.outcome.findings:
            if f.severity != "error" or f.input not in accused:  # once, by another pattern
                found.setdefault((f.code, f.input, f.through), f.accepted_by(f"`{advice}`"))
        rank = p.outcome.ok, not p.outcome.findings
        if worst is None or rank < worst:
            worst, visit.called, visit.given = rank, p.kept.called, p.kept.given
    order = list(SEVERITIES)
    visit.judged = least(judged)
    visit.findings = sorted(found.values(), key=lambda f: order.index(f.severity))


def once(visits):
    """As one those of which the same is said, as of a class made anew at each call."""
    found = {}
    for visit in visits:
        said = [(f.sentence, f.clause) for f in visit.findings]
        first = found.setdefault((visit.full_name, visit.defined, visit.examined, *said), visit)
        if first is not visit:
            first.add(visit)
    return list(found.values())


def rounds(
    *, seconds=SECONDS, max_bytes=2**28, skip=(), faithful=(), more=False, child=True
):  # fmt: skip
    """Examine every Function that is applied inside the `with` block; yields a `Found`.

    seconds:   how long all examinations may take, at the end of the block. Each Function has its
               share; what it did not come to is said.
    max_bytes: how much memory the copies of inputs may take. Calls for which there is no room are
               left out, and the report says so.
    skip:      Functions, or their names (with or without the module; * stands for anything; several
               with commas), that are left out. PyTorch's own always are.
    faithful:  those that are not meant to be the derivative of their forward, as in `examine`; with
               "Quantize(x)", only its gradient of x.
    more:      examine the last call of each pattern, too, and the first one whose output is not
               finite. Each call is copied for that.
    child:     False examines everything in this process.

    Where the system can fork and no GPU is in use, each Function is examined in a child process: a
    crash or an endless loop there is reported, and ends nothing else. A child has no threads but
    one, so that what waits for others hangs there, and not with `child=False`.
    The program's numbers, its random state and the `.grad` of its tensors are not changed. Tensors
    that an argument holds in a closure or a module are not copied: they have the values of the end
    of the block, and what they lack in precision the gradient is not blamed for.

    If the block raises, nothing is examined.
    Raises BlindError if the doctor sees no Functions on this version of PyTorch.
    """
    for name, value in {"seconds": seconds, "max_bytes": max_bytes}.items():
        if not isinstance(value, (int, float)) or not value >= 0:
            raise ValueError(f"{name} must be a number from 0 on, got {value!r}")
    faithful = names_in("faithful", faithful)
    return Rounds(seconds, max_bytes, names_in("skip", skip), faithful, more, child)


def names_in(name, given):
    """The names of these Functions, or TypeError with the name of the argument."""
    given = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
    for item in given:
        if not isinstance(item, (str, type)):
            raise TypeError(f"{name} must hold Functions or their names, got {item!r}")
    names = [item if isinstance(item, str) else full_name(item) for item in given]
    return [one for name in names for one in name.split(",")]


class Found:
    """What the rounds found: `visits`, one `Visit` for each Function, those with errors first.

    skipped: the names of those that were left out as `skip` says
    unmatched: names in `skip` and `faithful` that match no Function that was applied
    """

    def __init__(self):
        self.visits, self.skipped, self.unmatched, self.ended = [], set(), [], False

    @property
    def ok(self):
        return all(visit.ok for visit in self.visits)

    def headline(self):
        """What was found, in one line: `Said`."""
        if not self.ended:
            return Said(UNDER_WAY)
        wrong = sum(not visit.ok for visit in self.visits)
        warned = sum(v.ok and any(f.severity == "warning" for f in v.findings) for v in self.visits)
        missed = sum(bool(visit.missed) for visit in self.visits)
        counts = [number(len(self.visits), FUNCTIONS), Said("{n} wrong", n=wrong or "none")]
        counts += [Said("{n} warned of", n=warned)] if warned else []
        counts += [Said("{n} not judged or not all of it", n=missed)] if missed else []
        return Said("Rounds: {counts}", counts=listed(counts))

    @property
    def summary(self):
        return self.headline().text(Report.translate)

    def text(self, translate=str):
        """What was found in words; translate(template) is a template in another language."""
        strange = [Said("no Function is called {name}", name=name) for name in self.unmatched]
        lines = [line.text(translate) for line in (self.headline(), *strange)]
        return "\n".join([*lines, *(visit.text(translate) for visit in self.visits)])

    def __repr__(self):
        return self.text(Report.translate)

    def raise_if_wrong(self):
        """Raise WrongGradientError if there is an error; otherwise return what was found."""
        if not self.ok:
            raise WrongGradientError(str(self))
        return self


class Rounds:
    """Hears the calls of Functions while a block runs, and examines them at its end."""

    def __init__(self, seconds, max_bytes, skip, faithful, more=False, child=True):
        self.seconds, self.max_bytes, self.skip, self.faithful = seconds, max_bytes, skip, faithful
        self.more, self.child = more, child
        self.during = str  # called for what runs at the moment
        self.say = functools.partial(print, file=sys.stderr, flush=True)
        if hasattr(builtins, "__IPYTHON__"):  # where a cell shows by itself that it is at work
            self.say = str
        self.advice = "rounds(faithful=['{}'])"  # how a Function of this name is accepted

    def __enter__(self):
        self_test()
        self.known, self.heard, self.size = weakref.WeakKeyDictionary(), {}, 0
        self.found, self.listening = Found(), contextlib.ExitStack()
        self.listening.enter_context(heard_by(self.hear))
        return self.found

    def __exit__(self, kind, error, trace):
        self.finish("the program raised before the end of the block" if kind else "")

    # --- while the program runs -------------------------------------------------------------------

    def hear(self, cls, args, records):
        """Returns what counts the call, when its forward has not raised; or None."""
        if EXAMINING:
            return None
        with LOCK:
            if cls not in self.known:
                self.known[cls] = self.first_call(cls)
            return self.known[cls] and self.note(*self.known[cls], cls, args, records)

    def first_call(self, cls):
        """The visit of this Function and its patterns, or None if it is left out."""
        if not is_a_users(cls):
            return None
        name, op = full_name(cls), operator(cls)
        if among(name, self.skip):
            self.found.skipped.add(name)
            return None
        code = getattr(inspect.unwrap(cls.backward), "__code__", None)
        defined = (code.co_filename, code.co_firstlineno) if code and not op else None
        visit = Visit(
            name if op else cls.__name__, [], False, full_name=name, defined=defined,
            first=self.during(),
        )  # fmt: skip
        return self.heard.setdefault(kind(cls), (visit, {}))

    def note(self, visit, patterns, cls, args, records):
        key = (*[pattern(a) for a in args], autocasts())
        found = patterns.get(key) or self.first_of_its_pattern(patterns, cls, args)
        if found.kept:
            found.kept.records |= records

        def count(result):
            with LOCK:
                visit.calls += 1
                if key not in patterns:
                    patterns[key] = found
                    self.size += found.kept.size if found.kept else 0
                elif later:
                    self.keep_later(patterns, key, later, result)
                patterns[key].calls += 1

        later = None
        if self.more and key in patterns and patterns[key].kept:
            later = self.first_of_its_pattern({}, cls, args).kept
        return count

    def keep_later(self, patterns, key, call, result):
        """Keep a call as the last of its pattern, or as the first whose output is not finite."""
        numbers = [t for _, t in tensors(result) if t.is_floating_point() or t.is_complex()]
        finite = all(bool(values_of(t).isfinite().all()) for t in numbers)
        place = (*key, "last" if finite else "not finite")
        known = patterns.get(place)
        if known and not finite:
            return
        self.size += call.size - (known.kept.size if known else 0)
        patterns[place] = Pattern(kept=call)

    def first_of_its_pattern(self, patterns, cls, args):
        """The `Pattern` with a copy of this call, or with the reason why there is none."""
        found = [t for _, t in tensors(args)]
        size = sum(t.numel() * t.element_size() for t in found if has_numbers(t))
        if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            return Pattern(outcome=NO_GRADIENT)
        if sum(p.kept is not None for p in patterns.values()) >= MOST:
            return Pattern(outcome=f"more than {MOST} patterns")
        if not all(map(has_numbers, found)):
            return Pattern(outcome="the inputs hold no numbers: a compiler traced the call")
        if self.size + size > self.max_bytes:
            return Pattern(outcome="too large for max_bytes")
        try:
            call = Call.of(cls, args, size)
        except Exception as error:  # of a subclass of Tensor, for example
            if of_a_signal(error):
                raise
            return Pattern(outcome="the inputs could not be copied")
        return Pattern(kept=call)

    # --- afterwards -------------------------------------------------------------------------------

    def finish(self, why_not=""):
        """Examine what was heard, unless there is a reason why not; fill in what was found."""
        self.listening.close()
        heard = [(visit, list(found.values())) for visit, found in self.heard.values()]
        self.known, self.heard = {}, {}
        try:
            if not why_not:
                self.examine([pair for pair in heard if waiting(pair[1])])
        finally:  # also after Ctrl-C
            for visit, patterns in heard:
                for p in waiting(patterns):
                    p.outcome = why_not or "interrupted"
                conclude(visit, patterns, self.advice.format(visit.full_name))
            self.found.unmatched = self.unmatched([visit.full_name for visit, _ in heard])
            self.found.visits = sorted(once(visit for visit, _ in heard), key=lambda v: v.ok)
            self.found.ended = True

    def examine(self, heard):
        """Each Function within its share of the seconds; those with small inputs come first."""
        if heard:
            warm_up()
        ends = time.monotonic() + self.seconds
        heard.sort(key=lambda pair: sum(p.kept.size for p in waiting(pair[1])))
        for k, (visit, patterns) in enumerate(heard):
            left, name = ends - time.monotonic(), visit.full_name
            share = max(left / (len(heard) - k), min(left, LEAST))
            text = f"doctor: examining {k + 1} of {len(heard)}: `{name}`"
            faithful = faithful_as(name, self.faithful)
            examine(patterns, share, faithful, functools.partial(self.say, text), self.child)

    def unmatched(self, names):
        """The names that the caller gave, and that no Function has."""
        names = [*names, *self.found.skipped]
        given = dict.fromkeys([*self.skip, *self.faithful])
        return [g for g in given if not any(among(n, [of_input(g)[0]]) for n in names)]


def of_input(given):
    """("Quantize", "x") of "Quantize(x)"; or the name and None."""
    match = re.fullmatch(r"(.+)\((\w+)\)", given)
    return match.groups() if match else (given, None)


def faithful_as(name, given):
    """The option `faithful` of `examine` for the Function of this name."""
    inputs = [x for pattern, x in map(of_input, given) if among(name, [pattern])]
    return None not in inputs and (dict.fromkeys(inputs, False) or True)


def among(name, patterns):
    """Does "module.Class" match one of them? The module may be left out."""
    short = [name.split(".")[-1], name.split("::")[-1], name]
    return any(fnmatch.fnmatchcase(n, p) for n in short for p in patterns)
