"""How the C++ kernels are built and kept: what is missing, broken, planted, or busy."""

import ctypes
import os
import re
import signal
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from helpers.ops.involution import backend, compiler, cpu, involution2d, plain
from tests.involution.reference import SMALL, random_tensors
from tests.needs import needs_compiler

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


# What is there


def test_which_compiler_is_found(monkeypatch):
    find = compiler.find_compiler.__wrapped__
    monkeypatch.setattr(compiler.shutil, "which", lambda name: f"/bin/{name}" if name else None)
    monkeypatch.setenv("CXX", "ccache g++ -m64")  # may be several words
    assert find() == ["/bin/ccache", "g++", "-m64"]
    monkeypatch.delenv("CXX")
    assert find() == ["/bin/g++"]
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler, "find_spec", lambda name: name == "ziglang")
    assert find()[1:] == ["-m", "ziglang", "c++"]
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(compiler.CompilerNotFoundError, match="`pip install ziglang` brings one"):
        find()
    monkeypatch.setattr(compiler.sys, "platform", "win32")
    with pytest.raises(compiler.CompilerNotFoundError, match="on Windows, work in WSL"):
        find()


def test_backend_of_a_device_that_is_not_there(monkeypatch):
    assert backend("meta") == ("plain", "there is no kernel for meta")
    with monkeypatch.context() as with_rocm:  # where an AMD GPU is a "cuda" device, too
        with_rocm.setattr(torch.version, "hip", "6.4")
        assert backend("cuda") == ("plain", "there is no kernel for an AMD GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backend("cuda") == ("none", "this torch finds no CUDA device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it raises ImportError
    name, reason = backend("cuda:0")
    assert name == "none" and re.search(r"needs CuPy: pip install 'cupy-cuda\d\dx\[ctk\]'", reason)
    monkeypatch.setitem(sys.modules, "cupy", torch)
    assert backend("cuda").name == "cuda kernel"


# The build


@pytest.fixture
def unbuilt(monkeypatch, tmp_path):
    """As in a fresh process, with an empty cache."""
    monkeypatch.setattr(cpu, "_library", None)
    monkeypatch.setattr(cpu, "_reason", "")
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    return tmp_path


def write_source(folder, monkeypatch, number):
    """A library that takes no time to build."""
    monkeypatch.setattr(cpu, "SOURCE", folder / "tiny.cpp")
    cpu.SOURCE.write_text(f'extern "C" int involution2d() {{ return {number}; }}\n')


def assert_runs_in_plain_pytorch():
    input, weight, _ = random_tensors(SMALL["same size"])
    expected = plain.forward(input, weight, SMALL["same size"])
    assert involution2d(input, weight, padding=1).equal(expected)
    assert backend().name == "plain"


def test_without_a_compiler_plain_pytorch_runs_silently(unbuilt, monkeypatch):
    def find():
        raise compiler.CompilerNotFoundError("none")

    monkeypatch.setattr(cpu, "find_compiler", find)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_runs_in_plain_pytorch()
    assert backend().reason == "none"


@needs_compiler
def test_a_failed_build_warns_once_with_the_compilers_first_error(unbuilt, monkeypatch):
    broken = unbuilt / "broken.cpp"
    broken.write_text(
        "#warning first of all\nint f() { return nonsense; }\nint g() { return h; }\n"
    )
    monkeypatch.setattr(cpu, "SOURCE", broken)
    with pytest.warns(UserWarning) as caught:
        assert_runs_in_plain_pytorch()
        assert_runs_in_plain_pytorch()
    assert len(caught) == 1
    assert "broken.cpp:2" in str(caught[0].message) and "nonsense" in str(caught[0].message)
    assert "runs in plain PyTorch instead" in str(caught[0].message)
    assert "nonsense" in backend().reason
    assert not list(unbuilt.glob("*.unfinished"))


@needs_compiler
def test_a_refused_flag_is_left_out(unbuilt, monkeypatch):
    write_source(unbuilt, monkeypatch, 7)
    monkeypatch.setattr(cpu, "MACHINES", (["-march=abacus"], []))
    function, reason = cpu.build()
    assert "abacus" not in reason
    assert ctypes.CDLL(str(next(unbuilt.glob("*.so")))).involution2d() == 7


@needs_compiler
def test_the_cache_knows_the_source_and_the_flags(unbuilt, monkeypatch):
    def path():
        return cpu.build()[1].split(",")[0]

    write_source(unbuilt, monkeypatch, 1)
    names = {path()}
    changed = os.stat(path()).st_mtime_ns
    assert {path()} == names and os.stat(path()).st_mtime_ns == changed  # found, not built
    monkeypatch.setattr(cpu, "FLAGS", [*cpu.FLAGS, "-O1"])
    names.add(path())
    write_source(unbuilt, monkeypatch, 2)
    names.add(path())
    monkeypatch.setattr(cpu, "MACHINES", ([],))  # another machine
    names.add(path())
    assert len(names) == 4 and len(list(unbuilt.glob("*.so"))) == 4


@needs_compiler
def test_what_cannot_be_loaded_from_the_cache_is_loaded_from_elsewhere(unbuilt, monkeypatch):
    load, tried = ctypes.CDLL, []

    def refuses(path):
        tried.append(Path(path))
        if unbuilt in tried[-1].parents:
            raise OSError("failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(cpu.ctypes, "CDLL", refuses)
    write_source(unbuilt, monkeypatch, 7)
    with pytest.warns(UserWarning, match="failed to map segment"):
        cpu.build()
    assert len(tried) == 2 and load(tried[1]).involution2d() == 7


# The cache


def cached(key, build):
    return compiler.cached_file("some_*.txt", ["key", key], build)


def whole(path):
    assert Path(path).stat().st_size == 0
    Path(path).write_text("whole")


def test_one_builds_and_the_others_wait(unbuilt):
    builds = []

    def build(path):
        builds.append(path)
        time.sleep(0.2)
        whole(path)

    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(cached, "aaa", [build] * 3))
    assert len(builds) == 1 and set(paths) == {cached("a", build)}
    assert paths[0].read_text() == "whole" and Path(builds[0]).parent == unbuilt
    assert set(unbuilt.iterdir()) == {paths[0], compiler._beside(paths[0])}


def test_one_thread_builds_and_the_others_wait(unbuilt, monkeypatch):
    builds = []

    def build():
        builds.append(1)
        time.sleep(0.2)
        return len, "built"

    monkeypatch.setattr(cpu, "build", build)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: cpu.available(), range(3))) == [True] * 3
    assert len(builds) == 1 and cpu.reason() == "built"


@needs_fork
def test_a_builder_that_is_killed_leaves_no_lock(unbuilt):
    reader, writer = os.pipe()

    def build_for_ever(path):
        os.write(writer, b"!")
        time.sleep(60)

    child = os.fork()
    if child == 0:
        cached("a", build_for_ever)
    os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert cached("a", whole).read_text() == "whole"


@needs_fork
def test_a_fork_while_another_thread_builds_can_build(unbuilt):
    with cpu._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if cpu._lock.acquire(timeout=5) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_oldest_are_forgotten(unbuilt, monkeypatch):
    monkeypatch.setattr(compiler, "KEPT", 2)
    os.utime(cached("a", whole), (1, 1))
    kept = {cached(key, whole) for key in "bc"}
    assert set(unbuilt.iterdir()) == kept | {compiler._beside(path) for path in kept}
    with pytest.raises(ZeroDivisionError):
        cached("d", lambda path: 1 / 0)
    assert set(unbuilt.iterdir()) == kept | {compiler._beside(path) for path in kept}
    assert cached("d", whole).read_text() == "whole"


@pytest.mark.parametrize("spoil", ["truncated", "empty", "changed", "no digest", "odd digest"])
def test_what_is_broken_in_the_cache_is_built_again(unbuilt, spoil):
    path = cached("a", whole)
    digest = compiler._beside(path)
    {
        "truncated": lambda: os.truncate(path, 3),
        "empty": lambda: os.truncate(path, 0),
        "changed": lambda: path.write_text("other"),
        "no digest": digest.unlink,
        "odd digest": lambda: digest.write_bytes(b"\xff" * 70),
    }[spoil]()
    builds = []
    for _ in range(2):
        assert cached("a", lambda path: (builds.append(path), whole(path))) == path
    assert len(builds) == 1 and path.read_text() == "whole"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users on this system")
def test_what_others_can_write_is_not_trusted(unbuilt, monkeypatch):
    path = cached("a", lambda path: (whole(path), os.chmod(path, 0o666)))
    assert path.stat().st_mode & 0o777 == 0o700
    for planted in (path, compiler._beside(path)):
        planted.chmod(0o770)
        before = path.stat().st_ino
        assert cached("a", whole).stat().st_ino != before
        compiler._beside(path).chmod(0o600)
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    assert not compiler.is_private(path)


@pytest.mark.skipif(sys.platform == "darwin", reason="its name does not come from the environment")
def test_a_cache_folder_that_will_not_do_is_replaced_and_that_is_said(monkeypatch, tmp_path):
    def replaced(why):
        compiler.temporary_folder.cache_clear()
        with pytest.warns(UserWarning, match=f"{why}.* is gone when this process ends"):
            folder = compiler.cache_folder()
        assert folder == compiler.cache_folder()  # and warns once
        return folder.is_dir() and tmp_path not in folder.parents

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "extending_pytorch"
    assert compiler.cache_folder() == folder and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    assert replaced("not a folder that only you can write to")
    folder.rmdir()
    folder.write_text("")
    assert replaced("File exists")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert replaced("Could not determine home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.delattr(os, "getuid")  # as on Windows, where NVRTC's reports are kept
    assert compiler.cache_folder() == tmp_path / "other" / "extending_pytorch"


@needs_fork
def test_a_compiler_that_does_not_end_is_stopped_with_all_that_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "PATIENCE", 0.5)
    children = tmp_path / "children"
    with pytest.raises(compiler.BuildError, match="sh took more than 0.5 seconds"):
        compiler.run("sh", "-c", f"sleep 60 & echo $! > {children}; wait")
    for _ in range(100):
        try:
            os.kill(int(children.read_text()), 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the compiler started is still there")


@needs_fork
def test_a_full_disk_is_named():
    said = "ld: final link failed: No space left on device"
    with pytest.raises(compiler.BuildError, match=said):
        compiler.run("sh", "-c", f"exec >&2; echo 'collect2: error: 1'; echo '{said}'; exit 1")
