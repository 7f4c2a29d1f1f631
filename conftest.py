"""How the course is tested: what `pytest` does here beside running the tests.

It stands here so that it is read whatever part of the tests is run, a notebook alone included.
"""

import getpass
import os
import re
import shutil
import tempfile
from functools import partial
from multiprocessing.util import Finalize

import pytest
from nbval.plugin import IPyNbCell, NbCellError

from tests.kernels import fork_kernels
from tests.notebooks.worked_in import why_left_out

COMPARED = "stored outputs compared"

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # small tensors: a second thread only waits
os.environ["EXTENDING_PYTORCH_SHOW"] = "1"  # outputs without a prediction, as stored
if "PYTEST_XDIST_WORKER" not in os.environ:
    # nbval kills its kernels, so what they leave behind lies in a folder that goes with this run.
    # Only the cache of PyTorch's compiler stays where it would be.
    cache = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", cache)
    folder = tempfile.mkdtemp(prefix="pytest-")
    os.environ["TMPDIR"] = tempfile.tempdir = (
        folder  # of workers, kernels, compilers, too
    )
    # After multiprocessing's own folder in it, which it looks for at priority -100.
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=-101)
fork_kernels()


def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, IPyNbCell):
            if item.options["check"]:
                item.user_properties.append((COMPARED, len(item.cell.outputs)))
            item.runtest = partial(run_or_let_it_say_why, item, item.runtest)


def run_or_let_it_say_why(item, run):
    """A cell that says what is missing here counts as skipped; every other one is compared.

    Those of a notebook in which a learner has worked are skipped, too.
    """
    if why := why_left_out(item.path) or lacking(item.cell):
        pytest.skip(why)
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


def lacking(cell):
    if "recipe" not in cell.metadata.get("tags", []):
        return None
    from tests import needs

    return needs.of_recipe(cell.source)


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
