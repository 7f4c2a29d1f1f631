"""Wrong attempts at the exercises of chapter 09, each with words that the verdict must hold."""

import math

import numpy as np
import torch
from torch import Tensor

from helpers.lessons.exercises.chapter_09 import EXERCISES, fake_windows, make_soft_threshold

# 9.1


def like_the_input(x, size, step):
    return torch.empty_like(x)


def always_the_first_sample(x, size, step):
    return x.new_empty(8, 3)


def default_dtype(x, size, step):
    return torch.empty((x.shape[0] - size) // step + 1, size, device=x.device)


def default_device(x, size, step):
    return torch.empty((x.shape[0] - size) // step + 1, size, dtype=x.dtype)


def one_too_few(x, size, step):
    return x.new_empty((x.shape[0] - size) // step, size)


def forgets_step(x, size, step):
    return x.new_empty(x.shape[0] - size + 1, size)


def computes_it(x, size, step):
    view = np.lib.stride_tricks.sliding_window_view(x.numpy(), size)
    return torch.from_numpy(view[::step].copy())


def looks_at_the_data(x, size, step):
    return fake_windows(x, size, step) if x.sum().item() else None


def a_view(x, size, step):
    return x.unfold(0, size, step)


def wrong_order_in_memory(x, size, step):
    return x.new_empty(size, (x.shape[0] - size) // step + 1).t()


def special_for_short_ones(x, size, step):
    count = (x.shape[0] - size) // step + 1
    return x.new_empty(count, size) if x.shape[0] > 8 else x.new_empty(count, size)


def with_len(x, size, step):
    return x.new_empty((len(x) - size) // step + 1, size)


def with_int(x, size, step):
    return x.new_empty((int(x.shape[0]) - size) // step + 1, size)


def compares_sizes(x, size, step):
    count = (x.shape[0] - size) // step + 1
    return x.new_empty(count if x.shape[0] > 10 else count, size)


def a_shape(x, size, step):
    return (x.shape[0] - size) // step + 1, size


def always_meta(x, size, step):
    return torch.empty((x.shape[0] - size) // step + 1, size, dtype=x.dtype, device="meta")


def rounds_down(x, size, step):
    return x.new_empty(math.floor((x.shape[0] - size) / step) + 1, size)


def returns_nothing(x, size, step):
    x.new_empty((x.shape[0] - size) // step + 1, size)


# 9.2: the stub with some of its four defects repaired

STUB = EXERCISES[1].stub
MUTATION = "        np.abs(array, out=array)\n", "        array = np.abs(array)\n"
ALIAS = "        if limit == 0:\n            return x\n", ""
DTYPE = "torch.empty(x.shape)", "torch.empty_like(x)"
NUMPY = (
    "        passes = np.abs(x.numpy()) > ctx.limit\n"
    "        return grad_output * torch.from_numpy(passes), None\n",
    "        return grad_output * (x.abs() > ctx.limit), None\n",
)


def repaired(*repairs):
    source = STUB
    for old, new in repairs:
        assert old in source, old
        source = source.replace(old, new)
    names = {"torch": torch, "np": np, "Tensor": Tensor}
    exec(source, names)
    return names["make_soft_threshold"]


IGNORES = "grad_output * (x.abs() > ctx.limit), None", "(x.abs() > ctx.limit).to(x.dtype), None"
ON_CTX = "        ctx.save_for_backward(x)\n", "        ctx.x = x\n"
FROM_CTX = "        (x,) = ctx.saved_tensors\n", "        x = ctx.x\n"
FROM_NUMPY = "torch.as_tensor(sign", "torch.from_numpy(sign"
AT_THE_LIMIT = "x.abs() > ctx.limit", "x.abs() >= ctx.limit"
MASKED_INDEX = (
    "        return grad_output * (x.abs() > ctx.limit), None\n",
    "        g = grad_output.clone()\n        g[x.abs() <= ctx.limit] = 0\n"
    "        return g, None\n",
)
IN_PLACE = "grad_output * (x", "grad_output.mul_(x"
MASK = "(x.abs() > ctx.limit), None", "torch.ones_like(x), None"
STRIDES = "torch.empty_like(x)", "torch.empty(x.shape, dtype=x.dtype, device=x.device)"
DECLARED = "mutates_args=()", 'mutates_args=("x",)'
NO_AUTOGRAD = "    soft_threshold.register_autograd(backward, setup_context=setup_context)\n", ""
ONE_GRADIENT = "(x.abs() > ctx.limit), None", "(x.abs() > ctx.limit)"
PYTHON = "return soft_threshold", "return soft_threshold._init_fn"
FORGETS_SIGN = "sign * np", "np"


# 9.3


def no_print(x, limit):
    norm = x.norm()
    if norm > limit:
        x = x * (limit / norm.item())
    return x


def item_first(x, limit):
    norm = x.norm().item()
    if norm > limit:
        x = x * (limit / norm)
    return x


def differentiates_the_norm(x, limit):
    norm = x.norm()
    return torch.where(norm > limit, x * (limit / norm), x)


def chooses_tensors(x, limit):
    norm = x.detach().norm()
    return torch.where(norm > limit, x * (limit / norm), x)


def always_scales(x, limit):
    return x * (limit / x.detach().norm().clamp(min=1e-9))


def detaches_everything(x, limit):
    norm = x.norm()
    return (x * torch.where(norm > limit, limit / norm, 1.0)).detach()


def keeps_the_item(x, limit):
    norm = x.norm()
    return x * torch.where(norm > limit, limit / norm.item(), 1.0)


def changes_the_callers(x, limit):
    with torch.no_grad():
        x.mul_(limit / x.norm().clamp(min=limit))
    return x * 1


def hides_it(x, limit):
    return torch.compiler.disable(no_print)(x, limit)


def clamps_each_number(x, limit):
    return x.clamp(-limit, limit)


def keeps_the_print(x, limit):
    norm = x.detach().norm()
    print("", end="")
    return x * torch.where(norm > limit, limit / norm, 1.0)


ATTEMPTS = {
    "9.1": [
        (like_the_input, "it promises the shape (10,), but the kernel makes (8, 3)"),
        (always_the_first_sample, "for 11 numbers"),
        (default_dtype, "it promises torch.float32, but the kernel keeps the dtype"),
        (default_device, 'but it promises "cpu"'),
        (one_too_few, "the shape (7, 3)"),
        (forgets_step, "size 4, step 2"),
        (computes_it, "given a tensor without data, it raises"),
        (looks_at_the_data, "given a tensor without data, it raises"),
        (a_view, "it promises the strides (1, 1)"),
        (wrong_order_in_memory, "it promises the strides (1, 8)"),
        (with_len, "4 graphs"),
        (with_int, "4 graphs"),
        (compares_sizes, "2 graphs"),
        (special_for_short_ones, "2 graphs"),
        (always_meta, 'x is on the device "cpu", but it promises "meta"'),
        (rounds_down, "+, -, * and //"),
        (returns_nothing, "it returns None"),
        (a_shape, "it must return a tensor, got a value of type tuple"),
    ],
    "9.2": [
        (repaired(ALIAS, DTYPE, NUMPY), "Argument x is not defined as mutable but was mutated"),
        (repaired(MUTATION, DTYPE, NUMPY), "sample `limit 0`: soft_threshold: The output of this"),
        (
            repaired(MUTATION, ALIAS, NUMPY),
            "torch.float64 of the kernel and torch.float32 of",
        ),
        (repaired(MUTATION, ALIAS, DTYPE), ".numpy() is not supported for tensor subclasses"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, STRIDES), "(1, 4) in the kernel's result and"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, MASK), "opcheck passes, but: The gradient"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, NO_AUTOGRAD), "no autograd formula"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, ONE_GRADIENT), "incorrect number of gradients"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, FORGETS_SIGN), "opcheck passes, but: `forward`"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, PYTHON), "must return the operator"),
        (repaired(ALIAS, DTYPE, NUMPY, DECLARED), "Cannot register autograd formula"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, IGNORES), "does not depend on grad_output"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, ON_CTX, FROM_CTX), "ctx"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, AT_THE_LIMIT), "at x = ±limit"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, MASKED_INDEX), "test_aot_dispatch_dynamic"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, IN_PLACE), "Does backward change grad_output"),
        (repaired(MUTATION, ALIAS, DTYPE, NUMPY, FROM_NUMPY), "sample `one number`"),
        (make_soft_threshold(), "not the operator that it made"),
        (3, "give check the function itself"),
    ],
    "9.3": [
        (no_print, "Data-dependent branching"),
        (item_first, "there is still a break"),
        (differentiates_the_norm, "the norm in the denominator is a plain number"),
        (chooses_tensors, "x = 0: the gradient is nan"),
        (always_scales, "x is shorter than limit: the norm of the result"),
        (detaches_everything, "no gradient any more"),
        (hides_it, "there is still a break"),
        (torch.compiler.disable(no_print), "there is still a break"),
        (keeps_the_item, "x = 0: it divides by 0"),
        (changes_the_callers, "the x of the caller is changed"),
        (lambda x, limit: 3, "got a value of type int"),
        (clamps_each_number, "the norm of the result is"),
        (keeps_the_print, "Failed to trace builtin operator"),
    ],
}
