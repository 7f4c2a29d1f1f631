"""Wheels for chapter 16: built once and kept, looked into, and run from the place they went to."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

from helpers.ops.involution.compiler import CompilerNotFoundError, cached_file, find_compiler

NOT_IN_A_WHEEL = "tests", ".github", "dist"


def build_wheel(project, compiled=True):
    """`pip wheel` for the folder `project`; returns the path of the wheel, in its folder `dist`.

    compiled: if False, as on a machine without a compiler.
    The same files give the same wheel, so it is kept for the next time. CUDA is left out. Raises
    CompilerNotFoundError where there is no compiler that PyTorch's builder would find.
    """
    if compiled:
        find_compiler()
        if not shutil.which(os.environ.get("CXX", "c++")):
            raise CompilerNotFoundError("PyTorch's builder looks for `c++`, and there is none")
    environment = {**os.environ, "USE_CUDA": "0"} | ({} if compiled else {"CXX": "none"})

    def build(path):
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(project, Path(folder, "project"))  # building leaves things there
            options = "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder
            command = [sys.executable, "-m", "pip", "wheel", *options, str(copy)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"pip wheel failed:\n{done.stdout}\n{done.stderr}")
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(path, "w") as kept:  # a wheel's name is part of it
                kept.write(wheel, wheel.name)

    files = [path.relative_to(project) for path in sorted(project.rglob("*")) if path.is_file()]
    contents = [
        f"{path.as_posix()} {hashlib.sha256((project / path).read_bytes()).hexdigest()}"
        for path in files
        if path.parts[0] not in NOT_IN_A_WHEEL and path.suffix != ".pyc"
    ]
    key = [torch.__version__, sys.version, str(compiled), os.environ.get("CXX", ""), *contents]
    with zipfile.ZipFile(cached_file("wheel_*.zip", key, build)) as kept:
        (name,) = kept.namelist()
        return Path(kept.extract(name, project / "dist"))


def install(wheel, folder):
    """`pip install` of a wheel, and of nothing else, into a folder; returns the folder."""
    options = "--no-deps", "--no-index", "--target", str(folder)
    done = python("-m", "pip", "install", *options, str(wheel))
    if done.returncode:
        raise RuntimeError(f"pip install failed:\n{done.stderr}")
    return folder


def python(*arguments, path="", folder=None):
    """Run another Python that imports from `path` and from what is installed, nowhere else."""
    own = {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    own["PYTHON_COLORS"] = "0"  # Jupyter asks for colours, in which 3.13 prints a traceback
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **own, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # the package needs none
        cwd=folder,
        capture_output=True,
        text=True,
    )
