"""What tests share."""

from functools import partial

import pytest
import torch

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# How far a result may be off: a few units in the last place of the dtype.
TOLERANCE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float16: {"rtol": 3e-3, "atol": 3e-3},
}
TOLERANCE[torch.complex128] = TOLERANCE[torch.float64]
TOLERANCE[torch.complex64] = TOLERANCE[torch.float32]


def random(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return (
        torch.randn(shape, dtype=wide, generator=generator).to(dtype).requires_grad_()
    )


def far(*shape, dtype=torch.float64, seed=0):
    """Numbers from ±0.5 to ±20, in float16 to ±8, and a zero in five."""
    if dtype.is_complex:
        parts = [far(*shape, dtype=dtype.to_real(), seed=seed + k) for k in (0, 9)]
        return torch.complex(*parts).detach().requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    share, sign = torch.rand(2, *shape, dtype=torch.float64, generator=generator)
    x = 0.5 * (16 if dtype == torch.float16 else 40) ** share
    x = x.copysign(sign - 0.5).masked_fill(sign.sub(0.5).abs() < 0.1, 0)
    return x.to(dtype).requires_grad_()


def layouts(dtype):
    """Tensors whose memory lies differently, an empty one, and one of large numbers."""
    return {
        "contiguous": random(3, 4, dtype=dtype),
        "transposed": random(4, 3, dtype=dtype).detach().t().requires_grad_(),
        "strided": random(3, 8, dtype=dtype).detach()[:, ::2].requires_grad_(),
        "empty": random(0, 4, dtype=dtype),
        "scalar": random(dtype=dtype),
        "far": far(6, 8, dtype=dtype),
    }


def as_it_is(f):
    return f


compiled = partial(torch.compile, backend="aot_eager", fullgraph=True)


class Does(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(x)


def assert_agree(ours, theirs, inputs, dtype):
    """Values, and gradients for a random and for an expanded grad_output (that of a sum).

    `assert_close` compares shapes, dtypes and devices, too.
    """
    mine, right = ours(*inputs), theirs(*inputs)
    torch.testing.assert_close(mine, right, **TOLERANCE[dtype], equal_nan=True)
    leaves = [i for i in inputs if isinstance(i, torch.Tensor) and i.requires_grad]
    for weight in (
        random(*right.shape, dtype=right.dtype, seed=1).detach().to(right.device),
        right.new_ones(()).expand(right.shape),
    ):
        expected, given = (
            torch.autograd.grad(result, leaves, weight, retain_graph=True)
            for result in (right, mine)  # ours last: it might write into weight
        )
        torch.testing.assert_close(given, expected, **TOLERANCE[dtype])


def assert_same_bits(given, right):
    """The same numbers, the signs of zeros too, and nan in the same places."""
    torch.testing.assert_close(given, right, rtol=0, atol=0, equal_nan=True)
    numbers = ~right.isnan()
    assert torch.equal(given[numbers].signbit(), right[numbers].signbit())


def assert_refused(words, op, *inputs):
    with pytest.raises((TypeError, ValueError)) as caught:
        op(*inputs)
    assert words in str(caught.value)
