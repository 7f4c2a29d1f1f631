"""What this machine has, and what that means for the course, in plain words."""

import importlib.metadata
import platform
import unicodedata
from pathlib import Path

import torch

from helpers.lessons import VERIFIED_WITH
from helpers.lessons.language import _
from helpers.ops.involution.compiler import CompilerNotFoundError, find_compiler


def report():
    """Six lines: Python, torch, CuPy, Triton, C++ compiler, GPU; what each means."""
    rows = [_python(), _torch(), _cupy(), _triton(), _compiler(), _gpu()]
    width = max(_columns(found) for found, _meaning in rows)
    return "\n".join(
        f"{found}{' ' * (width - _columns(found))}  {meaning}"
        for found, meaning in rows
    )


def _columns(text):
    """How wide it is in a fixed font, where a Chinese character takes two columns."""
    return len(text) + sum(unicodedata.east_asian_width(c) in "WF" for c in text)


def _python():
    return f"Python {platform.python_version()}", _("good for every chapter")


def _torch():
    version = torch.__version__.split("+")[0]
    if version == VERIFIED_WITH:
        return f"torch {version}", _("the version that every output was verified with")
    return f"torch {version}", _(
        "outputs may differ: they were verified with {version}", version=VERIFIED_WITH
    )


def _version(*names):
    """That of the first of these distributions that is installed, or None."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def _cupy():
    version = _version("cupy-cuda13x", "cupy-cuda12x", "cupy")
    if version:
        return f"CuPy {version}", _(
            "chapters 07 and 15 can compile CUDA kernels, even without a GPU"
        )
    return _("no CuPy"), _(
        "chapters 07 and 15 say so where they would compile CUDA kernels"
    )


def _triton():
    version = _version("triton")
    if version:
        return f"Triton {version}", _(
            "chapter 15 can run its kernels, even without a GPU"
        )
    return _("no Triton"), _("chapter 15 says so where it would run a kernel")


def _compiler():
    try:
        command = find_compiler()
    except CompilerNotFoundError as error:
        return _("no C++ compiler"), _(
            "chapters 07 to 09, 15 and 16 say so where they need it: {error}",
            error=str(error),
        )
    name = "zig" if "ziglang" in command else Path(command[0]).name
    return _("compiler {name}", name=name), _(
        "chapters 07 to 09, 15 and 16 can build C++, and run CUDA on the CPU"
    )


def _gpu():
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(), _(
            "the CUDA kernels of chapters 07 and 15 run on it"
        )
    return _("no CUDA GPU"), _("not needed: every chapter runs without one")
