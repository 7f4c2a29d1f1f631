"""Involution by PyTorch's unfold and autograd, in float64; the sizes that are tried."""

import math
import random
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from helpers.lessons.involution_benchmark import channels_last
from helpers.ops.involution.geometry import KERNELS, Geometry, operands
from tools.involution_first_gpu_run import TOLERANCE

each_kernel = pytest.mark.parametrize("kernel", KERNELS)
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def make_geometry(
    batch,
    channels,
    groups,
    size,
    kernel,
    stride=(1, 1),
    padding=(0, 0),
    dilation=(1, 1),
):
    """A Geometry, or None if the kernel does not fit. The last five are pairs."""
    out = [
        (size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    if min(out) < 1:
        return None
    return Geometry(
        batch, channels, groups, *size, *out, *kernel, *stride, *padding, *dilation
    )


def window(geometry):
    """stride, padding and dilation, by name."""
    s = geometry
    return {
        "stride": (s.stride_height, s.stride_width),
        "padding": (s.padding_height, s.padding_width),
        "dilation": (s.dilation_height, s.dilation_width),
    }


def random_geometry(rng):
    def pair(smallest, largest):
        return rng.randint(smallest, largest), rng.randint(smallest, largest)

    groups = rng.randint(1, 3)
    return make_geometry(
        batch=rng.randint(1, 2),
        channels=groups * rng.randint(1, 3),
        groups=groups,
        size=pair(1, 7),
        kernel=pair(1, 4),
        stride=pair(1, 3),
        padding=pair(0, 3),
        dilation=pair(1, 3),
    ) or random_geometry(rng)


def random_geometries(count, seed):
    rng = random.Random(seed)
    return [random_geometry(rng) for _ in range(count)]


def sizes_of(geometry):
    """Of input, weight and grad_output."""
    return geometry.input_size, geometry.weight_size, geometry.output_size


def random_tensors(geometry, dtype=torch.float32, seed=0):
    """input, weight and grad_output."""
    generator = torch.Generator().manual_seed(seed)
    wide = {"generator": generator, "dtype": torch.float64}
    return [torch.randn(size, **wide).to(dtype) for size in sizes_of(geometry)]


def random_operands(kernel, geometry, dtype=torch.float32):
    """The two of them that a kernel reads."""
    return operands(kernel, *random_tensors(geometry, dtype))


def by_name(sizes):
    return {name: make_geometry(*each) for name, each in sizes.items()}


# Each is batch, channels, groups, (height, width), kernel, stride, padding, dilation.
SMALL = by_name(
    {
        "one by one": (1, 1, 1, (1, 1), (1, 1)),
        "same size": (2, 4, 2, (5, 6), (3, 3), (1, 1), (1, 1)),
        "all options": (2, 6, 3, (9, 11), (3, 2), (2, 1), (1, 1), (1, 2)),
        # One load of a fast CUDA kernel brings several pixels of a row, or channels of
        # a group.
        "even rows": (1, 8, 1, (6, 8), (3, 3), (1, 1), (1, 1)),
        "four channels a group": (1, 4, 1, (6, 6), (3, 3), (1, 1), (1, 1)),
        "three channels a group": (1, 6, 2, (6, 5), (3, 3), (1, 1), (1, 1)),
        "eight channels a group": (2, 16, 2, (7, 5), (3, 3), (1, 1), (1, 2)),
        "two channels a group": (1, 4, 2, (8, 9), (2, 3), (2, 3), (1, 2), (1, 2)),
        "dilation": (1, 6, 3, (9, 12), (3, 2), (1, 1), (3, 2), (3, 2)),
        "stride and dilation": (2, 4, 2, (5, 8), (2, 3), (1, 2), (1, 1), (2, 1)),
        "full blocks": (4, 4, 4, (8, 8), (1, 1)),
    }
)
# What the C++ kernels treat in their own way: many tiles down and across, more channels
# than they work on at once, rows of less than a vector, remainders of every kind.
LARGE = by_name(
    {
        "tiles": (1, 32, 1, (40, 141), (5, 3), (1, 1), (2, 1)),
        "tiles and strides": (1, 10, 2, (41, 300), (3, 5), (2, 3), (3, 2), (2, 1)),
        "long strides": (1, 4, 1, (20, 19), (2, 2), (7, 5), (1, 1), (3, 4)),
        "many channels": (1, 150, 1, (12, 37), (3, 3), (1, 1), (1, 1)),
        "one channel a group": (2, 5, 5, (23, 9), (5, 5), (1, 1), (2, 2)),
        "far taps": (1, 16, 1, (24, 25), (3, 3), (1, 1), (24, 24), (24, 24)),
    }
)


# The same values in other strides. What lies between them is nan.


def with_gaps(tensor):
    """Neighbours in a row stay neighbours; rows, planes and samples lie apart.

    A row that is a multiple of 4 wide begins at a multiple of 4.
    """
    return F.pad(tensor, (4, 4, 1, 0, 0, 1), value=math.nan)[..., :-1, 1:, 4:-4]


def transposed(tensor):
    return tensor.mT.contiguous().mT


def images_channels_last(tensor):
    return channels_last(tensor) if tensor.dim() == 4 else tensor


def channels_last_with_gaps(tensor):
    return channels_last(F.pad(tensor, (1, 2, 1, 0), value=math.nan))[..., 1:, 1:-2]


def unfolded(input, weight, stride=1, padding=0, dilation=1):
    """The usual formulation, with PyTorch's own unfold and autograd."""
    batch, groups, *kernel, height, width = weight.shape
    columns = F.unfold(input, kernel, dilation, padding, stride)
    pixels = math.prod(kernel), height, width
    columns = columns.reshape(batch, groups, input.shape[1] // groups, *pixels)
    product = columns * weight.reshape(batch, groups, 1, *pixels)
    return product.sum(3).flatten(1, 2)


@cache
def case_and_results(geometry, dtype=torch.float32, seed=0):
    """(input, weight, grad_output), and {kernel: what `unfolded` makes of them}."""
    case = random_tensors(geometry, dtype, seed)
    input, weight, grad_output = (t.double() for t in case)
    leaves = input.requires_grad_(), weight.requires_grad_()
    output = unfolded(*leaves, **window(geometry))
    results = output.detach(), *torch.autograd.grad(output, leaves, grad_output)
    return case, dict(zip(KERNELS, results, strict=True))


def random_cases(count, dtype):
    """(geometry, (input, weight, grad_output), {kernel: its result})."""
    for number, geometry in enumerate(random_geometries(count, str(dtype))):
        yield geometry, *case_and_results(geometry, dtype, number)


def assert_close(actual, expected, dtype):
    torch.testing.assert_close(
        actual.cpu().double(),
        expected.double(),
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype],
    )
