"""The C++ compiler of this machine, and a folder that keeps what it built.

What lies in that folder is loaded into the process, so it must be the user's own. It
may be deleted at any time: what is missing is built again.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PATIENCE = 600  # seconds that a compiler may take, on a machine that is busy


class CompilerNotFoundError(RuntimeError):
    """There is no C++ compiler on this machine."""


class BuildError(RuntimeError):
    """The compiler said no. Holds the first line that tells why."""


@cache
def find_compiler():
    """The command that runs a C++ compiler, as a list. Raises CompilerNotFoundError."""
    if sys.platform == "win32":
        raise CompilerNotFoundError(
            "this needs Linux or macOS; on Windows, work in WSL"
        )
    for command in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        name, *options = shlex.split(command) or [""]  # "ccache g++" has two words
        if name and shutil.which(name):
            return [shutil.which(name), *options]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise CompilerNotFoundError(
        "no C++ compiler was found (g++, clang++); `pip install ziglang` brings one"
    )


def run(*command):
    """What a compiler prints. Raises BuildError if it fails, or does not end."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} took more than {PATIENCE} seconds") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        lines = lines or [f"{command[0]} ended with {done.returncode}"]
        telling = [line for line in lines if "error" in line or "No space left" in line]
        raise BuildError((telling or lines)[0])
    return done.stdout


def cached_file(pattern, key, build):
    """The path of a file in the cache folder; if missing, `build(path)` writes it.

    pattern: of its name, such as "kernel_*.so". key: the texts that it is made of, the
    source and the command among them; their hash stands for the star. It is built into
    a file of its own, which gets its name when it is whole.
    """
    key = "\n".join([platform.machine(), *key])
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    path = cache_folder() / pattern.replace("*", digest)
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = os.path.join(folder, path.name)
            build(unfinished)
            os.replace(unfinished, path)
    return path


def cache_folder():
    """A folder that only this user writes to; or a temporary one, and a warning."""
    if sys.platform == "darwin":
        base = Path("~/Library/Caches")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = base.expanduser() / "extending_pytorch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_own(folder) and os.access(folder, os.W_OK):
            return folder
        why = f"{folder} is not a folder that only you can write to"
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        why = str(error)
    return temporary_folder(why)


def _is_own(folder):
    if not hasattr(os, "getuid"):  # on Windows, it lies in the user's profile
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


@cache
def temporary_folder(why):
    """One for this process, and for one reason, of which it warns."""
    warnings.warn(
        f"{why}: what is compiled now is gone when this process ends", stacklevel=2
    )
    folder = tempfile.TemporaryDirectory(prefix="extending_pytorch_")
    _temporary.append(folder)  # removed when the process ends
    return Path(folder.name)


_temporary = []
