"""The C++ compiler of this machine, and a folder that keeps what it built.

What lies in that folder is loaded into the process. So it counts only if no other user can
have written it, and if it still has the digest that is kept beside it; else it is built again.
"""

import atexit
import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is compiled, and two processes may write one report
    fcntl = None

KEPT = 1000  # files of one pattern in the cache folder
PATIENCE = 600  # seconds that a compiler may take, on a machine that is busy


class CompilerNotFoundError(RuntimeError):
    """There is no C++ compiler on this machine."""


class BuildError(RuntimeError):
    """The compiler said no. Holds the first line that tells why."""


@cache
def find_compiler():
    """The command that runs a C++ compiler, as a list. Raises CompilerNotFoundError."""
    if sys.platform == "win32":
        raise CompilerNotFoundError("this needs Linux or macOS; on Windows, work in WSL")
    for command in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        name, *options = shlex.split(command) or [""]  # "ccache g++" is a command of two words
        if name and shutil.which(name):
            return [shutil.which(name), *options]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise CompilerNotFoundError(
        "no C++ compiler was found (g++, clang++); `pip install ziglang` brings one"
    )


def run(*command):
    """What a compiler prints to stdout. Raises BuildError if it fails, or does not end."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # it starts others, which would outlive it
    ) as process:
        try:
            printed, errors = process.communicate(timeout=PATIENCE)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BuildError(f"{command[0]} took more than {PATIENCE} seconds") from None
            raise
    if process.returncode:
        lines = errors.strip().splitlines() or [f"{command[0]} ended with {process.returncode}"]
        for telling in ("No space left", "error"):  # a full disk is the linker's error only then
            for line in lines:
                if telling in line:
                    raise BuildError(line)
        raise BuildError(lines[0])
    return printed


def cached_file(pattern, key, build):
    """The path of a file in the user's cache folder; if it is not there, `build(path)` writes it.

    pattern: of its name, such as "kernel_*.so". key: the texts that it is made of, the source and
    the command among them; they stand for the star. One process builds, into a file that is renamed
    when it is whole, and the others wait. The oldest files of a pattern are forgotten.
    """
    digest = hashlib.sha256("\n".join([platform.machine(), *key]).encode()).hexdigest()[:24]
    folder = cache_folder()
    path = folder / pattern.replace("*", digest)
    if not _is_whole(path):
        with _one_at_a_time(path) as write_digest:
            if not _is_whole(path):
                try:
                    _write(path, build)
                except BaseException:
                    _beside(path).unlink(missing_ok=True)
                    raise
                write_digest(_digest(path))
                for old in sorted(folder.glob(pattern), key=_last_change)[:-KEPT]:
                    old.unlink(missing_ok=True)
                    _beside(old).unlink(missing_ok=True)
    return path


def _write(path, build):
    handle, unfinished = tempfile.mkstemp(suffix=".unfinished", dir=path.parent)
    os.close(handle)
    try:
        build(unfinished)
        os.chmod(unfinished, 0o700)  # a linker asks the umask, which may let a group write
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


@contextlib.contextmanager
def _one_at_a_time(path):
    """Yields what writes the digest. The system opens the lock of a process that was killed."""
    beside = os.open(_beside(path), os.O_RDWR | os.O_CREAT, 0o600)
    with open(beside, "r+", encoding="ascii") as file, contextlib.ExitStack() as stack:
        if fcntl:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
                # A child that was forked meanwhile holds the file, too: closing is not enough.
                stack.callback(fcntl.flock, file, fcntl.LOCK_UN)

        def write(digest):
            file.truncate()
            file.write(digest)
            file.flush()

        yield write


def _beside(path):
    return path.with_name(f"{path.name}.sha256")


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_whole(path):
    try:
        ours = is_private(path) and is_private(_beside(path))
        return ours and _beside(path).read_text(encoding="ascii") == _digest(path)
    except (OSError, UnicodeDecodeError):
        return False


def _last_change(path):
    with contextlib.suppress(OSError):  # another process forgets them, too
        return path.stat().st_mtime
    return 0.0


def is_private(path):
    """Whether no other user can write to it. (On Windows, its folder lies in the profile.)"""
    status = path.stat()
    return not hasattr(os, "getuid") or (
        status.st_uid == os.getuid() and not status.st_mode & 0o022
    )


def cache_folder():
    """A folder that only this user writes to; or a temporary one, and a warning."""
    try:
        if sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "extending_pytorch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_private(folder) and os.access(folder, os.W_OK):
            return folder
        return temporary_folder(f"{folder} is not a folder that only you can write to")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return temporary_folder(str(error))


@cache
def temporary_folder(why):
    """One for this process, and for one reason, of which it warns."""
    warnings.warn(f"{why}: what is compiled now is gone when this process ends", stacklevel=2)
    folder, process = Path(tempfile.mkdtemp(prefix="extending_pytorch_")), os.getpid()

    def remove():
        if os.getpid() == process:  # not its forks
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
