r"""log(1 + exp(x)) without overflow, and with the slope that autograd cannot see.

    y = max(x, 0) + log1p(exp(-|x|))        dL/dx = dL/dy · s(x)        s = sigmoid

The form holds for every x, so there is no threshold beyond which it becomes something else
(`torch.nn.functional.softplus` returns x itself above 20, where its second derivative is 0).
The derivative of s is taken as s(x) · s(-x): autograd's s · (1 - s) is 0 above 37 in float64.

Source: the stable form of log(1 + exp(x)), as in Maechler, Accurately Computing
log(1 - exp(-|a|)), equation 10, https://cran.r-project.org/package=Rmpfr (vignette log1mexp-note)

>>> import torch
>>> x = torch.tensor([-100.0, 0.0, 100.0], dtype=torch.float64, requires_grad=True)
>>> y = softplus(x)
>>> torch.autograd.grad(y.sum(), x)[0]
tensor([3.7201e-44, 5.0000e-01, 1.0000e+00], dtype=torch.float64)
"""

import torch


class _Sigmoid(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input):
        return torch.sigmoid(input)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * _Sigmoid.apply(input) * _Sigmoid.apply(-input)


class Softplus(torch.autograd.Function):
    """`Softplus.apply(input)`; prefer `softplus`, which checks its argument."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input):
        return input.clamp(min=0) + torch.log1p(torch.exp(-input.abs()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * _Sigmoid.apply(input)


def softplus(input):
    """The smooth ramp log(1 + exp(x)), elementwise, for every floating-point x.

    input: a floating-point tensor of any shape. The result has its shape, dtype and device.

    Derivatives of every order, finite for every finite x; works under `torch.compile`,
    `torch.func.grad` and `vmap`. Raises TypeError if `input` is not a floating-point tensor.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if not input.is_floating_point():
        raise TypeError(f"input must be floating-point, got {input.dtype}")
    return Softplus.apply(input)
