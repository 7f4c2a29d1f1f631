"""What chapter 16 ships: wheels, packages of AOTInductor, a program in C++.

Each is built once.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from contextlib import chdir
from pathlib import Path

import torch

from helpers.ops.involution.compiler import (
    CompilerNotFoundError,
    cached_file,
    find_compiler,
    run,
)

NOT_IN_A_WHEEL = "tests", ".github", "dist"
BACKEND = "setuptools.build_meta"


class BackendError(Exception):
    """A pyproject.toml names another backend than setuptools.

    Its argument is that name.
    """


def packed_by_setuptools(pyproject, files):
    """What would be in the wheel of a project of these files, but for its metadata.

    pyproject: the text of its pyproject.toml. What setuptools refuses, it raises.
    """
    # It replaces a part of Python, so not before it must.
    from setuptools import Distribution
    from setuptools.compat.py310 import tomllib

    with (
        tempfile.TemporaryDirectory() as folder,
        chdir(folder),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for name in files:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).touch()
        Path("pyproject.toml").write_text(pyproject, encoding="utf-8")
        backend = (
            tomllib.loads(pyproject)
            .get("build-system", {})
            .get("build-backend", BACKEND)
        )
        if backend.partition(":")[0] != BACKEND:
            raise BackendError(backend)
        distribution = Distribution({"script_name": "setup.py"})
        distribution.parse_config_files()
        distribution.set_defaults()
        command = distribution.get_command_obj("build_py")
        command.ensure_finalized()
        packed = command.get_outputs(include_bytecode=False)
    names = {Path(file).relative_to(command.build_lib).as_posix() for file in packed}
    for where, data in distribution.data_files or ():
        names.update(f"data/{where}/{Path(file).name}" for file in data)
    return sorted(names)


def build_wheel(project, compiled=True):
    """`pip wheel` for the folder `project`; returns the wheel's path.

    compiled: if False, as on a machine without a compiler. The same files give the same
    wheel, so it is kept for the next time. CUDA is left out. Raises
    CompilerNotFoundError where there is no compiler that PyTorch's builder would find.
    """
    if compiled:
        find_compiler()
        if not shutil.which(os.environ.get("CXX", "c++")):
            raise CompilerNotFoundError(
                "PyTorch's builder looks for `c++`, and there is none"
            )
    environment = os.environ | {"USE_CUDA": "0"}
    if not compiled:
        environment["CXX"] = "none"

    def build(path):
        with tempfile.TemporaryDirectory() as folder:
            # Building leaves things there.
            copy = shutil.copytree(project, Path(folder, "project"))
            options = (
                "--no-build-isolation",
                "--no-deps",
                "--no-index",
                "--wheel-dir",
                folder,
            )
            command = [sys.executable, "-m", "pip", "wheel", *options, str(copy)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"pip wheel failed:\n{done.stdout}\n{done.stderr}")
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(path, "w") as kept:  # a wheel's name is part of it
                kept.write(wheel, wheel.name)

    files = [
        path.relative_to(project)
        for path in sorted(project.rglob("*"))
        if path.is_file()
    ]
    contents = [
        f"{path.as_posix()} {hashlib.sha256((project / path).read_bytes()).hexdigest()}"
        for path in files
        if path.parts[0] not in NOT_IN_A_WHEEL and path.suffix != ".pyc"
    ]
    key = [
        torch.__version__,
        sys.version,
        str(compiled),
        os.environ.get("CXX", ""),
        *contents,
    ]
    with zipfile.ZipFile(cached_file("wheel_*.zip", key, build)) as kept:
        (name,) = kept.namelist()
        return Path(kept.extract(name, project / "dist"))


def install(wheel, folder):
    """`pip install` of a wheel, and of nothing else, into a folder.

    Returns the folder.
    """
    options = "--no-deps", "--no-index", "--target", str(folder)
    done = python("-m", "pip", "install", *options, str(wheel))
    if done.returncode:
        raise RuntimeError(f"pip install failed:\n{done.stderr}")
    return folder


def build_package(program, path):
    """The `.pt2` file that the Python text `program` writes to sys.argv[1].

    The text imports from the folder `path`, as in `python`. The same text and the same
    modules give the same file on processors of the same kind, so it is kept for the
    next time. Raises CompilerNotFoundError where there is no compiler.
    """
    find_compiler()

    def build(kept):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder, "model.pt2")  # PyTorch asks for this suffix
            done = python("-c", program, str(package), path=path)
            if done.returncode:
                raise RuntimeError(f"the package was not written:\n{done.stderr}")
            shutil.copyfile(package, kept)

    modules = [
        file.read_text(encoding="utf-8") for file in sorted(Path(path).rglob("*.py"))
    ]
    # Whose instructions it will use.
    processor = torch.backends.cpu.get_cpu_capability()
    return cached_file(
        "package_*.pt2", [torch.__version__, processor, program, *modules], build
    )


def build_program(source):
    """The program made of C++ text and PyTorch's libraries, kept as well."""
    from torch.utils import cpp_extension  # it takes a while

    folders = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    for folder in cpp_extension.library_paths():
        folders += [f"-L{folder}", f"-Wl,-rpath,{folder}"]
    options = "-std=c++20", *folders, "-ltorch", "-ltorch_cpu", "-lc10"

    def build(kept):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "main.cpp")
            file.write_text(source, encoding="utf-8")
            run(*find_compiler(), str(file), *options, "-o", kept)

    return cached_file(
        "program_*.bin", [torch.__version__, source, *find_compiler(), *options], build
    )


def python(*arguments, path="", folder=None):
    """Run another Python, which imports from `path` and what is installed."""
    own = {
        "PYTHONPATH": str(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Jupyter asks for colours, in which 3.13 prints a traceback.
        "PYTHON_COLORS": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the package needs none
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | own,
        cwd=folder,
        capture_output=True,
        text=True,
    )
