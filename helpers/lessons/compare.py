"""What is wrong with a learner's attempt, in a sentence or two.

Values are compared with a reference; gradients go to the doctor, `_examined`, whose first finding
is the answer.
"""

import re

import torch

from helpers.doctor import examine

TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}  # in float64: what float32 touched is not right
ALWAYS = {"tensor-on-ctx", "gradient-dtype"}  # warnings that make an attempt wrong
SECOND = {"double-backward-wrong", "double-backward-missing", "double-backward-refused"}


def difference(attempt, like, inputs, order=1, faithful=True):
    """None if `attempt(*inputs)` does what `like(*inputs)` does, otherwise what does not.

    inputs: tensors (float64 for those to differentiate) and other values; neither function sees
    these tensors themselves. order: 2 asks for right second derivatives, too. faithful: False if
    the gradient is not meant to be the derivative. `like` must be written with PyTorch's own
    operations.
    """
    theirs = copies(inputs)
    expected = like(*theirs)
    try:
        outputs = attempt(*copies(inputs))
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
    outputs, expected = as_tuple(outputs), as_tuple(expected)
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
            return f"`forward`: {which} {worst}"
        if value.requires_grad and not right.requires_grad:
            return f"{which} has no derivative, yet autograd thinks that it has one."
    return None


def _examined(attempt, inputs, order, faithful):
    """The doctor's first finding that counts, in the words of an exercise."""
    for found in examine(attempt, *copies(inputs), faithful=faithful).findings:
        if found.code in SECOND:
            counts = order == 2
        else:
            counts = found.severity == "error" or found.code in ALWAYS
        if counts:
            message = found.evidence.get("message", "")
            if found.code == "none-not-handled" and "number of gradients" in message:
                return (
                    "where grad_output is None, too, `backward` must return one value for each "
                    "argument of `forward`."
                )
            words = [re.sub(r" If that is meant.*", "", found.message)]
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
                words.append(
                    f"{place} {_differ(found.evidence['given'], found.evidence['expected'])}"
                )
            if found.code == "double-backward-refused":
                words.append("But a second derivative is asked for.")
            if message:
                words.append(f"PyTorch says: {message.rstrip('.')}.")
            if found.remedy and found.code != "gradient-none":
                words.append(f"Look at: {found.remedy}.")
            return " ".join(words)
    return None


def _wrong_gradients(attempt, expected, inputs, theirs):
    """What the doctor has no eye for: a faithful gradient of a function with another derivative.

    Compared for a grad_output of about 1, and for one of about 1000, which clipping would change.
    """
    mine = copies(inputs)
    pairs = list(zip(as_tuple(attempt(*mine)), as_tuple(expected), strict=True))
    for index, (output, right) in enumerate(pairs):
        if right.requires_grad and not output.requires_grad:
            which = "the output" if len(pairs) == 1 else f"output {index}"
            return f"{which} requires no gradient, as if it were marked as non-differentiable."
    pairs = [(output, right) for output, right in pairs if right.requires_grad]
    leaves = [(m, t) for m, t in zip(mine, theirs, strict=True) if _is_leaf(m)]
    generator = torch.Generator().manual_seed(0)
    for size in (1, 1000):
        weights = [
            size * torch.randn(right.shape, dtype=right.dtype, generator=generator)
            for _, right in pairs
        ]
        given = _gradients([o for o, _ in pairs], [m for m, _ in leaves], weights)
        right = _gradients([r for _, r in pairs], [t for _, t in leaves], weights)
        for index, (one, other) in enumerate(zip(given, right, strict=True)):
            worst = None if one is None or other is None else _worst(one, other)
            if worst:
                which = "the gradient" if len(leaves) == 1 else f"gradient {index}"
                large = "with a grad_output of about 1000, " if size > 1 else ""
                return f"{large}{which} {worst}"
    return None


def _gradients(outputs, leaves, weights):
    weights = [weight.clone() for weight in weights]
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True, retain_graph=True)


def _worst(value, right):
    """Where two tensors differ most, and both numbers, in words; None if they agree."""
    value = value.to_dense() if value.is_sparse else value
    single = {"rtol": 1e-5, "atol": 1e-6}
    tolerance = TOLERANCE if right.dtype in (torch.float64, torch.complex128) else single
    if torch.allclose(value, right, equal_nan=True, **tolerance):
        return None
    distance = (value - right).abs().nan_to_num(nan=torch.inf)
    index = distance.flatten().argmax()
    where = [int(i) for i in torch.unravel_index(index, right.shape)]
    place = f" at {where}" if where else ""
    return _differ(value.flatten()[index].item(), right.flatten()[index].item(), place)


def _differ(given, right, place=""):
    """ "is 2 at [0], but 3 is right.", with as many digits as it takes to see the difference."""
    if not (isinstance(given, float) and isinstance(right, float)):
        return f"is {given}{place}, but {right} is right."
    digits = next((d for d in range(4, 17) if f"{given:.{d}g}" != f"{right:.{d}g}"), 17)
    rounded = 0 < abs(given - right) < 1e-5 * abs(right)
    hint = " Is something computed in float32?" if rounded else ""
    return f"is {given:.{digits}g}{place}, but {right:.{digits}g} is right.{hint}"


def copies(inputs):
    """Leaves of their own for the tensors among `inputs`, which a call may spoil."""
    return [
        value.detach().clone().requires_grad_(value.is_floating_point())
        if isinstance(value, torch.Tensor)
        else value
        for value in inputs
    ]


def _is_leaf(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def first_line(error):
    """The first line of an exception's message; its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
