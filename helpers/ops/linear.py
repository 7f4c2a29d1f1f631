r"""y = x Wᵀ + b with its three matrix gradients written out.

    y  = x · Wᵀ + b            (N, out) = (N, in) (in, out) + (out)
    dx = dy · W                (N, in)  = (N, out) (out, in)
    dW = dyᵀ · x               (out, in) = (out, N) (N, in)
    db = sum of dy over N      (out)

Source: `LinearFunction` of the PyTorch notes on extending,
https://docs.pytorch.org/docs/2.15/notes/extending.html

Needs torch 2.10 or later. Private: the forward mode's `_set_fwd_grad_enabled`.

>>> import torch
>>> x, weight = torch.ones(4, 3), torch.ones(2, 3)
>>> bias = torch.zeros(2, requires_grad=True)
>>> y = linear(x, weight, bias)
>>> y.sum().backward()
>>> y.shape, bias.grad
(torch.Size([4, 2]), tensor([4., 4.]))
"""

import math

import torch
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual


class LinearFunction(torch.autograd.Function):
    """`LinearFunction.apply` of (N, in), (out, in), and (out) or None.

    Prefer `linear`, which checks its arguments and takes inputs of any number of
    dimensions.
    """

    @staticmethod
    def forward(input, weight, bias=None):
        output = input.mm(weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        input, weight, bias = inputs
        ctx.save_for_backward(input, weight)
        ctx.save_for_forward(input, weight)
        ctx.with_bias = bias is not None

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output.mm(weight)
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t().mm(input)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias

    @staticmethod
    def jvp(ctx, input_tangent, weight_tangent, bias_tangent):
        with _set_fwd_grad_enabled(True):  # for a jvp of it: pytorch issue 197867
            input, weight = (unpack_dual(tensor).primal for tensor in ctx.saved_tensors)
            tangent = input_tangent.mm(weight.t()) + input.mm(weight_tangent.t())
            return tangent + bias_tangent if ctx.with_bias else tangent

    @staticmethod
    def vmap(info, in_dims, input, weight, bias=None):
        # In PyTorch's operations, because generate_vmap_rule has no rule for
        # unpack_dual.
        input, weight, bias = (
            tensor if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((input, weight, bias), in_dims, strict=True)
        )
        output = input.matmul(weight.mT)
        if bias is not None:
            output = output + (bias if in_dims[2] is None else bias[:, None])
        return output, 0


def linear(input, weight, bias=None):
    """`input @ weight.T + bias`, as `torch.nn.functional.linear`.

    input: (..., in_features); weight: (out_features, in_features); bias: (out_features)
    or None. All of one floating-point dtype and on one device; under autocast they are
    cast as PyTorch's own linear casts them. Returns (..., out_features).

    Derivatives of every order, in reverse and in forward mode. Right under
    `torch.func.grad`, `vmap`, `jvp`, `jacrev`, `jacfwd`, `hessian` and `linearize`,
    alone and inside `torch.compile(fullgraph=True)` (`linearize` raises there, for any
    function), and in a program from `torch.export`, trained further.
    Raises TypeError or ValueError for dtypes, devices and shapes that do not fit.
    """
    tensors = {"input": input, "weight": weight}
    if bias is not None:
        tensors["bias"] = bias
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name} must be a torch.Tensor, got {type(tensor).__name__}"
            )
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating-point, got {tensor.dtype}")
        if tensor.dtype.itemsize == 1:
            raise TypeError(
                f"{name} must have numbers of 16 bits or more, got {tensor.dtype}"
            )
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"{name} must be dense (torch.strided), got {tensor.layout}"
            )
        if tensor.device != input.device:
            raise ValueError(
                f"{name} is on {tensor.device}, but input is on {input.device}"
            )
    if weight.dim() != 2:
        raise ValueError(
            "weight must have shape (out_features, in_features), "
            f"got {tuple(weight.shape)}"
        )
    out_features, in_features = weight.shape
    if input.dim() == 0 or input.shape[-1] != in_features:
        raise ValueError(
            f"input must have shape (..., {in_features}) to fit weight "
            f"{tuple(weight.shape)}, got {tuple(input.shape)}"
        )
    if bias is not None and bias.shape != (out_features,):
        raise ValueError(
            f"bias must have shape ({out_features},), got {tuple(bias.shape)}"
        )
    device_type = input.device.type
    # "meta" has no autocast.
    if not input.is_meta and torch.is_autocast_enabled(device_type):
        # Cast out here, where autograd records it, so that every gradient returns in
        # its own dtype.
        dtype = torch.get_autocast_dtype(device_type)
        tensors = {
            name: tensor if tensor.dtype == torch.float64 else tensor.to(dtype)
            for name, tensor in tensors.items()
        }
    for name, tensor in tensors.items():
        if tensor.dtype != tensors["input"].dtype:
            raise TypeError(
                f"{name} is {tensor.dtype}, but input is {tensors['input'].dtype}"
            )
    # Spelled out because reshape(-1, 0) would be ambiguous for a layer without input
    # features.
    rows = tensors["input"].reshape(math.prod(input.shape[:-1]), in_features)
    # A compiler takes no Function with a jvp.
    call = (
        LinearFunction.forward
        if torch.compiler.is_compiling()
        else LinearFunction.apply
    )
    output = call(rows, tensors["weight"], tensors.get("bias"))
    return output.reshape(*input.shape[:-1], out_features)


class Linear(torch.nn.Module):
    """A module that applies `linear`; interchangeable with `torch.nn.Linear`.

    Input (..., in_features), output (..., out_features). Parameters, under the names,
    shapes and initial distribution of `torch.nn.Linear`: weight (out_features,
    in_features), and bias (out_features), which is None if `bias` is False.

    Raises TypeError or ValueError for sizes that are no integers or negative.
    """

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        for name, size in (
            ("in_features", in_features),
            ("out_features", out_features),
        ):
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"{name} must be an int, got {type(size).__name__}")
            if size < 0:
                raise ValueError(f"{name} must not be negative, got {size}")
        if dtype is not None and not getattr(dtype, "is_floating_point", False):
            raise TypeError(
                f"dtype must be a floating-point torch.dtype, got {dtype!r}"
            )
        if dtype is not None and dtype.itemsize == 1:
            raise TypeError(f"dtype must have 16 bits or more, got {dtype}")
        self.in_features, self.out_features = in_features, out_features
        options = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(
            torch.empty(out_features, in_features, **options)
        )
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(out_features, **options))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draw both from the uniform distribution on ±1/sqrt(in_features)."""
        # The draws of nn.Linear, so that one seed gives both the same parameters: its
        # kaiming_uniform_ with a = sqrt(5) is this bound.
        # https://arxiv.org/abs/1502.01852
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input):
        return linear(input, self.weight, self.bias)

    def extra_repr(self):
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )
