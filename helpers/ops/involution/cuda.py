"""Involution on a CUDA device: `kernels.cu` and `fast_kernels.cu`, compiled and launched by CuPy.

torch owns the tensors and the stream, CuPy compiles and launches. Nothing waits for the device, and
what is copied says `involution2d`. CuPy compiles a kernel at the first call for each type, memory
format, window (kernel size, stride, dilation) and number of channels and pixels a thread (with
several, a padding that is another remainder is another kernel), in about a second, and keeps it on
disk.
"""

from functools import cache, partial

import torch

from .geometry import KERNELS
from .launch import FAST_SOURCE, launch


def find_cupy():
    try:
        import cupy
    except ImportError as error:
        major = (torch.version.cuda or "13").split(".")[0]
        raise ImportError(
            f"involution2d of CUDA tensors needs CuPy: pip install 'cupy-cuda{major}x[ctk]'"
        ) from error
    return cupy


@cache
def _function(name, device, source):
    module = find_cupy().RawModule(code=source, options=("--std=c++17",), name_expressions=(name,))
    return module.get_function(name)


def _run(name, grid, block, arguments, index, source=FAST_SOURCE):
    cupy = find_cupy()
    import numpy  # CuPy cannot do without it

    integer = numpy.int32 if index == "int" else numpy.int64

    def value(argument):
        if isinstance(argument, torch.Tensor):
            return argument.data_ptr()
        return numpy.array([tuple(argument)], [(field, integer) for field in argument._fields])

    values = tuple(map(value, arguments.values()))
    device = next(iter(arguments.values())).device.index
    stream = torch.cuda.current_stream(device)
    if hasattr(cupy.cuda.Stream, "from_external"):
        stream = cupy.cuda.Stream.from_external(stream)
    else:  # CuPy 13
        stream = cupy.cuda.ExternalStream(stream.cuda_stream, device)
    with cupy.cuda.Device(device), stream:
        _function(name, device, source)(grid, block, values)


# The same three functions as in plain.py and cpu.py.
forward, grad_input, grad_weight = (
    partial(launch, kernel, run=_run, fast=True) for kernel in KERNELS
)
