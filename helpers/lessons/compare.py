"""What is wrong with a learner's attempt, in a sentence or two.

Values are compared with a reference; gradients go to the doctor, `_examined`, whose first finding
is the answer.
"""

import re

import torch

from helpers.doctor import examine
from helpers.lessons.checking import first_line

TOLERANCE = {"rtol": 1e-7, "atol": 1e-9}
ALWAYS = {"tensor-on-ctx", "gradient-dtype"}  # warnings that make an attempt wrong
SECOND = {"double-backward-wrong", "double-backward-missing", "double-backward-refused"}


def finding(attempt, reference, inputs, order=1, faithful=True):
    """None if `attempt(*inputs)` does what `reference(*inputs)` does, otherwise what does not.

    inputs: tensors (float64 for those to differentiate) and other values; neither function sees
    these tensors themselves. order: 2 asks for right second derivatives, too. faithful: False if
    the gradient is not meant to be the derivative. `reference` must be written with PyTorch's own
    operations.
    """
    theirs = _copies(inputs)
    expected = reference(*theirs)
    try:
        outputs = attempt(*_copies(inputs))
    except Exception as error:
        outputs = error
    if outputs is None:
        return "it returns None. Is a `return` missing in `forward`?"
    if isinstance(outputs, Exception):
        name = type(outputs).__name__
        return (
            _examined(attempt, inputs, order, faithful)
            or f"calling it raises {name}: {first_line(outputs)}"
        )
    return (
        _wrong_outputs(outputs, expected)
        or _examined(attempt, inputs, order, faithful)
        or _wrong_gradients(attempt, expected, inputs, theirs)
    )


def _wrong_outputs(outputs, expected):
    if isinstance(expected, tuple) != isinstance(outputs, tuple):
        asked = f"a tuple of {len(expected)} tensors" if isinstance(expected, tuple) else "a tensor"
        return f"it returns a {type(outputs).__name__}, but {asked} is asked for."
    outputs, expected = _as_tuple(outputs), _as_tuple(expected)
    if len(outputs) != len(expected):
        plural = "" if len(outputs) == 1 else "s"
        return f"it returns {len(outputs)} output{plural}; {len(expected)} expected."
    for index, (value, right) in enumerate(zip(outputs, expected, strict=True)):
        which = "the output" if len(expected) == 1 else f"output {index}"
        if not isinstance(value, torch.Tensor):
            return f"{which} is a {type(value).__name__}, not a tensor."
        if value.shape != right.shape:
            return f"{which} has shape {tuple(value.shape)}, but {tuple(right.shape)} is right."
        if value.dtype != right.dtype:
            return f"{which} is {value.dtype}, but {right.dtype} is right."
        worst = _worst(value, right)
        if worst:
            return f"`forward`: {which} is {worst[1]} {worst[0]}, but {worst[2]} is right."
        if value.requires_grad and not right.requires_grad:
            return f"{which} has no derivative, yet autograd thinks that it has one."
    return None


def _examined(attempt, inputs, order, faithful):
    """The doctor's first finding that counts, in the words of an exercise."""
    for found in examine(attempt, *_copies(inputs), faithful=faithful).findings:
        if found.code in SECOND:
            counts = order == 2
        else:
            counts = found.severity == "error" or found.code in ALWAYS
        if counts:
            words = [re.sub(r" If that is meant.*", "", found.message)]
            if found.code == "gradient-none":
                words.append("Is a `return` missing in `backward`?")
            elif "given" in found.evidence and "expected" in found.evidence:
                where = found.evidence.get("at")
                place = f"At {where} it" if where else "It"
                given, right = (_number(found.evidence[k]) for k in ("given", "expected"))
                words.append(f"{place} is {given}, but {right} is right.")
            if "message" in found.evidence:
                words.append(f"PyTorch says: {found.evidence['message'].rstrip('.')}.")
            if found.remedy and found.code != "gradient-none":
                words.append(f"Look at: {found.remedy}.")
            return " ".join(words)
    return None


def _wrong_gradients(attempt, expected, inputs, theirs):
    """What the doctor has no eye for: a faithful gradient of a function with another derivative."""
    mine = _copies(inputs)
    pairs = zip(_as_tuple(attempt(*mine)), _as_tuple(expected), strict=True)
    pairs = [(o, e) for o, e in pairs if e.requires_grad]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(e.shape, dtype=e.dtype, generator=generator) for _, e in pairs]
    leaves = [(m, t) for m, t in zip(mine, theirs, strict=True) if _is_leaf(m)]
    right = torch.autograd.grad(
        [e for _, e in pairs], [t for _, t in leaves], weights, allow_unused=True
    )
    given = torch.autograd.grad(
        [o for o, _ in pairs], [m for m, _ in leaves], weights, allow_unused=True
    )
    for index, (one, other) in enumerate(zip(given, right, strict=True)):
        worst = None if one is None or other is None else _worst(one, other)
        if worst:
            which = "the gradient" if len(leaves) == 1 else f"gradient {index}"
            return f"{which} is {worst[1]} {worst[0]}, but {worst[2]} is right."
    return None


def _worst(value, right):
    """Where two tensors differ most, and both numbers, as words; None if they agree."""
    if torch.allclose(value, right, equal_nan=True, **TOLERANCE):
        return None
    distance = (value - right).abs().nan_to_num(nan=torch.inf)
    index = distance.flatten().argmax()
    where = [int(i) for i in torch.unravel_index(index, right.shape)]
    place = f"at {where}" if where else "there"
    return place, _number(value.flatten()[index].item()), _number(right.flatten()[index].item())


def _number(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _copies(inputs):
    return [
        value.detach().clone().requires_grad_(value.is_floating_point())
        if isinstance(value, torch.Tensor)
        else value
        for value in inputs
    ]


def _is_leaf(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def _as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)
