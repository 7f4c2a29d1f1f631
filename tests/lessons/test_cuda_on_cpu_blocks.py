"""The emulator and the threads of a block: shared memory, and where they meet."""

import pytest
import torch

from helpers.lessons.cuda_on_cpu import emulator
from tests.needs import needs_compiler

NEIGHBOURS = """
__global__ void differences(const float* x, float* y) {
    __shared__ float tile[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = tile[threadIdx.x] - (threadIdx.x > 0 ? tile[threadIdx.x - 1] : 0);
}"""
SQUARES = torch.arange(16.0).square()
DIFFERENCES = SQUARES.view(2, 8).diff(prepend=torch.zeros(2, 1)).flatten()


def run_neighbours(old="", new="", **options):
    assert old in NEIGHBOURS
    y = torch.zeros(16)
    source = NEIGHBOURS.replace(old, new)
    accesses = emulator.run(
        source, "differences", 2, 8, {"x": SQUARES, "y": y}, **options
    )
    return accesses, y


@needs_compiler
@pytest.mark.parametrize("order", ["any", "up", "down"])
def test_threads_of_a_block_share_memory(order):
    accesses, y = run_neighbours(watch=(1, 3), order=order)
    assert y.equal(DIFFERENCES)
    shared = [("write", "__shared__"), ("read", "__shared__"), ("read", "__shared__")]
    assert [access[:2] for access in accesses] == [
        ("read", "x"),
        *shared,
        ("write", "y"),
    ]


@needs_compiler
def test_a_compiler_that_fortifies_as_that_of_ubuntu_does(monkeypatch):
    """Its memset would end Python where it clears the arrays in shared memory."""
    monkeypatch.setattr(emulator, "FLAGS", ["-D_FORTIFY_SOURCE=2", *emulator.FLAGS])
    monkeypatch.setattr(emulator, "_compile", emulator._compile.__wrapped__)
    assert run_neighbours()[1].equal(DIFFERENCES)


@needs_compiler
@pytest.mark.parametrize(
    "read", ["tile[i ^ 1]", "tile[i] + tile[i ^ 1]", "tile[i ^ 1] + tile[i]"]
)
def test_a_tile_that_is_used_again_needs_a_second_barrier(read):
    source = f"""
    __global__ void reuse(const float* x, float* y) {{
        __shared__ float tile[4];
        int i = threadIdx.x;
        for (int row = 0; row < 2; ++row) {{
            tile[i] = x[4 * row + i];
            __syncthreads();
            y[4 * row + i] = {read};
            __syncthreads();
        }}
    }}"""
    once = "__syncthreads();\n        }"
    assert source.count(once) == 1
    arrays = {"x": SQUARES[:8], "y": torch.zeros(8)}
    emulator.run(source, "reuse", 1, 4, arrays)
    with pytest.raises(emulator.KernelError, match="with no __syncthreads between"):
        emulator.run(source.replace(once, "}"), "reuse", 1, 4, arrays)


@needs_compiler
@pytest.mark.parametrize(
    "old, new, sentence",
    [
        (
            "__syncthreads();",
            "",
            r"\(1, 0, 0\) .* reads shared memory that .* \(0, 0, 0\) writes",
        ),
        (
            "tile[threadIdx.x] =",
            "tile[0] =",
            r"writes .* that thread \(0, 0, 0\) touches",
        ),
        (
            "y[i] =",
            "tile[threadIdx.x ^ 1] = 0; y[i] =",
            r"\(1, 0, 0\) .* writes shared memory",
        ),
        (
            "tile[8]",
            "tile[7]",
            r"thread \(7, 0, 0\) .* writes outside of its arrays in shared",
        ),
        (
            "tile[threadIdx.x] =",
            "if (i % 2) tile[threadIdx.x] =",
            "that nothing was written to",
        ),
        (
            "y[i] =",
            "y[i + 1] =",
            r"thread \(7, 0, 0\) of block \(1, 0, 0\) writes y\[16\]",
        ),
        ("__syncthreads();", "while (x[0] == 0) __syncthreads();", "does not end"),
    ],
)
def test_faults_of_threads_that_meet_are_named(old, new, sentence):
    with pytest.raises(emulator.KernelError, match=sentence):
        run_neighbours(old, new, seconds=0.3)


@needs_compiler
@pytest.mark.parametrize("order", ["any", "up", "down"])
@pytest.mark.parametrize(
    "old, new, sentence",
    [
        (
            "__syncthreads();",
            "if (threadIdx.x > 0) __syncthreads();",
            r"thread \(1, 0, 0\) of block \(0, 0, 0\) waits at the __syncthreads in line 6 of the"
            r" source, but thread \(0, 0, 0\) has returned: a block must meet at one barrier",
        ),
        (
            "tile[threadIdx.x] =",
            "if (i < 9) { y[i] = 0; return; } tile[threadIdx.x] =",
            r"thread \(1, 0, 0\) of block \(1, 0, 0\) .* but thread \(0, 0, 0\) has returned",
        ),
        (
            "__syncthreads();",
            "if (i % 8 < 5)\n__syncthreads(); else\n__syncthreads();",
            r"thread \(0, 0, 0\) .* in line 7 .* \(5, 0, 0\) waits at another, in line 8",
        ),
        (
            "__syncthreads();",
            "if (i % 8 < 5) __syncthreads(); else __syncthreads();",
            r"thread \(0, 0, 0\) .* in line 6 .* \(5, 0, 0\) waits at another, in line 6",
        ),
        (
            "__syncthreads();",
            "for (int k = 0; k < 2 + i / 15; ++k) __syncthreads();",
            r"thread \(7, 0, 0\) of block \(1, 0, 0\) waits .* thread \(0, 0, 0\) has returned",
        ),
    ],
)
def test_threads_that_do_not_meet_are_named(old, new, sentence, order):
    with pytest.raises(emulator.KernelError, match=sentence):
        run_neighbours(old, new, seconds=5.0, order=order)


@needs_compiler
def test_threads_may_meet_often_and_in_conditions_that_all_share():
    barriers = (
        "for (int k = 0; k < 3; ++k) if (gridDim.x == 2) __syncthreads(); else return;"
    )
    assert run_neighbours("__syncthreads();", barriers)[1].equal(DIFFERENCES)


@needs_compiler
def test_the_time_may_end_between_any_two_instructions():
    """Also where a loop does little else than wait at barriers."""
    source = """
    __global__ void waits(const float* x, float* y) {
        __shared__ float tile[8];
        while (x[0] == 0) __syncthreads();
        y[threadIdx.x] = tile[threadIdx.x];
    }"""
    for _ in range(40):
        with pytest.raises(emulator.KernelError, match="does not end"):
            arrays = {"x": torch.zeros(8), "y": torch.zeros(8)}
            emulator.run(source, "waits", 1, 8, arrays, seconds=0.01)
