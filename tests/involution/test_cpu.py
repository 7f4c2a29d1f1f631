"""The C++ kernels: their values, layouts and threads, what they refuse, and how fast they are."""

import ctypes
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from helpers.ops.involution import backend, benchmark, cpu, involution2d, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    TOLERANCE,
    assert_close,
    make_geometry,
    random_cases,
    random_tensors,
)

needs_kernel = pytest.mark.skipif(not cpu.available(), reason=cpu.reason())
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def results(geometry, input, weight, grad_output, module=cpu):
    case = input, weight, grad_output
    return [getattr(module, kernel)(*operands(kernel, *case), geometry) for kernel in KERNELS]


# Values


@needs_kernel
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_random_cases_agree_with_loops(dtype):
    for geometry, case, expected in random_cases(80, f"cpu {dtype}", dtype):
        for actual, one in zip(results(geometry, *case), expected, strict=True):
            assert actual.dtype == dtype
            assert_close(actual, one, dtype)


# Sizes that the kernels treat in their own way: many tiles down and across, more channels than
# they work on at once, rows of less than a vector, remainders of every kind.
LARGE = {
    "tiles": make_geometry(1, 32, 1, (40, 141), (5, 3), (1, 1), (2, 1), (1, 1)),
    "strides": make_geometry(1, 10, 2, (41, 300), (3, 5), (2, 3), (3, 2), (2, 1)),
    "long strides": make_geometry(1, 4, 1, (20, 19), (2, 2), (7, 5), (1, 1), (3, 4)),
    "channels": make_geometry(1, 150, 1, (12, 37), (3, 3), (1, 1), (1, 1), (1, 1)),
    "one channel": make_geometry(2, 5, 5, (23, 9), (5, 5), (1, 1), (2, 2), (1, 1)),
    "dilation": make_geometry(1, 16, 1, (24, 25), (3, 3), (1, 1), (24, 24), (24, 24)),
}


@needs_kernel
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LARGE)
def test_large_cases_agree_with_plain_pytorch_in_double(name, layout):
    geometry = LARGE[name]
    for dtype in TOLERANCE:
        case = random_tensors(geometry, dtype, seed=0)
        expected = results(geometry, *(t.double() for t in case), module=plain)
        input, weight, grad_output = case
        input, grad_output = (t.to(memory_format=LAYOUTS[layout]) for t in (input, grad_output))
        for actual, one in zip(
            results(geometry, input, weight, grad_output), expected, strict=True
        ):
            assert_close(actual, one, dtype)
            if actual.dim() == 4:  # as it came in
                assert actual.is_contiguous(memory_format=LAYOUTS[layout])


@needs_kernel
def test_any_strides_without_a_copy():
    geometry = make_geometry(2, 6, 3, (9, 11), (3, 2), (2, 1), (1, 1), (1, 2))
    case = random_tensors(geometry, torch.float64, seed=0)
    expected = results(geometry, *case)
    for strided in (
        [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in case],
        [torch.stack([t, t], -1)[..., 0] for t in case],
        [t.movedim(1, -1).contiguous().movedim(-1, 1) for t in case],
        [F.pad(t, (2, 3))[..., 2:-3] for t in case],
    ):
        for actual, one in zip(results(geometry, *strided), expected, strict=True):
            assert actual.equal(one)
    input, weight, grad_output = case
    one = [t[:1].expand_as(t) for t in (input, weight)]
    actual = cpu.forward(*one, geometry)
    assert actual.equal(cpu.forward(*(t.contiguous() for t in one), geometry))


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_is_converted_as_in_pytorch(dtype):
    """A 1 x 1 kernel is a product: by one, every half; in float32, every rounding."""
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    geometry = make_geometry(1, 1, 1, (256, 256), (1, 1), (1, 1), (0, 0), (1, 1))
    ones = torch.ones(geometry.weight_size, dtype=dtype)
    image = halves.view(geometry.input_size)
    output = cpu.forward(image, ones, geometry)
    torch.testing.assert_close(output, image, rtol=0, atol=0, equal_nan=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):  # products of two halves lie on either side of, and on, the middle
        other = halves[torch.randperm(2**16, generator=generator)].view(geometry.weight_size)
        output = cpu.forward(image, other, geometry)
        expected = (image.float() * other.float().view(geometry.input_size)).to(dtype)
        torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)


@needs_kernel
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 2), (3, 2)], ids=str)
def test_infinities_outside_the_image_do_not_count(stride):
    geometry = make_geometry(1, 2, 1, (6, 21), (3, 5), stride, (2, 3), (1, 1))
    _, weight, _ = random_tensors(geometry, torch.float32, seed=0)
    input, grad_output = torch.ones(geometry.input_size), torch.ones(geometry.output_size)
    reached = plain.grad_weight(grad_output, input, geometry) != 0
    weight = torch.where(reached, weight, torch.inf)
    for first, second, kernel in (
        (input, weight, "forward"),
        (grad_output, weight, "grad_input"),
        (torch.full_like(grad_output, torch.inf), input, "grad_weight"),
    ):
        actual, expected = (getattr(m, kernel)(first, second, geometry) for m in (cpu, plain))
        assert not actual.isnan().any()
        torch.testing.assert_close(actual, expected)


@needs_kernel
def test_bits_do_not_depend_on_threads_or_runs():
    threads = torch.get_num_threads()
    geometry = make_geometry(4, 64, 4, (28, 30), (5, 5), (1, 1), (2, 2), (1, 1))
    case = random_tensors(geometry, torch.float32, seed=0)
    try:
        runs = []
        for count in (1, 2, 3, 16, 16):
            torch.set_num_threads(count)
            runs.append(results(geometry, *case))
    finally:
        torch.set_num_threads(threads)
    for run in runs[1:]:
        assert all(one.equal(other) for one, other in zip(run, runs[0], strict=True))


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pytorch_allocates_the_results_and_nothing_else(dtype, layout):
    geometry, tensors = benchmark.case(4, 64, 28, dtype=dtype)
    tensors = [t.to(memory_format=LAYOUTS[layout]) if t.dim() == 4 else t for t in tensors]
    size = sum(t.nbytes for t in tensors)  # of the results, too
    assert benchmark.peak_bytes(lambda: results(geometry, *tensors), "cpu") == size


@needs_kernel
def test_buffers_stay_small():
    """What PyTorch does not see: the most memory that a process held at once, in a fresh one."""
    script = """
from helpers.ops.involution import benchmark, cpu
def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int([line.split()[1] for line in lines if line.startswith(name)][0])
geometry, (input, weight, grad_output) = benchmark.case(1, 16, 1024, 3)
cpu.available()
open("/proc/self/clear_refs", "w").write("5")  # forget the peak up to here
before = status("VmRSS")
results = (
    cpu.forward(input, weight, geometry),
    cpu.grad_input(grad_output, weight, geometry),
    cpu.grad_weight(grad_output, input, geometry),
)
print(status("VmHWM") - before - sum(r.nbytes for r in results))
"""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("no /proc/self/clear_refs")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert abs(int(done.stdout)) < 2**24  # 16 MB, a quarter of the input


@needs_kernel
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)], ids=str)
def test_a_window_of_more_than_four_megabytes_is_left_to_plain_pytorch(stride, monkeypatch):
    def refuses(*_):
        raise ZeroDivisionError

    for far in ((40, 40), (999, 999)):
        geometry = make_geometry(1, 2, 1, (9, 20), (3, 3), stride, far, far)
        case = random_tensors(geometry, torch.float32, seed=0)
        expected = results(geometry, *case, module=plain)
        for actual, one in zip(results(geometry, *case), expected, strict=True):
            torch.testing.assert_close(actual, one)
        for kernel in KERNELS:
            with monkeypatch.context() as patch:
                patch.setattr(plain, kernel, refuses)
                run = partial(getattr(cpu, kernel), *operands(kernel, *case), geometry)
                if far[0] == 40:
                    run()
                else:
                    with pytest.raises(ZeroDivisionError):
                        run()


@needs_kernel
def test_nothing_passes_the_border_of_c():
    """Sizes for which the buffers have no memory, where the checks in Python would refuse them."""
    geometry = make_geometry(1, 1, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1))
    one = torch.ones(1)
    for field in ("kernel_height", "dilation_width", "padding_height", "stride_width"):
        for size in (2**31, 2**40):
            sizes = geometry._replace(kernel_width=2, **{field: size})
            failed = cpu._library(
                0,
                0,
                (ctypes.c_int64 * len(sizes))(*sizes),
                (ctypes.c_void_p * 3)(*[one.data_ptr()] * 3),
                (ctypes.c_int64 * 14)(),
                1,
            )
            assert failed in (0, 1, cpu.WINDOW_TOO_LARGE)


@needs_kernel
def test_autograd_runs_the_kernels_that_are_needed(monkeypatch):
    calls = []

    def counted(name):
        function = getattr(cpu, name)
        return lambda *arguments: calls.append(name) or function(*arguments)

    for name in KERNELS:
        monkeypatch.setattr(cpu, name, counted(name))
    input = torch.randn(1, 2, 3, 3, requires_grad=True)
    weight = torch.randn(1, 1, 3, 3, 3, 3, requires_grad=True)
    involution2d(input, weight.detach(), padding=1).sum().backward()
    assert calls == ["forward", "grad_input"]
    involution2d(input.detach(), weight, padding=1).sum().backward()
    assert calls[2:] == ["forward", "grad_weight"]
    assert backend().name == "cpu kernel"


# Speed


@needs_kernel
def test_benchmark_measures_the_kernel_and_how_it_scales(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SHAPES", ((1, 16, 5),))
    monkeypatch.setattr(benchmark, "SCALING_SHAPE", (1, 16, 4))
    benchmark.main(["--seconds", "0.001", "--scaling", "--threads", "2"])
    printed = capsys.readouterr().out
    assert torch.cuda.is_available() or "cpu: " in printed
    for kernel in (3, 5, 7, 9):
        assert printed.count(f"{kernel} x {kernel}") == 2
