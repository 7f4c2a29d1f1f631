r"""sinh(x), as the pattern for a Function whose backward needs an intermediate result.

    p = (exp(x) - 1) / 2,  q = (exp(-x) - 1) / 2        y = p - q
    dL/dx = dL/dy · (1 + p + q)                         cosh(x)
          + dL/dp · (p + 1/2) - dL/dq · (q + 1/2)

An intermediate that only lives on ctx is a constant for autograd, and the second
derivative is silently wrong. So `Sinh` returns p and q as outputs, where they have a
history of their own, and `sinh` hides them. (With exp(x) instead of exp(x) - 1, a small
x would lose digits; without the half, p would be infinite before sinh(x) is.)

Source: the pattern is that of PyTorch's tutorial on double backward,
https://docs.pytorch.org/tutorials/intermediate/custom_function_double_backward_tutorial.html

Needs torch 2.10 or later. Private: the forward mode's `_set_fwd_grad_enabled`.

>>> import torch
>>> x = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
>>> (first,) = torch.autograd.grad(sinh(x), x, create_graph=True)
>>> torch.autograd.grad(first, x)[0].allclose(torch.sinh(x))
True
"""

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled


class Sinh(torch.autograd.Function):
    """`Sinh.apply(input)` returns sinh(x), p and q; prefer `sinh`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input):
        h, k = torch.expm1(input / 2), torch.expm1(-input / 2)
        p, q = h * (1 + h / 2), k * (1 + k / 2)
        return p - q, p, q

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output[1:])
        ctx.save_for_forward(*output[1:])
        ctx.set_materialize_grads(False)  # 0 · inf would be nan

    @staticmethod
    def backward(ctx, *grad_outputs):
        p, q = ctx.saved_tensors
        slopes = 1 + p + q, p + 0.5, -0.5 - q
        pairs = zip(grad_outputs, slopes, strict=True)
        terms = [grad * slope for grad, slope in pairs if grad is not None]
        return sum(terms) if terms else None

    @staticmethod
    def jvp(ctx, tangent):
        p, q = ctx.saved_tensors
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            return tangent * (1 + p + q), tangent * (p + 0.5), tangent * (-0.5 - q)


def sinh(input):
    """The elementwise hyperbolic sine.

    input: a floating-point tensor of any shape. The result has its shape, dtype and
    device.

    Derivatives of every order, in reverse and in forward mode. Right under
    `torch.func.grad`, `vmap`, `jvp`, `jacrev`, `jacfwd`, `hessian` and `linearize`,
    alone and inside `torch.compile(fullgraph=True)` (`linearize` raises there, for any
    function), and in a program from `torch.export`, trained further.
    Raises TypeError if `input` is not a floating-point tensor.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if not input.is_floating_point():
        raise TypeError(f"input must be floating-point, got {input.dtype}")
    if input.dtype.itemsize == 1:
        raise TypeError(
            f"input must have numbers of 16 bits or more, got {input.dtype}"
        )
    if input.layout is not torch.strided:
        raise TypeError(f"input must be dense (torch.strided), got {input.layout}")
    if torch.compiler.is_compiling():  # which takes no Function with a jvp
        return torch.sinh(input)
    # A view, because a hook on the output itself is called with None where only p and q
    # get one.
    return Sinh.apply(input)[0].view_as(input)
