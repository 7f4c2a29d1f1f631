"""How the kernels of `kernels.cu` and `fast_kernels.cu` are launched, on whatever `run` runs them.

The first are for every case. The second are compiled for one window each (kernel size, stride and
dilation are constants in them), and index with int.
"""

import math
from pathlib import Path

import torch

from .geometry import ARRAYS

SOURCE = Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")
FAST_SOURCE = SOURCE + Path(__file__).with_name("fast_kernels.cu").read_text(encoding="utf-8")
TYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}
INDEXES = ("int", "long long")
BLOCK = (32, 8)  # pixels, planes: 8 channels of a group read the same weights
FAST_BLOCK = (128, 1)  # small enough that a small result makes a block for each multiprocessor
CHANNELS = (16, 8, 4, 2, 1)  # how many of a group one fast thread may own
WIDEST = 11  # a row of taps is held in registers
# A large GPU has some 132 multiprocessors, each of which starts 4 warps of 32 threads at a time.
ENOUGH_THREADS = 2**14


def kernel_name(kernel, dtype, index):
    """A template with its arguments, as C++ spells it: involution2d_forward<float, int>"""
    return f"involution2d_{kernel}<{TYPES[dtype]}, {index}>"


def fast_kernel_name(kernel, dtype, geometry, channels=None):
    """The same in `fast_kernels.cu`: involution2d_forward_fast<float, 16, 7, 7, 1, 1, 1, 1>

    channels: of CHANNELS, by default the one that `launch` takes for this geometry.
    """
    s = geometry
    window = s.kernel_height, s.kernel_width, s.stride_height, s.stride_width
    window += s.dilation_height, s.dilation_width
    if kernel != "grad_weight":
        window = channels or channels_per_thread(kernel, geometry), *window
    return f"involution2d_{kernel}_fast<{', '.join(map(str, (TYPES[dtype], *window)))}>"


def channels_per_thread(kernel, geometry):
    """The most of CHANNELS that divides a group and leaves ENOUGH_THREADS."""
    batch, channels, height, width = geometry.size_of(ARRAYS[kernel][2])
    return next(
        (
            count
            for count in CHANNELS
            if channels // geometry.groups % count == 0
            and batch * channels * height * width // count >= ENOUGH_THREADS
        ),
        1,
    )


def _fast_threads(kernel, geometry):
    """How many threads the fast kernel has work for."""
    elements = math.prod(geometry.size_of(ARRAYS[kernel][2]))
    if kernel == "grad_weight":
        return elements // geometry.kernel_width
    return elements // channels_per_thread(kernel, geometry)


def _fast_is_better(kernel, geometry):
    # One thread a row of taps is too few threads for a small map of few groups.
    return geometry.kernel_width <= WIDEST and (
        kernel != "grad_weight" or _fast_threads(kernel, geometry) >= ENOUGH_THREADS
    )


def launch(kernel, first, second, geometry, run, block=BLOCK, index=None, fast=False):
    """Allocate the result of `kernel`, have it filled, and return it.

    kernel: one of KERNELS. first, second: its two arrays, in the order of its parameters.
    run: called with name, grid, block, arguments {parameter: tensor or Geometry}, index.
    index: "int" or "long long"; by default the smallest that is safe.
    fast: whether to take the kernel of `fast_kernels.cu` where it is the better one.
    """
    first, second = first.contiguous(), second.contiguous()
    size = geometry.size_of(ARRAYS[kernel][2])
    result = first.new_empty(size)
    if result.numel() == 0:
        return result
    # Threads past the end compute an index too, so leave room for a block's worth of them.
    # No field of the geometry is larger than one of these, unless a window of one tap has it.
    largest = max(
        first.numel(),
        second.numel(),
        result.numel(),
        geometry.height + 2 * geometry.padding_height,
        geometry.width + 2 * geometry.padding_width,
        *geometry,
    )
    index = index or ("int" if largest < 2**31 - 2**20 else "long long")
    arguments = dict(zip(ARRAYS[kernel], (first, second, result), strict=True), s=geometry)
    if fast and index == "int" and _fast_is_better(kernel, geometry):
        name, block = fast_kernel_name(kernel, first.dtype, geometry), FAST_BLOCK
        grid = (-(-_fast_threads(kernel, geometry) // block[0]),)
    else:
        name = kernel_name(kernel, first.dtype, index)
        planes, pixels = math.prod(size[:-2]), size[-2] * size[-1]
        grid = (-(-pixels // block[0]) * -(-planes // block[1]),)
    if grid[0] >= 2**31:
        raise ValueError(
            f"a grid has at most 2^31 - 1 blocks, and a result of {tuple(size)} would need"
            f" {grid[0]}: split the batch"
        )
    run(name, grid, block, arguments, index)
    return result
