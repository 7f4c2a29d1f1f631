"""What functions keep outside ctx: it is named, and left as it was."""

import pytest

from helpers.doctor import examine
from tests.doctor.common import drawn, errors, made

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
def test_what_forward_writes_outside_ctx_is_named(write, read, said):
    layer = made(KEPT.replace("WRITE", write).replace("READ", read))
    (found,) = errors(examine(layer, *drawn((4,)), lines=False))
    assert found.code == "state-between-calls"
    assert said is None or f"`{said}`" in found.remedy


def test_what_functions_keep_is_as_it_was():
    text = KEPT.replace("WRITE", "MEMO[0] = Layer.held = x").replace("READ", "MEMO[0]")
    layer = made(text)
    memo = layer.forward.__globals__["MEMO"]
    assert not examine(layer, *drawn((4,)), lines=False).ok
    assert memo == {} and layer.held is None
