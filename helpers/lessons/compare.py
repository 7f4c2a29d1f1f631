"""What is wrong with a learner's attempt, in one sentence: values and gradients.

`finding` is the one place that turns a wrong gradient into words.
"""

import torch

from helpers.lessons.checking import first_line

TOLERANCE = {"rtol": 1e-7, "atol": 1e-9}


def finding(attempt, reference, inputs, names, order=1, random_gradient=True):
    """None if `attempt(*inputs)` agrees with `reference(*inputs)`, otherwise what does not.

    inputs: tensors (float64 for those to differentiate) and other values; neither function sees
    these tensors themselves. names: one for each input. order: 2 compares second derivatives, too.
    `reference` must be written with PyTorch's own operations. Outputs: a tensor or a tuple.
    """
    mine, theirs = _copies(inputs), _copies(inputs)
    expected = _as_tuple(reference(*theirs))
    try:
        outputs = attempt(*mine)
    except Exception as error:
        return f"calling it raises {type(error).__name__}: {first_line(error)}"
    if outputs is None:
        return "it returns None. Is a `return` missing in `forward`?"
    outputs = _as_tuple(outputs)
    wrong = (
        _wrong_outputs(outputs, expected)
        or _changed_inputs(mine, inputs, names)
        or _wrong_gradients(outputs, expected, mine, theirs, names)
    )
    if wrong is None and order == 2:
        wrong = _wrong_second_derivatives(attempt, reference, inputs, names)
    return wrong


def _wrong_outputs(outputs, expected):
    if len(outputs) != len(expected):
        return f"it returns {_count(len(outputs), 'output')}; {len(expected)} expected."
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
        if right.requires_grad and not value.requires_grad:
            return f"{which} is cut off from the graph, so no gradient can reach the inputs."
        if value.requires_grad and not right.requires_grad:
            return f"{which} has no derivative, yet autograd thinks that it has one."
    return None


def _changed_inputs(mine, inputs, names):
    for tensor, before, name in zip(mine, inputs, names, strict=True):
        if isinstance(tensor, torch.Tensor) and not torch.equal(tensor, before):
            return f"`forward` changes its input `{name}` in place."
    return None


def _wrong_gradients(outputs, expected, mine, theirs, names):
    # A gradient of ones would hide a backward that forgets grad_output, so it is random; a tensor
    # of one element is enough to hide a missing sum, so samples are larger than that.
    generator = torch.Generator().manual_seed(0)
    outputs, expected = zip(
        *[(value, right) for value, right in zip(outputs, expected, strict=True)
          if right.requires_grad], strict=True
    )  # fmt: skip
    weights = [torch.randn(e.shape, dtype=e.dtype, generator=generator) for e in expected]
    leaves = [(m, t, n) for m, t, n in zip(mine, theirs, names, strict=True) if _is_leaf(m)]
    mine, theirs, names = zip(*leaves, strict=True)
    right = torch.autograd.grad(expected, theirs, weights, allow_unused=True)
    try:
        given = torch.autograd.grad(outputs, mine, weights, allow_unused=True)
    except Exception as error:
        return f"`backward` raises {type(error).__name__}: {first_line(error)}"
    for mine_grad, right_grad, name in zip(given, right, names, strict=True):
        wrong = _wrong_gradient(mine_grad, right_grad, f"the gradient of `{name}`")
        if wrong:
            return wrong
    return None


def _wrong_gradient(given, right, which):
    if right is None:
        return None if given is None else f"{which} should be None."
    if given is None:
        return f"{which} is None, but the output depends on it."
    if given.shape != right.shape:
        return f"{which} has shape {tuple(given.shape)}, but {tuple(right.shape)} is right."
    worst = _worst(given, right)
    if worst is None:
        return None
    if not given.any():
        return f"{which} is zero everywhere, but the output depends on it."
    if torch.allclose(given, -right, **TOLERANCE):
        return f"{which} has the wrong sign."
    ratios = (given / right)[right != 0]
    if ratios.numel() > 1 and torch.allclose(ratios, ratios[0].expand_as(ratios), **TOLERANCE):
        return f"{which} is right up to a factor: it is {ratios[0]:.4g} times what it should be."
    if given.dim() == 2 and given.shape[0] == given.shape[1]:
        if torch.allclose(given, right.t(), **TOLERANCE):
            return f"{which} is right, but transposed."
    return f"{which} is {worst[1]} {worst[0]}, but {worst[2]} is right."


def _wrong_second_derivatives(attempt, reference, inputs, names):
    def gradients(function):
        """The gradient of the summed squares, as a function of the same inputs."""

        def gradient(*values):
            leaves = [value for value in values if _is_leaf(value)]
            total = sum(o.pow(2).sum() for o in _as_tuple(function(*values)) if o.requires_grad)
            return torch.autograd.grad(total, leaves, create_graph=True)

        return gradient

    mine, theirs = _copies(inputs), _copies(inputs)
    right = gradients(reference)(*theirs)
    try:
        given = gradients(attempt)(*mine)
        wrong = _wrong_gradients(given, right, mine, theirs, names)
    except Exception as error:
        wrong = f"the second backward raises {type(error).__name__}: {first_line(error)}"
    return wrong and f"the first derivatives are right, the second are not: {wrong}"


def _worst(value, right):
    """Where two tensors differ most, and both numbers, as words; None if they agree."""
    if torch.allclose(value, right, equal_nan=True, **TOLERANCE):
        return None
    distance = (value - right).abs().nan_to_num(nan=torch.inf)
    index = distance.flatten().argmax()
    where = [int(i) for i in torch.unravel_index(index, right.shape)]
    place = f"at {where}" if where else "there"
    return place, f"{value.flatten()[index].item():.4g}", f"{right.flatten()[index].item():.4g}"


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
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def _count(number, noun):
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
