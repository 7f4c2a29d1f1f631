"""What a gradient is made of, mixed up: places, operands, dimensions of a sum, factors, terms."""

import torch

from .patient import draw, vector, wrong

wrong(
    "RoundedResidualLate", "", "the identity's gradient, one place late",
    lambda: draw((3, 4), (3, 4), (1,)),
    lambda x, identity, scale: torch.round(2 * x) + torch.round(8 * identity) / 8,
    lambda g, x, identity, scale: (2 * g, None, g), note="engine-sums", faithful=False,
)  # fmt: skip


def deviation(x):
    return x.var(1, correction=0, keepdim=True).sqrt()


wrong(
    "VarianceIsConstant", "term-missing", "the variance is held for a constant",
    lambda: draw((3, 5), (5,)),
    lambda x, shift: (x - x.mean(1, keepdim=True)) / deviation(x) + shift,
    lambda g, x, shift: ((g - g.mean(1, keepdim=True)) / deviation(x), g.sum(0)),
)  # fmt: skip
wrong(
    "MixesThenWeighs", "grad-output-scaled", "the weight comes after the mixing",
    lambda: draw((3, 4), (4, 4), (4,)), lambda x, mixing, weight: x @ mixing * weight,
    lambda g, x, mixing, weight: (
        g @ mixing.t(), x.t() @ (g * weight), (g * (x @ mixing)).sum(0)
    ),
)  # fmt: skip


wrong("ScaledInSingle", "scaled", "two percent too much, in float32 inside", vector,
      lambda x: (2 * x.float()).double(), lambda g, x: 2.04 * g)  # fmt: skip
wrong("PowerOfTwo", "arguments-ignored", "right for p = 2 only", lambda: (*vector(), 2.0),
      lambda x, p: x.abs() ** p, lambda g, x, p: 2 * g * x)  # fmt: skip
