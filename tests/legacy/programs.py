"""Programs as people wrote them in 2017, and what the tests of legacy.py share."""

import torch
import torch.nn as nn

from helpers.ops.legacy import Function, InplaceFunction, Variable


class Linear(Function):
    def forward(self, input, weight, bias=None):
        self.save_for_backward(input, weight, bias)
        output = input.mm(weight.t())
        if bias is not None:
            output += bias.unsqueeze(0).expand_as(output)
        return output

    def backward(self, grad_output):
        input, weight, bias = self.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if self.needs_input_grad[0]:
            grad_input = grad_output.mm(weight)
        if self.needs_input_grad[1]:
            grad_weight = grad_output.t().mm(input)
        if bias is not None and self.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias


def linear(input, weight, bias=None):
    return Linear()(input, weight, bias)


class LinearModule(nn.Linear):
    def forward(self, input):
        return linear(input, self.weight, self.bias)


class Exp(Function):
    def forward(self, input):
        result = input.exp()
        self.save_for_backward(result)
        return result

    def backward(self, grad_output):
        (result,) = self.saved_tensors
        return grad_output * result


class Square(Function):
    def forward(self, input):
        self.save_for_backward(input)
        return input * input

    def backward(self, grad_output):
        (input,) = self.saved_tensors
        return 2 * input * grad_output


class MulConstant(Function):
    def __init__(self, constant):  # no super().__init__(): it worked, and was common
        self.constant = constant

    def forward(self, input):
        return input * self.constant

    def backward(self, grad_output):
        return grad_output * self.constant


class ReLU(InplaceFunction):
    def forward(self, input):
        if self.inplace:
            self.mark_dirty(input)
            output = input.clamp_(min=0)
        else:
            output = input.clamp(min=0)
        self.save_for_backward(output)
        return output

    def backward(self, grad_output):
        (output,) = self.saved_tensors
        return grad_output * output.gt(0).type_as(grad_output)


class SinCos(Function):
    def forward(self, input):
        sin, cos = input.sin(), input.cos()
        self.save_for_backward(sin, cos)
        return sin, cos

    def backward(self, grad_sin, grad_cos):
        self.received = grad_sin, grad_cos
        sin, cos = self.saved_tensors
        return grad_sin * cos - grad_cos * sin


class Max(Function):
    """The largest value of each row, its index, and the index as a float."""

    def forward(self, input):
        output, index = input.max(1)
        position = index.type_as(input)
        self.mark_non_differentiable(index, position)
        self.save_for_backward(index)
        self.size = input.size()
        return output, index, position

    def backward(self, grad_output, grad_index, grad_position):
        (index,) = self.saved_tensors
        grad_input = grad_output.new(self.size).zero_()
        return grad_input.scatter_(1, index.unsqueeze(1), grad_output.unsqueeze(1))


class Transpose(Function):
    def __init__(self, *dims):
        super(Transpose, self).__init__()  # noqa: UP008
        self.dims = dims

    def forward(self, input):
        result = input.transpose(*self.dims)
        self.mark_shared_storage((input, result))
        return result

    def backward(self, grad_output):
        return grad_output.transpose(*self.dims)


class StaticSquare(Function):  # the style of 0.2 and 0.3
    @staticmethod
    def forward(ctx, input, scale):
        ctx.scale = scale
        ctx.save_for_backward(input)
        return scale * input * input

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return 2 * ctx.scale * input * grad_output, None


def made(forward, backward=lambda self, grad_output: grad_output):
    """An instance of a class `Made` with these two methods."""
    return type("Made", (Function,), {"forward": forward, "backward": backward})()


def variable(*size, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
    return Variable(data, requires_grad=True)


def assert_same(function, reference, *inputs):
    """Outputs and gradients of both agree, for gradients that differ from output to output."""
    results = []
    for f in (function, reference):
        copies = [x.detach().clone().as_strided(x.size(), x.stride()) for x in inputs]
        copies = [x.requires_grad_() for x in copies]
        outputs = f(*copies)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        outputs = [y for y in outputs if y.requires_grad]
        weights = [torch.linspace(-1, 2, y.numel()).to(y.dtype).view(y.shape) for y in outputs]
        results.append((outputs, torch.autograd.grad(outputs, copies, weights)))
    torch.testing.assert_close(*results)
