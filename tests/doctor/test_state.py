"""What functions keep outside ctx: it is noticed, and left as it was."""

import pytest
import torch
from torch.autograd import Function

from helpers.doctor import examine
from tests.doctor.common import codes, drawn

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
    report = examine(layer, *drawn((4,)), lines=False)
    assert codes(report) == ["state-between-calls"], str(report)
    if is_put_back:
        assert (scope["LAST"], scope["MEMO"], layer.held) == (None, {}, None)


def test_backward_runs_in_the_thread_that_is_watched_on_a_gpu_too():
    """Otherwise the engine runs it in a thread of the device."""
    elsewhere = []

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, grad_output):
            elsewhere.append(torch._C._is_multithreading_enabled())
            return grad_output * ctx.saved_tensors[0].cos()

    assert examine(Sine, *drawn((4,))).ok
    assert elsewhere and not any(elsewhere)
