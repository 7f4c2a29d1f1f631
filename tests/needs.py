"""What is missing here, and the marks of the tests that need it."""

import os
import shutil
from importlib.util import find_spec

import pytest
import torch

from helpers.lessons.cuda_on_cpu import every_architecture, instructions
from helpers.lessons.processes import bytes_sent
from helpers.ops.involution.compiler import CompilerNotFoundError, find_compiler

torch.set_num_threads(1)


def why_not(look):
    """The sentence with which `look` says what is missing here, or None."""
    try:
        look()
    except (CompilerNotFoundError, ImportError) as error:
        return str(error)
    return None


# Apart: CuPy, which brings NVRTC, and Triton have no wheels for macOS, where there is a compiler.
NO_COMPILER, NO_NVRTC = (
    why_not(find_compiler),
    why_not(every_architecture.architectures),
)
NO_COUNTS = why_not(bytes_sent)
NO_NVDISASM = NO_NVRTC or why_not(instructions.find_nvdisasm)
# There is a Triton for Linux alone.
NO_TRITON = None if find_spec("triton") else "No module named 'triton'"
# PyTorch looks for no other name.
TORCH_BUILDS = shutil.which(os.environ.get("CXX") or "c++")
needs_compiler = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
needs_builder = pytest.mark.skipif(
    NO_COMPILER is not None or not TORCH_BUILDS,
    reason=str(NO_COMPILER or "there is no c++"),
)
needs_nvrtc = pytest.mark.skipif(NO_NVRTC is not None, reason=str(NO_NVRTC))


def of_recipe(source):
    """What a recipe of notebooks 22 to 24 needs and is not here, or None."""
    if "import triton" in source:
        return NO_TRITON
    builds = "aoti_compile" in source or "load_inline" in source
    if builds and (NO_COMPILER or not TORCH_BUILDS):
        return NO_COMPILER or "there is no c++"
    return None


def missing():
    """Every sentence that a cell may truly say here."""
    return {NO_COMPILER, NO_NVRTC, NO_NVDISASM, NO_TRITON, NO_COUNTS} - {None}
