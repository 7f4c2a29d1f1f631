"""Says how many stored outputs were compared, and leaves out the notebook that needs compilers."""

import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits

import torch

from helpers.ops.involution import host, nvrtc

torch.set_num_threads(1)

COMPARED = "stored outputs compared"


def reason_to_skip():
    """Why chapter 07 cannot be compared here, or None."""
    try:
        if sys.platform == "win32":
            raise host.CompilerNotFoundError("kernels run on the CPU on Linux and macOS only")
        host.find_compiler()
        nvrtc.architectures()
    except (host.CompilerNotFoundError, ImportError) as error:
        return f"chapter 07 compiles CUDA kernels, which cannot be compared here: {error}"
    return None


def pytest_collection_modifyitems(items):
    reason = reason_to_skip()
    for item in items:
        if type(item).__name__ == "IPyNbCell":
            if item.options["check"]:
                item.user_properties.append((COMPARED, len(item.cell.outputs)))
            if reason and item.path.name.startswith("07_"):
                item.add_marker(pytest.mark.skip(reason=reason))
        elif reason and "[7.3]" in item.name:
            item.add_marker(pytest.mark.skip(reason=reason))


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
