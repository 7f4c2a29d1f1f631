"""What only the notebooks need: exercises, drawings, data."""

import logging
import warnings

import torch

from helpers.lessons import hold_back
from helpers.lessons.drill import drill
from helpers.lessons.exercise import exercise
from helpers.lessons.prediction import predicted

__all__ = ["drill", "exercise", "predicted"]

hold_back.register()

VERIFIED_WITH = "2.15.0"  # the torch with which every stored output was computed

if torch.__version__.split("+")[0] != VERIFIED_WITH:
    print(
        f"This is torch {torch.__version__}. The course was verified with "
        f"{VERIFIED_WITH}: on another version some numbers, tables and error messages "
        "differ from what is stored."
    )

# All are PyTorch's, about its own code and about the machine; no stored output may hang
# on them.
warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", FutureWarning)
warnings.filterwarnings("ignore", "Guards may run slower on Python", RuntimeWarning)
# "No CUDA runtime is found".
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
