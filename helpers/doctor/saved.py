"""Would a gradient be right if forward had saved something else?"""

import contextlib
import os
import sys

import torch
from torch.autograd.function import FunctionCtx

from .changes import is_real
from .steps import held

MOST = 40  # tensors that are tried
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


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


def saved_otherwise(cases):
    """The words for the one tensor that forward should save in place of another, or None."""
    found = []

    def looks(tensors, frame):
        names = [(name, t) for name, t in held(frame) if is_real(t)]
        for k, old in enumerate(tensors):
            if is_real(old):
                known = [name for name, t in names if t is old]
                place = f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"
                found.extend(
                    (frame.f_code, k, name, known[0] if known else "what is there", place)
                    for name, t in names
                    if t.shape == old.shape and not torch.equal(t, old)
                )
        return tensors

    point = cases[0].point
    with saving(looks):
        point.subject.run(point.values)
    for code, k, name, old, place in found[:MOST]:

        def instead(tensors, frame, code=code, k=k, name=name):
            if frame.f_code is code:
                tensors = (*tensors[:k], dict(held(frame))[name], *tensors[k + 1 :])
            return tensors

        with saving(instead):
            if all(is_right(case, cases.wrong) for case in cases):
                return {"change": f"{name} were saved in place of {old}", "place": place}
    return None


def is_right(case, wrong):
    """Is the gradient right now, and has no other one that was right changed?"""
    point = case.point
    before = point.given(case.o)[0]
    after = point.vjp({case.o: case.vs[0]})
    for j, (one, other) in enumerate(zip(before, after, strict=True)):
        if j not in wrong and one is not None and not torch.allclose(one, other, 1e-6, 1e-9):
            return False
    return case.fits_rows(case.vjp(v) for v in case.vs)
