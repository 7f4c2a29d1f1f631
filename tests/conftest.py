"""Says how many stored outputs were compared, and which could not be without a compiler."""

import os
import re
import shutil
from functools import partial

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits

import torch
from nbval.plugin import IPyNbCell, NbCellError

from helpers.lessons.cuda_on_cpu import every_architecture
from helpers.lessons.missing import NOT_HERE
from helpers.lessons.processes import Team, bytes_sent
from helpers.ops.involution.compiler import CompilerNotFoundError, find_compiler

torch.set_num_threads(1)

COMPARED = "stored outputs compared"


def why_not(look):
    """The sentence with which `look` says what is missing here, or None."""
    try:
        look()
    except (CompilerNotFoundError, ImportError) as error:
        return str(error)
    return None


# Two conditions: CuPy, which brings NVRTC, has no wheels for macOS, where there is a compiler.
NO_COMPILER, NO_NVRTC = why_not(find_compiler), why_not(every_architecture.architectures)
NO_COUNTS = why_not(bytes_sent)
TORCH_BUILDS = shutil.which(os.environ.get("CXX") or "c++")  # it does not look for another name
needs_compiler = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
needs_nvrtc = pytest.mark.skipif(NO_NVRTC is not None, reason=str(NO_NVRTC))


@pytest.fixture(scope="module", params=[2, 4])
def team(request):
    """A group of real processes, started once for a file."""
    with Team(request.param, limit=20) as team:
        yield team


def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, IPyNbCell):
            if item.options["check"]:
                item.user_properties.append((COMPARED, len(item.cell.outputs)))
            item.runtest = partial(run_or_let_it_say_why, item, item.runtest)
        elif "[7.3]" in item.name or "[8." in item.name:
            item.add_marker(needs_compiler)


def run_or_let_it_say_why(item, run):
    """A cell that says what is missing here counts as skipped; every other one is compared."""
    try:
        run()
    except NbCellError:
        outputs = item.test_outputs
        said = "".join(output.get("text", "") for output in outputs)
        why = re.search(f"{NOT_HERE}(.*)\\. The course", said)
        known = why and (why[1] in (NO_COMPILER, NO_NVRTC, NO_COUNTS) or not TORCH_BUILDS)
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
