"""Trials of lower precision: in backward alone, and in the dtype that was given."""

import contextlib
import inspect
import math
import re

import torch
from torch.overrides import TorchFunctionMode

from ..function.subject import Subject
from ..function.surroundings import CallError, OwnGenerators, draws, forgiving
from ..function.tensors import largest, position
from ..function.watched import Grain, dtype_of, frame_of_a_step, place_of, source, watching
from ..measure.by_autograd import is_number
from ..name.exceptions import told
from ..name.factors import digits_in_words
from ..report import TEXTS, brief, error, warning
from .examination import Trials
from .forward import FORWARD_NOT_FINITE
from .reached import functions

trial = Trials()


@trial(unless=("error",))
def digits_of_backward(exam):
    """Where forward is too coarse for differences to show it: is backward still coarser?"""
    subject, limit = exam.subject, 100 * max(exam.subject.eps, exam.precision)
    if subject.eps < 1e-10 or limit > 1e-2:
        return
    with Grain(subject.values + exam.vs) as watch:
        grads = subject.gradients(subject.values, exam.vs)
    louder = subject.gradients(subject.values, [1.1 * v for v in exam.vs])
    for x, grad, other in zip(subject.inputs, grads, louder, strict=True):
        (eps,) = (None,) if grad is None else watch.of([grad])
        if eps is None or eps < limit or not grad.isfinite().all():
            continue
        off = largest(other / 1.1 - grad) / (largest(grad) or 1.0)  # rounding is not linear
        if off > limit:
            seen = {"backward computes in": dtype_of(eps)}
            digits = digits_in_words(math.floor(-math.log10(off)))
            yield TEXTS["few-digits"](x, seen=seen, digits=digits)


COARSE_BACKWARD = warning(
    "coarse-backward",
    "Backward computes the gradient of {x} in {dtype}, forward computes in {finer}.",
    look="casts in backward",
)


@trial(unless=("error",))
def precision_of_backward(exam):
    """Are there fewer digits than differences can show, or than what was given has?"""
    subject, dtype = exam.subject, exam.low or torch.float64
    if exam.low:
        subject.use(None)
    try:
        fine = max(1e-10, 100 * torch.finfo(dtype).eps)
        if exam.precision <= fine:
            for x, eps in zip(subject.inputs, coarser_than_forward(exam, fine), strict=False):
                if eps and eps > fine:
                    words = {"dtype": brief(dtype_of(eps)), "finer": brief(dtype)}
                    yield COARSE_BACKWARD(x, **words)
    finally:
        if exam.low:
            subject.use(torch.float64)


def coarser_than_forward(exam, fine):
    """The eps of each gradient, if forward has none that is coarser than `fine`."""
    subject, values = exam.subject, exam.subject.values
    with contextlib.suppress(CallError), Grain(values) as watch:
        run = subject.run(values)
        inside = [eps or 0.0 for eps in watch.of(run.outputs)]
        inside += [torch.finfo(t.dtype).eps for t in run.saved if is_number(t)]  # to save memory
        if max(inside) <= fine:
            vs = [v.to(o.dtype) for v, o in zip(exam.vs, run.outputs, strict=True)]
            watch.note(vs)
            grads = subject.backward(run, vs)
            return [None if grad is None else watch.of([grad])[0] for grad in grads]
    return []


LOW_PRECISION = error(
    "low-precision",
    "The gradient of {x} is right in float64 but not in {dtype}{made}.",
    look="overflow, cancellation and long sums in the formula{where}",
)


STEPS = 300  # at most
MOST = 1e7  # elements of which it keeps a copy


class Noted(TorchFunctionMode):
    """Notes what each call of PyTorch in backward makes: (expression and line, value)."""

    def __init__(self):
        super().__init__()
        self.steps, self.left = [], MOST

    def __torch_function__(self, func, types, args=(), kwargs=None):
        value, frame = func(*args, **(kwargs or {})), frame_of_a_step()
        self.left -= value.numel() if is_number(value) else 0
        if frame is not None and is_number(value) and self.left > 0 and len(self.steps) < STEPS:
            made = value.detach().to(torch.float64, copy=True)
            self.steps.append((f"{source(frame)} ({place_of(frame)})", made))
        return value


def where_lost(exam, dtype, vs, values=None):
    """In words, what in backward is the first to be far off in this dtype; or ""."""
    subject, limit = exam.subject, max(1e-3, 50 * torch.finfo(dtype or exam.low).eps)
    noted, double, values = [], torch.float64 if exam.low else None, values or subject.values
    with forgiving():
        try:
            for kind in (dtype, double):
                subject.use(kind)
                pairs = zip(values, subject.values, strict=True)
                run = subject.run([v.to(w.dtype) for v, w in pairs])
                pairs = zip(vs, run.outputs, strict=True)
                with watching(Noted()) as watch:
                    subject.backward(run, [v.to(o.dtype) for v, o in pairs])
                noted.append(watch.steps)
        finally:
            subject.use(double)
        for (text, a), (other, b) in zip(*noted, strict=False):
            if text != other or a.shape != b.shape or not b.isfinite().all():
                return ""
            if not a.isfinite().all() or largest(a - b) > limit * largest(b):
                return f", first of all in {text}"
    return ""


@trial(unless=("error",))
def as_given(exam):
    if exam.low:
        yield from with_these(exam, exam.vs)
        # None below zero: long sums grow, and lose digits.
        yield from with_these(exam, [v.abs() for v in exam.vs])


def with_these(exam, vs):
    subject, dtype = exam.subject, exam.low
    subject.use(None)
    try:
        with OwnGenerators() as own:
            run = subject.run(subject.values)
        if own.used or draws():
            return  # other numbers in another dtype, so nothing can be compared
        vs = [v.to(o.dtype) for o, v in zip(run.outputs, vs, strict=True)]
        low = subject.backward(run, vs)
    except CallError as raised:
        try:  # again, with a module that has not yet seen float64
            fresh = Subject(*exam.given[:3], exam.own)
            fresh.run(fresh.values)
        except CallError:
            yield told(subject, raised)
        return
    finally:
        subject.use(torch.float64)
    for y, o, exact in zip(run.names, run.outputs, exam.run.outputs, strict=True):
        if exact.isfinite().all() and not o.isfinite().all():
            yield FORWARD_NOT_FINITE(y=y, precision=f" of {brief(dtype)}")
    vs = [v.to(w.dtype) for v, w in zip(vs, exam.vs, strict=True)]
    high = subject.gradients(subject.values, vs)
    # How far would the gradients be off if only the inputs were rounded?
    eps = torch.finfo(dtype).eps
    rounded = [v + eps * exam.dice.direction(v, symmetric=True) for v in subject.values]
    rounded = subject.gradients(rounded, vs)
    limit = {torch.float32: 1e-2, torch.float16: 1e-1}.get(dtype, 3e-1)
    # A gradient that is exactly zero, as that of a bias before batch norm, is a sum of terms that
    # cancel. What rounding leaves of them is measured by the other gradients.
    scale = max((largest(g) for g in high if g is not None), default=0.0)
    for x, a, b, c, whole in zip(subject.inputs, low, high, rounded, exam.sizes, strict=True):
        if a is None or b is None or not (b.numel() and b.isfinite().all()):
            continue
        off = (a.to(b.dtype) - b).abs().reshape(-1).nan_to_num(nan=torch.inf)
        size = largest(b) if largest(b) > 1e-9 * scale else scale
        if off.max() > limit * size + 30 * largest(c - b) + 10 * eps * whole:
            k = int((off >= 0.99 * off.max()).nonzero()[0])
            given, expected = a.reshape(-1)[k].item(), b.reshape(-1)[k].item()
            seen = {"at": position(k, b.shape), "given": given, "expected": expected}
            made = "" if a.isfinite().all() else ": backward makes nan or inf"
            if not all(o.isfinite().all() for o in run.outputs):
                made = ": forward makes nan or inf"
            where = "" if "forward" in made else where_lost(exam, None, vs)
            yield LOW_PRECISION(x, seen=seen, dtype=brief(dtype), made=made, where=where)


HALF = r"torch\.(float16|half|bfloat16)\b|\.(half|bfloat16)\(\)"
LOUD = 300.0  # whose square float16 cannot hold


@trial(unless=("error",))
def in_half(exam):
    """Where a Function speaks of half precision: is backward as right in it as forward is?"""
    subject, texts = exam.subject, []
    for fn in functions(exam.run.outputs):
        with contextlib.suppress(OSError, TypeError):
            texts.append(inspect.getsource(fn))
    for times in (1.0, LOUD) if re.search(HALF, " ".join(texts)) else ():
        subject.use(torch.float16)
        values = [times * v for v in subject.values]
        try:
            run = subject.run(values)
            pairs = zip(run.outputs, exam.vs, strict=True)
            low = subject.backward(run, [v.to(o.dtype) for o, v in pairs])
        except CallError:
            return
        finally:
            subject.use(torch.float64 if exam.low else None)
        with contextlib.suppress(CallError):
            exact = subject.run(
                [v.to(w.dtype) for v, w in zip(values, subject.values, strict=True)]
            )
            high = subject.backward(exact, exam.vs)
            if all(map(near, run.outputs, exact.outputs)):
                grads = zip(subject.inputs, low, high, strict=True)
                for x, a, b in [three for three in grads if all(g is not None for g in three)]:
                    if TINY < largest(b) < LARGE and overflows(a, b):
                        large = f", for an input {times:.0f} times as large" * (times > 1)
                        where = where_lost(exam, torch.float16, exam.vs, values)
                        yield LOW_PRECISION(x, dtype="float16", made=large, where=where)
                        return


TINY, LARGE = 1e-4, 6e4  # what float16 can hold


def near(a, b):
    return bool(a.isfinite().all()) and largest(a.to(b.dtype) - b) <= 1e-2 * largest(b)


def overflows(a, b):
    """Is the one infinite, or 0 as of a division by infinity, where the other is large?"""
    return bool(((~a.isfinite() | (a == 0)) & (b.abs() > 0.1 * largest(b))).any())
