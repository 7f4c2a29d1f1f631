"""`torch.ops.extending_pytorch.involution2d`, and its gradients' operators.

An operator is a name that PyTorch's dispatcher knows, with a schema. It has a kernel
for each device; one for fake tensors, which have a shape but no data, so that
`torch.compile` and `torch.export` trace it without looking inside; and rules for
autograd, vmap and autocast.

Each derivative of one of the three is another of the three, because
    sum(grad_output * output) = sum(grad_input * input) = sum(grad_weight * weight)
is one sum of products of three tensors. So there are derivatives of every order, and
each of the three is linear in each of its tensors.
"""

import math
from functools import partial

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual
from torch.utils.flop_counter import register_flop_formula

from .backends import implementation
from .geometry import (
    ARRAYS,
    check_operator,
    empty_result,
    part,
    result_format,
    sizes_to_tell,
)

NAMESPACE = "extending_pytorch"
PAIRS = "SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation"
OPERATORS = {  # name: the kernel that it runs, and its schema
    "involution2d": ("forward", f"(Tensor input, Tensor weight, {PAIRS}) -> Tensor"),
    "involution2d_grad_input": (
        "grad_input",
        f"(Tensor grad_output, Tensor weight, SymInt[2] input_size, {PAIRS}) -> Tensor",
    ),
    "involution2d_grad_weight": (
        "grad_weight",
        "(Tensor grad_output, Tensor input, SymInt groups, SymInt[2] kernel_size,"
        f" {PAIRS}) -> Tensor",
    ),
}


PARTS = {
    name: tuple(map(part, ARRAYS[kernel])) for name, (kernel, _) in OPERATORS.items()
}
# Of each array, the operator that makes it.
MAKER = {parts[2]: name for name, parts in PARTS.items()}


def _ops():
    return getattr(torch.ops, NAMESPACE)


# Kernels


def _kernel(kernel):
    def run(first, second, *arguments):
        geometry = check_operator(kernel, first, second, *arguments)
        result = getattr(implementation(first.device), kernel)(first, second, geometry)
        return result.contiguous(memory_format=result_format(kernel, first))

    return run


def _fake(kernel):
    def run(first, second, *arguments):
        return empty_result(
            kernel, first, check_operator(kernel, first, second, *arguments)
        )

    return run


# Autograd


class _Operator(torch.autograd.function._SingleLevelFunction):
    """One of the three operators, as it runs where gradients are needed.

    `torch.library.register_autograd` would write such a class, but up to torch 2.15 it
    raises under `torch.func.grad`, and forward mode silently gets zeros. So this leans
    on what is private: `_SingleLevelFunction`, its guard and
    `_AutoDispatchBelowAutograd`. The dispatcher comes here once for each level of
    torch.func; `Function` would start with the outermost again.
    """

    # As of any Function without.
    vmap, generate_vmap_rule = torch.autograd.Function.vmap, False

    @staticmethod
    def forward(ctx, modes, name, first, second, *arguments):
        # ctx.name() is taken.
        ctx.modes, ctx.operator, ctx.arguments = modes, name, arguments
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)
        # Both modes are off inside forward, but the levels below may want to record,
        # too.
        with (
            torch.set_grad_enabled(modes[0]),
            _set_fwd_grad_enabled(modes[1]),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return getattr(_ops(), name)(first, second, *arguments)

    @staticmethod
    def backward(ctx, grad):
        first, second, result = PARTS[ctx.operator]
        tensors = dict(
            zip((first, second, result), (*ctx.saved_tensors, grad), strict=True)
        )
        grads = [
            _made(array, tensors, ctx.arguments[-3:]) if needed else None
            for array, needed in zip(
                (first, second), ctx.needs_input_grad[2:4], strict=True
            )
        ]
        return None, None, *grads, *[None] * len(ctx.arguments)

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


def _apply(name, *args):
    with enable_single_level_autograd_function():
        modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        return _Operator.apply(modes, name, *args)


def _made(array, tensors, pairs):
    """What the operator that makes `array` makes of the two other tensors."""
    name = MAKER[array]
    first, second, _ = PARTS[name]
    sizes = sizes_to_tell(OPERATORS[name][0], tensors[array].shape)
    return getattr(_ops(), name)(tensors[first], tensors[second], *sizes, *pairs)


# vmap


def _vmap(op):
    # Samples do not meet, so a further batch dimension is merged into the batch.
    def rule(info, in_dims, first, second, *arguments):
        pair = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((first, second), in_dims, strict=False)
        ]
        result = op(*(t.flatten(0, 1) for t in pair), *arguments)
        return result.unflatten(0, pair[0].shape[:2]), 0

    return rule


# Autocast


def is_cast(input, weight):
    """Whether autocast is on for these tensors. It leaves float64 alone."""
    return (
        not input.is_meta  # which has no autocast; torch 2.10 cannot trace the question
        and torch.is_autocast_enabled(input.device.type)
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


# What torch.utils.flop_counter counts: a multiplication and an addition for each tap


def _flops(kernel):
    def count(first, second, *arguments, out_shape=None, **_):
        shapes = dict(zip(ARRAYS[kernel], (first, second, out_shape), strict=True))
        shapes = {part(array): shape for array, shape in shapes.items()}
        channels, groups = shapes["output"][1], shapes["weight"][1]
        return 2 * math.prod(shapes["weight"]) // groups * channels

    return count


def register():
    for name, (kernel, schema) in OPERATORS.items():
        qualified = f"{NAMESPACE}::{name}"
        torch.library.define(qualified, schema)
        for device in (
            "cpu",
            "cuda",
            "default",
        ):  # default: plain.py on any other device
            torch.library.impl(qualified, device, _kernel(kernel))
        torch.library.register_fake(qualified, _fake(kernel))
        torch.library.impl(qualified, "Autograd", partial(_apply, name))
        torch.library.register_vmap(qualified, _vmap(getattr(_ops(), name)))
        register_flop_formula(getattr(_ops(), name))(_flops(kernel))
    name = f"{NAMESPACE}::involution2d"
    for key in ("AutocastCPU", "AutocastCUDA"):
        torch.library.impl(name, key, _autocast(getattr(torch._C.DispatchKey, key)))


# Two copies of this folder in one process share the operators of the first one.
if not hasattr(_ops(), "involution2d"):
    register()
