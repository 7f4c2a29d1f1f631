"""`torch.ops.extending_pytorch.involution2d`, and the two operators that are its gradients.

An operator is a name that PyTorch's dispatcher knows, with a schema. It has a kernel for each
device; one for fake tensors, which have a shape but no data, so that `torch.compile` and
`torch.export` trace it without looking inside; and rules for autograd, vmap and autocast.

Each derivative of one of the three is another of the three, because
    sum(grad_output * output) = sum(grad_input * input) = sum(grad_weight * weight)
is one sum of products of three tensors. So there are derivatives of every order, and each of the
three is linear in each of its tensors.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

from . import cpu, plain

NAMESPACE = "extending_pytorch"
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DIMS = {"input": "N C H W", "grad_output": "N C Ho Wo", "weight": "N G Kh Kw Ho Wo"}


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


# Checks. They raise before any kernel runs, and also while fake tensors are traced.


def check_tensors(**tensors):
    """Raise TypeError or ValueError unless each is a tensor as DIMS says, all on one device."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        dims = DIMS[name].split()
        if tensor.dim() != len(dims):
            raise ValueError(
                f"{name} must have shape ({', '.join(dims)}), got {tuple(tensor.shape)}"
            )
        if tensor.dtype not in DTYPES:
            known = ", ".join(str(dtype) for dtype in DTYPES)
            raise TypeError(f"{name} must be one of {known}, got {tensor.dtype}")
    (one, first), (other, second) = tensors.items()
    if first.device != second.device:
        raise ValueError(
            f"{one} and {other} must be on one device, got {first.device} and {second.device}"
        )


def check_one_dtype(**tensors):
    (one, first), (other, second) = tensors.items()
    if first.dtype != second.dtype:
        raise TypeError(
            f"{one} and {other} must have one dtype, got {first.dtype} and {second.dtype}"
        )


def find_geometry(input_size, weight_size, stride, padding, dilation):
    """The Geometry for an input and a weight of these sizes, or a ValueError if they do not fit."""
    for name, pair, at_least in (
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("dilation", dilation, 1),
    ):
        if len(pair) != 2 or min(pair) < at_least:
            raise ValueError(f"{name} must be two ints, {at_least} or more, got {tuple(pair)}")
    batch, channels, *size = input_size
    weight_batch, groups, *kernel = weight_size[:4]
    if weight_batch != batch:
        raise ValueError(
            f"input and weight must have one batch size, got {batch} and {weight_batch}"
        )
    if groups == 0 or channels == 0 or channels % groups:
        raise ValueError(
            f"the channels of input must divide into the groups of weight, got {channels} channels"
            f" and {groups} groups"
        )
    # no min(): it compares sizes with one another, and a compiled function holds for one order only
    if kernel[0] < 1 or kernel[1] < 1:
        raise ValueError(f"the kernels in weight must be 1 x 1 or larger, got {kernel}")
    out_size = [
        (size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    if any(length < 1 for length in (*size, *out_size)):
        raise ValueError(
            f"a {kernel[0]} x {kernel[1]} kernel with dilation {tuple(dilation)} does not fit into"
            f" an input of {size[0]} x {size[1]} with padding {tuple(padding)}"
        )
    if list(weight_size[4:]) != out_size:
        raise ValueError(
            f"weight must hold a kernel for each of the {out_size[0]} x {out_size[1]} output"
            f" pixels, got {weight_size[4]} x {weight_size[5]}"
        )
    return Geometry(
        batch, channels, groups, *size, *out_size, *kernel, *stride, *padding, *dilation
    )


def _check_output(grad_output, geometry):
    if tuple(grad_output.shape) != geometry.output_size:
        raise ValueError(
            f"grad_output must have shape {geometry.output_size}, got {tuple(grad_output.shape)}"
        )


def _forward_geometry(input, weight, stride, padding, dilation):
    check_tensors(input=input, weight=weight)
    check_one_dtype(input=input, weight=weight)
    return find_geometry(input.shape, weight.shape, stride, padding, dilation)


def _grad_input_geometry(grad_output, weight, input_size, stride, padding, dilation):
    check_tensors(grad_output=grad_output, weight=weight)
    check_one_dtype(grad_output=grad_output, weight=weight)
    size = *grad_output.shape[:2], *input_size
    geometry = find_geometry(size, weight.shape, stride, padding, dilation)
    _check_output(grad_output, geometry)
    return geometry


def _grad_weight_geometry(grad_output, input, groups, kernel_size, stride, padding, dilation):
    check_tensors(grad_output=grad_output, input=input)
    check_one_dtype(grad_output=grad_output, input=input)
    size = grad_output.shape[0], groups, *kernel_size, *grad_output.shape[2:]
    geometry = find_geometry(input.shape, size, stride, padding, dilation)
    _check_output(grad_output, geometry)
    return geometry


# Kernels


def implementation(device):
    """The module with `forward`, `grad_input` and `grad_weight` for a device."""
    if device.type == "cuda":
        from . import cuda  # needs CuPy, but only here

        return cuda
    return cpu if device.type == "cpu" and cpu.available() else plain


class Backend(NamedTuple):
    name: str
    reason: str


def backend(device="cpu"):
    """What `involution2d` runs on a device: (name, reason).

    name: "cpu kernel", "cuda kernel" or "plain". The first call for a CPU builds the kernel.
    """
    module = implementation(torch.device(device))
    if module is plain:
        is_cpu = torch.device(device).type == "cpu"
        return Backend("plain", cpu.reason() if is_cpu else f"there is no kernel for {device}")
    if module is cpu:
        return Backend("cpu kernel", cpu.reason())
    return Backend("cuda kernel", "kernels.cu, compiled and launched by CuPy")


def _result_format(kernel, first):
    """channels_last in, channels_last out; a grad_weight is contiguous."""
    last = kernel != "grad_weight" and cpu.is_channels_last(first)
    return torch.channels_last if last else torch.contiguous_format


def _kernel(kernel, find):
    def run(first, second, *arguments):
        geometry = find(first, second, *arguments)
        result = getattr(implementation(first.device), kernel)(first, second, geometry)
        return result.contiguous(memory_format=_result_format(kernel, first))

    return run


def _fake(kernel, find):
    def run(first, second, *arguments):
        geometry = find(first, second, *arguments)
        size = {
            "forward": geometry.output_size,
            "grad_input": geometry.input_size,
            "grad_weight": geometry.weight_size,
        }[kernel]
        memory_format = _result_format(kernel, first)
        return torch.empty(
            size, dtype=first.dtype, device=first.device, memory_format=memory_format
        )

    return run


# Autograd


class _Operator(torch.autograd.Function):
    """One of the three operators, as it runs where gradients are needed.

    `torch.library.register_autograd` would write such a class, but on the pinned version it raises
    under `torch.func.grad`, and forward mode gets zeros without a word.
    """

    @classmethod
    def apply(cls, *args):
        # The dispatcher comes here once for each level of torch.func. Function.apply would start
        # with the outermost again, so this is the apply of its base class.
        with enable_single_level_autograd_function():
            modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
            return super(torch.autograd.Function, cls).apply(modes, *args)

    @staticmethod
    def forward(ctx, modes, name, first, second, *arguments):
        ctx.modes, ctx.operator, ctx.arguments = modes, name, arguments  # ctx.name() is taken
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)
        # Both modes are off inside forward, but the levels below may want to record, too.
        with (
            torch.set_grad_enabled(modes[0]),
            _set_fwd_grad_enabled(modes[1]),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return getattr(_ops(), name)(first, second, *arguments)

    @staticmethod
    def backward(ctx, grad):
        needed = ctx.needs_input_grad[2:4]
        first, second = OPERATORS[ctx.operator].backward(
            needed, grad, *ctx.saved_tensors, *ctx.arguments
        )
        return None, None, first, second, *[None] * len(ctx.arguments)

    @staticmethod
    def jvp(ctx, _, __, first_tangent, second_tangent, *others):
        # Here, too, the levels below may want to record, but this one is done.
        with _set_fwd_grad_enabled(ctx.modes[1]):
            op = getattr(_ops(), ctx.operator)
            first, second = (unpack_dual(t, level=0).primal for t in ctx.saved_tensors)
            parts = []
            if first_tangent is not None:
                parts.append(op(first_tangent, second, *ctx.arguments))
            if second_tangent is not None:
                parts.append(op(first, second_tangent, *ctx.arguments))
            return sum(parts[1:], parts[0])


def _autograd(name):
    return partial(_Operator.apply, name)


def _ops():
    return getattr(torch.ops, NAMESPACE)


def _grad_input(grad_output, weight, input, geometry):
    return _ops().involution2d_grad_input(grad_output, weight, input.shape[2:], *geometry)


def _grad_weight(grad_output, input, weight, geometry):
    groups, kernel_size = weight.shape[1], weight.shape[2:4]
    return _ops().involution2d_grad_weight(grad_output, input, groups, kernel_size, *geometry)


def _forward_backward(needed, grad_output, input, weight, *geometry):
    return (
        _grad_input(grad_output, weight, input, geometry) if needed[0] else None,
        _grad_weight(grad_output, input, weight, geometry) if needed[1] else None,
    )


# The gradient of a grad_input has the shape of input, and takes its part. The next likewise.
def _grad_input_backward(needed, input, grad_output, weight, input_size, *geometry):
    return (
        _ops().involution2d(input, weight, *geometry) if needed[0] else None,
        _grad_weight(grad_output, input, weight, geometry) if needed[1] else None,
    )


def _grad_weight_backward(needed, weight, grad_output, input, groups, kernel_size, *geometry):
    return (
        _ops().involution2d(input, weight, *geometry) if needed[0] else None,
        _grad_input(grad_output, weight, input, geometry) if needed[1] else None,
    )


# vmap


def _vmap(op):
    # Samples do not meet, so a further batch dimension is merged into the batch.
    def rule(info, in_dims, first, second, *arguments):
        def merge(tensor, dim):
            if dim is None:
                tensor = tensor.expand(info.batch_size, *tensor.shape)
            else:
                tensor = tensor.movedim(dim, 0)
            return tensor.flatten(0, 1)

        result = op(merge(first, in_dims[0]), merge(second, in_dims[1]), *arguments)
        return result.unflatten(0, (info.batch_size, result.shape[0] // info.batch_size)), 0

    return rule


# Autocast


def is_cast(input, weight):
    """Whether autocast is on for these tensors. It leaves a product with float64 alone."""
    device = input.device.type
    return (
        torch.amp.is_autocast_available(device)
        and torch.is_autocast_enabled(device)
        and torch.float64 not in (input.dtype, weight.dtype)
    )


def _autocast(key):
    def cast(input, weight, *arguments):
        if is_cast(input, weight):
            dtype = torch.get_autocast_dtype(input.device.type)
            input, weight = input.to(dtype), weight.to(dtype)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return _ops().involution2d(input, weight, *arguments)

    return cast


GEOMETRY = "SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation"


class Operator(NamedTuple):
    schema: str
    kernel: str
    find: Callable
    backward: Callable


OPERATORS = {
    "involution2d": Operator(
        f"(Tensor input, Tensor weight, {GEOMETRY}) -> Tensor",
        "forward",
        _forward_geometry,
        _forward_backward,
    ),
    "involution2d_grad_input": Operator(
        f"(Tensor grad_output, Tensor weight, SymInt[2] input_size, {GEOMETRY}) -> Tensor",
        "grad_input",
        _grad_input_geometry,
        _grad_input_backward,
    ),
    "involution2d_grad_weight": Operator(
        "(Tensor grad_output, Tensor input, SymInt groups, SymInt[2] kernel_size,"
        f" {GEOMETRY}) -> Tensor",
        "grad_weight",
        _grad_weight_geometry,
        _grad_weight_backward,
    ),
}


def register():
    for name, (schema, kernel, find, _) in OPERATORS.items():
        qualified = f"{NAMESPACE}::{name}"
        torch.library.define(qualified, schema)
        for device in ("cpu", "cuda", "default"):  # default: plain.py on any other device
            torch.library.impl(qualified, device, _kernel(kernel, find))
        torch.library.register_fake(qualified, _fake(kernel, find))
        torch.library.impl(qualified, "Autograd", _autograd(name))
        torch.library.register_vmap(qualified, _vmap(getattr(_ops(), name)))
    name = f"{NAMESPACE}::involution2d"
    for key in ("AutocastCPU", "AutocastCUDA"):
        torch.library.impl(name, key, _autocast(getattr(torch._C.DispatchKey, key)))


# Two copies of this folder in one process share the operators of the first one.
if not hasattr(_ops(), "involution2d"):
    register()
