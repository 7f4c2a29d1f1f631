"""`involution2d`, its argument checks, and the three Functions that differentiate one another."""

from typing import NamedTuple

import torch

from . import plain

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Geometry(NamedTuple):
    """Every size in one involution: what a kernel has to know besides the two arrays."""

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


def implementation(tensor):
    """The module with `forward`, `grad_input` and `grad_weight` for the device of `tensor`."""
    if tensor.is_cuda:
        from . import cuda  # needs CuPy, but only here

        return cuda
    return plain


def _run(kernel, first, second, geometry):
    channels_last = (
        first.is_contiguous(memory_format=torch.channels_last) and not first.is_contiguous()
    )
    result = getattr(implementation(first), kernel)(first, second, geometry)
    if channels_last and result.dim() == 4:
        result = result.contiguous(memory_format=torch.channels_last)
    return result


class _Bilinear(torch.autograd.Function):
    """What the three have in common: two tensors and a geometry, linear in each tensor."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        first, second, ctx.geometry = inputs
        ctx.save_for_backward(first, second)

    @classmethod
    def vmap(cls, info, in_dims, first, second, geometry):
        # Samples do not meet, so a further batch dimension is merged into the batch.
        def merge(tensor, dim):
            if dim is None:
                tensor = tensor.expand(info.batch_size, *tensor.shape)
            else:
                tensor = tensor.movedim(dim, 0)
            return tensor.flatten(0, 1)

        merged = geometry._replace(batch=info.batch_size * geometry.batch)
        result = cls.apply(merge(first, in_dims[0]), merge(second, in_dims[1]), merged)
        return result.unflatten(0, (info.batch_size, geometry.batch)), 0


# Each derivative of one of the three is another of the three, because
#     sum(grad_output * output) = sum(grad_input * input) = sum(grad_weight * weight)
# is one sum of products of three tensors. So there are derivatives of every order.


class Involution2dFunction(_Bilinear):
    """(input, weight) -> output"""

    @staticmethod
    def forward(input, weight, geometry):
        return _run("forward", input, weight, geometry)

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        grad_input = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_input = Involution2dGradInput.apply(grad_output, weight, ctx.geometry)
        if ctx.needs_input_grad[1]:
            grad_weight = Involution2dGradWeight.apply(grad_output, input, ctx.geometry)
        return grad_input, grad_weight, None


class Involution2dGradInput(_Bilinear):
    """(grad_output, weight) -> grad_input"""

    @staticmethod
    def forward(grad_output, weight, geometry):
        return _run("grad_input", grad_output, weight, geometry)

    @staticmethod
    def backward(ctx, input):  # the gradient of grad_input has the shape of input, and its part
        grad_output, weight = ctx.saved_tensors
        grad_grad_output = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_grad_output = Involution2dFunction.apply(input, weight, ctx.geometry)
        if ctx.needs_input_grad[1]:
            grad_weight = Involution2dGradWeight.apply(grad_output, input, ctx.geometry)
        return grad_grad_output, grad_weight, None


class Involution2dGradWeight(_Bilinear):
    """(grad_output, input) -> grad_weight"""

    @staticmethod
    def forward(grad_output, input, geometry):
        return _run("grad_weight", grad_output, input, geometry)

    @staticmethod
    def backward(ctx, weight):  # likewise
        grad_output, input = ctx.saved_tensors
        grad_grad_output = grad_input = None
        if ctx.needs_input_grad[0]:
            grad_grad_output = Involution2dFunction.apply(input, weight, ctx.geometry)
        if ctx.needs_input_grad[1]:
            grad_input = Involution2dGradInput.apply(grad_output, weight, ctx.geometry)
        return grad_grad_output, grad_input, None


def involution2d(input, weight, stride=1, padding=0, dilation=1):
    """Filter each pixel of `input` with a kernel of its own, shared by the channels of a group.

    input: (N, C, H, W). N may be 0.
    weight: (N, G, Kh, Kw, Ho, Wo); G divides C. One Kh x Kw kernel for each sample, group and
        output pixel, Ho = (H + 2 * padding - dilation * (Kh - 1) - 1) // stride + 1, Wo likewise.
    stride, padding, dilation: an int, or a pair of ints (height, width).
    Returns the output, (N, C, Ho, Wo), channels_last if `input` is.

    Both tensors: float64, float32, float16 or bfloat16, the same for both, on one device, strided
    in any way; a CUDA kernel works on contiguous tensors and copies others. Half precision is
    summed in float32. Under autocast both are cast to its dtype, unless one is float64.

    CUDA tensors need CuPy, and run in the kernels of `kernels.cu` on torch's current stream,
    without synchronisation. Run forward and backward once before a CUDA graph is captured: the
    first call compiles.
    All other tensors run in plain PyTorch. Results are deterministic on both paths.

    Derivatives of every order, by backward; forward mode raises (`torch.func.jvp`, `jacfwd`,
    `hessian`; `jacrev(jacrev(f))` works). Works under `torch.func.grad` and `vmap`.
    `torch.compile` takes the plain path whole and runs the CUDA kernels between two graphs;
    `torch.compile(torch.func.vmap(f))` raises, `torch.func.vmap(torch.compile(f))` works.

    Raises TypeError or ValueError, before any kernel runs, for arguments that do not fit.

    Source: Li et al., Involution, CVPR 2021, https://arxiv.org/abs/2103.06255, section 3.
    """
    for name, tensor, letters in (
        ("input", input, "N C H W"),
        ("weight", weight, "N G Kh Kw Ho Wo"),
    ):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.dim() != len(letters.split()):
            shape = ", ".join(letters.split())
            raise ValueError(f"{name} must have shape ({shape}), got {tuple(tensor.shape)}")
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(dtype) for dtype in DTYPES)
            raise TypeError(f"{name} must be one of {known}, got {tensor.dtype}")
    if input.device != weight.device:
        raise ValueError(
            f"input and weight must be on one device, got {input.device} and {weight.device}"
        )
    stride = _pair("stride", stride, at_least=1)
    padding = _pair("padding", padding, at_least=0)
    dilation = _pair("dilation", dilation, at_least=1)

    batch, channels, *size = input.shape
    weight_batch, groups, *kernel = weight.shape[:4]
    if weight_batch != batch:
        raise ValueError(
            f"input and weight must have one batch size, got {batch} and {weight_batch}"
        )
    if groups == 0 or channels == 0 or channels % groups:
        raise ValueError(
            f"the channels of input must divide into the groups of weight, got {channels} channels"
            f" and {groups} groups"
        )
    if min(kernel) < 1:
        raise ValueError(f"the kernels in weight must be 1 x 1 or larger, got {kernel}")
    out_size = [
        (size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    if min(size) < 1 or min(out_size) < 1:
        raise ValueError(
            f"a {kernel[0]} x {kernel[1]} kernel with dilation {dilation} does not fit into an"
            f" input of {size[0]} x {size[1]} with padding {padding}"
        )
    if list(weight.shape[4:]) != out_size:
        raise ValueError(
            f"weight must hold a kernel for each of the {out_size[0]} x {out_size[1]} output"
            f" pixels, got {weight.shape[4]} x {weight.shape[5]}"
        )

    device = input.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        if torch.float64 not in (input.dtype, weight.dtype):
            dtype = torch.get_autocast_dtype(device)
            input, weight = input.to(dtype), weight.to(dtype)
    if input.dtype != weight.dtype:
        raise TypeError(
            f"input and weight must have one dtype, got {input.dtype} and {weight.dtype}"
        )
    geometry = Geometry(
        batch, channels, groups, *size, *out_size, *kernel, *stride, *padding, *dilation
    )
    return Involution2dFunction.apply(input, weight, geometry)


def _pair(name, value, at_least):
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or any(isinstance(v, bool) or not isinstance(v, int) for v in pair):
        raise TypeError(f"{name} must be an int or a pair of ints, got {value!r}")
    if min(pair) < at_least:
        raise ValueError(f"{name} must be {at_least} or more, got {value!r}")
    return pair
