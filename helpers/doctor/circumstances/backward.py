"""Trials of backward: does a gradient come back, of which kind, and is it finite?"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode

from ..function.surroundings import CallError
from ..function.tensors import differentiable, is_number, largest, position
from ..function.watched import frame_of_a_step, place_of, source, watching
from ..measure.measurement import Point
from ..name.exceptions import GRAD_OUTPUT_MODIFIED, SAVED_MODIFIED
from ..report import CUT_OFF, brief, error, note, warning
from .again import effects
from .examination import Trials

trial = Trials()

OUTPUT_DETACHED = error(
    "output-detached",
    "{y} requires no gradient, though it changes with {x}: forward has left autograd.",
    look=CUT_OFF,
)
MARKED_NON_DIFFERENTIABLE = note(
    "marked-non-differentiable", "{y} is marked as non-differentiable, though it changes with {x}."
)


@trial()
def outputs_require_a_gradient(exam):
    """Does a gradient come back through each output that changes with an input?"""
    outputs = list(zip(exam.run.names, exam.run.outputs, exam.vs, strict=True))
    for k, (name, output, _) in enumerate(outputs):
        x = None if output.requires_grad else depends_on(exam, k)
        if x:
            marked = any(output is t for t in exam.run.marked)
            yield (MARKED_NON_DIFFERENTIABLE if marked else OUTPUT_DETACHED)(x, name)
    return not any(output.requires_grad for output in exam.run.outputs)


def depends_on(exam, k):
    """The name of an input with which output k changes."""
    subject = exam.subject
    point = Point(subject, subject.values, exam.dice)
    for i, value in enumerate(subject.values):
        slope = point.slopes(i, exam.dice.direction(value))[k]
        if (slope.value.abs() > 1e-6 * largest(point.y0[k]))[slope.trusted].any():
            return subject.inputs[i]


@trial()
def backward_changes_nothing(exam):
    """Are grad_output and what was saved the same after backward?"""
    if exam.first.grad_output_changed:
        finding = GRAD_OUTPUT_MODIFIED()
        finding.remedy = effects(exam) or finding.remedy
        yield finding
    if exam.first.saved_changed:
        yield SAVED_MODIFIED(which=", by backward itself")


GRADIENT_FOR_INDEX = warning(
    "gradient-for-index",
    "Backward returns a gradient for {x}, which is of {dtype}.",
    look="the place where None belongs",
)
GRADIENT_DTYPE = warning(
    "gradient-dtype",
    "Backward returns {dtype} for {x}, which is of higher precision.",
    look="casts in backward, and tensors made with a fixed dtype",
)
ENGINE_SUMS = note(
    "engine-sums",
    "Backward returns shape {got} for {x} of shape {wanted}; the engine sums it.",
    look="a sum over the broadcast dimensions",
)


@trial()
def what_backward_returns(exam):
    """Have the gradients the dtype and the shape of their inputs?"""
    for x, grad in exam.first.returned.items():
        t = exam.subject.arguments[x]
        if not differentiable(t):
            yield GRADIENT_FOR_INDEX(x, dtype=brief(t.dtype))
        elif not differentiable(grad) or torch.finfo(grad.dtype).eps > exam.precision:
            yield GRADIENT_DTYPE(x, dtype=brief(grad.dtype))
        if grad.shape != t.shape:
            yield ENGINE_SUMS(x, got=tuple(grad.shape), wanted=tuple(t.shape))


BACKWARD_NOT_FINITE = error(
    "backward-not-finite",
    "Backward makes {what} in the gradient of {x}, where {finite} finite.",
    look="0/0, 0 times inf, and overflow{where}; a gradient of 0 stops no nan, as behind "
    "torch.where",
)
SINGULAR = note("singular", "The gradient of {x} is infinite at the edge of the domain.")


class NotFinite(TorchFunctionMode):
    """Notes, in words, the first call of PyTorch that makes nan or inf of what has none."""

    where = ""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        value, frame = func(*args, **(kwargs or {})), frame_of_a_step()
        if frame is not None and not self.where and is_number(value) and not is_finite(value):
            self.where = f", first of all in {source(frame)} ({place_of(frame)})"
        return value


def is_finite(t):
    return bool(t.isfinite().all())


def where_not_finite(exam, vs):
    """In words, where backward is the first to make nan or inf, or nothing."""
    with contextlib.suppress(CallError), watching(NotFinite()) as watch:
        exam.gradients(vs)
    return watch.where


@trial()
def gradients_are_finite(exam):
    """Is a gradient finite where its input, the output and the slope are?"""
    subject = exam.subject
    for i, (x, grad) in enumerate(zip(subject.inputs, exam.first.grads, strict=True)):
        if grad is None or grad.isfinite().all():
            continue
        bad = ~grad.isfinite() & subject.values[i].isfinite()
        for output in exam.run.outputs:  # where forward failed, backward may
            bad &= output.isfinite() if output.shape == grad.shape else output.isfinite().all()
        if bad.any():
            k = int(bad.reshape(-1).nonzero()[0])
            value = subject.values[i].reshape(-1)[k].item()
            seen = {"at": position(k, grad.shape), f"`{x}` there": value}
            seen["given"] = grad.reshape(-1)[k].item()
            point = Point(subject, subject.values, exam.dice)
            slopes = [slope for _, u, _ in point.units(i, k) for slope in point.slopes(i, u)]
            fine = all(slope.trusted.all() for slope in slopes)
            if fine or grad[bad].isnan().any():  # nan is no slope, not even at an edge
                words = {"what": "nan or inf" if fine else "nan"}
                words["finite"] = "the slope is" if fine else "input and output are"
                yield BACKWARD_NOT_FINITE(
                    x, seen=seen, where=where_not_finite(exam, exam.vs), **words
                )
            else:
                yield SINGULAR(x, seen=seen)
