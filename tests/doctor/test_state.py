"""What functions keep outside ctx: it is noticed, and left as it was."""

import gc

import pytest

from helpers.doctor import examine
from helpers.doctor.function.isolation import forgiving, phase
from helpers.lessons.cases.case import draw
from tests.doctor.common import codes

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
    ("write", "read", "is_put_back"),
    [
        ("Layer.held = x", "Layer.held", True),
        ("LAST = x", "LAST", True),
        ("MEMO[0] = x", "MEMO[0]", True),
        ("LOG.append(x)", "LOG[-1]", False),
        ("Layer.log.append(x)", "Layer.log[-1]", False),
        ("Layer.buffer.copy_(x)", "Layer.buffer", False),
    ],
)
def test_what_forward_writes_outside_ctx(write, read, is_put_back):
    scope = {"__name__": "kept"}
    exec(KEPT.replace("WRITE", write).replace("READ", read), scope)
    layer = scope["Layer"]
    report = examine(layer, *draw((4,)), lines=False)
    assert codes(report) == ["state-between-calls"], str(report)
    if is_put_back:
        assert (scope["LAST"], scope["MEMO"], layer.held) == (None, {}, None)


def test_what_a_failing_call_left_open_is_closed_at_once():
    """As a checkpoint leaves its hooks; on Python 3.12, only `gc` closed them."""
    closed = []

    def left_open():
        try:
            yield
        finally:
            closed.append(True)

    def fails():
        opened = left_open()
        next(opened)
        raise ValueError

    gc.disable()
    try:
        with forgiving(), phase("forward"):
            fails()
        assert closed
    finally:
        gc.enable()
