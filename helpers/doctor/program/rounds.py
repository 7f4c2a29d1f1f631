"""Rounds: every Function that a program applies is examined.

    from doctor import rounds

    with rounds() as found:
        train_step(model, batch)  # your program, unchanged
    print(found)                  # one report a Function, and the line that called it
    found.raise_if_wrong()

Inside, the inputs of a call are copied: those of the first call of each Function and
pattern of shapes, dtypes and flags. They are examined at the end of the block, and the
copies are let go. What is wrong in another call of the same pattern only is not seen.

It does not see Functions written in C++, operators of torch.library that take lists of
tensors, calls inside the transforms of torch.func, other processes, nor a branch that
the first call of a pattern does not take. Compiled code breaks its graph at each
Function (seen with torch 2.15), so what was compiled with `fullgraph=True` raises. In a
program of several processes, skip the Functions that communicate: their examination
would wait for the others.
"""

import contextlib
import fnmatch
import inspect
import os
import re
import time
import weakref
from dataclasses import dataclass

import torch

from ..function.calls import Call, autocasts, full_name, kind, pattern
from ..function.isolation import forgiving
from ..function.private import (
    LOCK,
    has_numbers,
    is_a_users,
    methods,
    operator,
    self_test,
    takes_ctx,
    transforming,
)
from ..function.tensors import tensors
from ..report import SEVERITIES, Report
from ..words import _
from .examined import EXAMINING, LEAST, OVER, SECONDS, in_a_child, in_here
from .found import NO_GRADIENT, Found, Visit, least

MOST = 32  # patterns of one Function


@dataclass
class Pattern:
    """The calls that have one pattern.

    copy: of the first, to be examined, or None if there is none
    outcome: the report on it, or why there is none
    """

    calls: int = 0
    copy: Call | None = None
    outcome: Report | str | None = None


def waiting(patterns):
    """Those that are still to be examined, those with small inputs first."""
    return sorted((p for p in patterns if p.outcome is None), key=lambda p: p.copy.size)


def examine_patterns(patterns, seconds, child, **options):
    """Examine the patterns of one Function, for at most this many seconds.

    child: in a process of its own, where the system can fork and no GPU is in use
    """
    end = time.monotonic() + seconds
    can_fork = hasattr(os, "fork") and not torch.cuda.is_initialized()
    way = in_a_child if child and can_fork else in_here
    while (some := waiting(patterns)) and time.monotonic() < end:
        for k, outcome in way([p.copy for p in some], end, options):
            some[k].outcome = outcome
    for p in waiting(patterns):
        p.outcome = _(OVER)


def conclude(visit, patterns):
    """Fill in what was found for each pattern, once; nothing of the program is kept."""
    found, judged, worst = {}, [], None
    for p in patterns:
        report = p.outcome
        if isinstance(report, str):
            visit.left[report] += p.calls
            continue
        visit.patterns += 1
        visit.examined = True
        judged += report.judged
        accused = {f.input for f in found.values() if f.severity == "error"} - {None}
        for f in report.findings:
            if f.severity != "error" or f.input not in accused:  # once
                found.setdefault((f.code, f.input, f.output), f)
        rank = report.ok, not report.findings
        if worst is None or rank < worst:
            worst, visit.called, visit.given = rank, p.copy.called, p.copy.given
    visit.judged = least(judged)
    visit.findings = sorted(
        found.values(), key=lambda f: [*SEVERITIES].index(f.severity)
    )


def once(visits):
    """As one those of which the same is said, as of a class made anew at each call."""
    found = {}
    for visit in visits:
        said = [(f.message, f.change, f.place) for f in visit.findings]
        key = visit.full_name, visit.defined, visit.examined, *said
        first = found.setdefault(key, visit)
        if first is not visit:
            first.add(visit)
    return list(found.values())


def names_in(name, given):
    """The names of these Functions, or TypeError with the name of the argument."""
    given = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
    for item in given:
        if not isinstance(item, (str, type)):
            raise TypeError(f"{name} must hold Functions or their names, got {item!r}")
    names = [item if isinstance(item, str) else full_name(item) for item in given]
    return [one for name in names for one in name.split(",")]


class Rounds:
    """Examine every Function that is applied inside the `with` block; yields a `Found`.

    seconds:   how long all examinations may take, at the end of the block. Each
               Function has its share; what it did not come to is said.
    max_bytes: how much memory the copies of inputs may take. Calls for which there is
               no room are left out, and the report says so.
    skip:      Functions, or their names (with or without the module; * stands for
               anything; several with commas), that are left out. PyTorch's own always
               are.
    faithful:  those that are not meant to be the derivative of their forward, as in
               `examine`; with "Quantize(x)", only its gradient of x.
    reference: {Function, or its name: what computes the same}, as in `examine`.
    child:     True examines each Function in a child process, so that a crash or an
               endless loop there is reported, and ends nothing else. It needs a system
               that can fork, and no GPU in use. What waits for other threads hangs
               there.

    The program's numbers, its random state and the `.grad` of its tensors are not
    changed. Tensors that an argument holds in a closure or a module are not replaced:
    they have the values again that they had at the call, and what they lack in precision
    the gradient is not blamed for. A call that returns something else then than it did
    in the program is not judged.

    If the block raises, nothing is examined.
    Raises BlindError if the doctor sees no Functions on this version of PyTorch.
    """

    def __init__(
        self,
        *,
        seconds=SECONDS,
        max_bytes=2**28,
        skip=(),
        faithful=(),
        reference=None,
        child=False,
    ):
        for name, value in {"seconds": seconds, "max_bytes": max_bytes}.items():
            if not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(f"{name} must be a number from 0 on, got {value!r}")
        self.seconds, self.max_bytes, self.child = seconds, max_bytes, child
        self.skip = names_in("skip", skip)
        self.faithful = names_in("faithful", faithful)
        self.references = {
            names_in("reference", given)[0]: fn
            for given, fn in (reference or {}).items()
        }
        self.during = str  # called for what runs at the moment
        self.accept = "rounds(faithful=['{}'])"  # how a Function of this name is

    def __enter__(self):
        self_test()
        self.known, self.heard, self.size = weakref.WeakKeyDictionary(), {}, 0
        self.found, self.listening = Found(), contextlib.ExitStack()
        ways = {"forward": self.hear, "backward": self.hear_backward}
        for name, way in ways.items():
            self.listening.enter_context(methods(name, way, everywhere=True))
        return self.found

    def __exit__(self, kind, error, trace):
        self.finish(_("the program raised before the end of the block") if kind else "")

    # --- while the program runs -------------------------------------------------------

    def hear(self, method, cls, *given):
        """What it returns; the call is noted before, and counted if it does not raise."""
        count = None
        if not (EXAMINING or transforming()):
            is_first = takes_ctx(cls)
            # As far as is known, is there a graph through which the program may go back?
            records = not is_first or bool(given[0].next_functions)
            with LOCK:
                if cls not in self.known:
                    self.known[cls] = self.first_call(cls)
                if known := self.known[cls]:
                    count = self.note(*known, cls, given[is_first:], records)
        result = method(*given)
        if count:
            count(result)
        return result

    def hear_backward(self, method, cls, *given):
        """What it returns; its patterns know that it has not raised."""
        result = method(*given)
        if not EXAMINING and self.known.get(cls):
            for found in self.known[cls][1].values():
                if found.copy:
                    found.copy.goes_back = True
        return result

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
            name if op else cls.__name__,
            [],
            False,
            full_name=name,
            defined=defined,
            first=self.during(),
        )
        return self.heard.setdefault(kind(cls), (visit, {}))

    def note(self, visit, patterns, cls, args, records):
        key = (*[pattern(a) for a in args], autocasts())
        found = patterns.get(key) or self.first_of_its_pattern(patterns, cls, args)
        if found.copy:
            found.copy.records |= records

        def count(result):
            with LOCK:
                if key not in patterns:
                    patterns[key] = found
                    if found.copy:
                        found.copy.returned(result)
                        self.size += found.copy.size
                visit.calls += 1
                patterns[key].calls += 1

        return count

    def first_of_its_pattern(self, patterns, cls, args):
        """The `Pattern` with a copy of this call, or with the reason for none."""
        found = [t for _name, t in tensors(args)]
        size = sum(t.numel() * t.element_size() for t in found if has_numbers(t))
        if not any(torch.is_tensor(a) and a.requires_grad for a in args):
            why = _(NO_GRADIENT)
        elif sum(p.copy is not None for p in patterns.values()) >= MOST:
            why = _("more than {n} patterns", n=MOST)
        elif not all(map(has_numbers, found)):
            why = _("the inputs hold no numbers: a compiler traced the call")
        elif self.size + size > self.max_bytes:
            why = _("too large for max_bytes")
        else:
            with forgiving():
                made = Call.of(cls, args, size)
                if self.size + made.size > self.max_bytes:  # with what a module holds
                    return Pattern(outcome=_("too large for max_bytes"))
                return Pattern(copy=made)
            why = _("the inputs could not be copied")  # of a subclass of Tensor, say
        return Pattern(outcome=why)

    # --- afterwards -------------------------------------------------------------------

    def finish(self, why_not):
        """Examine what was heard, unless there is a reason why not.

        Fill in what was found.
        """
        self.listening.close()
        heard = [(visit, list(found.values())) for visit, found in self.heard.values()]
        self.known, self.heard = {}, {}
        try:
            if not why_not:
                self.examine_each([pair for pair in heard if waiting(pair[1])])
        finally:  # also after Ctrl-C
            for visit, patterns in heard:
                for p in waiting(patterns):
                    p.outcome = why_not or _("interrupted")
                conclude(visit, patterns)
            visits = [visit for visit, _patterns in heard]
            self.found.unmatched = self.unmatched([v.full_name for v in visits])
            self.found.visits = sorted(once(visits), key=lambda v: v.ok)
            self.found.ended = True

    def examine_each(self, heard):
        """Each Function within its share of the seconds; small inputs come first."""
        end = time.monotonic() + self.seconds
        heard.sort(key=lambda pair: sum(p.copy.size for p in waiting(pair[1])))
        for k, (visit, patterns) in enumerate(heard):
            left, name = end - time.monotonic(), visit.full_name
            share = max(left / (len(heard) - k), min(left, LEAST))
            known = self.references.items()
            options = {
                "accept": f"`{self.accept.format(name)}`",
                "faithful": faithful_as(name, self.faithful),
                "reference": next((fn for g, fn in known if among(name, [g])), None),
            }
            examine_patterns(patterns, share, child=self.child, **options)

    def unmatched(self, names):
        """The names that the caller gave, and that no Function has."""
        names = [*names, *self.found.skipped]
        given = dict.fromkeys([*self.skip, *self.faithful, *self.references])
        return [g for g in given if not any(among(n, [of_input(g)[0]]) for n in names)]


rounds = Rounds  # as it is called


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
