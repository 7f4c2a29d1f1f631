"""The CUDA sources, mutated by hand: what judges the kernels sees each of these."""

import re

import pytest
import torch

from helpers.lessons.cuda_on_cpu import emulator, involution
from helpers.ops.involution import launch
from helpers.ops.involution.geometry import KERNELS, operands
from tests.involution.reference import (
    JUDGES,
    assert_close,
    case_and_loops,
    channels_last_with_gaps,
    images_channels_last,
    make_geometry,
    sizes_of,
    with_gaps,
)
from tests.needs import needs_compiler

pytestmark = needs_compiler
# The fast kernels read every layout as it lies.
LAYOUTS = {False: [torch.Tensor.contiguous]}
LAYOUTS[True] = with_gaps, images_channels_last, channels_last_with_gaps


def judge(source, kernel, fast, dtype=torch.float32):
    """What is wrong with a source, in words, or None."""
    run = involution.runner(source)
    for geometry in JUDGES.values():
        case, expected = case_and_loops(geometry, dtype)
        for layout in LAYOUTS[fast]:
            arguments = map(layout, operands(kernel, *case))
            try:
                actual = launch.launch(kernel, *arguments, geometry, run, fast=fast)
                assert_close(actual, expected[kernel], dtype)
            except emulator.KernelError as error:
                assert "compile" not in str(
                    error
                )  # a mutation has to be found by running it
                return str(error)
            except AssertionError:
                return "values"
    return None


def mutated(source, part, old, new):
    """The source with a text changed where it first occurs in a kernel, or in what all share."""
    begin = re.search(rf"\b(involution2d_)?{part}(\(| {{\n)", source).start()
    end = source.find("\ntemplate", begin)
    text = source[begin : end if end > 0 else None]
    assert old in text, "the text to mutate is not there"
    return source[:begin] + text.replace(old, new, 1) + source[begin + len(text) :]


@pytest.fixture(autouse=True)
def small_is_enough(monkeypatch):
    """Of the fast kernels: two channels and up to four pixels a thread, whatever the size."""
    monkeypatch.setattr(launch, "ENOUGH_THREADS", 1)
    monkeypatch.setattr(launch, "CHANNELS", (2, 1))
    monkeypatch.setattr(launch, "PIXEL_BYTES", 16)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_judges_acquit_the_source(kernel):
    assert judge(launch.SOURCE, kernel, fast=False) is None
    assert judge(launch.FAST_SOURCE, kernel, fast=True) is None


# (a part of the source, a text in it, what stands in its place, words of the sentence
# that tells)
READABLE = [
    (
        "find_my_element",
        "*plane < planes && *pixel < pixels",
        "*plane < planes",
        "written before",
    ),
    (
        "find_my_element",
        "*plane < planes && *pixel < pixels",
        "*pixel < pixels",
        "elements",
    ),
    (
        "find_my_element",
        "(pixels + blockDim.x - 1) / blockDim.x",
        "pixels / blockDim.x + 1",
        "",
    ),
    ("find_my_element", "* blockDim.y + threadIdx.y", "* blockDim.y", "written before"),
    ("forward", "y < 0 || ", "", ""),
    ("forward", "x >= s.width", "x > s.width", ""),
    ("forward", "- s.padding_height + kh", "+ kh", ""),
    ("forward", "kw * s.dilation_width", "kw", ""),
    ("forward", "pixel / s.out_width", "pixel / s.out_height", ""),
    ("forward", "plane / (s.channels / s.groups)", "plane / s.groups", ""),
    ("forward", "kh * s.kernel_width + kw", "kh * s.kernel_height + kw", ""),
    ("forward", "plane * s.height * s.width", "plane * pixels", ""),
    (
        "forward",
        "output[plane * pixels + pixel]",
        "output[pixel * pixels + plane]",
        "output",
    ),
    # the line of the published kernel that computes the wrong gradient of the input
    (
        "grad_input",
        "w_times_stride / s.stride_width",
        "h_times_stride / s.stride_width",
        "",
    ),
    ("grad_input", "h_times_stride < 0 || ", "", ""),
    ("grad_input", "h_times_stride % s.stride_height != 0", "false", ""),
    ("grad_input", "if (w >= s.out_width) continue;", "", ""),
    ("grad_input", "kw < s.kernel_width", "kw < s.kernel_width - 1", ""),
    ("grad_weight", "taps / s.kernel_width", "taps / s.kernel_height", ""),
    ("grad_weight", "plane / taps * group_channels", "plane / taps", ""),
    ("grad_weight", "c < first + group_channels", "c <= first + group_channels", ""),
]
FAST = [
    ("find_my_channels", "return *n < s.batch;", "return true;"),
    ("find_my_channels", "me / parts : me", "me : me"),
    ("find_my_channels", "me : me / places", "me / places : me / places"),
    ("find_my_channels", "% places * PIXELS", "% places"),
    ("Loads", "(PIXELS - PAD) % PIXELS", "PAD"),
    ("Loads", "(PIXELS - 1) * SW + ", ""),
    ("forward_fast", "x >= 0 && ", ""),
    ("forward_fast", "(left - Row::SKIP) * step", "left * step"),
    ("forward_fast", "kw * DW + Row::SKIP - i", "kw * DW - i"),
    ("forward_fast", "Sum(values.at[p])", "Sum(values.at[0])"),
    ("forward_fast", "place += Row::STEP * step", "place += step"),
    (
        "forward_fast",
        "            row += in.c;\n",
        "            row += s.height * s.width;\n",
    ),
    ("forward_fast", "PACK > 1 ? in.x : 1", "1"),
    ("forward_fast", "PACK > 1 ? in.x : 1", "s.channels"),
    ("forward_fast", "n * in.n", "n * in.c * s.channels"),
    ("forward_fast", "h * by.y", "h * s.out_width"),
    ("forward_fast", "kh * by.kh", "kh * KW * by.kw"),
    ("forward_fast", "sums[c + k]", "sums[k]"),
    ("forward_fast", "values.at[at + k]", "values.at[at]"),
    ("write_my_channels", "c * apart", "c * PIXELS"),
    ("write_my_channels", "T(sums[c][p])", "T(sums[c][0])"),
    ("write_my_channels", "T(sums[c][0])", "T(sums[0][0])"),
    ("write_my_channels", "apart == 1", "true"),
    ("grad_input_fast", "SW == 1 ?", "true ?"),
    ("grad_input_fast", "right + Row::SKIP - i", "right - i"),
    ("grad_input_fast", "p - kw * DW - Row::SKIP", "p - kw * DW"),
    ("grad_input_fast", "w_times_stride / SW < s.out_width", "true"),
    ("grad_input_fast", "h_times_stride % SH != 0", "false"),
    ("grad_input_fast", "(shift[i] + at) * by.x", "shift[i] * by.x"),
    ("grad_input_fast", "(shift[i] + at) * by.x", "shift[i] + at"),
    ("grad_input_fast", "shift[i] * step", "shift[i]"),
    ("grad_input_fast", "row += in.c;", "row += s.out_height * s.out_width;"),
    ("grad_weight_fast", "s.out_width / PIXELS", "s.out_width"),
    ("grad_weight_fast", "first = group * group_channels", "first = group"),
    ("grad_weight_fast", "x < s.width", "true"),
    ("grad_weight_fast", "begin = left - Row::SKIP", "begin = left"),
    ("grad_weight_fast", "            my_grad_output += PACK * by.c;\n", ""),
    ("grad_weight_fast", "row += PACK * in.c", "row += in.c"),
    ("grad_weight_fast", "row += PACK * in.c", "row += PACK * s.height * s.width"),
    ("grad_weight_fast", "i * Row::STEP * step", "i * Row::STEP"),
    ("grad_weight_fast", "factors[p + k] * ", "factors[p] * "),
    ("grad_weight_fast", "sums[kw][p] +=", "sums[kw][0] +="),
]


def kernel_of(part):
    return next((kernel for kernel in KERNELS if part.startswith(kernel)), "forward")


@pytest.mark.parametrize("part, old, new, sentence", READABLE)
def test_a_mutated_readable_kernel_is_caught(part, old, new, sentence):
    verdict = judge(mutated(launch.SOURCE, part, old, new), kernel_of(part), fast=False)
    assert verdict is not None and sentence in verdict


@pytest.mark.parametrize("part, old, new", FAST)
def test_a_mutated_fast_kernel_is_caught(part, old, new):
    assert judge(
        mutated(launch.FAST_SOURCE, part, old, new), kernel_of(part), fast=True
    )


def test_the_wrong_type_of_a_sum_is_caught():
    in_float = launch.SOURCE.replace("using type = double", "using type = float")
    assert judge(in_float, "forward", False, torch.float64) == "values"

    in_half = launch.SOURCE.replace("sum += Sum(", "sum = T(sum) + Sum(")
    geometry = make_geometry(1, 1, 1, (32, 32), (32, 32))
    ones = [torch.ones(size, dtype=torch.bfloat16) for size in sizes_of(geometry)[:2]]
    for source, expected in ((launch.SOURCE, 1024), (in_half, 256)):
        run = involution.runner(source)
        assert launch.launch("forward", *ones, geometry, run).item() == expected
