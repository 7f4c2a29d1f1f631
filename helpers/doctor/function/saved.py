"""What forward saves, replaced for a while; and which gradients stay what they were."""

import contextlib
import sys

from .frames import HERE
from .private import FunctionCtx


@contextlib.contextmanager
def saving(instead):
    """For a while, save_for_backward saves instead(tensors, frame of its caller)."""
    method = FunctionCtx.save_for_backward

    def saves(ctx, *tensors):
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(HERE):
            frame = frame.f_back
        method(ctx, *instead(tensors, frame))

    FunctionCtx.save_for_backward = saves
    try:
        yield
    finally:
        FunctionCtx.save_for_backward = method


def is_overwritten(subject):
    """Has something that forward saves another value once forward returns, unnoticed perhaps?"""
    kept = []

    def saves(tensors, _):
        kept.extend((t, t.detach().clone()) for t in tensors if t is not None)
        return tensors

    with saving(saves):
        subject.run(subject.values)
    return any(bool(((t != before) & (t == t)).any()) for t, before in kept)
