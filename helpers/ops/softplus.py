r"""log(1 + exp(x)) without overflow, and with the slope that autograd cannot see.

    y = max(x, 0) + log1p(exp(-|x|))        dL/dx = dL/dy · s(x)        s = sigmoid

The form holds for every x, so there is no threshold beyond which it becomes something
else (`torch.nn.functional.softplus` returns x itself above 20, where its second
derivative is 0). The derivative of s is taken as s(x) · s(-x): autograd's s · (1 - s)
is 0 above 37 in float64.

Source: the stable form of log(1 + exp(x)), as in Maechler, Accurately Computing log(1 -
exp(-|a|)), equation 10, https://cran.r-project.org/package=Rmpfr (vignette
log1mexp-note)

Needs torch 2.10 or later. Private: the forward mode's `_set_fwd_grad_enabled`.

>>> import torch
>>> x = torch.tensor([-100.0, 0.0, 100.0], dtype=torch.float64, requires_grad=True)
>>> y = softplus(x)
>>> torch.autograd.grad(y.sum(), x)[0]
tensor([3.7201e-44, 5.0000e-01, 1.0000e+00], dtype=torch.float64)
"""

import math

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(input):
        return torch.sigmoid(input)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * _Sigmoid.apply(input) * _Sigmoid.apply(-input)

    @staticmethod
    def jvp(ctx, tangent):
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            input = unpack_dual(ctx.saved_tensors[0]).primal
            return tangent * _Sigmoid.apply(input) * _Sigmoid.apply(-input)

    @staticmethod
    def vmap(info, in_dims, input):  # generate_vmap_rule has none for unpack_dual
        return _Sigmoid.apply(input), in_dims[0]


class Softplus(torch.autograd.Function):
    """`Softplus.apply(input)`; prefer `softplus`, which checks its argument."""

    @staticmethod
    def forward(input):
        # With clamp and abs, what PyTorch makes of this as it stands would be wrong at
        # 0.
        positive = input > 0
        below = torch.where(positive, -input, input)
        return torch.where(positive, input, 0) + torch.log1p(torch.exp(below))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * _Sigmoid.apply(input)

    @staticmethod
    def jvp(ctx, tangent):
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            input = unpack_dual(ctx.saved_tensors[0]).primal
            return tangent * _Sigmoid.apply(input)

    @staticmethod
    def vmap(info, in_dims, input):
        return Softplus.apply(input), in_dims[0]


def softplus(input, beta=1.0):
    """The smooth ramp log(1 + exp(beta · x)) / beta, for every floating-point x.

    input: a floating-point tensor of any shape. The result has its shape, dtype and
    device.
    beta: a finite Python number larger than 0: the larger, the sharper the bend.

    Derivatives of every order, finite where beta · x is finite, in reverse and in
    forward mode. Right under `torch.func.grad`, `vmap`, `jvp`, `jacrev`, `jacfwd`,
    `hessian` and `linearize`, alone and inside `torch.compile(fullgraph=True)`
    (`linearize` raises there, for any function), and in a program from `torch.export`,
    trained further.
    Raises TypeError or ValueError for other arguments.
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
    _check_beta(beta)
    # A compiler takes no Function with a jvp.
    call = Softplus.forward if torch.compiler.is_compiling() else Softplus.apply
    if beta == 1:
        return call(input)
    # Where exp(beta · x) is small, its relative error is the absolute error of beta ·
    # x.
    wide = torch.promote_types(input.dtype, torch.float32)
    return (call(beta * input.to(wide)) / beta).to(input.dtype)


def _check_beta(beta):
    if isinstance(beta, bool) or not isinstance(beta, (int, float)):
        raise TypeError(f"beta must be a Python number, got {type(beta).__name__}")
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be finite and larger than 0, got {beta}")


class SoftplusLayer(torch.nn.Module):
    """`softplus` as a module, as `torch.nn.Softplus` is, but without a threshold.

    Raises TypeError or ValueError for a `beta` that `softplus` would refuse.
    """

    def __init__(self, beta=1.0):
        super().__init__()
        _check_beta(beta)
        self.beta = beta

    def forward(self, input):
        return softplus(input, self.beta)

    def extra_repr(self):
        return f"beta={self.beta}"
