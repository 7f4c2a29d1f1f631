r"""sinh(x), as the pattern for a Function whose backward needs an intermediate result.

    p = exp(x) - 1,  q = exp(-x) - 1        y = (p - q) / 2
    dL/dx = dL/dy · (1 + (p + q) / 2)       cosh(x)
          + dL/dp · (p + 1) - dL/dq · (q + 1)

An intermediate that only lives on ctx is a constant for autograd, and the second derivative is
wrong without a word. So `Sinh` returns p and q as outputs, where they have a history of their own,
and `sinh` hides them. (exp(x) - 1 instead of exp(x) keeps the digits of a small x.)

Source: the pattern is that of PyTorch's tutorial on double backward,
https://docs.pytorch.org/tutorials/intermediate/custom_function_double_backward_tutorial.html

>>> import torch
>>> x = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
>>> (first,) = torch.autograd.grad(sinh(x), x, create_graph=True)
>>> torch.autograd.grad(first, x)[0].allclose(torch.sinh(x))
True
"""

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled


class Sinh(torch.autograd.Function):
    """`Sinh.apply(input)` returns (sinh(x), exp(x) - 1, exp(-x) - 1); prefer `sinh`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input):
        p, q = torch.expm1(input), torch.expm1(-input)
        return (p - q) / 2, p, q

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output[1:])
        ctx.save_for_forward(*output[1:])

    @staticmethod
    def backward(ctx, grad_output, grad_p, grad_q):
        p, q = ctx.saved_tensors
        return grad_output * (1 + (p + q) / 2) + grad_p * (p + 1) - grad_q * (q + 1)

    @staticmethod
    def jvp(ctx, tangent):
        p, q = ctx.saved_tensors
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            return tangent * (1 + (p + q) / 2), tangent * (p + 1), -tangent * (q + 1)


def sinh(input):
    """The elementwise hyperbolic sine.

    input: a floating-point tensor of any shape. The result has its shape, dtype and device.

    Derivatives of every order, in reverse and in forward mode. Right under `torch.func.grad`,
    `vmap`, `jvp`, `jacrev`, `jacfwd`, `hessian` and `linearize`, alone and inside
    `torch.compile(fullgraph=True)` (`linearize` raises there, for any function), and in a program
    from `torch.export`, trained further.
    Raises TypeError if `input` is not a floating-point tensor.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if not input.is_floating_point():
        raise TypeError(f"input must be floating-point, got {input.dtype}")
    if torch.compiler.is_compiling():  # which takes no Function with a jvp
        return Sinh.forward(input)[0]
    return Sinh.apply(input)[0]
