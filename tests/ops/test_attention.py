"""What is peculiar to attention: options in combination, memory, what is skipped."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers.lessons.memory import Alive, Kept
from helpers.ops.attention import attention
from tests.common import assert_agree, random


def by_pytorch(*tensors, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **options)


def test_a_third_derivative_agrees():
    def third(f):
        x = random(4, 3, dtype=torch.float64)
        y = f(x, x.sin(), x.cos()).sum()
        for _ in range(3):
            y = grad(y, x, create_graph=True)[0].square().sum()
        return y

    ours = third(lambda *t: attention(*t, is_causal=True, chunk_size=2))
    torch.testing.assert_close(ours, third(lambda *t: by_pytorch(*t, is_causal=True)))


def test_a_second_derivative_that_is_zero():
    """The gradient of value does not depend on value."""
    query, key, value = random(3, 2).detach(), random(4, 2).detach(), random(4, 2)
    (slope,) = grad(attention(query, key, value).sum(), value, create_graph=True)
    assert grad(slope.sum(), value)[0].eq(0).all()


@pytest.mark.parametrize("length", (256, 1024))
def test_memory_does_not_depend_on_the_length(length):
    """Peaks in units of one input: 32 rows of the scores are half a unit."""
    tensors = [random(1, 1, length, 64, dtype=torch.float32, seed=k) for k in range(3)]
    with Kept(but=tensors) as kept:
        attention(*tensors)
    peaks = []
    for create_graph in (False, True):
        with Alive() as alive:
            found = grad(
                attention(*tensors).square().sum(), tensors, create_graph=create_graph
            )
            if create_graph:
                grad(sum(g.square().sum() for g in found), tensors)
        peaks.append(alive.peak / tensors[0].nbytes)
    still = [t.detach() for t in tensors]
    with Alive() as alive:
        jvp(attention, tuple(still), tuple(still))
    peaks.append(alive.peak / tensors[0].nbytes)
    assert kept.total == 0
    assert all(peak <= limit for peak, limit in zip(peaks, (8, 40, 8), strict=True)), (
        peaks
    )


def test_causal_blocks_that_are_masked_whole_are_not_computed():
    x = torch.ones(8, 4)
    with Alive() as alive:
        attention(x, x, x, is_causal=True, chunk_size=2)
    scores = {shape for shape, name in alive.results if name == "mm"} - {(2, 4)}
    assert scores == {(2, 2), (2, 6), (2, 8)}  # and (2, 4), which the output has, too


def test_autocast_casts_as_pytorch_does():
    tensors = [random(5, 4, dtype=torch.float32, seed=k) for k in range(3)]
    with torch.autocast("cpu"):
        assert_agree(attention, by_pytorch, tensors, torch.bfloat16)
