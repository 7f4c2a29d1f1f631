"""Exercises of chapter 07: the involution operator in CUDA."""

import itertools
import math
import re
from functools import partial

import torch
import torch.nn.functional as F

from helpers.lessons.cuda_on_cpu import emulator
from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import (
    alike,
    changed_in_place,
    near_miss,
    wrong_element,
)
from helpers.lessons.judge.properties import each_of, random, with_zeros
from helpers.lessons.language import N_, _, at, followed
from helpers.lessons.native import c_and_cpp
from helpers.ops.involution import involution2d
from helpers.ops.involution.compiler import find_compiler

HEAD = """
__global__ void depthwise(const float* x, const float* weight, float* y,
                          int channels, int height, int width, int K) {
    int element = blockIdx.x * blockDim.x + threadIdx.x;
"""
DEPTHWISE = (
    HEAD
    + """\
    if (element >= channels * height * width) return;
    int c = element / (height * width);
    int row = element / width % height;
    int column = element % width;
    float sum = 0;
    for (int i = 0; i < K; ++i) {
        for (int j = 0; j < K; ++j) {
            int r = row + i - K / 2, s = column + j - K / 2;
            if (r < 0 || r >= height || s < 0 || s >= width) continue;
            sum += weight[(c * K + i) * K + j] * x[(c * height + r) * width + s];
        }
    }
    y[element] = sum;
}
"""
)


# Without optimisation, so that no write is left out. Both compilers skip what is not
# theirs.
AS_WRITTEN = (
    '#pragma GCC optimize "O0"\n#pragma clang optimize off\n#line 1 "kernel.cu"\n'
)


def _without_comments(source):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)


def _is_a_kernel(source):
    code = _without_comments(source)
    if "__global__" not in code or not re.search(r"\bdepthwise\s*\(", code):
        yield _("the source must hold `__global__ void depthwise(...)`.")
    try:
        # Once, and not again in every copy of this process.
        emulator._compile(AS_WRITTEN + source, "depthwise")
    except emulator.KernelError as error:
        yield emulator.compiler_says(error, source)


# Channels, height, width, K, threads in a block.
IMAGES = (
    (1, 4, 5, 1, 32),
    (3, 5, 4, 5, 32),
    (2, 3, 4, 2, 32),
    (2, 6, 7, 9, 5),
    (1, 260, 257, 1, 256),
    (0, 2, 3, 3, 32),
    (5, 1, 1, 4, 1),
)


def _convolves(source, channels, height, width, K, threads):
    x = with_zeros(channels, height, width, dtype=torch.float32)
    weight = with_zeros(channels, K, K, dtype=torch.float32, seed=1)
    y = torch.empty_like(x)
    sizes = {"channels": channels, "height": height, "width": width, "K": K}
    launch = partial(
        emulator.run,
        AS_WRITTEN + source,
        "depthwise",
        -(-x.numel() // threads) + 1,
        threads,
        {"x": x, "weight": weight, "y": y, **sizes},
        seconds=c_and_cpp.PROCESSOR_SECONDS,
    )
    try:
        yield c_and_cpp.crash_of(launch)
        launch()
    except emulator.KernelError as error:
        yield _explained(error, x.numel(), threads)
    wrong = x.numel() and wrong_element(y, _convolved(x, weight), 1e-4)
    if wrong:
        if re.search(r"\bfloat\s+\w+\s*;", _without_comments(source)):
            hint = _("A variable that nobody set holds any number: begin at 0.")
        else:
            misses = _misread(x, weight).items()
            hint = next((says for says, v in misses if alike(y, v, 1e-4)), None)
        yield followed(wrong, hint)


def _convolved(x, weight, shift=0):
    """Each channel with its filter, read `shift` rows and columns too far."""
    before, after = weight.shape[-1] // 2 - shift, (weight.shape[-1] - 1) // 2 + shift
    padded = F.pad(x[None], [before, after] * 2)
    return F.conv2d(padded, weight[:, None], groups=len(x))[0]


def _misread(x, weight):
    """What `y` is where an index is read otherwise, by what is then said."""
    (_channels, height, width), K = x.shape, weight.shape[-1]
    rows = torch.arange(x.numel()).view_as(x) // height % width
    # Some of these rows lie below the image.
    below = _convolved(F.pad(x, [0, 0, 0, width]), weight)
    return {
        _("It reads channel 0 of `x` for every channel."): _convolved(
            x[:1].expand_as(x), weight
        ),
        _("It takes the filter of channel 0 for every channel."): _convolved(
            x, weight[:1].expand_as(weight)
        ),
        _("It takes row j, column i of the filter for tap (i, j)."): _convolved(
            x, weight.mT
        ),
        _("It takes the taps of the filter in reverse order."): _convolved(
            x, weight.flip(1, 2)
        ),
        _("For an even K it reads `x` one row and one column too far."): _convolved(
            x, weight, 1 - K % 2
        ),
        _("Its row is not that of the element: a row has `width` elements."): (
            below.gather(1, rows)
        ),
    }


def _explained(error, count, threads):
    """What a thread did wrong, and what may be the reason.

    `count` threads own an element.
    """
    said = _("{error}.", error=error)
    number = error.thread and error.thread[0] + threads * error.block[0]
    once = _("Sum in a variable of the thread, and write once")
    if error.fault == emulator.Fault.READ_UNWRITTEN and error.array == "y":
        unwritten = _(
            "thread {number} reads y[{element}], which holds no value yet.",
            number=number,
            element=error.element,
        )
        return followed(unwritten, once)
    if error.fault == emulator.Fault.WRITTEN_TWICE:
        return followed(said, once if number == error.element else None)
    if error.thread and number >= count:
        owns = _(
            "y has {count} elements: thread {number} owns none",
            count=count,
            number=number,
        )
        return followed(said, owns)
    return str(error)


EXERCISE_1 = Exercise(
    number="7.1",
    name="depthwise",
    reference=DEPTHWISE,
    stub=f"""{HEAD}\
    // ... yours: find c, row and column of this element, sum over the taps, write y[element]
}}
""",
    wrong=[
        (
            {"    if (element >= channels * height * width) return;\n": ""},
            "reads weight[1], but weight has 1 element. y has 20 elements: thread 20 "
            "owns none",
        ),
        ({"x[(c * height + r) * width": "x[r * width"}, "reads channel 0 of `x`"),
        ({"element / (": "element // ("}, "In C, `//` begins a comment"),
        ({"sum +=": "y[element] = sum +="}, "write once"),
        ({"float sum = 0;": "float sum;"}, "A variable that nobody set"),
    ],
    needs=find_compiler,
    properties=[
        _is_a_kernel,
        each_of(
            IMAGES,
            _convolves,
            N_("with x of shape ({channels}, {height}, {width}) and K = {K}"),
        ),
    ],
    success="every element was written once, no read left its array, and every "
    "number is right.",
    hints=(
        "There are threads to spare; the chapter's first example shows the test that "
        "stops them.",
        "Element (c, row, column) has the number (c * height + row) * width + "
        "column. Division and remainder take it apart again.",
        "row r, column s of channel c is x[(c * height + r) * width + s]; skip the "
        "taps outside.",
    ),
    explanation="Division and remainder turn a number in memory back into indices. The "
    "bounds of the image are tested in both directions, because memory goes "
    "on where the image ends.",
)


def grad_weight_at(grad_output, x, n, g, h, w, groups, K):
    channels = x.shape[1] // groups
    group = slice(g * channels, (g + 1) * channels)
    padded = F.pad(x, [K // 2] * 4)
    patch = padded[n, group, h : h + K, w : w + K]
    return (grad_output[n, group, h, w][:, None, None] * patch).sum(0)


PIXELS = [  # groups, K, channels, height, width, n, g, h, w
    (groups, K, C, H, W, *pixel)
    for groups, K, C, H, W in (
        (1, 3, 4, 5, 6),
        (2, 3, 4, 5, 6),
        (3, 1, 6, 4, 4),
        (5, 7, 5, 9, 7),
    )
    for pixel in (
        (0, 0, 2, 3),
        (2, groups - 1, 2, 2),
        (1, 0, 0, 0),
        (0, 0, H - 1, W - 1),
    )
]


def _as_autograd_says(attempt, groups, K, C, H, W, n, g, h, w):
    x, grad_output = random(3, C, H, W), random(3, C, H, W, seed=1)
    weight = random(3, groups, K, K, H, W).requires_grad_()
    output = involution2d(x, weight, padding=K // 2)
    (expected,) = torch.autograd.grad(output, weight, grad_output)
    kept, handed = x.clone(), grad_output.clone()
    given = attempt(handed, kept, n, g, h, w, groups, K)
    yield changed_in_place(x=(kept, x), grad_output=(handed, grad_output))

    def products(pixel, around):
        patches = F.pad(around, [K // 2] * 4)[n, :, h : h + K, w : w + K]
        return pixel[n, :, h, w][:, None, None] * patches

    right, each = expected[n, g, :, :, h, w], products(grad_output, x)
    groups_of = each.view(groups, C // groups, K, K)
    misses = {
        _("it holds one channel of the group, and the filter serves all."): [
            *groups_of[g]
        ],
        _("it sums other channels than those of its group."): [
            *groups_of.sum(1),
            each.sum(0),
            each[g::groups].sum(0),
        ],
        _(
            "it takes the neighbourhood from `grad_output` and the one pixel from `x`."
        ): products(x, grad_output).view_as(groups_of)[g].sum(0),
        _(
            "it averages over the channels of the group, but their effects add up."
        ): groups_of[g].mean(0),
    }
    yield near_miss(given, right, misses)
    yield wrong_outputs(given, right, what=_("the output"))


EXERCISE_2 = Exercise(
    number="7.2",
    reference=grad_weight_at,
    wrong=[
        ({"(g + 1) * channels": "g * channels + 1"}, "holds one channel of the group"),
        (
            {"slice(g * channels, (g + 1) * channels)": "slice(None)"},
            "sums other channels",
        ),
        ({".sum(0)": ".sum()"}, "the output has shape (), but (3, 3) is right"),
        ({".sum(0)": ".sum(0).tolist()"}, "the output is a list, not a tensor"),
    ],
    properties=[
        each_of(
            PIXELS,
            _as_autograd_says,
            N_("for image {n}, group {g} of {groups}, pixel ({h}, {w}), K = {K}"),
        )
    ],
    success="the channels of a group share the filter, so its gradient sums over them.",
    hints=(
        "One tap of the filter multiplies one pixel of each channel of the group.",
        "Its gradient is the sum over these channels of grad_output times that pixel.",
        "F.pad(x, [K // 2] * 4), and the patch of this pixel is [h : h + K, w : w + "
        "K].",
    ),
    explanation="y[c] contains weight · x[c] for each channel c of the group. The "
    "derivative with respect to the weight is x[c], so the gradient is x[c] "
    "times what arrives for y[c], summed over c.",
)


def output_pixel(y, x, i, j, out_height, out_width, stride, padding, dilation):
    h_times_stride = y + padding - i * dilation
    w_times_stride = x + padding - j * dilation
    if h_times_stride % stride or w_times_stride % stride:
        return None
    h, w = h_times_stride // stride, w_times_stride // stride
    return (h, w) if 0 <= h < out_height and 0 <= w < out_width else None


def _as_unfold_says(attempt):
    for K, height, width, stride, padding, dilation in [
        (3, 5, 7, 1, 0, 1),
        (3, 5, 7, 1, 1, 1),
        (3, 5, 7, 2, 1, 1),
        (3, 5, 7, 3, 2, 2),
        (2, 11, 8, 4, 0, 3),
    ]:
        # A picture whose pixels are their own numbers, found again by PyTorch's unfold.
        numbers = torch.arange(1.0, 1 + height * width).view(1, 1, height, width)
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        # (K * K, places); -1 is padding.
        columns = F.unfold(numbers, K, **options)[0].long() - 1
        out_height = (height + 2 * padding - (K - 1) * dilation - 1) // stride + 1
        out_width = columns.shape[1] // out_height
        for i, j, y, x in itertools.product(
            range(K), range(K), range(height), range(width)
        ):
            places = (columns[K * i + j] == y * width + x).nonzero().flatten().tolist()
            expected = divmod(places[0], out_width) if places else None
            given = attempt(
                y, x, i, j, out_height, out_width, stride, padding, dilation
            )
            pair = _plain(given)
            if pair != expected:
                call = _(
                    "input ({y}, {x}), tap ({i}, {j}), output {height} x {width}, "
                    "stride {stride}, padding {padding}, dilation {dilation}",
                    y=y,
                    x=x,
                    i=i,
                    j=j,
                    height=out_height,
                    width=out_width,
                    **options,
                )
                wrong = _(
                    "it returns {given!r}, but {expected} is right.",
                    given=given,
                    expected=expected,
                )
                why = _why_not(pair, (y, x), (i, j), **options)
                yield at(call, followed(wrong, why))
            if expected and not all(isinstance(index, int) for index in pair):
                yield _(
                    "it returns {given!r}, but an index is an integer. // gives one, "
                    "where the division leaves no remainder.",
                    given=given,
                )


def _why_not(pair, pixel, tap, stride, padding, dilation):
    """Why a pair, which is not right, is not the output pixel; None if it is no pair."""
    pair = pair if isinstance(pair, tuple) else ()
    if [isinstance(index, int | float) for index in pair] != [True, True]:
        return None
    shifts = [padding - k * dilation for k in tap]
    exact = tuple((p + s) / stride for p, s in zip(pixel, shifts, strict=True))
    if pair in (exact, tuple(map(math.floor, exact)), tuple(map(int, exact))):
        if all(map(float.is_integer, exact)):
            return _("That pixel lies outside the output.")
        return _("The exact position is a fraction, so no output pixel lies there.")
    reads = tuple(h * stride - s for h, s in zip(pair, shifts, strict=True))
    return _(
        "With that tap, output pixel {pair} reads the input pixel {reads}.",
        pair=pair,
        reads=reads,
    )


def _plain(value):
    """Lists, tensors and arrays as tuples of numbers."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


EXERCISE_3 = Exercise(
    number="7.3",
    reference=output_pixel,
    wrong=[
        ({"y + padding": "y", "x + padding": "x"}, "reads the input pixel (-1, -1)"),
        (
            {"if h_times_stride % stride or w_times_stride % stride": "if False"},
            "The exact position is a fraction",
        ),
        (
            {
                "if h_times_stride % stride or w_times_stride % stride": "if False",
                " if 0 <= h < out_height and 0 <= w < out_width else None": "",
            },
            "lies outside the output",
        ),
        ({"(h, w) if": "(h / 1, w / 1) if"}, "an index is an integer"),
    ],
    properties=[_as_unfold_says],
    success="rows come from rows, and columns from columns.",
    hints=(
        "Solve y = h · stride - padding + i · dilation for h.",
        "What if the division by stride leaves a remainder?",
        "h must be one of the rows 0 to out_height - 1, and w one of the columns.",
    ),
    explanation="With stride 2, a tap skips every other input pixel: there the "
    "division leaves a remainder. Python's % and // round down, so a negative number "
    "needs no care here; in C it does, which is why the kernel tests the sign first.",
)
