"""Runs a notebook that was handed in, and says what its checks said, and why one said nothing."""

import asyncio
import contextlib
import logging
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import nbformat
import psutil
from jupyter_client import AsyncKernelManager

from helpers.lessons.language import translated
from helpers.lessons.record import VARIABLE, recorded

ROOT = Path(__file__).parents[2]
NO_VERDICT = "!"
NAMED = re.compile(r"""^[^#\n]*?\bexercise\(\s*["']([^"'\n]+)["']\s*\)""", re.MULTILINE)
# Its seconds are not the first cell's.
FIRST = "from helpers.lessons.exercise import exercises\n[*exercises()]\ndel exercises"
STARTUP = 120  # seconds for it
GRACE = 5  # seconds in which an interrupted cell may end
ENDED = "died", "endless", "budget"  # no later cell was run

SENTENCES = {  # all that `grade` says besides the table
    "row": "{student}: {sentence}",
    "progress": "{done} of {all}: {student}  {marks}",
    "interrupted": "interrupted: {done} of {all} students are in the table",
    "not written": "the table is not in {path}: {error}",
    "empty": "the folder holds no notebook.",
    "unreadable": "{name} is no notebook: {error}",
    "language": "{name} is written in {language}, not in Python.",
    "no checks": "{name} runs no check.",
    "raised": "{name}, code cell {cells}: {error}",
    "slow": "{name}, code cell {cells}: interrupted after {seconds:g} s.",
    "endless": "{name}, code cell {cells}: it went on after the interrupt at {seconds:g} s, so the "
    "kernel was ended, and no later cell was run.",
    "died": "{name}, code cell {cells}: the kernel died, and no later cell was run.",
    "budget": "{name}, code cell {cells}: the {total:g} s for the notebook were over, and no later "
    "cell was run.",
    "failed": "{name} could not be run: {error}",
    "not imported": "{path} could not be imported: {error}",
    "no exercise": "{path} holds no Exercise",
    "attempt": "  {what}: {mark} {message}",
    "another mark": "  {what}: {mark} {message} (expected {expected})",
    "other words": "  {what}: {mark} {message} (expected the words {words!r})",
    "no attempt": "  {what} cannot be made: {error}",
    "unexpected": "{count} not as expected",
}


def said(key, **gaps):
    """The sentence `key`, its gaps filled."""
    return translated(SENTENCES[key]).format(**gaps)


async def verdicts(path, seconds, total):
    """({number: mark}, sentences): what the checks in the notebook at `path` said, and what failed.

    seconds: after which a cell is interrupted
    total:   seconds after which the notebook is ended
    """
    name = path.name
    try:
        notebook = _read(path)
    except Exception as error:
        return {}, [said("unreadable", name=name, error=first_line(error))]
    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    language = notebook.metadata.get("language_info", {}).get("name", language)
    if language.lower() not in ("python", "ipython"):
        return {}, [said("language", name=name, language=language)]
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        failed, sentences = [], []  # failed: (cell, key, error), cells counted from 1
        try:
            await asyncio.to_thread(_copy_what_lies_beside, path, Path(folder, "notebook"))
            async for failure in _failures(sources, Path(folder), seconds, total):
                failed.append(failure)
        except Exception as error:
            sentences.append(said("failed", name=name, error=first_line(error)))
            failed.append((0, "died", None))
        marks = recorded(Path(folder, "record"))
    without = {cell for cell, _, _ in failed}
    if failed and failed[-1][1] in ENDED:
        without |= {*range(failed[-1][0] + 1, len(sources) + 1)}
    for cell in without - {0}:
        for number in NAMED.findall(sources[cell - 1]):
            marks.setdefault(number.strip().replace(",", "."))
    marks = {number: mark or NO_VERDICT for number, mark in marks.items() if mark or failed}
    cells = {}  # of each failure: the same one is said once
    for cell, *failure in filter(lambda each: each[0], failed):
        cells.setdefault(tuple(failure), []).append(cell)
    for (key, error), which in cells.items():
        gaps = {"cells": ", ".join(map(str, which)), "error": error}
        sentences.append(said(key, name=name, **gaps, seconds=seconds, total=total))
    if not marks and not sentences:
        sentences.append(said("no checks", name=name))
    return marks, sentences


def _read(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a cell without an id, as older Jupyters wrote it
        text = path.read_bytes().decode("utf-8-sig")  # with the mark of some editors, or without
        return nbformat.reads(text, as_version=4)


def _copy_what_lies_beside(path, folder):
    """Modules and data, but no notebooks, and no folders that hold some: other people's."""

    def others(parent, names):
        return [
            name
            for name in names
            if name.startswith(".")
            or name == "__pycache__"
            or name.endswith(".ipynb")
            or any(Path(parent, name).glob("*.ipynb"))
        ]

    here = path.resolve().parent
    shutil.copytree(here, folder, ignore=others, ignore_dangling_symlinks=True)


async def _failures(sources, folder, seconds, total):
    """Runs the cells in a kernel; yields (cell, key, error) for each that failed."""
    async with _kernel(folder) as run:
        until = time.monotonic() + total
        for cell, source in enumerate(sources, 1):
            left = until - time.monotonic()
            key, error = await run(source, min(seconds, left)) if left > 0 else ("budget", None)
            if key in ("slow", "endless") and left < seconds:
                key = "budget"
            if key:
                yield cell, key, error
            if key in ENDED:
                return


@contextlib.asynccontextmanager
async def _kernel(folder):
    """A kernel that works in `folder`/notebook; yields run(source, seconds) -> (key, error)."""
    manager = AsyncKernelManager(kernel_name="python3", log=logging.Logger("kernels", "CRITICAL"))
    manager.connection_file = str(folder / "kernel.json")
    if os.name == "posix":
        manager.transport = "ipc"  # sockets in that folder, which is its owner's: no ports
    beside = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    settings = {VARIABLE: str(folder / "record"), "PYTHONPATH": beside}
    settings |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # others run, too
    await manager.start_kernel(
        cwd=str(folder / "notebook"),
        env=os.environ | settings,
        extra_arguments=["--HistoryManager.enabled=False"],
        **nowhere,
    )
    process = manager.provisioner.pid
    client = manager.client()
    client.start_channels(iopub=False, stdin=False, hb=False)  # nobody reads what cells print

    async def run(source, seconds):
        return await _reply(manager, client, source, seconds)

    try:
        key, error = await run(FIRST, STARTUP)
        if key:
            raise RuntimeError(f"its kernel did not start ({error or key})")
        yield run
    finally:
        client.stop_channels()
        _end(process)
        await manager.shutdown_kernel(now=True)


def _end(process):
    """Ends a kernel and all that it started, which may outlive it."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # jupyter_client makes it the leader of a group
    else:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process).children(recursive=True):
                child.kill()


async def _reply(manager, client, source, seconds):
    """(key, error): what became of the cell, None if it ran to its end, and what it raised."""
    asked = client.execute(source, store_history=False, stop_on_error=False, allow_stdin=False)
    interrupted, until = False, time.monotonic() + seconds
    while True:
        try:
            reply = await client.get_shell_msg(timeout=0.5)
        except queue.Empty:
            if not await manager.is_alive():
                return "died", None
            if time.monotonic() < until:
                continue
            if interrupted:
                return "endless", None
            await manager.interrupt_kernel()
            interrupted, until = True, time.monotonic() + GRACE
            continue
        if reply["parent_header"].get("msg_id") != asked:
            continue
        if interrupted:
            return "slow", None
        content = reply["content"]
        if content["status"] == "ok":
            return None, None
        return "raised", f"{content.get('ename')}: {first_line(content.get('evalue', ''))}"


def first_line(error):
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
