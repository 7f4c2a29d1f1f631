"""Why a second derivative is wrong, and what leaves autograd."""

import torch
from torch.autograd import Function

from helpers.doctor import examine
from helpers.lessons.patients.patient import Square
from tests.common import random
from tests.doctor.test_doctor_edits import errors


class Inner(Function):
    @staticmethod
    def forward(ctx, x, g):
        ctx.save_for_backward(x, g)
        return g * 3 * x**2

    @staticmethod
    def backward(ctx, gg):
        x, g = ctx.saved_tensors
        return gg * g * 3 * x, gg * 3 * x**2


class Cube(Function):
    """The Function that backward applies has a wrong backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return Inner.apply(x, grad_output)


class KeepsTanh(Function):
    @staticmethod
    def forward(ctx, x):
        t = x.tanh()
        ctx.save_for_backward(t)
        return x * t

    @staticmethod
    def backward(ctx, grad_output):
        (t,) = ctx.saved_tensors
        x = t.atanh()
        return grad_output * (t + x * (1 - t * t))


class InSilence(Square):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            slope = 2 * x
        return grad_output * slope


def test_why_a_second_derivative_is_wrong():
    (found, *_) = errors(examine(Cube, random(4)))
    assert "In `Inner`, which backward applies: The gradient of `x` is right, but" in found.message
    assert "`gg * g * 6` stood in place of `gg * g * 3`" in found.change
    (found, *_) = errors(examine(KeepsTanh, random(4)))
    assert found.remedy.startswith("what backward takes for a constant: `t`, which forward made")
    (found, *_) = errors(examine(InSilence, random(4)))
    assert found.change == "right if: what is computed under `no_grad` kept its gradient"


class Pruned(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(random(3, 4).detach())
        self.scale = torch.nn.Parameter(random(4, seed=1).detach())

    def forward(self, x):
        weight = torch.nn.Parameter(self.weight * (self.weight > 0))
        return x @ weight.mT @ torch.nn.Parameter(self.scale, requires_grad=False)[:3]


def test_a_new_parameter_cuts_off_what_it_is_made_of():
    weight, scale = errors(examine(Pruned(), random(2, 4)))
    made = "torch.nn.Parameter(self.weight * (self.weight > 0))"
    assert weight.change == f"right if: `{made}` kept its gradient" and "line " in weight.place
    assert "`torch.nn.Parameter(self.scale, requires_grad=False)` kept" in scale.change


def test_what_is_meant_as_a_constant_has_no_second_derivative():
    report = examine(lambda p, z: (p * z.detach()).sum(), random(4), random(4), faithful=False)
    assert not errors(report)


class Windowed(Function):
    @staticmethod
    def forward(ctx, x, window):
        ctx.kept = torch.hann_window(len(x), dtype=x.dtype) if window else 2 * x
        return x * ctx.kept

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.kept * (1 if len(ctx.kept) == 5 else 2), None


def test_a_constant_may_be_kept_on_ctx():
    assert "tensor-on-ctx" not in {f.code for f in examine(Windowed, random(5), True).findings}
    assert "tensor-on-ctx" in {f.code for f in examine(Windowed, random(4), False).findings}
