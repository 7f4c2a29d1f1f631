"""The C++ compiler of this machine, and a folder that keeps what it built."""

import atexit
import contextlib
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

KEPT = 500  # files of one pattern in the cache folder


class CompilerNotFoundError(RuntimeError):
    """There is no C++ compiler on this machine."""


@cache
def find_compiler():
    """The command that runs a C++ compiler, as a list. Raises CompilerNotFoundError."""
    if sys.platform == "win32":
        raise CompilerNotFoundError("this needs Linux or macOS; on Windows, work in WSL")
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return [shutil.which(name)]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise CompilerNotFoundError(
        "no C++ compiler was found (g++, clang++); `pip install ziglang` brings one"
    )


def cached_file(pattern, key, build):
    """The path of a file in the user's cache folder; if it is not there, `build(path)` writes it.

    pattern: of its name, such as "kernel_*.so". key: the texts that it is made of, the source and
    the command among them; they stand for the star. Several processes may build at once, each into
    a file of its own, renamed when it is whole. The oldest files of a pattern are forgotten.
    """
    digest = hashlib.sha256("\n".join([platform.machine(), *key]).encode()).hexdigest()[:24]
    folder = cache_folder()
    path = folder / pattern.replace("*", digest)
    if not path.exists():
        handle, unfinished = tempfile.mkstemp(suffix=".unfinished", dir=folder)
        os.close(handle)
        try:
            build(unfinished)
            os.replace(unfinished, path)
        finally:
            Path(unfinished).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process forgets them, too
            for old in sorted(folder.glob(pattern), key=os.path.getmtime)[:-KEPT]:
                old.unlink()
    return path


def cache_folder():
    """A folder that only this user writes to, or a temporary one where there is none."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "extending_pytorch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_ours = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()  # Windows
        if is_ours and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _temporary_folder()


@cache
def _temporary_folder():
    folder = Path(tempfile.mkdtemp(prefix="extending_pytorch_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
