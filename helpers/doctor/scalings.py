"""The name of a number by which something must be multiplied."""

import re

import torch

from .report import exact


def scaled_by(factor, scope):
    """In words, by the name of a number that the code has at hand, if one fits."""
    return next(
        (how for how, _ in scalings(factor, scope)), f"multiplied by {exact(float(factor))}"
    )


def scalings(factor, scope):
    """(in words, function of a step) for each number at hand that is the factor."""

    def named(name, power):
        return lambda step: dict(numbers_of(step.scope))[name] ** power

    for name, number in numbers_of(scope):
        for power, how in ((1, "multiplied"), (-1, "divided")):
            if abs(factor - number**power) < 1e-6 * abs(factor):
                yield f"{how} by {name}", named(name, power)


def numbers_of(scope):
    """(in words, number) of what has a name, of roots, and of n / (n - 1) as of a variance."""
    named = {
        name: n
        for name, n in scope.items()
        if not torch.is_tensor(n)
        and n not in (0, 1)
        and not (n in (-1, 2) and name.startswith("forward's"))
    }  # by chance
    sizes = {f"`{name[1:-1]}.shape[{d}]`": n for name, t in scope.items()
             if torch.is_tensor(t) and re.fullmatch(r"`\w+`", name)
             for d, n in enumerate(t.shape) if n > 2}  # fmt: skip
    counts = {f"`{name[1:-1]}.numel()`": t.numel() for name, t in scope.items()
              if torch.is_tensor(t) and re.fullmatch(r"`\w+`", name) and t.numel() > 4}  # fmt: skip
    yield from (*named.items(), *counts.items())
    for name, n in {**named, **sizes}.items():
        for what, meant in (("the root of {}", n**0.5), ("{0} / ({0} - 1)", n / (n - 1 or 1))):
            if n > 1 and meant != round(meant, 3):  # or it is a plain number
                yield what.format(name), meant
    yield from ((name, n) for name, n in sizes.items() if n > 4)
