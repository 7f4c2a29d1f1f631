r"""exp(x), differentiated through its own result.

The derivative of exp is exp, so `Exp` saves what `forward` returned instead of what it
was given: no second evaluation in `backward`, and no hold on the input.

    y = exp(x)        dL/dx = dL/dy · conj(y)

Source: the pattern is `Exp` of the PyTorch notes,
https://docs.pytorch.org/docs/2.15/autograd.html#torch.autograd.Function

Needs torch 2.10 or later. Private: the forward mode's `_set_fwd_grad_enabled`. Under
it, a `jvp` that reads a saved input takes `forward_ad.unpack_dual(input).primal`.

>>> import torch
>>> x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
>>> y = exp(x)
>>> torch.autograd.grad(y.sum(), x)[0].equal(y)
True
"""

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled


class Exp(torch.autograd.Function):
    """`Exp.apply(input)`; prefer `exp`, which checks its argument."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input):
        return torch.exp(input)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, grad_output):
        (result,) = ctx.saved_tensors
        return grad_output * result.conj()

    @staticmethod
    def jvp(ctx, tangent):
        (result,) = ctx.saved_tensors
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            return tangent * result


def exp(input):
    """The elementwise exponential of `input`.

    input: a floating-point or complex tensor of any shape. The result has its shape,
    dtype and device, and must not be modified in place before backward, because
    backward reads it (autograd raises if it was).

    Derivatives of every order, in reverse and in forward mode. Right under
    `torch.func.grad`, `vmap`, `jvp`, `jacrev`, `jacfwd`, `hessian` and `linearize`,
    alone and inside `torch.compile(fullgraph=True)` (`linearize` raises there, for any
    function), and in a program from `torch.export`, trained further.
    Raises TypeError if `input` is not a floating-point or complex tensor.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if not (input.is_floating_point() or input.is_complex()):
        raise TypeError(f"input must be floating-point or complex, got {input.dtype}")
    if input.dtype.itemsize == 1:
        raise TypeError(
            f"input must have numbers of 16 bits or more, got {input.dtype}"
        )
    if input.layout is not torch.strided:
        raise TypeError(f"input must be dense (torch.strided), got {input.layout}")
    if torch.compiler.is_compiling():  # which takes no Function with a jvp
        return Exp.forward(input)
    return Exp.apply(input)
