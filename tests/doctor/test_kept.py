"""What functions keep outside ctx: it is named, and left as it was."""

import pytest

from helpers.doctor import examine
from helpers.lessons.patients import PATIENTS
from tests.doctor.cases import drawn, errors, written
from tests.doctor.cases_circumstances import DECAYS

KEPT = """
import torch
from torch.autograd import Function

LAST, MEMO, LOG = None, {}, []

class Layer(Function):
    held, log, buffer = None, [], torch.zeros(4, dtype=torch.float64)

    @staticmethod
    def forward(ctx, x):
        global LAST
        WRITE
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * READ.cos()
"""


@pytest.mark.parametrize(
    ("write", "read", "said"),
    [
        ("Layer.held = x", "Layer.held", "Layer.held"),
        ("LAST = x", "LAST", "LAST"),
        ("MEMO[0] = x", "MEMO[0]", "MEMO"),
        ("LOG.append(x)", "LOG[-1]", None),
        ("Layer.log.append(x)", "Layer.log[-1]", None),
        ("Layer.buffer.copy_(x)", "Layer.buffer", None),
    ],
)
def test_what_forward_writes_outside_ctx_is_named(write, read, said, tmp_path):
    layer = written(KEPT.replace("WRITE", write).replace("READ", read), tmp_path)
    (found,) = errors(examine(layer, *drawn((4,)), lines=False))
    assert found.code == "state-between-calls"
    assert said is None or f"`{said}`" in found.remedy


def test_what_functions_and_modules_keep_is_as_it_was():
    assert {type(k) for k in DECAYS} <= {int} and all(DECAYS[n][1] == 0.5 for n in DECAYS)
    spaced = PATIENTS["Spaced"]
    spaced.fn.made.clear()
    assert not spaced.examine(lines=False).ok and len(spaced.fn.made) <= 1
