"""How the kernels of `kernels.cu` and `fast_kernels.cu` are launched, on whatever `run` runs them.

The first are for every case, and read contiguous arrays: with strides they would be twice as long,
and they are there to be read. So where the second are not for it (rows of more than WIDEST taps,
indices of 64 bits), what is not contiguous is copied. The second are compiled for one window each
(kernel size, stride and dilation are constants in them), index with int, and take strides.
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch

from .geometry import ARRAYS, empty_result

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
SUMS = 32  # the most that such a thread holds: channels times pixels
PACK_BYTES = 16  # the most that one load brings of the channels of a pixel
PIXEL_BYTES = 8  # and of the pixels of a row: with 16, floats would gain what memory cannot bring
WIDEST = 11  # a row of taps is held in registers
# A large GPU has some 132 multiprocessors, each of which starts 4 warps of 32 threads at a time.
ENOUGH_THREADS = 2**14
FEWEST = 16  # channels of a part of a group: fewer are no work for a thread of grad_weight
MANY = 2**31 - 2**20  # an int counts so far, with room for the threads past the end of a block


class Strides(NamedTuple):  # the fields of Strides in fast_kernels.cu, in the same order
    sample: int
    channel: int
    kernel_row: int
    kernel_column: int
    row: int
    column: int


def kernel_name(kernel, dtype, index):
    """A template with its arguments, as C++ spells it: involution2d_forward<float, int>"""
    return f"involution2d_{kernel}<{TYPES[dtype]}, {index}>"


def fast_kernel_name(kernel, dtype, geometry, pack=1, pixels=None):
    """As `fast_kernels.cu` has it: involution2d_forward_fast<float, 16, 2, 1, 1, 7, 7, 1, 1, 1, 1>

    pack: how many channels a load brings; 1 where the pixels of a row are neighbours in memory.
    pixels: how many neighbours a thread owns; by default as many as of contiguous arrays.
    """
    s = geometry
    if pixels is None:
        most = PIXEL_BYTES // dtype.itemsize if pack == 1 else 1
        pixels = pixels_per_thread(kernel, geometry, most)
    template = pixels, s.padding_width % pixels, pack, s.kernel_height, s.kernel_width
    template += s.stride_height, s.stride_width, s.dilation_height, s.dilation_width
    if kernel != "grad_weight":
        template = channels_per_thread(kernel, geometry, pack, pixels), *template
    return f"involution2d_{kernel}_fast<{', '.join(map(str, (TYPES[dtype], *template)))}>"


def pixels_per_thread(kernel, geometry, most):
    """How many neighbours in a row: up to `most`, if that saves loads and leaves ENOUGH_THREADS."""
    s = geometry
    pixels = math.gcd(most, s.width, s.out_width)
    if kernel == "grad_input" and s.stride_width > 1:
        return 1  # neighbours have no tap in common
    reach = (s.kernel_width - 1) * s.dilation_width + 1
    while pixels > 1 and (
        (pixels - 1) * s.stride_width + reach > pixels * s.kernel_width  # columns, taps
        or _threads(kernel, geometry, pixels) < ENOUGH_THREADS
    ):
        pixels //= 2
    return pixels


def channels_per_thread(kernel, geometry, pack=1, pixels=1):
    """`pack` if it is more than 1, else the most that divides a group and leaves ENOUGH_THREADS."""
    fitting = (
        count
        for count in CHANNELS
        if geometry.channels // geometry.groups % count == 0
        and count * pixels <= SUMS
        and _threads(kernel, geometry, count * pixels) >= ENOUGH_THREADS
    )
    return pack if pack > 1 else next(fitting, 1)


def fast_threads(kernel, geometry, pack=1, pixels=1):
    """How many threads the fast kernel has work for."""
    if kernel == "grad_weight":
        return _threads(kernel, geometry, pixels)
    return _threads(kernel, geometry, pixels * channels_per_thread(kernel, geometry, pack, pixels))


def _threads(kernel, geometry, each):
    """How many, if each owns so many elements of the result, or rows of taps of grad_weight."""
    elements = math.prod(geometry.size_of(ARRAYS[kernel][2]))
    return elements // (each * (geometry.kernel_width if kernel == "grad_weight" else 1))


def launch(kernel, first, second, geometry, run, block=BLOCK, index=None, fast=False):
    """Allocate the result of `kernel`, have it filled, and return it.

    kernel: one of KERNELS. first, second: its two arrays, in the order of its parameters.
    run: called with name, grid, block, arguments {parameter: a tensor of one dimension, a Geometry
        or Strides}, index.
    index: "int" or "long long"; by default the smallest that is safe.
    fast: whether to take the kernel of `fast_kernels.cu` where there can be one.
    """
    size = geometry.size_of(ARRAYS[kernel][2])
    if math.prod(size) == 0:
        return first.new_empty(size)
    # No field of the geometry is larger than one of these, unless a window of one tap has it.
    largest = max(
        *map(math.prod, (geometry.input_size, geometry.weight_size, geometry.output_size)),
        geometry.height + 2 * geometry.padding_height,
        geometry.width + 2 * geometry.padding_width,
        *geometry,
    )
    index = index or ("int" if largest < MANY else "long long")
    if fast and index == "int" and geometry.kernel_width <= WIDEST:
        return _launch_fast(kernel, first, second, geometry, run)
    tensors = [first.contiguous(), second.contiguous(), first.new_empty(size)]
    planes, pixels = math.prod(size[:-2]), size[-2] * size[-1]
    grid = _grid(-(-pixels // block[0]) * -(-planes // block[1]), size)
    arguments = dict(zip(ARRAYS[kernel], map(_line, tensors), strict=True), s=geometry)
    run(kernel_name(kernel, first.dtype, index), grid, block, arguments, index)
    return tensors[2]


def _launch_fast(kernel, first, second, geometry, run):
    """Copies a tapped image whose columns lie apart, if no load brings two of its channels.

    An odd number of them, say: read as they lie, each weight would serve one channel, and the loads
    would cost more than the copy.
    """
    parts = _parts(geometry) if kernel == "grad_weight" else 1
    if parts > 1:
        wide = torch.promote_types(first.dtype, torch.float32)  # as the kernels sum
        split = geometry._replace(groups=geometry.groups * parts)
        sums = _launch_fast(kernel, first.to(wide), second.to(wide), split, run)
        return sums.unflatten(1, (geometry.groups, parts)).sum(2).to(first.dtype)
    tensors = [_within_reach(tensor, geometry) for tensor in (first, second)]
    images = [number for number, tensor in enumerate(tensors) if tensor.dim() == 4]
    channels = geometry.channels // geometry.groups
    pack = math.gcd(channels, *(_neighbours(tensors[i], 1, PACK_BYTES) for i in images))
    tapped = tensors[images[-1]]  # is read at every tap; of another image any strides will do
    if pack == 1 and tapped.stride(3) != 1:
        tensors[images[-1]] = tapped.contiguous()
    most = min(_neighbours(tensor, -1, PIXEL_BYTES) for tensor in tensors)  # 1 if pack is not
    pixels = pixels_per_thread(kernel, geometry, most)
    tensors.append(empty_result(kernel, first, geometry))
    blocks = -(-fast_threads(kernel, geometry, pack, pixels) // FAST_BLOCK[0])
    grid = _grid(blocks, tensors[2].shape)
    arguments = dict(zip(ARRAYS[kernel], map(_line, tensors), strict=True), s=geometry)
    for name, tensor in zip(ARRAYS[kernel], tensors, strict=True):
        arguments[f"strides_of_{name}"] = _strides(tensor)
    name = fast_kernel_name(kernel, first.dtype, geometry, pack, pixels)
    run(name, grid, FAST_BLOCK, arguments, "int")
    return tensors[2]


def _parts(geometry):
    """Into how many parts each group is split, where there are too few threads of grad_weight."""
    parts = 1
    while (
        fast_threads("grad_weight", geometry) * parts < ENOUGH_THREADS
        and geometry.channels // geometry.groups % (2 * parts * FEWEST) == 0
    ):
        parts *= 2
    return parts


def _neighbours(tensor, dim, most_bytes):
    """How many elements along a dimension one load can bring: 1, unless they are so in memory."""
    itemsize = tensor.element_size()
    most = most_bytes // itemsize if tensor.stride(dim) == 1 else 1
    others = set(range(tensor.dim())) - {dim % tensor.dim()}
    steps = [tensor.stride(other) for other in others if tensor.shape[other] > 1]
    return math.gcd(most, tensor.data_ptr() // itemsize, *steps)


def _within_reach(tensor, geometry):
    """The tensor, or a contiguous copy if its strides lead further than an int counts."""
    reach = _reach(tensor) + (geometry.width + 2 * geometry.padding_width) * tensor.stride(-1)
    return tensor if reach < MANY else tensor.contiguous()


def _reach(tensor):
    return sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _line(tensor):
    """The memory of a tensor: an address is all that a kernel gets."""
    return tensor.as_strided((_reach(tensor) + 1,), (1,))


def _strides(tensor):
    sample, channel, *others = tensor.stride()
    return Strides(sample, channel, *[0] * (4 - len(others)), *others)


def _grid(blocks, size):
    if blocks >= 2**31:
        raise ValueError(
            f"a grid has at most 2^31 - 1 blocks, and a result of {tuple(size)} would need"
            f" {blocks}: split the batch"
        )
    return (blocks,)
