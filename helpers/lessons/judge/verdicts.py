"""A finding of the doctor in the words of an exercise: where, and why.

The sentences are made of what a finding holds as data: its code, the input, and what
was measured. What PyTorch said is read for the causes that the doctor has no eye for,
and quoted.
"""

import difflib
import dis
import inspect
import re
import traceback

import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from helpers.lessons.judge.numbers import Difference, as_tuple, copies, in_numbers
from helpers.lessons.language import N_, _, followed

REMEDIES = {  # where to look; None where that is said already
    "gradient-none": None,
    "straight-through": N_(
        "what in forward holds the output still: a clamp, a rounding, a comparison"
    ),
    "swapped": N_(
        "the order in save_for_backward, in saved_tensors, and in what backward returns"
    ),
    "double-backward-wrong": N_(
        ".detach(), .data, torch.no_grad and NumPy in backward; and what it "
        "takes for a constant: an intermediate kept on ctx, or saved and not returned"
    ),
    "double-backward-missing": N_(
        ".detach(), .data, torch.no_grad, NumPy and kernels in backward; "
        "once_differentiable refuses where grad_output has a history"
    ),
    "intermediate on ctx": N_(
        "save_for_backward, with an input or an output of forward itself, no "
        "copy; from these backward can compute the rest"
    ),
}
BY_MESSAGE = {  # the same, by what an exception says
    ("jvp-fails", "values to unpack"): N_(
        "save_for_forward: what it saved is what jvp finds in ctx.saved_tensors"
    ),
    ("jvp-fails", "positional argument|number of forward gradients"): N_(
        "what jvp takes and returns: a tangent for each input, and one for each output"
    ),
    ("vmap-fails", "both generate_vmap_rule"): N_(
        "generate_vmap_rule, which a rule of one's own replaces"
    ),
    ("vmap-fails", r"numpy\(\) on Tensor"): N_(
        "what the rule calls: apply, which autograd sees, or "
        "the steps of forward themselves"
    ),
    ("jvp-fails", "NameError"): None,
    ("vmap-fails", "NameError"): None,
}


def explain(found, attempt, inputs):
    """A finding of the doctor in the words of an exercise."""
    message = found.values.get("message", "")
    cause = _cause(found, message, attempt, inputs)
    if cause:
        return cause
    error = message and _("The error: {error}.", error=message.rstrip("."))
    remedy = _remedy(found, message, attempt, inputs)
    look = remedy and _("Look at: {remedy}.", remedy=remedy)
    further = _further(found, message, attempt, inputs)
    return followed(found.message, *further, error or None, look)


def _cause(found, message, attempt, inputs):
    """What an exception or a global means that the doctor does not know, or None."""
    name = _read_from_the_notebook(attempt)
    if name:
        return _(
            "`{name}` in `backward` is the notebook's `{name}`, not the argument of "
            "`forward`. What backward needs of forward comes through ctx.",
            name=name,
        )
    if found.code == "none-not-handled" and "number of gradients" in message:
        return _(
            "where grad_output is None, too, `backward` must return one value for "
            "each argument of `forward`."
        )
    if "tuple index out of range" in message and _saves_nothing(attempt, inputs):
        return _("backward reads ctx.saved_tensors, but forward saved none.")
    unpacked = re.search(r"expected (\d+), got 0\)", message)
    if unpacked and _saves_nothing(attempt, inputs):
        return _(
            "backward unpacks {count} saved tensor(s), but forward saved none.",
            count=unpacked[1],
        )
    unknown = re.search(r"Backward' object has no attribute '(\w+)'", message)
    meant = unknown and difflib.get_close_matches(unknown[1], dir(BackwardCFunction), 1)
    if meant:
        return _(
            "ctx has no `{name}`. Did you mean `{meant}`?",
            name=unknown[1],
            meant=meant[0],
        )
    name = re.search("tuple|sequence|converted to an index", message) and _not_unpacked(
        attempt, inputs
    )
    if name:
        return _(
            "ctx.saved_tensors is a tuple, also of one tensor, and in backward "
            "`{name}` is that tuple. Unpack it: `({name},) = ctx.saved_tensors`.",
            name=name,
        )
    if found.code == "jvp-fails" and "INTERNAL ASSERT" in message:
        return _("`jvp` must return a tensor. Is a `return` missing?")
    if "returned as-is as output" in message:
        return _(
            "`forward` returns its input itself, perhaps changed in place. Look at: "
            "methods that end in an underscore."
        )
    return None


def _further(found, message, attempt, inputs):
    """The numbers, and what else a learner should know."""
    given, expected = (found.values.get(name) for name in ("given", "expected"))
    if found.code == "gradient-none":
        yield (
            _("Is a `return` missing in `backward`?")
            if len(inputs) == 1
            else _(
                "None stands in its place. Is the order of what backward returns right?"
            )
        )
    elif given is not None and expected is not None:
        where = found.values.get("at")
        template = _("It is {given}, but {right} is right.")
        if where:
            template = _("At {at} it is {given}, but {right} is right.")
        yield in_numbers(Difference(given, expected), template, at=where)
    of_forward, of_backward = _names(attempt)
    taken = [name for name in of_backward if name in of_forward]
    if taken and not message:
        yield _(
            "The argument `{taken}` of backward is the gradient that arrives.",
            taken=taken[0],
        )


def _remedy(found, message, attempt, inputs):
    for (code, pattern), remedy in BY_MESSAGE.items():
        if found.code == code and re.search(pattern, message):
            return remedy and _(remedy)
    if (
        found.code == "none-not-handled"
        and len(as_tuple(attempt(*copies(inputs)))) == 1
    ):
        return _("what backward returns then: None for each argument of forward")
    remedy = REMEDIES.get(found.code, found.remedy)
    if found.code == "tensor-on-ctx":
        if found.input is None:
            remedy = REMEDIES["intermediate on ctx"]
        own_jvp = getattr(getattr(attempt, "__self__", None), "jvp", Function.jvp)
        if own_jvp is not Function.jvp:
            return _("{remedy}; for jvp, save_for_forward", remedy=_(remedy))
    return remedy and _(remedy)


def _names(attempt):
    """What the arguments of forward and those of backward are called, without ctx."""
    cls = getattr(attempt, "__self__", None)
    methods = (getattr(cls, name, lambda ctx: None) for name in ("forward", "backward"))
    return [list(inspect.signature(method).parameters)[1:] for method in methods]


def _read_from_the_notebook(attempt):
    """The global that backward reads by the name of an argument, or None."""
    backward = inspect.unwrap(
        getattr(getattr(attempt, "__self__", None), "backward", None)
    )
    read = dis.get_instructions(backward) if inspect.isfunction(backward) else ()
    names = {step.argval for step in read if step.opname == "LOAD_GLOBAL"}
    return next(
        (n for n in _names(attempt)[0] if n in names & backward.__globals__.keys()),
        None,
    )


def _saves_nothing(attempt, inputs):
    (output, *_) = as_tuple(attempt(*copies(inputs)))
    return getattr(output.grad_fn, "saved_tensors", None) == ()


def _not_unpacked(attempt, inputs):
    """How a failing backward calls the tuple of one saved tensor, or None."""
    try:
        sum(output.sum() for output in as_tuple(attempt(*copies(inputs)))).backward()
    except Exception as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            code, names = frame.f_code, frame.f_locals
            if code.co_name != "backward" or code.co_varnames[0] not in names:
                continue
            saved = getattr(names[code.co_varnames[0]], "saved_tensors", ())
            for name, value in names.items():
                if isinstance(value, tuple) and len(value) == len(saved) == 1:
                    if torch.is_tensor(value[0]) and torch.equal(value[0], saved[0]):
                        return name
    return None
