"""For the first who has a GPU: are the CUDA kernels right, and was the model of their times?

    python -m helpers.ops.involution.first_gpu_run

No GPU has run these kernels yet. The command takes a few minutes and ends with one screen, made to
be pasted into a report. First, correctness: output and both gradients against plain PyTorch in
float64 on the CPU, for the cases of `gpu_cases.py`, and for those of values once more in
compute-sanitizer, where it is installed. Then times of forward in float32, on the device alone, at
the sizes of `benchmark.py`. The rows:

16 channels   `fast_kernels.cu`; a thread owns so many channels, and as many pixels as `launch.py`
 ...          chooses
constants     `constants.cu`, in blocks of 512 threads
published     the same in blocks of 1024, as the authors launch theirs
readable      `kernels.cu`

Warm is a call on the same tensors again and again; flushed, one whose tensors the L2 cache has lost
since the last one. In brackets stands the limit that was predicted, as in the course's chapter 15:
on an H100, the largest of what the loads, the instructions and the waits need, if a load takes 250
cycles; for flushed, what the bytes need, too. A time agrees if it is between 0.9 and 2 times its
limit. What `launch.py` chooses agrees if no other number of channels needs less than 0.95 of its
flushed time.

The exit status: 0 if no case is wrong, whatever the times; 1 if one is; 77, with which Automake's
tests say that they were skipped, without an NVIDIA GPU or CuPy.
"""

import argparse
import platform
import sys
import time
from functools import partial

import torch

from . import benchmark, cuda
from .backends import backend
from .functional import involution2d
from .gpu_cases import ON_A_GPU, VALUES, correctness, ready, tensors
from .launch import FAST_BLOCK, launch, plan

RIGHT, WRONG, LEFT_OUT = 0, 1, 77
WITHIN = 0.9, 2.0
CHANNELS = (16, 8, 4, 2)
LIMITS = {  # µs on an H100, (warm, flushed) at each of benchmark.SHAPES
    "16 channels": ((44.1, 44.1), (44.1, 44.1), (44.1, 44.1), (16.8, 16.8)),
    "8 channels": ((12.4, 12.4), (12.4, 12.4), (12.4, 12.4), (8.8, 8.8)),
    "4 channels": ((9.1, 9.7), (4.5, 4.9), (4.4, 4.4), (8.8, 8.8)),
    "2 channels": ((11.4, 11.4), (5.7, 5.7), (2.9, 2.9), (3.5, 3.5)),
    "constants": ((30.0, 30.0), (15.0, 15.0), (7.5, 7.5), (5.0, 5.0)),
    "published": ((30.0, 30.0), (15.0, 15.0), (7.5, 7.5), (5.0, 5.0)),
    "readable": ((61.1, 61.1), (30.5, 30.5), (15.3, 15.3), (7.6, 7.6)),
}


def owning(channels, kernel, first, second, geometry):
    """The Plan that `launch.py` makes, but for the number of channels that a thread owns."""
    chosen = plan(kernel, first, second, geometry, fast=True)
    head, _, pixels, *others = chosen.name.split(", ")
    name = ", ".join((head, str(channels), pixels, *others))
    blocks = -(
        -torch.Size(chosen.size).numel() // (channels * int(pixels) * FAST_BLOCK[0])
    )
    return chosen._replace(name=name, names=(name,), grid=(blocks,))


def ways(geometry, run):
    """{row: forward as a function of input and weight}, in the order of LIMITS."""
    rows = {
        f"{channels} channels": partial(launch, make_plan=partial(owning, channels))
        for channels in CHANNELS
    }
    rows["constants"] = benchmark.launch_constants
    rows["published"] = partial(benchmark.launch_constants, block=1024)
    rows["readable"] = launch
    return {
        row: lambda input, weight, way=way: way(
            "forward", input, weight, geometry, run=run
        )
        for row, way in rows.items()
    }


def measure(shape):
    """{row: (warm, flushed)} in µs, and how many channels `launch.py` chooses."""
    geometry, (input, weight, _) = benchmark.case(*shape, device="cuda")
    chosen = plan("forward", input, weight, geometry, fast=True).name.split(", ")[1]
    times = {}
    for row, way in ways(geometry, cuda._run).items():
        seconds = benchmark.warm_and_flushed(way, (input, weight))
        times[row] = tuple(1e6 * each for each in seconds)
    return times, int(chosen)


def verdict(microseconds, limit):
    low, high = WITHIN
    return "agrees" if low * limit <= microseconds <= high * limit else "contradicts"


def table(shape, limits, times, chosen):
    """Lines. limits: {row: (warm, flushed)} in µs, or None where the model is of another GPU."""
    batch, channels, size = shape
    width = 28 if limits else 8
    lines = [
        f"{f'{batch} x {channels} x {size}²':12} {'warm':{width}} {'flushed':{width}}".rstrip()
    ]
    for row, pair in times.items():
        cells = [f"{time:<8.1f}" for time in pair]
        if limits:
            cells = [
                f"{time:<8.1f}({limit}) {verdict(time, limit)}"
                for time, limit in zip(pair, limits[row], strict=True)
            ]
        lines.append(f"{row:12} {cells[0]:{width}} {cells[1]}".rstrip())
    flushed = {count: times[f"{count} channels"][1] for count in CHANNELS}
    best = min(flushed, key=flushed.get)
    agrees = "agrees" if 0.95 * flushed[chosen] <= flushed[best] else "contradicts"
    return [*lines, f"chosen: {chosen} channels; fastest: {best} channels; {agrees}"]


def is_modelled(properties):
    """Whether LIMITS are of this GPU: an H100 of the fastest kind, whose memory has 3.35 TB/s."""
    return "H100" in properties.name and properties.multi_processor_count == 132


def all_times():
    """Lines: a table for each size, then what a call costs the processor."""
    limits = LIMITS if is_modelled(torch.cuda.get_device_properties("cuda")) else None
    modelled = "" if limits else "; no limits, which are of another GPU: an H100 SXM"
    lines = [
        f"µs of forward, float32; copies {benchmark.copy_bandwidth() / 1e9:.0f} GB/s{modelled}"
    ]
    for number, shape in enumerate(benchmark.SHAPES):
        at_shape = limits and {row: pairs[number] for row, pairs in limits.items()}
        lines += table(shape, at_shape, *measure(shape))
    small = tensors("cuda")
    host = [lambda: involution2d(*small, padding=1), ready(*small)[0]]
    without, both = (1e6 * benchmark.host_seconds(call) for call in host)
    return [*lines, f"host: {without:.0f} µs a call, {both:.0f} with both gradients"]


def about():
    """A line that says what this machine is."""
    properties = torch.cuda.get_device_properties("cuda")
    return (
        f"{properties.name}, sm_{properties.major}{properties.minor}, L2"
        f" {properties.L2_cache_size >> 20} MiB; {benchmark.cpu_name()}; Python"
        f" {platform.python_version()}, torch {torch.__version__}, CuPy"
        f" {cuda.find_cupy().__version__}"
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}")
    parser.add_argument(
        "--values", action="store_true", help="only the cases of VALUES"
    )
    options = parser.parse_args(arguments)
    name, reason = backend("cuda")
    if name != "cuda kernel":
        print(
            f"Nothing was run, because {reason}. With an NVIDIA GPU and CuPy, this would compare"
            f" {len(VALUES) + len(ON_A_GPU)} cases with plain PyTorch, and time the kernels beside"
            " what a model predicts."
        )
        return LEFT_OUT
    start = time.perf_counter()
    cases = VALUES if options.values else (*VALUES, *ON_A_GPU)
    right, wrong, left_out = correctness(cases, "cuda")
    lines = [about(), f"{right} cases right, {len(wrong)} wrong", *wrong, *left_out]
    if not options.values:
        try:
            lines += all_times()
        except Exception as error:  # what was found before is shown, whatever it is
            lines.append(f"no times: {type(error).__name__}: {error}")
    print(*lines, f"{time.perf_counter() - start:.0f} seconds", sep="\n")
    return WRONG if wrong else RIGHT


if __name__ == "__main__":
    sys.exit(main())
