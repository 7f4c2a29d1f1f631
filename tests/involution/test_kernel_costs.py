"""What a thread of the CUDA kernels costs, counted without a GPU."""

import re

import pytest
import torch

from helpers.lessons import involution_benchmark as benchmark
from helpers.lessons.cuda_on_cpu import instructions, involution
from helpers.lessons.cuda_on_cpu.every_architecture import architectures, compile_for
from helpers.ops.involution import launch
from helpers.ops.involution.geometry import KERNELS
from tests.needs import NO_NVRTC, needs_nvrtc

ARCHITECTURES = [] if NO_NVRTC else architectures()
each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


# Registers. How often a warp waits, and how many a scheduler holds, chapter 15 prints.


@needs_nvrtc
@each_architecture
def test_every_kernel_compiles_and_spills_nothing(architecture):
    # Every type, and 64-bit indices, for the oldest and the newest.
    is_last = architecture in (ARCHITECTURES[0], ARCHITECTURES[-1])
    readable = involution.all_names(index=launch.INDEXES if is_last else ["int"])
    large, small = benchmark.geometry_of(8, 64, 56), benchmark.geometry_of(8, 512, 7)
    sparse = large._replace(
        stride_height=2, stride_width=2, dilation_height=2, dilation_width=3
    )
    wide = large._replace(kernel_height=launch.WIDEST, kernel_width=launch.WIDEST)
    fast = {
        launch.fast_kernel_name(kernel, dtype, geometry, pack)
        for kernel in KERNELS
        for geometry in ((large, small, sparse, wide) if is_last else (large, small))
        for dtype in (launch.TYPES if is_last else [torch.float32, torch.float16])
        for pack in (1, launch.PACK_BYTES // dtype.itemsize)
    }
    for source, names, registers in (
        (launch.SOURCE, readable, 128),  # two blocks of 256 threads fit, at least
        (launch.FAST_SOURCE, fast, 168),  # three of 128
    ):
        kernels = compile_for(architecture, source, sorted(names))
        assert kernels.keys() == set(names)
        for name, resources in kernels.items():
            assert resources.spilled_bytes == 0 and resources.stack_bytes == 0, name
            assert 0 < resources.registers <= registers, name


# Instructions, counted in machine code


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


def test_without_nvdisasm_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(instructions.shutil, "which", lambda name, path: None)
    with pytest.raises(ImportError, match="pip install nvidia-cuda-nvdisasm"):
        instructions.count(90, "", [])
