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
            fits = (case.fits_rows(case.vjp(v) for v in case.vs) for case in cases)
            if all(fits) and others_stay(cases, lambda o, v: point.vjp({o: v})):
                change = f"right if: {name} were saved in place of {old}"
                return {"change": change, "place": place}
    return None


def others_stay(cases, gradients):
    """Are the gradients that were right the same now? Through every output."""
    point = cases[0].point
    for o, vs in enumerate(point.vs):
        pairs = zip(point.given(o)[0], gradients(o, vs[0]), strict=True)
        for j, (before, after) in enumerate(pairs):
            if (j, o) not in cases.wrong_through and before is not None:
                if not torch.allclose(after, before, rtol=1e-6, atol=1e-9):
                    return False
    return True
