"""Cases in which involution on a CUDA device could be wrong, tried by `first_gpu_run.py`.

Each is a function of a device. It raises what there is to say if a result is wrong, and
NotHereError if it cannot be tried. What comes out is compared with plain PyTorch in float64 on the
CPU: the output, and both gradients.
"""

import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from . import benchmark, plain
from .benchmark import channels_last
from .functional import involution2d
from .geometry import ARRAYS, DTYPES, KERNELS, find_geometry, operands

TOLERANCE = {  # what rounding may change, relative and absolute; sums are in float32
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
GENERATOR = torch.Generator().manual_seed(0)
BUSY = (
    4096  # a product of such matrices keeps a GPU busy for longer than a launch takes
)


class NotHereError(Exception):
    """Why a case was not tried."""


def tensors(device, dtype=torch.float32, kernel=(3, 3), channels=8, offsets=(0, 0)):
    """(input, weight) for 2 images of 8 x 9 in 2 groups, and a padding of 1. offsets: of the first
    element of each in its memory, in elements."""
    out = [8 + 2 - kernel[0] + 1, 9 + 2 - kernel[1] + 1]
    pair = []
    for size, offset in zip(
        ((2, channels, 8, 9), (2, 2, *kernel, *out)), offsets, strict=True
    ):
        flat = torch.randn(offset + torch.Size(size).numel(), generator=GENERATOR)
        pair.append(flat.to(device, dtype)[offset:].view(size))
    return pair


def forward_and_backward(leaves, grad_output, **window):
    output = involution2d(*leaves, **window)
    return output, *torch.autograd.grad(output, leaves, grad_output)


def ready(input, weight, grad_output=None, stride=1, padding=1, dilation=1):
    """The arguments of `forward_and_backward`, and what it should return, in float64 on the CPU.

    The tensors stay as they lie in memory.
    """
    window = {
        "stride": (stride,) * 2,
        "padding": (padding,) * 2,
        "dilation": (dilation,) * 2,
    }
    geometry = find_geometry(input.shape, weight.shape, *window.values())
    if grad_output is None:
        grad_output = torch.randn(geometry.output_size, generator=GENERATOR).to(input)
    exact = [tensor.detach().cpu().double() for tensor in (input, weight, grad_output)]
    expected = [
        getattr(plain, kernel)(*operands(kernel, *exact), geometry)
        for kernel in KERNELS
    ]
    leaves = [tensor.detach().requires_grad_() for tensor in (input, weight)]
    return partial(forward_and_backward, leaves, grad_output, **window), expected


def compare(actual, expected):
    for kernel, one, other in zip(KERNELS, actual, expected, strict=True):
        tolerance = TOLERANCE[one.dtype]
        torch.testing.assert_close(
            one.detach().cpu().double(),
            other,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda said, kernel=kernel: (
                f"{ARRAYS[kernel][2]}: {said.splitlines()[-1]}"
            ),
        )


def check(input, weight, grad_output=None, **window):
    call, expected = ready(input, weight, grad_output, **window)
    compare(call(), expected)


def all_dtypes(device):
    for dtype in DTYPES:
        check(*tensors(device, dtype))


def every_channels_last(device):
    for dtype in DTYPES:
        check(*map(channels_last, tensors(device, dtype)))


def odd_offsets(device):
    for dtype in DTYPES:
        for offsets in ((1, 0), (0, 1), (2, 3)):
            check(*tensors(device, dtype, offsets=offsets))


def gaps_between_rows(device):
    input, weight = tensors(device)
    check(torch.nn.functional.pad(input, (3, 2, 1, 1))[..., 1:-1, 3:-2], weight)


def transposed(device):
    check(*(tensor.mT.contiguous().mT for tensor in tensors(device)))


def expanded_gradient(device):
    input, weight = tensors(device)
    check(input, weight, torch.ones((), device=device).expand(input.shape))


def stride_and_dilation(device):
    input, _ = tensors(device)
    weight = torch.randn(2, 2, 3, 3, 3, 4, generator=GENERATOR).to(device)
    check(input, weight, stride=2, padding=1, dilation=2)


def odd_channels_a_group(device):
    check(*map(channels_last, tensors(device, channels=6)))


def one_group_of_many_channels(device):
    input = torch.randn(1, 64, 5, 5, generator=GENERATOR).to(device)
    check(input, torch.randn(1, 1, 3, 3, 5, 5, generator=GENERATOR).to(device))


def taps_beyond_registers(device):
    input = torch.randn(1, 2, 3, 13, generator=GENERATOR).to(device)
    check(input, torch.randn(1, 1, 1, 12, 5, 4, generator=GENERATOR).to(device))


def indices_of_64_bits(device):
    input = torch.randn(2, 4, 2, 2, generator=GENERATOR).to(device)
    weight = torch.randn(2, 2, 1, 1, 1, 1, generator=GENERATOR).to(device)
    check(input, weight, stride=2**33, padding=0)


def empty_batch(device):
    input, weight = tensors(device)
    check(input[:0], weight[:0])


def crop_of_a_huge_image(device):
    """64 x 64 of 50,000 x 50,000: the strides of sample and channel are more than an int holds."""
    rows = torch.randn(63 * 50_000 + 64, generator=GENERATOR).to(device)
    crop = rows.as_strided((1, 1, 64, 64), (50_000**2, 50_000**2, 50_000, 1))
    check(crop, torch.randn(1, 1, 3, 3, 64, 64, generator=GENERATOR).to(device))


def subnormals(device):
    """Exact in float64 and float16; 0 on CUDA in the others, as `cuda.py` says."""
    for dtype, value in zip(DTYPES, (1e-310, 1e-40, 1e-6, 1e-40), strict=True):
        input = torch.full((1, 2, 4, 4), value, dtype=dtype, device=device)
        one = torch.ones(1, 1, 1, 1, 4, 4, dtype=dtype, device=device)
        flushed = input.is_cuda and dtype in (torch.float32, torch.bfloat16)
        expected = torch.zeros_like(input) if flushed else input
        assert involution2d(input, one).equal(expected), f"{dtype}"


def nan_and_inf(device):
    """They reach the pixels whose window holds them; a weight of the padding reaches nothing."""
    input, weight = tensors(device)
    input[0, 0, 3, 4], input[1, 7, 0, 0] = torch.nan, torch.inf
    weight[:, :, 0, :, 0] = torch.inf  # the upper row of taps, at the upper border
    check(input, weight)


VALUES = (  # right on any device
    all_dtypes,
    every_channels_last,
    odd_offsets,
    gaps_between_rows,
    transposed,
    expanded_gradient,
    stride_and_dilation,
    odd_channels_a_group,
    one_group_of_many_channels,
    taps_beyond_registers,
    indices_of_64_bits,
    empty_batch,
    crop_of_a_huge_image,
    subnormals,
    nan_and_inf,
)


def sizes_of_the_benchmark(device):
    """Where a thread owns as much as `launch.py` lets it; smaller ones leave it less."""
    for shape in benchmark.SHAPES:
        for dtype in DTYPES:
            _, (input, weight, _) = benchmark.case(*shape, device=device, dtype=dtype)
            check(input, weight, padding=3)
            check(channels_last(input), channels_last(weight), padding=3)


def second_device(device):
    if torch.cuda.device_count() < 2:
        raise NotHereError("there is one device")
    with torch.cuda.device(0):
        check(*tensors("cuda:1"))


def backward_on_a_side_stream(device):
    call, expected = ready(*tensors(device))
    busy = torch.ones(BUSY, BUSY, device=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            busy = busy @ busy  # a launch on another stream would be too early
        actual = call()
    torch.cuda.current_stream().wait_stream(stream)
    compare(actual, expected)


def graph_of_forward_and_backward(device):
    """What is captured lies at other offsets than what ran before, and gets new numbers."""
    size = {"kernel": (5, 3)}  # of no other case: all that it needs is compiled here
    warm_up, _ = ready(*tensors(device, **size))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    input, weight = tensors(device, offsets=(1, 1), **size)
    grad_output = torch.randn(2, 8, 6, 9, generator=GENERATOR).to(device)
    call, _ = ready(input, weight, grad_output)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    input.copy_(2 * input)
    graph.replay()
    compare(captured, ready(input, weight, grad_output)[1])


def compile_with_reduce_overhead(device):
    if not find_spec("triton"):
        raise NotHereError("it needs Triton")
    call, expected = ready(*tensors(device))
    leaves, grad_output = call.args
    compiled = torch.compile(
        partial(involution2d, **call.keywords), mode="reduce-overhead", fullgraph=True
    )
    for _ in range(4):  # it warms up, captures, and replays
        torch.compiler.cudagraph_mark_step_begin()
        output = compiled(*leaves)
        grads = torch.autograd.grad(output, leaves, grad_output)
        compare((output, *grads), expected)


def compute_sanitizer(device):
    found = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer",
        path=Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin"),
    )
    if not found:
        raise NotHereError("it is not installed")
    command = [
        found,
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        f"{__package__}.first_gpu_run",
        "--values",
    ]
    alone = os.environ | {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"
    }  # each tensor has its bounds
    try:
        done = subprocess.run(
            command, env=alone, capture_output=True, text=True, timeout=180
        )
    except subprocess.TimeoutExpired:
        raise NotHereError("it took more than three minutes") from None
    assert done.returncode == 0, done.stdout[-300:]


ON_A_GPU = (
    sizes_of_the_benchmark,
    second_device,
    backward_on_a_side_stream,
    graph_of_forward_and_backward,
    compile_with_reduce_overhead,
    compute_sanitizer,
)


def correctness(cases, device):
    """(how many are right, the lines that say which are wrong, those that say what was left out)"""
    right, wrong, left_out = 0, [], []
    for case in cases:
        name = case.__name__.replace("_", " ")
        GENERATOR.manual_seed(0)
        try:
            case(device)
            right += 1
        except NotHereError as why:
            left_out.append(f"left out: {name}, because {why}")
        except (
            Exception
        ) as error:  # whatever it is, the others are tried, and the screen is shown
            lines = str(error).split("\n")
            wrong.append(f"WRONG: {name}: {type(error).__name__}: {lines[0][:200]}")
    return right, wrong, left_out
