"""How a row of the tables of this folder is written: a function, its inputs, and what is due."""

import torch

from helpers.lessons.judge.source import made_of
from helpers.lessons.patients.patient import broken, function
from tests.common import random


class Table(list):
    """The patients of one file. Called, it registers the decorated class or function, or a value.

    codes: of the errors, or of the warnings where there is none, as one string
    says:  what the texts contain
    options: `name`, `never` and `note` of a `Patient`, and what `examine` takes
    """

    def __call__(self, codes, *says, inputs, **options):
        made = inputs if callable(inputs) else lambda: inputs
        return broken(codes, "", made, *says, register=self, **options)

    def of_two(self, name, codes, *says, inputs, forward, backward, **options):
        """Registers the `function` of these two."""
        self(codes, *says, inputs=inputs, name=name, **options)(function(forward, backward))


def serious(report):
    """The errors, or the warnings where there is none."""
    return errors(report) or [f for f in report.findings if f.severity == "warning"]


def errors(report):
    return [finding for finding in report.findings if finding.severity == "error"]


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


def drawn(*shapes, dtype=torch.float64):
    """Leaves that require a gradient, the same numbers at every call."""
    return tuple(random(*shape, dtype=dtype, seed=k) for k, shape in enumerate(shapes))


def made(text):
    """The `Layer` of this source, whose lines can be quoted."""
    return made_of(text, {"__name__": "layer"}, "Layer")
