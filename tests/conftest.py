"""Says how many stored outputs were compared, and which could not be without a compiler."""

import os
from functools import partial

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits

import torch
from nbval.plugin import IPyNbCell, NbCellError

from helpers.lessons.kernels import NOT_HERE
from helpers.ops.involution import host, nvrtc

torch.set_num_threads(1)

COMPARED = "stored outputs compared"


def what_is_missing():
    """Why cells and exercises that compile cannot be compared here, or None."""
    try:
        host.find_compiler()
        nvrtc.architectures()
    except (host.CompilerNotFoundError, ImportError) as error:
        return str(error)
    return None


MISSING = what_is_missing()


def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, IPyNbCell):
            if item.options["check"]:
                item.user_properties.append((COMPARED, len(item.cell.outputs)))
            if MISSING:
                item.runtest = partial(run_or_let_it_say_why, item, item.runtest)
        elif MISSING and ("[7.3]" in item.name or "[8." in item.name):
            item.add_marker(pytest.mark.skip(reason=MISSING))


def run_or_let_it_say_why(item, run):
    """A cell that says what is missing counts as skipped; every other one is compared."""
    try:
        run()
    except NbCellError:
        outputs = item.test_outputs
        said = "".join(output.get("text", "") for output in outputs)
        if NOT_HERE in said and all(output.output_type != "error" for output in outputs):
            pytest.skip(MISSING)
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
