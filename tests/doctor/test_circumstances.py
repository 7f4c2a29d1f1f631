"""What the doctor says of a gradient that is right once, here, or on its own."""

import pytest
import torch

from helpers.doctor import examine
from helpers.lessons.patients import PATIENTS
from tests.doctor.cases import drawn, errors, written
from tests.doctor.cases_circumstances import CASES, DECAYS, HANDLES, SEEN, Powers

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


@pytest.mark.parametrize("case", **CASES.named)
def test_what_is_said(case):
    case.check()


@pytest.mark.parametrize(
    ("write", "read", "said"),
    [
        ("Layer.held = x", "Layer.held", "Layer.held"),
        ("LAST = x", "LAST", "LAST"),
        ("MEMO[0] = x", "MEMO[0]", "MEMO"),
        ("LOG.append(x)", "LOG[-1]", "LOG"),
        ("Layer.log.append(x)", "Layer.log[-1]", "Layer.log"),
        ("Layer.buffer.copy_(x)", "Layer.buffer", "Layer.buffer"),
    ],
)
def test_what_forward_writes_outside_ctx_is_named(write, read, said, tmp_path):
    layer = written(KEPT.replace("WRITE", write).replace("READ", read), tmp_path)
    (found,) = errors(examine(layer, *drawn((4,)), lines=False))
    assert found.code == "state-between-calls"
    assert f"`{said}` (line 13)" in found.remedy  # of the text above


def test_what_functions_and_modules_keep_is_as_it_was():
    assert {type(k) for k in DECAYS} <= {int} and all(DECAYS[n][1] == 0.5 for n in DECAYS)
    spaced, mask, bags = (PATIENTS[n] for n in ("Spaced", "NumberedMaskOnTheClass", "MeanOfBags"))
    spaced.fn.made.clear()
    for patient in (spaced, mask, bags):
        assert not patient.examine(lines=False).ok
    assert len(spaced.fn.made) == 1 and mask.fn.mask.any()
    assert torch.equal(bags.fn.bags.unique(), torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert set(Powers.made.values()) <= {8.0} and set(SEEN) <= {len(HANDLES)}
