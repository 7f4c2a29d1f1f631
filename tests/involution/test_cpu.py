"""The C++ kernels: values, layouts, threads, memory, and what they refuse."""

import multiprocessing
import os
import re
from pathlib import Path

import pytest
import torch

from helpers.ops.involution import backend, cpu, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    LARGE,
    TOLERANCE,
    assert_close,
    make_geometry,
    random_tensors,
)
from tests.needs import needs_compiler

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def built():
    assert backend().name == "cpu kernel", backend().reason


def results(geometry, case, module=cpu):
    return [
        getattr(module, kernel)(*operands(kernel, *case), geometry)
        for kernel in KERNELS
    ]


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last], ids=str
)
@pytest.mark.parametrize("name", LARGE)
def test_large_cases_agree_with_plain_pytorch_in_double(name, memory_format):
    geometry = LARGE[name]
    for dtype in TOLERANCE:
        case = random_tensors(geometry, dtype)
        expected = results(geometry, [t.double() for t in case], plain)
        case = [t.to(memory_format=memory_format) if t.dim() == 4 else t for t in case]
        for actual, one in zip(results(geometry, case), expected, strict=True):
            assert_close(actual, one, dtype)
            if actual.dim() == 4:  # as it came in
                assert actual.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 2), (3, 2)], ids=str)
def test_infinities_outside_the_image_do_not_count(stride):
    geometry = make_geometry(1, 2, 1, (6, 21), (3, 5), stride, (2, 3))
    _, weight, _ = random_tensors(geometry)
    input, grad_output = (
        torch.ones(geometry.input_size),
        torch.ones(geometry.output_size),
    )
    reached = plain.grad_weight(grad_output, input, geometry) != 0
    weight = torch.where(reached, weight, torch.inf)
    for first, second, kernel in (
        (input, weight, "forward"),
        (grad_output, weight, "grad_input"),
        (torch.full_like(grad_output, torch.inf), input, "grad_weight"),
    ):
        actual, expected = (
            getattr(m, kernel)(first, second, geometry) for m in (cpu, plain)
        )
        assert not actual.isnan().any()
        torch.testing.assert_close(actual, expected)


def test_bits_do_not_depend_on_threads_or_runs():
    threads = torch.get_num_threads()
    geometry = make_geometry(4, 64, 4, (28, 30), (5, 5), (1, 1), (2, 2))
    case = random_tensors(geometry)
    try:
        torch.set_num_threads(1)
        right = results(geometry, case)
        for count in (2, 3, 16, 16):
            torch.set_num_threads(count)
            torch.testing.assert_close(results(geometry, case), right, rtol=0, atol=0)
    finally:
        torch.set_num_threads(threads)


def held(name):
    """How many bytes this process holds, by a name in /proc."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", status)[1])


def held_beside_the_results():
    """The most memory that the kernels held, which PyTorch does not count."""
    assert cpu.available()
    geometry = make_geometry(1, 16, 1, (1024, 1024), (3, 3), padding=(1, 1))
    case = random_tensors(geometry)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak up to here
    before = held("VmRSS")
    made = sum(result.nbytes for result in results(geometry, case))
    return held("VmHWM") - before - made


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="no clear_refs"
)
def test_buffers_stay_small():
    """In a fresh process: one that has freed memory would use that first."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        beside = pool.apply(held_beside_the_results)
    assert abs(beside) < 2**24  # 16 MB, a quarter of the input


def test_a_window_of_more_than_four_megabytes_is_left_to_plain_pytorch():
    geometry = make_geometry(1, 2, 1, (9, 20), (3, 3), (2, 3), (999, 999), (999, 999))
    case = random_tensors(geometry)
    pair = (results(geometry, case, module) for module in (cpu, plain))
    torch.testing.assert_close(*pair, rtol=0, atol=0)
