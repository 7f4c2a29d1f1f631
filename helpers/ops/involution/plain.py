"""Involution in plain PyTorch: shift, multiply, add.

Each of the Kh * Kw taps of a kernel sees the input shifted by some rows and columns. A
shifted input is a slice, a view without memory of its own, so nothing is ever unfolded:

    output[..., rows, columns] +=
        weight[tap][rows, columns] * input[..., shifted rows, columns]

The work goes in chunks of about a million elements. That bounds the memory of
temporaries (the sums, the products in `grad_weight`, float32 copies of half precision)
and keeps them in the cache.

PyTorch's threads meet after each tap. Where other processes keep the cores busy, they
wait long for one another, and `torch.set_num_threads(1)` is faster.
"""

import torch

CHUNK = 1 << 20


def forward(input, weight, geometry):
    """(N, C, H, W), (N, G, Kh, Kw, Ho, Wo) -> (N, C, Ho, Wo)."""
    output = input.new_empty(geometry.output_size)
    for x, w, y in _chunks(geometry, input, weight, output):
        total = torch.zeros_like(y, dtype=_sum_dtype(y))
        for kh, kw, here, there in _taps(geometry):
            total[here].addcmul_(x[there], w[:, None, kh, kw][here])
        y.copy_(total)
    return output


def grad_input(grad_output, weight, geometry):
    """(N, C, Ho, Wo), (N, G, Kh, Kw, Ho, Wo) -> (N, C, H, W)."""
    result = grad_output.new_empty(geometry.input_size)
    for g, w, r in _chunks(geometry, grad_output, weight, result):
        total = torch.zeros_like(r, dtype=_sum_dtype(r))
        for kh, kw, here, there in _taps(geometry):
            total[there].addcmul_(g[here], w[:, None, kh, kw][here])
        r.copy_(total)
    return result


def grad_weight(grad_output, input, geometry):
    """(N, C, Ho, Wo), (N, C, H, W) -> (N, G, Kh, Kw, Ho, Wo)."""
    result = grad_output.new_zeros(geometry.weight_size)
    for g, x, r in _chunks(geometry, grad_output, input, result):
        g, x = g.to(_sum_dtype(g)), x.to(_sum_dtype(x))
        for kh, kw, here, there in _taps(geometry):
            r[:, kh, kw][here] = (g[here] * x[there]).sum(1)
    return result


def _sum_dtype(tensor):
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chunks(geometry, *tensors):
    """Views with (N, G) merged to one dimension, a piece of it at a time.

    (N, C, H, W) becomes (some, C // G, H, W); (N, G, Kh, Kw, Ho, Wo) becomes (some, Kh,
    ...).
    """
    s = geometry
    planes = s.batch * s.groups
    group_channels = s.channels // s.groups
    merged = [
        t.reshape(planes, group_channels, *t.shape[2:])
        if t.dim() == 4
        else t.reshape(planes, *t.shape[2:])
        for t in tensors
    ]
    pixels = max(s.height * s.width, s.out_height * s.out_width)
    # Half precision has float32 temporaries.
    parts = 4 if tensors[0].element_size() == 2 else 2
    step = max(1, min(CHUNK // (group_channels * pixels), -(-planes // parts)))
    for start in range(0, planes, step):
        yield [t[start : start + step] for t in merged]


def _taps(geometry):
    """(kh, kw, the output pixels that this tap reaches, what they read)."""
    s = geometry
    rows = [
        _overlap(
            s.height,
            s.out_height,
            kh * s.dilation_height - s.padding_height,
            s.stride_height,
        )
        for kh in range(s.kernel_height)
    ]
    columns = [
        _overlap(
            s.width,
            s.out_width,
            kw * s.dilation_width - s.padding_width,
            s.stride_width,
        )
        for kw in range(s.kernel_width)
    ]
    for kh, (out_rows, in_rows) in enumerate(rows):
        for kw, (out_columns, in_columns) in enumerate(columns):
            yield kh, kw, (..., out_rows, out_columns), (..., in_rows, in_columns)


def _overlap(size, out_size, shift, stride):
    """The outputs h with 0 <= h * stride + shift < size, and their inputs."""
    first = max(0, -(shift // stride))
    last = max(first, min(out_size, (size - 1 - shift) // stride + 1))  # one past
    start = first * stride + shift
    return slice(first, last), slice(start, start + (last - first) * stride, stride)
