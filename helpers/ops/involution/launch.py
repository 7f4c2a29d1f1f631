"""How the kernels of `kernels.cu` are launched, on whatever `run` runs them."""

import math
from pathlib import Path

import torch

from .geometry import ARRAYS

SOURCE = Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")
TYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}
INDEXES = ("int", "long long")
BLOCK = (32, 8)  # pixels, planes: 8 channels of a group read the same weights


def kernel_name(kernel, dtype, index):
    """A template with its arguments, as C++ spells it: involution2d_forward<float, int>"""
    return f"involution2d_{kernel}<{TYPES[dtype]}, {index}>"


def launch(kernel, first, second, geometry, run, block=BLOCK, index=None):
    """Allocate the result of `kernel`, have it filled, and return it.

    kernel: one of KERNELS. first, second: its two arrays, in the order of its parameters.
    run: called with name, grid, block, arguments {parameter: tensor or Geometry}, index.
    index: "int" or "long long"; by default the smallest that is safe.
    """
    first, second = first.contiguous(), second.contiguous()
    size = geometry.size_of(ARRAYS[kernel][2])
    result = first.new_empty(size)
    if result.numel() == 0:
        return result
    # Threads past the end compute an index too, so leave room for a block's worth of them.
    largest = max(
        first.numel(),
        second.numel(),
        result.numel(),
        geometry.height + 2 * geometry.padding_height,
        geometry.width + 2 * geometry.padding_width,
    )
    index = index or ("int" if largest < 2**31 - 2**20 else "long long")
    planes, pixels = math.prod(size[:-2]), size[-2] * size[-1]
    grid = (-(-pixels // block[0]) * -(-planes // block[1]),)
    arguments = dict(zip(ARRAYS[kernel], (first, second, result), strict=True), s=geometry)
    run(kernel_name(kernel, first.dtype, index), grid, block, arguments, index)
    return result
