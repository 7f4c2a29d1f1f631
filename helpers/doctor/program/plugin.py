"""The doctor makes rounds over a whole test suite of pytest.

    pytest -p helpers.doctor.plugin --doctor        # after copying the folder: -p doctor.plugin

Every Function that a test applies is examined when all tests have run. A section at the end names
each wrong one, the first test that used it, and the line; the run fails if there is one. Under
pytest-xdist, each worker makes rounds of its own. What the tests start as other processes is not
seen.
"""

import os

import pytest

from .rounds import rounds

KEY, TEST = "doctor", "PYTEST_CURRENT_TEST"


def pytest_addoption(parser):
    group = parser.getgroup("doctor", "gradients of torch.autograd.Function")
    group.addoption("--doctor", action="store_true", help="examine every Function that runs")
    group.addoption(
        "--doctor-skip", action="append", default=[], metavar="NAME",
        help="leave out the Function of this name (with or without its module; * for anything)",
    )  # fmt: skip
    group.addoption(
        "--doctor-unfaithful", action="append", default=[], metavar="NAME",
        help="this one is not meant to be the derivative of its forward",
    )  # fmt: skip


def pytest_configure(config):
    if config.getoption("--doctor"):
        config.pluginmanager.register(Doctor(config), "doctor-on-rounds")


class Doctor:
    def __init__(self, config):
        skip, faithful = config.getoption("--doctor-skip"), config.getoption("--doctor-unfaithful")
        self.rounds, self.told = rounds(skip=skip, faithful=faithful), []
        self.rounds.during = lambda: os.environ.get(TEST, "the collection of tests").split(" (")[0]
        self.found = self.rounds.__enter__()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        self.rounds.__exit__(None, None, None)
        self.told += [(visit.full_name, visit.ok, str(visit)) for visit in self.found.visits]
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[KEY] = self.told
        elif not all(ok for _, ok, _ in self.told):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.told += getattr(node, "workeroutput", {}).get(KEY, [])

    def pytest_terminal_summary(self, terminalreporter):
        wrong = {name: text for name, ok, text in reversed(self.told) if not ok}
        terminalreporter.section("doctor", red=bool(wrong), green=not wrong)
        for text in wrong.values():
            terminalreporter.write_line(text)
        examined = len({name for name, _, _ in self.told})
        terminalreporter.write_line(f"Functions: {examined}, wrong: {len(wrong) or 'none'}")
