"""`python -m helpers.lessons.involution_benchmark`, and what it measures of memory."""

import torch

from helpers.lessons import involution_benchmark as benchmark
from helpers.lessons.cuda_on_cpu import involution
from helpers.lessons.memory import peak_bytes
from helpers.ops.involution import cpu, involution2d
from helpers.ops.involution.geometry import operands
from tests.involution.reference import (
    SMALL,
    assert_close,
    case_and_results,
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
    case, expected = case_and_results(geometry)
    run = involution.runner(source=None)
    actual = benchmark.launch_constants(kernel, *operands(kernel, *case), geometry, run)
    assert_close(actual, expected[kernel], torch.float32)


# What it measures: the memory that PyTorch allocates, results included


def test_memory():
    """The kernels allocate the results alone, plain PyTorch up to twice as much."""
    _, (input, weight, grad_output) = benchmark.case(4, 64, 28)
    size = input.nbytes + weight.nbytes + grad_output.nbytes  # of the results, too
    leaves = input.requires_grad_(), weight.requires_grad_()

    def forward_and_backward():
        output = involution2d(input, weight, padding=3)
        return output, torch.autograd.grad(output, leaves, grad_output)

    peak = peak_bytes(forward_and_backward, "cpu")
    assert peak == size if cpu.available() else size < peak <= 2 * size
