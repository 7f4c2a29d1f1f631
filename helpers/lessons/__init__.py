"""What only the notebooks need: exercises, drawings, data."""

import logging
import warnings

from helpers.lessons.exercise import exercise

__all__ = ["exercise"]

# Both are PyTorch's, about its own code and about the machine; no stored output may hang on them.
warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", FutureWarning)
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # "No CUDA runtime is found"
