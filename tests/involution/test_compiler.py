"""How the C++ kernels are built and kept: what is missing, broken, planted, or busy."""

import ctypes
import os
import sys
import warnings
from pathlib import Path

import pytest

from helpers.ops.involution import backend, compiler, cpu, involution2d, plain
from tests.involution.reference import SMALL, random_tensors
from tests.needs import needs_compiler

# What is there


def test_which_compiler_is_found(monkeypatch):
    find = compiler.find_compiler.__wrapped__
    monkeypatch.setattr(
        compiler.shutil, "which", lambda name: f"/bin/{name}" if name else None
    )
    monkeypatch.setenv("CXX", "ccache g++ -m64")  # may be several words
    assert find() == ["/bin/ccache", "g++", "-m64"]
    monkeypatch.delenv("CXX")
    assert find() == ["/bin/g++"]
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler, "find_spec", lambda name: name == "ziglang")
    assert find()[1:] == ["-m", "ziglang", "c++"]
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(
        compiler.CompilerNotFoundError, match="`pip install ziglang` brings one"
    ):
        find()
    monkeypatch.setattr(compiler.sys, "platform", "win32")
    with pytest.raises(compiler.CompilerNotFoundError, match="on Windows, work in WSL"):
        find()


def test_backend_of_a_device_without_a_kernel():
    assert backend("meta") == ("plain", "there is no kernel for meta")


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
    assert "broken.cpp:2" in str(caught[0].message) and "nonsense" in str(
        caught[0].message
    )
    assert "runs in plain PyTorch instead" in str(caught[0].message)
    assert "nonsense" in backend().reason


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
    # Found, not built.
    assert {path()} == names and os.stat(path()).st_mtime_ns == changed
    monkeypatch.setattr(cpu, "FLAGS", [*cpu.FLAGS, "-O1"])
    names.add(path())
    write_source(unbuilt, monkeypatch, 2)
    names.add(path())
    monkeypatch.setattr(cpu, "MACHINES", ([],))  # another machine
    names.add(path())
    assert len(names) == 4 and len(list(unbuilt.glob("*.so"))) == 4


# The cache


@pytest.mark.skipif(sys.platform == "darwin", reason="its name is another one there")
def test_a_cache_folder_that_others_can_write_to_is_replaced(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "extending_pytorch"
    assert compiler.cache_folder() == folder and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.warns(UserWarning, match="not a folder that only you can write to"):
        other = compiler.cache_folder()
    assert other == compiler.cache_folder() and other.is_dir()  # and warns once


def test_a_file_is_built_once_and_whole(unbuilt):
    def build(path):
        Path(path).write_text("built")

    def fails(path):
        Path(path).write_text("half")
        raise compiler.BuildError

    with pytest.raises(compiler.BuildError):
        compiler.cached_file("kernel_*.txt", ["key"], fails)
    assert not list(unbuilt.iterdir())
    path = compiler.cached_file("kernel_*.txt", ["key"], build)
    assert path.read_text() == "built"
    assert compiler.cached_file("kernel_*.txt", ["key"], fails) == path
