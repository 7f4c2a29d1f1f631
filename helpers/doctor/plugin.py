"""The doctor makes rounds over a whole test suite of pytest.

    python -m pytest -p doctor.plugin --doctor         # python -m finds it in the working folder

Or, so that `pytest` alone does it, in pyproject.toml:

    [tool.pytest.ini_options]
    pythonpath = ["."]
    addopts = "-p doctor.plugin"
    doctor = true                                      # each option below: doctor_seconds = 120, …

Every Function that a test applies is examined when all tests have run, within `--doctor-seconds`. A
section at the end names each wrong one, the first test that used it, and the line; the run fails if
one is wrong in a way that `--doctor-fail` names and `--doctor-baseline` does not. Under
pytest-xdist, each worker makes rounds of its own, at the same time. What the tests start as other
processes is not seen.
"""

import json
import os
import pickle
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from .course import to_read
from .function.private import BlindError
from .program.bounds import SECONDS
from .program.rounds import rounds
from .report import as_json

KEY, TEST = "doctor", "PYTEST_CURRENT_TEST"
STOPPED = "the tests were interrupted"
OPTIONS = {  # in pyproject.toml, with _ instead of -: (default, what it takes, help)
    "doctor": (False, None, "examine every torch.autograd.Function that the tests apply"),
    "doctor-seconds": (str(SECONDS), "N", "how long all examinations may take together"),
    "doctor-fail": ("first", "first|all|never", "what fails the run: a wrong first-order gradient "
                    "or a call that fails (first), any error, nothing; others are warnings"),
    "doctor-strict": (False, None, "fail if a Function is not examined, or not all of it"),
    "doctor-skip": ([], "NAME", "leave out the Function of this name (with or without its module; "
                    "* for anything)"),
    "doctor-unfaithful": ([], "NAME", "this one is not meant to be the derivative of its forward; "
                          "NAME(x): only its gradient of x"),
    "doctor-more": (False, None, "examine the last call of each kind, too, and the first one whose "
                    "output is not finite"),
    "doctor-here": (False, None, "examine in this process, not in a child"),
    "doctor-baseline": ("", "FILE", "known findings, one a line: they do not fail the run"),
    "doctor-baseline-update": (False, None, "write what is found now to --doctor-baseline"),
    "doctor-json": ("", "FILE", "write what is found to this file, too"),
}  # fmt: skip
# Not a wrong first-order gradient, or one that may be meant, where forward is flat.
LATER = (
    "double-backward", "jvp", "vmap", "reference-cycle", "straight-through",
    "forward-not-deterministic", "backward-not-deterministic",
)  # fmt: skip


def pytest_addoption(parser):
    group = parser.getgroup("doctor", "gradients of torch.autograd.Function")
    for name, (default, takes, text) in OPTIONS.items():
        action, kind = {bool: ("store_true", "bool"), list: ("append", "linelist")}.get(
            type(default), ("store", "string")
        )
        more = {"metavar": takes} if takes else {}
        group.addoption(f"--{name}", action=action, default=None, help=text, **more)
        parser.addini(name.replace("-", "_"), text, type=kind, default=default)


def pytest_configure(config):
    options = SimpleNamespace()
    for name, (default, takes, _) in OPTIONS.items():
        key = name.replace("-", "_")
        given, value = config.getoption(key), config.getini(key)
        value = [*value, *(given or [])] if isinstance(default, list) else given or value
        if takes == "FILE" and value:  # from where it was given
            value = (config.invocation_params.dir if given else config.rootpath) / value
        setattr(options, key.removeprefix("doctor_"), value)
    if options.doctor:
        config.pluginmanager.register(Doctor(config, checked(options)), "doctor-on-rounds")


def checked(options):
    """The options, with seconds as a number and the baseline as what it knows, or UsageError."""
    choices, baseline = OPTIONS["doctor-fail"][1].split("|"), options.baseline
    there = baseline and baseline.is_file()
    try:
        seconds = float(options.seconds)
    except ValueError:
        seconds = -1.0
    for wrong, why in (
        (options.fail not in choices, f"doctor-fail is one of {choices}, got {options.fail!r}"),
        (not seconds >= 0, f"doctor-seconds is a number from 0 on, got {options.seconds!r}"),
        (options.baseline_update and not baseline,
         "doctor-baseline-update needs --doctor-baseline FILE"),
        (baseline and not (there or options.baseline_update),
         f"there is no {baseline}: --doctor-baseline-update makes it"),
    ):  # fmt: skip
        if wrong:
            raise pytest.UsageError(why)
    options.seconds = seconds
    options.known = set(baseline.read_text().splitlines()) if there else set()
    return options


class Doctor:
    def __init__(self, config, options):
        self.config, self.options, self.gathered, self.strange = config, options, {}, None
        self.rounds = rounds(
            seconds=options.seconds, skip=options.skip, faithful=options.unfaithful,
            more=options.more, child=not options.here,
        )  # fmt: skip
        self.rounds.during = lambda: os.environ.get(TEST, "the collection of tests").split(" (")[0]
        self.rounds.say, self.rounds.advice = self.say, "--doctor-unfaithful={}"
        try:
            self.found = self.rounds.__enter__()
        except BlindError as blind:
            raise pytest.UsageError(str(blind)) from None

    def say(self, text):
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal:
            terminal.ensure_newline()
            terminal.write_line(text)
            terminal.flush()

    # --- when all tests have run ------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)  # before the junit file and the summary are written
    def pytest_sessionfinish(self, session):
        interrupted = session.exitstatus in (
            pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR,
        )  # fmt: skip
        try:
            self.rounds.finish(STOPPED if interrupted else "")
        except KeyboardInterrupt:
            interrupted, session.exitstatus = True, pytest.ExitCode.INTERRUPTED
        found = self.found.visits, self.found.skipped, self.found.unmatched
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[KEY] = pickle.dumps(found)
            return
        self.gather(*found)
        self.visits = sorted(map(self.weighed, self.gathered.values()), key=lambda v: v.ok)
        if self.options.baseline_update and not interrupted:
            lines = {known_as(v, f) for v in self.gathered.values() for f in errors(v)}
            self.options.baseline.write_text("".join(f"{line}\n" for line in sorted(lines)))
        if self.options.json:
            told = [{"outcome": self.outcome(v), **vars(v)} for v in self.visits]
            self.options.json.write_text(json.dumps(told, indent=1, default=as_json))
        for plugin in self.config.pluginmanager.get_plugins():
            if type(plugin).__name__ == "LogXML":
                self.to_junit(plugin)
        if any(self.outcome(v) == "failed" for v in self.visits):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """A worker of xdist has ended; one that crashed has told nothing."""
        told = getattr(node, "workeroutput", {}).get(KEY)
        if told:
            self.gather(*pickle.loads(told))

    def gather(self, visits, skipped, unmatched):
        """What several workers have found alike is kept once; what one has found twice, twice."""
        times = Counter()
        strange = unmatched if self.strange is None else self.strange
        self.strange = [name for name in strange if name in unmatched]  # no worker knows it
        for visit in visits:
            key = visit.full_name, tuple(known_as(visit, f) for f in visit.findings)
            times[key] += 1
            self.gathered.setdefault((key, times[key]), visit)
        self.found.skipped |= skipped

    def weighed(self, visit):
        """The visit with what does not fail the run as a warning, and as a note what is known."""
        fail, findings = self.options.fail, []
        for finding in visit.findings:
            if finding.severity == "error" and not self.options.baseline_update:
                first = not finding.code.startswith(LATER)
                if known_as(visit, finding) in self.options.known:
                    finding = replace(finding, severity="note")
                elif fail == "never" or fail == "first" and not first:
                    finding = replace(finding, severity="warning")
            findings.append(finding)
        return replace(visit, findings=findings)

    def outcome(self, visit):
        is_new = not (visit.ok or self.options.baseline_update)
        if is_new or self.options.strict and visit.missed:
            return "failed"
        return "passed" if visit.examined else "skipped"

    # --- how it is told ---------------------------------------------------------------------------

    def to_junit(self, xml):
        times = Counter()
        for visit in self.visits:
            times[visit.full_name] += 1
            nth = f" ({times[visit.full_name]})" if times[visit.full_name] > 1 else ""
            outcome, why = self.outcome(visit), str(visit)
            file, line = visit.defined or ("", 0)
            why = {"failed": why, "skipped": (file, line, visit.missed)}.get(outcome)
            name = f"{KEY}::{visit.full_name}{nth}"
            xml.pytest_runtest_logreport(
                pytest.TestReport(name, (file, line, name), {}, outcome, why, "call")
            )

    def pytest_terminal_summary(self, terminalreporter):
        outcomes = Counter(map(self.outcome, self.visits))
        failed, warned = outcomes["failed"], 0
        terminalreporter.section("doctor", red=bool(failed), green=not failed)
        write = terminalreporter.write_line
        for visit in self.visits:
            serious = any(f.severity != "note" for f in visit.findings)
            warned += serious and visit.ok
            if serious:
                write(str(visit))
            if visit.missed:
                how = "examined in part" if visit.examined else "not examined"
                write(f"{how}: {visit.full_name} ({visit.missed})")
        for line in to_read(f for v in self.visits for f in v.findings if f.severity != "note"):
            write(line)
        if self.found.skipped:
            write(f"left out by --doctor-skip: {', '.join(sorted(self.found.skipped))}")
        if self.strange:
            write(f"no Function is called: {', '.join(self.strange)}")
        known = sum(known_as(v, f) in self.options.known for v in self.visits for f in v.findings)
        counts = {"warned of": warned, "not examined": outcomes["skipped"], "known findings": known}
        counts = "".join(f", {what}: {n}" for what, n in counts.items() if n)
        write(f"Functions: {len(self.visits)}, wrong: {failed or 'none'}{counts}")


def known_as(visit, finding):
    """The line of the baseline."""
    return f"{visit.full_name} {finding.code} {finding.input or '-'}"


def errors(visit):
    return [f for f in visit.findings if f.severity == "error"]
