"""What is missing here, and the marks of the tests that need it."""

import os
import shutil

import pytest
import torch

from helpers.lessons.cuda_on_cpu import every_architecture
from helpers.ops.involution.compiler import CompilerNotFoundError, find_compiler

torch.set_num_threads(1)


def why_not(look):
    """The sentence with which `look` says what is missing here, or None."""
    try:
        look()
    except (CompilerNotFoundError, ImportError) as error:
        return str(error)
    return None


# Two conditions: CuPy, which brings NVRTC, has no wheels for macOS, where there is a compiler.
NO_COMPILER, NO_NVRTC = why_not(find_compiler), why_not(every_architecture.architectures)
TORCH_BUILDS = shutil.which(os.environ.get("CXX") or "c++")  # it does not look for another name
needs_compiler = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
needs_nvrtc = pytest.mark.skipif(NO_NVRTC is not None, reason=str(NO_NVRTC))
