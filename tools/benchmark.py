"""Time and memory of what the README compares, one command each.

    python -m tools.benchmark linear_cross_entropy [--threads 2] [--rounds 5]
    python -m tools.benchmark rednet [--threads 2] [--rounds 5]

The ways to be compared run in turn, several rounds of them, so that what else the machine does
meets all alike. Of each way: the peak of the memory that it allocates beyond its arguments, results
included; the best time; and, because a round can be disturbed, the median over rounds of its time
as a share of the first way's in the same round.
"""

import argparse
import statistics

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from helpers.ops.involution import RedNet
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


BENCHMARKS = {
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
