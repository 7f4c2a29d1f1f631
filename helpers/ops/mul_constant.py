r"""A tensor times a number, the smallest op with an argument that is no tensor.

    y = constant · x        dL/dx = conj(constant) · dL/dy

Source: `MulConstant` of the PyTorch notes on extending,
https://docs.pytorch.org/docs/2.15/notes/extending.html

Needs torch 2.10 or later. Private: the forward mode's `_set_fwd_grad_enabled`.

>>> import torch
>>> x = torch.ones(2, requires_grad=True)
>>> mul_constant(x, 3.0).sum().backward()
>>> x.grad
tensor([3., 3.])
"""

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled


class MulConstant(torch.autograd.Function):
    """`mul_constant` without its checks."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input, constant):
        return input * constant

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.constant = inputs  # no tensor, so it may live on ctx
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad_output):
        # No gradient arrived: pass on nothing rather than zeros.
        if grad_output is None:
            return None, None
        return grad_output * ctx.constant.conjugate(), None

    @staticmethod
    def jvp(ctx, tangent, _):
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            return tangent * ctx.constant


def mul_constant(input, constant):
    """`input * constant`, with a gradient for `input` only.

    input: a floating-point or complex tensor of any shape.
    constant: a Python int or float, or a complex number if `input` is complex.
    Returns a tensor with the shape, dtype and device of `input`.

    Derivatives of every order, in reverse and in forward mode. Right under
    `torch.func.grad`, `vmap`, `jvp`, `jacrev`, `jacfwd`, `hessian` and `linearize`,
    alone and inside `torch.compile(fullgraph=True)` (`linearize` raises there, for any
    function), and in a program from `torch.export`, trained further.
    Raises TypeError for any other argument; a tensor as `constant` is refused because
    its gradient would be silently dropped (write `input * constant` then).
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if not (input.is_floating_point() or input.is_complex()):
        raise TypeError(f"input must be floating-point or complex, got {input.dtype}")
    if input.dtype.itemsize == 1:
        raise TypeError(
            f"input must have numbers of 16 bits or more, got {input.dtype}"
        )
    if isinstance(constant, bool) or not isinstance(constant, (int, float, complex)):
        raise TypeError(
            f"constant must be a Python number, got {type(constant).__name__}"
        )
    if isinstance(constant, complex) and not input.is_complex():
        raise TypeError(
            f"constant is complex, so input must be complex too, got {input.dtype}"
        )
    if torch.compiler.is_compiling():  # which takes no Function with a jvp
        return MulConstant.forward(input, constant)
    return MulConstant.apply(input, constant)
