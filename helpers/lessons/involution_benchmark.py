"""Time and memory of involution, forward and backward, beside `unfold`.

    python -m helpers.lessons.involution_benchmark [--dtype float16] [--threads 2]

Kernels 7 x 7, stride 1, 16 channels a group, batch 8. The rows:

unfold     `torch.nn.functional.unfold`, multiply, sum: the authors' first one
plain      `plain.py`
cpu        `cpu_kernels.cpp` (without a GPU, with a compiler)
constants  `constants.cu`, the design of the authors' CUDA kernels (with a GPU)
readable   `kernels.cu` (with a GPU)
cuda       `fast_kernels.cu`, as `involution2d` launches it (with a GPU)

The columns: milliseconds of forward, and of forward and backward together; how many
times as fast as unfold, together; the peak of the memory that the two allocate, results
included, in units of input + weight + output.

With a GPU, times are the device's, of calls captured in a CUDA graph, in turn on so
many copies of the tensors that its L2 cache holds none.

With `--threads 2`, on two cores of an AMD EPYC, milliseconds of forward and backward
together (unfold loses much of its time to fresh memory, which that machine hands out
slowly):

channels, size    unfold  plain   cpu   times as fast as unfold
 64, 56 x 56         509   25.6   5.1   99
128, 28 x 28         241   15.2   2.6   93
256, 14 x 14         121   11.8   1.4   87
512,  7 x 7           61   12.7   0.9   65

The peak of the memory: unfold 29.8, plain 1.1, cpu 1.0.

On an NVIDIA H100 80GB HBM3, with torch 2.11.0, microseconds of forward and backward
together, in float32, and how many times as fast as unfold `cuda` is:

channels, size   unfold   plain   constants   readable   cuda
 64, 56 x 56       1762    1733         195        387     72    24
128, 28 x 28        906    1351         108        203     39    24
256, 14 x 14        509    1217          49        121     28    18
512,  7 x 7         323    1150          31         78     25    13

In float16, the first two rows: unfold 1529 and 785, cuda 49 and 35. The peak of the
memory: unfold 30, plain 1.1, the kernels 1.0.
"""

import argparse
import math
import platform
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from helpers.lessons.memory import peak_bytes
from helpers.ops.involution import cpu, plain
from helpers.ops.involution.geometry import ARRAYS, KERNELS, Geometry, operands
from helpers.ops.involution.launch import SOURCE, TYPES, Plan, launch

SHAPES = ((8, 64, 56), (8, 128, 28), (8, 256, 14), (8, 512, 7))
KERNEL, GROUP_CHANNELS = 7, 16
LAUNCHES = 50  # in one CUDA graph, at least: so many that its own launch does not count
# A Geometry, in constants.cu.
CONSTANTS = "N C G H W HO WO KH KW SH SW PH PW DH DW".split()


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


def device_seconds(calls):
    """Of one call, on the device alone: the best replay of a CUDA graph."""
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
    for _ in range(20):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best / len(calls)


def flushed(function, tensors):
    """Seconds of function(*tensors) on the device, with a cold L2 cache."""
    in_cache = torch.cuda.get_device_properties(tensors[0].device).L2_cache_size
    count = 1 + -(-4 * in_cache // sum(tensor.nbytes for tensor in tensors))
    copies = [[tensor.detach().clone() for tensor in tensors] for _ in range(count)]
    kept = []

    def call(copy):
        results = function(*copy)
        results = results if isinstance(results, tuple) else (results,)
        # Or the next would overwrite them.
        kept.extend(result.detach() for result in results)

    calls = [partial(call, copy) for copy in copies] * -(-LAUNCHES // count)
    return device_seconds(calls)


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
    """An image in that format, or a weight as a convolution returns it."""
    flat = tensor.flatten(1, -3).contiguous(memory_format=torch.channels_last)
    return flat.unflatten(1, tensor.shape[1:-2])


def paths(device):
    """{row: the three kernels}, of what can run there."""
    rows = {"plain": (plain.forward, plain.grad_input, plain.grad_weight)}
    if device == "cuda":
        from helpers.ops.involution import cuda

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


def row_of(pair, tensors, device, options):
    """Milliseconds of forward and of both, and the peak of both in bytes."""
    own = [tensor.clone() for tensor in tensors]  # those of unfold require gradients
    forward, both = pair(*own)
    if device == "cpu":
        times = [
            milliseconds(f, options.threads, options.seconds) for f in (forward, both)
        ]
    else:
        times = [1e3 * flushed(lambda *of, n=n: pair(*of)[n](), own) for n in (0, 1)]
    return *times, peak_bytes(both, device)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m helpers.lessons.involution_benchmark"
    )
    names = ["float32", "float64", "float16", "bfloat16"]
    parser.add_argument("--dtype", default="float32", choices=names)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="per figure, on the CPU"
    )
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    print(f"{name}, {options.threads} threads, {options.dtype}")
    row = "{:>13} {:>13} {:>10} {:>10} {:>10} {:>10}".format
    print(row("shape", "path", "forward", "both", "x unfold", "memory"))
    rows = paths(device)
    for batch, channels, size in SHAPES:
        geometry, tensors = case(batch, channels, size, device=device, dtype=dtype)
        input, weight, _ = tensors
        one_each = (2 * input.numel() + weight.numel()) * input.element_size()
        pairs = {"unfold": with_autograd}
        for name, kernels in rows.items():
            pairs[name] = partial(with_kernels, kernels, geometry)
        for name, pair in pairs.items():
            forward, both, peak = row_of(pair, tensors, device, options)
            if name == "unfold":
                unfold = both
            cells = f"{forward:.4g}", f"{both:.4g}", f"{unfold / both:.2f}"
            shape = f"{batch},{channels},{size}²"
            print(row(shape, name, *cells, f"{peak / one_each:.2f}"), flush=True)


if __name__ == "__main__":
    main()
