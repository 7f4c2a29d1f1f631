"""What is wrong with a learner's attempt, in a sentence or two.

Values are compared with a reference; gradients go to the doctor, whose first finding is the
answer.
"""

import contextlib
import itertools
import math
import warnings

import torch

from helpers.doctor import examine
from helpers.lessons.judge.verdicts import Worst, as_tuple, copies, differ, in_words
from helpers.lessons.said import Said, Wrong, at

# rtol and atol, this for the largest number: in float64 what float32 touched is not right
TOLERANCE, SINGLE = (1e-10, 1e-11), (1e-5, 1e-6)
# where digits cancel in PyTorch's own second and third derivatives
LOOSE, LOOSE_SINGLE = (1e-6, 1e-7), (1e-4, 1e-5)
ALWAYS = {"tensor-on-ctx", "gradient-dtype"}  # warnings that make an attempt wrong
SECOND = {"double-backward-wrong", "double-backward-missing", "double-backward-refused"}


def difference(attempt, like, inputs, order=1, faithful=True):
    """None if `attempt(*inputs)` does what `like(*inputs)` does, otherwise what does not.

    inputs: tensors (float64 for those to differentiate) and other values; neither function sees
    these tensors themselves. order: 2 asks for right second derivatives, too. faithful: False if
    the gradient is not meant to be the derivative. `like` must be written with PyTorch's own
    operations.
    """
    theirs, mine = copies(inputs), copies(inputs)
    expected = like(*theirs)
    try:
        outputs = attempt(*mine)
    except Exception as error:
        outputs = error
    raised = outputs if isinstance(outputs, Exception) else None
    wrong = None if raised else _unfilled(attempt, inputs) or wrong_outputs(outputs, expected)
    if wrong:
        too = Said("It changes an input in place, too.") if _changed(mine, inputs) else None
        return wrong.and_then(too)
    # Which line to change is the exercise.
    findings = examine(attempt, *copies(inputs), faithful=faithful, lines=False).findings
    counting = next((found for found in findings if _counts(found, order)), None)
    if counting and counting.code not in SECOND:
        exchanged = None if raised else _exchanged(attempt, expected, inputs, theirs)
        return exchanged or in_words(counting, attempt, inputs)
    if raised:
        return Wrong(
            "calling it raises {kind}: {message}",
            kind=type(raised).__name__,
            message=first_line(raised),
        )
    wrong = _wrong_gradients(attempt, expected, inputs, theirs, say_input=not faithful)
    if wrong or not counting:
        return wrong
    second = _wrong_further_derivative(attempt, like, inputs)
    if second and "given" in second.gaps and math.isnan(second.gaps["given"]):
        return Wrong("the gradient is right; {second}", second=second)
    return in_words(counting, attempt, inputs)


def unlike(attempt, like, inputs, faithful=True):
    """What `difference` says at first order, without the doctor: a millisecond, not thirty."""
    theirs, mine = copies(inputs), copies(inputs)
    expected = like(*theirs)
    try:
        outputs = attempt(*mine)
        wrong = wrong_outputs(outputs, expected)
        if wrong:
            return wrong
        if _changed(mine, inputs):
            return Wrong("it changes an input in place.")
        with torch.no_grad():
            wrong = wrong_outputs(attempt(*copies(inputs)), expected, differentiable=False)
        if wrong:
            return Wrong("under torch.no_grad(), {wrong}", wrong=wrong)
        return _wrong_gradients(attempt, expected, inputs, theirs, say_input=not faithful)
    except Exception as error:
        return Wrong(
            "it raises {kind}: {message}", kind=type(error).__name__, message=first_line(error)
        )


def calls_apart(attempt, like, inputs, others):
    """What is wrong with the gradient of a call where another call comes before its backward."""

    def gradients(function):
        leaves, between = copies(inputs), copies(others)
        outputs = [y for y in as_tuple(function(*leaves)) if y.requires_grad]
        function(*between)
        ones = [torch.ones_like(y) for y in outputs]
        first = _gradients(outputs, _leaves(leaves), ones)
        _gradients(outputs, _leaves(leaves), [2 * one for one in ones])  # in memory of their own
        return first

    try:
        worst = next(filter(None, map(_worst, gradients(attempt), gradients(like))), None)
    except Exception as error:
        return Wrong(
            "two calls disturb each other: with another call before its backward pass, and another "
            "backward pass after it, the gradient of the first raises {kind}: {message}",
            kind=type(error).__name__,
            message=first_line(error),
        )
    return worst and differ(
        worst,
        "two calls disturb each other: with another call before its backward pass, and another "
        "backward pass after it, the gradient of the first is {given}{place}, but {right} is "
        "right.",
    )


def overlooks_changes(attempt, like, inputs):
    """What is wrong with the gradient where an input changes in place before backward, or None."""

    def gradients(function, changes):
        leaves = copies(inputs)
        given = [x * 1 if _leaves([x]) else x for x in leaves]
        outputs = [y for y in as_tuple(function(*given)) if y.requires_grad]
        for x in _leaves(given) if changes else ():
            x.detach().add_(1)
        return _gradients(outputs, _leaves(leaves), [torch.ones_like(y) for y in outputs])

    try:
        mine = gradients(attempt, changes=True)
    except Exception:  # noticed
        return None
    worst = next(filter(None, map(_worst, mine, gradients(like, changes=False))), None)
    return worst and differ(
        worst,
        "where an input changes in place before backward, the gradient is silently wrong: it is "
        "{given}{place}, but {right} is right.",
    ).and_then(Said("What save_for_backward holds is watched."))


def silently_wrong(attempt, like, inputs, order=1):
    """What is wrong with derivatives of the gradient, where they are not refused with an error.

    For an attempt without a `difference` at first order.
    """
    if _hides_its_steps(attempt, like, inputs):
        return Wrong(
            "the gradient is right, but autograd does not see how backward computes it (under "
            "torch.no_grad, or by .detach(), .data, .item() or NumPy), so that a second "
            "derivative silently counts it as a constant. once_differentiable would say so."
        )
    wrong = _wrong_further_derivative(attempt, like, inputs)
    refuse = Said(
        "This exercise asks for no second derivative, so one may be refused (as by "
        "once_differentiable), but not be wrong. Look at: what is saved (an input or an "
        "output of forward itself, no copy, nothing computed from it), and .detach(), .data or "
        "torch.no_grad in backward."
    )
    wrong = wrong and Wrong("the gradient is right; {second}", second=wrong)
    return wrong and wrong.and_then(refuse if order == 1 else None)


def _changed(mine, inputs):
    pairs = [pair for pair in zip(mine, inputs, strict=True) if torch.is_tensor(pair[0])]
    return any(not torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


def wrong_outputs(outputs, expected, differentiable=True, what=None):
    """How outputs differ from those that are expected, or None.

    outputs, expected: tensors, or tuples of them
    differentiable:    False if it does not matter whether they require a gradient
    what:              what a single one is called, such as Said("the gradient"); "the output" of
                       `forward`, if it is not said
    """
    if outputs is None:
        return Wrong("it returns None. Is a `return` missing in `forward`?")
    if isinstance(expected, tuple) != isinstance(outputs, tuple):
        asked = (
            Said("a tuple of {count} tensors", count=len(expected))
            if isinstance(expected, tuple)
            else Said("a tensor")
        )
        return Wrong(
            "it returns a {kind}, but {asked} is asked for.",
            kind=type(outputs).__name__,
            asked=asked,
        )
    outputs, expected = as_tuple(outputs), as_tuple(expected)
    if len(outputs) != len(expected):
        return Wrong(
            "it returns 1 output; {expected} expected."
            if len(outputs) == 1
            else "it returns {given} outputs; {expected} expected.",
            given=len(outputs),
            expected=len(expected),
        )
    for index, (value, right) in enumerate(zip(outputs, expected, strict=True)):
        which = what or _which(expected, index)
        if isinstance(value, tuple) and hasattr(value, "indices"):
            name = type(value).__name__
            return Wrong(
                "{which} is the pair (values, indices) that {name} returns; take its .values.",
                which=which,
                name=name,
            )
        if not isinstance(value, torch.Tensor):
            return Wrong(
                "{which} is a {kind}, not a tensor.", which=which, kind=type(value).__name__
            )
        if value.shape != right.shape:
            return Wrong(
                "{which} has shape {given}, but {right} is right.",
                which=which,
                given=tuple(value.shape),
                right=tuple(right.shape),
            )
        if value.dtype != right.dtype:
            return Wrong(
                "{which} is {given}, but {right} is right.",
                which=which,
                given=value.dtype,
                right=right.dtype,
            )
        worst = _worst(value, right)
        if worst:
            return at("" if what else Said("`forward`"), differ(worst, what=which))
        if differentiable and value.requires_grad and not right.requires_grad:
            return Wrong(
                "{which} has no derivative, yet autograd thinks that it has one.", which=which
            )
    return None


def _which(outputs, index):
    return Said("the output") if len(outputs) == 1 else Said("output {index}", index=index)


def _unfilled(attempt, inputs):
    """Where a result or a gradient is memory that nothing was written to, or None."""

    def results():
        leaves = copies(inputs)
        outputs = as_tuple(attempt(*leaves))
        differentiable = [output for output in outputs if output.requires_grad]
        ones = [torch.ones_like(output) for output in differentiable]
        yield from ((Said("`forward`: the output"), output) for output in outputs)
        for gradient in _gradients(differentiable, _leaves(leaves), ones):
            yield Said("the gradient"), torch.tensor(0.0) if gradient is None else gradient

    mode = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # which others name
        warnings.simplefilter("ignore")
        usual = list(results())
        try:
            torch.set_deterministic_debug_mode("warn")  # new memory is nan
            marked = list(results())
        finally:
            torch.set_deterministic_debug_mode(mode)
        for (what, one), (_, other) in zip(usual, marked, strict=True):
            unfilled = other.isnan() & ~one.isnan()
            if unfilled.any():
                where = unfilled.nonzero()[0].tolist()
                return Wrong(
                    "{what} has no value at {place}: nothing fills what torch.empty made there.",
                    what=what,
                    place=where,
                )
    return None


def _counts(found, order):
    """Does this finding of the doctor make an attempt wrong?"""
    if found.code in SECOND:
        return order == 2
    return found.severity == "error" or found.code in ALWAYS


def _exchanged(attempt, expected, inputs, theirs):
    """Does backward take the gradient of one output for that of another?"""
    mine = copies(inputs)
    outputs, expected = as_tuple(attempt(*mine)), as_tuple(expected)
    weights = _weights(expected, torch.Generator().manual_seed(0))
    for i, j in itertools.combinations(range(len(expected)), 2):
        swapped = list(weights)
        swapped[i], swapped[j] = weights[j], weights[i]
        with contextlib.suppress(Exception):  # not of one shape, or it is the doctor's to say
            given = _gradients(outputs, _leaves(mine), weights)
            right, other = (_gradients(expected, _leaves(theirs), w) for w in (weights, swapped))
            if any(map(_worst, given, right)) and not any(map(_worst, given, other)):
                return Wrong(
                    "`backward` is right if the gradients of output {i} and output {j} change "
                    "places. They arrive in the order in which forward returns the outputs; "
                    "multiply each by the slope of its own output.",
                    i=i,
                    j=j,
                )
    return None


SLOPES = {  # by how large grad_output is; 0 stands for ones
    0: "{what} is {given}{place}, but {right} is right.",
    1: "with a grad_output that is not all ones, {what} is {given}{place}, but {right} is right.",
    1_000_000: "with a large grad_output, {what} is {given}{place}, but {right} is right.",
}


def _wrong_gradients(attempt, expected, inputs, theirs, say_input=False):
    """What the doctor has no eye for: a faithful gradient of a function with another derivative.

    Compared for a grad_output of ones, which shows the slope; for one of random numbers; and for
    one of about a million, which clipping would change.
    """
    mine = copies(inputs)
    pairs = list(zip(as_tuple(attempt(*mine)), as_tuple(expected), strict=True))
    for index, (output, right) in enumerate(pairs):
        if right.requires_grad and not output.requires_grad:
            which = _which(pairs, index)
            return Wrong(
                "{which} requires no gradient, as if it were marked as non-differentiable, or "
                "detached.",
                which=which,
            )
    pairs = [(output, right) for output, right in pairs if right.requires_grad]
    generator = torch.Generator().manual_seed(0)
    for size in SLOPES:
        weights = _weights([right for _, right in pairs], generator, size)
        weights = weights if size else [torch.ones_like(weight) for weight in weights]
        given = _gradients([o for o, _ in pairs], _leaves(mine), weights)
        right = _gradients([r for _, r in pairs], _leaves(theirs), weights)
        apart = [
            _gradients([output], _leaves(theirs), [weight])
            for (_, output), weight in zip(pairs, weights, strict=True)
        ]
        for index, (one, other, *terms) in enumerate(zip(given, right, *apart, strict=True)):
            leaf = _leaves(theirs)[index] if say_input and len(given) == 1 else None
            which = (
                Said("the gradient") if len(given) == 1 else Said("gradient {index}", index=index)
            )
            if one is None and other is not None and other.any():
                return Wrong("{which} is None, but the output depends on that input.", which=which)
            if one is None or other is None:
                continue
            # Divided, since PyTorch's own rounding grows with grad_output.
            scaled = [t / max(size, 1) for t in (other, *terms) if t is not None]
            if _worst(one / max(size, 1), *scaled):
                worst = _worst(one, other, of=leaf)
                return differ(worst, SLOPES[size], what=which)
    return None


def _differentiable_gradients(function, inputs, generator):
    """Leaves, what stands for grad_output, and the gradients of both with a graph of their own."""
    leaves = copies(inputs)
    outputs = [y for y in as_tuple(function(*leaves)) if y.requires_grad]
    weights = [w.requires_grad_() for w in _weights(outputs, generator)]
    leaves = _leaves(leaves)
    gradients = torch.autograd.grad(outputs, leaves, weights, create_graph=True, allow_unused=True)
    return leaves, weights, gradients


def _hides_its_steps(attempt, like, inputs):
    """Is a gradient a constant for autograd, which that of `like` is not?"""
    try:
        *_, mine = _differentiable_gradients(attempt, inputs, torch.Generator().manual_seed(0))
    except Exception:
        return False
    generator = torch.Generator().manual_seed(0)
    leaves, weights, theirs = _differentiable_gradients(like, inputs, generator)

    def moves(slope):  # not where it is 0 whatever is fed, as for no index: a loop hides nothing
        if slope is None or not slope.requires_grad:
            return False
        factor = _weights([slope], generator)
        second = torch.autograd.grad(
            [slope], [*leaves, *weights], factor, retain_graph=True, allow_unused=True
        )
        return any(one is not None and one.any() for one in second)

    return any(
        one is not None and not one.requires_grad and moves(right)
        for one, right in zip(mine, theirs, strict=True)
    )


def _wrong_further_derivative(attempt, like, inputs):
    """Where and how a derivative of the gradient, or one of that, differs from that of `like`.

    None if none does; what raises is not wrong.
    """

    def derivatives(function):
        generator = torch.Generator().manual_seed(0)
        leaves, weights, slopes = _differentiable_gradients(function, inputs, generator)
        slopes = [slope for slope in slopes if slope is not None and slope.requires_grad]
        # Not grad, which would pass by a node that refuses to be differentiated.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a cycle, which _gradient_of takes apart
            torch.autograd.backward(slopes, _weights(slopes, generator), create_graph=True)
        yield (second := [_gradient_of(leaf) for leaf in leaves])
        yield (of_weights := [_gradient_of(w) for w in weights])
        total = sum((one * one).sum() for one in second + of_weights)
        if total.requires_grad:
            torch.autograd.backward(total)
        yield [_gradient_of(leaf) for leaf in leaves]

    mine = derivatives(attempt)
    for of, other in zip(DERIVATIVES, derivatives(like), strict=False):
        try:
            pairs = zip(next(mine), other, strict=True)
        except Exception:
            return None
        if worst := next(filter(None, (_worst(a, b, loose=True) for a, b in pairs)), None):
            return differ(
                worst,
                "{what} is silently wrong: with a random grad_output, it is {given}{place}, but "
                "{right} is right.",
                what=of,
            )
    return None


DERIVATIVES = (
    Said("its own derivative"),
    Said("its own derivative with respect to grad_output"),
    Said("the third derivative"),
)


def _gradient_of(leaf):
    """Its .grad, taken off."""
    gradient, leaf.grad = leaf.grad, None
    return torch.zeros_like(leaf) if gradient is None else gradient


def _weights(outputs, generator, size=1):
    return [size * torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in outputs]


def _gradients(outputs, leaves, weights):
    weights = [weight.clone() for weight in weights]
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True, retain_graph=True)


def _worst(value, right, *terms, of=None, loose=False):
    """Where two tensors differ most, as `Worst`; None if they agree.

    terms: what `right` is the sum of; where they cancel, their rounding is left.
    of: the input that they are gradients of, if its number there is to be said, too.
    """
    value = value.to_dense() if value.is_sparse else value
    double, single = (LOOSE, LOOSE_SINGLE) if loose else (TOLERANCE, SINGLE)
    rtol, atol = double if right.dtype in (torch.float64, torch.complex128) else single
    known = right.isfinite()  # nothing is asked where PyTorch's own numbers overflow
    value, right, *terms = (torch.where(known, t, 0) for t in (value, right, *terms))
    if right.numel():
        atol *= max(1, *(t.abs().max().item() for t in (right, *terms)))
    if torch.allclose(value, right, rtol=rtol, atol=atol):
        return None
    distance = (value - right).abs().nan_to_num(nan=torch.inf)
    index = distance.flatten().argmax()
    where = [int(i) for i in torch.unravel_index(index, right.shape)]
    place = Said(" at {index}", index=where) if where else ""
    if of is not None:
        x = f"{of.flatten()[index].item():.4g}"
        place = Said("{place}, where the input is {x}", place=place, x=x)
    return Worst(value.flatten()[index].item(), right.flatten()[index].item(), place)


def _leaves(values):
    return [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]


def first_line(error):
    """The first line of an exception's message; its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
