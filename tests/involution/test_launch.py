"""Which of the CUDA kernels made for one window is launched, for which sizes."""

import math

import pytest
import torch

from helpers.lessons.cuda_on_cpu import emulator, involution
from helpers.ops.involution import benchmark, launch, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import assert_close, make_geometry, random_tensors
from tests.needs import needs_compiler

each_kernel = pytest.mark.parametrize("kernel", KERNELS)


def chosen(kernel, geometry, dtype=torch.float32, **options):
    """(name, grid, block) of a launch for arrays that need no memory."""
    sizes = (geometry.input_size, geometry.weight_size, geometry.output_size)
    case = operands(kernel, *(torch.empty(size, dtype=dtype, device="meta") for size in sizes))
    notes = []
    launch.launch(kernel, *case, geometry, lambda *note: notes.append(note), fast=True, **options)
    return notes[0][:3]


@pytest.mark.parametrize(
    "dtype, owned",
    [
        (torch.float32, [(16, 2), (16, 2), (8, 2), (8, 1)]),
        (torch.float16, [(8, 4), (8, 4), (8, 2), (8, 1)]),
        (torch.float64, [(16, 1), (16, 1), (16, 1), (8, 1)]),
    ],
    ids=str,
)
def test_as_many_channels_and_pixels_a_thread_as_leave_enough_threads(dtype, owned):
    for (batch, all_channels, size), each in zip(benchmark.SHAPES, owned, strict=True):
        threads = batch * all_channels * size**2 // math.prod(each)
        for kernel in ("forward", "grad_input"):
            name, grid, block = chosen(
                kernel, benchmark.geometry_of(batch, all_channels, size), dtype
            )
            pad = 3 % each[1]
            template = launch.TYPES[dtype], *each, pad, 1, 7, 7, 1, 1, 1, 1
            assert name == f"involution2d_{kernel}_fast<{', '.join(map(str, template))}>"
            assert (grid, block) == ((-(-threads // 128),), (128, 1))
            assert threads >= 2**14
    small = chosen("grad_input", benchmark.geometry_of(1, 64, 7))[0]
    assert small == "involution2d_grad_input_fast<float, 1, 1, 0, 1, 7, 7, 1, 1, 1, 1>"
    odd = make_geometry(8, 44, 2, (56, 56), (3, 3), (1, 1), (1, 1), (1, 1))  # 22 a group
    assert chosen("forward", odd)[0].startswith("involution2d_forward_fast<float, 2, ")


@pytest.mark.parametrize(
    "kernel_size, stride, dilation, expected",
    [
        (3, 1, 1, (4, 4, 4)),
        (1, 1, 1, (4, 4, 4)),
        (7, 1, 4, (4, 4, 4)),
        (7, 1, 5, (1, 1, 1)),  # 34 columns would be brought for 28 taps, or 32 for 14
        (7, 2, 1, (4, 1, 4)),  # the gradient of a pixel has other taps than that of its neighbour
        (7, 7, 1, (4, 1, 4)),
        (7, 8, 1, (1, 1, 1)),
    ],
)
def test_several_pixels_a_thread_where_they_save_loads(kernel_size, stride, dilation, expected):
    padding = dilation * (kernel_size - 1) // 2
    width = 56 * stride
    geometry = make_geometry(
        8, 64, 4, (56, width), (3, kernel_size), (1, stride), (1, padding), (1, dilation)
    )
    assert geometry.out_width == 56
    assert tuple(launch.pixels_per_thread(kernel, geometry, 4) for kernel in KERNELS) == expected


def test_several_pixels_a_thread_where_rows_have_as_many():
    for width, padding, pixels in ((56, 1, 4), (58, 1, 2), (57, 1, 1), (56, 2, 2), (58, 0, 2)):
        geometry = make_geometry(8, 64, 4, (56, width), (3, 3), (1, 1), (1, padding), (1, 1))
        for kernel in KERNELS:
            assert launch.pixels_per_thread(kernel, geometry, 4) == pixels
            assert launch.pixels_per_thread(kernel, geometry, 2) == min(pixels, 2)
    few = make_geometry(1, 16, 1, (32, 32), (3, 3), (1, 1), (1, 1), (1, 1))  # 2**14 elements
    assert [launch.pixels_per_thread(kernel, few, 4) for kernel in KERNELS] == [1, 1, 1]
    twice = few._replace(batch=2)
    assert [launch.pixels_per_thread(kernel, twice, 4) for kernel in KERNELS] == [2, 2, 1]


def test_the_readable_kernels_are_for_the_rest():
    for geometry in (
        make_geometry(8, 64, 4, (56, 56), (1, 12), (1, 1), (0, 6), (1, 1)),  # too wide a row
        make_geometry(1, 1, 1, (1, 1), (1, 1), (2**40, 1), (0, 0), (1, 1)),  # no int holds these
        make_geometry(1, 1, 1, (1, 1), (1, 1), (1, 2**40), (0, 0), (1, 1)),
        make_geometry(1, 1, 1, (1, 1), (1, 1), (1, 1), (0, 0), (2**40, 1)),
        make_geometry(1, 1, 1, (1, 1), (1, 2), (1, 1), (0, 2**32), (1, 2**33)),
    ):
        index = "int" if geometry.kernel_width == 12 else "long long"
        for kernel in KERNELS:
            assert chosen(kernel, geometry)[0] == launch.kernel_name(kernel, torch.float32, index)
    large = benchmark.geometry_of(8, 64, 56)
    assert "_fast" not in chosen("forward", large, index="long long")[0]


@needs_compiler
@each_kernel
def test_a_stride_that_no_int_holds(kernel):
    geometry = make_geometry(1, 1, 1, (2, 2), (1, 1), (2**32, 2**40), (0, 0), (1, 1))
    case = operands(kernel, *random_tensors(geometry, torch.float32, 0))
    actual = involution.fast(kernel, *case, geometry)
    assert_close(actual, getattr(plain, kernel)(*case, geometry).double(), torch.float32)


def test_more_blocks_than_a_grid_holds_are_refused():
    geometry = make_geometry(1, 2**34 + 1, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1))
    with pytest.raises(ValueError, match="at most 2\\^31 - 1 blocks, and .* need 2147483649"):
        chosen("forward", geometry)


@needs_compiler
@each_kernel
def test_the_most_elements_that_an_int_counts(kernel, monkeypatch):
    # The memory is reserved, not used: only the last block runs.
    monkeypatch.setattr(launch, "CHANNELS", (2, 1))
    width, many = 2**15, (2**31 - 2**20) // 2**15 - 2
    if kernel == "grad_weight":  # many rows of one tap
        geometry = make_geometry(1, 1, 1, (many, width), (many, 1), (1, 1), (0, 0), (1, 1))
    else:
        geometry = make_geometry(1, many, 1, (1, width), (1, 1), (1, 1), (0, 0), (1, 1))
    sizes = geometry.input_size, geometry.weight_size, geometry.output_size
    case = operands(kernel, *(torch.empty(size, dtype=torch.float16) for size in sizes))
    for tensor in case:
        tensor.view(-1)[:40000] = 2
        tensor.view(-1)[-80000:] = 2

    def run_the_last_block(name, grid, block, arguments, index):
        assert "_fast" in name
        blocks = range(grid[0] - 1, grid[0])
        emulator.run(launch.FAST_SOURCE, name, grid, block, arguments, blocks=blocks)

    result = launch.launch(kernel, *case, geometry, run_the_last_block, fast=True)
    assert result.numel() > 2**31 - 2**21
    assert result.view(-1)[-64:].eq(4).all()
