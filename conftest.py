"""Says how many stored outputs were compared, and which could not be without a compiler.

It stands here so that it is read whatever part of the tests is run, a notebook alone included.
"""

import gc
import os
import re
import sys
from functools import partial

import pytest

# A second of grammars for addresses on the web, in each process. Who checks none does without:
sys.modules.setdefault("rfc3987_syntax", None)

from nbval.plugin import IPyNbCell, NbCellError  # noqa: E402
from xdist.scheduler import LoadFileScheduling  # noqa: E402

from tests.kernels import fork_kernels  # noqa: E402

pytest_plugins = ["nbval.plugin"]  # by itself it would be imported before this file
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits
fork_kernels()

COMPARED = "stored outputs compared"


@pytest.fixture(scope="module", params=[2, 4])
def team(request):
    """A group of real processes, started once for a file."""
    from helpers.lessons.processes import Team

    with Team(request.param, limit=60) as team:
        yield team


# What takes longest comes first, so that no worker is left alone with it at the end.
LONGEST = [
    "tests/lessons/test_exercises.py",
    "tests/processes/test_collectives.py",
    "tests/processes/test_parallel.py",
    "tests/ops/test_table.py",
    "tests/doctor/test_doctor_patients.py",
    "tests/involution/test_operator.py",
    "tests/doctor/test_doctor_promises.py",
    "tests/test_template.py",
]
TEAMS = LONGEST[:3]  # one worker runs all three: what their processes are forked from starts once


class LongestFirst(LoadFileScheduling):
    """A file at a time, in the order of the collection (with --no-loadscope-reorder)."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return "teams" if file in TEAMS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return LongestFirst(config, log)


def turn(item):
    file = item.nodeid.split("::")[0]
    return LONGEST.index(file) if file in LONGEST else len(LONGEST) + (".ipynb" not in file)


def pytest_collection_modifyitems(items):
    items.sort(key=turn)
    # And torch with it, which the process that hands out the tests does without.
    from tests.needs import needs_compiler, needs_triton

    for item in items:
        if isinstance(item, IPyNbCell):
            if item.options["check"]:
                item.user_properties.append((COMPARED, len(item.cell.outputs)))
            item.runtest = partial(run_or_let_it_say_why, item, item.runtest)
        elif any(name in item.name for name in ("[7.3]", "[8.", "[15.2]")):
            item.add_marker(needs_compiler)
        elif "[15.3]" in item.name:
            item.add_marker(needs_triton)


def pytest_collection_finish():
    gc.freeze()  # all that was imported stays: no collection need look at it, no fork copy it
    gc.set_threshold(20_000)  # instead of 700: a compiler makes much, and little of it is garbage


def run_or_let_it_say_why(item, run):
    """A cell that says what is missing here counts as skipped; every other one is compared."""
    try:
        run()
    except NbCellError:
        from helpers.lessons.unavailable import NOT_HERE
        from tests import needs

        outputs = item.test_outputs
        said = "".join(output.get("text", "") for output in outputs)
        why = re.search(f"{NOT_HERE}(.*)\\. The course", said)
        known = why and (why[1] in needs.missing() or not needs.TORCH_BUILDS)
        if known and all(output.output_type != "error" for output in outputs):
            pytest.skip(why[1])
        raise


def pytest_terminal_summary(terminalreporter):
    counts = [
        (report.nodeid.split("::")[0], value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == COMPARED and report.when == "call"
    ]
    notebooks = len({path for path, _ in counts})
    total = sum(value for _, value in counts)
    terminalreporter.write_line(f"{COMPARED}: {total}, in {notebooks} notebooks")
