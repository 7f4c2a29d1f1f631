"""Time and memory of the operations beside their peers, one command each.

    python -m tools.benchmark attention
    python -m tools.benchmark linear_cross_entropy [--dtype bfloat16]
    python -m tools.benchmark recompute
    python -m tools.benchmark reversible
    python -m tools.benchmark fixed_point
    python -m tools.benchmark rednet

The ways to be compared run in turn, several rounds of them, so that what else the
machine does meets all alike. Of each way: the peak of the memory that it allocates
beyond its arguments, results included; the best time; and, because a round can be
disturbed, the median over rounds of its time as a share of the first way's in the same
round.

Peers that are no part of the course are compared where they are installed:
`pip install revtorch==0.2.4 memcnn==1.5.2 torchdeq==0.1.0`. jaxopt is none of them,
because it needs JAX.
"""

import argparse
import statistics
from functools import partial
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer
from torch.utils.checkpoint import checkpoint

from helpers.lessons.involution_benchmark import cpu_name
from helpers.lessons.memory import peak_bytes
from helpers.ops.attention import attention
from helpers.ops.fixed_point import fixed_point
from helpers.ops.involution import RedNet
from helpers.ops.linear_cross_entropy import linear_cross_entropy
from helpers.ops.recompute import ReversibleSequential, recompute


def compare(title, ways, options):
    """Print a table of the `ways`, {name: function}, the first being 1."""
    print(f"{title}; {cpu_name()}, {options.threads} threads")
    memory = {name: peak_bytes(way, "cpu") for name, way in ways.items()}
    timers = {
        name: Timer("way()", globals={"way": way}, num_threads=options.threads)
        for name, way in ways.items()
    }
    slowest = max(timer.timeit(1).mean for timer in timers.values())
    seconds = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, timer in timers.items():
            seconds[name].append(timer.timeit(1 + int(0.1 / slowest)).mean)
    first = next(iter(ways))
    row = "{:45} {:>9} {:>6} {:>9} {:>6} {:>15}".format
    print(row("", "peak, MiB", "share", "seconds", "share", "share, median"))
    for name, times in seconds.items():
        share = statistics.median(
            t / f for t, f in zip(times, seconds[first], strict=True)
        )
        print(
            row(
                name,
                f"{memory[name] / 2**20:.0f}",
                f"{memory[name] / memory[first]:.3f}",
                f"{min(times):.3g}",
                f"{min(times) / min(seconds[first]):.2f}",
                f"{share:.2f}",
            )
        )


def peer(name):
    """The package, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        print(f"left out: {error}")
        return None


def backward_of(ways, inputs):
    """The gradients of the sum of what each way returns, as a way of its own."""

    def gradients(way):
        way().sum().backward()  # revtorch knows no torch.autograd.grad
        found = [tensor.grad for tensor in inputs]
        for tensor in inputs:
            tensor.grad = None  # or the next one's memory would seem less
        return found

    return {name: partial(gradients, way) for name, way in ways.items()}


def with_its_matrix(query, key, value):
    return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value


def by_the_math_backend(query, key, value):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, value)


def benchmark_attention(options):
    fused, ours = F.scaled_dot_product_attention, attention
    trials = [  # (order, length, {name: the way})
        (1, 2048, {"F.scaled_dot_product_attention": fused, "attention": ours}),
        (2, 2048, {"by the math backend": by_the_math_backend, "attention": ours}),
        *(
            (1, n, {"plain": with_its_matrix, "attention": ours})
            for n in (8, 16, 32, 64)
        ),
    ]
    for order, length, ways in trials:
        torch.manual_seed(0)
        inputs = [torch.randn(1, 8, length, 64, requires_grad=True) for _ in range(3)]

        def derivative(way, order=order, inputs=inputs):
            y = way(*inputs)
            for left in reversed(range(order)):
                loss = sum(t.square().sum() for t in (y if left < order - 1 else [y]))
                y = torch.autograd.grad(loss, inputs, create_graph=left > 0)
            return y

        title = f"derivative {order} of the sum of squares, 1 x 8 x {length} x 64"
        ways = {name: partial(derivative, way) for name, way in ways.items()}
        compare(title, ways, options)


def benchmark_linear_cross_entropy(options):
    rows, features, classes = 4096, 512, 32768
    torch.manual_seed(0)
    kind = {"dtype": getattr(torch, options.dtype)}
    x = torch.randn(rows, features, **kind).requires_grad_()
    weight = (torch.randn(classes, features, **kind) / features**0.5).requires_grad_()
    target = torch.randint(classes, (rows,))
    chunked = torch.nn.LinearCrossEntropyOptions()
    ways = {
        "F.cross_entropy(F.linear(...))": lambda: F.cross_entropy(
            F.linear(x, weight), target
        ),
        "F.linear_cross_entropy(options=...)": lambda: F.linear_cross_entropy(
            x, weight, target, options=chunked
        ),
        "linear_cross_entropy": lambda: linear_cross_entropy(x, weight, target),
    }
    title = f"forward and backward of the mean, {rows} x {features} x {classes}"
    title += f", {options.dtype}"
    compare(title, backward_of(ways, (x, weight)), options)


def residual(width):
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    )


CALLS = {  # of a block
    "the blocks": lambda block, x: block(x),
    "checkpoint": partial(checkpoint, use_reentrant=False),
}


def benchmark_recompute(options):
    for rows, width in ((4096, 256), (4, 8)):
        torch.manual_seed(0)
        blocks = nn.ModuleList(residual(width) for _ in range(12))
        x = torch.randn(rows, width, requires_grad=True)

        def through(how, x=x, blocks=blocks):
            for block in blocks:
                x = x + how(block, x)
            return x

        ways = {
            name: partial(through, how)
            for name, how in {**CALLS, "recompute": recompute}.items()
        }
        title = f"forward and backward of 12 blocks, {rows} x {width}, float32"
        compare(title, backward_of(ways, (x, *blocks.parameters())), options)


def benchmark_reversible(options):
    torch.manual_seed(0)
    pairs = [(residual(128), residual(128)) for _ in range(12)]
    x = torch.randn(4096, 256, requires_grad=True)
    ours = ReversibleSequential(pairs)

    def through(how):
        a, b = x.chunk(2, 1)
        for f, g in pairs:
            a = a + how(f, b)
            b = b + how(g, a)
        return torch.cat([a, b], 1)

    ways = {name: partial(through, how) for name, how in CALLS.items()}
    if revtorch := peer("revtorch"):
        theirs = [revtorch.ReversibleBlock(f, g) for f, g in pairs]
        ways["revtorch"] = partial(
            revtorch.ReversibleSequence(nn.ModuleList(theirs)), x
        )
    if memcnn := peer("memcnn"):
        theirs = [memcnn.AdditiveCoupling(f, g) for f, g in pairs]
        theirs = nn.Sequential(
            *(memcnn.InvertibleModuleWrapper(block) for block in theirs)
        )
        ways["memcnn"] = lambda: theirs(x.clone())  # which frees what it is given
    ways["ReversibleSequential"] = lambda: torch.cat(ours(*x.chunk(2, 1)), 1)
    title = "forward and backward of 12 pairs of blocks, 4096 x 256, float32"
    compare(title, backward_of(ways, (x, *ours.parameters())), options)


def benchmark_fixed_point(options):
    torch.manual_seed(0)
    inner = nn.Linear(256, 256)
    nn.utils.parametrizations.spectral_norm(inner)
    inner.eval()  # the same matrix in each step
    x = torch.randn(512, 256, requires_grad=True)

    def f(z, x=x):
        return torch.tanh(0.8 * inner(z) + x)

    def unrolled():
        z = torch.zeros_like(x)
        for _ in range(60):
            z = f(z)
        return z

    ways = {"unrolled, 60 steps": unrolled}
    if torchdeq := peer("torchdeq"):
        for solver in ("fixed_point_iter", "anderson"):
            deq = torchdeq.get_deq(
                f_solver=solver,
                b_solver=solver,
                f_tol=1e-5,
                b_tol=1e-5,
                f_max_iter=200,
                b_max_iter=200,
                ift=True,
            )
            ways[f"torchdeq, {solver}"] = lambda deq=deq: deq(f, torch.zeros_like(x))[
                0
            ][-1]
    ways["fixed_point"] = lambda: fixed_point(f, torch.zeros_like(x), x, tol=1e-5)
    title = "forward and backward of z = tanh(0.8 W z + x), 512 x 256, float32"
    compare(title, backward_of(ways, (x, *inner.parameters())), options)


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
        "filters not kept, blocks recomputed": lambda: recomputing_blocks(
            forgets, images
        ),
    }
    gradients = {
        name: lambda way=way, model=forgets if "not" in name else keeps: (
            torch.autograd.grad(way().sum(), list(model.parameters()))
        )
        for name, way in ways.items()
    }
    title = "forward and backward of RedNet-26, 4 images of 224 x 224, float32"
    compare(title, gradients, options)


BENCHMARKS = {
    "attention": benchmark_attention,
    "linear_cross_entropy": benchmark_linear_cross_entropy,
    "recompute": benchmark_recompute,
    "reversible": benchmark_reversible,
    "fixed_point": benchmark_fixed_point,
    "rednet": benchmark_rednet,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark")
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    BENCHMARKS[options.name](options)
