"""Which line of the user's code runs, and what it saves."""

import os
import sys
import sysconfig

import torch

from ..said import Name, Said
from .private import on_ctx

PLACE = "line {line}, in `{function}`"
LIBRARY = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
LIBRARIES = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
LIBRARIES.add(os.path.dirname(os.path.dirname(LIBRARY)))  # torch may be of another environment
LIBRARIES = tuple(os.path.join(folder, "") for folder in LIBRARIES)


def users_frame():
    """The frame that called PyTorch or the doctor, or None."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith((LIBRARY, HERE)):
        frame = frame.f_back
    return frame


def place_of(frame):
    return Said(PLACE, line=frame.f_lineno, function=Name(frame.f_code.co_name))


def saving(instead):
    """For a while, save_for_backward saves instead(tensors, frame that saves them)."""

    def way(save, ctx, *tensors):
        save(ctx, *instead(tensors, users_frame()))

    return on_ctx("save_for_backward", way)
