"""`python -m helpers.ops.involution.benchmark`, and what it measures of memory."""

import pytest
import torch
import torch.nn.functional as F

from helpers.lessons.cuda_on_cpu import involution
from helpers.ops.involution import benchmark, cpu, involution2d
from helpers.ops.involution.geometry import operands
from tests.involution.reference import (
    SMALL,
    assert_close,
    case_and_loops,
    each_kernel,
)
from tests.needs import needs_compiler


def test_it_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SHAPES", ((1, 16, 5),))
    benchmark.main(["--seconds", "0.001", "--dtype", "bfloat16"])
    printed = capsys.readouterr().out
    assert printed.count("1,16,5²") == 1 + len(benchmark.paths("cpu"))


@needs_compiler
@each_kernel
def test_the_design_that_it_compares_with_is_right(kernel):
    geometry = SMALL["all options"]
    case, expected = case_and_loops(geometry)
    run = involution.runner(source=None)
    actual = benchmark.launch_constants(kernel, *operands(kernel, *case), geometry, run)
    assert_close(actual, expected[kernel], torch.float32)


# What it measures: the memory that PyTorch allocates, results included


@pytest.mark.parametrize(
    "shape, dtype, memory_format",
    [
        ((4, 64, 28), torch.float32, torch.contiguous_format),
        ((8, 512, 7), torch.float16, torch.channels_last),
    ],
    ids=str,
)
def test_memory(shape, dtype, memory_format, monkeypatch):
    """The kernels allocate the results alone, plain PyTorch up to twice as much."""
    _, tensors = benchmark.case(*shape, dtype=dtype)
    tensors = [
        t.to(memory_format=memory_format) if t.dim() == 4 else t for t in tensors
    ]
    size = sum(t.nbytes for t in tensors)  # of the results, too
    input, weight, grad_output = tensors
    leaves = input.requires_grad_(), weight.requires_grad_()

    def forward_and_backward():
        output = involution2d(input, weight, padding=3)
        return output, torch.autograd.grad(output, leaves, grad_output)

    if cpu.available():
        assert benchmark.peak_bytes(forward_and_backward, "cpu") == size
    monkeypatch.setattr(cpu, "available", lambda: False)
    assert size < benchmark.peak_bytes(forward_and_backward, "cpu") <= 2 * size
    # the instrument sees what it should: one unfolded input is more than that
    assert benchmark.peak_bytes(lambda: F.unfold(input, 7, padding=3), "cpu") > 2 * size
