"""Trials of backward: is there a gradient, of which kind, and finite?"""

import torch

from ..causes.exceptions import GRAD_OUTPUT_MODIFIED, SAVED_MODIFIED, as_finding
from ..function.isolation import CallError, OwnGenerators, draws
from ..function.subject import changed, noted
from ..function.tensors import (
    as_vector,
    element,
    equal,
    has_memory,
    is_number,
    largest,
    worst,
)
from ..measure.point import Point
from ..report import brief, error, note, warning
from ..words import _

OUTPUT_DETACHED = error(
    "output-detached",
    "{Y} requires no gradient, though it changes with {x}: forward has left autograd.",
)
MARKED_NON_DIFFERENTIABLE = note(
    "marked-non-differentiable",
    "{Y} is marked as non-differentiable, though it changes with {x}.",
)


def outputs_require_a_gradient(exam):
    """Does a gradient come back through each output that changes with an input?"""
    for k, (name, output) in enumerate(
        zip(exam.run.names, exam.run.outputs, strict=True)
    ):
        x = None if output.requires_grad else depends_on(exam, k)
        if x and any(output is t for t in exam.marked):
            yield MARKED_NON_DIFFERENTIABLE(x, name, output=name)
        elif x:
            yield OUTPUT_DETACHED(
                x, name, output=name, remedy=exam.cut_off, **exam.may_be_meant
            )
    return not exam.graded


def depends_on(exam, k):
    """The name of an input with which output k changes, or None."""
    subject = exam.subject
    point = Point(subject, exam.dice)
    for i, value in enumerate(subject.values):
        slope = point.slopes(i, exam.dice.direction(value))[k]
        if (slope.value.abs() > 1e-6 * largest(point.y0[k]))[slope.trusted].any():
            return subject.inputs[i]


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


def go_back(exam):
    """The first backward pass; what it changes is protected from then on.

    Returns what it returned for each argument, before the engine corrected it; did
    it change grad_output? and what was saved, and changed.
    """
    before = noted(filter(has_memory, exam.run.saved))
    with exam.watched() as (handed, returned):
        grads = exam.subject.backward(
            exam.run, [v.clone() for v in exam.vs], retain=True
        )
    grads = [None if grad is None else grad.clone() for grad in grads]
    writes = any(not equal(g, copy) for g, copy in handed)
    if writes:  # what follows from that is no finding of its own
        exam.subject = exam.subject.but(protects=True)
        grads = exam.subject.gradients(exam.vs)
    exam.first_gradients = grads
    return returned, writes, changed(before)


def what_backward_does(exam):
    """Does it leave alone what it is handed, and return the inputs' dtypes?"""
    returned, writes, saved = go_back(exam)
    if writes:
        yield GRAD_OUTPUT_MODIFIED()
    if saved:
        callers = filter(has_memory, (*exam.run.passed, *exam.run.outputs))
        own = {*map(memory, saved)}.isdisjoint(map(memory, callers))
        severity = "warning" if own and not fails_again(exam) else None
        yield SAVED_MODIFIED(which=_(", by backward itself"), severity=severity)
    subject = exam.subject
    trained = [subject.names[k] for k in subject.examined if k not in subject.frozen]
    for x, grad in returned.items():
        t = subject.arguments[x]
        if not is_number(t):
            yield GRADIENT_FOR_INDEX(x, dtype=brief(t.dtype))
        elif not is_number(grad) or torch.finfo(grad.dtype).eps > exam.precision:
            yield GRADIENT_DTYPE(x, dtype=brief(grad.dtype))
        if grad.shape != t.shape and x in trained:
            yield ENGINE_SUMS(x, got=tuple(grad.shape), wanted=tuple(t.shape))


def memory(tensor):
    """Where the memory of its values begins."""
    return tensor.untyped_storage().data_ptr()


# --- nan and inf ----------------------------------------------------------------------

BACKWARD_NOT_FINITE = error(
    "backward-not-finite",
    "Backward makes {what} in the gradient of {x}, where {finite} finite.",
    look="0/0, 0 times inf, and overflow; a gradient of 0 stops no nan, as behind "
    "torch.where",
)
SINGULAR = note(
    "singular", "The gradient of {x} is infinite at the edge of the domain."
)


def fails_again(exam):
    """Does the same backward raise the second time, as under retain_graph=True?"""
    try:
        exam.subject.backward(exam.run, exam.vs, retain=True)
    except CallError:
        return True
    return False


def gradients_are_finite(exam):
    """Is a gradient finite where its input, the output and the slope are?"""
    subject = exam.subject
    for i, (x, grad) in enumerate(
        zip(subject.inputs, exam.first_gradients, strict=True)
    ):
        if grad is None:
            continue
        bad = ~grad.isfinite() & subject.values[i].isfinite()
        for output in exam.run.outputs:  # where forward failed, backward may
            bad &= (
                output.isfinite()
                if output.shape == grad.shape
                else output.isfinite().all()
            )
        if not bad.any():
            continue
        k = int(bad.reshape(-1).nonzero()[0])
        seen = element(k, {"input there": subject.values[i], "given": grad})
        point = Point(subject, exam.dice)
        if all(
            slope.trusted.all()
            for _unit, u, _step in point.units(i, k)
            for slope in point.slopes(i, u)
        ):
            yield BACKWARD_NOT_FINITE(
                x, values=seen, what=_("nan or inf"), finite=_("the slope is")
            )
        elif grad[bad].isnan().any():  # nan is no slope, not even at an edge
            yield BACKWARD_NOT_FINITE(
                x, values=seen, what=_("nan"), finite=_("input and output are")
            )
        else:
            yield SINGULAR(x, values=seen)


# --- in the dtype that was given --------------

LOW_PRECISION = error(
    "low-precision",
    "The gradient of {x} is right in float64 but not in {dtype}{made}.",
    look="overflow, cancellation and long sums in the formula",
)
OFF_BY = {torch.float32: 1e-2}  # of a gradient, by which it may be off; else 1e-1
SCALED = 5e-2  # the same for a factor between the two, in which rounding averages out
FLUSHED = torch.finfo(torch.float32).tiny  # less than this, processors may take for 0


def as_given(exam):
    """Is the gradient in the dtype that was given that of float64?"""
    # Of both signs; and none below zero: long sums grow, and lose digits.
    for vs in (exam.vs, [v.abs() for v in exam.vs]) if exam.subject.lower else ():
        yield from with_these(exam, vs)


def is_scaled(a, b, rounding):
    """Is `a` another multiple of `b` than rounding makes it?

    For that, most elements must be the same multiple. rounding: of one element
    """
    a, b = as_vector(a), as_vector(b)
    factor = a @ b / b.norm() ** 2
    spread = (a / (factor * b) - 1).abs().nanmedian()
    return (factor - 1).abs() > SCALED + 2 * spread + rounding / b.norm()


def with_these(exam, vs):
    """The finding for these grad_outputs, if one is due."""
    subject, dtype = exam.subject, exam.subject.lower
    try:
        # Not what float64 has left.
        with exam.state.as_before():
            with OwnGenerators() as own:
                run = subject.with_dtype(None).run()
            if own.used or draws():
                return  # other numbers in another dtype, so nothing can be compared
            vs = [v.to(o.dtype) for o, v in zip(run.outputs, vs, strict=True)]
            low = subject.backward(run, vs)
    except CallError as raised:
        yield as_finding(subject, raised)
        return
    vs = [v.to(w.dtype) for v, w in zip(vs, exam.vs, strict=True)]
    # How far would the gradients be off if only the inputs were rounded?
    eps = torch.finfo(dtype).eps
    moved = [v + eps * exam.dice.direction(v, symmetric=True) for v in subject.values]
    high, rounded = (subject.gradients(vs, at) for at in (None, moved))
    # A gradient that is exactly zero, as that of a bias before batch norm, is a sum of
    # terms that cancel. What rounding leaves of them is measured by the other
    # gradients.
    scale = max((largest(g) for g in high if g is not None), default=0.0)
    for x, a, b, c, whole in zip(
        subject.inputs, low, high, rounded, exam.sizes, strict=True
    ):
        if a is None or b is None or not (b.numel() and b.isfinite().all()):
            continue
        has_no_such = b.abs() > torch.finfo(dtype).max
        a = torch.where(has_no_such, b, a.to(b.dtype))
        off = (a - b).abs().nan_to_num(nan=torch.inf)
        is_zero = largest(b) <= 1e-9 * scale
        size = scale if is_zero else largest(b)
        limit = OFF_BY.get(dtype, 1e-1) * size + 30 * largest(c - b) + 10 * eps * whole
        scaled = not is_zero and is_scaled(a, b, eps * whole)
        if off.max() > limit + FLUSHED or scaled:
            made, severity = "", None
            if not all(o.isfinite().all() for o in run.outputs):
                made = _(": forward makes nan or inf")
            elif not a.isfinite().all():
                made = _(": backward makes nan or inf")
            elif exam.copies_differ():  # by design, perhaps
                made, severity = _(", nor is the output"), "warning"
            found = {"values": worst(a, b), "severity": severity}
            yield LOW_PRECISION(x, dtype=brief(dtype), made=made, **found)
