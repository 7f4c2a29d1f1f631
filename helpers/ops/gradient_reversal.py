r"""Identity forward, minus `scale` times the gradient backward.

    y = x        dL/dx := -scale · dL/dy

Put between a feature extractor and a domain classifier, it trains the classifier to tell the
domains apart and the features to hide them, in one backward pass.

Source: Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation (ICML 2015),
https://arxiv.org/abs/1409.7495

>>> import torch
>>> x = torch.ones(2, requires_grad=True)
>>> gradient_reversal(x, scale=0.5).sum().backward()
>>> x.grad
tensor([-0.5000, -0.5000])
"""

import math

import torch


class GradientReversal(torch.autograd.Function):
    """`GradientReversal.apply(input, scale)`; prefer `gradient_reversal`, which checks."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input, scale):
        return input.view_as(input)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.scale = inputs

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * -ctx.scale, None


def gradient_reversal(input, scale=1.0):
    """`input`, unchanged, whose gradient is multiplied by `-scale`.

    input: a floating-point or complex tensor of any shape; no copy is made.
    scale: a finite, non-negative Python number (the lambda of the paper).
    Returns a view of `input`. Autograd refuses to modify it in place (`relu_`, say): clone first.

    The gradient is not the derivative of the forward, so `gradcheck` fails, as it should.
    Works under `torch.compile`, `torch.func.grad` and `vmap`. Not in
    `torch.compile(torch.func.grad(f))`, nor when a model from `torch.export` is differentiated:
    torch 2.13.0 then drops `backward` without a word and returns the derivative of the identity.
    Compile the call of `backward`, and train before you export.
    Raises TypeError or ValueError for other arguments.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if not (input.is_floating_point() or input.is_complex()):
        raise TypeError(f"input must be floating-point or complex, got {input.dtype}")
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a Python number, got {type(scale).__name__}")
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"scale must be finite and not negative, got {scale}")
    return GradientReversal.apply(input, scale)


class GradientReversalLayer(torch.nn.Module):
    """`gradient_reversal` as a module; `scale` is an attribute that a schedule may change.

    Input and output: a floating-point or complex tensor of any shape.
    """

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale

    def forward(self, input):
        return gradient_reversal(input, self.scale)

    def extra_repr(self):
        return f"scale={self.scale}"
