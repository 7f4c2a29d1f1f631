"""C and C++ that learners write, compiled in a moment, where a crash does no harm."""

import ctypes
import faulthandler
import mmap
import os
import re
import signal
import subprocess
from functools import cache
from math import isnan, nan

import torch

from helpers.lessons.language import N_, _, followed
from helpers.ops.involution.compiler import cached_file, find_compiler

MARGIN = 4096  # elements on both sides of an array, which must not be written to
PROCESSOR_SECONDS, SECONDS = 2, 30  # after which a trial is stopped
SURVIVED = 77  # the exit status of a trial that came to its end
# The last call, which a copy of this process and its parent both see.
TRIED = mmap.mmap(-1, 256)


class NativeError(Exception):
    """What is wrong with a source or a call, in a sentence for a learner."""


def compile_library(source, language, doors, calls):
    """A `ctypes.CDLL` made of `source`, or NativeError if it does not compile.

    doors: our own text behind it, which calls functions of `source` in the way that
    `calls` shows. Lines are counted as in a cell that begins with `NAME = \"""`. Raises
    CompilerNotFoundError where there is no compiler.
    """
    text = (
        "#include <stddef.h>\n#include <stdint.h>\n"
        f'#line 1 "cell"\n{source}\n#line 1 "doors"\n{doors}'
    )
    # C may pass `return 1;` in a void function, and C++, too, a missing return.
    options = ["-O1", "-fPIC", "-shared", "-Werror=return-type", "-x", language]
    if language == "c++":
        options += ["-std=c++17"]
    else:
        options += ["-Werror=implicit-function-declaration", "-D_GNU_SOURCE"]
    command = [*find_compiler(), *options]

    def build(library):
        whole = [*command, "-", "-o", library]
        done = subprocess.run(whole, input=text, capture_output=True, encoding="utf-8")
        if done.returncode:
            raise NativeError(_first_error(done.stderr, calls))

    key = [text, *command, compiler_version(tuple(find_compiler()))]
    try:
        return ctypes.CDLL(str(cached_file("attempt_*.so", key, build)))
    except OSError as error:
        missing = re.search(r"undefined symbol: (\w+)", str(error))
        if not missing:
            raise
        name = missing[1]
        raise NativeError(
            _("it calls `{name}`, which is defined nowhere.", name=name)
        ) from None


@cache
def compiler_version(compiler):
    return subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True
    ).stdout


def _first_error(text, calls):
    error = r":(\d+):(?:\d+:)? (?:fatal )?error: (.*)"
    found = re.search("^(cell|doors)" + error, text, re.MULTILINE) or re.search(
        r"(\w+)" + error, text
    )
    file, line, message = found.groups() if found else ("", "", text[:200])
    if file == "doors":
        return _(
            "the check calls {calls}, and that does not fit. Look at name and "
            "parameters.",
            calls=calls,
        )
    error = message.partition(" [-W")[0]
    if file == "cell":
        return _(
            "it does not compile in line {line} of the cell: {error}",
            line=line,
            error=error,
        )
    return _("it does not compile: {error}", error=error)


def call(library, name, arguments, result, says=""):
    """Call a function of `library`. Tensors are passed by address, ints as int64_t.

    arguments: a dict in the order of the parameters. result: the name of the one that
    is written; it starts as nan. says: the name that a learner knows the function by.
    Each tensor lies in a copy of its memory, with a margin on both sides. Raises
    NativeError if there is no such function, a margin or an input is written to, or the
    result is not, or is made of what has no value.
    """
    says = says or name
    if not hasattr(library, name):
        raise NativeError(
            _(
                "there is no function `{says}` in it. Look at the spelling; static "
                "and inline hide it.",
                says=says,
            )
        )
    ints = [
        f"{key} = {value}" for key, value in arguments.items() if isinstance(value, int)
    ]
    _note(says, ", ".join(ints))
    function = getattr(library, name)
    function.restype = None
    places = _run(function, arguments, result, says)
    arguments[result].copy_(places[result])
    inputs = {k: v for k, v in arguments.items() if k in places and k != result}
    unknown = arguments[result].isnan()
    if unknown.any() and all(value.isfinite().all() for value in inputs.values()):
        where = tuple(unknown.nonzero()[0].tolist())

        def again(**fills):
            return _run(function, arguments, result, says, fills)[result][where].item()

        gaps = {"says": says, "element": f"{result}{list(where)}"}
        other = again(**{result: 77})
        if other == 77:
            raise NativeError(_("`{says}` leaves {element} without a value.", **gaps))
        if not isnan(other):
            raise NativeError(
                _("`{says}` reads {element} before it has a value, as += does.", **gaps)
            )
        for key in inputs:
            if not isnan(again(**{key: 77})):
                raise NativeError(
                    _(
                        "for {element}, `{says}` reads `{key}` at an index past the "
                        "end, or before the start.",
                        key=key,
                        **gaps,
                    )
                )
        raise NativeError(_("`{says}` makes {element} nan.", **gaps))


BEYOND = (
    N_("`{says}` writes before the start of `{argument}`."),
    N_("`{says}` writes past the end of `{argument}`."),
)


def _run(function, arguments, result, says, fills=None):
    """The tensors among `arguments` after a call of `function`, in memory of their own.

    fills: {name: number} to fill other memory with than nan: that around an input,
    whose reading shows in the result, and the result itself.
    """
    fills = fills or {}
    places, margins, values = {}, {}, []
    for argument, value in arguments.items():
        if not torch.is_tensor(value):
            values.append(ctypes.c_int64(value))
            continue
        count = value.untyped_storage().nbytes() // value.itemsize
        fill = fills.get(argument, nan) if value.is_floating_point() else 77
        margin = 77 if argument == result else fill
        memory = value.new_full((count + 2 * MARGIN,), margin)
        inner = memory[MARGIN : MARGIN + count]
        inner.copy_(value.as_strided((count,), (1,), 0))
        if argument == result:
            inner.fill_(fill)
        start = MARGIN + value.storage_offset()
        places[argument] = memory.as_strided(value.shape, value.stride(), start)
        margins[argument] = margin, memory[:MARGIN], memory[MARGIN + count :]
        values.append(ctypes.c_void_p(memory.data_ptr() + start * value.itemsize))
    function(*values)
    for argument, place in places.items():
        fill, *sides = margins[argument]
        for beyond, margin in zip(BEYOND, sides, strict=True):
            if not (margin.isnan() if isnan(fill) else margin == fill).all():
                raise NativeError(_(beyond, says=says, argument=argument))
        if argument != result and not torch.equal(place, arguments[argument]):
            raise NativeError(
                _(
                    "`{says}` changes `{argument}`, which is an input.",
                    says=says,
                    argument=argument,
                )
            )
    return places


def _note(function="", ints=""):
    """What is tried now, for the parent of a copy of this process."""
    TRIED.seek(0)
    TRIED.write(f"{function}\n{ints}".encode().ljust(len(TRIED), b"\0"))


def _tried():
    """What was noted last."""
    function, ints = TRIED[:].rstrip(b"\0").decode().split("\n")
    if not function:
        return _("it")
    if not ints:
        return f"`{function}`"
    return _("`{function}` with {ints}", function=function, ints=ints)


def crash_of(function):
    """None if `function()` leaves a copy of this process alive, else a sentence."""
    if not hasattr(os, "fork"):  # Windows
        return None
    _note()
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
        status = os.waitpid(child, 0)[1]
    except BaseException:  # an interrupted cell
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    what = _tried()
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status) == SURVIVED:
            return None
        return _("{what} ends the process that calls it (exit).", what=what)
    number = os.WTERMSIG(status)
    if number in (signal.SIGVTALRM, signal.SIGALRM):
        return _(
            "{what} does not end: the copy of this process that tried it was stopped.",
            what=what,
        )
    why = {
        signal.SIGSEGV: _("Which index leaves its array?"),
        signal.SIGBUS: _("Which index leaves its array?"),
        signal.SIGABRT: _("Does an exception leave it, or does it call abort?"),
        signal.SIGFPE: _("Does it divide by zero?"),
    }
    name = signal.Signals(number).name
    crashed = _(
        "{what} crashed the copy of this process that tried it ({name}).",
        what=what,
        name=name,
    )
    return followed(crashed, why.get(number))
