"""C and C++ that learners write: compiled in a moment, and tried where a crash does no harm."""

import ctypes
import faulthandler
import os
import re
import signal
import subprocess
import tempfile
from math import nan
from pathlib import Path

import torch

from helpers.ops.involution.compiler import find_compiler

MARGIN = 4096  # elements on both sides of an array, which nobody may write to
PROCESSOR_SECONDS, SECONDS = 2, 30  # after which a trial is stopped
SURVIVED = 77  # the exit status of a trial that came to its end


class NativeError(Exception):
    """What is wrong with a source or a call, as a sentence for a learner."""


def compile_library(source, language, doors="", calls=""):
    """A `ctypes.CDLL` made of `source`, in "c" or "c++". Raises NativeError if it does not compile.

    doors: our own text behind it, which calls functions of `source` in the way that `calls` shows.
    Lines are counted as in a cell that begins with `NAME = \"""`. Raises CompilerNotFoundError
    where there is no compiler.
    """
    # On Windows a library cannot be deleted while it is open.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        text, library = Path(folder, "source"), Path(folder, "library.so")
        text.write_text(
            "#include <stddef.h>\n#include <stdint.h>\n"
            f'#line 1 "cell"\n{source}\n#line 1 "doors"\n{doors}',
            encoding="utf-8",
        )
        options = ["-O1", "-fPIC", "-shared", "-x", language]
        if language == "c++":
            options += ["-std=c++17"]
        else:
            options += ["-Werror=implicit-function-declaration", "-D_GNU_SOURCE"]
        command = [*find_compiler(), *options, str(text), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NativeError(_first_error(done.stderr, calls))
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:
            missing = re.search(r"undefined symbol: (\w+)", str(error))
            if not missing:
                raise
            raise NativeError(f"it calls `{missing[1]}`, which is defined nowhere.") from None


def _first_error(text, calls):
    error = r":(\d+):(?:\d+:)? (?:fatal )?error: (.*)"
    found = re.search("^(cell|doors)" + error, text, re.MULTILINE) or re.search(
        r"(\w+)" + error, text
    )
    if not found:
        return f"it does not compile: {text[:200]}"
    file, line, message = found.groups()
    if file == "doors":
        return f"the check calls {calls}, and that does not fit. Look at name and parameters."
    where = f" in line {line} of the cell" if file == "cell" else ""
    return f"it does not compile{where}: {message}"


def call(library, name, arguments, result, says=""):
    """Call a function of `library`. Tensors are passed by address, ints as int64_t.

    arguments: a dict in the order of the parameters. result: the name of the one that is written;
    it starts as nan. says: the name that a learner knows the function by.
    Each tensor lies in a copy of its memory, with a margin on both sides. Raises NativeError if
    there is no such function, a margin or an input is written to, or the result is not.
    """
    says = says or name
    if not hasattr(library, name):
        raise NativeError(
            f"there is no function `{says}` in it. Look at the spelling; static and inline hide it."
        )
    places, margins, values = {}, {}, []
    arguments[result].fill_(torch.nan)
    for argument, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            values.append(ctypes.c_int64(value))
            continue
        count = value.untyped_storage().nbytes() // value.itemsize
        # What is read past the end of an input shows in the result.
        fill = nan if value.is_floating_point() and argument != result else 77
        memory = value.new_full((count + 2 * MARGIN,), fill)
        memory[MARGIN:-MARGIN] = value.as_strided((count,), (1,), 0)
        places[argument] = memory.as_strided(
            value.shape, value.stride(), MARGIN + value.storage_offset()
        )
        margins[argument] = fill, memory[:MARGIN], memory[-MARGIN:]
        values.append(ctypes.c_void_p(places[argument].data_ptr()))
    function = getattr(library, name)
    function.restype = None
    function(*values)
    for argument, place in places.items():
        fill, *sides = margins[argument]
        for where, margin in zip(("before the start", "past the end"), sides, strict=True):
            if not (margin.isnan() if fill is nan else margin == fill).all():
                raise NativeError(f"`{says}` writes {where} of `{argument}`.")
        if argument != result and not torch.equal(place, arguments[argument]):
            raise NativeError(f"`{says}` changes `{argument}`, which is an input.")
    arguments[result].copy_(places[result])
    finite = [v.isfinite().all() for k, v in arguments.items() if k in places and k != result]
    if all(finite) and arguments[result].isnan().any():
        raise NativeError(
            f"`{says}` leaves elements of `{result}` without a value, or reads what has none, as "
            "+= does, or an index past the end, or a pointer of another type."
        )


def crash_of(function):
    """None if `function()` leaves a copy of this process alive, otherwise a sentence."""
    if not hasattr(os, "fork"):  # Windows
        return None
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        for number in (signal.SIGVTALRM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_VIRTUAL, PROCESSOR_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            function()
        finally:
            os._exit(SURVIVED)  # what it raises will be said in the parent
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:  # an interrupted cell
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status) == SURVIVED:
            return None
        return "it ends the process that calls it (exit)."
    number = os.WTERMSIG(status)
    if number in (signal.SIGVTALRM, signal.SIGALRM):
        return "it does not end: the copy of this process that tried it was stopped."
    why = {
        signal.SIGSEGV: " Which index leaves its array?",
        signal.SIGBUS: " Which index leaves its array?",
        signal.SIGABRT: " Does an exception leave it, or does it call abort?",
        signal.SIGFPE: " Does it divide by zero?",
    }
    name = signal.Signals(number).name
    return f"it crashed the copy of this process that tried it ({name}).{why.get(number, '')}"
