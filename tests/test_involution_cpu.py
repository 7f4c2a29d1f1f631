"""The C++ kernels: their values, layouts and threads, how they are built, and how fast they are."""

import ctypes
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad

from helpers.ops.involution import backend, benchmark, compiler, cpu, involution2d, plain
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution_reference import (
    TOLERANCE,
    assert_close,
    by_loops,
    make_geometry,
    random_geometries,
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
    for seed, geometry in enumerate(random_geometries(80, seed=f"cpu {dtype}")):
        case = random_tensors(geometry, dtype, seed)
        expected = by_loops(geometry, *case)
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
def test_channels_last_in_channels_last_out():
    geometry = make_geometry(2, 8, 2, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1))
    case = random_tensors(geometry, torch.float32, seed=0)
    last = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in case]
    for actual, expected in zip(results(geometry, *last), results(geometry, *case), strict=True):
        if actual.dim() == 4:
            assert actual.is_contiguous(memory_format=torch.channels_last)
        assert actual.equal(expected) and expected.is_contiguous()


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


# The build


def test_without_a_compiler_one_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(compiler.CompilerNotFoundError, match="`pip install ziglang` brings one"):
        compiler.find_compiler.__wrapped__()
    monkeypatch.setattr(compiler, "find_spec", lambda name: name == "ziglang")
    assert compiler.find_compiler.__wrapped__()[1:] == ["-m", "ziglang", "c++"]


def test_on_windows_the_sentence_names_a_way(monkeypatch):
    monkeypatch.setattr(compiler.sys, "platform", "win32")
    with pytest.raises(compiler.CompilerNotFoundError, match="on Windows, work in WSL"):
        compiler.find_compiler.__wrapped__()


@pytest.fixture
def unbuilt(monkeypatch, tmp_path):
    """As in a fresh process, with an empty cache."""
    monkeypatch.setattr(cpu, "_library", None)
    monkeypatch.setattr(cpu, "_reason", "")
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    return tmp_path


def small_case():
    return torch.randn(1, 2, 4, 4), torch.randn(1, 1, 3, 3, 4, 4)


def test_without_a_compiler_plain_pytorch_runs_silently(unbuilt, monkeypatch):
    def find():
        raise compiler.CompilerNotFoundError("none")

    monkeypatch.setattr(cpu, "find_compiler", find)
    input, weight = small_case()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = involution2d(input, weight, padding=1)
    assert backend() == ("plain", "none")
    assert output.shape == input.shape
    assert backend("meta") == ("plain", "there is no kernel for meta")


@needs_kernel
def test_a_failed_build_warns_once_with_the_compilers_first_error(unbuilt, monkeypatch):
    broken = unbuilt / "broken.cpp"
    broken.write_text(
        "#warning first of all\nint f() { return nonsense; }\nint g() { return h; }\n"
    )
    monkeypatch.setattr(cpu, "SOURCE", broken)
    input, weight = small_case()
    with pytest.warns(UserWarning) as caught:
        output = involution2d(input, weight, padding=1)
        involution2d(input, weight, padding=1)
    assert len(caught) == 1
    assert "broken.cpp:2" in str(caught[0].message) and "nonsense" in str(caught[0].message)
    assert "runs in plain PyTorch instead" in str(caught[0].message)
    expected = plain.forward(
        input, weight, make_geometry(1, 2, 1, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1))
    )
    assert output.equal(expected)
    assert backend().name == "plain" and "nonsense" in backend().reason
    assert not list(unbuilt.glob("*.unfinished"))


@needs_kernel
def test_a_refused_flag_is_left_out(unbuilt, monkeypatch):
    monkeypatch.setattr(cpu, "SOURCE", unbuilt / "tiny.cpp")
    cpu.SOURCE.write_text('extern "C" int involution2d() { return 7; }\n')
    monkeypatch.setattr(cpu, "MACHINES", (["-march=abacus"], []))
    function, reason = cpu.build()
    assert "abacus" not in reason
    assert ctypes.CDLL(str(next(unbuilt.glob("*.so")))).involution2d() == 7


@needs_kernel
def test_the_cache_knows_the_source_and_the_flags(unbuilt, monkeypatch):
    monkeypatch.setattr(cpu, "SOURCE", unbuilt / "tiny.cpp")
    cpu.SOURCE.write_text('extern "C" int involution2d() { return 1; }\n')
    names = {cpu.build()[1].split(",")[0]}
    changed = os.stat(names.copy().pop()).st_mtime_ns
    cpu.build()
    assert os.stat(names.copy().pop()).st_mtime_ns == changed  # found, not built
    monkeypatch.setattr(cpu, "FLAGS", [*cpu.FLAGS, "-O1"])
    names.add(cpu.build()[1].split(",")[0])
    cpu.SOURCE.write_text('extern "C" int involution2d() { return 2; }\n')
    names.add(cpu.build()[1].split(",")[0])
    monkeypatch.setattr(cpu, "MACHINES", ([],))  # another machine
    names.add(cpu.build()[1].split(",")[0])
    assert len(names) == 4 and len(list(unbuilt.glob("*.so"))) == 4


def test_two_build_at_once_and_the_oldest_are_forgotten(unbuilt, monkeypatch):
    both_build = threading.Barrier(2, timeout=60)

    def build(path):
        assert Path(path).stat().st_size == 0 and Path(path).parent == unbuilt
        both_build.wait()
        Path(path).write_text("whole")

    def cached(key, build=build):
        return compiler.cached_file("some_*.txt", ["key", key], build)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(cached, "aa")
    assert one == other == cached("a") and one.read_text() == "whole"
    assert list(unbuilt.iterdir()) == [one]
    monkeypatch.setattr(compiler, "KEPT", 2)
    os.utime(one, (1, 1))
    others = {cached(key, lambda path: None) for key in "bc"}
    assert set(unbuilt.iterdir()) == others and len(others) == 2
    with pytest.raises(ZeroDivisionError):
        cached("d", lambda path: 1 / 0)
    assert set(unbuilt.iterdir()) == others


def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch, tmp_path):
    if sys.platform == "darwin":
        pytest.skip("the folder's name does not come from the environment")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = compiler.cache_folder()
    assert folder.is_dir() and tmp_path not in folder.parents
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiler.cache_folder() == tmp_path / "extending_pytorch"
    assert compiler.cache_folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.delattr(os, "getuid")  # as on Windows, where NVRTC's reports are kept
    assert compiler.cache_folder() == tmp_path / "extending_pytorch"


def test_without_a_path_plain_pytorch_runs():
    script = """
import torch
from helpers.ops.involution import backend, compiler, involution2d
compiler.find_spec = lambda name: None  # no ziglang either
x = torch.ones(1, 1, 2, 2, requires_grad=True)
involution2d(x, torch.ones(1, 1, 1, 1, 2, 2)).sum().backward()
print(x.grad.sum().item(), *backend(), sep="|")
"""
    environment = {k: v for k, v in os.environ.items() if k != "CXX"} | {"PATH": ""}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("4.0|plain|no C++ compiler was found"), done.stderr


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


@needs_kernel
def test_gradients_through_the_function_agree_with_unfold():
    torch.manual_seed(0)
    input = torch.randn(2, 32, 10, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2, 7, 7, 10, 9, dtype=torch.float64, requires_grad=True)
    output = involution2d(input, weight, padding=3)
    expected = benchmark.unfold_involution(input, weight)
    torch.testing.assert_close(output, expected)
    for one, other in zip(
        grad(output.pow(2).sum(), (input, weight)),
        grad(expected.pow(2).sum(), (input, weight)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
