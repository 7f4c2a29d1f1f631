"""The CUDA kernels made for one window: on the CPU under watch, and counted in machine code."""

import itertools
import re

import pytest
import torch

from helpers.lessons.cuda_on_cpu import instructions, involution
from helpers.lessons.cuda_on_cpu.every_architecture import architectures, compile_for
from helpers.ops.involution import benchmark, launch, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    GEOMETRIES,
    TOLERANCE,
    assert_close,
    case_and_loops,
    make_geometry,
)
from tests.needs import NO_NVRTC, needs_compiler, needs_nvdisasm, needs_nvrtc

each_kernel = pytest.mark.parametrize("kernel", KERNELS)
ARCHITECTURES = [] if NO_NVRTC else architectures()


@pytest.fixture
def small_is_enough(monkeypatch):
    """Two channels a thread, whatever the size."""
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    monkeypatch.setattr(launch, "CHANNELS", (2, 1))


@pytest.fixture
def four_floats(small_is_enough, monkeypatch):
    """And up to four pixels a thread, as in half precision."""
    monkeypatch.setattr(launch, "PIXEL_BYTES", 16)


# Executed on the CPU


@needs_compiler
@each_kernel
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_cpu_execution_agrees_with_loops_and_plain_pytorch(dtype, kernel, small_is_enough):
    judges = GEOMETRIES if dtype == torch.float32 else GEOMETRIES[1:3]
    for geometry in judges:
        case, results = case_and_loops(geometry, dtype)
        actual = involution.fast(kernel, *operands(kernel, *case), geometry)
        assert_close(actual, results[KERNELS.index(kernel)], dtype)
        in_pytorch = getattr(plain, kernel)(*operands(kernel, *case), geometry)
        assert_close(actual, in_pytorch.double(), dtype)


@needs_compiler
@each_kernel
def test_the_design_that_the_benchmark_compares_with_is_right(kernel):
    geometry = make_geometry(2, 4, 2, (5, 6), (3, 2), (2, 1), (1, 1), (1, 2))
    case, results = case_and_loops(geometry)
    run = involution.runner(source=None)
    actual = benchmark.launch_constants(kernel, *operands(kernel, *case), geometry, run)
    assert_close(actual, results[KERNELS.index(kernel)], torch.float32)


# Loads, counted by the emulator


@needs_compiler
@pytest.mark.parametrize(
    "kernel, readable, fast",
    [
        # 49 taps; then 49 taps of 16 channels: each weight is loaded once
        ("forward", {"input": 49, "weight": 49}, {"input": 49 * 16, "weight": 49}),
        ("grad_input", {"grad_output": 49, "weight": 49}, {"grad_output": 49 * 16, "weight": 49}),
    ],
)
def test_a_weight_is_loaded_once_for_all_channels_of_a_thread(kernel, readable, fast, monkeypatch):
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    geometry = make_geometry(1, 16, 1, (9, 9), (7, 7), (1, 1), (3, 3), (1, 1))
    assert involution.reads(kernel, geometry) == readable
    assert involution.reads(kernel, geometry, fast=True) == fast
    loads = sum(fast.values()) / (49 * 16)
    assert loads == 1.0625 and sum(readable.values()) / 49 == 2


@needs_compiler
def test_a_grad_output_is_loaded_once_for_a_row_of_taps(monkeypatch):
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    geometry = make_geometry(1, 16, 1, (9, 9), (7, 7), (1, 1), (0, 0), (1, 1))
    assert involution.reads("grad_weight", geometry) == {"grad_output": 16, "input": 16}
    assert involution.reads("grad_weight", geometry, fast=True) == {
        "grad_output": 16,
        "input": 7 * 16,
    }


@needs_compiler
@pytest.mark.parametrize(
    "kernel, dtype, each, expected, loads",
    [
        # 7 rows of 5 or 3 loads for each of 16 or 8 channels; then 49 taps, each for all pixels
        ("forward", torch.float32, 32, {"input": 560, "weight": 49}, 0.39),
        ("forward", torch.float16, 32, {"input": 168, "weight": 49}, 0.14),
        # the same taps of neighbours are not neighbours here
        ("grad_input", torch.float32, 32, {"grad_output": 560, "weight": 49 * 2}, 0.42),
        ("grad_input", torch.float16, 32, {"grad_output": 168, "weight": 49 * 4}, 0.23),
        # 5 or 3 loads for each of 16 channels
        ("grad_weight", torch.float32, 14, {"input": 80, "grad_output": 16}, 0.43),
        ("grad_weight", torch.float16, 28, {"input": 48, "grad_output": 16}, 0.14),
    ],
    ids=str,
)
def test_pixels_of_a_thread_share_what_a_load_brings(
    kernel, dtype, each, expected, loads, monkeypatch
):
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    geometry = make_geometry(1, 16, 1, (16, 16), (7, 7), (1, 1), (3, 3), (1, 1))
    assert involution.reads(kernel, geometry, fast=True, dtype=dtype) == expected
    summands = 16 if kernel == "grad_weight" else 49  # of each element that the thread owns
    assert sum(expected.values()) / (each * summands) == pytest.approx(loads, abs=0.005)


# Counted in machine code


@needs_nvdisasm
@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_few_instructions_per_multiply_add_at_the_sizes_of_the_benchmark(architecture):
    at_most = {"forward": 4, "grad_input": 4, "grad_weight": 5}
    for shape, pack in itertools.product(benchmark.SHAPES, (1, 4)):
        geometry = benchmark.geometry_of(*shape)
        names = [launch.fast_kernel_name(k, torch.float32, geometry, pack) for k in KERNELS]
        counts = instructions.count(architecture, launch.FAST_SOURCE, names)
        for kernel, name in zip(KERNELS, names, strict=True):
            count = counts[name]
            assert 1 < count.per_multiply_add <= at_most[kernel], (shape, name)
            if pack == 1 and kernel != "grad_weight":  # 7 rows of taps, and what is around them
                whole = (7 * count.instructions + count.outside) / (7 * count.multiply_adds)
                assert whole <= 4, (shape, name)


@needs_nvdisasm
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_half_is_converted_once_and_not_at_every_tap(dtype):
    for shape, at_most in zip(benchmark.SHAPES, (2.6, 2.6, 3.8, 4.5), strict=True):
        geometry = benchmark.geometry_of(*shape)
        names = [launch.fast_kernel_name(kernel, dtype, geometry) for kernel in KERNELS]
        for name, count in instructions.count(90, launch.FAST_SOURCE, names).items():
            assert 1 < count.per_multiply_add <= at_most, name


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_fast_kernel_compiles_and_spills_nothing(architecture):
    is_last = architecture in (ARCHITECTURES[0], ARCHITECTURES[-1])
    large, small = benchmark.geometry_of(8, 64, 56), benchmark.geometry_of(8, 512, 7)
    sparse = large._replace(stride_height=2, stride_width=2, dilation_height=2, dilation_width=3)
    wide = large._replace(kernel_height=launch.WIDEST, kernel_width=launch.WIDEST)
    names = {
        launch.fast_kernel_name(kernel, dtype, geometry, pack)
        for kernel in KERNELS
        for geometry in ((large, small, sparse, wide) if is_last else (large, small))
        for dtype in (launch.TYPES if is_last else [torch.float32, torch.float16])
        for pack in (1, launch.PACK_BYTES // dtype.itemsize)
    }
    for name, resources in compile_for(architecture, launch.FAST_SOURCE, sorted(names)).items():
        assert resources.spilled_bytes == 0 and resources.stack_bytes == 0, name
        assert 0 < resources.registers <= 168, name  # three blocks of 128 threads fit, at least


SASS = """
//--------------------- .text.dot --------------------------
.text.dot:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   @P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0020*/                   LDG.E R4, [R2.64] ;
        /*0030*/                   LDS R5, [R3] ;
.L_x_2:
        /*0040*/              @!P1 FFMA R6, R4, R5, R6 ;
        /*0050*/                   ISETP.NE.AND P0, PT, R0, RZ, PT ;
        /*0060*/                   @P2 BRA `(.L_x_2) ;
        /*0070*/                   @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0080*/                   FFMA R6, R4, R5, R6 ;
        /*0090*/                   EXIT ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3);
        /*00b0*/                   NOP;
"""


def test_the_inner_loop_is_found():
    assert instructions.count_text(SASS) == (3, 1, 0, 8)
    outer = SASS.replace("@P2 BRA `(.L_x_2)", "IADD3 R0, R0, 0x1, RZ")
    assert instructions.count_text(outer) == (6, 1, 2, 5)
    twice = SASS.replace("LDS R5, [R3]", "DFMA R8, R4, R4, R8")
    assert instructions.count_text(twice) == (6, 2, 1, 5)
    straight = re.sub("@P. BRA", "MOV", SASS)
    assert instructions.count_text(straight) == (11, 2, 2, 0)


def test_without_nvdisasm_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(instructions.shutil, "which", lambda name, path: None)
    with pytest.raises(ImportError, match="pip install nvidia-cuda-nvdisasm"):
        instructions.count(90, "", [])
