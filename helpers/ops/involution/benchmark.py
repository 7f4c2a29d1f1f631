"""Time and memory of involution, forward and backward, beside `unfold`.

    python -m helpers.ops.involution.benchmark [--dtype float16] [--threads 2] [--seconds 1]
                                               [--channels-last] [--scaling]

Kernels 7 x 7, stride 1, 16 channels a group, batch 8. The rows:

unfold     `torch.nn.functional.unfold`, multiply, sum: the authors' first implementation
plain      `plain.py`
cpu        `cpu_kernels.cpp` (without a GPU, with a compiler)
constants  `constants.cu`, the design of the authors' CUDA kernels (with a GPU)
readable   `kernels.cu` (with a GPU)
cuda       `fast_kernels.cu`, as `involution2d` launches it (with a GPU)

The columns: milliseconds of forward, and of forward and backward together; how many times as fast
as unfold, together; the peak of the memory that the two allocate, results included, in units of
input + weight + output; with a GPU, the bytes that have to be read and written at least, over the
time, as a share of what a copy on the device reaches.

With a GPU, times are the device's, of calls captured in a CUDA graph: again and again on the same
tensors, some of which its L2 cache holds, and, in the column "flushed", in turn on so many copies
that it holds none. The share of a copy and the times as fast as unfold are of the latter. What both
cost the processor stands apart, in the column "host".

`--scaling` measures the same on the CPU for kernels of 3 x 3 to 9 x 9, on 1 thread, 2, 4, ... up to
`--threads`, at one shape.

With `--scaling --threads 2`, on two cores of an AMD EPYC, milliseconds of forward and backward
together (unfold loses much of its time to fresh memory, which that machine hands out slowly):

channels, size    unfold  plain   cpu   times as fast as unfold
 64, 56 x 56         509   25.6   5.1   99
128, 28 x 28         241   15.2   2.6   93
256, 14 x 14         121   11.8   1.4   87
512,  7 x 7           61   12.7   0.9   65

128, 28 x 28      unfold, 1 thread   cpu, 1 thread   unfold, 2 threads   cpu, 2 threads
3 x 3                           21             1.7                  15              1.1
5 x 5                          148             2.9                 124              1.7
7 x 7                          343             4.5                 243              2.8
9 x 9                          584             7.7                 412              4.2

The peak of the memory: unfold 29.8, plain 1.1, cpu 1.0.
"""

import argparse
import math
import os
import platform
import time
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.profiler import profile
from torch.utils.benchmark import Timer

from . import cpu, plain
from .geometry import ARRAYS, KERNELS, Geometry, operands
from .launch import SOURCE, TYPES, Plan, launch

SHAPES = ((8, 64, 56), (8, 128, 28), (8, 256, 14), (8, 512, 7))
SCALING_SHAPE = (8, 128, 28)
KERNEL, GROUP_CHANNELS = 7, 16
LAUNCHES = 50  # in one CUDA graph, at least: so many that its own launch does not count
CONSTANTS = (
    "N C G H W HO WO KH KW SH SW PH PW DH DW".split()
)  # a Geometry, in constants.cu


def unfold_involution(input, weight):
    batch, channels, height, width = input.shape
    groups = weight.shape[1]
    kernel = weight.shape[2]
    unfolded = F.unfold(input, kernel, padding=kernel // 2)
    unfolded = unfolded.view(
        batch, groups, channels // groups, kernel**2, height, width
    )
    weight = weight.reshape(batch, groups, 1, kernel**2, height, width)
    return (weight * unfolded).sum(3).view(batch, channels, height, width)


def constants_source(geometry):
    values = ", ".join(
        f"{name} = {x}" for name, x in zip(CONSTANTS, geometry, strict=True)
    )
    body = Path(__file__).with_name("constants.cu").read_text(encoding="utf-8")
    return f"{SOURCE}\nconstexpr int {values};\n{body}"


@cache
def plan_constants(kernel, dtype, geometry, block):
    """The Plan of `constants.cu` for a geometry, and its source."""
    size = geometry.size_of(ARRAYS[kernel][2])
    name = f"constants_{kernel}<{TYPES[dtype]}>"
    plan = Plan(
        name=name,
        names=(name,),
        index="int",
        grid=(-(-math.prod(size) // block),),
        block=(block, 1),
        copied=(True, True),
        parts=1,
        size=size,
        memory_format=torch.contiguous_format,
        arrays=ARRAYS[kernel],
        structures={"s": geometry},
    )
    return plan, constants_source(geometry)


def launch_constants(kernel, first, second, geometry, run, block=512):
    """The same as `launch`, with `constants.cu` made for this geometry."""
    plan, source = plan_constants(kernel, first.dtype, geometry, block)
    run = partial(run, source=source)
    return launch(kernel, first, second, geometry, run, make_plan=lambda *_: plan)


def with_autograd(input, weight, grad_output):
    input, weight = input.requires_grad_(), weight.requires_grad_()

    def forward():
        return unfold_involution(input, weight)

    return forward, lambda: torch.autograd.grad(forward(), (input, weight), grad_output)


def with_kernels(kernels, geometry, input, weight, grad_output):
    calls = [
        partial(run, *operands(kernel, input, weight, grad_output), geometry)
        for kernel, run in zip(KERNELS, kernels, strict=True)
    ]
    return calls[0], lambda: tuple(call() for call in calls)


def milliseconds(function, threads, seconds):
    timer = Timer("function()", globals={"function": function}, num_threads=threads)
    return timer.blocked_autorange(min_run_time=seconds).median * 1e3


def device_seconds(calls, rounds=20):
    """Of one of the calls, on the device alone: the best of several replays of a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = math.inf
    for _ in range(rounds):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best / len(calls)


def warm_and_flushed(function, tensors):
    """Seconds of function(*tensors) on the device, where its L2 cache may hold the tensors, and
    where calls on copies of them have taken their place."""
    in_cache = torch.cuda.get_device_properties(tensors[0].device).L2_cache_size
    count = 1 + -(-4 * in_cache // sum(tensor.nbytes for tensor in tensors))
    copies = [[tensor.clone() for tensor in tensors] for _ in range(count)]
    kept = []

    def call(copy):
        results = function(*copy)
        results = results if isinstance(results, tuple) else (results,)
        kept.extend(
            result.detach() for result in results
        )  # or the next would overwrite them

    calls = [partial(call, copy) for copy in copies] * -(-LAUNCHES // count)
    return device_seconds([partial(function, *tensors)] * LAUNCHES), device_seconds(
        calls
    )


def host_seconds(call, rounds=20, calls=10):
    """Of the processor, until a call returns: the device has not begun with most of them."""
    best = math.inf
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def peak_bytes(function, device):
    """The largest amount of memory that `function` held at once, beyond what was there before."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        results = function()  # noqa: F841 (kept until the peak is read)
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # or the profiler writes two lines a run
    with profile(profile_memory=True) as profiler:
        results = function()  # noqa: F841
    events = [
        e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"
    ]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()  # negative when memory is freed
        peak = max(peak, now)
    return peak


def geometry_of(batch, channels, size, kernel=KERNEL):
    groups, padding = channels // GROUP_CHANNELS, kernel // 2
    sizes = (size,) * 4
    return Geometry(
        batch, channels, groups, *sizes, kernel, kernel, 1, 1, padding, padding, 1, 1
    )


def case(batch, channels, size, kernel=KERNEL, device="cpu", dtype=torch.float32):
    """A Geometry, and input, weight and grad_output for it."""
    geometry = geometry_of(batch, channels, size, kernel)
    sizes = geometry.input_size, geometry.weight_size, geometry.output_size
    torch.manual_seed(0)
    return geometry, [torch.randn(shape, device=device).to(dtype) for shape in sizes]


def channels_last(tensor):
    """An image in that format, or a weight as a convolution in that format returns it."""
    flat = tensor.flatten(1, -3).contiguous(memory_format=torch.channels_last)
    return flat.unflatten(1, tensor.shape[1:-2])


def paths(device):
    """{row: the three kernels}, of what can run there."""
    rows = {"plain": (plain.forward, plain.grad_input, plain.grad_weight)}
    if device == "cuda":
        from . import cuda

        rows |= {
            "constants": [
                partial(launch_constants, kernel, run=cuda._run) for kernel in KERNELS
            ],
            "readable": [partial(launch, kernel, run=cuda._run) for kernel in KERNELS],
            "cuda": (cuda.forward, cuda.grad_input, cuda.grad_weight),
        }
    elif cpu.available():
        rows["cpu"] = (cpu.forward, cpu.grad_input, cpu.grad_weight)
    return rows


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.split(":", 1)[1].strip()
                for line in file
                if line.startswith("model name")
            ]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def scaling(options, dtype):
    batch, channels, size = SCALING_SHAPE
    print(
        f"\nkernel sizes and threads at {batch},{channels},{size}²: milliseconds, both"
    )
    print(
        " ".join(
            f"{name:>13}" for name in ("kernel", "threads", "unfold", "cpu", "x unfold")
        )
    )
    for kernel in (3, 5, 7, 9):
        geometry, tensors = case(batch, channels, size, kernel, dtype=dtype)
        kernels = (cpu.forward, cpu.grad_input, cpu.grad_weight)
        runs = (
            with_autograd(*(t.clone() for t in tensors))[1],
            with_kernels(kernels, geometry, *tensors)[1],
        )
        threads = 1
        while threads <= options.threads:
            unfold, ours = (milliseconds(run, threads, options.seconds) for run in runs)
            row = (f"{kernel} x {kernel}", threads, f"{unfold:.2f}", f"{ours:.2f}")
            print(
                " ".join(f"{cell:>13}" for cell in (*row, f"{unfold / ours:.2f}")),
                flush=True,
            )
            threads *= 2


def copy_bandwidth():
    """Bytes per second, read and written, of a copy on the device."""
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / device_seconds([lambda: target.copy_(source)] * 5)


def device_times(pair, tensors):
    """Milliseconds of a row on a GPU: forward, both, the processor's for both, both if flushed."""
    forward, _ = warm_and_flushed(lambda *of: pair(*of)[0](), tensors)
    both, flushed = warm_and_flushed(lambda *of: pair(*of)[1](), tensors)
    return [
        1e3 * seconds
        for seconds in (forward, both, host_seconds(pair(*tensors)[1]), flushed)
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m helpers.ops.involution.benchmark")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=["float32", "float64", "float16", "bfloat16"],
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="per figure, on the CPU"
    )
    parser.add_argument(
        "--channels-last", action="store_true", help="in that memory format"
    )
    parser.add_argument(
        "--scaling", action="store_true", help="kernel sizes and threads, too"
    )
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        bandwidth = copy_bandwidth()
        print(
            f"{torch.cuda.get_device_name()}, copies {bandwidth / 1e9:.0f} GB/s, {options.dtype}"
        )
        columns = [
            "forward",
            "both",
            "host",
            "flushed",
            "x unfold",
            "memory",
            "share of copy",
        ]
    else:
        print(
            f"{cpu_name()}, {options.threads} threads, {options.dtype}; no CUDA device"
        )
        columns = ["forward", "both", "x unfold", "memory"]

    print(" ".join(f"{name:>13}" for name in ("shape", "path", *columns)))
    rows = paths(device)
    ratios = {name: [] for name in rows}
    for batch, channels, size in SHAPES:
        geometry, tensors = case(batch, channels, size, device=device, dtype=dtype)
        if options.channels_last:
            tensors = list(map(channels_last, tensors))
        input, weight, _ = tensors
        one_each = (2 * input.numel() + weight.numel()) * input.element_size()
        pairs = {"unfold": with_autograd}
        pairs |= {
            name: partial(with_kernels, kernels, geometry)
            for name, kernels in rows.items()
        }
        for name, pair in pairs.items():
            own = [
                tensor.clone() for tensor in tensors
            ]  # those of unfold require gradients
            both = pair(*own)[1]
            if device == "cuda":
                times = device_times(pair, own)
            else:
                times = [
                    milliseconds(f, options.threads, options.seconds)
                    for f in pair(*own)
                ]
            if name == "unfold":
                unfold_time = times[-1]
            else:
                ratios[name].append(unfold_time / times[-1])
            row = [
                f"{batch},{channels},{size}²",
                name,
                *(f"{each:.4g}" for each in times),
            ]
            row += [
                f"{unfold_time / times[-1]:.2f}",
                f"{peak_bytes(both, device) / one_each:.2f}",
            ]
            if (
                device == "cuda"
            ):  # each kernel reads two of the three sizes and writes the third
                row.append(f"{3 * one_each / (times[-1] / 1e3) / bandwidth:.0%}")
            print(" ".join(f"{cell:>13}" for cell in row), flush=True)
    for name, values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        print(f"{name}: {mean:.1f} times as fast as unfold (geometric mean)")
    if options.scaling:
        if cpu.available():
            scaling(options, dtype)
        else:
            print(cpu.reason())


if __name__ == "__main__":
    main()
