r"""Identity forward, minus `scale` times the gradient backward.

    y = x        dL/dx := -scale · dL/dy

Put between a feature extractor and a domain classifier, it trains the classifier to
tell the domains apart and the features to hide them, in one backward pass.

Source: Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation (ICML
2015), https://arxiv.org/abs/1409.7495

Needs torch 2.10 or later. Private: the forward mode's `_set_fwd_grad_enabled`.

>>> import torch
>>> x = torch.ones(2, requires_grad=True)
>>> gradient_reversal(x, scale=0.5).sum().backward()
>>> x.grad
tensor([-0.5000, -0.5000])
"""

import math

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled


class GradientReversal(torch.autograd.Function):
    """`GradientReversal.apply(input, scale)`; `gradient_reversal` checks, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input, scale):
        return input.clone()  # a view would need a tangent that is a view

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.scale = inputs

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * -ctx.scale, None

    @staticmethod
    def jvp(ctx, tangent, _):
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            return tangent * -ctx.scale


def _constant(tensor):
    """Its numbers without their history."""
    # Of `detach`, `run_decompositions` makes an alias, with a slope. What is better in
    # an exported program has no rule for vmap on torch 2.10, which takes any compiler
    # for an exporter.
    if not torch.compiler.is_exporting() or torch.__version__.startswith("2.10."):
        return tensor.detach()
    if tensor.is_complex():
        return torch.view_as_complex(
            _constant(torch.view_as_real(tensor.resolve_conj()))
        )
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(bits).view(tensor.dtype)


def gradient_reversal(input, scale=1.0):
    """`input`, unchanged, whose gradient is multiplied by `-scale`.

    input: a floating-point or complex tensor of any shape.
    scale: a finite, non-negative Python number (the lambda of the paper).
    Returns a copy of `input`. In forward mode its tangent is multiplied by `-scale`,
    too.

    The gradient is not the derivative of the forward, so `gradcheck` fails, as it
    should. Right under `torch.func.grad`, `vmap`, `jvp`, `jacrev`, `jacfwd`, `hessian`
    and `linearize`, alone and inside `torch.compile(fullgraph=True)` (`linearize`
    raises there, for any function), and in a program from `torch.export`, trained
    further, also after `run_decompositions` (not on torch 2.10). Compiled or exported,
    the slope at an infinite or nan number is 0, not `-scale`. On torch 2.11, a compiled
    `vmap(grad)` raises.
    Raises TypeError or ValueError for other arguments.
    """
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if not (input.is_floating_point() or input.is_complex()):
        raise TypeError(f"input must be floating-point or complex, got {input.dtype}")
    if input.dtype.itemsize == 1:
        raise TypeError(
            f"input must have numbers of 16 bits or more, got {input.dtype}"
        )
    _check_scale(scale)
    if torch.compiler.is_compiling():
        # A Function would be refused for its jvp, or its backward dropped in favour of
        # forward's own derivative. These operations hold it: `zero` is 0, and its slope
        # is 1.
        finite = input.where(input.isfinite(), 0)  # for inf - inf is nan
        zero = finite - _constant(finite)
        return _constant(input) - scale * zero
    return GradientReversal.apply(input, scale)


def _check_scale(scale):
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a Python number, got {type(scale).__name__}")
    if not 0 <= scale < math.inf:
        raise ValueError(f"scale must be finite and not negative, got {scale}")


class GradientReversalLayer(torch.nn.Module):
    """`gradient_reversal` as a module; a schedule may change its `scale`.

    Input and output: a floating-point or complex tensor of any shape.
    Raises TypeError or ValueError for a `scale` that `gradient_reversal` would refuse.
    """

    def __init__(self, scale=1.0):
        super().__init__()
        _check_scale(scale)
        self.scale = scale

    def forward(self, input):
        return gradient_reversal(input, self.scale)

    def extra_repr(self):
        return f"scale={self.scale}"
