"""What the tests of the doctor share."""

import torch

from helpers.lessons.judge.source import made_of
from tests.common import random


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
