"""What the table does not hold: memory, work, and where numbers end."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from helpers.lessons.memory import peak_bytes
from helpers.ops.linear_cross_entropy import (
    LinearCrossEntropyLoss,
    linear_cross_entropy,
)
from tests.common import assert_agree, compiled, random
from tests.ops.samples import of_linear_cross_entropy, of_logits, of_target

ROWS, FEATURES, CLASSES, CHUNK = 128, 4, 256, 4
LOGITS, CHUNK_OF_LOGITS = ROWS * CLASSES * 4, CHUNK * CLASSES * 4
INPUT, WEIGHT = ROWS * FEATURES * 4, CLASSES * FEATURES * 4


def large():
    x = random(ROWS, FEATURES, dtype=torch.float32)
    weight = random(CLASSES, FEATURES, dtype=torch.float32, seed=1)
    target = torch.randint(CLASSES, (ROWS,), generator=torch.Generator().manual_seed(0))
    return x, weight, target


def small():
    return random(5, 3), random(4, 3, seed=1), torch.tensor([3, 0, -100, 1, 2])


def backward(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


def twice(f, x, weight, target):
    first = torch.autograd.grad(f(x, weight, target), (x, weight), create_graph=True)
    return backward(sum(g.square().sum() for g in first), x, weight)


# Memory


GRADIENTS = INPUT + WEIGHT
# (what runs, the gradients that exist at once, how many tensors of a chunk's logits)
RUNS = {
    "backward": (lambda f, x, w, t: backward(f(x, w, t), x, w), 2 * GRADIENTS, 1),
    "no_grad": (lambda f, *t: torch.no_grad()(f)(*t), 0, 1),
    "frozen weight": (lambda f, x, w, t: backward(f(x, w.detach(), t), x), INPUT, 1),
    "none": (
        lambda f, x, w, t: backward(f(x, w, t, reduction="none").sum(), x, w),
        GRADIENTS,
        1,
    ),
    "func.grad": (
        lambda f, x, w, t: torch.func.grad(f, (0, 1))(x.detach(), w.detach(), t),
        2 * GRADIENTS,
        1,
    ),
    "create_graph": (twice, 3 * GRADIENTS, 14),
    # In forward, the gradients exist once: one more tensor of logits is too many.
    "smoothed": (lambda f, *t: f(*t, label_smoothing=0.1), GRADIENTS, 1),
    "softcap": (lambda f, *t: f(*t, softcap=2.0), GRADIENTS, 2),
    "compiled": (
        lambda f, x, w, t: backward(compiled(f)(x, w, t), x, w),
        GRADIENTS,
        2,
    ),
}


@pytest.mark.parametrize("run", RUNS)
def test_peak_memory(run):
    call, gradients, chunks = RUNS[run]
    ours = partial(linear_cross_entropy, chunk_size=CHUNK)
    call(ours, *large())  # what is made once
    arguments = large()
    # Half a chunk for the losses, and for what there is of one number a row.
    allowed = gradients + (chunks + 0.5) * CHUNK_OF_LOGITS
    assert allowed < LOGITS
    assert gradients <= peak_bytes(lambda: call(ours, *arguments), "cpu") <= allowed


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_checkpoint(reduction):
    """Each saved tensor may be unpacked once there."""
    x, weight, target = small()
    ours = partial(linear_cross_entropy, reduction=reduction)
    losses = (
        ours(x, weight, target),
        checkpoint(ours, x, weight, target, use_reentrant=False),
    )
    torch.testing.assert_close(*[backward(loss.sum(), x, weight) for loss in losses])


# Work


@pytest.mark.parametrize("reduction, times", [("mean", 1), ("none", 2)])
def test_logits_are_computed_once_or_again_for_the_backward_of_none(reduction, times):
    x, weight, target = large()
    with patch.object(torch, "mm", side_effect=torch.mm) as chunks:
        ours = partial(linear_cross_entropy, reduction=reduction, chunk_size=CHUNK)
        backward(ours(x, weight, target).sum(), x, weight)
    assert chunks.call_count == times * ROWS // CHUNK


# Where numbers end


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("rows", [0, 3])
def test_all_ignored(rows, reduction, label_smoothing):
    layer = random(rows, 3), random(4, 3, seed=1), None, None
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    arguments = *layer, torch.full((rows,), -100), options
    assert_agree(of_target, of_logits, arguments, torch.float64)


@pytest.mark.parametrize("wrong", [4, -1, 2**40])
def test_target_out_of_range(wrong):
    x, weight = random(1, 3, 2), random(4, 2, seed=1)
    target = torch.tensor([[0, wrong, 1]])
    ours = partial(linear_cross_entropy, x, weight, target)
    words = f"target must be from 0 to 3, or ignore_index -7, got {wrong}"
    with pytest.raises(ValueError, match=words):
        ours(ignore_index=-7)
    ours(ignore_index=wrong)


def test_large_logits():
    weight = torch.tensor([[1e4], [-1e4], [0.0]], requires_grad=True)
    x = torch.tensor([[1.0], [1.0], [-1.0], [1e-4]], requires_grad=True)
    for bias in (None, torch.tensor([0.0, 0.0, -torch.inf])):
        arguments = x, weight, bias, None, torch.tensor([0, 1, 0, 1]), {}
        assert_agree(of_target, of_logits, arguments, torch.float32)


@pytest.mark.parametrize(
    "dtype, rows, size, chunk_size, reduction",
    [
        (torch.bfloat16, 2048, 2.0, 1025, "mean"),
        (torch.bfloat16, 2048, 2.0, 8, "sum"),
        (torch.float16, 512, 300.0, 257, "mean"),
    ],
)
def test_sums_over_chunks_in_float32(dtype, rows, size, chunk_size, reduction):
    """In bfloat16 a sum of ones ends at 256, in float16 300 · 512 / 2 is infinite."""
    x = torch.full((rows, 1), size, dtype=dtype)
    weight, bias = (torch.zeros(2, *n, dtype=dtype).requires_grad_() for n in ([1], []))
    options = {"chunk_size": chunk_size, "reduction": reduction}
    target = torch.zeros(rows, dtype=torch.int64)
    loss = linear_cross_entropy(x, weight, target, linear_bias=bias, **options)
    of_weight, of_bias = backward(loss, weight, bias)
    half = rows / 2 if reduction == "sum" else 0.5
    assert of_weight.tolist() == [[-half * size], [half * size]]
    assert of_bias.tolist() == [-half, half]


def test_predicted():
    x, weight, target = small()
    options = {"softcap": 2.0, "chunk_size": 2}
    ours = partial(linear_cross_entropy, return_predicted=True, **options)
    alone, (loss, predicted) = (
        linear_cross_entropy(x, weight, target, **options),
        ours(x, weight, target),
    )
    assert predicted.equal((x @ weight.t()).argmax(1)) and loss == alone
    torch.testing.assert_close(backward(loss, x), backward(alone, x))
    torch.compiler.reset()
    slopes = compiled(torch.func.grad(ours, has_aux=True))
    assert slopes(x.detach(), weight.detach(), target)[1].equal(predicted)


# Where else it is called


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, reduction):
    x, weight, bias, _, target, _ = of_linear_cross_entropy(torch.float32)["mean"]

    def ours(x, weight, bias):
        options = {"linear_bias": bias, "reduction": reduction}
        return linear_cross_entropy(x, weight, target, **options)

    def right(x, weight, bias):
        logits = F.linear(x, weight, bias)
        return F.cross_entropy(logits, target, reduction=reduction)

    with torch.autocast("cpu", dtype=dtype):
        assert_agree(ours, right, [x, weight, bias], dtype)
        mixed = ours(x.to(dtype), weight, bias)
        wide = ours(x.double(), weight.double(), None)
    mixed.sum().backward()
    assert weight.grad.dtype == mixed.dtype == torch.float32
    assert wide.dtype == torch.float64


def test_the_operator_keeps_its_promises():
    """The compiled uses of test_table.py show the rest."""
    op = torch.ops.extending_pytorch.linear_cross_entropy.default
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    options = True, [True, False, True], True, 2, -100, 0.1, 0.1, 2.0
    case = *small()[:2], random(4, seed=2), small()[2], torch.ones(4), None, *options
    torch.library.opcheck(op, case, test_utils=checks)


def test_the_module_is_that_of_pytorch():
    torch.manual_seed(0)
    ours = LinearCrossEntropyLoss(
        3, 4, bias=True, dtype=torch.float64, weight=torch.ones(4), label_smoothing=0.1
    )
    assert set(ours.state_dict()) == {"linear.weight", "linear.bias", "weight"}
    x, _, target = small()
    right = F.cross_entropy(
        ours.linear(x), target, ours.weight.double(), label_smoothing=0.1
    )
    torch.testing.assert_close(ours(x, target), right)
    first = torch.eye(5, dtype=torch.float64)[0]
    torch.testing.assert_close(ours(x, target, first), ours(x[:1], target[:1]))


def test_vmap_over_nothing():
    weight, target = random(4, 3), torch.zeros(0, 5, dtype=torch.int64)

    def slope(x, target):
        return torch.func.grad(lambda x: linear_cross_entropy(x, weight, target))(x)

    assert torch.func.vmap(slope)(torch.zeros(0, 5, 3).double(), target).shape == (
        0,
        5,
        3,
    )
