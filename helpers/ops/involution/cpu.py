"""Involution on a CPU: `cpu_kernels.cpp`, compiled here at first use.

The compiler takes a few seconds, once: the library stays in the user's cache folder,
under a name made of the source, the compiler, its flags and the machine's instructions.
Without a compiler `plain.py` does the work, and also if the build fails, then with one
warning.

A call needs no memory but its result and a buffer for each thread, of a megabyte or so
and of 4 at most: where a large dilation would need more, `plain.py` does the work. It
copies no tensor, whatever its strides, releases the GIL, and uses
`torch.get_num_threads()` threads. It starts them itself: PyTorch's belong to an OpenMP
library that the compiler may not find, or find another of. Results have the same bits
for any number of threads.
"""

import ctypes
import os
import shutil
import warnings
from functools import partial
from pathlib import Path

import torch

from . import plain
from .compiler import (
    BuildError,
    CompilerNotFoundError,
    cached_file,
    find_compiler,
    run,
    temporary_folder,
)
from .geometry import ARRAYS, DTYPES, KERNELS, empty_result, part

SOURCE = Path(__file__).with_name("cpu_kernels.cpp")
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-pthread", "-Wno-psabi"]
# The first one that the compiler accepts.
MACHINES = ["-march=native"], ["-mcpu=native"], []

WINDOW_TOO_LARGE = 2  # what the library returns then

_library = None  # not yet looked for, then the function, or False
_reason = ""


def available():
    """Whether the kernels are ready. The first call builds or finds them."""
    global _library, _reason
    if _library is None:
        try:
            _library, _reason = build()
        except CompilerNotFoundError as error:
            _library, _reason = False, str(error)
        except (BuildError, OSError) as error:
            _library, _reason = False, f"the C++ kernels were not built: {error}"
            warnings.warn(
                f"{_reason}\ninvolution2d runs in plain PyTorch instead", stacklevel=2
            )
    return bool(_library)


def reason():
    """Where the library lies, or why there is none."""
    available()
    return _reason


def build():
    """(the function `involution2d` of the library, a sentence on where it lies)."""
    source = SOURCE.read_text(encoding="utf-8")
    for machine in MACHINES:
        command = [*find_compiler(), *FLAGS, *machine]
        compile_to = partial(run, *command, "-shared", str(SOURCE), "-o")
        try:
            # What the compiler defines before the first line: its version, and the
            # machine's skills
            defined = run(*command, "-dM", "-E", "-x", "c++", os.devnull)
            path = cached_file(
                "involution2d_*.so", [source, *command, defined], compile_to
            )
        except BuildError as error:
            failure = error
        else:
            return _load(path), f"{path}, built by {' '.join(command)}"
    raise failure


def _load(path):
    try:
        function = ctypes.CDLL(str(path)).involution2d
    except OSError as error:  # nothing may be executed that lies there, say
        path = shutil.copy(path, temporary_folder(str(error)))
        function = ctypes.CDLL(str(path)).involution2d
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 3 + [ctypes.c_int]
    return function


def _run(kernel, first, second, geometry):
    result = empty_result(kernel, first, geometry)
    if result.numel() == 0:
        return result
    tensors = dict(zip(map(part, ARRAYS[kernel]), (first, second, result), strict=True))
    tensors = [tensors[array] for array in ("input", "weight", "output")]
    strides = [stride for tensor in tensors for stride in tensor.stride()]
    failed = _library(
        KERNELS.index(kernel),
        DTYPES.index(first.dtype),
        (ctypes.c_int64 * len(geometry))(*geometry),
        (ctypes.c_void_p * 3)(*[t.data_ptr() for t in tensors]),
        (ctypes.c_int64 * len(strides))(*strides),
        torch.get_num_threads(),
    )
    if failed == WINDOW_TOO_LARGE:
        return getattr(plain, kernel)(first, second, geometry)
    if failed:
        raise MemoryError("not enough memory for the buffers of the involution kernel")
    return result


# The same three functions as in plain.py and cuda.py.
forward, grad_input, grad_weight = (partial(_run, kernel) for kernel in KERNELS)
