"""Says how many stored outputs were compared, and which could not be without a compiler."""

import gc
import os
import re
from functools import partial

import pytest
from nbval.plugin import IPyNbCell, NbCellError

from tests.kernels import fork_kernels

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits
fork_kernels()

COMPARED = "stored outputs compared"


@pytest.fixture(scope="module", params=[2, 4])
def team(request):
    """A group of real processes, started once for a file."""
    from helpers.lessons.processes import Team

    with Team(request.param, limit=60) as team:
        yield team


def pytest_collection_modifyitems(items):
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


def run_or_let_it_say_why(item, run):
    """A cell that says what is missing here counts as skipped; every other one is compared."""
    try:
        run()
    except NbCellError:
        from helpers.lessons.missing import NOT_HERE
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
