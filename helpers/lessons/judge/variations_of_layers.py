"""The net under exercises that ask for a layer.

Both start alike, are given the same numbers, and after every step what they return, the
gradients and what they keep are compared.
"""

import copy
import re

import torch
from torch import nn

from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import changed_in_place, first_line
from helpers.lessons.judge.properties import random
from helpers.lessons.language import _, at


def in_step_with(reference, calls, shapes):
    """A property: the layers made by `calls` do what those of `reference` do.

    calls:  of the constructor, such as "Scale(3, bias=False)"; the first number is the
            last size
    shapes: what may come before that size in an input
    """

    def sentences(attempt):
        for call in calls:
            try:
                mine, theirs = (
                    eval(call, {reference.__name__: c}) for c in (attempt, reference)
                )
                for where, wrong in _in_step(
                    mine, theirs, int(re.search(r"\d+", call)[0]), shapes
                ):
                    place = (
                        _("{call}, {place}", call=call, place=where) if where else call
                    )
                    yield at(place, wrong)
            except Exception as error:
                kind, message = type(error).__name__, first_line(error).rstrip(".")
                yield at(
                    call,
                    _("it raises {kind}: {message}.", kind=kind, message=message),
                )

    return sentences


def _in_step(mine, theirs, features, shapes):
    """(where, what is wrong there or None), step by step."""
    yield "", _starts_otherwise(mine, theirs)
    both = nn.ModuleList([mine, theirs])  # it is their parent that is told
    new = copy.deepcopy((mine, theirs))
    _fill(mine, theirs, seed=1)
    first = (*shapes[0], features)
    yield (
        _("in float32, after load_state_dict"),
        _differs(mine, theirs, random(*first).float() / 3),
    )
    both.double()
    _fill(mine, theirs, seed=2)  # what float32 rounded differently is no fault
    for seed, leading in enumerate(shapes):
        x = random(*leading, features, seed=seed) / 3
        yield (
            _("for an input of shape {shape}", shape=tuple(x.shape)),
            _differs(mine, theirs, x),
        )
    x = random(features, *first[:-1], seed=7).movedim(0, -1)
    yield _("for an input that is transposed in memory"), _differs(mine, theirs, x)
    yield (
        _("for data that require no gradient"),
        _differs(mine, theirs, x - 1, data=True),
    )
    yield _("under torch.no_grad()"), _differs_as_data(mine, theirs, x + 1)
    for where, training in (
        (_("in evaluation"), False),
        (_("in training again"), True),
    ):
        both.train(training)
        yield where, _differs(mine, theirs, random(*first, seed=8) + 1)
        x = random(*first, seed=9)
        yield (
            _("{place}, under torch.no_grad()", place=where),
            _differs_as_data(mine, theirs, x),
        )
    for layer in (mine, theirs):
        if [*layer.parameters()]:
            torch.optim.SGD(layer.parameters(), lr=0.1).step()
    yield _("after a step of SGD"), _differs(mine, theirs, x)
    both.eval()
    yield _("in evaluation, for nothing"), _differs(mine, theirs, x[:0])
    yield _("at the very first call"), _differs(*new, x.float())
    yield "", _takes_what_lacks_a_key(mine)


def _starts_otherwise(mine, theirs):
    given, right = (
        {name: list(p.shape) for name, p in layer.named_parameters() if p.requires_grad}
        for layer in (mine, theirs)
    )
    if given.keys() != right.keys():
        return _(
            "it trains the parameters {given}, but {right} are asked for.",
            given=[*given],
            right=[*right],
        )
    given, right = mine.state_dict(), theirs.state_dict()
    if given.keys() != right.keys():
        return _(
            "its state_dict has {given}, but {right} are to be saved.",
            given=[*given],
            right=[*right],
        )
    for name, value in right.items():
        if given[name].shape != value.shape or not torch.equal(given[name], value):
            return _(
                "`{name}` should be {right} at first, got {given}.",
                name=name,
                right=value.tolist(),
                given=given[name].tolist(),
            )
    for name in vars(theirs)["_parameters"]:
        if getattr(theirs, name) is None is not getattr(mine, name):
            return _(
                "`{name}` is {given!r}; None is asked for.",
                name=name,
                given=getattr(mine, name),
            )
    return None


def _fill(mine, theirs, seed):
    """Load numbers of their own for every tensor into both, as a checkpoint does."""
    state = {
        name: random(*value.shape, seed=seed + k).to(value.dtype) / 3
        for k, (name, value) in enumerate(theirs.state_dict().items())
    }
    for layer in (mine, theirs):
        layer.load_state_dict(state)


def _differs(mine, theirs, x, data=False):
    """What differs after a call with `x`, and what the call leaves behind; or None."""
    given, right = (x.clone().requires_grad_(not data) for _ in range(2))
    output, expected = mine(given), theirs(right)
    of_mine = dict(mine.named_buffers())
    for name, other in theirs.named_buffers():
        kept = of_mine[name]
        what = _("afterwards, `{name}`", name=name)
        wrong = wrong_outputs(kept, other, differentiable=False, what=what)
        if wrong:
            return wrong
        if kept.requires_grad:
            return _("`{name}` has a history, which grows with every call.", name=name)
    wrong = wrong_outputs(output, expected)
    if wrong:
        return wrong
    wrong = changed_in_place(x=(given, x))
    if wrong:
        return wrong
    if not expected.requires_grad:
        return None
    if not output.requires_grad:
        return _("the output is cut off: no gradient passes through it.")
    weights = random(*expected.shape, seed=11).to(expected.dtype)
    for layer, y in ((mine, output), (theirs, expected)):
        layer.zero_grad()
        (y * weights).sum().backward()
    others = dict(theirs.named_parameters())
    pairs = {"x": (given, right)} | {
        n: (p, others[n]) for n, p in mine.named_parameters()
    }
    for name, (one, other) in pairs.items():
        if one.grad is None and other.grad is not None:
            return _(
                "no gradient reaches `{name}`: it is cut off, as by .data or detach.",
                name=name,
            )
        what = _("the gradient of `{name}`", name=name)
        wrong = other.grad is not None and wrong_outputs(
            one.grad, other.grad, what=what
        )
        if wrong:
            return wrong
    return None


@torch.no_grad()
def _differs_as_data(mine, theirs, x):
    return _differs(mine, theirs, x, data=True)


def _takes_what_lacks_a_key(layer):
    for name in layer.state_dict():
        state = {key: value for key, value in layer.state_dict().items() if key != name}
        try:
            copy.deepcopy(layer).load_state_dict(state)
        except RuntimeError:
            continue
        return _(
            "its own checkpoint loads even if it lacks `{name}`; that should be "
            "refused.",
            name=name,
        )
    return None
