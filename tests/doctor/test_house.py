"""The doctor's folder: sizes, one-way imports, and that it can be copied or cut."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import doctor
from helpers.doctor import plugin

HOUSE = Path(doctor.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))
ORDER = ["function", "measure", "causes", "line", "trials", "program"]
# What a file of a folder may import: its own, those before it, and these of the top.
BELOW = {"course.py", "words.py"}  # what report.py rests on
PROJECT = """
[tool.pytest.ini_options]
pythonpath = ["."]
addopts = "-p physician.plugin -p no:cacheprovider"
doctor = true
doctor_seconds = 30
doctor_skip = ["Other", "tests.*"]
"""
PROGRAM = """
import atexit, sys
import torch
from physician.__main__ import main
from physician.report import TEXTS
assert "helpers" not in sys.modules and len(TEXTS) > 90
atexit.register(lambda: "torch._dynamo" in sys.modules or print("without a compiler"))

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, c):
        ctx.c = c
        return x * c

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None

class Other(Scale):
    pass

def test_by_rounds():
    Scale.apply(torch.ones(2, requires_grad=True), 2.5)
    Other.apply(torch.ones(2, requires_grad=True), 2.5)

def test_by_command(capsys):
    status = main(["test_it.py:Scale", "--input", "3x4", "--value", "2.5"])
    said = capsys.readouterr().out
    assert status == 1 and "multiplied by 0.4" in said
    assert "right if: " not in said and "look at: " in said
    assert "read: " not in said  # where the course is not installed
"""


def imported(file):
    """The files of the house that this one imports, anywhere in it.

    For other modules, the file is None.
    """
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0], None
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1]
            base = base.joinpath(*node.module.split(".")) if node.module else base
            for alias in node.names:
                for found in (base / alias.name, base):
                    if (
                        found.with_suffix(".py").is_file()
                        or (found / "__init__.py").is_file()
                    ):
                        yield alias.name, found.relative_to(HOUSE)
                        break


def folder(path):
    return path.parts[0] if path.parts and path.parts[0] in ORDER else "the top"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(HOUSE)))
def test_imports_go_one_way_and_need_nothing_but_torch(file):
    own = file.relative_to(HOUSE)
    names = {name for name, path in imported(file) if path is None}
    also = {"pytest"} if file.name == "plugin.py" else set()
    assert names - {"torch"} - also <= set(sys.stdlib_module_names)
    paths = {path for _, path in imported(file) if path is not None}
    if own.as_posix() in ("report.py", *BELOW):
        allowed = {"report", *(name.removesuffix(".py") for name in BELOW)}
        assert {path.with_suffix("").as_posix() for path in paths} <= allowed
    elif folder(own) != "the top":
        before = ORDER[: ORDER.index(folder(own)) + 1] + ["the top"]
        assert {folder(path) for path in paths} <= set(before), paths
        top = {"report", "words"} | ({"."} if folder(own) == "program" else set())
        assert {path.as_posix() for path in paths if folder(path) == "the top"} <= top


def test_the_operations_import_nothing_of_the_doctor():
    for file in (HOUSE.parent / "ops").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(from|import) .*\bdoctor\b", text, re.MULTILINE), (
            file
        )


def test_a_copy_works_without_its_lines_and_does_not_import_the_compiler(tmp_path):
    """Under another name, by its command, and as the plugin of a project's tests."""
    ignored = shutil.ignore_patterns("__pycache__", "line")
    shutil.copytree(HOUSE, tmp_path / "physician", ignore=ignored)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "test_it.py").write_text(PROGRAM)
    done = subprocess.run(
        [Path(sys.executable).with_name("pytest")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "2 passed" in done.stdout, done.stdout + done.stderr
    assert "Scale: 1 error" in done.stdout and "1 wrong" in done.stdout
    assert "left out by --doctor-skip: test_it.Other" in done.stdout
    assert done.stdout.endswith("without a compiler\n")


def test_the_readme_names_all_options_of_the_plugin():
    text = (HOUSE / "README.md").read_text(encoding="utf-8")
    assert [name for name in plugin.OPTIONS if f"--{name}" not in text] == []


def test_the_copied_text_does_not_speak_of_helpers():
    for file in HOUSE.rglob("*"):
        if file.suffix in (".py", ".md", ".txt"):
            text = file.read_text(encoding="utf-8")
            assert "helpers" not in text, file
