"""Trials of lower precision: in backward alone, and in the dtype that was given."""

import contextlib

import torch

from ..function.surroundings import CallError, OwnGenerators, draws
from ..function.tensors import is_number, largest, position
from ..function.watched import Grain, dtype_of
from ..name.exceptions import told
from ..report import brief, error, warning
from .backward import where_not_finite
from .examination import Trials
from .forward import FORWARD_NOT_FINITE

trial = Trials()
COARSE_BACKWARD = warning(
    "coarse-backward",
    "Backward computes the gradient of {x} in {dtype}, forward computes in {finer}.",
    look="casts in backward",
)


@contextlib.contextmanager
def as_it_was_given(exam):
    """Inside, the function is called with inputs of the dtype that was given."""
    low = exam.low
    exam.subject.use(None)
    try:
        yield exam.subject
    finally:
        exam.subject.use(torch.float64 if low else None)


@trial(unless=("error",))
def precision_of_backward(exam):
    """Has a gradient fewer digits than forward, what it saves, and what was given?"""
    with as_it_was_given(exam) as subject, contextlib.suppress(CallError):
        with Grain(subject.values) as watch:
            run = subject.run(subject.values)
            coarse = [eps or 0.0 for eps in watch.of(run.outputs)]
            coarse += [torch.finfo(t.dtype).eps for t in run.saved if is_number(t)]
            vs = [v.to(o.dtype) for v, o in zip(exam.vs, run.outputs, strict=True)]
            watch.note(vs)
            grads = subject.backward(run, vs)
        finest = max(exam.precision, *coarse)
        finer = torch.float64 if finest < 1e-10 else dtype_of(finest)
        for x, grad in zip(subject.inputs, grads, strict=True):
            (eps,) = (None,) if grad is None else watch.of([grad])
            if eps and eps > max(1e-10, 100 * finest):
                yield COARSE_BACKWARD(x, dtype=brief(dtype_of(eps)), finer=brief(finer))


LOW_PRECISION = error(
    "low-precision",
    "The gradient of {x} is right in float64 but not in {dtype}{made}.",
    look="overflow, cancellation and long sums in the formula{where}",
)


@trial(unless=("error",))
def as_given(exam):
    """Is the gradient in the dtype that was given that of float64?"""
    if exam.low:
        yield from with_these(exam, exam.vs)
        # None below zero: long sums grow, and lose digits.
        yield from with_these(exam, [v.abs() for v in exam.vs])


def with_these(exam, vs):
    """The finding for these grad_outputs, if one is due."""
    subject, dtype = exam.subject, exam.low
    try:
        with as_it_was_given(exam), exam.outside.as_before():  # not what float64 has left
            with OwnGenerators() as own:
                run = subject.run(subject.values)
            if own.used or draws():
                return  # other numbers in another dtype, so nothing can be compared
            vs = [v.to(o.dtype) for o, v in zip(run.outputs, vs, strict=True)]
            low = subject.backward(run, vs)
    except CallError as raised:
        yield told(subject, raised)
        return
    fine = all(o.isfinite().all() for o in run.outputs)
    for y, o, exact in zip(run.names, run.outputs, exam.run.outputs, strict=True):
        if exact.isfinite().all() and not o.isfinite().all():
            yield FORWARD_NOT_FINITE(y=y, precision=f" of {brief(dtype)}")
    vs = [v.to(w.dtype) for v, w in zip(vs, exam.vs, strict=True)]
    high = exam.gradients(vs)
    # How far would the gradients be off if only the inputs were rounded?
    eps = torch.finfo(dtype).eps
    rounded = [v + eps * exam.dice.direction(v, symmetric=True) for v in subject.values]
    rounded = subject.gradients(rounded, vs)
    part = {torch.float32: 1e-2, torch.float16: 1e-1}.get(dtype, 3e-1)
    # A gradient that is exactly zero, as that of a bias before batch norm, is a sum of terms that
    # cancel. What rounding leaves of them is measured by the other gradients.
    scale = max((largest(g) for g in high if g is not None), default=0.0)
    for x, a, b, c, whole in zip(subject.inputs, low, high, rounded, exam.sizes, strict=True):
        if a is None or b is None or not (b.numel() and b.isfinite().all()):
            continue
        off = (a.to(b.dtype) - b).abs().reshape(-1).nan_to_num(nan=torch.inf)
        off[b.reshape(-1).abs() > torch.finfo(dtype).max] = 0.0  # it has no such numbers
        size = largest(b) if largest(b) > 1e-9 * scale else scale
        if off.max() > part * size + 30 * largest(c - b) + 10 * eps * whole:
            k = int((off >= 0.99 * off.max()).nonzero()[0])
            given, expected = a.reshape(-1)[k].item(), b.reshape(-1)[k].item()
            seen = {"at": position(k, b.shape), "given": given, "expected": expected}
            made, where = "", ""
            if not (a.isfinite().all() and fine):
                made = f": {'backward' if fine else 'forward'} makes nan or inf"
                own = [v.to(o.dtype) for v, o in zip(vs, run.outputs, strict=True)]
                with as_it_was_given(exam):
                    where = where_not_finite(exam, own)
            yield LOW_PRECISION(x, seen=seen, dtype=brief(dtype), made=made, where=where)
