"""Which CUDA kernel is launched for which sizes and strides, and that it is right."""

import pytest
import torch
import torch.nn.functional as F

from helpers.lessons.cuda_on_cpu import involution
from helpers.ops.involution import launch, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    SMALL,
    assert_close,
    case_and_results,
    channels_last,
    channels_last_with_gaps,
    each_dtype,
    each_kernel,
    make_geometry,
    random_operands,
    random_tensors,
    sizes_of,
    transposed,
    with_gaps,
)
from tests.needs import needs_compiler


def launched(kernel, first, second, geometry, run=lambda *_: None, **options):
    """The result of a launch, and what was launched, (name, grid, block, arguments,
    index).
    """
    notes = []

    def noted(plan, tensors):
        notes.append(
            (plan.name, plan.grid, plan.block, plan.arguments(tensors), plan.index)
        )
        run(plan, tensors)

    result = launch.launch(kernel, first, second, geometry, noted, fast=True, **options)
    return result, notes[0]


def without_memory(kernel, geometry, dtype=torch.float32):
    """The two arrays that a kernel reads, where no kernel runs."""
    case = (
        torch.empty(size, dtype=dtype, device="meta") for size in sizes_of(geometry)
    )
    return operands(kernel, *case)


def chosen(kernel, geometry, dtype=torch.float32, **options):
    """(name, grid, block)"""
    return launched(
        kernel, *without_memory(kernel, geometry, dtype), geometry, **options
    )[1][:3]


def on_cpu(*what):
    involution.runner(launch.FAST_SOURCE)(*what)


def template(name):
    """The numbers in a kernel's name: CHANNELS, which grad_weight lacks, PIXELS, PAD,
    PACK, ...
    """
    return [int(n) for n in name[:-1].split(", ")[1:]]


# Sizes


def test_the_readable_kernels_are_for_the_rest():
    def row(width, kernel=1, stride=1, padding=0):
        pairs = (1, kernel), (1, stride), (0, padding)
        return make_geometry(1, 1, 1, (1, width), *pairs)

    one, many = SMALL["one by one"], 2**31 - 2**20
    for geometry, index in (
        (row(56, kernel=12, padding=6), "int"),  # more taps than registers hold
        (row(many), "long long"),
        # few elements, but a size that no int holds, or the input's far side does not
        (row(2**20, stride=2**30, padding=2**30 - 2**20), "long long"),
        (one._replace(stride_height=2**40), "long long"),
    ):
        for kernel in KERNELS:
            assert chosen(kernel, geometry)[0] == launch.kernel_name(
                kernel, torch.float32, index
            )
    for kernel in KERNELS:
        assert "_fast" in chosen(kernel, row(many - 1))[0]
    assert "_fast" not in chosen("forward", one, index="long long")[0]


def test_more_blocks_than_a_grid_holds_are_refused():
    geometry = SMALL["one by one"]._replace(channels=2**34 + 1)
    with pytest.raises(
        ValueError, match="at most 2\\^31 - 1 blocks, and .* need 2147483649"
    ):
        chosen("forward", geometry)


# Strides


@needs_compiler
@each_kernel
@each_dtype
@pytest.mark.parametrize("channels", ["two", "three", "eight"])
def test_any_layout_gives_what_unfold_gives(channels, dtype, kernel):
    geometry = SMALL[f"{channels} channels a group"]
    case, expected = case_and_results(geometry, dtype)
    for layout in (with_gaps, channels_last, channels_last_with_gaps, transposed):
        first, second = map(layout, operands(kernel, *case))
        result, _ = launched(kernel, first, second, geometry, on_cpu)
        assert_close(result, expected[kernel], dtype)
        last = layout is channels_last and kernel != "grad_weight"
        memory_format = torch.channels_last if last else torch.contiguous_format
        assert result.is_contiguous(memory_format=memory_format)


def test_strides_that_lead_further_than_an_int_counts():
    geometry = SMALL["four channels a group"]._replace(batch=2)
    _, weight = without_memory("forward", geometry)

    def line(stride):
        input = torch.empty(2**33, device="meta").as_strided(
            geometry.input_size, stride
        )
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
    "strides, pack",
    [((160, 1, 24, 4), 4), ((146, 1, 24, 4), 2), ((160, 1, 26, 4), 2)],
    ids=str,
)
def test_a_load_brings_as_many_channels_as_are_aligned_everywhere(strides, pack):
    geometry = SMALL["four channels a group"]._replace(batch=2)
    input, weight, _ = random_tensors(geometry)
    memory = torch.empty(400).as_strided(input.shape, strides).copy_(input)
    result, (name, *_) = launched("forward", memory, weight, geometry, on_cpu)
    assert template(name)[-7] == pack
    assert_close(result, plain.forward(input, weight, geometry), torch.float32)


@needs_compiler
@each_kernel
@pytest.mark.parametrize(
    "row, before, pixels", [(8, 0, 4), (10, 0, 2), (9, 0, 1), (12, 2, 2), (12, 1, 1)]
)
def test_as_many_pixels_a_thread_as_are_aligned_in_all_rows(
    kernel, row, before, pixels, monkeypatch
):
    """row: elements from one to the next. before: elements in the memory before the
    array.
    """
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    geometry = SMALL["even rows"]
    case = random_operands(kernel, geometry, torch.float16)
    expected = getattr(plain, kernel)(*case, geometry)
    for which in range(2):
        tensors = list(case)
        memory = F.pad(case[which], (before, row - 8 - before), value=torch.nan)
        tensors[which] = memory[..., before : before + 8]
        result, (name, *_) = launched(kernel, *tensors, geometry, on_cpu)
        assert template(name)[kernel != "grad_weight"] == pixels
        assert_close(result, expected, torch.float16)


@needs_compiler
@each_kernel
def test_elements_that_lie_apart_are_loaded_one_by_one(kernel, monkeypatch):
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    geometry = SMALL["even rows"]
    case = random_operands(kernel, geometry, torch.float16)
    apart = [torch.stack((t, t + torch.nan), -1)[..., 0] for t in case]
    result, (name, *_) = launched(kernel, *apart, geometry, on_cpu)
    assert template(name)[kernel != "grad_weight"] == 1
    expected = getattr(plain, kernel)(*case, geometry)
    assert_close(result, expected, torch.float16)
