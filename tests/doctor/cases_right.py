"""Whom the doctor must not accuse, and what it has to note of some."""

import random

import numpy as np
import torch
from torch import nn
from torch.autograd import Function

from helpers.lessons.patients.healthy_numbers import LogDetOfSymmetric, symmetric
from helpers.lessons.patients.patient import Square, draw, slip, vector
from tests.doctor.cases import Table, drawn, ones

case = CASES = Table()


class Dropout(Function):
    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask


for dtype in (torch.float32, torch.float64, torch.bfloat16):
    case("", inputs=lambda dtype=dtype: (torch.randn(4, 5).to(dtype),), name=f"{dtype}")(Dropout)

case("", inputs=(ones(3),), name="draws from NumPy and from Python")(
    lambda x: x * np.random.rand() * random.random()
)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    case("", str(dtype).removeprefix("torch."), note="double-copy",
         inputs=draw((3, 4), dtype=dtype), name=f"tanh of {dtype}")(torch.tanh)  # fmt: skip
case("", note="not-in-double", inputs=(torch.ones(2, 3),), name="runs in float32 only")(
    lambda x: torch.sin(x) @ torch.eye(3)
)
case("", note="kink", inputs=(torch.tensor([1.0, 0.0]).double(),), name="abs at 0")(torch.abs)
case("", inputs=(torch.ones(3, 4).double(),), name="a parameter that is not used")(
    type("Half", (nn.Linear,), {"forward": lambda self, x: x @ self.weight.t()})(4, 3).double()
)


case("", inputs=(torch.tensor([1e-30, 1.0]),), name="a derivative that float32 has no number for")(
    lambda x: 1 / x
)
case("", inputs=(torch.tensor([3e-7, 1e-7]).double(),), name="slopes that 1 + x hides")(
    lambda x: x.cosh().log()
)


def bias_before_a_batch_norm():
    """Its gradient is zero by cancellation; with this seed float32 leaves 8e-5 of it."""
    torch.manual_seed(31)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    return module, torch.rand(5, 4)


MODULE, X = bias_before_a_batch_norm()
case("", inputs=(X,), name="zero by cancellation")(MODULE)


for dtype in (torch.float64, torch.float32):
    inputs = (symmetric()[0].to(dtype),)
    case("", inputs=inputs, name=f"{dtype}")(LogDetOfSymmetric)
    slip("TwiceLogDet", "gradient-wrong", "judged along symmetric changes", LogDetOfSymmetric,
         lambda inputs=inputs: inputs, {"return grad": "return 2 * grad"},
         register=CASES)  # fmt: skip
for name, puts in (  # names that may have a meaning for whoever examines, or for the engine's nodes
    ("OwnNames", "ctx.label, ctx.lines, ctx.cls = 'p', 3, None"),
    *((f"ctx_{name}", f"ctx.{name} = 'p'") for name in ("name", "variable", "saved")),
):
    slip(name, "", "", Square, vector, {"ctx.save_for": f"{puts}; ctx.save_for"}, register=CASES)
case("", inputs=lambda: drawn((0, 4), (4,)), name="an empty tensor")(lambda x, w: (x * w).sum(1))
case("", inputs=lambda: drawn(()), name="a scalar")(torch.sin)
