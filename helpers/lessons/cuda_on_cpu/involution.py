"""The kernels of `kernels.cu` and `fast_kernels.cu` on the CPU, and their names."""

import math
from functools import partial

import torch

from helpers.ops.involution.geometry import ARRAYS, KERNELS, operands
from helpers.ops.involution.launch import (
    FAST_SOURCE,
    INDEXES,
    SOURCE,
    TYPES,
    kernel_name,
    launch,
)

from . import emulator


def all_names(index=INDEXES, types=tuple(TYPES)):
    """The names of the kernels of `kernels.cu`, for these index and tensor types."""
    return [
        kernel_name(kernel, t, i) for kernel in KERNELS for t in types for i in index
    ]


def runner(source):
    """The `run` that `launch` takes, for a text like that of `kernels.cu`."""

    def run(plan, tensors, source=source):
        emulator.run(source, plan.name, plan.grid, plan.block, plan.arguments(tensors))

    return run


def fast(kernel, first, second, geometry):
    """What `cuda.py` does for a kernel, on the CPU."""
    return launch(kernel, first, second, geometry, runner(FAST_SOURCE), fast=True)


# The same three functions as in plain.py and cpu.py, by the readable kernels.
forward, grad_input, grad_weight = (
    partial(launch, kernel, run=runner(SOURCE)) for kernel in KERNELS
)


def reads(kernel, geometry, fast=False):
    """{array: how many loads of it one thread makes}.

    The thread owns a pixel in the middle of the first plane.
    """
    sizes = geometry.input_size, geometry.weight_size, geometry.output_size
    tensors = operands(kernel, *map(torch.zeros, sizes))
    pixel = geometry.out_height // 2 * geometry.out_width + geometry.out_width // 2
    seen = []

    def run(plan, tensors):
        block = (math.prod(plan.block), 1)  # the first plane alone, whatever the kernel
        # As fast_kernel_name writes it.
        pixels = int(plan.name.split(", ")[-9]) if fast else 1
        watch = divmod(pixel // pixels, block[0])
        only = range(watch[0], watch[0] + 1)
        launched = FAST_SOURCE, plan.name, plan.grid, block, plan.arguments(tensors)
        seen.extend(emulator.run(*launched, watch=watch, blocks=only))

    launch(kernel, *tensors, geometry, run, fast=fast)
    arrays = [array for action, array, _ in seen if action == "read"]
    return {array: arrays.count(array) for array in ARRAYS[kernel][:2]}


def sectors(kernel, first, second, geometry, source=FAST_SOURCE):
    """Sectors of 32 bytes that a warp reads for one multiply-add a thread.

    Memory and caches answer in sectors: 4 are enough for 32 neighbouring floats. first,
    second: as for `fast`, of sizes at which all threads of a warp in the middle do the
    same.
    """
    s = geometry
    taps = s.kernel_height * s.kernel_width
    # Of each element.
    summands = s.channels // s.groups if kernel == "grad_weight" else taps
    result = []

    def run(plan, tensors):
        middle = plan.grid[0] // 2
        only = range(middle, middle + 1)
        launched = source, plan.name, plan.grid, plan.block, plan.arguments(tensors)
        threads = [
            emulator.run(*launched, watch=(middle, lane), blocks=only)
            for lane in range(32)
        ]
        touched = written = 0  # sectors by the warp, elements by each thread
        for step in zip(*threads, strict=True):  # what the threads do at once
            places = [i if isinstance(i, range) else [i] for _, _, i in step]
            if step[0][0] == "write":
                written += len(places[0])
            else:
                elements = {element for place in places for element in place}
                touched += len(
                    {element * first.element_size() // 32 for element in elements}
                )
        result.append(touched / (written * summands))

    launch(kernel, first, second, geometry, run, fast=True)
    return result[0]
