"""The CUDA sources, executed on the CPU thread by thread.

On a GPU, `python -m tools.involution_first_gpu_run` tries them.
"""

from functools import partial

import pytest
import torch

from helpers.lessons.cuda_on_cpu import emulator, involution
from helpers.ops.involution import launch
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    SMALL,
    assert_close,
    case_and_results,
    each_dtype,
    each_kernel,
    make_geometry,
    random_cases,
    random_geometries,
    random_operands,
    sizes_of,
    transposed,
)
from tests.needs import needs_compiler

# Executed on the CPU


@needs_compiler
@each_kernel
@each_dtype
def test_the_readable_kernels_agree_with_unfold(dtype, kernel):
    for geometry, case, expected in random_cases(50, dtype):
        actual = getattr(involution, kernel)(*operands(kernel, *case), geometry)
        assert_close(actual, expected[kernel], dtype)


@needs_compiler
@each_kernel
@each_dtype
def test_the_fast_kernels_agree_with_unfold(dtype, kernel, monkeypatch):
    # Two channels a thread, whatever the size.
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    monkeypatch.setattr(launch, "CHANNELS", (2, 1))
    # Each window is compiled: the other types take two.
    some = ("even rows", "two channels a group")
    for name in SMALL if dtype == torch.float32 else some:
        case, expected = case_and_results(SMALL[name], dtype)
        actual = involution.fast(kernel, *operands(kernel, *case), SMALL[name])
        assert_close(actual, expected[kernel], dtype)


@needs_compiler
@each_kernel
def test_64_bit_indices_and_other_strides_give_the_same(kernel):
    run = getattr(involution, kernel)
    for geometry in random_geometries(10, seed=64):
        arguments = random_operands(kernel, geometry)
        expected = run(*arguments, geometry)
        assert run(*arguments, geometry, index="long long").equal(expected)
        assert run(*map(transposed, arguments), geometry).equal(expected)


def test_an_empty_batch_launches_nothing():
    geometry = SMALL["same size"]._replace(batch=0)
    for kernel in KERNELS:
        case = random_operands(kernel, geometry)
        assert launch.launch(kernel, *case, geometry, run=None).shape[0] == 0


# Arrays of more than 2^31 elements: each case is (geometry, the kernel whose result is
# that big).
# The memory is reserved, not used: only the last two blocks run.
HUGE = {
    "forward": make_geometry(1, 65544, 1, (1, 32800), (1, 1)),
    "grad_input": make_geometry(1, 65544, 1, (1, 32800), (1, 1)),
    "grad_weight": make_geometry(1, 1, 1, (1, 98335), (1, 65536)),
}


@needs_compiler
@each_kernel
def test_more_than_two_to_the_31_elements(kernel):
    case = [torch.empty(size, dtype=torch.float16) for size in sizes_of(HUGE[kernel])]
    arguments = operands(kernel, *case)
    for argument in arguments:
        argument.view(-1)[-40000:] = 2
    arguments[1].view(-1)[:40000] = 2  # the one weight

    def run_the_last_blocks(plan, tensors):
        blocks = range(plan.grid[0] - 2, plan.grid[0])
        launched = launch.SOURCE, plan.name, plan.grid, plan.block
        emulator.run(*launched, plan.arguments(tensors), blocks=blocks)

    run = partial(launch.launch, kernel, *arguments, HUGE[kernel], run_the_last_blocks)
    result = run()  # which chooses 64 bits by itself
    assert result.numel() > 2**31 and result.view(-1)[-64:].eq(4).all()
    with pytest.raises(emulator.KernelError):
        run(index="int")
