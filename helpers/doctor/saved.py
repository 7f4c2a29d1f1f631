"""Would a gradient be right if forward had saved something else?"""

import contextlib
import functools
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


FUNCTIONS = {
    "the root of {}": torch.sqrt, "the square of {}": torch.square, "1 / {}": torch.reciprocal,
    "1 - {}": lambda t: 1 - t, "-{}": torch.neg, "the exponential of {}": torch.exp,
    "the logarithm of {}": torch.log,
}  # fmt: skip


def saved_otherwise(cases):
    """The words for the one tensor that forward should save in place of another, or None."""
    found, point = [], cases[0].point

    def looks(tensors, frame):
        names = {name: t for name, t in held(frame) if is_real(t)}
        came = {
            f"`{x}` as it came": v for x, v in zip(point.subject.inputs, point.values, strict=True)
        }
        for k, old in enumerate(tensors):
            if is_real(old):
                known = next((name for name, t in names.items() if t is old), "what is there")
                place = f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"
                others = [
                    name
                    for name, t in (names | came).items()
                    if t.shape == old.shape and not torch.equal(t, old)
                ]
                for name in (*others, *FUNCTIONS):
                    found.append((frame.f_code, k, name, known, place))
        return tensors

    with saving(looks):
        point.subject.run(point.values)
    for code, k, name, old, place in found[:MOST]:

        def instead(tensors, frame, at, code=code, k=k, name=name):
            if frame.f_code is code:
                came = zip(at.subject.inputs, at.values, strict=True)
                new = dict(held(frame)) | {f"`{x}` as it came": v for x, v in came}
                made = FUNCTIONS[name](tensors[k]) if name in FUNCTIONS else new[name]
                tensors = (*tensors[:k], made, *tensors[k + 1 :])
            return tensors

        def is_right(case, instead=instead):
            with saving(functools.partial(instead, at=case.point)):
                return case.fits_rows(case.vjp(v) for v in case.vs)

        if all(map(is_right, cases)):
            with saving(functools.partial(instead, at=point)):
                if others_stay(cases, lambda o, v: point.vjp({o: v})):
                    change = f"right if: {name.format(old)} were saved in place of {old}"
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
