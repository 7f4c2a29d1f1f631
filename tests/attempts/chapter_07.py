"""Wrong attempts at the exercises of chapter 07, each with words that the verdict must hold."""

import torch
import torch.nn.functional as F

from helpers.lessons.exercises.chapter_07 import DEPTHWISE, tap


def forgets_padding(h, w, i, j, height, width, stride, padding, dilation):
    return tap(h, w, i, j, height, width, stride, 0, dilation)


def forgets_the_border(h, w, i, j, height, width, stride, padding, dilation):
    return h * stride - padding + i * dilation, w * stride - padding + j * dilation


def swaps_stride_and_dilation(h, w, i, j, height, width, stride, padding, dilation):
    return tap(h, w, i, j, height, width, dilation, padding, stride)


def forgets_the_upper_border(h, w, i, j, height, width, stride, padding, dilation):
    y, x = h * stride - padding + i * dilation, w * stride - padding + j * dilation
    return (y, x) if y >= 0 and x >= 0 else None


def swaps_row_and_column(h, w, i, j, height, width, stride, padding, dilation):
    return tap(w, h, j, i, height, width, stride, padding, dilation)


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

ATTEMPTS = {
    "7.1": [
        (forgets_padding, "padding 1"),
        (forgets_the_border, "but None is right"),
        (swaps_stride_and_dilation, "stride 2"),
        (forgets_the_upper_border, "but None is right"),
        (swaps_row_and_column, "it says"),
    ],
    "7.2": [
        (one_channel, "group 0 of 1"),
        (all_channels, "of 2"),
        (forgets_grad_output, "is right"),
        (unpadded, "is right"),
        (a_number, "must be a tensor of shape (3, 3)"),
    ],
    "7.3": [
        (NO_GUARD, "thread (20, 0, 0) of block (0, 0, 0) reads weight[1]"),
        (NO_BORDER, "reads x[-"),
        (NO_WIDTH, "K = 3"),
        (WRONG_ROW, "with x of shape (3, 5, 4)"),
        (FORGETS_CHANNEL, "y[2"),
        (TYPO, "it does not compile: expected"),
        (WRITES_NOTHING, "no thread writes y[0]"),
        (NOT_CENTRED, "K = 3"),
        (FORGETS_THE_SUM, "is right"),
        (3, "as a string"),
    ],
}
