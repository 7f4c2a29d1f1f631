"""What the checks of a notebook that was handed in say, and why one says nothing."""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import warnings
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from helpers.lessons.classroom.record import VARIABLE, recorded
from helpers.lessons.judge.numbers import first_line
from helpers.lessons.language import _

ROOT = Path(__file__).parents[3]
NO_VERDICT = "!"
NAMED = re.compile(r"""^[^#\n]*?\bexercise\(\s*["']([^"'\n]+)["']\s*\)""", re.MULTILINE)
# Run before the first cell, whose seconds are not for the imports.
FIRST = nbformat.v4.new_code_cell(
    "from helpers.lessons.exercise import exercises\n[*exercises()]\ndel exercises"
)
STARTUP = 120  # seconds for it
TIMEOUT = {"ename": "Timeout"}  # what nbclient is to say of an interrupted cell


async def verdicts(path, seconds, total):
    """({number: mark}, what failed, in sentences) of the checks in a notebook.

    seconds: after which a cell is interrupted
    total:   seconds after which the kernel is ended
    """
    name = path.name
    try:
        notebook = _read(path)
    except Exception as error:
        return {}, [
            _("{name} is no notebook: {error}", name=name, error=first_line(error))
        ]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            beside, record = Path(folder, "notebook"), Path(folder, "record")
            await asyncio.to_thread(_copy_what_lies_beside, path, beside)
            failed, ended = await _run(cells, beside, record, seconds, total)
        except Exception as error:
            return {}, [
                _(
                    "{name} could not be run: {error}",
                    name=name,
                    error=first_line(error),
                )
            ]
        marks = recorded(record)
    for count, cell in enumerate(cells, 1):
        if count in failed or ended and count >= max(failed):
            for number in NAMED.findall(cell.source):
                marks.setdefault(number.strip().replace(",", "."))
    marks = {
        number: mark or NO_VERDICT for number, mark in marks.items() if mark or failed
    }
    cells_of = {}  # the same sentence is said once, of several cells
    for count, why in failed.items():
        cells_of.setdefault(why, []).append(str(count))
    gaps = {"name": name, "seconds": seconds, "total": total}
    sentences = [
        said.format(cells=", ".join(cells), error=error, **gaps)
        for (said, error), cells in cells_of.items()
    ]
    if not marks and not sentences:
        sentences.append(_("{name} runs no check.", name=name))
    return marks, sentences


def _read(path):
    with warnings.catch_warnings():
        # Of a cell without an id, as older Jupyters wrote it.
        warnings.simplefilter("ignore")
        text = path.read_bytes().decode("utf-8-sig")  # some editors write the mark
        return nbformat.reads(text, as_version=4)


def _copy_what_lies_beside(path, folder):
    """Modules and data; no notebooks, nor folders that hold some: other people's."""

    def others(parent, names):
        hidden = [n for n in names if n.startswith(".") or n == "__pycache__"]
        notebooks = [n for n in names if n.endswith(".ipynb")]
        folders = [n for n in names if any(Path(parent, n).glob("*.ipynb"))]
        return hidden + notebooks + folders

    here = path.resolve().parent
    shutil.copytree(here, folder, ignore=others, ignore_dangling_symlinks=True)


async def _run(cells, folder, record, seconds, total):
    """({cell: (sentence, error)}, whether the kernel ended early); cells count from 1.

    A sentence has the gaps {name}, {cells}, {seconds}, {total} and {error}.
    """
    failed, count = {}, 0

    def executed(cell, cell_index, execute_reply):
        content = execute_reply["content"]
        if content["status"] == "ok":
            return
        if content["ename"] == TIMEOUT["ename"]:
            said = _("{name}, code cell {cells}: interrupted after {seconds:g} s.")
            failed[count] = said, ""
        else:
            error = f"{content['ename']}: {first_line(content.get('evalue', ''))}"
            failed[count] = _("{name}, code cell {cells}: {error}"), error

    client = NotebookClient(
        nbformat.v4.new_notebook(cells=[FIRST, *cells]),
        kernel_name="python3",
        timeout_func=lambda cell: STARTUP if cell is FIRST else seconds,
        interrupt_on_timeout=True,
        error_on_timeout=TIMEOUT,
        allow_errors=True,
        record_timing=False,
        shutdown_kernel="immediate",
        resources={"metadata": {"path": str(folder)}},
        on_cell_executed=executed,
        log=logging.Logger("kernels", "CRITICAL"),
    )
    beside = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings = {VARIABLE: str(record), "PYTHONPATH": beside}
    settings["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # others run
    nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    limit = asyncio.timeout(total)
    async with client.async_setup_kernel(env=os.environ | settings, **nowhere):
        process = client.km.provisioner.pid
        try:
            async with limit:
                for count, cell in enumerate(client.nb.cells):
                    await client.async_execute_cell(cell, count)
        except DeadKernelError:  # nbclient says so of what is cancelled, too
            if limit.expired():
                said = _(
                    "{name}, code cell {cells}: the {total:g} s for the notebook "
                    "were over, and no later cell was run."
                )
            elif asyncio.current_task().cancelling():  # Ctrl-C
                raise asyncio.CancelledError from None
            else:
                said = _(
                    "{name}, code cell {cells}: the kernel died, and no later cell "
                    "was run."
                )
            failed[count] = said, ""
            return failed, True
        finally:
            _end(process)
    return failed, False


def _end(process):
    """Ends a kernel and all that it started, which may outlive it."""
    if os.name == "posix":  # jupyter_client makes it the leader of a group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
    else:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process).children(recursive=True):
                child.kill()
