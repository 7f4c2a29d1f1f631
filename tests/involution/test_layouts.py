"""The CUDA kernels and the strides of what they read: which are read as they lie, and what of."""

import pytest
import torch

from helpers.lessons.cuda_on_cpu import involution
from helpers.ops.involution import benchmark, launch, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    TOLERANCE,
    assert_close,
    case_and_loops,
    channels_last,
    channels_last_with_gaps,
    make_geometry,
    random_tensors,
    with_gaps,
)
from tests.needs import needs_compiler

each_kernel = pytest.mark.parametrize("kernel", KERNELS)
LAYOUTS = with_gaps, channels_last, channels_last_with_gaps
GEOMETRIES = [
    make_geometry(2, 16, 2, (7, 5), (3, 3), (1, 1), (1, 2), (1, 1)),  # 8 channels a group
    make_geometry(1, 4, 2, (8, 9), (2, 3), (2, 3), (1, 2), (1, 2)),
]


def launched(kernel, first, second, geometry, run=lambda *_: None, **options):
    """The result of a launch, and what was launched, (name, grid, block, arguments, index)."""
    notes = []

    def noted(*what):
        notes.append(what)
        run(*what)

    result = launch.launch(kernel, first, second, geometry, noted, fast=True, **options)
    return result, notes[0]


def on_cpu(*what):
    involution.runner(launch.FAST_SOURCE)(*what)


def template(name):
    """The numbers in a kernel's name: CHANNELS, which grad_weight lacks, PIXELS, PAD, PACK, ..."""
    return [int(n) for n in name[:-1].split(", ")[1:]]


@needs_compiler
@each_kernel
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_any_layout_gives_what_plain_pytorch_gives_and_is_read_as_it_lies(dtype, kernel):
    for seed, geometry in enumerate(GEOMETRIES):
        case = random_tensors(geometry, dtype, seed)
        expected = getattr(plain, kernel)(*operands(kernel, *case), geometry)
        loops = case_and_loops(geometry, dtype, seed)[1][KERNELS.index(kernel)]
        for layout in LAYOUTS:
            first, second = map(layout, operands(kernel, *case))
            result, (name, _, _, arguments, _) = launched(kernel, first, second, geometry, on_cpu)
            assert_close(result, expected.double(), dtype)
            assert_close(result, loops, dtype)
            lines = list(arguments.values())
            assert [t.data_ptr() for t in lines[:3]] == [
                t.data_ptr() for t in (first, second, result)
            ]
            pack = 1 if layout is with_gaps else min(16 // dtype.itemsize, (8, 2)[seed])
            assert template(name)[-7] == pack
            last = layout is channels_last and kernel != "grad_weight"
            memory_format = torch.channels_last if last else torch.contiguous_format
            assert result.is_contiguous(memory_format=memory_format)


@needs_compiler
def test_what_is_copied():
    geometry = make_geometry(1, 4, 1, (6, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    input, weight, grad_output = random_tensors(geometry, torch.float32, 0)
    transposed = input.mT.contiguous().mT
    last, odd = channels_last(input), channels_last(torch.cat([input, input], 1))[:, 3:7]
    expanded = grad_output[..., :1, :1].expand_as(grad_output)
    few = make_geometry(1, 3, 1, (6, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    for kernel, first, second, case, copied in (
        ("forward", transposed, weight, geometry, [0]),
        ("forward", odd, weight, geometry, [0]),  # no load brings 4 of its channels
        ("forward", input, weight.mT.contiguous().mT, geometry, []),
        ("forward", last, weight[:1].expand_as(weight), geometry, []),
        ("forward", last[:, :3], weight, few, [0]),
        ("grad_input", expanded, weight, geometry, [0]),
        ("grad_weight", expanded, input, geometry, []),
        ("grad_weight", channels_last(grad_output), input, geometry, []),
        ("grad_weight", grad_output, last, geometry, [1]),
        ("grad_weight", transposed, last, geometry, [1]),
    ):
        result, (_, _, _, arguments, _) = launched(kernel, first, second, case, on_cpu)
        lines = list(arguments.values())[:2]
        pairs = zip(lines, (first, second), strict=True)
        assert [i for i, (a, b) in enumerate(pairs) if a.data_ptr() != b.data_ptr()] == copied
        expected = getattr(plain, kernel)(first, second, case)
        assert_close(result, expected.double(), torch.float32)


def test_strides_that_lead_further_than_an_int_counts():
    geometry = make_geometry(2, 4, 1, (6, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    weight = torch.empty(geometry.weight_size, device="meta")

    def line(stride):
        input = torch.empty(2**33, device="meta").as_strided(geometry.input_size, stride)
        _, (_, _, _, arguments, index) = launched("forward", input, weight, geometry)
        assert index == "int"
        return len(arguments["input"])

    near = launch.MANY - 1000
    assert line((near, 36, 6, 1)) == near + 144
    assert line((launch.MANY, 36, 6, 1)) == 2 * 144
    assert line((2**29, 1, 2**27, 2**25)) == 2**29 + 5 * 2**27 + 5 * 2**25 + 4
    # the columns of the padding count, too
    assert line((4, 1, 2**26, 2**28)) == 2 * 144


@needs_compiler
@pytest.mark.parametrize(
    "strides, pack", [((160, 1, 24, 4), 4), ((146, 1, 24, 4), 2), ((160, 1, 26, 4), 2)], ids=str
)
def test_a_load_brings_as_many_channels_as_are_aligned_everywhere(strides, pack):
    geometry = make_geometry(2, 4, 1, (6, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    input, weight, _ = random_tensors(geometry, torch.float32, 0)
    memory = torch.empty(400).as_strided(input.shape, strides).copy_(input)
    result, (name, *_) = launched("forward", memory, weight, geometry, on_cpu)
    assert template(name)[-7] == pack
    assert_close(result, plain.forward(input, weight, geometry).double(), torch.float32)


@needs_compiler
@each_kernel
@pytest.mark.parametrize(
    "row, before, pixels", [(8, 0, 4), (10, 0, 2), (9, 0, 1), (12, 2, 2), (12, 1, 1)]
)
def test_as_many_pixels_a_thread_as_are_aligned_in_all_rows(
    kernel, row, before, pixels, monkeypatch
):
    """row: elements from one to the next. before: elements in the memory before the array."""
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    geometry = make_geometry(1, 8, 1, (6, 8), (3, 3), (1, 1), (1, 1), (1, 1))
    case = operands(kernel, *random_tensors(geometry, torch.float16, 0))
    expected = getattr(plain, kernel)(*case, geometry)
    for which in range(2):
        tensors = list(case)
        memory = torch.nn.functional.pad(case[which], (before, row - 8 - before), value=torch.nan)
        tensors[which] = memory[..., before : before + 8]
        result, (name, _, _, arguments, _) = launched(kernel, *tensors, geometry, on_cpu)
        assert template(name)[kernel != "grad_weight"] == pixels
        assert list(arguments.values())[which].data_ptr() == tensors[which].data_ptr()  # no copy
        assert_close(result, expected.double(), torch.float16)


@needs_compiler
def test_the_stride_of_one_sample_does_not_count_and_channels_may_overlap(monkeypatch):
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    geometry = make_geometry(1, 4, 1, (6, 8), (3, 3), (1, 1), (1, 1), (1, 1))
    _, weight, _ = random_tensors(geometry, torch.float32, 0)
    for strides, pixels in (((7, 48, 8, 1), 2), ((7, 1, 8, 1), 1)):
        input = torch.randn(300).as_strided(geometry.input_size, strides)
        result, (name, *_) = launched("forward", input, weight, geometry, on_cpu)
        assert template(name)[1:4:2] == [pixels, 1]
        assert_close(result, plain.forward(input, weight, geometry).double(), torch.float32)


# The sectors that a warp reads


@needs_compiler
@pytest.mark.parametrize(
    "kernel, dtype, in_rows, last",
    [
        ("forward", torch.float32, 2.99, 6),
        ("forward", torch.float16, 1.19, 4),
        ("grad_weight", torch.float32, 3.5, 9.6),
        ("grad_weight", torch.float16, 1.3, 4.8),
    ],
    ids=str,
)
def test_a_warp_reads_few_sectors_in_both_layouts(kernel, dtype, in_rows, last, monkeypatch):
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    geometry = make_geometry(1, 64, 4, (12, 36), (5, 5), (1, 1), (0, 0), (1, 1))
    rows = operands(kernel, *random_tensors(geometry, dtype, 0))
    assert involution.sectors(kernel, *rows, geometry) == pytest.approx(in_rows)
    pixels = map(channels_last, rows)
    assert involution.sectors(kernel, *pixels, geometry) == pytest.approx(last)


@needs_compiler
def test_threads_numbered_along_the_pixels_would_read_many_sectors(monkeypatch):
    geometry = make_geometry(1, 64, 4, (12, 36), (5, 5), (1, 1), (0, 0), (1, 1))
    case = map(channels_last, operands("forward", *random_tensors(geometry, torch.float32, 0)))
    along_pixels = launch.FAST_SOURCE.replace("PACK > 1 ? me / parts : me", "me")
    along_pixels = along_pixels.replace("PACK > 1 ? me : me / places", "me / places")
    assert involution.sectors("forward", *case, geometry, along_pixels) == 16


# Channels split over threads


def test_the_channels_of_few_and_large_groups_are_split():
    def split(batch, channels, groups, size, dtype=torch.float32):
        geometry = make_geometry(
            batch, channels, groups, (size, size), (7, 7), (1, 1), (3, 3), (1, 1)
        )
        sizes = geometry.input_size, geometry.weight_size, geometry.output_size
        case = operands("grad_weight", *(torch.empty(z, dtype=dtype, device="meta") for z in sizes))
        result, (name, grid, _, arguments, _) = launched("grad_weight", *case, geometry)
        assert result.dtype == dtype and result.shape == geometry.weight_size
        threads = batch * arguments["s"].groups * 7 * size**2 // template(name)[0]
        assert grid == (-(-threads // 128),)
        return arguments["s"].groups // groups, name.split("<")[1].split(",")[0]

    for shape in benchmark.SHAPES:
        assert split(shape[0], shape[1], shape[1] // 16, shape[2]) == (1, "float")
    assert split(8, 512, 1, 7) == (8, "float")  # 21,952 threads
    assert split(8, 512, 1, 7, torch.float16) == (8, "float")
    assert split(8, 512, 1, 7, torch.float64) == (8, "double")
    assert split(1, 16, 1, 7) == (1, "float")
    assert split(1, 48, 1, 7) == (1, "float")
    assert split(1, 64, 1, 7) == (4, "float")
    assert split(8, 512, 1, 56) == (1, "float")


@needs_compiler
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_parts_are_summed_as_the_kernels_sum(dtype, layout):
    geometry = make_geometry(2, 64, 2, (4, 5), (3, 2), (1, 1), (1, 1), (1, 1))
    case = random_tensors(geometry, dtype, 0)
    first, second = map(layout, operands("grad_weight", *case))
    result, (_, _, _, arguments, _) = launched("grad_weight", first, second, geometry, on_cpu)
    assert arguments["s"].groups == 2 * 2
    expected = plain.grad_weight(first, second, geometry)
    rounding = {torch.float64: 1e-13, torch.float32: 1e-5}.get(dtype, torch.finfo(dtype).eps)
    torch.testing.assert_close(result, expected, rtol=rounding, atol=rounding)


@needs_compiler
def test_parts_are_not_rounded_before_they_meet():
    geometry = make_geometry(1, 32, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1))
    grad_output = torch.ones(1, 32, 1, 1, dtype=torch.float16)
    input = torch.full((1, 32, 1, 1), 128.0, dtype=torch.float16)
    input[:, 16:] = -128
    input[:, 0] += 1  # the first part is 2049, which float16 does not have
    result, (name, *_) = launched("grad_weight", grad_output, input, geometry, on_cpu)
    assert "<float," in name and result.item() == 1
