"""Wrong attempts at the exercises of chapter 07, each with words that the verdict must hold."""

import torch
import torch.nn.functional as F

from helpers.lessons.exercises.chapter_07 import DEPTHWISE, grad_weight_at, output_pixel


def forgets_padding(y, x, i, j, out_height, out_width, stride, padding, dilation):
    return output_pixel(y, x, i, j, out_height, out_width, stride, 0, dilation)


def forgets_the_remainder(y, x, i, j, out_height, out_width, stride, padding, dilation):
    h, w = (y + padding - i * dilation) // stride, (x + padding - j * dilation) // stride
    return (h, w) if 0 <= h < out_height and 0 <= w < out_width else None


def forgets_the_border(y, x, i, j, out_height, out_width, stride, padding, dilation):
    return (y + padding - i * dilation) // stride, (x + padding - j * dilation) // stride


def the_published_slip(y, x, i, j, out_height, out_width, stride, padding, dilation):
    found = output_pixel(y, x, i, j, out_height, out_width, stride, padding, dilation)
    return found and (found[0], (y + padding - i * dilation) // stride)


def swaps_row_and_column(y, x, i, j, out_height, out_width, stride, padding, dilation):
    return output_pixel(x, y, j, i, out_width, out_height, stride, padding, dilation)


def a_float(y, x, i, j, out_height, out_width, stride, padding, dilation):
    found = output_pixel(y, x, i, j, out_height, out_width, stride, padding, dilation)
    return found and (found[0] / 1, found[1] / 1)


def spoils_its_input(grad_output, x, n, g, h, w, groups, K):
    x *= 2
    return grad_weight_at(grad_output, x, n, g, h, w, groups, K)


def one_channel(grad_output, x, n, g, h, w, groups, K):
    c = g * (x.shape[1] // groups)
    patch = F.pad(x, [K // 2] * 4)[n, c, h : h + K, w : w + K]
    return grad_output[n, c, h, w] * patch


def all_channels(grad_output, x, n, g, h, w, groups, K):
    patch = F.pad(x, [K // 2] * 4)[n, :, h : h + K, w : w + K]
    return (grad_output[n, :, h, w][:, None, None] * patch).sum(0)


def forgets_grad_output(grad_output, x, n, g, h, w, groups, K):
    channels = x.shape[1] // groups
    return F.pad(x, [K // 2] * 4)[n, g * channels : (g + 1) * channels, h : h + K, w : w + K].sum(0)


def unpadded(grad_output, x, n, g, h, w, groups, K):
    channels = x.shape[1] // groups
    group = slice(g * channels, (g + 1) * channels)
    return (grad_output[n, group, h, w][:, None, None] * x[n, group, h : h + K, w : w + K]).sum(0)


def a_number(grad_output, x, n, g, h, w, groups, K):
    return torch.zeros(K, K).sum()


def changed(old, new):
    assert old in DEPTHWISE
    return DEPTHWISE.replace(old, new)


NO_GUARD = changed("    if (element >= channels * height * width) return;\n", "")
NO_BORDER = changed("if (r < 0 || r >= height || s < 0 || s >= width) continue;", "")
NO_WIDTH = changed(" || s < 0 || s >= width", "")
WRONG_ROW = changed("element / width % height", "element / width")
FORGETS_CHANNEL = changed("weight[(c * K + i) * K + j]", "weight[i * K + j]")
TYPO = changed("float sum = 0;", "float sum = 0")
WRITES_NOTHING = changed("    y[element] = sum;\n", "")
NOT_CENTRED = changed("row + i - K / 2", "row + i")
FORGETS_THE_SUM = changed("sum +=", "sum =")
ADDS_IN_MEMORY = changed("float sum = 0;", "y[element] = 0;").replace("sum +=", "y[element] +=")
ADDS_IN_MEMORY = ADDS_IN_MEMORY.replace("    y[element] = sum;\n", "")
READS_Y = changed("y[element] = sum;", "y[element] += sum;")
NOT_GLOBAL = changed("__global__ void", "void")
NO_BRACE = DEPTHWISE.rstrip()[:-1]
ENDLESS = changed("++i", "")
ONE_FOR_ALL = """
__global__ void depthwise(const float* x, const float* weight, float* y,
                          int channels, int height, int width, int K) {
    if (blockIdx.x * blockDim.x + threadIdx.x > 0) return;
    for (int element = 0; element < channels * height * width; ++element) {
""" + DEPTHWISE.split("return;\n")[1].replace("\n}\n", "\n}}\n")
CRASHES = changed(
    "y[element] = sum;",
    "float t[4]; for (int i = 0; i < 1 << 22; ++i) t[i] = i; y[element] = sum + 0 * t[3];",
)


ATTEMPTS = {
    "7.1": [
        (forgets_padding, "padding 1"),
        (forgets_the_remainder, "stride 2"),
        (forgets_the_border, "but None is right"),
        (the_published_slip, "it says"),
        (swaps_row_and_column, "it says"),
        (a_float, "an index is an integer"),
    ],
    "7.2": [
        (one_channel, "group 0 of 1"),
        (all_channels, "of 2"),
        (forgets_grad_output, "is right"),
        (unpadded, "is right"),
        (spoils_its_input, "in place"),
        (a_number, "must be a tensor of shape (3, 3), got shape ()"),
    ],
    "7.3": [
        (NO_GUARD, "thread (20, 0, 0) of block (0, 0, 0) reads weight[1]"),
        (NO_BORDER, "reads x[-"),
        (NO_WIDTH, "K = 3"),
        (WRONG_ROW, "with x of shape (3, 5, 4)"),
        (FORGETS_CHANNEL, "y[2"),
        (TYPO, "it does not compile in line 10 of the cell"),
        (WRITES_NOTHING, "no thread writes y[0]"),
        (NOT_CENTRED, "K = 3"),
        (FORGETS_THE_SUM, "is right"),
        (3, "as a string"),
        (ADDS_IN_MEMORY, "write once"),
        (READS_Y, "has no value yet"),
        (NOT_GLOBAL, "must hold `__global__ void depthwise"),
        (ONE_FOR_ALL, "thread 1 writes nothing"),
        (NO_BRACE, "Is a brace missing at the end?"),
        (ENDLESS, "does not end"),
        (CRASHES, "Which index leaves its array?"),
    ],
}
