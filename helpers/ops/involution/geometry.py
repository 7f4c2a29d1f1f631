"""What fits together: sizes, shapes and dtypes of the three arrays.

An involution joins three arrays: input, weight and output. Each kernel makes one of
them of the other two. The gradient of an array has its shape, and takes its part.
"""

from typing import NamedTuple

import torch

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DIMS = {
    "input": ("N", "C", "H", "W"),
    "grad_output": ("N", "C", "Ho", "Wo"),
    "weight": ("N", "G", "Kh", "Kw", "Ho", "Wo"),
}
ARRAYS = {  # kernel: the two arrays that it reads, in their order, and its result
    "forward": ("input", "weight", "output"),
    "grad_input": ("grad_output", "weight", "grad_input"),
    "grad_weight": ("grad_output", "input", "grad_weight"),
}
KERNELS = tuple(ARRAYS)
# Of stride, padding, dilation: their sums and products with sizes fit into int64.
LARGEST = 2**40


def part(array):
    """The array whose part it takes: "output" for "grad_output"."""
    return array.removeprefix("grad_")


def operands(kernel, input, weight, grad_output):
    """The two of these tensors that `kernel` reads, in its order."""
    tensors = {"input": input, "weight": weight, "grad_output": grad_output}
    return [tensors[array] for array in ARRAYS[kernel][:2]]


class Geometry(NamedTuple):
    """Every size in one involution: what a kernel has to know beside the arrays."""

    batch: int
    channels: int
    groups: int
    height: int
    width: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    padding_height: int
    padding_width: int
    dilation_height: int
    dilation_width: int

    @property
    def input_size(self):
        return self.batch, self.channels, self.height, self.width

    @property
    def output_size(self):
        return self.batch, self.channels, self.out_height, self.out_width

    @property
    def weight_size(self):
        kernel = (self.kernel_height, self.kernel_width)
        return self.batch, self.groups, *kernel, self.out_height, self.out_width

    def size_of(self, array):
        return getattr(self, f"{part(array)}_size")


# Checks. They raise before any kernel runs, and also while fake tensors are traced.


def check_tensors(**tensors):
    """Raise TypeError or ValueError unless all are as DIMS says, on one device."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name} must be a torch.Tensor, got {type(tensor).__name__}"
            )
        dims = DIMS[name]
        if tensor.dim() != len(dims):
            raise ValueError(
                f"{name} must have shape ({', '.join(dims)}), got {tuple(tensor.shape)}"
            )
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"{name} must be dense (torch.strided), got {tensor.layout}"
            )
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(dtype) for dtype in DTYPES)
            raise TypeError(f"{name} must be one of {known}, got {tensor.dtype}")
    (one, first), (other, second) = tensors.items()
    if first.device != second.device:
        raise ValueError(
            f"{one} and {other} must be on one device, got {first.device} and "
            f"{second.device}"
        )


def check_one_dtype(**tensors):
    (one, first), (other, second) = tensors.items()
    if first.dtype != second.dtype:
        raise TypeError(
            f"{one} and {other} must have one dtype, got {first.dtype} and "
            f"{second.dtype}"
        )


def find_geometry(input_size, weight_size, stride, padding, dilation):
    """The Geometry for these sizes, or a ValueError if they do not fit."""
    for name, pair, at_least in (
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("dilation", dilation, 1),
    ):
        if len(pair) != 2 or min(pair) < at_least:
            raise ValueError(
                f"{name} must be two ints, {at_least} or more, got {tuple(pair)}"
            )
        if pair[0] > LARGEST or pair[1] > LARGEST:
            raise ValueError(f"{name} must be at most 2**40, got {tuple(pair)}")
    batch, channels, *size = input_size
    weight_batch, groups, *kernel = weight_size[:4]
    if weight_batch != batch:
        raise ValueError(
            f"input and weight must have one batch size, got {batch} and {weight_batch}"
        )
    if groups == 0 or channels == 0 or channels % groups:
        raise ValueError(
            "the channels of input must divide into the groups of weight, got "
            f"{channels} channels"
            f" and {groups} groups"
        )
    # no min(): it compares sizes with one another, and a compiled function holds for
    # one order only
    if kernel[0] < 1 or kernel[1] < 1:
        raise ValueError(f"the kernels in weight must be 1 x 1 or larger, got {kernel}")
    out_size = [
        (size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    if size[0] < 1 or size[1] < 1 or out_size[0] < 1 or out_size[1] < 1:
        raise ValueError(
            f"a {kernel[0]} x {kernel[1]} kernel with dilation {tuple(dilation)} does "
            "not fit into"
            f" an input of {size[0]} x {size[1]} with padding {tuple(padding)}"
        )
    if list(weight_size[4:]) != out_size:
        raise ValueError(
            f"weight must hold a kernel for each of the {out_size[0]} x {out_size[1]} "
            "output"
            f" pixels, got {weight_size[4]} x {weight_size[5]}"
        )
    return Geometry(
        batch, channels, groups, *size, *out_size, *kernel, *stride, *padding, *dilation
    )


# The operators. What they make may have several sizes, so they are told: `sizes` below.


def sizes_to_tell(kernel, result_size):
    """What the operator of `kernel` must know of its result, in order."""
    if kernel == "forward":
        return ()
    return (
        (result_size[2:],)
        if kernel == "grad_input"
        else (result_size[1], result_size[2:4])
    )


def check_operator(kernel, first, second, *arguments):
    """The Geometry for the arguments of an operator, or a TypeError or ValueError."""
    *sizes, stride, padding, dilation = arguments
    tensors = dict(zip(ARRAYS[kernel][:2], (first, second), strict=True))
    check_tensors(**tensors)
    check_one_dtype(**tensors)
    size = {array: tensor.shape for array, tensor in tensors.items()}
    if kernel == "grad_input":
        size["input"] = *first.shape[:2], *sizes[0]
    if kernel == "grad_weight":
        size["weight"] = first.shape[0], sizes[0], *sizes[1], *first.shape[2:]
    geometry = find_geometry(size["input"], size["weight"], stride, padding, dilation)
    if kernel != "forward" and tuple(first.shape) != geometry.output_size:
        raise ValueError(
            f"grad_output must have shape {geometry.output_size}, got "
            f"{tuple(first.shape)}"
        )
    return geometry


def is_channels_last(tensor):
    last = tensor.is_contiguous(memory_format=torch.channels_last)
    return last and not tensor.is_contiguous()


def result_format(kernel, first):
    """channels_last in, channels_last out; a grad_weight is contiguous."""
    last = kernel != "grad_weight" and is_channels_last(first)
    return torch.channels_last if last else torch.contiguous_format


def empty_result(kernel, first, geometry):
    """A tensor for what `kernel` makes of `first` and another."""
    return torch.empty(
        geometry.size_of(ARRAYS[kernel][2]),
        dtype=first.dtype,
        device=first.device,
        memory_format=result_format(kernel, first),
    )
