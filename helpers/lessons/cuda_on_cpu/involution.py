"""The kernels of `helpers/ops/involution/kernels.cu` on the CPU, and their names."""

from functools import partial

from helpers.ops.involution.geometry import KERNELS
from helpers.ops.involution.launch import INDEXES, SOURCE, TYPES, kernel_name, launch

from . import emulator


def all_names(index=INDEXES, types=tuple(TYPES)):
    """The names of the kernels of `kernels.cu`, for the given index and tensor types."""
    return [kernel_name(kernel, t, i) for kernel in KERNELS for t in types for i in index]


def runner(source):
    """The `run` that `launch` takes, for a text like that of `kernels.cu`."""

    def run(name, grid, block, arguments, index):
        emulator.run(source, name, grid, block, arguments)

    return run


# The same three functions as in plain.py, cpu.py and cuda.py.
forward, grad_input, grad_weight = (
    partial(launch, kernel, run=runner(SOURCE)) for kernel in KERNELS
)
