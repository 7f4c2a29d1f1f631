"""`helpers/template`: the command that copies it, its wheel, and its own tests.

Chapter 16 runs those where the wheel is installed, except for a few that import much:
these run here.
"""

import os
import runpy
import sys
import zipfile
from unittest.mock import patch

import pytest
import torch
from torch.utils import cpp_extension

from helpers.lessons.shipping import build_wheel, install, python
from helpers.template import PROJECT, make
from helpers.template.__main__ import main
from tests.needs import needs_builder

NAME = "chapter_16"  # as in the chapter, so that there is one wheel to build


def texts(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


# The command


def test_it_writes_the_project_under_another_name(tmp_path, capsys):
    before = texts(PROJECT)
    main(["fast_scans", str(tmp_path / "mine")])
    written = texts(tmp_path / "mine")
    renamed = {
        name.replace("my_package", "fast_scans"): text.replace(
            "my_package", "fast_scans"
        )
        for name, text in before.items()
    }
    assert written == renamed and "src/fast_scans/operator.py" in written
    assert "my_package" not in "".join(written) + "".join(written.values())
    assert ".github/workflows/ci.yml" in written and ".gitignore" in written
    said = capsys.readouterr().out
    for command in ("pip install --no-build-isolation .", "pytest"):
        assert f"    {command}\n" in said
        assert f"\n{command}\n" in written["README.md"]
    assert texts(PROJECT) == before and [path.name for path in tmp_path.iterdir()] == [
        "mine"
    ]


def test_an_empty_folder_will_do_with_git_in_it_or_with_the_name(tmp_path, monkeypatch):
    git = tmp_path / "fast_scans" / ".git" / "my_package"
    git.mkdir(parents=True)
    (git / "index").write_bytes(b"my_package \xff")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m` does
    make("fast_scans", "fast_scans")
    assert (tmp_path / "fast_scans" / "setup.py").exists()
    assert (git / "index").read_bytes() == b"my_package \xff"


@pytest.mark.parametrize(
    "name, words",
    [
        ("two words", "must be words of lower-case letters"),
        ("2fast", "after a letter: my_op; got '2fast'"),
        ("_fast", "joined by single underscores"),
        ("fast__scans", "joined by single underscores"),
        ("lambda", "must not be a keyword of Python, got 'lambda'"),
        ("aten", "operators of PyTorch are named aten::…"),
        ("numpy", "`import numpy` finds something else"),
        ("build", "the project has a folder `build` of its own"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name, words, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([name, str(tmp_path / "mine")])
    assert words in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "theirs").write_text("x")
    for folder in (tmp_path, tmp_path / "theirs"):
        with pytest.raises(ValueError, match="FOLDER must be new or empty"):
            make("fast_scans", folder)
    with pytest.raises(ValueError, match="FOLDER must not be in the template itself"):
        make("fast_scans", PROJECT / "mine")
    assert texts(tmp_path) == {"theirs": "x"} and not (PROJECT / "mine").exists()
    with pytest.raises(TypeError, match="NAME must be a str, got 3"):
        make(3, tmp_path / "mine")


# The wheel


def in_wheel(path):
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@needs_builder
def test_the_wheel_holds_the_library_and_says_so(tmp_path):
    wheel = build_wheel(make(NAME, tmp_path))
    assert wheel.name.startswith(f"{NAME}-0.1.0-cp311-abi3-")
    files = in_wheel(wheel)
    info = f"{NAME}-0.1.0.dist-info"
    meta = ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE", "top_level.txt")
    (library,) = (name for name in files if name.startswith(f"{NAME}/_cpu."))
    ours = {f"{NAME}/{name}" for name in ("__init__.py", "operator.py", "py.typed")}
    assert files.keys() == ours | {library} | {f"{info}/{name}" for name in meta}
    assert b"Root-Is-Purelib: false" in files[f"{info}/WHEEL"]
    described = files[f"{info}/METADATA"].decode()
    for line in ("License-Expression: BSD-3-Clause", "Requires-Python: >=3.11"):
        assert f"\n{line}\n" in described
    assert "\nRequires-Dist: torch>=2.10\n" in described


def test_where_there_is_no_compiler_it_is_for_every_system(tmp_path):
    wheel = build_wheel(make(NAME, tmp_path), compiled=False)
    assert wheel.name == f"{NAME}-0.1.0-py3-none-any.whl"
    assert sum(name.startswith(f"{NAME}/") for name in in_wheel(wheel)) == 3


NVCC = """#!/bin/sh
case $1 in
    --list-gpu-arch) echo compute_75 compute_90 compute_91 ;;
    -v) printf '#$ TOP=%s/bin/..\\n' FOLDER >&2 ;;
esac
"""


@pytest.mark.skipif(
    sys.platform == "win32", reason="the stand-in for nvcc is a shell script"
)
def test_without_a_gpu_it_is_built_for_those_that_nvcc_knows(tmp_path, monkeypatch):
    """And nvcc, a script outside of its toolkit, says where that is."""
    toolkit, elsewhere = tmp_path / "cuda" / "bin" / "nvcc", tmp_path / "bin" / "nvcc"
    for nvcc in (toolkit, elsewhere):
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(NVCC.replace("FOLDER", str(tmp_path / "cuda")))
        nvcc.chmod(0o755)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.utils, "cpp_extension", cpp_extension)
    monkeypatch.setenv("CXX", "sh")  # which is not run
    monkeypatch.setenv("PATH", f"{elsewhere.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    for name in ("USE_CUDA", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for expected in ("8.0", "7.5;9.0+PTX"):
        monkeypatch.delitem(sys.modules, "torch.utils.cpp_extension")
        with patch("setuptools.setup") as setup, patch.dict(os.environ):
            runpy.run_path(str(PROJECT / "setup.py"))
            assert os.environ["TORCH_CUDA_ARCH_LIST"] == expected
        built = setup.call_args.kwargs["ext_modules"]
        assert [e.name for e in built] == ["my_package._cpu", "my_package._cuda"]
        assert str(tmp_path / "cuda" / "include") in built[1].include_dirs
        monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)


@needs_builder
def test_those_of_its_tests_that_the_chapter_leaves_out_pass(tmp_path):
    project = make(NAME, tmp_path / "project")
    installed = install(build_wheel(project), tmp_path / "installed")
    options = "-m", "pytest", "-q", "-p", "no:cacheprovider"
    left_out = "-k", "opcheck or one_graph"
    done = python(*options, *left_out, path=installed, folder=project)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout
