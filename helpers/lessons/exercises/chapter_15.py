"""Exercises of chapter 15: the kernel again."""

import contextlib
import inspect
import os
import re
from numbers import Number
from unittest import mock

import torch

from helpers.lessons.cuda_on_cpu import emulator, every_architecture
from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.numbers import wrong_element
from helpers.lessons.judge.properties import each_of, with_zeros
from helpers.lessons.language import N_, _, at, followed
from helpers.lessons.native import c_and_cpp
from helpers.lessons.native.triton_kernels import (
    compiles_for_a_gpu,
    import_triton,
    watched_loads,
)
from helpers.ops.involution.compiler import find_compiler


def loads_and_multiply_adds(K, channels, rows):
    inputs = K * (rows + K - 1) * channels
    weights = K * K * rows
    return inputs + weights, K * K * rows * channels


SIZES = (3, 1, 1), (3, 4, 1), (3, 1, 2), (7, 4, 4), (2, 3, 5)


def _as_counted(attempt, K, channels, rows):
    # Which pixels and weights, one by one, as the thread of the exercise meets them.
    window = {
        (c, r + i, j)
        for c in range(channels)
        for r in range(rows)
        for i in range(K)
        for j in range(K)
    }
    inputs, weights = len(window), K * K * rows
    expected = inputs + weights, weights * channels
    given = attempt(K, channels, rows)
    given = given.tolist() if hasattr(given, "tolist") else given
    pair = isinstance(given, (tuple, list)) and len(given) == 2
    if not pair or not all(isinstance(n, Number | torch.Tensor) for n in given):
        yield _("return two numbers, got {given!r}.", given=given)
    loads, products = given
    if (loads, products) == expected[::-1] != expected:
        yield _("{one} and {other}. The other way round?", one=loads, other=products)
    if products != expected[1]:
        yield _(
            "{given} multiply-adds, but it makes {expected}.",
            given=products,
            expected=expected[1],
        )
    if loads != expected[0]:
        yield _(
            "{given} loads, but it makes {expected}, {inputs} of the input and "
            "{weights} of the weight.",
            given=loads,
            expected=expected[0],
            inputs=inputs,
            weights=weights,
        )


def _refused(error, *more):
    """What the emulator, or the compiler before it, says of a source."""
    said = re.search(r"error: (.*)", error.compiler)
    if said:
        return _("it does not compile: {said}.", said=said[1])
    return followed(_("{error}.", error=error), *more)


EXERCISE_1 = Exercise(
    number="15.1",
    reference=loads_and_multiply_adds,
    wrong=[
        ({"K * (rows + K - 1) * channels": "K * K * rows * channels"}, "rows = 2"),
        (
            {
                "return inputs + weights, K * K * rows * channels": "return K * K * rows * channels, inputs + weights"
            },
            "other way round?",
        ),
        (
            {"K * K * rows * channels": "K * K * channels"},
            "multiply-adds, but it makes",
        ),
        ({"return inputs + weights, K": "return K"}, "return two numbers, got"),
    ],
    properties=[
        each_of(
            SIZES, _as_counted, N_("with K = {K}, channels = {channels}, rows = {rows}")
        )
    ],
    success="with 7 × 7 taps, 4 channels and 4 rows: 0.61 loads per multiply-add, "
    "where the kernel with constants needs 2.",
    hints=(
        "Two output pixels one below the other share K - 1 of the K rows of their "
        "windows.",
        "`rows` windows of K rows, each one row further down, cover rows + K - 1 "
        "input rows.",
        "A weight belongs to an output pixel: no two pixels share it, but all "
        "channels do.",
    ),
    explanation="Both arrays are shared, in different directions: the weight by "
    "channels, the input by neighbouring outputs. With 7 × 7 taps, 4 "
    "channels and 4 rows need 476 loads, where 16 channels of one row need "
    "833, and 16 rows of one channel 938; each keeps 16 sums.",
)


TAPS = """
__global__ void taps(const float* x, const float* weight, float* y, int channels, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float factors[3];
    for (int k = 0; k < 3; ++k) factors[k] = weight[k * n + i];
    for (int c = 0; c < channels; ++c) {
        float sum = 0;
        for (int k = 0; k < 3; ++k) {
            int j = i + k - 1;
            if (j >= 0 && j < n) sum += factors[k] * x[c * n + j];
        }
        y[c * n + i] = sum;
    }
}
"""


KEEPS_SUMS = """    float sums[4] = {};
    for (int k = 0; k < 3; ++k) {
        int j = i + k - 1;
        float factor = weight[k * n + i];
        for (int c = 0; c < channels; ++c)
            if (j >= 0 && j < n) sums[c] += factor * x[c * n + j];
    }
    for (int c = 0; c < channels; ++c) y[c * n + i] = sums[c];
"""


def _in_one_dimension(x, weight):
    """Involution of (channels, n) with weights of (3, n), in plain PyTorch."""
    padded = torch.nn.functional.pad(x, (1, 1))
    n = x.shape[-1]
    return sum(weight[k] * padded[..., k : k + n] for k in range(3))


ONCE = N_(
    "Add up in a register, and write each element once: each write moves the bytes "
    "again."
)


def _compiles_for_cuda(source):
    """C++ takes more than CUDA, such as an array whose size is a variable."""
    try:
        every_architecture.machine_code(90, source, ["taps"])
    except every_architecture.NvrtcError as error:
        said = re.search(r"error: (.*)", str(error))
        yield _("it runs here, but CUDA's compiler refuses it: {said}.", said=said[1])
    except ImportError:
        return  # there is none to ask


# Channels, numbers in each, and blocks of 8 threads.
LOADED = (1, 5, 2), (4, 11, 2), (1100, 11, 2), (3, 70, 10), (0, 5, 1)


def _loads_once(source, channels, n, blocks):
    x = with_zeros(channels, n, dtype=torch.float32)
    weight = with_zeros(3, n, dtype=torch.float32, seed=1)
    y = torch.empty_like(x)
    arrays = {"x": x, "weight": weight, "y": y, "channels": channels, "n": n}
    try:
        did = emulator.run(
            source,
            "taps",
            blocks,
            8,
            arrays,
            watch=((0, 0, 0), (2, 0, 0)),
            seconds=c_and_cpp.PROCESSOR_SECONDS,
        )
    except emulator.KernelError as error:
        once = _(ONCE) if error.fault == emulator.Fault.WRITTEN_TWICE else None
        yield _refused(error, once)
    expected = _in_one_dimension(x.double(), weight.double()).float()
    yield wrong_element(y, expected, 1e-4)
    reads = [name for action, name, where in did if action == "read"]
    if channels > 1 and "__shared__" in reads:
        yield _(
            "the numbers are right, but `__shared__` memory is loaded each time, too: "
            "{count} loads by thread 2. Use registers.",
            count=reads.count("__shared__"),
        )
    for name, needed in (("weight", 3), ("x", 3 * channels)):
        if reads.count(name) > needed and channels:
            yield _(
                "the numbers are right, but thread 2 loads from `{name}` {count} "
                "times, and needs {needed} elements of it.",
                name=name,
                count=reads.count(name),
                needed=needed,
            )


EXERCISE_2 = Exercise(
    number="15.2",
    name="taps",
    reference=TAPS,
    stub={
        "    float factors[3];\n"
        "    for (int k = 0; k < 3; ++k) factors[k] = weight[k * n + i];\n": "",
        "factors[k] * x": "weight[k * n + i] * x",
    },
    wrong=[
        (
            {
                "    float factors[3];\n": "",
                "float sum = 0;": "float sum = 0, factors[3];",
                "    for (int k = 0; k < 3; ++k) factors[k] = weight[k * n + i];\n": "",
                "sum += factors[k]": "sum += (factors[k] = weight[k * n + i])",
            },
            "loads from `weight` 12 times, and needs 3",
        ),
        ({"weight[k * n + i]": "weight[i * 3 + k]"}, "is right"),
        (
            {"float factors[3]": "float factors[channels + 3]"},
            "CUDA's compiler refuses it",
        ),
        (
            {
                "float factors[3]": "__shared__ float all[8][3]; float* factors = "
                "all[threadIdx.x]"
            },
            "`__shared__` memory is loaded each time, too: 12 loads by thread 2",
        ),
        (
            {TAPS[TAPS.index("    float factors[3];") : TAPS.rindex("}")]: KEEPS_SUMS},
            "with channels = 1100 and n = 11: ",
        ),
    ],
    needs=find_compiler,
    properties=[
        each_of(LOADED, _loads_once, N_("with channels = {channels} and n = {n}")),
        _compiles_for_cuda,
    ],
    success="three weights per thread, for any number of channels; all other loads "
    "are of x.",
    hints=(
        "What in the inner loop does not depend on `c`?",
        "Three numbers, known before the loop over channels begins. Where can a "
        "thread keep them?",
        "`float factors[3];` outside the loop becomes registers, if the loops over "
        "`k` unroll.",
    ),
    explanation="A load whose address does not change in a loop belongs before it. The "
    "compiler may move it only if no write in the loop can change what is "
    "loaded. `__restrict__` promises that none does; here you moved the load "
    "yourself.",
)


UNWRITTEN = -1e30
tl = None  # triton.language, once it is needed


def involution_1d(x, weight, y, n):
    i = tl.program_id(0) * 32 + tl.arange(0, 32)
    mine = i < n
    left = tl.load(x + i - 1, mask=mine & (i > 0), other=0)
    here = tl.load(x + i, mask=mine, other=0)
    right = tl.load(x + i + 1, mask=i + 1 < n, other=0)
    sum = tl.load(weight + i, mask=mine, other=0) * left
    sum += tl.load(weight + n + i, mask=mine, other=0) * here
    sum += tl.load(weight + 2 * n + i, mask=mine, other=0) * right
    tl.store(y + i, sum, mask=mine)


PRECEDENCE = N_(
    "`&` binds tighter than `>`, and `and` does not work element by element: write"
    " `(i > 0) & (i < n)`."
)


def _runs_in_triton(attempt):
    triton = import_triton()
    attempt = getattr(attempt, "fn", attempt)  # with @triton.jit left in
    names = attempt.__globals__
    names["tl"] = names.get("tl") or triton.language
    interpreted = not torch.cuda.is_available()
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"} if interpreted else {}):
        kernel = triton.jit(attempt)
    device = "cpu" if interpreted else "cuda"
    for n, programs in ((5, 1), (40, 2), (100, 4)):
        # What lies beside the arrays is not zero, and must neither be used nor written.
        x, weight = torch.arange(1.0, n + 1), torch.linspace(1, 2, 3 * n)
        expected = _in_one_dimension(x, weight.view(3, n))
        x, weight = (
            torch.nn.functional.pad(t, (32, 32), value=100.0).to(device)
            for t in (x, weight)
        )
        y = torch.full((n + 64,), UNWRITTEN, device=device)
        arrays = {"x": x[32:-32], "weight": weight[32:-32]}
        with (
            watched_loads(arrays) if interpreted else contextlib.nullcontext() as beside
        ):
            try:
                kernel[(programs,)](x[32:], weight[32:], y[32:], n)
            except Exception:
                if indexed := re.search(
                    r"\b(x|weight|y)\[", inspect.getsource(attempt)
                ):
                    yield _(
                        "`{indexed}` is an address, not an array. `tl.load` reads at "
                        "an address, `tl.store` writes there.",
                        indexed=indexed[1],
                    )
                yield from compiles_for_a_gpu(attempt)
                raise
        y = y.cpu()
        where = _("with n = {n}", n=n)
        if beside:
            loose = re.search(r"\band\b|& *\w+ *[<>]", inspect.getsource(attempt))
            look = _("Look at that load's mask.")
            yield at(where, followed(beside[0], look, _(PRECEDENCE) if loose else None))
        if (y[-32:] != UNWRITTEN).any() or (y[:32] != UNWRITTEN).any():
            wrong = _(
                "it writes beyond y, which ends at y[{value}]. Look at the store.",
                value=n - 1,
            )
            yield at(where, wrong)
        given = y[32:-32]
        for i in (given == UNWRITTEN).nonzero().flatten().tolist():
            yield at(where, _("y[{i}] is not written.", i=i))
        wrong = wrong_element(given, expected, 1e-5)
        other = _("A load whose mask leaves an element out needs `other`.")
        yield at(where, followed(wrong, other if given.isnan().any() else None))


EXERCISE_3 = Exercise(
    number="15.3",
    reference=involution_1d,
    wrong=[
        ({"mask=mine & (i > 0)": "mask=mine"}, "with n = 5: "),
        (
            {"tl.store(y + i, sum, mask=mine)": "tl.store(y + i, sum)"},
            "beyond y, which ends at y[4]",
        ),
        ({"tl.program_id(0) * 32 + ": ""}, "with n = 40: y[32] is not written"),
        (
            {"tl.load(x + i, mask=mine, other=0)": "x[i]"},
            "`x` is an address, not an array.",
        ),
        (
            {
                "def involution": "def double(p):\n    return p + p\n\n\ndef involution",
                "+ i, sum,": "+ i, double(sum) / 2,",
            },
            "double, which has no @triton.jit",
        ),
    ],
    needs=import_triton,
    properties=[_runs_in_triton, compiles_for_a_gpu],
    success="three loads of each x: Triton does not merge them, but the cache serves "
    "them. How often something is loaded is your decision.",
    hints=(
        "x + i - 1 is an array of addresses: the left neighbours of all 32 elements.",
        "A mask says which elements are loaded; the others get the value of `other`.",
        "Element i has a left neighbour if i > 0 and i < n, and a right one if i + 1 "
        "< n.",
    ),
    explanation="A program computes on arrays of addresses. Each load needs a mask of "
    "its own, because the three neighbours lie at different places; the "
    "store's mask covers what it owns.",
)


PARTIAL = """
__global__ void partial_sums(const float* x, float* partial, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    float sum = 0;
    for (int r = blockIdx.y; r < rows; r += gridDim.y) sum += x[r * columns + c];
    partial[blockIdx.y * columns + c] = sum;
}
"""


# Rows, columns, blocks in y; 100 rows are many for a block.
ADDED = (7, 5, 3), (2, 33, 5), (1, 1, 1), (100, 5, 3), (12, 40, 4)


def _adds_each_row_once(source, rows, columns, parts):
    x = with_zeros(rows, columns, dtype=torch.float32)
    if rows == 12:  # the bits of a sum tell which rows it has
        x = (2.0 ** torch.arange(12))[:, None].repeat(1, columns)
    partial = torch.empty(parts, columns)
    arrays = {"x": x, "partial": partial, "rows": rows, "columns": columns}
    try:
        emulator.run(
            source,
            "partial_sums",
            (-(-columns // 32), parts),
            32,
            arrays,
            seconds=c_and_cpp.PROCESSOR_SECONDS,
            order=1,
        )
    except emulator.KernelError as error:
        yield _refused(error)
    given, right = partial.sum(0), x.sum(0)
    if not given.allclose(right, atol=1e-4):
        c = int((given - right).abs().nan_to_num(torch.inf).argmax())
        yield _(
            "the parts of column {c} add up to {given:.4g}, but {right:.4g} is right.",
            c=c,
            given=given[c],
            right=right[c],
        )
    some = (0 < partial) & (partial < right) & (partial == partial.int())
    if rows == 12 and (some.sum(0) < 2).any():
        yield _("one block adds all the rows, or all add the same ones.")


EXERCISE_4 = Exercise(
    number="15.4",
    name="partial_sums",
    reference=PARTIAL,
    stub={PARTIAL[PARTIAL.index("    int c") : PARTIAL.rindex("}")]: "    // yours\n"},
    wrong=[
        ({"partial[blockIdx.y * columns + c]": "partial[c]"}, "was written before"),
        (
            {"sum += x[r": "partial[blockIdx.y * columns + c] += x[r"},
            "which nothing was written to",
        ),
        ({"    if (c >= columns) return;\n": ""}, "but x has 35 elements"),
        ({"int r = blockIdx.y;": "int r = 0;"}, "add up to"),
        (
            {
                "int r = blockIdx.y; r < rows; r += gridDim.y": "int r = 16 * "
                "blockIdx.y; r < rows && r < 16 * (blockIdx.y + 1); ++r"
            },
            "with 100 rows of 5 and 3 blocks in y: the parts of column",
        ),
    ],
    needs=find_compiler,
    properties=[
        each_of(
            ADDED,
            _adds_each_row_once,
            N_("with {rows} rows of {columns} and {parts} blocks in y"),
        ),
    ],
    success="each number of `partial` has one thread that writes it, so the sum is the "
    "same in every run.",
    hints=(
        "Which thread owns which number of `partial`? That thread writes it, once.",
        "Two blocks in y must not add the same row. How do they divide the rows, if "
        "their number does not divide the number of rows?",
        "Let block y take the rows blockIdx.y, blockIdx.y + gridDim.y, and so on.",
    ),
    explanation="The rows are dealt out like cards, so any number of blocks gets a fair "
    "share, and a block without a row writes 0. The sum is kept in a register, and "
    "written once.",
)
