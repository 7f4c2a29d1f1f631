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


def name_of(kernel, first, second, geometry, **options):
    return launch.plan(kernel, first, second, geometry, fast=True, **options).name


def without_memory(kernel, geometry):
    """The two arrays that a kernel reads, where no kernel runs."""
    case = (torch.empty(size, device="meta") for size in sizes_of(geometry))
    return operands(kernel, *case)


def chosen(kernel, geometry, **options):
    return name_of(kernel, *without_memory(kernel, geometry), geometry, **options)


def template(name):
    """The numbers in a kernel's name: CHANNELS, PIXELS, PAD, PACK, ..."""
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
            right = launch.kernel_name(kernel, torch.float32, index)
            assert chosen(kernel, geometry) == right
    for kernel in KERNELS:
        assert "_fast" in chosen(kernel, row(many - 1))
    assert "_fast" not in chosen("forward", one, index="long long")


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
        result = involution.fast(kernel, first, second, geometry)
        assert_close(result, expected[kernel], dtype)
        last = layout is channels_last and kernel != "grad_weight"
        memory_format = torch.channels_last if last else torch.contiguous_format
        assert result.is_contiguous(memory_format=memory_format)


def test_a_stride_that_is_never_taken_is_0():
    one = torch.ones(1).as_strided((1, 1, 1, 1), (2**40,) * 4)
    assert set(launch._strides(one)) == {0}


def test_strides_that_lead_further_than_an_int_counts():
    geometry = SMALL["four channels a group"]._replace(batch=2)
    _, weight = without_memory("forward", geometry)

    for strides, is_copied in (
        ((launch.MANY - 1000, 36, 6, 1), False),
        ((launch.MANY, 36, 6, 1), True),
        ((2**29, 1, 2**27, 2**25), False),
        ((4, 1, 2**26, 2**28), True),  # the columns of the padding count, too
    ):
        memory = torch.empty(2**33, device="meta")
        input = memory.as_strided(geometry.input_size, strides)
        plan = launch.plan("forward", input, weight, geometry, fast=True)
        assert plan.index == "int" and plan.copied[0] == is_copied


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
    assert template(name_of("forward", memory, weight, geometry))[-7] == pack
    result = involution.fast("forward", memory, weight, geometry)
    assert_close(result, plain.forward(input, weight, geometry), torch.float32)


def assert_loaded(kernel, case, tensors, pixels):
    """tensors: those of `case`, as they may lie in memory."""
    geometry = SMALL["even rows"]
    name = name_of(kernel, *tensors, geometry)
    assert template(name)[kernel != "grad_weight"] == pixels
    expected = getattr(plain, kernel)(*case, geometry)
    assert_close(involution.fast(kernel, *tensors, geometry), expected, torch.float16)


@needs_compiler
@each_kernel
@pytest.mark.parametrize(
    "row, before, pixels", [(8, 0, 4), (10, 0, 2), (9, 0, 1), (12, 2, 2), (12, 1, 1)]
)
def test_as_many_pixels_a_thread_as_are_aligned_in_all_rows(
    kernel, row, before, pixels, monkeypatch
):
    """row: elements from one row to the next. before: elements ahead of the array."""
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    case = random_operands(kernel, SMALL["even rows"], torch.float16)
    for which in range(2):
        tensors = list(case)
        memory = F.pad(case[which], (before, row - 8 - before), value=torch.nan)
        tensors[which] = memory[..., before : before + 8]
        assert_loaded(kernel, case, tensors, pixels)


@needs_compiler
@each_kernel
def test_elements_that_lie_apart_are_loaded_one_by_one(kernel, monkeypatch):
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    case = random_operands(kernel, SMALL["even rows"], torch.float16)
    apart = [torch.stack((t, t + torch.nan), -1)[..., 0] for t in case]
    assert_loaded(kernel, case, apart, pixels=1)
