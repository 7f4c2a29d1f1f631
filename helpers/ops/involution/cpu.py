"""Involution on a CPU: `cpu_kernels.cpp`, compiled for this machine at first use, called by ctypes.

The compiler that `host.py` finds takes a few seconds, once: the library stays in the user's cache
folder, under a name made of the source, the compiler, its flags and the machine's instructions.
Several processes may build at once, each into a file of its own, renamed when it is whole.
Without a compiler `plain.py` does the work, and also if the build fails, then with one warning.

A call needs no memory but its result and a buffer of less than a megabyte for each thread. It
copies no tensor, whatever its strides, releases the GIL, and uses `torch.get_num_threads()`
threads. Results have the same bits for any number of them.
"""

import atexit
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from functools import partial
from pathlib import Path

import torch

from .host import CompilerNotFoundError, find_compiler

SOURCE = Path(__file__).with_name("cpu_kernels.cpp")
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-pthread", "-Wno-psabi"]
MACHINES = (["-march=native"], ["-mcpu=native"], [])  # the first one that the compiler accepts
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

_lock = threading.Lock()
_library = None  # not yet looked for, then the function, or False
_reason = ""


class BuildError(RuntimeError):
    """The compiler, or the loader, said no. Holds its first line that tells why."""


def available():
    """Whether the kernels are ready. The first call builds them, or finds them built."""
    global _library, _reason
    if _library is None:
        with _lock:
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
    """(the function `involution2d` of the library, a sentence on where it lies)"""
    source = SOURCE.read_text(encoding="utf-8")
    for machine in MACHINES:
        command = [*find_compiler(), *FLAGS, *machine]
        # What the compiler defines before the first line: its version, and what the machine can do
        probe = _compile([*command, "-dM", "-E", "-x", "c++", os.devnull])
        if probe.returncode == 0:
            key = "\n".join([source, *command, probe.stdout])
            name = hashlib.sha256(key.encode()).hexdigest()[:24]
            path = cache_folder() / f"involution2d_{name}.so"
            if path.exists():
                return _load(path), f"{path}, built by {' '.join(command)}"
            # A name of its own for each process: the last one to finish wins, all are the same.
            handle, unfinished = tempfile.mkstemp(suffix=".unfinished", dir=path.parent)
            os.close(handle)
            try:
                probe = _compile([*command, "-shared", str(SOURCE), "-o", unfinished])
                if probe.returncode == 0:
                    os.replace(unfinished, path)
                    return _load(path), f"{path}, built by {' '.join(command)}"
            finally:
                Path(unfinished).unlink(missing_ok=True)
    lines = probe.stderr.strip().splitlines() or [f"{command[0]} ended with {probe.returncode}"]
    raise BuildError(next((line for line in lines if "error" in line), lines[0]))


def _compile(command):
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def _load(path):
    function = ctypes.CDLL(str(path)).involution2d
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 3 + [ctypes.c_int]
    return function


def cache_folder():
    """A folder that only this user writes to, or a temporary one where there is none."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "extending_pytorch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    except OSError:
        pass
    folder = Path(tempfile.mkdtemp(prefix="extending_pytorch_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _run(kernel, first, second, geometry):
    s = geometry
    size = (s.output_size, s.input_size, s.weight_size)[kernel]
    memory_format = torch.contiguous_format
    if kernel < 2 and is_channels_last(first):
        memory_format = torch.channels_last
    result = torch.empty(size, dtype=first.dtype, memory_format=memory_format)
    if result.numel() == 0:
        return result
    input, weight, output = (
        (first, second, result),
        (result, second, first),
        (second, result, first),
    )[kernel]
    tensors = input, weight, output
    strides = [*input.stride(), *weight.stride(), *output.stride()]
    failed = _library(
        kernel,
        TYPES.index(first.dtype),
        (ctypes.c_int64 * len(s))(*s),
        (ctypes.c_void_p * 3)(*[t.data_ptr() for t in tensors]),
        (ctypes.c_int64 * len(strides))(*strides),
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError("not enough memory for the buffers of the involution kernel")
    return result


def is_channels_last(tensor):
    last = tensor.is_contiguous(memory_format=torch.channels_last)
    return last and not tensor.is_contiguous()


# The same three functions as in plain.py and cuda.py.
forward, grad_input, grad_weight = (partial(_run, kernel) for kernel in range(3))
