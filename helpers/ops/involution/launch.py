"""How the kernels are launched, on whatever `run` runs them.

The first are for every case, and read contiguous arrays: with strides they would be
twice as long, and they are there to be read. So where the second are not for it (rows
of more than WIDEST taps, indices of 64 bits), what is not contiguous is copied. The
second are compiled for one window each (kernel size, stride and dilation are constants
in them), index with int, and take strides.
"""

import math
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from .geometry import ARRAYS, result_format

SOURCE = Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")
FAST_SOURCE = SOURCE + Path(__file__).with_name("fast_kernels.cu").read_text(
    encoding="utf-8"
)
TYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}
INDEXES = ("int", "long long")
BLOCK = (32, 8)  # pixels, planes: 8 channels of a group read the same weights
# Small enough that a small result makes a block for each multiprocessor.
FAST_BLOCK = (128, 1)
CHANNELS = (16, 8, 4, 2, 1)  # how many of a group one fast thread may own
SUM_BYTES = 32  # the most of the result that such a thread owns: channels times pixels
PACK_BYTES = 16  # the most that one load brings of the channels of a pixel
# And of the pixels of a row: with 16, floats would gain what memory cannot bring.
PIXEL_BYTES = 8
WIDEST = 11  # a row of taps is held in registers
# SUM_BYTES and ENOUGH_THREADS weigh two things. A thread that owns more elements needs
# fewer loads and instructions for each. But it waits more often, and fewer other
# threads work meanwhile: 2^16 are four warps for each of an H100's 528 schedulers. On
# that GPU the choice was within 3 percent of the best, as
# `tools/involution_first_gpu_run.py` says. It was made from a count in machine code, and
# a model. Forward in float, at the sizes of
# the benchmark: channels x pixels of a thread; instructions per multiply-add; warps of
# a scheduler, times the loads of a warp that are under way; the largest of four limits
# in µs, if a load takes 250 cycles.
#
#                    most                       chosen
#     64 x 56²       16 x 2  1.8   5  44.1      4 x 2  2.2  54  9.7
#     128 x 28²      16 x 2  1.8   3  44.1      4 x 2  2.2  32  4.9
#     256 x 14²      16 x 2  1.8   1  44.1      2 x 2  2.7  50  2.9
#     512 x 7²       16 x 1  2.7   5  16.8      2 x 1  4.4  31  3.5
ENOUGH_THREADS = 2**16
# An int counts so far, with room for the threads past the end of a block.
MANY = 2**31 - 2**20


class Strides(NamedTuple):
    """The fields of Strides in fast_kernels.cu, in the same order."""

    sample: int
    channel: int
    kernel_row: int
    kernel_column: int
    row: int
    column: int


def kernel_name(kernel, dtype, index):
    """A template with its arguments, as in C++: involution2d_forward<float, int>."""
    return f"involution2d_{kernel}<{TYPES[dtype]}, {index}>"


def fast_kernel_name(kernel, dtype, geometry, pack=1, pixels=None):
    """As in C++: involution2d_forward_fast<float, 16, 2, 1, 1, 7, 7, 1, 1, 1, 1>.

    pack: how many channels a load brings; 1 where the pixels of a row are neighbours in
    memory.
    pixels: how many neighbours a thread owns; by default as many as of contiguous
    arrays.
    """
    s = geometry
    if pixels is None:
        most = PIXEL_BYTES // dtype.itemsize if pack == 1 else 1
        pixels = pixels_per_thread(kernel, geometry, most)
    template = pixels, s.padding_width % pixels, pack, s.kernel_height, s.kernel_width
    template += s.stride_height, s.stride_width, s.dilation_height, s.dilation_width
    if kernel != "grad_weight":
        owned = channels_per_thread(kernel, geometry, dtype.itemsize, pack, pixels)
        template = owned, *template
    return (
        f"involution2d_{kernel}_fast<{', '.join(map(str, (TYPES[dtype], *template)))}>"
    )


def pixels_per_thread(kernel, geometry, most):
    """Neighbours in a row: up to `most`, if that saves loads and keeps ENOUGH_THREADS."""
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


def channels_per_thread(kernel, geometry, itemsize, pack, pixels):
    """`pack` if it is more than 1, else the most that keeps ENOUGH_THREADS."""
    fitting = (
        count
        for count in CHANNELS
        if geometry.channels // geometry.groups % count == 0
        and count * pixels * itemsize <= SUM_BYTES
        and _threads(kernel, geometry, count * pixels) >= ENOUGH_THREADS
    )
    return pack if pack > 1 else next(fitting, 1)


def fast_threads(kernel, geometry, itemsize, pack, pixels):
    """How many threads the fast kernel has work for."""
    if kernel == "grad_weight":
        return _threads(kernel, geometry, pixels)
    channels = channels_per_thread(kernel, geometry, itemsize, pack, pixels)
    return _threads(kernel, geometry, pixels * channels)


def _threads(kernel, geometry, each):
    """How many threads, if each owns that many elements or rows of taps."""
    elements = math.prod(geometry.size_of(ARRAYS[kernel][2]))
    return elements // (
        each * (geometry.kernel_width if kernel == "grad_weight" else 1)
    )


class Plan(NamedTuple):
    """A launch without the memory of its arrays: the same for all that lie alike."""

    name: str  # of the kernel, with its template arguments
    names: tuple  # of this and of what arrays at other addresses would need
    index: str
    grid: tuple
    block: tuple
    copied: tuple  # of first and second: whether it has to be copied, to be contiguous
    size: tuple  # of the result
    memory_format: torch.memory_format
    arrays: tuple  # the names of the parameters that are arrays
    structures: dict  # the others, {name: a Geometry or Strides}

    def arguments(self, tensors):
        """{parameter: a 1-d tensor, a Geometry or Strides}, in the kernel's order."""
        return dict(
            zip(self.arrays, map(_line, tensors), strict=True), **self.structures
        )


def launch(kernel, first, second, geometry, run, make_plan=None, **options):
    """Allocate the result of `kernel`, have it filled, and return it.

    kernel: one of KERNELS. first, second: its two arrays, in the order of its
    parameters.
    run: called with a Plan and the three tensors, the result last.
    make_plan, options: `plan`, or what returns the same; and what it takes beside
    these.
    """
    if geometry.batch == 0:  # no other size can be 0
        return first.new_empty(geometry.size_of(ARRAYS[kernel][2]))
    planned = (make_plan or plan)(kernel, first, second, geometry, **options)
    result = torch.empty(
        planned.size,
        dtype=first.dtype,
        device=first.device,
        memory_format=planned.memory_format,
    )
    copy_first, copy_second = planned.copied
    first = first.contiguous() if copy_first else first
    second = second.contiguous() if copy_second else second
    run(planned, (first, second, result))
    return result


def plan(kernel, first, second, geometry, index=None, fast=False):
    """The Plan for these arrays, whose dtype, strides and addresses count.

    index: "int" or "long long"; by default the smallest that is safe.
    fast: whether to take the kernel of `fast_kernels.cu` where there can be one.
    """
    # No field of the geometry is larger than one of these, unless a window of one tap
    # has it.
    largest = max(
        *map(
            math.prod, (geometry.input_size, geometry.weight_size, geometry.output_size)
        ),
        geometry.height + 2 * geometry.padding_height,
        geometry.width + 2 * geometry.padding_width,
        *geometry,
    )
    index = index or ("int" if largest < MANY else "long long")
    size = geometry.size_of(ARRAYS[kernel][2])
    if fast and index == "int" and geometry.kernel_width <= WIDEST:
        return _plan_fast(kernel, first, second, geometry, size)
    planes, pixels = math.prod(size[:-2]), size[-2] * size[-1]
    return Plan(
        name=kernel_name(kernel, first.dtype, index),
        names=(kernel_name(kernel, first.dtype, index),),
        index=index,
        grid=_grid(-(-pixels // BLOCK[0]) * -(-planes // BLOCK[1]), size),
        block=BLOCK,
        copied=(True, True),  # if they are not contiguous
        size=size,
        memory_format=torch.contiguous_format,
        arrays=ARRAYS[kernel],
        structures={"s": geometry},
    )


def _plan_fast(kernel, first, second, geometry, size):
    tensors, itemsize = (first, second), first.itemsize
    addresses = tuple(tensor.data_ptr() // itemsize for tensor in tensors)
    copied, pack, pixels = _choose(kernel, tensors, geometry, addresses)
    # Only these can differ.
    alike = [0] + [2**i for i in range(4) if 2**i * itemsize < PACK_BYTES]
    others = (
        _choose(kernel, tensors, geometry, pair)[1:]
        for pair in product(alike, repeat=2)
    )
    names = {fast_kernel_name(kernel, first.dtype, geometry, *each) for each in others}
    name = fast_kernel_name(kernel, first.dtype, geometry, pack, pixels)
    memory_format = result_format(kernel, first)
    result = torch.empty(size, device="meta", memory_format=memory_format)
    laid = [
        torch.empty(tensor.shape, device="meta") if copy else tensor
        for tensor, copy in zip(tensors, copied, strict=True)
    ]
    threads = fast_threads(kernel, geometry, itemsize, pack, pixels)
    return Plan(
        name=name,
        names=tuple(sorted(names | {name})),
        index="int",
        grid=_grid(-(-threads // FAST_BLOCK[0]), size),
        block=FAST_BLOCK,
        copied=copied,
        size=size,
        memory_format=memory_format,
        arrays=ARRAYS[kernel],
        structures={"s": geometry}
        | {
            f"strides_of_{array}": _strides(tensor)
            for array, tensor in zip(ARRAYS[kernel], (*laid, result), strict=True)
        },
    )


def _choose(kernel, tensors, geometry, addresses):
    """(whether each is copied, pack, pixels), for these first elements.

    Copied is what leads further than an int counts, and a tapped image whose columns
    lie apart, if no load brings two of its channels. (An odd number of them, say: read
    as they lie, each weight would serve one channel, and the loads would cost more than
    the copy.)
    """
    copied = [not _within_reach(tensor, geometry) for tensor in tensors]

    def neighbours(which, dim, most_bytes):
        tensor = tensors[which]
        if copied[which]:
            return most_bytes // tensor.itemsize if dim == -1 else 1
        return _neighbours(tensor, dim, most_bytes, addresses[which])

    images = [which for which in (0, 1) if tensors[which].dim() == 4]
    channels = geometry.channels // geometry.groups
    pack = math.gcd(channels, *(neighbours(which, 1, PACK_BYTES) for which in images))
    tapped = images[-1]  # is read at every tap; of another image any strides will do
    if pack == 1 and tensors[tapped].stride(3) != 1:
        copied[tapped] = True
    # 1 if pack is not.
    most = min(neighbours(which, -1, PIXEL_BYTES) for which in (0, 1))
    if result_format(kernel, tensors[0]) == torch.channels_last:
        most = 1  # pixels of the result lie apart, and are not written together
    return tuple(copied), pack, pixels_per_thread(kernel, geometry, most)


def _neighbours(tensor, dim, most_bytes, address):
    """How many elements along a dimension one load can bring."""
    most = most_bytes // tensor.itemsize if tensor.stride(dim) == 1 else 1
    others = set(range(tensor.dim())) - {dim % tensor.dim()}
    steps = [tensor.stride(other) for other in others if tensor.shape[other] > 1]
    return math.gcd(most, address, *steps)


def _within_reach(tensor, geometry):
    """Whether an int counts as far as the strides lead, the padding included."""
    padded = geometry.width + 2 * geometry.padding_width
    return _reach(tensor) + padded * _strides(tensor).column < MANY


def _reach(tensor):
    return sum(
        (n - 1) * stride
        for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _line(tensor):
    """The memory of a tensor: an address is all that a kernel gets."""
    return tensor.as_strided((_reach(tensor) + 1,), (1,))


def _strides(tensor):
    """With 0 for the unused stride of a dimension of size 1."""
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    sample, channel, *others = (stride if size > 1 else 0 for stride, size in steps)
    return Strides(sample, channel, *[0] * (4 - len(others)), *others)


def _grid(blocks, size):
    if blocks >= 2**31:
        raise ValueError(
            f"a grid has at most 2^31 - 1 blocks, and a result of {tuple(size)} would "
            "need"
            f" {blocks}: split the batch"
        )
    return (blocks,)
