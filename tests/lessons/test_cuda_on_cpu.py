"""The emulator of CUDA on the CPU, and NVRTC: each fault that they are to name."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.lessons.cuda_on_cpu import emulator, every_architecture
from helpers.ops.involution import compiler
from tests.common import assert_same_bits
from tests.needs import needs_compiler, needs_nvrtc

TWICE = """
__global__ void twice(const float* x, float* y, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = 2 * x[i];
}"""


@needs_compiler
@pytest.mark.parametrize(
    "old, new, sentence",
    [
        ("x[i]", "x[i + 16]", r"reads x\[16\]"),  # not whatever lies behind x
        ("x[i]", "x[1000000 * i]", r"thread \(1, 0, 0\) .* reads x\[1000000\]"),
        ("2 * x[i]", "2 * y[i]", r"reads y\[0\], which nothing was written to"),
        ("y[i] = 2", "((float*)x)[i] = 2", r"writes x\[0\], but x is const"),
        ("y[i] = 2", "((float*)8)[i] = 2", "touches memory that belongs to no array"),
        ("2 *", "(x[-i] < x[1 << 12] ? 2 : 3) *", r"reads x\[4096\]"),
        ("if", "volatile int j = 1; while (j) {} if", "does not end: .* 0.3 seconds"),
        # No trap on ARM.
        ("i < count", "i / (count - 10) < 1", "divides by zero|no thread writes"),
    ],
)
def test_faults_are_named(old, new, sentence):
    assert old in TWICE
    arguments = {"x": torch.arange(10.0), "y": torch.zeros(10), "count": 10}
    with pytest.raises(emulator.KernelError, match=sentence):
        emulator.run(TWICE.replace(old, new), "twice", 2, 8, arguments, seconds=0.3)


PAIRS = """
struct alignas(8) Pair { float at[2]; };
__global__ void pairs(const float* x, float* y) {
    int i = 2 * threadIdx.x;
    *(Pair*)(y + i) = *(const Pair*)(x + i);
}"""


@needs_compiler
def test_a_load_of_several_elements_is_one_and_has_to_be_aligned():
    memory, y = torch.arange(5.0), torch.zeros(4)
    accesses = emulator.run(
        PAIRS, "pairs", 1, 2, {"x": memory[:4], "y": y}, watch=(0, 1)
    )
    assert y.equal(memory[:4])
    assert sorted(accesses) == [("read", "x", range(2, 4)), ("write", "y", range(2, 4))]
    for source, x, sentence in (
        (
            PAIRS,
            memory[1:],
            r"\(0, 0, 0\) .* reads 8 bytes at x\[0\], an address that is no",
        ),
        (
            PAIRS.replace("(y + i)", "(y + i / 2)"),
            memory[:4],
            r"\(1, 0, 0\) .* writes 8 .* y\[1\]",
        ),
        (PAIRS.replace("x + i", "x + 2 * i"), memory[:4], r"reads x\[4\], but x has 4"),
    ):
        with pytest.raises(emulator.KernelError, match=sentence):
            emulator.run(source, "pairs", 1, 2, {"x": x, "y": torch.zeros(4)})


SUMS = """
__global__ void sums(const float* x, float* total, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) atomicAdd(&total[i % 3], x[i]);
}"""


def run_sums(old="", new="", accumulates=("total",), **options):
    assert old in SUMS
    x, total = (
        torch.randn(50, generator=torch.Generator().manual_seed(0)),
        torch.ones(3),
    )
    arguments = {"x": x, "total": total, "count": 50}
    options |= {"accumulates": accumulates}
    accesses = emulator.run(SUMS.replace(old, new), "sums", 7, 8, arguments, **options)
    expected = [1 + x[column::3].double().sum() for column in range(3)]
    return accesses, total, torch.stack(expected)


@needs_compiler
def test_threads_add_to_what_an_array_holds_in_any_order():
    found = set()
    for order in ("any", "down", *range(1, 9)):
        accesses, total, expected = run_sums(watch=(1, 2), order=order)
        assert total.double().allclose(expected, atol=1e-5)
        assert accesses == [("read", "x", 10), ("add", "total", 1)]
        found.add(tuple(total.tolist()))
    assert len(found) > 2  # the last digits hang on the order


@needs_compiler
@pytest.mark.parametrize(
    "old, new, accumulates, sentence",
    [
        (
            "atomicAdd(&total[i % 3], x[i])",
            "total[i % 3] += x[i]",
            ("total",),
            r"thread \(3, 0, 0\) of block \(0, 0, 0\) .* total\[0\], which thread \(0, 0, 0\) of block "
            r"\(0, 0, 0\) touches",
        ),
        (
            "atomicAdd(&total[i % 3], x[i])",
            "if (i > 20) total[i % 3] = 0; else atomicAdd(&total[i % 3], x[i])",
            ("total",),
            r"writes total\[0\], which thread",
        ),
        ("sums(", "sums(", (), r"adds to total\[0\], which nothing was written to"),
        ("i % 3", "i % 5", ("total",), r"adds to total\[3\], but total has 3 elements"),
        (
            "&total[i % 3]",
            "(float*)&x[i]",
            ("total",),
            r"adds to|writes x\[0\], but x is const",
        ),
        (
            "atomicAdd(&total[i % 3], x[i])",
            "{ __shared__ float own[3]; atomicAdd(&own[i % 3], x[i]); }",
            ("total",),
            "adds to shared memory",
        ),
    ],
)
def test_additions_without_an_order_are_named(old, new, accumulates, sentence):
    with pytest.raises(emulator.KernelError, match=sentence):
        run_sums(old, new, accumulates)


@needs_compiler
def test_what_a_barrier_orders_is_no_race():
    changed = "if (threadIdx.x == 0) total[blockIdx.x] = 0; __syncthreads(); if (threadIdx.x == 1)"
    guarded = (
        SUMS.replace("if (i < count)", f"{changed} if (i < count)")
        .replace("i % 3", "blockIdx.x")
        .replace("atomicAdd(&total[blockIdx.x], x[i])", "total[blockIdx.x] += x[i]")
    )
    total = torch.zeros(3)
    arguments = {"x": torch.ones(24), "total": total, "count": 24}
    launched = "sums", 3, 8, arguments
    emulator.run(guarded, *launched, accumulates=("total",), order=1)
    assert total.tolist() == [1, 1, 1]
    unguarded = guarded.replace("__syncthreads();", "")
    with pytest.raises(emulator.KernelError, match="nothing orders the two"):
        emulator.run(unguarded, *launched, accumulates=("total",))


@needs_compiler
def test_a_failed_run_leaves_the_tensors_alone():
    x, y = torch.arange(10.0), torch.arange(10.0)
    with pytest.raises(emulator.KernelError):
        emulator.run(TWICE, "twice", 1, 8, {"x": x, "y": y, "count": 10})
    assert x.equal(torch.arange(10.0)) and y.equal(torch.arange(10.0))


@needs_compiler
@pytest.mark.parametrize(
    "name, dtype", [("float", torch.float32), ("__half", torch.float16)]
)
def test_what_no_thread_writes_is_named(name, dtype):
    source = TWICE.replace("float", name).replace("i < count", "i < 1")
    x, y = torch.ones(10, dtype=dtype), torch.zeros(10, dtype=dtype)
    with pytest.raises(emulator.KernelError, match=r"no thread writes y\[1\]"):
        emulator.run(source, "twice", 2, 8, {"x": x, "y": y, "count": 10})


@needs_compiler
def test_grids_and_blocks_of_three_dimensions():
    source = """
    __global__ void where(int* x, int* y, int* z) {
        int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        int i = block * blockDim.x * blockDim.y * blockDim.z + thread;
        x[i] = blockIdx.x * 10 + threadIdx.x;
        y[i] = blockIdx.y * 10 + threadIdx.y;
        z[i] = blockIdx.z * 10 + threadIdx.z;
    }"""
    x, y, z = (torch.zeros(2, 3, 4, 2, 2, 3, dtype=torch.int32) for _ in range(3))
    emulator.run(source, "where", (4, 3, 2), (3, 2, 2), {"x": x, "y": y, "z": z})
    for result, block_dim, thread_dim in ((x, 2, 5), (y, 1, 4), (z, 0, 3)):
        for b in range(result.shape[block_dim]):
            for t in range(result.shape[thread_dim]):
                part = result.select(thread_dim, t).select(block_dim, b)
                assert part.eq(10 * b + t).all()


@needs_compiler
@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"x": torch.zeros(10).double()}, TypeError, "x must have elements of 4 bytes"),
        ({"x": torch.zeros(20)[::2]}, ValueError, "x must be a contiguous CPU tensor"),
        ({"count": 1.5}, TypeError, "count must be an int, got 1.5"),
        ({"more": 1}, ValueError, "each of the 3 parameters of twice"),
    ],
)
def test_arguments_that_do_not_fit(change, error, message):
    arguments = {"x": torch.zeros(10), "y": torch.zeros(10), "count": 10} | change
    with pytest.raises(error, match=message):
        emulator.run(TWICE, "twice", 2, 8, arguments)


# Half precision


@needs_compiler
@pytest.mark.parametrize(
    "name, dtype", [("__half", torch.float16), ("__nv_bfloat16", torch.bfloat16)]
)
def test_half_types_round_as_in_pytorch(name, dtype):
    source = f"""
    __global__ void widen(const {name}* x, float* y) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        y[i] = float(x[i]);
    }}
    __global__ void narrow(const float* x, {name}* y) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        y[i] = {name}(x[i]);
    }}"""
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    floats = torch.empty(2**16)
    emulator.run(source, "widen", 256, 256, {"x": halves, "y": floats})
    assert_same_bits(floats, halves.float())
    # Every half, the middle between two, and the floats beside these.
    bits = torch.arange(-(2**31), 2**31, 2**12)[:, None] + torch.tensor(
        [0, 1, 2**12 - 1]
    )
    cases = bits.to(torch.int32).view(torch.float32).flatten()
    narrowed = torch.empty(len(cases), dtype=dtype)
    emulator.run(source, "narrow", len(cases) // 256, 256, {"x": cases, "y": narrowed})
    assert_same_bits(narrowed, cases.to(dtype))


# The libraries that it builds


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """As in a fresh process, which finds nothing built."""
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    emulator._compile.cache_clear()
    yield tmp_path
    emulator._compile.cache_clear()


@needs_compiler
def test_a_library_is_built_once_and_found_by_other_processes(empty_cache, monkeypatch):
    compiled = []

    def run(command, **options):
        compiled.extend(["-c"] if "-c" in command else [])
        Path(command[-1]).touch()
        return SimpleNamespace(returncode=0)

    def built(source=TWICE, **changed):
        for name, value in changed.items():
            monkeypatch.setattr(emulator, name, value)
        emulator._compile.cache_clear()
        emulator._compile(source, "twice")
        return len(compiled), len(list(empty_cache.glob("kernel_*.so")))

    monkeypatch.setattr(emulator.subprocess, "run", run)
    monkeypatch.setattr(emulator.ctypes, "CDLL", str)
    assert built(compiler_version=lambda command: "one") == built() == (1, 1)
    assert built(TWICE.replace("2 *", "3 *")) == (2, 2)
    assert built(FLAGS=[*emulator.FLAGS, "-O2"]) == (3, 3)
    assert built(compiler_version=lambda command: "another") == (4, 4)
    for name in emulator.HEADERS:
        shutil.copytree(emulator.FOLDER, empty_cache / name)
        (empty_cache / name / name).write_text("// another")
        built(FOLDER=empty_cache / name)
    assert built() == (7, 7)


# NVRTC


@needs_nvrtc
def test_nvrtc_sees_a_spill():
    oldest = every_architecture.architectures()[0]
    # A launch bound that leaves 32 registers, and 64 sums that are alive at once
    greedy = """
    __global__ void __launch_bounds__(1024, 2) greedy(const float* x, float* y) {
        float sums[64];
        #pragma unroll
        for (int i = 0; i < 64; ++i) sums[i] = x[i * 1024 + threadIdx.x];
        for (int j = 0; j < 100; ++j) {
            #pragma unroll
            for (int i = 0; i < 64; ++i) sums[i] = sums[i] * sums[(i + 1) % 64] + x[j];
        }
        #pragma unroll
        for (int i = 0; i < 64; ++i) y[i * 1024 + threadIdx.x] = sums[i];
    }"""
    compiled = every_architecture.compile_for(oldest, greedy, ["greedy"])
    assert compiled["greedy"].spilled_bytes > 0


def test_without_cupy_one_sentence_says_what_compiles(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(
        ImportError, match=r"needs CuPy with NVRTC: pip install 'cupy-cuda13x"
    ):
        every_architecture.architectures()
