"""The kernels of `kernels.cu` and `fast_kernels.cu` on the CPU, and their names."""

from functools import partial

from helpers.ops.involution.geometry import KERNELS
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
    """The names of the kernels of `kernels.cu`, for the given index and tensor types."""
    return [kernel_name(kernel, t, i) for kernel in KERNELS for t in types for i in index]


def runner(source):
    """The `run` that `launch` takes, for a text like that of `kernels.cu`."""

    def run(name, grid, block, arguments, index, source=source):
        emulator.run(source, name, grid, block, arguments)

    return run


def fast(kernel, first, second, geometry):
    """What `cuda.py` does for a kernel, on the CPU."""
    return launch(kernel, first, second, geometry, runner(FAST_SOURCE), fast=True)


# The same three functions as in plain.py and cpu.py, by the readable kernels.
forward, grad_input, grad_weight = (
    partial(launch, kernel, run=runner(SOURCE)) for kernel in KERNELS
)
