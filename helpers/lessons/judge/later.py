"""What shows only later: other calls, changed inputs, derivatives of the gradient."""

import math
import warnings

import torch

from helpers.lessons.judge.numbers import (
    as_tuple,
    copies,
    first_difference,
    gradients_of,
    in_numbers,
    leaves_of,
    raises,
    weights_for,
)
from helpers.lessons.language import N_, _, followed


def calls_apart(attempt, like, inputs, others):
    """What is wrong with a gradient if another call comes before backward."""

    def gradients(function):
        leaves, between = copies(inputs), copies(others)
        outputs = [y for y in as_tuple(function(*leaves)) if y.requires_grad]
        function(*between)
        ones = [torch.ones_like(y) for y in outputs]
        first = gradients_of(outputs, leaves, ones)
        # In memory of their own.
        gradients_of(outputs, leaves, [2 * one for one in ones])
        return first

    try:
        worst = first_difference(gradients(attempt), gradients(like))
    except Exception as error:
        return raises(
            error,
            _(
                "two calls disturb each other: with another call before its backward "
                "pass, and another backward pass after it, the gradient of the first "
                "raises {kind}: {message}"
            ),
        )
    return worst and in_numbers(
        worst,
        _(
            "two calls disturb each other: with another call before its backward "
            "pass, and another backward pass after it, the gradient of the first is "
            "{given}{place}, but {right} is right."
        ),
    )


def overlooks_changes(attempt, like, inputs):
    """What is wrong with a gradient if an input changes before backward."""

    def gradients(function, changes):
        leaves = copies(inputs)
        given = [x * 1 if leaves_of([x]) else x for x in leaves]
        outputs = [y for y in as_tuple(function(*given)) if y.requires_grad]
        for x in leaves_of(given) if changes else ():
            x.detach().add_(1)
        return gradients_of(outputs, leaves, [torch.ones_like(y) for y in outputs])

    try:
        mine = gradients(attempt, changes=True)
    except Exception:  # noticed
        return None
    worst = first_difference(mine, gradients(like, changes=False))
    return worst and followed(
        in_numbers(
            worst,
            _(
                "where an input changes in place before backward, the gradient is "
                "silently wrong: it is {given}{place}, but {right} is right."
            ),
        ),
        _("What save_for_backward holds is watched."),
    )


def silently_wrong(attempt, like, inputs, order):
    """What is wrong with derivatives of the gradient that are not refused.

    The attempt has no difference at first order.
    """
    if _hides_its_steps(attempt, like, inputs):
        return _(
            "the gradient is right, but autograd does not see how backward computes "
            "it (under torch.no_grad, or by .detach(), .data, .item() or NumPy), so "
            "that a second derivative silently counts it as a constant. "
            "once_differentiable would say so."
        )
    which, worst = largest_further_difference(attempt, like, inputs)
    if worst is None:
        return None
    refuse = _(
        "This exercise asks for no second derivative, so one may be refused (as by "
        "once_differentiable), but not be wrong. Look at: what is saved (an input or "
        "an output of forward itself, no copy, nothing computed from it), and "
        ".detach(), .data or torch.no_grad in backward."
    )
    second = in_numbers(
        worst,
        _(
            "{what} is silently wrong: with a random grad_output, it is "
            "{given}{place}, but {right} is right."
        ),
        what=_(which),
    )
    wrong = _("the gradient is right; {second}", second=second)
    if isinstance(worst.given, float) and not math.isfinite(worst.given):
        refuse = _(
            "Look at: 0/0, 0 times infinity and overflow. `torch.where` hides them from "
            "a value, but not from its derivative."
        )
        return followed(wrong, refuse)
    return followed(wrong, refuse if order == 1 else None)


def _differentiable_gradients(function, inputs, generator):
    """Leaves, grad_output, and the gradients of both with graphs of their own."""
    leaves = copies(inputs)
    outputs = [y for y in as_tuple(function(*leaves)) if y.requires_grad]
    weights = [w.requires_grad_() for w in weights_for(outputs, generator)]
    leaves = leaves_of(leaves)
    gradients = torch.autograd.grad(
        outputs, leaves, weights, create_graph=True, allow_unused=True
    )
    return leaves, weights, gradients


def _hides_its_steps(attempt, like, inputs):
    """Is a gradient a constant for autograd, which that of `like` is not?"""
    try:
        *_, mine = _differentiable_gradients(
            attempt, inputs, torch.Generator().manual_seed(0)
        )
    except Exception:
        return False
    generator = torch.Generator().manual_seed(0)
    leaves, weights, theirs = _differentiable_gradients(like, inputs, generator)

    # Not where it is 0 whatever is fed, as for no index: a loop hides nothing.
    def moves(slope):
        if slope is None or not slope.requires_grad:
            return False
        factor = weights_for([slope], generator)
        second = torch.autograd.grad(
            [slope], [*leaves, *weights], factor, retain_graph=True, allow_unused=True
        )
        return any(one is not None and one.any() for one in second)

    return any(
        one is not None and not one.requires_grad and moves(right)
        for one, right in zip(mine, theirs, strict=True)
    )


def largest_further_difference(attempt, like, inputs):
    """Which derivative of the gradient is not as for `like`, and its `Difference`.

    (None, None) if none differs; what raises is not wrong.
    """

    def derivatives(function):
        generator = torch.Generator().manual_seed(0)
        leaves, weights, slopes = _differentiable_gradients(function, inputs, generator)
        slopes = [
            slope for slope in slopes if slope is not None and slope.requires_grad
        ]
        # Not grad, which would pass by a node that refuses to be differentiated.
        with warnings.catch_warnings():
            # Of a cycle, which _gradient_of takes apart.
            warnings.simplefilter("ignore")
            torch.autograd.backward(
                slopes, weights_for(slopes, generator), create_graph=True
            )
        yield (second := [_gradient_of(leaf) for leaf in leaves])
        yield (of_weights := [_gradient_of(w) for w in weights])
        total = sum((one * one).sum() for one in second + of_weights)
        if total.requires_grad:
            torch.autograd.backward(total)
        yield [_gradient_of(leaf) for leaf in leaves]

    mine = derivatives(attempt)
    for of, other in zip(DERIVATIVES, derivatives(like), strict=False):
        try:
            given = next(mine)
        except Exception:
            break
        worst = first_difference(given, other, loose=True)
        if worst:
            return of, worst
    return None, None


DERIVATIVES = (
    N_("its own derivative"),
    N_("its own derivative with respect to grad_output"),
    N_("the third derivative"),
)


def _gradient_of(leaf):
    """Its .grad, taken off."""
    gradient, leaf.grad = leaf.grad, None
    return torch.zeros_like(leaf) if gradient is None else gradient
