"""CUDA sources compiled to machine code, without a device, by NVRTC.

>>> source = "template <typename T> __global__ void fill(T* x) { x[threadIdx.x] = T(1); }"
>>> compile_for(80, source, ["fill<float>"])["fill<float>"].spilled_bytes  # doctest: +SKIP
0
"""

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

from helpers.ops.involution.compiler import cached_file


class NvrtcError(RuntimeError):
    """What NVRTC says about a source that it cannot compile."""


class Resources(NamedTuple):
    """What one thread of a kernel uses. Spilled registers live in slow memory."""

    registers: int
    stack_bytes: int
    spilled_bytes: int


def architectures():
    """The numbers that NVRTC accepts, [75, 80, ...].

    Raises ImportError without CuPy or NVRTC.
    """
    return sorted(_nvrtc().getSupportedArchs())


def compile_for(architecture, source, names):
    """Compile `source` for one architecture, 90 for example; return {name: Resources}.

    names: the kernels to compile, template arguments included. What was compiled once
    is not compiled again. Raises NvrtcError with the compiler's messages if the source
    does not compile, ImportError without CuPy or NVRTC.
    """
    nvrtc = _nvrtc()
    options = [*options_for(architecture), "--split-compile=0"]  # uses the idle cores
    key = [source, *names, *options, version()]
    report = cached_file(
        "nvrtc_*.json", key, partial(_compile, nvrtc, source, names, options)
    )
    log, mangled = json.loads(Path(report).read_bytes())
    return {name: _resources(log, mangled[name]) for name in names}


def version():
    """NVRTC's version, as a text."""
    return str(_nvrtc().getVersion())


def machine_code(architecture, source, names):
    """What a GPU of this architecture would load, and {name: its name there}.

    It is made without split-compile, as by CuPy: with it the code for sm_120 is longer.
    """
    nvrtc = _nvrtc()
    program, mangled = _compiled(nvrtc, source, names, options_for(architecture))
    try:
        return nvrtc.getCUBIN(program) + b"\0", mangled  # CuPy takes the last byte off
    finally:
        nvrtc.destroyProgram(program)


def options_for(architecture):
    # CuPy adds -ftz=true, too. ptxas reports registers and spills in the log.
    options = [
        "--std=c++17",
        f"-arch=sm_{architecture}",
        "-ftz=true",
        "--ptxas-options=-v",
    ]
    return [*options, *(f"-I{folder}" for folder in _header_folders())]


def _compile(nvrtc, source, names, options, report):
    program, mangled = _compiled(nvrtc, source, names, options)
    said = json.dumps([nvrtc.getProgramLog(program), mangled])
    nvrtc.destroyProgram(program)
    Path(report).write_text(said, encoding="utf-8")


def _compiled(nvrtc, source, names, options):
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        nvrtc.compileProgram(program, tuple(options))
        return program, {name: nvrtc.getLoweredName(program, name) for name in names}
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip()
        nvrtc.destroyProgram(program)
        raise NvrtcError(log) from error


def _nvrtc():
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()  # loads the library
    except Exception as error:
        raise ImportError(
            "compiling CUDA sources needs CuPy with NVRTC: pip install "
            "'cupy-cuda13x[ctk]'"
        ) from error
    return nvrtc


def _header_folders():
    """Where cuda_fp16.h is: in the wheels nvidia-*, or in a CUDA toolkit."""
    roots = [
        Path(os.environ[name])
        for name in ("CUDA_PATH", "CUDA_HOME")
        if name in os.environ
    ]
    try:
        import nvidia

        roots += [folder for path in nvidia.__path__ for folder in Path(path).iterdir()]
    except ImportError:
        pass
    roots.append(Path("/usr/local/cuda"))
    return [
        root / "include"
        for root in roots
        if (root / "include" / "cuda_fp16.h").exists()
    ]


def _resources(log, mangled):
    section = log.split(f"Function properties for {mangled}\n")[1]
    sizes = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes", section
    )
    stack, stores, loads = map(int, sizes.groups())
    registers = int(re.search(r"Used (\d+) registers", section).group(1))
    return Resources(registers, stack, stores + loads)
