"""Trials of backward: what it returns, and whether it returns the same once more."""

import ast
import contextlib
import functools
import itertools
import re

import torch

from ..function.private import BackwardCFunction
from ..function.source import nodes_of
from ..function.subject import graph, of_fewer, with_other_arguments
from ..function.surroundings import CallError
from ..function.tensors import differentiable, largest, position
from ..function.watched import Effects, watching
from ..measure.measurement import Point
from ..name.exceptions import GRAD_OUTPUT_MODIFIED, SAVED_MODIFIED, is_library, told
from ..report import CUT_OFF, brief, error, note, warning
from .examination import Trials
from .forward import nodes
from .kept import kept_by, kept_outside
from .precision import Noted

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


def with_places(exam, finding):
    """The finding, and where backward changes in place what was there before it, and draws."""
    with contextlib.suppress(CallError), watching(Effects()) as watch:
        exam.subject.gradients(exam.subject.values, exam.vs)
    for what, found in (("changes", watch.changes), ("draws", watch.draws)):
        if places := [f"{text} ({place})" for text, place in found.items()]:
            finding.remedy = f"what backward {what}: {', '.join(places[:3])}"
    return finding


@trial()
def backward_changes_nothing(exam):
    if exam.first.grad_output_changed:
        yield with_places(exam, GRAD_OUTPUT_MODIFIED())
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
    "Backward returns shape {got} for {x} of shape {wanted}; the engine sums it.{late}",
    look="a sum over the broadcast dimensions",
)


@trial()
def what_backward_returns(exam):
    for x, grad in exam.first.returned.items():
        t = exam.subject.arguments[x]
        if not differentiable(t):
            yield GRADIENT_FOR_INDEX(x, dtype=brief(t.dtype))
        elif not differentiable(grad) or torch.finfo(grad.dtype).eps > exam.precision:
            yield GRADIENT_DTYPE(x, dtype=brief(grad.dtype))
        if grad.shape != t.shape:
            others = zip(exam.subject.inputs, exam.subject.values, exam.first.grads, strict=True)
            late = [f"`{n}`" for n, v, g in others if g is None and v.shape == grad.shape]
            words = {"got": tuple(grad.shape), "wanted": tuple(t.shape), "late": ""}
            if late:
                words["late"] = f" But {late[0]}, which has that shape, gets None: one place late?"
            severity = "warning" if x in exam.subject.inputs else "error"
            yield ENGINE_SUMS(x, severity=severity if late else None, **words)


BACKWARD_NOT_FINITE = error(
    "backward-not-finite",
    "Backward makes {what} in the gradient of {x}, where {finite} finite.",
    look="0/0, 0 times inf, and overflow in the formula{half}{made}",
)
SINGULAR = note("singular", "The gradient of {x} is infinite at the edge of the domain.")


def halved(exam):
    """Where a backward uses half precision, in words."""
    for cls in dict.fromkeys(node._forward_cls for node in nodes(exam)):
        for node in nodes_of(cls.backward):
            match node:
                case ast.Call(func=ast.Attribute(attr="half")) | ast.Attribute(attr="float16"):
                    yield f"`{ast.unparse(node)}` (line {node.lineno}, in `backward`)"


def made_by(exam):
    """In words, the operation of forward whose backward is the first to make nan or inf."""
    subject, found = exam.subject, []

    def note(node, made, given):
        fine = all(t.isfinite().all() for t in given if t is not None)
        if fine and any(not t.isfinite().all() for t in made if t is not None):
            found.append((node, any((t == 0).any() for t in given if t is not None)))

    with contextlib.suppress(CallError), torch.autograd.set_detect_anomaly(True, check_nan=False):
        run = subject.run(subject.values)
        for node in graph(run.outputs):
            node.register_hook(functools.partial(note, node))
        subject.backward(run, exam.vs)
    for node, zero in found[:1]:
        if isinstance(node, BackwardCFunction):
            return f", in the backward of `{node._forward_cls.__name__}`"
        if place := users_frame(node.metadata.get("traceback_", ())):
            late = ", which a gradient of 0 does not stop: its argument has to be safe"
            return f": {place}{late * zero}"
    return ""


def in_backward(exam):
    """In words, what backward is the first to make nan or inf of."""
    with contextlib.suppress(CallError), watching(Noted()) as watch:
        exam.subject.gradients(exam.subject.values, exam.vs)
    found = (text for text, made in watch.steps if not made.isfinite().all())
    return "".join(f", first of all in {text}" for text in itertools.islice(found, 1))


def users_frame(traceback):
    """In words, the last line of the user's own code in a traceback of strings."""
    frames = [re.match(r' +File "(.*)", line (\d+), in (.*)\n +(.*)', text) for text in traceback]
    own = [f.groups() for f in frames if f and not is_library(f[1])]
    return "".join(f"`{text}` (line {line}, in `{name}`)" for _, line, name, text in own[-1:])


@trial()
def gradients_are_finite(exam):
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
                half = next(halved(exam), "")
                words["half"] = half and f", of half precision first: {half}"
                words["made"] = "" if half else in_backward(exam) if subject.cls else made_by(exam)
                yield BACKWARD_NOT_FINITE(x, seen=seen, **words)
            else:
                yield SINGULAR(x, seen=seen)


BACKWARD_NOT_DETERMINISTIC = error(
    "backward-not-deterministic",
    "The same backward gives another gradient {why}.",
    look="what backward changes, draws or adds to; what forward drew must be saved",
)
BACKWARD_ONLY_ONCE = warning(
    "backward-only-once",
    "Backward fails the second time, under retain_graph=True.",
    look="what backward deletes or changes",
)
STATE_BETWEEN_CALLS = error(
    "state-between-calls",
    "The gradient of {x} is another {when}.",
    look="what is kept outside ctx: class attributes, globals, self; and memory never filled, as "
    "of torch.empty",
)


@contextlib.contextmanager
def left_on_classes(exam):
    """Yields a list: afterwards, (cls, name) of each tensor that forward has put on a class."""
    classes = {node._forward_cls for node in nodes(exam)}
    before, found = {cls: dict(vars(cls)) for cls in classes}, []
    yield found
    for cls in classes:
        found += [(cls, name) for name, t in vars(cls).items()
                  if isinstance(t, torch.Tensor) and t is not before[cls].get(name)]  # fmt: skip


@trial(unless=("saved-modified",))
def backward_twice(exam):
    subject, run, vs = exam.subject, exam.run, exam.vs
    try:
        second = subject.backward(run, vs, retain=True)
        if not all(map(exam.same, second, exam.first.grads, exam.floors)):
            run = subject.run(subject.values)  # other calls may have left something since
            subject.backward(run, vs, retain=True)
            second = subject.backward(run, vs, retain=True)
        drawn = subject.backward(run, vs, retain=True, seed=2)
    except CallError as raised:
        yield told(subject, raised, BACKWARD_ONLY_ONCE)
        return

    def after_another_call():
        with left_on_classes(exam) as left:
            run = subject.run(subject.values)
        near = [exam.dice.nearby(v) for v in subject.values]
        turned = [-v.flip(tuple(range(v.dim()))) for v in near]  # with other signs
        others = [(other, near) for other in with_other_arguments(subject)]
        fewer = [(other, other.values) for other in of_fewer(subject)]
        for other, values in ((subject, near), (subject, turned), *fewer, *others):
            with contextlib.suppress(CallError):
                other.run(values, seed=3)
        kept = [(cls, name, getattr(cls, name)) for cls, name in left]
        for cls, name, t in kept:  # as a call with other numbers and masks might
            setattr(cls, name, torch.zeros_like(t))
        try:
            return subject.backward(run, vs)
        except CallError:  # with what another call has left
            return [None] * len(subject.values)
        finally:
            for attribute in kept:
                setattr(*attribute)

    why = "for another random state, because it draws random numbers"
    fine = True
    for finding in exam.compare(BACKWARD_NOT_DETERMINISTIC, lambda: second, why="the second time"):
        fine = False
        yield with_places(exam, finding)
    fine = fine and (yield from exam.compare(BACKWARD_NOT_DETERMINISTIC, lambda: drawn, why=why))
    ways = {
        "in a later call with the same inputs": lambda: subject.gradients(subject.values, vs),
        "if forward runs once more, with other inputs, before backward": after_another_call,
    }
    found = (exam.compare(STATE_BETWEEN_CALLS, way, when=when) for when, way in ways.items())
    if fine:
        for finding in itertools.islice(itertools.chain.from_iterable(found), 1):
            if places := kept_outside(exam):
                finding.remedy = "what forward writes outside ctx, and backward reads: "
                finding.remedy += ", ".join(places)
            elif subject.is_module and (where := kept_by(exam)):
                finding.remedy = f"what forward keeps from one call to the next{where}"
            yield finding
