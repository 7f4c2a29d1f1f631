"""C and C++ that learners write: compiled in a moment, and tried where a crash does no harm."""

import ctypes
import faulthandler
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import torch

from helpers.ops.involution.host import find_compiler

MARGIN = 64  # elements on both sides of an array, which nobody may write to
SECONDS = 5  # of processor time


class NativeError(Exception):
    """What is wrong with a source or a call, as a sentence for a learner."""


def compile_library(source, language):
    """A `ctypes.CDLL` made of `source`, in "c" or "c++". Raises NativeError if it does not compile.

    Raises CompilerNotFoundError where there is no compiler.
    """
    # On Windows a library cannot be deleted while it is open.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        text, library = Path(folder, "source"), Path(folder, "library.so")
        text.write_text("#include <stdint.h>\n#line 1\n" + source.strip("\n"), encoding="utf-8")
        options = ["-O1", "-w", "-fPIC", "-shared", "-x", language]
        if language == "c++":
            options += ["-std=c++17"]
        command = [*find_compiler(), *options, str(text), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            found = re.search(r":(\d+):(?:\d+:)? (?:fatal )?error: (.*)", done.stderr)
            where = f" in line {found[1]}: {found[2]}" if found else ": " + done.stderr[:200]
            raise NativeError(f"it does not compile{where}")
        return ctypes.CDLL(str(library))


def call(library, name, *arguments):
    """Call a function of `library`. Tensors are passed by address, ints as int64_t.

    Each tensor lies in a copy of its memory, with a margin on both sides; afterwards it gets what
    the function wrote. Raises NativeError if there is no such function, or a margin was written to.
    """
    if not hasattr(library, name):
        raise NativeError(f"there is no function `{name}` in it. Look at the spelling.")
    places, margins = {}, {}
    for number, tensor in enumerate(arguments):
        if isinstance(tensor, torch.Tensor):
            count = tensor.untyped_storage().nbytes() // tensor.itemsize
            memory = tensor.new_full((count + 2 * MARGIN,), 77)
            memory[MARGIN:-MARGIN] = tensor.as_strided((count,), (1,), 0)
            start = MARGIN + tensor.storage_offset()
            places[number] = memory.as_strided(tensor.shape, tensor.stride(), start)
            margins[number] = memory[:MARGIN], memory[-MARGIN:]
    values = [
        ctypes.c_void_p(places[n].data_ptr()) if n in places else ctypes.c_int64(value)
        for n, value in enumerate(arguments)
    ]
    function = getattr(library, name)
    function.restype = None
    function(*values)
    for number, place in places.items():
        for side, margin in zip(("before the start", "past the end"), margins[number], strict=True):
            if not (margin == 77).all():
                raise NativeError(f"`{name}` writes {side} of an array.")
        same = torch.allclose(place, arguments[number], rtol=0, atol=0, equal_nan=True)
        if not same:  # otherwise autograd would take an input for changed
            arguments[number].copy_(place)


def crash_of(function):
    """None if `function()` leaves a copy of this process alive, otherwise a sentence."""
    if not hasattr(os, "fork"):  # Windows
        return None
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            function()
        finally:
            os._exit(0)  # what it raises will be said in the parent
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        return None
    if os.WTERMSIG(status) == signal.SIGVTALRM:
        return f"it does not end: a copy of this process was stopped after {SECONDS} seconds."
    return (
        "it crashed the copy of this process that tried it "
        f"({signal.Signals(os.WTERMSIG(status)).name}). Which index leaves its array?"
    )
