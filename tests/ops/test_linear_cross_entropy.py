"""What the table does not hold: memory, work, and where numbers end."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from helpers.ops.involution.benchmark import peak_bytes
from helpers.ops.linear_cross_entropy import (
    LinearCrossEntropyLoss,
    linear_cross_entropy,
)
from tests.common import random
from tests.ops.samples import of_linear_cross_entropy, of_logits, of_target

ROWS, FEATURES, CLASSES, CHUNK = 128, 4, 256, 4
LOGITS, CHUNK_OF_LOGITS = ROWS * CLASSES * 4, CHUNK * CLASSES * 4
INPUT, WEIGHT = ROWS * FEATURES * 4, CLASSES * FEATURES * 4


def large(input_needs=True, weight_needs=True):
    x = random(ROWS, FEATURES, dtype=torch.float32).detach().requires_grad_(input_needs)
    weight = random(CLASSES, FEATURES, dtype=torch.float32, seed=1).detach()
    target = torch.randint(CLASSES, (ROWS,), generator=torch.Generator().manual_seed(0))
    return x, weight.requires_grad_(weight_needs), target


def small():
    return random(5, 3), random(4, 3, seed=1), torch.tensor([3, 0, -100, 1, 2])


def theirs(x, weight, target, **options):
    return F.cross_entropy(x @ weight.t(), target, **options)


def backward(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


def twice(f, x, weight, target):
    first = torch.autograd.grad(f(x, weight, target), (x, weight), create_graph=True)
    return backward(sum(g.square().sum() for g in first), x, weight)


# Memory


def without_grad(f, *arguments):
    with torch.no_grad():
        return f(*arguments)


def func_grad(f, x, weight, target):
    return torch.func.grad(f, (0, 1))(x.detach(), weight.detach(), target)


def func_jvp(f, x, weight, target):
    x, weight = x.detach(), weight.detach()
    return torch.func.jvp(lambda x, w: f(x, w, target), (x, weight), (x, weight))


def vmap_grad(f, x, weight, target):
    per_sample = torch.func.vmap(torch.func.grad(f), (0, None, 0))
    return per_sample(x.detach()[:, None], weight.detach(), target[:, None])


def forward(f, *arguments, **options):
    return f(*arguments, **options)


GRADIENTS = INPUT + WEIGHT
# (what runs, the gradients that exist at once, how many tensors of a chunk's logits)
RUNS = {
    "backward": (lambda f, x, w, t: backward(f(x, w, t), x, w), 2 * GRADIENTS, 1),
    "no_grad": (without_grad, 0, 1),
    "frozen weight": (lambda f, x, w, t: backward(f(x, w.detach(), t), x), INPUT, 1),
    "frozen input": (lambda f, x, w, t: backward(f(x.detach(), w, t), w), WEIGHT, 1),
    "none": (
        lambda f, x, w, t: backward(f(x, w, t, reduction="none").sum(), x, w),
        GRADIENTS,
        1,
    ),
    "func.grad": (func_grad, 2 * GRADIENTS, 1),
    "create_graph": (twice, 3 * GRADIENTS, 14),
    "jvp": (func_jvp, 3 * GRADIENTS, 10),
    "vmap(func.grad)": (vmap_grad, INPUT, 1),
    # In forward, the gradients exist once: one more tensor of logits is too many.
    "label smoothing": (partial(forward, label_smoothing=0.1), GRADIENTS, 1),
    "softcap": (partial(forward, softcap=2.0), GRADIENTS, 2),
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


def test_checkpoint():
    """Each saved tensor may be unpacked once there."""
    x, weight, target = small()
    for reduction in ("mean", "none"):
        ours = partial(linear_cross_entropy, reduction=reduction)
        again = checkpoint(ours, x, weight, target, use_reentrant=False).sum()
        right = ours(x, weight, target).sum()
        torch.testing.assert_close(
            backward(again, x, weight), backward(right, x, weight)
        )
        with (
            torch.autograd.graph.save_on_cpu(),
            pytest.raises(RuntimeError, match="tensor hooks"),
        ):
            twice(lambda *tensors, ours=ours: ours(*tensors).sum(), x, weight, target)


def test_compiled_once_for_all_shapes_at_the_same_peak_memory():
    torch.compiler.reset()

    @partial(torch.compile, fullgraph=True, backend="aot_eager", dynamic=True)
    def run(x, weight, target):
        return linear_cross_entropy(x, weight, target, chunk_size=CHUNK)

    x, weight, target = large()
    few = x[1:].detach().clone().requires_grad_()
    backward(run(few, weight, target[1:].clone()), few, weight)
    with torch.compiler.set_stance("fail_on_recompile"):
        peak = peak_bytes(lambda: backward(run(x, weight, target), x, weight), "cpu")
    assert peak <= 2 * GRADIENTS + 1.5 * CHUNK_OF_LOGITS


# Work


def chunks_of(f):
    """How often the logits of a chunk are computed while `f` runs."""
    with patch.object(torch, "mm", side_effect=torch.mm) as counted:
        result = f()
    return counted.call_count, result


def test_logits_are_computed_once_or_for_each_backward_of_none():
    x, weight, target = large()
    all_of_them = ROWS // CHUNK
    for reduction, of_backward in (("mean", 0), ("sum", 0), ("none", all_of_them)):
        ours = partial(linear_cross_entropy, reduction=reduction, chunk_size=CHUNK)
        calls, loss = chunks_of(lambda ours=ours: ours(x, weight, target).sum())
        assert calls == all_of_them
        again = partial(torch.autograd.grad, loss, (x, weight), retain_graph=True)
        results = []
        for options in ({}, {}, {"create_graph": True}):
            calls, grads = chunks_of(partial(again, **options))
            assert calls == of_backward
            results.append(grads)
        assert all(map(torch.equal, results[0] * 2, results[1] + results[2]))
    ours = partial(linear_cross_entropy, chunk_size=CHUNK)
    assert chunks_of(lambda: func_grad(ours, *large()))[0] == all_of_them


# Where numbers end


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("rows", [0, 3])
def test_all_ignored(rows, reduction, label_smoothing):
    x, weight = random(rows, 3), random(4, 3, seed=1)
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    arguments = x, weight, None, torch.full((rows,), -100), options
    mine, right = of_target(*arguments), of_logits(*arguments)
    torch.testing.assert_close(mine, right, equal_nan=True)
    torch.testing.assert_close(
        backward(mine.sum(), x, weight), backward(right.sum(), x, weight)
    )


@pytest.mark.parametrize("wrong", [4, -1, 2**40])
def test_target_out_of_range(wrong):
    x, weight = random(1, 3, 2), random(4, 2, seed=1)
    target = torch.tensor([[0, wrong, 1]])
    ours = partial(linear_cross_entropy, ignore_index=-7, reduction="none")
    words = f"target must be from 0 to 3, or ignore_index -7, got {wrong}"
    for call in (
        ours,
        partial(without_grad, ours),
        torch.func.vmap(ours, (0, None, 0)),
    ):
        with pytest.raises(ValueError, match=words):
            call(x, weight, target)
    ours(x, weight, target, ignore_index=wrong)


def test_large_logits():
    weight = torch.tensor([[1e4], [-1e4], [0.0]], requires_grad=True)
    x = torch.tensor([[1.0], [1.0], [-1.0], [1e-4]], requires_grad=True)
    for bias in (None, torch.tensor([0.0, 0.0, -torch.inf])):
        arguments = x, weight, bias, torch.tensor([0, 1, 0, 1]), {}
        mine, right = of_target(*arguments), of_logits(*arguments)
        torch.testing.assert_close(mine, right)
        torch.testing.assert_close(
            backward(mine, x, weight), backward(right, x, weight)
        )


def test_sums_over_chunks_in_float32():
    """In bfloat16 a sum of ones ends at 256, in float16 300 · 512 / 2 is infinite."""
    for dtype, rows, size in ((torch.bfloat16, 2048, 2.0), (torch.float16, 512, 300.0)):
        x = torch.full((rows, 1), size, dtype=dtype)
        weight = torch.zeros(2, 1, dtype=dtype, requires_grad=True)
        bias = torch.zeros(2, dtype=dtype, requires_grad=True)
        target, chunk_size = torch.zeros(rows, dtype=torch.int64), 1 + rows // 2
        loss = linear_cross_entropy(
            x, weight, target, linear_bias=bias, chunk_size=chunk_size
        )
        given = torch.autograd.grad(loss, (weight, bias))
        assert given[0].tolist() == [[-size / 2], [size / 2]]
        assert given[1].tolist() == [-0.5, 0.5]
        many = linear_cross_entropy(x, weight, target, chunk_size=8, reduction="sum")
        if dtype == torch.bfloat16:
            assert torch.autograd.grad(many, weight)[0].tolist() == [
                [-2048.0],
                [2048.0],
            ]


# Weights of rows, and predictions


def weighted_rows(x, weight, of_rows, target, reduction):
    """By PyTorch's own losses of the rows."""
    losses = of_rows * theirs(x, weight, target, reduction="none")
    if reduction == "none":
        return losses
    return losses.sum() / (
        1 if reduction == "sum" else (of_rows * (target != -100)).sum()
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_rows(reduction):
    x, weight, target = small()
    of_rows = torch.tensor(
        [0.5, -2.0, 3.0, 0.0, 2.5], dtype=torch.float64, requires_grad=True
    )
    options = {"target": target, "reduction": reduction}
    right = partial(weighted_rows, **options)

    def ours(x, weight, of_rows):
        return linear_cross_entropy(
            x, weight, row_weight=of_rows, chunk_size=2, **options
        )

    results = []
    for f in (ours, right):
        loss, along = f(x, weight, of_rows), random(5, seed=3).detach()
        first = torch.autograd.grad(
            (loss * along).sum(), (x, weight, of_rows), create_graph=True
        )
        second = backward(sum(g.square().sum() for g in first), x, weight, of_rows)
        tensors = [t.detach() for t in (x, weight, of_rows)]
        slope = torch.func.jvp(f, tuple(tensors), tuple(2 * t for t in tensors))
        frozen = f(x.detach(), weight, of_rows.detach()).sum()
        results.append((loss, first, second, slope, backward(frozen, weight)))
    torch.testing.assert_close(*results)
    batch = torch.stack([of_rows.detach()] * 2) * torch.tensor([[1.0], [2.0]])
    results = [
        torch.func.vmap(f, (None, None, 0))(*tensors[:2], batch) for f in (ours, right)
    ]
    torch.testing.assert_close(*results)
    torch.compiler.reset()
    for f in (ours, torch.func.grad(lambda *t: ours(*t).sum())):
        compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(*tensors), f(*tensors))


def test_predicted():
    x, weight, target = small()
    ours = partial(linear_cross_entropy, return_predicted=True, softcap=2.0)
    right = (x @ weight.t()).argmax(1)
    alone = linear_cross_entropy(x, weight, target, softcap=2.0)
    (slope,) = backward(alone, x)
    calls, (loss, predicted) = chunks_of(lambda: ours(x, weight, target, chunk_size=2))
    assert calls == 3 and predicted.equal(right)
    torch.testing.assert_close((loss, *backward(loss, x)), (alone, slope))
    torch.compiler.reset()
    slopes = torch.func.grad(ours, has_aux=True)
    compiled = torch.compile(slopes, backend="aot_eager", fullgraph=True)
    for f in (slopes, compiled):
        assert f(x.detach(), weight.detach(), target)[1].equal(right)


# Where else it is called


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    x, weight, bias, target, _ = of_linear_cross_entropy(torch.float32)["mean"]
    with torch.autocast("cpu", dtype=dtype):
        for reduction in ("mean", "none"):
            losses = [
                linear_cross_entropy(
                    x, weight, target, linear_bias=bias, reduction=reduction
                ),
                F.cross_entropy(F.linear(x, weight, bias), target, reduction=reduction),
            ]
            torch.testing.assert_close(*losses)  # and their dtype, float32
            given, right = (
                torch.autograd.grad(loss.sum(), (x, weight, bias)) for loss in losses
            )
            torch.testing.assert_close(given, right, rtol=2e-2, atol=2e-3)
        linear_cross_entropy(x.to(dtype), weight, target, linear_bias=bias).backward()
        wide = linear_cross_entropy(x.double(), weight.double(), target)
    assert weight.grad.dtype == wide.to(torch.float32).dtype == torch.float32
    assert wide.dtype == torch.float64


def test_the_operator_keeps_its_promises():
    op = torch.ops.extending_pytorch.linear_cross_entropy.default
    (x, weight, target), bias = small(), random(4, seed=2)
    probabilities, grad = random(5, 4, seed=3).softmax(1).detach(), random(5).detach()
    # The compiled uses of test_table.py show the rest.
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    for case in (
        (
            target,
            torch.ones(4),
            None,
            True,
            [True, False, True],
            True,
            2,
            -100,
            0.1,
            0.1,
            2.0,
        ),
        (probabilities, None, grad, False, [True] * 3, False, 2, -100, 0.0, 0.0, 0.0),
    ):
        torch.library.opcheck(op, (x, weight, bias, *case), test_utils=checks)


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
    one = torch.nn.functional.one_hot(torch.tensor(0), 5)
    torch.testing.assert_close(ours(x, target, one.double()), ours(x[:1], target[:1]))
    if hasattr(torch.nn, "LinearCrossEntropyLoss"):  # since torch 2.13
        torch.manual_seed(0)
        other = torch.nn.LinearCrossEntropyLoss(
            3, 4, bias=True, dtype=torch.float64, label_smoothing=0.1
        )
        assert torch.equal(other.linear.weight, ours.linear.weight)
        torch.testing.assert_close(ours(x, target), other(x, target))


def test_a_hook_gets_no_none():
    """Not even where gradients go to the gradients only."""
    x, weight, seen = random(2, 3), random(4, 3), []
    loss = linear_cross_entropy(x, weight, torch.tensor([0, 3]), reduction="sum")
    loss.register_hook(seen.append)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    torch.autograd.grad(slope.sum(), x)
    assert seen and None not in seen
