"""The doctor makes rounds over a whole test suite of pytest.

    python -m pytest -p doctor.plugin --doctor   # python -m finds it in the folder

Or, so that `pytest` alone does it, in pyproject.toml:

    [tool.pytest.ini_options]
    pythonpath = ["."]
    addopts = "-p doctor.plugin"
    doctor = true                          # each option below: doctor_seconds = 120, …

Every Function that a test applies is examined when all tests have run, within
`--doctor-seconds`. A section at the end names each wrong one, the first test that used
it, and the line; the run fails if one is wrong in a way that `--doctor-fail` names and
`--doctor-baseline` does not. Under pytest-xdist, each worker makes rounds of its own,
at the same time. What the tests start as other processes is not seen.
"""

import json
import os
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

from .causes.cause import CAUSES
from .course import speak_its_language, to_read
from .program.examined import SECONDS
from .program.rounds import once, rounds
from .report import SCHEMA
from .words import N_, _

KEY, TEST = "doctor", "PYTEST_CURRENT_TEST"
# Not a wrong first-order gradient, or one that may be meant, where forward is flat.
LATER = (
    "double-backward",
    "jvp",
    "vmap",
    "reference-cycle",
    "straight-through",
    "forward-not-deterministic",
    "backward-not-deterministic",
)
FAIL = {"first": LATER, "all": (), "never": ""}  # how codes begin that fail no run
OPTIONS = {  # in pyproject.toml, with _ instead of -: (default, what it takes, help)
    "doctor": (False, None, "examine every torch.autograd.Function that tests apply"),
    "doctor-seconds": (
        str(SECONDS),
        "N",
        "how long all examinations may take together",
    ),
    "doctor-child": (
        False,
        None,
        "in a child process, for code that may crash or hang",
    ),
    "doctor-fail": (
        "first",
        "|".join(FAIL),
        "what fails the run: a wrong first-order gradient or a call that fails "
        "(first), any error, nothing; others are warnings",
    ),
    "doctor-strict": (
        False,
        None,
        "fail if a Function is not examined, or in part only",
    ),
    "doctor-skip": (
        [],
        "NAME",
        "leave out the Function of this name (with or without its module; * for "
        "anything)",
    ),
    "doctor-unfaithful": (
        [],
        "NAME",
        "not meant to be the derivative of its forward; NAME(x): only its gradient "
        "of x",
    ),
    "doctor-baseline": ("", "FILE", "known findings, one a line: they fail no run"),
    "doctor-baseline-update": (False, None, "write what is found to --doctor-baseline"),
    "doctor-json": ("", "FILE", "write what is found to this file, too"),
}
ACTIONS = {bool: ("store_true", "bool"), list: ("append", "linelist")}


def pytest_addoption(parser):
    group = parser.getgroup("doctor", "gradients of torch.autograd.Function")
    for name, (default, takes, text) in OPTIONS.items():
        action, kind = ACTIONS.get(type(default), ("store", "string"))
        more = {"metavar": takes} if takes else {}
        group.addoption(f"--{name}", action=action, default=None, help=text, **more)
        parser.addini(name.replace("-", "_"), text, type=kind, default=default)


def pytest_configure(config):
    options = SimpleNamespace()
    for name, (default, takes, _help) in OPTIONS.items():
        key = name.replace("-", "_")
        given, value = config.getoption(key), config.getini(key)
        if isinstance(default, list):
            value = [*value, *(given or [])]
        elif given:
            value = given
        if takes == "FILE" and value:  # from where it was given
            value = (config.invocation_params.dir if given else config.rootpath) / value
        setattr(options, key.removeprefix("doctor_"), value)
    if options.doctor:
        speak_its_language()
        doctor = Doctor(config, checked(options))
        config.pluginmanager.register(doctor, "doctor-on-rounds")


def checked(options):
    """The options, with seconds as a number and `known` findings; or UsageError."""
    options.known, file = set(), options.baseline
    if options.fail not in FAIL:
        raise pytest.UsageError(
            f"doctor-fail is one of {(*FAIL,)}, got {options.fail!r}"
        )
    if options.baseline_update and not file:
        raise pytest.UsageError("doctor-baseline-update needs --doctor-baseline FILE")
    if file and file.is_file():
        options.known = set(file.read_text().splitlines())
    elif file and not options.baseline_update:
        raise pytest.UsageError(
            f"there is no {file}: --doctor-baseline-update makes it"
        )
    try:
        options.seconds = float(options.seconds)
        rounds(seconds=options.seconds)
    except ValueError as error:
        raise pytest.UsageError(f"doctor-seconds: {error}") from None
    return options


def current_test():
    return os.environ.get(TEST, "the collection of tests").split(" (")[0]


class Doctor:
    def __init__(self, config, options):
        self.config, self.options = config, options
        self.rounds = rounds(
            seconds=options.seconds,
            skip=options.skip,
            faithful=options.unfaithful,
            child=options.child,
        )
        self.rounds.during = current_test
        self.rounds.accept = "--doctor-unfaithful={}"
        self.found, self.workers = self.rounds.__enter__(), []

    @pytest.hookimpl(tryfirst=True)  # before the summary is written
    def pytest_sessionfinish(self, session):
        codes = pytest.ExitCode
        stopped = session.exitstatus in (codes.INTERRUPTED, codes.INTERNAL_ERROR)
        try:
            self.rounds.finish("the tests were interrupted" if stopped else "")
        except KeyboardInterrupt:
            stopped, session.exitstatus = True, codes.INTERRUPTED
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[KEY] = pickle.dumps(self.found)
            return
        for worker in self.workers:
            self.found.visits += worker.visits
            self.found.skipped |= worker.skipped
        if self.workers:  # here, no name is known
            known = [set(worker.unmatched) for worker in self.workers]
            self.found.unmatched = sorted(set.intersection(*known))
        visits = once(self.found.visits)
        if self.options.baseline_update and not stopped:
            lines = {known_as(visit, f) for visit in visits for f in visit.serious}
            self.options.baseline.write_text("".join(f"{x}\n" for x in sorted(lines)))
            self.options.known = lines
        weighed = sorted(map(self.weighed, visits), key=lambda visit: visit.ok)
        self.found.visits = weighed
        if self.options.json:
            functions = [{**v.as_dict(), "outcome": self.outcome(v)} for v in weighed]
            told = {"version": SCHEMA, "functions": functions}
            self.options.json.write_text(json.dumps(told, indent=1))
        failed = [visit for visit in weighed if self.outcome(visit) == "failed"]
        if failed:
            session.exitstatus = session.exitstatus or codes.TESTS_FAILED
        if self.config.getoption("xmlpath", None):
            self.told_to_junit(failed)

    def told_to_junit(self, failed):
        """Each wrong Function as a failed test in the file of --junitxml."""
        for visit in failed:
            report = pytest.TestReport(
                f"doctor::{visit.full_name}",
                (visit.defined or ("doctor", 0))[:1] + (None, visit.full_name),
                {},
                "failed",
                str(visit),
                "call",
            )
            self.config.hook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """A worker of xdist has ended; one that crashed has told nothing."""
        told = getattr(node, "workeroutput", {}).get(KEY)
        if told:
            self.workers.append(pickle.loads(told))

    def weighed(self, visit):
        """The visit, with warnings for what fails no run, notes for what is known."""
        spared, findings = FAIL[self.options.fail], []
        for finding in visit.findings:
            if known_as(visit, finding) in self.options.known:
                finding = replace(finding, severity="note")
            elif finding.severity == "error" and finding.code.startswith(spared):
                finding = replace(finding, severity="warning")
            findings.append(finding)
        return replace(visit, findings=findings)

    def outcome(self, visit):
        if not visit.ok or self.options.strict and visit.missed:
            return "failed"
        return "passed" if visit.examined else "skipped"

    def pytest_terminal_summary(self, terminalreporter):
        write, visits = terminalreporter.write_line, self.found.visits
        terminalreporter.section("doctor")
        for visit in visits:
            if visit.serious:
                write(str(visit))
            if visit.missed:
                part = N_("examined in part: {name} ({why})")
                line = part if visit.examined else N_("not examined: {name} ({why})")
                write(_(line, name=visit.full_name, why=visit.missed))
        for line in to_read(f for visit in visits for f in visit.serious):
            write(line)
        if self.found.skipped:
            names = ", ".join(sorted(self.found.skipped))
            write(_("left out by --doctor-skip: {names}", names=names))
        if self.found.unmatched:
            names = ", ".join(self.found.unmatched)
            write(_("no Function is called: {names}", names=names))
        write(self.found.summary)


def known_as(visit, finding):
    """The line of the baseline.

    It is one for whatever a wrong gradient is called, which may depend on the numbers
    of the run.
    """
    causes = {text.code for text, _test in CAUSES}
    code = "gradient" if finding.code in causes else finding.code
    return f"{visit.full_name} {code} {finding.input or '-'}"
