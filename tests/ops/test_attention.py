"""What is peculiar to attention: options in combination, memory, what is skipped."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad, gradcheck
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers.lessons.memory import Alive, Kept
from helpers.ops.attention import attention
from tests.common import assert_agree, compiled, random


def three(*shape, **options):
    """A query, a key and a value of one shape."""
    return [random(*shape, seed=k, **options) for k in range(3)]


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
    y = attention(query, key, value, chunk_size=2)
    (slope,) = grad(y.sum(), value, create_graph=True)
    assert grad(slope.sum(), value)[0].eq(0).all()


def of_layout(layout, length):
    """What a caller holds, the three views of it, and the options."""
    B, H, E = 2, 8, 64
    options = {"enable_gqa": True} if layout == "grouped" else {}
    if layout in ("contiguous", "grouped"):
        heads = (H, 2, 2) if layout == "grouped" else (H,) * 3
        own = [random(B, h, length, E, dtype=torch.float32) for h in heads]
        return own, own, options
    if layout == "transposed":
        own = parts = three(B, length, H * E, dtype=torch.float32)
    else:
        own = [random(B, length, 3 * H * E, dtype=torch.float32)]
        parts = own[0].chunk(3, -1)
    views = [part.view(B, length, H, E).transpose(1, 2) for part in parts]
    return own, views, options


@pytest.mark.parametrize("length", (128, 512))
@pytest.mark.parametrize("layout", ("contiguous", "transposed", "chunked", "grouped"))
def test_memory_whatever_the_length_and_the_layout(layout, length):
    """What is kept, and peaks, in units of query."""
    own, views, options = of_layout(layout, length)
    unit, orders = 2 * 8 * length * 64 * 4, (1, 2)
    with Kept(but=own) as kept:
        y = attention(*views, **options)
    assert kept.total <= 1.1 * unit
    if layout in ("transposed", "chunked"):
        y.transpose(1, 2).view(2, length, -1)
    right = by_pytorch(*views, **options)
    torch.testing.assert_close(y, right, atol=1e-5, rtol=1e-5)
    for order, limit in zip(orders, (8, 22), strict=True):
        with Alive() as alive:
            y = attention(*views, **options).square().sum()
            for _ in range(order):
                found = grad(y, own, create_graph=order > 1)
                y = sum(g.square().sum() for g in found)
        assert alive.peak / unit <= limit


def test_memory_with_one_head():
    tensors = three(1, 1, 256, 64, dtype=torch.float32)
    with Alive() as alive:
        grad(attention(*tensors).square().sum(), tensors)
    assert alive.peak <= 8 * tensors[0].nbytes
    still = tuple(t.detach() for t in tensors)
    with Alive() as alive:
        jvp(attention, still, still)
    assert alive.peak <= 8 * tensors[0].nbytes


def test_gradients_in_a_batch():
    tensors = three(2, 5, 4)
    blocks = partial(attention, chunk_size=2)
    assert gradcheck(blocks, tensors, check_batched_grad=True)


def test_options_as_pytorch_takes_them():
    q, k, v = random(6, 5, 4), random(2, 7, 4), random(3, 7, 4)
    theirs = by_pytorch(
        q,
        k.repeat_interleave(3, 0),
        v.repeat_interleave(2, 0),
        scale=0.5,
    )
    for scale in (torch.tensor(0.5), np.float32(0.5)):
        ours = attention(q, k, v, scale=scale, enable_gqa=True, chunk_size=2)
        torch.testing.assert_close(ours, theirs)
    half = three(5, 4, dtype=torch.bfloat16)
    mask = random(5, 5, dtype=torch.float32, seed=3)
    result = attention(*half, mask, chunk_size=2)
    right = by_pytorch(*(t.float() for t in half), mask)
    torch.testing.assert_close(result.float(), right, atol=2e-2, rtol=2e-2)
    assert grad(result.sum(), mask)[0].dtype == torch.float32


def test_causal_blocks_that_are_masked_whole_are_not_computed():
    x = torch.ones(8, 4)
    with Alive() as alive:
        attention(x, x, x, is_causal=True, chunk_size=2)
    scores = {shape for shape, name in alive.results if name == "mm"} - {(2, 4)}
    assert scores == {(2, 2), (2, 6), (2, 8)}  # and (2, 4), which the output has, too


def test_autocast_casts_as_pytorch_does():
    tensors = three(5, 4, dtype=torch.float32)
    with torch.autocast("cpu"):
        assert_agree(attention, by_pytorch, tensors, torch.bfloat16)


def test_a_hessian_in_one_batch():
    query, key, value = (t.detach() for t in three(2, 3))

    def loss(query, attend):
        return attend(query, key, value).square().sum()

    hessian = partial(torch.autograd.functional.hessian, vectorize=True)
    ours = hessian(partial(loss, attend=partial(attention, chunk_size=1)), query)
    torch.testing.assert_close(ours, hessian(partial(loss, attend=by_pytorch), query))


def test_a_gradient_of_a_jvp_of_a_gradient_compiles():
    tensors = [t.detach() for t in three(5, 4)]

    def third(query, key, value):
        def slope(query):
            return torch.func.grad(lambda q: attention(q, key, value).square().sum())(
                query
            )

        return torch.func.grad(lambda q: jvp(slope, (q,), (q,))[1].sum())(query)

    torch.compiler.reset()
    torch.testing.assert_close(compiled(third)(*tensors), third(*tensors))
