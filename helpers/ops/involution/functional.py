"""`involution2d`: its arguments, and what it promises. `operator.py` does the work."""

import operator

import torch
from torch.overrides import handle_torch_function, has_torch_function

from .geometry import check_one_dtype, check_tensors, find_geometry
from .operator import NAMESPACE, is_cast

INTS = (int, torch.SymInt)


def involution2d(input, weight, stride=1, padding=0, dilation=1):
    """Filter each pixel with a kernel of its own, which a group shares.

    input: (N, C, H, W). N may be 0.
    weight: (N, G, Kh, Kw, Ho, Wo); G divides C. One Kh x Kw kernel for each sample,
        group and output pixel, Ho = (H + 2 * padding - dilation * (Kh - 1) - 1) //
        stride + 1, Wo likewise.
    stride, padding, dilation: an int, or a pair of ints (height, width).
    Returns the output, (N, C, Ho, Wo), channels_last if `input` is.

    Both tensors: float64, float32, float16 or bfloat16, the same for both, on one
    device, strided in any way. On CUDA a weight is read as it lies, and so are the
    input and the gradient of the output if the pixels of a row are neighbours in
    memory, or the channels of a pixel (channels_last), of an even number a group; they
    are copied if not, or if the kernels are wider than 11. Half precision is summed in
    float32. Under autocast both are cast to its dtype, unless one is float64.

    CPU tensors run in the C++ kernels of `cpu_kernels.cpp`, which take a few seconds to
    compile at the first call on a machine, or in plain PyTorch where there is no
    compiler; `backend()` tells. CUDA tensors need CuPy, and run in the kernels of
    `kernels.cu` on torch's current stream, without synchronisation. Run forward and
    backward once before a CUDA graph is captured: the first call compiles, for tensors
    at any offset of the same memory format. CuPy's compiler takes float32 and bfloat16
    numbers below 1.2e-38 for 0. Tensors of other devices, AMD's GPUs among them, run in
    plain PyTorch. Results are deterministic everywhere, and on a CPU the same for any
    number of threads.

    Derivatives of every order, in backward and forward mode. It is an operator of the
    dispatcher, `torch.ops.extending_pytorch.involution2d`, and so works under
    `torch.func`, `torch.compile` with static and dynamic shapes, and `torch.export`, in
    any combination.

    Raises TypeError or ValueError, before any kernel runs, for arguments that do not
    fit.

    Source: Li et al., Involution, CVPR 2021, https://arxiv.org/abs/2103.06255, section
    3.
    """
    if has_torch_function((input, weight)):  # torch.fx, for one, then records the call
        return handle_torch_function(
            involution2d, (input, weight), input, weight, stride, padding, dilation
        )
    check_tensors(input=input, weight=weight)
    stride = _pair("stride", stride)
    padding = _pair("padding", padding)
    dilation = _pair("dilation", dilation)
    find_geometry(input.shape, weight.shape, stride, padding, dilation)
    if not is_cast(input, weight):
        check_one_dtype(input=input, weight=weight)
    return getattr(torch.ops, NAMESPACE).involution2d(
        input, weight, stride, padding, dilation
    )


def _pair(name, value):
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    try:
        pair = tuple(_integer(v) for v in pair)
    except TypeError:
        pair = ()
    if len(pair) != 2:
        raise TypeError(f"{name} must be an int or a pair of ints, got {value!r}")
    return pair


def _integer(value):
    if isinstance(value, bool):
        raise TypeError
    # NumPy's integers, too.
    return value if isinstance(value, INTS) else operator.index(value)
