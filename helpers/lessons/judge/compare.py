"""What is wrong with a learner's attempt, in a sentence or two.

Values are compared with a reference; gradients go to the doctor, whose first finding is
the answer.
"""

import contextlib
import itertools
import warnings

import torch

from helpers.doctor import examine
from helpers.lessons.judge.numbers import (
    as_tuple,
    changed_in_place,
    copies,
    first_difference,
    gradients_of,
    in_numbers,
    largest_difference,
    leaves_of,
    raises,
    weights_for,
)
from helpers.lessons.judge.verdicts import explain
from helpers.lessons.language import N_, _, at, followed

ALWAYS = {"tensor-on-ctx", "gradient-dtype"}  # warnings that make an attempt wrong
SECOND = {"double-backward-wrong", "double-backward-missing", "double-backward-refused"}


def explain_difference(attempt, like, inputs, order=1, faithful=True, adapted=None):
    """None if `attempt` does what `like` does, otherwise what does not.

    inputs: tensors (float64 for those to differentiate) and other values; neither
    function sees these tensors themselves. order: 2 asks for right second derivatives,
    too. faithful: False if the gradient is not meant to be the derivative. `like` must
    be written with PyTorch's own operations. adapted: makes a finding of the doctor one
    that fits the exercise.
    """
    theirs, mine = copies(inputs), copies(inputs)
    expected = like(*theirs)
    raised = wrong = None
    try:
        outputs = attempt(*mine)
    except Exception as error:
        raised = error
    else:
        wrong = _unfilled(attempt, inputs) or wrong_outputs(outputs, expected)
    if wrong:
        too = (
            _("It changes an input in place, too.") if _changed(mine, inputs) else None
        )
        return followed(wrong, too)
    # Which line to change is the exercise.
    findings = examine(
        attempt, *copies(inputs), faithful=faithful, lines=False
    ).findings
    counting = next((found for found in findings if _counts(found, order)), None)
    counting = adapted(counting) if counting and adapted else counting
    if counting and counting.code not in SECOND:
        exchanged = None if raised else _exchanged(attempt, expected, inputs, theirs)
        return exchanged or explain(counting, attempt, inputs)
    if raised:
        return raises(raised, _("calling it raises {kind}: {message}"))
    wrong = _wrong_gradients(attempt, expected, inputs, theirs, faithful)
    if wrong or not counting:
        return wrong
    return explain(counting, attempt, inputs)


def find_difference(attempt, like, inputs, faithful=True):
    """What `explain_difference` says at first order, without the doctor.

    It takes a millisecond, not thirty.
    """
    theirs, mine = copies(inputs), copies(inputs)
    expected = like(*theirs)
    try:
        outputs = attempt(*mine)
        wrong = wrong_outputs(outputs, expected)
        if wrong:
            return wrong
        if _changed(mine, inputs):
            return _("it changes an input in place.")
        return _wrong_gradients(attempt, expected, inputs, theirs, faithful)
    except Exception as error:
        return raises(error)


def _changed(mine, inputs):
    pairs = zip(mine, inputs, strict=True)
    return any(
        changed_in_place(input=pair) for pair in pairs if torch.is_tensor(pair[0])
    )


def wrong_outputs(outputs, expected, differentiable=True, what=None, numbers=True):
    """How outputs differ from those that are expected, or None.

    outputs, expected: tensors, or tuples of them
    differentiable:    False if it does not matter whether they require a gradient
    what:              what a single one is called, such as "the gradient"; "the output"
                       of `forward`, if it is not said
    numbers:           False if only kinds, shapes and dtypes count
    """
    if outputs is None and what:
        return _("it returns None. Is a `return` missing?")
    if outputs is None:
        return _("it returns None. Is a `return` missing in `forward`?")
    if isinstance(expected, tuple) != isinstance(outputs, tuple):
        asked = (
            _("a tuple of {count} tensors", count=len(expected))
            if isinstance(expected, tuple)
            else _("a tensor")
        )
        kind = type(outputs).__name__
        return _(
            "it returns a {kind}, but {asked} is asked for.", kind=kind, asked=asked
        )
    outputs, expected = as_tuple(outputs), as_tuple(expected)
    if len(outputs) != len(expected):
        template = _("it returns {given} outputs; {expected} expected.")
        if len(outputs) == 1:
            template = _("it returns 1 output; {expected} expected.")
        return template.format(given=len(outputs), expected=len(expected))
    for index, (value, right) in enumerate(zip(outputs, expected, strict=True)):
        which = what or _which(expected, index)
        kind = type(value).__name__
        if isinstance(value, tuple) and hasattr(value, "indices"):
            return _(
                "{which} is the pair (values, indices) that {name} returns; take its "
                ".values.",
                which=which,
                name=kind,
            )
        if not torch.is_tensor(value):
            return _("{which} is a {kind}, not a tensor.", which=which, kind=kind)
        if value.shape != right.shape:
            return _(
                "{which} has shape {given}, but {right} is right.",
                which=which,
                given=tuple(value.shape),
                right=tuple(right.shape),
            )
        if value.dtype != right.dtype:
            return _(
                "{which} is {given}, but {right} is right.",
                which=which,
                given=value.dtype,
                right=right.dtype,
            )
        worst = numbers and largest_difference(value, right)
        if worst:
            sentence = _("{what} is {given}{place}, but {right} is right.")
            where = "" if what else _("`forward`")
            return at(where, in_numbers(worst, sentence, what=which))
        if differentiable and value.requires_grad and not right.requires_grad:
            return _(
                "{which} has no derivative, yet autograd thinks that it has one.",
                which=which,
            )
    return None


def _which(outputs, index):
    return _("the output") if len(outputs) == 1 else _("output {index}", index=index)


def _unfilled(attempt, inputs):
    """Where a result or a gradient is memory that nothing was written to, or None."""

    def results():
        leaves = copies(inputs)
        outputs = as_tuple(attempt(*leaves))
        differentiable = [output for output in outputs if output.requires_grad]
        ones = [torch.ones_like(output) for output in differentiable]
        yield from ((_("`forward`: the output"), output) for output in outputs)
        for gradient in gradients_of(differentiable, leaves, ones):
            yield _("the gradient"), torch.tensor(0.0) if gradient is None else gradient

    mode = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # which others name
        warnings.simplefilter("ignore")
        usual = list(results())
        try:
            torch.set_deterministic_debug_mode("warn")  # new memory is nan
            marked = list(results())
        finally:
            torch.set_deterministic_debug_mode(mode)
        for (what, one), (_what, other) in zip(usual, marked, strict=True):
            unfilled = other.isnan() & ~one.isnan()
            if unfilled.any():
                where = unfilled.nonzero()[0].tolist()
                return _(
                    "{what} has no value at {place}: nothing fills what torch.empty "
                    "made there.",
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
    weights = weights_for(expected, torch.Generator().manual_seed(0))
    for i, j in itertools.combinations(range(len(expected)), 2):
        swapped = list(weights)
        swapped[i], swapped[j] = weights[j], weights[i]
        # Not of one shape, or it is the doctor's to say.
        with contextlib.suppress(Exception):
            given = gradients_of(outputs, mine, weights)
            right, other = (
                gradients_of(expected, theirs, w) for w in (weights, swapped)
            )
            if first_difference(given, right) and not first_difference(given, other):
                return _(
                    "`backward` is right if the gradients of output {i} and output "
                    "{j} change places. They arrive in the order in which forward "
                    "returns the outputs; multiply each by the slope of its own "
                    "output.",
                    i=i,
                    j=j,
                )
    return None


SLOPES = {  # by how large grad_output is; 0 stands for ones
    0: N_("{what} is {given}{place}, but {right} is right."),
    1: N_(
        "with a grad_output that is not all ones, {what} is {given}{place}, but "
        "{right} is right."
    ),
    1_000_000: N_(
        "with a large grad_output, {what} is {given}{place}, but {right} is right."
    ),
}


def _wrong_gradients(attempt, expected, inputs, theirs, faithful):
    """A faithful gradient of a function with another derivative.

    It is compared for a grad_output of ones, which shows the slope; for one of random
    numbers; and for one of about a million, which clipping would change.
    """
    mine = copies(inputs)
    pairs = list(zip(as_tuple(attempt(*mine)), as_tuple(expected), strict=True))
    for index, (output, right) in enumerate(pairs):
        if right.requires_grad and not output.requires_grad:
            which = _which(pairs, index)
            return _(
                "{which} requires no gradient, as if it were marked as "
                "non-differentiable, or detached.",
                which=which,
            )
    pairs = [(output, right) for output, right in pairs if right.requires_grad]
    generator = torch.Generator().manual_seed(0)
    for size in SLOPES:
        weights = weights_for([right for _, right in pairs], generator, size)
        weights = weights if size else [torch.ones_like(weight) for weight in weights]
        given = gradients_of([o for o, _ in pairs], mine, weights)
        right = gradients_of([r for _, r in pairs], theirs, weights)
        apart = [
            gradients_of([output], theirs, [weight])
            for (_, output), weight in zip(pairs, weights, strict=True)
        ]
        for index, (one, other, *terms) in enumerate(
            zip(given, right, *apart, strict=True)
        ):
            leaf = None if faithful or len(given) > 1 else leaves_of(theirs)[index]
            which = (
                _("the gradient")
                if len(given) == 1
                else _("gradient {index}", index=index)
            )
            if one is None and other is not None and other.any():
                return _(
                    "{which} is None, but the output depends on that input.",
                    which=which,
                )
            if one is None or other is None:
                continue
            # Divided, since PyTorch's own rounding grows with grad_output.
            scaled = [t / max(size, 1) for t in (other, *terms) if t is not None]
            if largest_difference(one / max(size, 1), *scaled):
                worst = largest_difference(one, other, of=leaf)
                return in_numbers(worst, _(SLOPES[size]), what=which)
    return None
