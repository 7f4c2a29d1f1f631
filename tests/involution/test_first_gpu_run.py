"""`python -m helpers.ops.involution.first_gpu_run`, as far as that can be tested without a GPU."""

import contextlib
import os
import stat
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.lessons.cuda_on_cpu import instructions, involution
from helpers.lessons.cuda_on_cpu.every_architecture import compile_for
from helpers.ops.involution import (
    benchmark,
    first_gpu_run,
    gpu_cases,
    launch,
    operator,
    plain,
)
from helpers.ops.involution.backends import Backend
from helpers.ops.involution.geometry import KERNELS
from tests.needs import needs_compiler, needs_nvdisasm

SHAPE, ROWS = (8, 64, 56), tuple(first_gpu_run.LIMITS)
H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", multi_processor_count=132, major=9, minor=0, L2_cache_size=1000
)


@pytest.fixture
def emulated(monkeypatch):
    """Tensors of the CPU go the way of those of a GPU, and the emulator launches."""
    kernels = SimpleNamespace(**{each: partial(involution.fast, each) for each in KERNELS})
    monkeypatch.setattr(operator, "implementation", lambda device: kernels)
    return kernels


# Correctness


@needs_compiler
@pytest.mark.parametrize("case", gpu_cases.VALUES, ids=lambda case: case.__name__)
def test_each_case_is_right_thread_by_thread(case, emulated):
    assert gpu_cases.correctness([case], "cpu") == (1, [], [])


@needs_compiler
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_wrong_is_said(kernel, emulated):
    right = getattr(emulated, kernel)
    setattr(emulated, kernel, lambda *of: right(*of).mul_(1.01))
    right, wrong, _ = gpu_cases.correctness(gpu_cases.VALUES, "cpu")
    assert right + len(wrong) == len(gpu_cases.VALUES)
    said = "\n".join(wrong)
    result = {"forward": "output"}.get(kernel, kernel)
    assert f"WRONG: crop of a huge image: AssertionError: {result}: Greatest relative" in said
    # an empty batch has nothing wrong in it, and one case looks at the output alone
    assert len(wrong) == len(gpu_cases.VALUES) - (1 if kernel == "forward" else 2)


def test_the_sizes_of_the_benchmark_are_compared_in_both_layouts(monkeypatch):
    monkeypatch.setattr(benchmark, "SHAPES", ((1, 16, 5), (2, 32, 4)))
    compared = []
    monkeypatch.setattr(gpu_cases, "compare", lambda *what: compared.append(what))
    cases = [gpu_cases.sizes_of_the_benchmark]
    assert gpu_cases.correctness(cases, "cpu") == (1, [], [])
    last = [actual[0].is_contiguous(memory_format=torch.channels_last) for actual, _ in compared]
    assert last == [False, True] * len(gpu_cases.TOLERANCE) * 2
    assert {actual[0].dtype for actual, _ in compared} == set(gpu_cases.TOLERANCE)


@pytest.fixture
def fake_streams(monkeypatch):
    """What the cases for a GPU ask of torch.cuda does nothing."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(gpu_cases, "BUSY", 2)


def test_a_stream_a_graph_and_a_compiled_call_are_compared(fake_streams, monkeypatch):
    calls = []

    def noted(*arguments, **window):
        results = forward_and_backward(*arguments, **window)
        calls.append((results, lambda: forward_and_backward(*arguments, **window)))
        return results

    def replay():
        captured, again = calls[-1]
        for result, new in zip(captured, again(), strict=True):
            result.detach().copy_(new)

    forward_and_backward = gpu_cases.forward_and_backward
    monkeypatch.setattr(gpu_cases, "forward_and_backward", noted)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=replay))
    monkeypatch.setattr(torch.cuda, "graph", contextlib.nullcontext)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(gpu_cases, "find_spec", lambda name: "there")
    cases = gpu_cases.ON_A_GPU[2:5]
    assert gpu_cases.correctness(cases, "cpu") == (3, [], [])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    wrong = gpu_cases.correctness(cases, "cpu")[1]
    assert len(wrong) == 1 and "WRONG: graph of forward and backward" in wrong[0]


def test_what_is_not_there_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu_cases, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    cases = gpu_cases.second_device, *gpu_cases.ON_A_GPU[-2:]
    right, wrong, left_out = gpu_cases.correctness(cases, "cuda")
    assert (right, wrong) == (0, [])
    assert left_out == [
        "left out: second device, because there is one device",
        "left out: compile with reduce overhead, because it needs Triton",
        "left out: compute sanitizer, because it is not installed",
    ]


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands for compute-sanitizer")
def test_compute_sanitizer_runs_the_cases_of_values(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "compute-sanitizer"
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for status in (0, 9):
        script.write_text(
            f'#!/bin/sh\necho "$PYTORCH_NO_CUDA_MEMORY_CACHING" "$@"\nexit {status}\n'
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        right, wrong, _ = gpu_cases.correctness([gpu_cases.compute_sanitizer], "cuda")
        assert (right, len(wrong)) == (status == 0, int(status == 9))
    assert "1 --error-exitcode 9" in wrong[0]
    assert "-m helpers.ops.involution.first_gpu_run --values" in wrong[0]


# Times


@needs_compiler
def test_each_row_computes_the_same():
    geometry, (input, weight, _) = benchmark.case(1, 16, 8, kernel=3)
    launched = []

    def run(plan, tensors, source=launch.FAST_SOURCE):
        launched.append((plan.name, plan.grid, plan.block))
        involution.runner(source)(plan, tensors)

    expected = plain.forward(input, weight, geometry)
    rows = first_gpu_run.ways(geometry, run)
    assert tuple(rows) == ROWS
    for way in rows.values():
        torch.testing.assert_close(way(input, weight), expected)
    owned = [name.split(", ")[1] for name, *_ in launched[:4]]
    assert owned == ["16", "8", "4", "2"]
    assert [grid for _, grid, _ in launched[:6]] == [(1,), (1,), (2,), (4,), (2,), (1,)]
    assert [block for *_, block in launched[3:6]] == [(128, 1), (512, 1), (1024, 1)]


BYTES, INSTRUCTIONS, LATENCY = 3.35, 33.5, 250  # as in chapter 15
LOADS, CYCLES = INSTRUCTIONS / 4, INSTRUCTIONS * 1e6 / (132 * 128)


def predicted(shape, row):
    """(warm, flushed): the largest limit in µs, without that of the bytes and with it."""
    geometry = benchmark.geometry_of(*shape)
    source, elements, passes, width = launch.FAST_SOURCE, 1, 7, 1
    if row in ("constants", "published"):  # no loop is left
        source, name, passes = benchmark.constants_source(geometry), "constants_forward<float>", 1
    elif row == "readable":
        name = launch.kernel_name("forward", torch.float32, "int")
    else:
        channels, width = int(row.split()[0]), launch.pixels_per_thread("forward", geometry, 2)
        window = f"{width}, {3 % width}, 1, 7, 7, 1, 1, 1, 1"
        name, elements = f"involution2d_forward_fast<float, {channels}, {window}>", channels * width
    count = instructions.count(90, source, [name])[name]
    outputs = torch.Size(geometry.output_size).numel()
    work = outputs * 49 / 1e6  # millions of multiply-adds
    warps = outputs / elements / 32 / instructions.SCHEDULERS
    registers = compile_for(90, source, [name])[name].registers
    turns = warps / instructions.resident_warps(outputs / elements, registers)
    loads = width * count.loads / count.multiply_adds
    warm = max(
        work * (2 if row == "readable" else loads) / LOADS,
        work * count.per_multiply_add / INSTRUCTIONS,
        turns * passes * count.round_trips * LATENCY / CYCLES,
    )
    sizes = geometry.input_size, geometry.weight_size, geometry.output_size
    return warm, max(warm, sum(4 * torch.Size(size).numel() for size in sizes) / 1e6 / BYTES)


@needs_nvdisasm
@pytest.mark.parametrize("row", ROWS)
def test_the_limits_are_those_of_the_machine_code(row):
    for shape, limits in zip(benchmark.SHAPES, first_gpu_run.LIMITS[row], strict=True):
        assert predicted(shape, row) == pytest.approx(limits, abs=0.051), shape


def test_a_time_agrees_or_contradicts():
    assert [first_gpu_run.verdict(time, 10) for time in (8.9, 9, 20, 20.1)] == [
        "contradicts",
        "agrees",
        "agrees",
        "contradicts",
    ]


def limits_and_times():
    """{row: (warm, flushed)} as predicted at SHAPE, and a tenth longer."""
    limits = {row: pairs[0] for row, pairs in first_gpu_run.LIMITS.items()}
    return limits, {row: (1.1 * warm, 1.1 * cold) for row, (warm, cold) in limits.items()}


def test_a_table_has_each_time_beside_its_limit():
    limits, times = limits_and_times()
    lines = first_gpu_run.table(SHAPE, limits, times, chosen=4)
    assert lines[0].split() == ["8", "x", "64", "x", "56²", "warm", "flushed"]
    assert lines[3].split() == "4 channels 10.0 (9.1) agrees 10.7 (9.7) agrees".split()
    assert len(lines) == 1 + len(ROWS) + 1 and max(map(len, lines)) < 80
    assert lines[-1] == "chosen: 4 channels; fastest: 4 channels; agrees"
    assert not any("contradicts" in line for line in lines)
    times["8 channels"] = 5.0, 9.0
    lines = first_gpu_run.table(SHAPE, limits, times, chosen=4)
    assert lines[2].split() == "8 channels 5.0 (12.4) contradicts 9.0 (12.4) contradicts".split()
    assert lines[-1] == "chosen: 4 channels; fastest: 8 channels; contradicts"
    lines = first_gpu_run.table(SHAPE, None, times, chosen=4)
    assert lines[2].split() == "8 channels 5.0 9.0".split()


def test_the_limits_are_of_one_gpu():
    assert first_gpu_run.is_modelled(H100)
    for other in ({"name": "NVIDIA H200"}, {"multi_processor_count": 114}):
        assert not first_gpu_run.is_modelled(SimpleNamespace(**vars(H100) | other))


# The screen


def test_without_a_gpu_it_says_what_it_would_do(monkeypatch, capsys):
    for reason in ("this torch finds no CUDA device", "there is no kernel for an AMD GPU"):
        monkeypatch.setattr(first_gpu_run, "backend", lambda _, why=reason: Backend("none", why))
        assert first_gpu_run.main([]) == 77
        printed = capsys.readouterr().out
        assert printed.startswith(f"Nothing was run, because {reason}. With an NVIDIA GPU and CuPy")
        assert "compare 21 cases with plain PyTorch" in printed and printed.count("\n") == 1


@pytest.fixture
def fake_gpu(monkeypatch):
    """An H100 on which all takes a tenth longer than predicted."""
    monkeypatch.setattr(first_gpu_run, "backend", lambda device: Backend("cuda kernel", ""))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H100)
    monkeypatch.setattr(first_gpu_run.cuda, "find_cupy", lambda: SimpleNamespace(__version__="14"))
    monkeypatch.setattr(first_gpu_run, "tensors", lambda device: gpu_cases.tensors("cpu"))
    monkeypatch.setattr(benchmark, "copy_bandwidth", lambda: 3e12)
    monkeypatch.setattr(benchmark, "host_seconds", lambda call: 5e-5)
    monkeypatch.setattr(first_gpu_run, "measure", lambda shape: (limits_and_times()[1], 4))
    monkeypatch.setattr(first_gpu_run, "correctness", lambda cases, device: (len(cases), [], []))


def test_all_fits_on_one_screen(fake_gpu, capsys):
    assert first_gpu_run.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "H100 80GB HBM3, sm_90" in lines[0] and f"torch {torch.__version__}" in lines[0]
    assert lines[1:3] == ["21 cases right, 0 wrong", "µs of forward, float32; copies 3000 GB/s"]
    assert sum("chosen: 4 channels" in line for line in lines) == len(benchmark.SHAPES)
    assert lines[-2] == "host: 50 µs a call, 50 with both gradients"
    assert len(lines) <= 45


def test_what_is_wrong_stands_on_the_screen_and_in_the_status(fake_gpu, monkeypatch, capsys):
    lines = ["WRONG: all dtypes: nonsense"], ["left out: second device, because there is one"]
    monkeypatch.setattr(first_gpu_run, "correctness", lambda cases, device: (17, *lines))

    def measure(shape):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(first_gpu_run, "measure", measure)
    assert first_gpu_run.main([]) == 1
    printed = capsys.readouterr().out
    for words in ("17 cases right, 1 wrong", *lines[0], *lines[1], "no times: RuntimeError: out"):
        assert words in printed
    assert first_gpu_run.main(["--values"]) == 1
    assert "no times" not in capsys.readouterr().out
