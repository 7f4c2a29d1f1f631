"""A small package to copy, rename and ship: an operator in C++, CUDA and Python, with its tests.

    python -m helpers.template NAME FOLDER

Copies the folder `project`, a package that works as it is, and gives it your name.
"""

import keyword
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import torch

PROJECT = Path(__file__).parent / "project"
PLACEHOLDER = "my_package"
FOLDERS = {"build", "csrc", "dist", "src", "tests"}  # that a project has, or will have
LEFT_BEHIND = shutil.ignore_patterns(
    "__pycache__", "*.egg-info", "build", "dist", ".pytest_cache"
)


def make(name, folder):
    """Write the package `name` into `folder` and return its path.

    name: a str; the name of the package, of the module to import and of the operators' namespace.
    folder: a path; it must be new or empty, apart from `.git`.
    Raises ValueError or TypeError, before anything is written, if the name cannot be used, or if
    the folder is not empty or lies in the template.
    """
    folder = Path(folder)
    _check(name, folder)
    shutil.copytree(PROJECT, folder, ignore=LEFT_BEHIND, dirs_exist_ok=True)
    (folder / "src" / PLACEHOLDER).rename(folder / "src" / name)
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.relative_to(folder).parts:
            text = path.read_text(encoding="utf-8")
            path.write_text(
                text.replace(PLACEHOLDER, name), encoding="utf-8", newline="\n"
            )
    return folder


def _check(name, folder):
    if not isinstance(name, str):
        raise TypeError(f"NAME must be a str, got {name!r}")
    if not re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ValueError(
            "NAME must be words of lower-case letters and digits, joined by single underscores, "
            f"after a letter: my_op; got {name!r}"
        )
    if keyword.iskeyword(name):
        raise ValueError(f"NAME must not be a keyword of Python, got {name!r}")
    namespaces = {op.partition("::")[0] for op in torch._C._dispatch_get_all_op_names()}
    if name in namespaces:
        raise ValueError(
            f"NAME must be new, but operators of PyTorch are named {name}::…"
        )
    if name in FOLDERS:
        raise ValueError(
            f"NAME must be new, but the project has a folder `{name}` of its own"
        )
    if _can_be_imported(name):
        raise ValueError(f"NAME must be new, but `import {name}` finds something else")
    if folder.exists() and (
        not folder.is_dir() or {p.name for p in folder.iterdir()} - {".git"}
    ):
        raise ValueError(f"FOLDER must be new or empty, got {folder}")
    if PROJECT.resolve() in folder.resolve().parents:
        raise ValueError(f"FOLDER must not be in the template itself, got {folder}")


def _can_be_imported(name):
    """Whether a module has that name; a folder here that has it does not count."""
    spec = find_spec(name)
    if spec is None or spec.origin:
        return spec is not None
    return {Path(place) for place in spec.submodule_search_locations} != {
        Path.cwd() / name
    }
