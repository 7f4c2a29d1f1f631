"""The first run on a GPU: are the CUDA kernels right there, and was the model right?

    python -m tools.involution_first_gpu_run

First, output and both gradients are compared with plain PyTorch in float64 on the CPU.
Then forward in float32 is timed at the sizes of
`helpers/lessons/involution_benchmark.py`, in µs on the device alone, in turn on so many
copies of the tensors that its L2 cache holds none. The rows:

16 channels   `fast_kernels.cu`; a thread owns so many channels, and as many pixels as
 ...          `launch.py` chooses
constants     `constants.cu`, in blocks of 512 threads
published     the same in blocks of 1024, as the authors launch theirs
readable      `kernels.cu`

Beside each time stands the limit that was predicted for an H100, as in chapter 15 of
the course: the largest of what the loads, the instructions, the waits and the bytes
need, if a load takes 250 cycles. A time near its limit, up to twice as long, says that
the model was right.

On an NVIDIA H100 80GB HBM3, with torch 2.11.0 and CUDA 13.0, all cases were right, and
took at 64, 128, 256 and 512 channels, in µs:

16 channels    49.4   52.1   48.5   25.1
8 channels     23.8   22.3   20.8   13.7
4 channels     23.2   13.2   12.1   13.4
2 channels     22.8   12.9   10.6   12.3
constants      90.9   48.0   29.0   18.8
published      92.7   49.4   29.3   18.8
readable       98.4   54.3   33.2   21.4
"""

import sys
from functools import partial

import torch

from helpers.lessons import involution_benchmark as benchmark
from helpers.ops.involution import involution2d, plain
from helpers.ops.involution.backends import backend
from helpers.ops.involution.geometry import (
    ARRAYS,
    DTYPES,
    KERNELS,
    find_geometry,
    operands,
)
from helpers.ops.involution.launch import FAST_BLOCK, launch, plan

TOLERANCE = {  # what rounding may change, relative and absolute; sums are in float32
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
LIMITS = {  # µs on an H100, at each of benchmark.SHAPES
    "16 channels": (44.1, 44.1, 44.1, 16.8),
    "8 channels": (12.4, 12.4, 12.4, 8.8),
    "4 channels": (9.7, 4.9, 4.4, 8.8),
    "2 channels": (11.4, 5.7, 2.9, 3.5),
    "constants": (30.0, 15.0, 7.5, 5.0),
    "published": (30.0, 15.0, 7.5, 5.0),
    "readable": (61.1, 30.5, 15.3, 7.6),
}


def random(*size, device, dtype=torch.float32, offset=0):
    """Numbers whose first one lies `offset` elements into its memory."""
    generator = torch.Generator().manual_seed(sum(size))
    numbers = torch.randn(offset + torch.Size(size).numel(), generator=generator)
    return numbers.to(device, dtype)[offset:].view(size)


def pair(device, dtype=torch.float32, channels=8, **options):
    """An image of 8 x 9 in 2 groups, and its 3 x 3 filters for a padding of 1."""
    image = random(2, channels, 8, 9, device=device, dtype=dtype, **options)
    return image, random(2, 2, 3, 3, 8, 9, device=device, dtype=dtype, **options)


def cases(device):
    """(what could be wrong, input, weight, the window)."""
    for dtype in DTYPES:
        image, weight = pair(device, dtype)
        yield f"{dtype}", image, weight, {}
        last = map(benchmark.channels_last, (image, weight))
        yield f"{dtype}, channels last", *last, {}
        yield f"{dtype}, odd offsets", *pair(device, dtype, offset=1), {}
    image, weight = pair(device)
    gaps = torch.nn.functional.pad(image, (3, 2, 1, 1))[..., 1:-1, 3:-2]
    yield "gaps between rows", gaps, weight, {}
    yield "transposed", image.mT.contiguous().mT, weight.mT.contiguous().mT, {}
    odd = map(benchmark.channels_last, pair(device, channels=6))
    yield "an odd number of channels a group", *odd, {}
    strided = {"stride": 2, "dilation": 2}
    yield "stride", image, random(2, 2, 3, 3, 3, 4, device=device), strided
    wide = random(1, 2, 3, 13, device=device), random(1, 1, 1, 12, 5, 4, device=device)
    yield "taps beyond registers", *wide, {}
    small = random(2, 4, 2, 2, device=device), random(2, 2, 1, 1, 1, 1, device=device)
    yield "indices of 64 bits", *small, {"stride": 2**33, "padding": 0}
    yield "an empty batch", image[:0], weight[:0], {}
    huge = random(63 * 50_000 + 64, device=device)
    crop = huge.as_strided((1, 1, 64, 64), (50_000**2, 50_000**2, 50_000, 1))
    yield "strides of 64 bits", crop, random(1, 1, 3, 3, 64, 64, device=device), {}
    image, weight = pair(device)
    image[0, 0, 3, 4], image[1, 7, 0, 0] = torch.nan, torch.inf
    weight[:, :, 0, :, 0] = torch.inf  # the upper row of taps, at the upper border
    yield "nan and inf", image, weight, {}


def large_cases(device):
    """Where a thread owns as much as `launch.py` lets it."""
    for shape in benchmark.SHAPES:
        for dtype in DTYPES:
            _, (image, weight, _) = benchmark.case(*shape, device=device, dtype=dtype)
            yield f"{shape}, {dtype}", image, weight, {"padding": 3}


def both_ways(leaves, grad_output, window):
    output = involution2d(*leaves, **window)
    return output, *torch.autograd.grad(output, leaves, grad_output)


def compare(results, input, weight, grad_output, window):
    pairs = [(window[name],) * 2 for name in ("stride", "padding", "dilation")]
    geometry = find_geometry(input.shape, weight.shape, *pairs)
    exact = [tensor.detach().cpu().double() for tensor in (input, weight, grad_output)]
    for kernel, result in zip(KERNELS, results, strict=True):
        right = getattr(plain, kernel)(*operands(kernel, *exact), geometry)
        tolerance = TOLERANCE[result.dtype]
        torch.testing.assert_close(
            result.detach().cpu().double(),
            right,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda said, kernel=kernel: f"{ARRAYS[kernel][2]}: {said}",
        )


def in_a_graph(run):
    """Captured on a stream of its own, and replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # compiles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    graph.replay()
    return results


def check(input, weight, window, capture=False):
    window = {"stride": 1, "padding": 1, "dilation": 1} | window
    leaves = [tensor.detach().requires_grad_() for tensor in (input, weight)]
    grad_output = torch.randn_like(involution2d(input, weight, **window))
    run = partial(both_ways, leaves, grad_output, window)
    compare(in_a_graph(run) if capture else run(), *leaves, grad_output, window)


def wrong_cases(device):
    """A line for each case that is wrong."""
    every = [(*case, False) for case in cases(device)]
    if device == "cuda":
        every += [(*case, False) for case in large_cases(device)]
        every.append(("a CUDA graph", *pair(device), {}, True))
    for name, input, weight, window, capture in every:
        try:
            check(input, weight, window, capture)
        except Exception as error:  # whatever it is, the others are tried
            words = " ".join(str(error).split())[:200]
            yield f"WRONG: {name}: {type(error).__name__}: {words}"


def owning(channels, kernel, first, second, geometry):
    """The Plan of `launch.py`, but for the number of channels that a thread owns."""
    chosen = plan(kernel, first, second, geometry, fast=True)
    head, _, pixels, *others = chosen.name.split(", ")
    name = ", ".join((head, str(channels), pixels, *others))
    of_a_block = channels * int(pixels) * FAST_BLOCK[0]
    blocks = -(-torch.Size(chosen.size).numel() // of_a_block)
    return chosen._replace(name=name, names=(name,), grid=(blocks,))


def times():
    """A line for each row and size: what was measured, and the limit."""
    from helpers.ops.involution import cuda

    ways = {
        f"{channels} channels": partial(launch, make_plan=partial(owning, channels))
        for channels in (16, 8, 4, 2)
    }
    ways["constants"] = benchmark.launch_constants
    ways["published"] = partial(benchmark.launch_constants, block=1024)
    ways["readable"] = launch
    for number, shape in enumerate(benchmark.SHAPES):
        geometry, (input, weight, _) = benchmark.case(*shape, device="cuda")
        for row, way in ways.items():

            def forward(input, weight, way=way, geometry=geometry):
                return way("forward", input, weight, geometry, run=cuda._run)

            seconds = benchmark.flushed(forward, (input, weight))
            limit = LIMITS[row][number]
            yield f"{shape!s:14} {row:12} {1e6 * seconds:8.1f} µs, limit {limit}"


def main():
    name, reason = backend("cuda")
    if name != "cuda kernel":
        print(f"Nothing was run, because {reason}.")
        return 1
    print(torch.cuda.get_device_name(), torch.__version__)
    wrong = list(wrong_cases("cuda"))
    print(*wrong or ["all cases right"], sep="\n")
    for line in times():
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
