"""What is kept elsewhere than on ctx, and what is changed by being tried."""

import pytest
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from helpers.doctor import examine
from helpers.lessons.patients import PATIENTS
from tests.common import random
from tests.doctor.test_doctor_edits import errors, made


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


def test_what_is_merged_for_inference_may_be_kept():
    module, (x,) = PATIENTS["KeepsItsShares"].fn, PATIENTS["KeepsItsShares"].inputs()
    (training,) = examine(module, x).findings
    module.eval()
    (merged,) = examine(module, x).findings
    module.train()
    assert (training.severity, merged.severity) == ("error", "warning")


class ByScale(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x.sin() / scale

    @staticmethod
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        return grad_output * x.cos() * scale + grad_output, None


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return ByScale.apply(x, self.scale)


def test_what_fits_a_buffer_of_ones_only_is_not_said():
    """Without its last term the gradient would be right, as long as the scale is 1."""
    (found,) = errors(examine(Scaled(), random(4)))
    assert "`grad_output * x.cos() * scale` stood" not in found.change


class Masked(Function):
    """By a mask that the module had before, or that forward makes."""

    @staticmethod
    def forward(ctx, x, module, mask):
        if mask is not None:
            module.mask = mask
        ctx.module = module
        return x * module.mask

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.module.mask, None, None


class Twice(torch.nn.Module):
    """The second call has another mask than the first, before backward reads any."""

    def __init__(self, within):
        super().__init__()
        self.within = within

    def masked(self, x, k):
        mask = torch.arange(x.shape[1], dtype=x.dtype) + k
        self.mask = torch.zeros(()) if self.within else mask
        return Masked.apply(x, self, mask if self.within else None)

    def forward(self, a, b):
        return self.masked(a, 1) * self.masked(b, 2)


@pytest.mark.parametrize("within", [True, False])
def test_backward_that_reads_what_the_next_call_has_put_there(within):
    found = errors(examine(Twice(within), random(4, 3), random(4, 3, seed=1)))
    assert {f.code for f in found} == {"state-replaced"}, str(found)
    assert "right with the `mask` of the time of forward" in found[0].message


def test_no_input_of_a_reentrant_checkpoint_requires_a_gradient():
    layer = torch.nn.Linear(3, 2).double()

    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, gain, x):
            return gain * checkpoint(self.layer, x, use_reentrant=True)

    gain = random(4, 2).requires_grad_()
    found = errors(examine(Frozen(), gain, random(4, 3, seed=1).detach()))
    assert {f.input for f in found} == {"layer.weight", "layer.bias"}
    assert all("`checkpoint(self.layer, x, use_reentrant=True)`" in f.remedy for f in found)


class WrittenThroughData(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(random(2).detach())

    def forward(self, x):
        cache, out = torch.zeros_like(x), torch.zeros_like(x)
        for k in range(len(x)):
            cache.data[k] = self.scale * x[k]
            out[k] = cache[: k + 1].prod(0) * x[k]
        return out


def test_what_is_written_through_data_is_pointed_at():
    found = errors(examine(WrittenThroughData(), random(3, 2)))
    assert {f.input for f in found} == {"x", "scale"}
    assert all("what leaves autograd: `cache.data`" in f.remedy for f in found), str(found)


def test_what_follows_from_a_changed_grad_output_is_not_said_as_well():
    def skipped(x):
        h = x.tanh()
        return PATIENTS["ChangesGradOutput"].fn.apply(h) + h

    found = errors(examine(skipped, random(4, 3)))
    assert [f.code for f in found] == ["grad-output-modified"]
