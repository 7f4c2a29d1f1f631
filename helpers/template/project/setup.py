"""What pyproject.toml cannot say: what is compiled here, and for which versions of PyTorch.

C++ is compiled where there is a compiler, CUDA where there are nvcc and a torch for CUDA. In the
environment, CXX=none and USE_CUDA=0 leave them out, and DEBUG=1 builds them for a debugger. Where
nothing was compiled, the operator runs in PyTorch's own operations.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from setuptools import setup

if not {"CUDA_HOME", "CUDA_PATH"} & os.environ.keys() and shutil.which("nvcc"):
    # PyTorch looks for CUDA around nvcc, which may be a script elsewhere: nvcc itself knows.
    command = ["nvcc", "-v", "--dryrun", "x.cu"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    if folder := re.search("^#[$] TOP=(.*)", said, re.MULTILINE):
        os.environ["CUDA_HOME"] = os.path.realpath(folder[1])
# Only now, as it reads CUDA_HOME when it is imported.
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

PACKAGE = "my_package"
# Of PyTorch's stable headers, only what 2.10 has: so the library serves every version from 2.10 on.
OLDEST_TORCH = [("TORCH_TARGET_VERSION", "0x020A000000000000")]
DEBUG = ["-O0", "-g"] if os.environ.get("DEBUG") == "1" else []
SMALL = [] if sys.platform == "win32" else ["-g0"]  # a tenth of the size

# The GPUs built for where none is there to ask; the last one's code runs on later ones, too.
GPUS = ["7.5", "8.0", "8.6", "9.0", "10.0", "12.0"]


def gpus_of_nvcc():
    """Those of `GPUS` that the nvcc at hand compiles for, as PyTorch's builder wants them."""
    command = [os.path.join(CUDA_HOME, "bin", "nvcc"), "--list-gpu-arch"]
    known = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return ";".join(gpu for gpu in GPUS if f"compute_{gpu.replace('.', '')}" in known) + "+PTX"


def library(kind, name, sources, *defines):
    return kind(
        f"{PACKAGE}.{name}",
        sources,
        depends=[str(header) for header in Path("csrc").glob("*.h")],
        define_macros=[*OLDEST_TORCH, *defines],
        extra_compile_args={"cxx": DEBUG or SMALL, "nvcc": DEBUG},
        py_limited_api=True,  # nothing of Python is used, so one library serves every version
    )


libraries = []
# On Windows setuptools finds the compiler by itself.
compiler = os.environ.get("CXX", "" if sys.platform == "win32" else "c++")
if not compiler or shutil.which(compiler):
    libraries.append(library(CppExtension, "_cpu", ["csrc/recurrence_cpu.cpp"]))
    if CUDA_HOME and torch.version.cuda and os.environ.get("USE_CUDA") != "0":
        if not torch.cuda.is_available():
            os.environ.setdefault("TORCH_CUDA_ARCH_LIST", gpus_of_nvcc())
        cuda = ["csrc/recurrence_cuda.cu"]
        libraries.append(library(CUDAExtension, "_cuda", cuda, ("USE_CUDA", None)))

for left_over in Path("build").glob("lib*"):  # by an earlier build: they would be packed, too
    shutil.rmtree(left_over)

setup(
    ext_modules=libraries,
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # the tag; see requires-python
)
