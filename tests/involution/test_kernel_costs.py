"""What a thread of the CUDA kernels costs: loads, instructions and registers, without a
GPU.
"""

import re

import pytest
import torch

from helpers.lessons.cuda_on_cpu import instructions, involution
from helpers.lessons.cuda_on_cpu.every_architecture import architectures, compile_for
from helpers.ops.involution import benchmark, launch
from helpers.ops.involution.geometry import KERNELS
from tests.needs import NO_NVRTC, needs_nvrtc

ARCHITECTURES = [] if NO_NVRTC else architectures()
each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


# Loads, counted by the emulator. Those of forward are in chapter 15.


# Registers


def assert_spills_nothing(architecture, source, names, registers):
    kernels = compile_for(architecture, source, sorted(names))
    assert kernels.keys() == set(names)
    for name, resources in kernels.items():
        assert resources.spilled_bytes == 0 and resources.stack_bytes == 0, name
        assert 0 < resources.registers <= registers, name


@needs_nvrtc
@each_architecture
def test_every_readable_kernel_compiles_and_spills_nothing(architecture):
    # Every type for every architecture; 64-bit indices for the oldest and the newest.
    is_last = architecture in (ARCHITECTURES[0], ARCHITECTURES[-1])
    names = involution.all_names(index=launch.INDEXES if is_last else ["int"])
    # two blocks of 256 threads fit, at least
    assert_spills_nothing(architecture, launch.SOURCE, names, registers=128)


@needs_nvrtc
@each_architecture
def test_every_fast_kernel_compiles_and_spills_nothing(architecture):
    is_last = architecture in (ARCHITECTURES[0], ARCHITECTURES[-1])
    large, small = benchmark.geometry_of(8, 64, 56), benchmark.geometry_of(8, 512, 7)
    sparse = large._replace(
        stride_height=2, stride_width=2, dilation_height=2, dilation_width=3
    )
    wide = large._replace(kernel_height=launch.WIDEST, kernel_width=launch.WIDEST)
    names = {
        launch.fast_kernel_name(kernel, dtype, geometry, pack)
        for kernel in KERNELS
        for geometry in ((large, small, sparse, wide) if is_last else (large, small))
        for dtype in (launch.TYPES if is_last else [torch.float32, torch.float16])
        for pack in (1, launch.PACK_BYTES // dtype.itemsize)
    }
    # three blocks of 128 threads fit, at least
    assert_spills_nothing(architecture, launch.FAST_SOURCE, names, registers=168)


# Instructions, counted in machine code


# 31 loads of 8 bytes under way keep the L1 cache of an H100 busy for 250 cycles; see
# chapter 15


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
    assert instructions.count_text(SASS) == (3, 1, 0, 8, 0)
    outer = SASS.replace("@P2 BRA `(.L_x_2)", "IADD3 R0, R0, 0x1, RZ")
    assert instructions.count_text(outer) == (6, 1, 2, 5, 0)
    twice = SASS.replace("LDS R5, [R3]", "DFMA R8, R4, R4, R8")
    assert instructions.count_text(twice) == (6, 2, 1, 5, 0)
    straight = re.sub("@P. BRA", "MOV", SASS)
    assert instructions.count_text(straight) == (11, 2, 2, 0, 0)


def marked(instruction, marks=7, waits=()):
    bits = marks << 46 | sum(1 << 52 + scoreboard for scoreboard in waits)
    return (
        f"        /*0000*/  {instruction} ;  /* 0x{0:016x} */\n  /* 0x{bits:016x} */\n"
    )


def test_how_often_a_warp_waits_for_data():
    def trips(*lines):
        text = ".L_x_0:\n" + "".join(lines) + marked("@P0 BRA `(.L_x_0)")
        return instructions.count_text(text).round_trips

    first, second = marked("LDG.E R4, [R2]", marks=0), marked("LDG.E R5, [R3]", marks=1)
    use_first, use_second = (
        marked("FFMA R6, R4", waits=[0]),
        marked("FFMA R7, R5", waits=[1]),
    )
    assert trips(first, use_first, second, use_second) == 2
    assert trips(first, second, use_first, use_second) == 1
    assert trips(first, second, marked("FFMA R6, R4, R5", waits=[0, 1])) == 1
    # One load needs another's data.
    address = marked("LDG.E R5, [R4]", marks=1, waits=[0])
    assert trips(first, address, use_second) == 2
    # Each of the next pass, before it is needed.
    ahead = (
        use_first,
        first,
        use_second,
        second,
    )
    assert trips(*ahead) == 1
    assert trips(marked("FFMA R6, R4")) == 0


def test_how_many_warps_a_scheduler_holds():
    all_schedulers = instructions.SCHEDULERS * 32
    assert instructions.resident_warps(3 * all_schedulers, 32) == 3
    assert instructions.resident_warps(99 * all_schedulers, 32) == 16
    # 40 are given out.
    assert instructions.resident_warps(99 * all_schedulers, 33) == 12
    assert instructions.resident_warps(99 * all_schedulers, 80) == 6


def test_without_nvdisasm_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(instructions.shutil, "which", lambda name, path: None)
    with pytest.raises(ImportError, match="pip install nvidia-cuda-nvdisasm"):
        instructions.count(90, "", [])
