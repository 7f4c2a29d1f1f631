"""What is kept elsewhere than on ctx, and what is changed by being tried."""

import pytest
import torch
from torch.autograd import Function

from helpers.doctor import examine
from helpers.lessons.patients import PATIENTS
from tests.common import random
from tests.test_doctor_edits import errors, made


def kept_on(write, read):
    text = f"""
import torch
from torch.autograd import Function

LAST, MEMO, LOG = None, {{}}, []

class Layer(Function):
    held, log, buffer = None, [], torch.zeros(4, dtype=torch.float64)

    @staticmethod
    def forward(ctx, x):
        global LAST
        {write}
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * {read}.cos()
"""
    return made(text)


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
def test_what_forward_writes_outside_ctx_is_named(write, read, said):
    (found,) = errors(examine(kept_on(write, read), random(4)))
    assert found.code == "state-between-calls"
    line = 13  # of the text above
    assert found.remedy == (
        f"what forward writes outside ctx, and backward reads: `{said}` (line {line})"
    )


class Asks(Function):
    @staticmethod
    def forward(ctx, x, owner):
        ctx.owner = owner
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.owner.last.cos(), None


class Remembers(torch.nn.Module):
    def forward(self, x):
        self.last = x.detach()
        return Asks.apply(x, self)


def test_what_a_module_writes_is_named():
    (found,) = errors(examine(Remembers(), random(4)))
    assert (found.code, "`self.last` (line" in found.remedy) == ("state-between-calls", True)


class WithoutGrad(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = torch.nn.Parameter(random(4).detach())

    def forward(self, x):
        with torch.set_grad_enabled(False):
            spectrum = torch.fft.rfft(self.kernel)
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(before)
        return torch.fft.irfft(torch.fft.rfft(x) * spectrum, n=4)


def test_what_is_computed_without_grad_is_found_however_that_is_written():
    (found,) = errors(examine(WithoutGrad(), random(3, 4)))
    assert found.change == "right if: what is computed under `set_grad_enabled` kept its gradient"
    assert torch.is_grad_enabled()


def test_what_a_class_holds_is_not_changed_by_what_is_tried():
    """`bags.to(grad_output)` is `bags` itself, which is not to be written into."""
    patient = PATIENTS["MeanOfBags"]
    (found,) = errors(patient.examine())
    assert "bags" in found.change
    assert torch.equal(patient.fn.bags.unique(), torch.tensor([0.0, 1.0], dtype=torch.float64))
