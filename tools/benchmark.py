"""Time and memory of what the README compares, one command each.

    python -m tools.benchmark linear_cross_entropy [--threads 2] [--rounds 5]
    python -m tools.benchmark rednet [--threads 2] [--rounds 5]
    python -m tools.benchmark launch [--rounds 50]

The ways to be compared run in turn, several rounds of them, so that what else the machine does
meets all alike. Of each way: the peak of the memory that it allocates beyond its arguments, results
included; the best time; and, because a round can be disturbed, the median over rounds of its time
as a share of the first way's in the same round.

`launch` needs no GPU: it times what the processor does for a call of `involution2d` on a CUDA
device, where CuPy does nothing.
"""

import argparse
import contextlib
import statistics
import time
from types import SimpleNamespace
from unittest import mock

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from helpers.ops.involution import RedNet, cuda, involution2d, operator
from helpers.ops.involution.benchmark import cpu_name, peak_bytes
from helpers.ops.linear_cross_entropy import linear_cross_entropy
from helpers.ops.recompute import recompute


def compare(title, ways, options):
    """Print a table of the `ways`, {name: a function without arguments}, the first being 1."""
    print(f"{title}; {cpu_name()}, {options.threads} threads")
    memory = {name: peak_bytes(way, "cpu") for name, way in ways.items()}
    seconds = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            timer = Timer("way()", globals={"way": way}, num_threads=options.threads)
            seconds[name].append(timer.timeit(1).mean)  # it ran before, for its memory
    first = next(iter(ways))
    row = "{:45} {:>9} {:>6} {:>9} {:>6} {:>15}".format
    print(row("", "peak, MiB", "share", "seconds", "share", "share, median"))
    for name, times in seconds.items():
        share = statistics.median(t / f for t, f in zip(times, seconds[first], strict=True))
        print(
            row(
                name,
                f"{memory[name] / 2**20:.0f}",
                f"{memory[name] / memory[first]:.3f}",
                f"{min(times):.2f}",
                f"{min(times) / min(seconds[first]):.2f}",
                f"{share:.2f}",
            )
        )


def benchmark_linear_cross_entropy(options):
    rows, features, classes = 4096, 512, 32768
    torch.manual_seed(0)
    x = torch.randn(rows, features, requires_grad=True)
    weight = (torch.randn(classes, features) / features**0.5).requires_grad_()
    target = torch.randint(classes, (rows,))
    chunked = torch.nn.LinearCrossEntropyOptions()
    ways = {
        "F.cross_entropy(F.linear(...))": lambda: F.cross_entropy(F.linear(x, weight), target),
        "F.linear_cross_entropy(options=...)": lambda: F.linear_cross_entropy(
            x, weight, target, options=chunked
        ),
        "linear_cross_entropy": lambda: linear_cross_entropy(x, weight, target),
    }
    title = f"forward and backward of the mean, {rows} x {features} x {classes}, float32"
    gradients = {
        name: lambda way=way: torch.autograd.grad(way(), (x, weight)) for name, way in ways.items()
    }
    compare(title, gradients, options)


def recomputing_blocks(model, x):
    x = model.stem(x)
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in stage:
            x = recompute(block, x)
    return model.fc(model.pool(x).flatten(1))


def benchmark_rednet(options):
    torch.manual_seed(0)
    keeps, forgets = RedNet(26), RedNet(26, keep_filters=False)
    images = torch.randn(4, 3, 224, 224)
    ways = {
        "filters kept": lambda: keeps(images),
        "filters not kept": lambda: forgets(images),
        "filters kept, blocks recomputed": lambda: recomputing_blocks(keeps, images),
        "filters not kept, blocks recomputed": lambda: recomputing_blocks(forgets, images),
    }
    gradients = {
        name: lambda way=way, model=forgets if "not" in name else keeps: torch.autograd.grad(
            way().sum(), list(model.parameters())
        )
        for name, way in ways.items()
    }
    title = "forward and backward of RedNet-26, 4 images of 224 x 224, float32"
    compare(title, gradients, options)


@contextlib.contextmanager
def launches_that_do_nothing():
    """Tensors of the CPU go the way of those of a GPU, up to CuPy, which is replaced."""

    class Entered(contextlib.nullcontext):
        def __init__(self, *_):
            super().__init__()

    module = SimpleNamespace(get_function=lambda name: lambda grid, block, values: None)
    cupy = SimpleNamespace(
        RawModule=lambda **_: module,
        cuda=SimpleNamespace(Device=Entered, Stream=SimpleNamespace(from_external=Entered)),
    )
    with (
        mock.patch.object(cuda, "find_cupy", lambda: cupy),
        mock.patch.object(cuda, "_plans", {}),
        mock.patch.object(operator, "implementation", lambda device: cuda),
        mock.patch.object(torch.cuda, "current_stream", lambda device: None),
    ):
        for kept in (cuda._module, cuda._function):
            kept.cache_clear()
        yield
    for kept in (cuda._module, cuda._function):
        kept.cache_clear()


def host_seconds(rounds, calls=20):
    """{way: the best mean of `calls` calls}, of involution and of two operations of PyTorch's."""
    x, filters = torch.randn(1, 16, 4, 4), torch.randn(1, 1, 3, 3, 4, 4)
    weight, ones = torch.randn(16, 16, 3, 3), torch.ones(1, 16, 4, 4)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, filters, weight)]

    def gradients(call, *inputs):
        return lambda: torch.autograd.grad(call(*inputs, padding=1), inputs, ones)

    ways = {
        "involution2d": lambda: involution2d(x, filters, padding=1),
        "F.unfold": lambda: F.unfold(x, 3, padding=1),
        "F.conv2d": lambda: F.conv2d(x, weight, padding=1),
        "involution2d and its gradients": gradients(involution2d, leaves[0], leaves[1]),
        "F.conv2d and its gradients": gradients(F.conv2d, leaves[0], leaves[2]),
    }
    best = dict.fromkeys(ways, float("inf"))
    with launches_that_do_nothing():
        for _ in range(rounds):
            for name, way in ways.items():
                start = time.perf_counter()
                for _ in range(calls):
                    way()
                best[name] = min(best[name], (time.perf_counter() - start) / calls)
    return best


def benchmark_launch(options):
    print(f"host time of a small call, in µs, its work included; {cpu_name()}")
    for name, seconds in host_seconds(options.rounds).items():
        print(f"{name:32} {seconds * 1e6:6.1f}")


BENCHMARKS = {
    "launch": benchmark_launch,
    "linear_cross_entropy": benchmark_linear_cross_entropy,
    "rednet": benchmark_rednet,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark")
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    BENCHMARKS[options.name](options)
