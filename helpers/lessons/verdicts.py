"""A finding of the doctor in the words of an exercise: where a learner should look, and why."""

import inspect
import re
import traceback

import torch
from torch.autograd import Function

REMEDIES = {  # where the doctor's own do not fit an exercise
    "gradient-none": None,
    "straight-through": "what in forward holds the output still: a clamp, a rounding, a comparison",
    "swapped": "the order in save_for_backward, in saved_tensors, and in what backward returns",
    "double-backward-wrong": ".detach(), .data and NumPy in backward; and what it takes for a "
    "constant: an intermediate kept on ctx, or saved and not returned",
    "double-backward-missing": ".detach(), .data, torch.no_grad, NumPy and kernels in backward; "
    "once_differentiable says so openly",
}
BY_MESSAGE = {  # the same, by what an exception says
    ("jvp-fails", "values to unpack"): "save_for_forward: what it saved is what jvp finds in "
    "ctx.saved_tensors",
    ("jvp-fails", "positional argument|number of forward gradients"): "what jvp takes and returns: "
    "a tangent for each input, and one for each output",
    ("vmap-fails", "both generate_vmap_rule"): "generate_vmap_rule, which a rule of one's own "
    "replaces",
    ("vmap-fails", r"numpy\(\) on Tensor"): "what the rule calls: apply, which autograd sees, or "
    "the steps of forward themselves",
    ("jvp-fails", "NameError"): None,
    ("vmap-fails", "NameError"): None,
}


def in_words(found, attempt, inputs):
    """A finding of the doctor in the words of an exercise."""
    message = found.evidence.get("message", "")
    if found.code == "none-not-handled":
        if "number of gradients" in message:
            return (
                "where grad_output is None, too, `backward` must return one value for each "
                "argument of `forward`."
            )
        if _needs_its_output(attempt, inputs):
            return (
                "`backward` works only as long as somebody holds the output; ctx does not keep "
                f"it. PyTorch says: {message.rstrip('.')}."
            )
    if "tuple index out of range" in message and _saves_nothing(attempt, inputs):
        return "backward reads ctx.saved_tensors, but forward saved none."
    unpacked = re.search(r"expected (\d+), got 0\)", message)
    if unpacked and _saves_nothing(attempt, inputs):
        return f"backward unpacks {unpacked[1]} saved tensor(s), but forward saved none."
    if re.search("tuple|sequence|converted to an index", message):
        name = _not_unpacked(attempt, inputs)
        if name:
            return (
                f"ctx.saved_tensors is a tuple, also of one tensor, and in backward `{name}` is "
                f"that tuple. Unpack it: `({name},) = ctx.saved_tensors`."
            )
    if found.code == "jvp-fails" and "INTERNAL ASSERT" in message:
        return "`jvp` must return a tensor. Is a `return` missing?"
    if "returned as-is as output" in message:
        return (
            "`forward` returns its input itself, perhaps changed in place. Look at: methods that "
            "end in an underscore."
        )
    words = [re.sub(r" If that is meant.*", "", found.message)]
    words[0] = words[0].replace("has once too often the factor", "has a wrong power of")
    remedy = REMEDIES.get(found.code, found.remedy)
    for (code, pattern), other in BY_MESSAGE.items():
        if found.code == code and re.search(pattern, message):
            remedy = other
    if found.code == "none-not-handled":
        words[0] = words[0].replace("used.", "used, or when what follows passes no gradient on.")
        if len(as_tuple(attempt(*copies(inputs)))) == 1:
            remedy = "what backward returns then: None for each argument of forward"
    if found.code == "tensor-on-ctx" and " holds a tensor " in words[0]:
        words[0] = words[0].replace("and a second", "and where backward uses it, a second")
        remedy = (
            "save_for_backward, with an input or an output of forward itself, no copy; from these "
            "backward can compute the rest"
        )
    cls = getattr(attempt, "__self__", None)
    if found.code == "tensor-on-ctx" and getattr(cls, "jvp", Function.jvp) is not Function.jvp:
        remedy += "; for jvp, save_for_forward"
    some = re.search(r"right in part: (at index ([\d, ]+) of dimension (\d+)) it is", words[0])
    sizes = [value.shape[int(some[3])] for value in inputs if some and torch.is_tensor(value)]
    if some and 2 * len(some[2].split(",")) > max(sizes):
        words[0] = words[0].replace(f"{some[0]} wrong", f"wrong {some[1]}")
        remedy = "the formula, at the element shown"
    if found.code == "gradient-none":
        alone = len(inputs) == 1
        words.append(
            "Is a `return` missing in `backward`?"
            if alone
            else "None stands in its place. Is the order of what backward returns right?"
        )
    elif "given" in found.evidence and "expected" in found.evidence:
        where = found.evidence.get("at")
        place = f"At {where} it" if where else "It"
        words.append(f"{place} {differ(found.evidence['given'], found.evidence['expected'])}")
    if found.code == "double-backward-refused":
        words.append("But a second derivative is asked for.")
    of_forward, of_backward = _names(attempt)
    taken = [name for name in of_backward if name in of_forward]
    if taken and not message:
        words.append(f"The argument `{taken[0]}` of backward is the gradient that arrives.")
    if message:
        words.append(f"PyTorch says: {message.rstrip('.')}.")
    if remedy:
        words.append(f"Look at: {remedy}.")
    return " ".join(words)


def _names(attempt):
    """What the arguments of forward and those of backward are called, without ctx."""
    cls = getattr(attempt, "__self__", None)
    methods = (getattr(cls, name, lambda ctx: None) for name in ("forward", "backward"))
    return [list(inspect.signature(method).parameters)[1:] for method in methods]


def _saves_nothing(attempt, inputs):
    (output, *_) = as_tuple(attempt(*copies(inputs)))
    return getattr(output.grad_fn, "saved_tensors", None) == ()


def _not_unpacked(attempt, inputs):
    """The name under which a failing backward holds the tuple of the one saved tensor, or None."""
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
                    if isinstance(value[0], torch.Tensor) and torch.equal(value[0], saved[0]):
                        return name
    return None


def _needs_its_output(attempt, inputs):
    """Does backward fail once nobody holds the output any more?"""
    leaves = copies(inputs)
    total = sum(output.sum() for output in as_tuple(attempt(*leaves)))
    try:
        total.backward()
    except Exception:
        return True
    return False


def differ(given, right, place=""):
    """ "is 2 at [0], but 3 is right.", with as many digits as it takes to see the difference."""
    if not (isinstance(given, float) and isinstance(right, float)):
        return f"is {given}{place}, but {right} is right."
    digits = next((d for d in range(4, 17) if f"{given:.{d}g}" != f"{right:.{d}g}"), 17)
    rounded = 0 < abs(given - right) < 1e-5 * abs(right)
    hint = " Nearly: is something rounded to float32, added, or stopped too early?" * rounded
    return (
        f"is {given + 0.0:.{digits}g}{place}, but {right + 0.0:.{digits}g} is right.{hint}"  # no -0
    )


def copies(inputs):
    """Leaves of their own, laid out alike, for the tensors among `inputs`."""

    def copy(x):
        memory = x.detach().untyped_storage().clone()
        alike = x.new_empty(0).set_(memory, x.storage_offset(), x.shape, x.stride())
        return alike.requires_grad_(x.is_floating_point())

    return [copy(value) if isinstance(value, torch.Tensor) else value for value in inputs]


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)
