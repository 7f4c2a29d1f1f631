"""Trials of forward: what it is given, what it returns, what it leaves behind."""

import contextlib
import re

import torch

from ..causes.exceptions import as_finding
from ..function.isolation import CallError, OwnGenerators
from ..function.precision import Grain, are_single, dtype_of
from ..function.private import BackwardCFunction, is_a_users
from ..function.subject import nodes_in_python
from ..function.tensors import (
    Dice,
    differentiable,
    element,
    has_memory,
    has_own_operations,
    is_dense,
    is_number,
    tensors,
)
from ..report import TEXTS, Judged, brief, error, note, warning
from ..words import N_, _

NOTHING_TO_EXAMINE = error(
    "nothing-to-examine",
    "No input is a floating-point or complex tensor with elements.",
)


def there_are_inputs(exam):
    """Is there anything to be differentiated? Notes what is left out."""
    for name, t in zip(exam.subject.names, exam.subject.tensors, strict=True):
        if has_own_operations(t):
            exam.not_judged(_("its class has operations of its own"), name)
        elif is_number(t) and not is_dense(t):
            exam.not_judged(_("it is sparse or nested, not a dense tensor"), name)
        elif is_number(t) and not t.numel():
            exam.not_judged(_("it has no elements"), name)
    if exam.subject.values:
        return False
    exam.examined = False
    if not exam.judged:
        yield NOTHING_TO_EXAMINE()
    return True


DOUBLE_COPY = note(
    "double-copy", "Examined in float64, as differences need, not in {dtype}."
)
NOT_IN_DOUBLE = note(
    "not-in-double", "It does not run in float64, so it was examined in {dtype}."
)
INPUT_NOT_FINITE = warning("input-not-finite", "{x} itself has nan or inf.")


def refused(exam):
    """What the function raises in float64, or None."""
    given = exam.subject
    if given.lower:
        exam.subject = given.with_dtype(torch.float64)
        try:
            exam.subject.for_ones()
        except CallError as raised:
            exam.subject = given.but(lower=None)
            exam.state.restore()
            exam.subject.for_ones()
            return raised
    return None


def choose_among_the_frozen(exam):
    """Judge constants, too, where backward has a gradient for them."""
    for k in exam.subject.frozen:
        x, more = exam.subject.names[k], sorted([*exam.subject.examined, k])
        other, meant = exam.subject.with_inputs(more), True
        why = _("it requires no gradient, and backward returns None for it")
        try:
            grad = other.for_ones()[more.index(k)]
        except CallError:
            grad, meant = None, False
            why = _("it requires no gradient, and the function fails once it does")
        if grad is None:
            exam.not_judged(why, x, meant=meant)
        else:
            exam.subject, exam.judged[x] = other, Judged(x)
    exam.state.restore()


def numbers_that_are_given(exam):
    """Chooses the dtype of the examination and its inputs.

    Notes those that are not finite.
    """
    dtype, refusal = brief(exam.subject.lower), refused(exam)
    choose_among_the_frozen(exam)
    exam.subject = exam.subject.with_sums()
    exam.state.restore()
    if refusal:
        yield as_finding(exam.subject, refusal, NOT_IN_DOUBLE, dtype=dtype)
    elif exam.subject.lower:
        yield DOUBLE_COPY(dtype=dtype)
    for name, value in zip(exam.subject.inputs, exam.subject.values, strict=True):
        if not value.isfinite().all():
            yield INPUT_NOT_FINITE(name)


NO_OUTPUT = error(
    "no-output",
    "Forward returned no floating-point or complex tensor, so there is no gradient.",
    look="the return statement of forward",
)
NOT_DETERMINISTIC = error(
    "forward-not-deterministic",
    "The same input and the same random seed give another output {when}.",
    look="counters, caches, what is kept of the last call, generators of its own, "
    "uninitialised memory, races",
)
OWN_GENERATOR = N_(
    "forward draws from a generator of its own, which no seed of the doctor reaches: "
    "examine it with the default one"
)


def without_outputs(exam):
    """Why there is nothing to differentiate: a finding, or what was not judged."""
    others = [t for _name, t in exam.run.returned if t.is_floating_point()]
    why = N_(
        "an output of dtype {dtype} has no arithmetic, so there are no differences"
    )
    if not all(map(is_dense, others)):
        why = N_("the output is sparse or nested, not a dense tensor")
    if any(not t.numel() for t in others):
        why = N_("the output has no elements")
    if others:
        exam.not_judged(_(why, dtype=brief(others[0].dtype)))
    else:
        yield NO_OUTPUT(severity="note" if exam.run.returned else None)


def forward_twice(exam):
    """Is there an output, and is it the same once more, and after another call?"""
    subject, outputs = exam.subject, exam.run.outputs
    if not outputs:
        yield from without_outputs(exam)
        return True
    near = exam.nearby(Dice())
    when = _("the second time")
    try:
        again = subject.run(needs=False).outputs
    except CallError:
        again = []
    if not exam.all_same(again, outputs):  # or is it that nothing is recorded?
        exam.subject = subject = subject.but(records=True)
        again = subject.run().outputs
    with contextlib.suppress(CallError):
        if exam.all_same(again, outputs):
            when = _("after a call with another input")
            there = subject.run(near).outputs
            again = subject.run(needs=subject.records).outputs
        if not exam.all_same(again, outputs):
            with OwnGenerators() as own, own.everywhere():
                exam.subject.run()
            if own.used or exam.state.generators:
                exam.not_judged(_(OWN_GENERATOR))
            else:
                yield NOT_DETERMINISTIC(when=when)
            return True
        if exam.state.changed():  # as of a cache, or of what the first call initializes
            with exam.state.as_before():
                if not exam.all_same(subject.run(near).outputs, there):
                    yield NOT_DETERMINISTIC(when=when, severity="warning")


COARSE_INSIDE = note(
    "coarse-inside", "Forward computes in {dtype} inside, which hides small errors."
)
COARSE_SAVED = note(
    "coarse-saved",
    "What forward computes or saves is {dtype}: errors of up to {percent} % do not show.",
)
TOO_COARSE_FROM = 1e-4  # the eps of float16 is 1e-3, that of bfloat16 8e-3
TOO_COARSE = note(
    "too-coarse",
    "Numbers of {dtype} are too coarse for differences of forward, so the gradient was "
    "not compared with them.",
)


def precision_inside(exam):
    """Notes whether forward computes in coarser numbers."""
    subject = exam.subject
    coarse = Grain.within(subject.values, subject.forward)
    if coarse is None:  # the trail ends in NumPy, or in a kernel
        with contextlib.suppress(CallError):
            outputs = subject.run(exam.nearby(Dice())).outputs
            if any(map(are_single, outputs)):
                coarse = torch.finfo(torch.float32).eps
        # The last call is the one to which exam.run belongs.
        subject.forward(subject.values)
    coarse = coarse or 0.0
    if coarse > max(subject.eps, 1e-10):
        exam.subject = subject = subject.but(inner_eps=coarse)
        yield COARSE_INSIDE(dtype=brief(dtype_of(coarse)))
    saved = [torch.finfo(t.dtype).eps for t in exam.run.saved if is_number(t)]
    saved_eps = max((eps for eps in saved if eps > exam.precision), default=0.0)
    exam.subject = subject = subject.but(saved_eps=saved_eps)
    dtype = brief(dtype_of(max(subject.eps, subject.saved_eps)))
    if subject.eps > TOO_COARSE_FROM or subject.tolerance > 1:
        exam.not_judged(_("numbers are too coarse for differences"))
        yield TOO_COARSE(dtype=dtype)
    elif subject.tolerance > 1e-3:
        yield COARSE_SAVED(dtype=dtype, percent=brief(100 * subject.tolerance, 1))


READ_ONLY_VIEW = note(
    "view-returned",
    "{Y} is a view that forward made: autograd refuses to change it, or its base, in "
    "place.",
)
OUTPUT_DTYPE = warning(
    "output-dtype",
    "Forward returns {dtype} for inputs of higher precision.",
    look="casts in forward",
)
FORWARD_NOT_FINITE = warning(
    "forward-not-finite",
    "Forward makes nan or inf in {y} from finite inputs.",
    look="overflow, division by zero, log and sqrt at the edge of their domain",
)


def numbers_that_are_returned(exam):
    """Is an output a view, of lower precision, or not finite?"""
    for name, output in zip(exam.run.names, exam.run.outputs, strict=True):
        if isinstance(output.grad_fn, BackwardCFunction) and output._is_view():
            yield READ_ONLY_VIEW(y=name)
        if torch.finfo(output.dtype).eps > exam.precision:
            yield OUTPUT_DTYPE(y=name, dtype=brief(output.dtype))
        if not output.isfinite().all() and not exam.has("input-not-finite"):
            k = int((~output.isfinite()).reshape(-1).nonzero()[0])
            there = {"value": output}
            for value in exam.subject.values:
                if value.shape == output.shape:
                    there["input there"] = value
            yield FORWARD_NOT_FINITE(y=name, values=element(k, there))


INPUT_MODIFIED = error(
    "input-modified",
    "Forward changes {x} in place{how}.",
    look="methods that end in an underscore, += and its like, and assignments to an "
    "index; work on a copy, or call ctx.mark_dirty",
)
A_COPY = N_("a copy, where the caller must not see the change")
CALLERS = N_(
    ", which is the caller's; where it is a leaf that requires a gradient, autograd "
    "refuses that"
)


def inputs_are_untouched(exam):
    """Does forward change what belongs to the caller?"""
    subject, run = exam.subject, exam.run
    slots = zip(subject.names, subject.tensors, run.passed, strict=True)
    for k, (name, before, t) in enumerate(slots):
        if name in subject.state or not has_memory(t):
            continue  # such as running statistics, and what is freed
        recorded = t.grad_fn is not None and t._version > 0
        if recorded and name in subject.leaves:
            yield TEXTS["in-place-leaf"](phase=_("Forward"))
        elif recorded:
            marked = isinstance(t.grad_fn, BackwardCFunction)  # by ctx.mark_dirty
            known = {"severity": "note", "remedy": _(A_COPY)}
            unknown = {"severity": "warning"}
            yield INPUT_MODIFIED(name, how=_(CALLERS), **known if marked else unknown)
        elif not exam.same(t, before):
            integers = "note" if t.is_floating_point() else "warning"
            severity = None if k in subject.examined else integers
            yield INPUT_MODIFIED(
                name, severity=severity, how=_(" without telling autograd")
            )


TENSOR_ON_CTX = warning(
    "tensor-on-ctx",
    "`{path}` is kept outside `save_for_backward`, so autograd does not notice when it "
    "changes in place{also}.",
    look="ctx.save_for_backward{or_else}",
)
REFERENCE_CYCLE = error(
    "reference-cycle",
    "`{path}` holds an output: output and ctx refer to each other, so their memory "
    "waits for Python's garbage collector.",
    look="ctx.save_for_backward",
)
BROKEN = N_("Backward breaks the cycle: that is so only where none runs.")
FOR_GOOD = N_(
    ", and where backward uses it, a second derivative, if there is one, takes it for "
    "a constant"
)
BOTH = N_(
    " for the one; to recompute it in backward, or to return it from forward, for both"
)


def what_ctx_holds(exam):
    """Are there tensors on ctx that belong into save_for_backward?"""
    pairs = zip(exam.subject.names, exam.run.passed, strict=True)
    given = {id(t): name for name, t in pairs}
    for node in nodes_in_python(exam.run.outputs):
        for path, t in held_by(node) if is_a_users(node._forward_cls) else ():
            where = {"path": re.sub(r"^ctx\['(\w+)'\]", r"ctx.\1", path)}
            x = given.get(id(t))
            if t.grad_fn is node:
                broken = is_broken(exam, path)
                words = {"severity": "warning", "further": [_(BROKEN)]}
                yield REFERENCE_CYCLE(**where, **words if broken else {})
            elif x:
                yield TENSOR_ON_CTX(x, **where, also="", or_else="")
            elif differentiable(t) and not is_constant(exam, path, t):
                yield TENSOR_ON_CTX(**where, also=_(FOR_GOOD), or_else=_(BOTH))


def is_broken(exam, path):
    """Does ctx hold nothing there after a backward pass?"""
    run = exam.subject.run()
    with contextlib.suppress(CallError):
        exam.subject.for_ones(run)
    return not held_at(path, run)


def held_at(path, run):
    """What stands there on the ctx of each Function."""
    nodes = nodes_in_python(run.outputs)
    return [t for node in nodes for name, t in held_by(node) if name == path]


def held_by(node):
    """(path, tensor) of what ctx holds; an array counts as one."""
    arrays = {
        name: torch.as_tensor(value)
        for name, value in vars(node).items()
        if hasattr(value, "__array_interface__")
    }
    found = tensors({**vars(node), **arrays}, "ctx")
    # To read what has freed its memory would end Python.
    return [(path, t) for path, t in found if has_memory(t) or not is_dense(t)]


def is_constant(exam, path, t):
    """Is what ctx holds the same for other inputs, as a window or a table is?"""
    others = [exam.dice.nearby(-v) for v in exam.subject.values]
    try:
        found = held_at(path, exam.subject.run(others))
    except CallError:
        return False
    return bool(found) and all(torch.equal(t, other) for other in found)
