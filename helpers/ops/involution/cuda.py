"""Involution on CUDA: `kernels.cu` and `fast_kernels.cu`, through CuPy.

torch owns the tensors and the stream, CuPy compiles and launches. Nothing waits for the
device, and what is copied says `involution2d`.

CuPy compiles a kernel at the first call for each type, memory format, window (kernel
size, stride, dilation) and number of channels and pixels a thread (with several, a
padding that is another remainder is another kernel), in about a second. Those for the
same arrays at less aligned addresses are compiled and loaded with it, so that a call
that is captured in a CUDA graph does neither after a call that was not, whatever the
offsets of its tensors. CuPy 14.2 and later keep them all on disk; older ones may
compile what is made of templates again in each process:
https://github.com/cupy/cupy/pull/10177

CuPy adds -ftz=true: in float32 and bfloat16, numbers below 1.2e-38 count as 0 here, not
on a CPU.
"""

from functools import cache, lru_cache, partial

import torch

from .geometry import KERNELS
from .launch import FAST_SOURCE, launch, plan

MOST_PLANS = 1000
_plans = {}


def find_cupy():
    try:
        import cupy
    except ImportError as error:
        major = (torch.version.cuda or "13").split(".")[0]
        raise ImportError(
            "involution2d of CUDA tensors needs CuPy: pip install "
            f"'cupy-cuda{major}x[ctk]'"
        ) from error
    return cupy


@cache
def _functions(names, device, source):
    """{name: function} for `device`, which must be the current one.

    All are asked for at once: a kernel is loaded onto the device when it is, not with
    its module.
    https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/lazy-loading.html
    """
    module = find_cupy().RawModule(
        code=source, options=("--std=c++17",), name_expressions=names
    )
    return {name: module.get_function(name) for name in names}


@lru_cache(maxsize=MOST_PLANS)
def _values(index, structures):
    import numpy  # CuPy cannot do without it

    integer = numpy.int32 if index == "int" else numpy.int64
    return tuple(
        numpy.array(
            [tuple(structure)], [(field, integer) for field in structure._fields]
        )
        for structure in structures
    )


def _run(plan, tensors, source=FAST_SOURCE):
    cupy = find_cupy()
    device = tensors[0].device.index
    stream = torch.cuda.current_stream(device)
    if hasattr(cupy.cuda.Stream, "from_external"):
        stream = cupy.cuda.Stream.from_external(stream)
    else:  # CuPy 13
        stream = cupy.cuda.ExternalStream(stream.cuda_stream, device)
    structures = _values(plan.index, tuple(plan.structures.values()))
    values = (*(tensor.data_ptr() for tensor in tensors), *structures)
    with cupy.cuda.Device(device), stream:
        function = _functions(plan.names, device, source)[plan.name]
        function(plan.grid, plan.block, values)


def _plan(kernel, first, second, geometry):
    """`plan`, made once for what it depends on."""
    key = (
        kernel,
        geometry,
        first.dtype,
        first.stride(),
        second.stride(),
        first.data_ptr() % 16,
        second.data_ptr() % 16,
    )
    if key not in _plans:
        if len(_plans) == MOST_PLANS:
            _plans.clear()
        _plans[key] = plan(kernel, first, second, geometry, fast=True)
    return _plans[key]


# The same three functions as in plain.py and cpu.py.
forward, grad_input, grad_weight = (
    partial(launch, kernel, run=_run, make_plan=_plan) for kernel in KERNELS
)
