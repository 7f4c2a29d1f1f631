"""Says how many stored outputs were compared, and which could not be without a compiler."""

import os
import re
import shutil
from functools import partial
from importlib.util import find_spec

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits

import torch
from nbval.plugin import IPyNbCell, NbCellError

from helpers.lessons.cuda_on_cpu import every_architecture, instructions
from helpers.lessons.missing import NOT_HERE
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


# Apart: CuPy, which brings NVRTC, and Triton have no wheels for macOS, where there is a compiler.
NO_COMPILER, NO_NVRTC = why_not(find_compiler), why_not(every_architecture.architectures)
NO_NVDISASM = NO_NVRTC or why_not(instructions.find_nvdisasm)
NO_TRITON = None if find_spec("triton") else "No module named 'triton'"  # it has Linux alone
TORCH_BUILDS = shutil.which(os.environ.get("CXX") or "c++")  # it does not look for another name
needs_compiler = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
needs_nvrtc = pytest.mark.skipif(NO_NVRTC is not None, reason=str(NO_NVRTC))
needs_nvdisasm = pytest.mark.skipif(NO_NVDISASM is not None, reason=str(NO_NVDISASM))
needs_triton = pytest.mark.skipif(NO_TRITON is not None, reason=str(NO_TRITON))


def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, IPyNbCell):
            if item.options["check"]:
                item.user_properties.append((COMPARED, len(item.cell.outputs)))
            item.runtest = partial(run_or_let_it_say_why, item, item.runtest)
        elif any(name in item.name for name in ("[7.3]", "[8.", "[15.2]")):
            item.add_marker(needs_compiler)
        elif "[15.3]" in item.name:
            item.add_marker(needs_triton)


def run_or_let_it_say_why(item, run):
    """A cell that says what is missing here counts as skipped; every other one is compared."""
    try:
        run()
    except NbCellError:
        outputs = item.test_outputs
        said = "".join(output.get("text", "") for output in outputs)
        why = re.search(f"{NOT_HERE}(.*)\\. The course", said)
        reasons = NO_COMPILER, NO_NVRTC, NO_NVDISASM, NO_TRITON
        known = why and (why[1] in reasons or not TORCH_BUILDS)
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
