"""Trials of forward: does it run, what does it return, what does it leave behind?"""

import contextlib
import re

import torch

from ..function.private import BackwardCFunction
from ..function.subject import graph
from ..function.surroundings import CallError
from ..function.tensors import Dice, differentiable, has_memory, position, tensors
from ..function.watched import Grain, dtype_of
from ..name.exceptions import IN_PLACE, told
from ..report import TEXTS, brief, error, note, warning
from .examination import Trials
from .kept import nodes

trial = Trials()

NOTHING_TO_EXAMINE = error(
    "nothing-to-examine", "No input is a floating-point or complex tensor with elements."
)


@trial()
def there_are_inputs(exam):
    """Is there anything to be differentiated?"""
    if not exam.subject.values:
        exam.examined = False
        yield NOTHING_TO_EXAMINE()
        return True


NOT_EXAMINED = note("not-examined", "{what} not examined: {why}.")


@trial()
def inputs_are_dense(exam):
    """Notes which inputs are left out because of their layout."""
    for name, t in zip(exam.subject.names, exam.subject.tensors, strict=True):
        if t.is_floating_point() and (t.layout is not torch.strided or t.is_nested):
            why = f"it is {'nested' if t.is_nested else 'sparse'}, not a dense tensor"
            yield NOT_EXAMINED(name, what=f"The gradient of `{name}` is", why=why)


DOUBLE_COPY = note("double-copy", "Examined in float64, as differences need, not in {dtype}.")
NOT_IN_DOUBLE = note(
    "not-in-double", "It does not run in float64, so it was examined in {dtype}{where}."
)


@trial()
def in_float64(exam):
    """Notes in which dtype the function is examined."""
    dtype = brief(exam.subject.lower)
    if exam.refusal:
        coarse = exam.subject.eps > 1e-3
        where = "" if coarse else ", where only errors of some percent show"
        yield told(exam.subject, exam.refusal, NOT_IN_DOUBLE, dtype=dtype, where=where)
    elif exam.low:
        yield DOUBLE_COPY(dtype=dtype)


INPUT_NOT_FINITE = warning("input-not-finite", "{x} itself has nan or inf.")


@trial()
def inputs_are_finite(exam):
    """Are there nan or inf in what was given?"""
    for name, value in zip(exam.subject.inputs, exam.subject.values, strict=True):
        if not value.isfinite().all():
            yield INPUT_NOT_FINITE(name)


NO_OUTPUT = error(
    "no-output",
    "Forward returned no floating-point or complex tensor, so there is no gradient.",
    look="the return statement of forward",
)
ONLY_INTEGERS = note(
    "only-integers",
    "Forward returns only integers, float8 or empty tensors, which have no gradient.",
)


@trial()
def there_are_outputs(exam):
    """Is there an output that can have a gradient?"""
    if not exam.run.outputs:
        yield ONLY_INTEGERS() if exam.run.others else NO_OUTPUT()
        return True


NOT_DETERMINISTIC = error(
    "forward-not-deterministic",
    "The same input and the same random seed give another output {when}.",
    look="counters, caches, what is kept of the last call, generators of its own, uninitialised "
    "memory, races",
)


@trial()
def forward_twice(exam):
    """Is the output the same once more, and after another call?"""
    subject, outputs = exam.subject, exam.run.outputs
    try:
        again = subject.run(subject.values, needs=False).outputs
    except CallError:
        again = []
    if not exam.all_same(again, outputs):  # or is it that nothing is recorded?
        subject.records = True
        again = subject.run(subject.values).outputs
    with contextlib.suppress(CallError):
        when = "the second time"
        if exam.all_same(again, outputs):
            when = "after a call with another input"
            subject.run([Dice().nearby(v) for v in subject.values])
            again = subject.run(subject.values, needs=subject.records).outputs
        if not exam.all_same(again, outputs):
            yield NOT_DETERMINISTIC(when=when)
            return True


COARSE_INSIDE = note(
    "coarse-inside",
    "Forward computes in {dtype} inside, so that only errors of some percent show.",
)


@trial()
def precision_inside(exam):
    """Does forward compute in coarser numbers than its inputs have?"""
    subject = exam.subject
    # The last call is the one to which exam.run belongs.
    coarse = Grain.within(subject.values, lambda: subject.forward(subject.values))
    if coarse > max(subject.eps, 1e-10):
        subject.eps = coarse
        yield COARSE_INSIDE(dtype=brief(dtype_of(coarse)))


TOO_COARSE = note(
    "too-coarse",
    "Numbers of {dtype} are too coarse for differences of forward, so the gradient was not "
    "compared with them.",
)


@trial()
def differences_would_show(exam):
    """Notes where numbers are too coarse for differences."""
    if exam.subject.eps > 1e-3:
        yield TOO_COARSE(dtype=brief(dtype_of(exam.subject.eps)))


OUTPUT_DTYPE = warning(
    "output-dtype",
    "Forward returns {dtype} for inputs of higher precision.",
    look="casts in forward",
)


@trial()
def outputs_keep_the_dtype(exam):
    """Is an output of lower precision than the inputs?"""
    for name, output in zip(exam.run.names, exam.run.outputs, strict=True):
        if torch.finfo(output.dtype).eps > exam.precision:
            yield OUTPUT_DTYPE(y=name, dtype=brief(output.dtype))


FORWARD_NOT_FINITE = warning(
    "forward-not-finite",
    "Forward makes nan or inf in {y} from finite inputs{precision}.",
    look="overflow, division by zero, log and sqrt at the edge of their domain",
)


@trial(unless=("input-not-finite",))
def outputs_are_finite(exam):
    """Does forward make nan or inf of what is finite?"""
    for name, output in zip(exam.run.names, exam.run.outputs, strict=True):
        if not output.isfinite().all():
            k = int((~output.isfinite()).reshape(-1).nonzero()[0])
            seen = {"output at": position(k, output.shape), "value": output.reshape(-1)[k].item()}
            for x, value in zip(exam.subject.inputs, exam.subject.values, strict=True):
                if value.shape == output.shape:
                    seen[f"`{x}` there"] = value.reshape(-1)[k].item()
            yield FORWARD_NOT_FINITE(y=name, seen=seen, precision="")


INPUT_MODIFIED = error(
    "input-modified",
    "Forward changes {x} in place without telling autograd.",
    look="ctx.mark_dirty, or work on a copy",
)
INPUT_FREED = warning(
    "input-freed",
    "Forward frees the memory of {x}, which the caller may still need.",
    look="resize_(0)",
)
INPUT_CHANGED = warning(
    "input-changed",
    "Forward changes {x} in place, which is the caller's; where it is a leaf that requires a "
    "gradient, autograd refuses that.",
    look=IN_PLACE,
)


@trial()
def inputs_are_untouched(exam):
    """Does forward change, or free, what belongs to the caller?"""
    subject, run = exam.subject, exam.run
    given = dict(enumerate(subject.tensors)) | dict(zip(subject.examined, run.leaves, strict=True))
    for k, (name, t) in enumerate(zip(subject.names, run.passed, strict=True)):
        if subject.is_module and name in subject.state or not has_memory(given[k]):
            continue  # such as running statistics
        recorded = t.grad_fn is not None and "Clone" not in name_of(t.grad_fn)
        if not has_memory(t):
            yield INPUT_FREED(name)
        elif recorded and name in subject.leaves:
            yield TEXTS["in-place-leaf"](phase="Forward")
        elif recorded:
            marked = isinstance(t.grad_fn, BackwardCFunction)  # by ctx.mark_dirty
            yield INPUT_CHANGED(name, severity="note" if marked else None)
        elif not exam.same(t, given[k]):
            integers = "note" if t.is_floating_point() else "warning"
            yield INPUT_MODIFIED(name, severity=None if k in subject.examined else integers)


def name_of(node):
    """The name of a node of the graph, whatever a Function may have put on its ctx as `name`."""
    return type(node).name(node)


TENSOR_ON_CTX = warning(
    "tensor-on-ctx",
    "`{path}` holds {what} outside `save_for_backward`, so autograd does not notice when it "
    "changes in place{also}.",
    look="{instead}",
)
REFERENCE_CYCLE = error(
    "reference-cycle",
    "`{path}` holds an output: output and ctx refer to each other, so their memory waits for "
    "Python's garbage collector.",
    look="ctx.save_for_backward",
)
OF_AN_INPUT = {"what": "an input", "also": "", "instead": "ctx.save_for_backward"}
OF_A_TENSOR = {
    "what": "a tensor",
    "also": ", and a second derivative, if there is one, takes it for a constant",
    "instead": "ctx.save_for_backward for the one; to compute it anew in backward, or to return "
    "it from forward, for both",
}


@trial()
def what_ctx_holds(exam):
    """Are there tensors on ctx that belong into save_for_backward?"""
    for node in nodes(exam):
        for path, t in tensors(vars(node), "ctx"):
            words = {"path": re.sub(r"^ctx\['(\w+)'\]", r"ctx.\1", path)}
            words["seen"] = {"shape": list(t.shape)}
            if t.grad_fn is node:
                yield REFERENCE_CYCLE(**words)
            elif any(t is p for p in exam.run.passed):
                yield TENSOR_ON_CTX(**words, **OF_AN_INPUT)
            elif differentiable(t) and not is_constant(exam, path, t):
                yield TENSOR_ON_CTX(**words, **OF_A_TENSOR)


def is_constant(exam, path, t):
    """Is what ctx holds the same for other inputs, as a window or a table is?"""
    others = [exam.dice.nearby(-v) for v in exam.subject.values]
    try:
        found = graph(exam.subject.run(others).outputs)
    except CallError:
        return False
    held = [tensors(vars(node), "ctx") for node in found if isinstance(node, BackwardCFunction)]
    same = [torch.equal(t, other) for pairs in held for name, other in pairs if name == path]
    return bool(same) and all(same)
