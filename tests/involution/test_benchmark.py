"""`python -m helpers.ops.involution.benchmark`, and what it measures of memory."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from helpers.lessons.cuda_on_cpu import involution
from helpers.ops.involution import benchmark, cpu, involution2d
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    SMALL,
    assert_close,
    case_and_loops,
    each_kernel,
)
from tests.needs import needs_compiler


@needs_compiler
def test_it_prints_a_table_and_how_the_kernels_scale(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SHAPES", ((1, 16, 5),))
    monkeypatch.setattr(benchmark, "SCALING_SHAPE", (1, 16, 4))
    benchmark.main(["--seconds", "0.001", "--scaling", "--threads", "2"])
    printed = capsys.readouterr().out
    for words in ("memory", "plain: ", "times as fast as unfold"):
        assert words in printed
    assert torch.cuda.is_available() or "cpu: " in printed
    assert printed.count("1,16,5²") == (5 if torch.cuda.is_available() else 3)
    for kernel in (3, 5, 7, 9):
        assert printed.count(f"{kernel} x {kernel}") == 2


def test_without_a_compiler_plain_pytorch_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(cpu, "available", lambda: False)
    monkeypatch.setattr(benchmark, "SHAPES", ((1, 16, 5),))
    benchmark.main(["--seconds", "0.001", "--channels-last", "--dtype", "bfloat16"])
    printed = capsys.readouterr().out
    assert "bfloat16" in printed
    assert printed.count("1,16,5²") == (5 if torch.cuda.is_available() else 2)


def test_it_has_a_row_for_each_design_and_times_forward_and_all_three():
    assert list(benchmark.paths("cuda")) == ["plain", "constants", "readable", "cuda"]
    kernels = [lambda *_, name=name: name for name in KERNELS]
    forward, both = benchmark.with_kernels(
        kernels, None, "input", "weight", "grad_output"
    )
    assert forward() == "forward" and both() == ("forward", "grad_input", "grad_weight")


@needs_compiler
@each_kernel
def test_the_design_that_it_compares_with_is_right(kernel):
    geometry = SMALL["all options"]
    case, expected = case_and_loops(geometry)
    run = involution.runner(source=None)
    actual = benchmark.launch_constants(kernel, *operands(kernel, *case), geometry, run)
    assert_close(actual, expected[kernel], torch.float32)


# What it measures: the memory that PyTorch allocates, results included


@pytest.mark.parametrize(
    "shape, dtype, memory_format",
    [
        ((4, 64, 28), torch.float32, torch.contiguous_format),
        ((8, 512, 7), torch.float16, torch.channels_last),
    ],
    ids=str,
)
def test_memory(shape, dtype, memory_format, monkeypatch):
    """The kernels allocate the results alone, plain PyTorch up to twice as much."""
    _, tensors = benchmark.case(*shape, dtype=dtype)
    tensors = [
        t.to(memory_format=memory_format) if t.dim() == 4 else t for t in tensors
    ]
    size = sum(t.nbytes for t in tensors)  # of the results, too
    input, weight, grad_output = tensors
    leaves = input.requires_grad_(), weight.requires_grad_()

    def forward_and_backward():
        output = involution2d(input, weight, padding=3)
        return output, torch.autograd.grad(output, leaves, grad_output)

    if cpu.available():
        assert benchmark.peak_bytes(forward_and_backward, "cpu") == size
    monkeypatch.setattr(cpu, "available", lambda: False)
    assert size < benchmark.peak_bytes(forward_and_backward, "cpu") <= 2 * size
    # the instrument sees what it should: one unfolded input is more than that
    assert benchmark.peak_bytes(lambda: F.unfold(input, 7, padding=3), "cpu") > 2 * size


# What a GPU would be asked for


@pytest.fixture
def fake_gpu(monkeypatch):
    """A GPU that takes a second for each call that a graph captured, and notes what happens."""
    notes, clock = [], [0.0]

    class Graph:
        def replay(self):
            notes.append("replay")
            clock[0] += (
                1e3 * notes.count("call") - 1e3
            )  # ms; the first was not captured

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.time = clock[0]

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return end.time - self.time

    @contextlib.contextmanager
    def graph(_):
        notes.append("capture")
        yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    properties = SimpleNamespace(L2_cache_size=1000)
    for name, fake in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": contextlib.nullcontext,
        "synchronize": lambda: notes.append("synchronize"),
        "CUDAGraph": Graph,
        "graph": graph,
        "Event": Event,
        "get_device_properties": lambda device: properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return notes


def test_the_device_is_timed_in_a_graph_after_a_warm_up(fake_gpu):
    calls = [lambda: fake_gpu.append("call")] * 4
    assert benchmark.device_seconds(calls, rounds=3) == 1
    assert fake_gpu == [
        "call",
        "synchronize",
        "capture",
        *["call"] * 4,
        *["replay"] * 3,
    ]


def test_what_is_flushed_has_been_elsewhere_in_between(fake_gpu, monkeypatch):
    tensor, seen, results = torch.ones(50), [], []  # 200 bytes of a cache of 1000

    def function(tensor):
        seen.append(tensor.data_ptr())
        result = 2 * tensor
        results.append(result.data_ptr())
        return result

    monkeypatch.setattr(
        benchmark, "device_seconds", lambda calls: [call() for call in calls]
    )
    benchmark.warm_and_flushed(function, (tensor,))
    warm, flushed = seen[: benchmark.LAUNCHES], seen[benchmark.LAUNCHES :]
    assert set(warm) == {tensor.data_ptr()}
    assert len(set(flushed)) == 21 and tensor.data_ptr() not in flushed  # 4200 bytes
    assert len(flushed) >= benchmark.LAUNCHES
    assert flushed[21:] == flushed[:-21]  # each only after all others
    assert len(set(results[benchmark.LAUNCHES :])) == len(flushed)


def test_the_processor_is_timed_while_the_device_is_idle_at_first(fake_gpu):
    assert (
        0
        < benchmark.host_seconds(lambda: fake_gpu.append("call"), rounds=2, calls=3)
        < 1
    )
    assert fake_gpu == [*["synchronize", *["call"] * 3] * 2]


def test_with_a_gpu_host_time_stands_apart_and_ratios_are_of_flushed_times(
    monkeypatch, capsys
):
    on_cpu, paths = benchmark.case, benchmark.paths
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a fake")
    monkeypatch.setattr(benchmark, "case", lambda *shape, device, dtype: on_cpu(*shape))
    monkeypatch.setattr(benchmark, "SHAPES", ((1, 16, 5),))
    monkeypatch.setattr(benchmark, "copy_bandwidth", lambda: 1e9)
    monkeypatch.setattr(benchmark, "peak_bytes", lambda function, device: 0)
    flushed = iter((8.0, 4.0))  # of unfold and plain
    monkeypatch.setattr(
        benchmark, "device_times", lambda *_: [0.1, 0.2, 0.3, next(flushed)]
    )
    monkeypatch.setattr(
        benchmark, "paths", lambda device: {"plain": paths(device)["plain"]}
    )
    benchmark.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a fake, copies 1 GB/s, float32"
    assert lines[1].split()[:6] == [
        "shape",
        "path",
        "forward",
        "both",
        "host",
        "flushed",
    ]
    moved = 3 * 4 * (2 * 16 * 25 + 49 * 25)  # bytes; in 4 ms a copy moves 4 MB
    share = f"{moved / 4e6:.0%}"
    assert lines[3].split() == [
        "1,16,5²",
        "plain",
        "0.1",
        "0.2",
        "0.3",
        "4",
        "2.00",
        "0.00",
        share,
    ]
