"""legacy.py runs programs of 2017; PyTorch's own operations judge."""

import gc
import weakref

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import gradgradcheck

from helpers.ops.legacy import Function, InplaceFunction, Variable
from tests.common import assert_agree, random


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
        sin, cos = self.saved_tensors
        return grad_sin * cos - grad_cos * sin


class Max(Function):
    """The largest value of each row, and its index."""

    def forward(self, input):
        output, index = input.max(1)
        self.mark_non_differentiable(index)
        self.save_for_backward(index)
        self.size = input.size()
        return output, index

    def backward(self, grad_output, grad_index):
        (index,) = self.saved_tensors
        grad_input = grad_output.new(self.size).zero_()
        return grad_input.scatter_(1, index.unsqueeze(1), grad_output.unsqueeze(1))


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


class Recomputes(Function):
    """Variables inside backward record."""

    def forward(self, input):
        self.save_for_backward(input)
        return input.sin()

    def backward(self, grad_output):
        input = Variable(self.saved_tensors[0], requires_grad=True)
        input.sin().backward(grad_output)
        return input.grad.data


class Clamp(Function):
    """Its backward changes the gradient in place, also where that is expanded."""

    def forward(self, input):
        self.input = input
        return input.clamp(max=0)

    def backward(self, grad_output):
        grad_output[self.input.ge(0)] = 0
        return grad_output


def made(forward, backward=lambda self, grad_output: grad_output):
    """An instance of a class `Made` with these two methods."""
    return type("Made", (Function,), {"forward": forward, "backward": backward})()


# What it computes


MATRIX = ((4, 3),)
LINEAR = (4, 3), (5, 3)
SAME = {
    "linear": (lambda *t: Linear()(*t), F.linear, (*LINEAR, (5,))),
    "linear without bias": (lambda x, w: Linear()(x, w, None), F.linear, LINEAR),
    "a gradient too many": (lambda x, w: Linear()(x, w), F.linear, LINEAR),
    "a constant": (lambda x: MulConstant(3)(x), lambda x: x * 3, MATRIX),
    "relu": (lambda x: ReLU()(x), torch.relu, MATRIX),
    "relu in place": (lambda x: ReLU(inplace=True)(x * 1), torch.relu, MATRIX),
    "two outputs": (
        lambda x: torch.cat(SinCos()(x)),
        lambda x: torch.cat((x.sin(), x.cos())),
        MATRIX,
    ),
    "max": (lambda x: Max()(x)[0], lambda x: x.amax(1), MATRIX),
    "static": (lambda x: StaticSquare.apply(x, 2), lambda x: 2 * x * x, MATRIX),
    "old methods, applied": (lambda x: Max.apply(x)[0], lambda x: x.amax(1), MATRIX),
    "backward inside": (lambda x: Recomputes()(x), torch.sin, MATRIX),
    "in place": (lambda x: Clamp()(x), lambda x: x.clamp(max=0), MATRIX),
    "a gradient squeezed": (
        made(lambda self, x: x * 2, lambda self, grad: (grad * 2).squeeze()),
        lambda x: x * 2,
        ((3, 1),),
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_as_today(case):
    function, reference, sizes = SAME[case]
    inputs = [random(*size) for size in sizes]
    assert_agree(function, reference, inputs, torch.float64)


def test_forward_and_backward_get_plain_tensors():
    class Numpy(Function):  # which refuses what requires a gradient
        def forward(self, input):
            self.output = torch.from_numpy(np.exp(input.numpy()))
            return self.output

        def backward(self, grad_output):
            return torch.from_numpy(grad_output.numpy() * self.output.numpy())

    x = random(3)
    y = Numpy()(x)
    (gradient,) = torch.autograd.grad(y.sum() ** 2, x, create_graph=True)
    torch.testing.assert_close(gradient, 2 * x.exp().sum() * x.exp())


def test_saved_tensors_are_plain_and_saved_variables_are_not():
    x, function = random(3), Square()
    assert function.saved_tensors == function.saved_variables == ()
    y = function(x)
    assert function.saved_variables[0] is x
    assert not function.saved_tensors[0].requires_grad
    assert y.grad_fn.function is function


def test_needs_input_grad():
    seen = []

    def forward(self, a, b):
        seen.append(self.needs_input_grad)
        return a * b

    def backward(self, grad_output):
        seen.append(self.needs_input_grad)
        return grad_output, grad_output

    function = made(forward, backward)
    function(random(2), Variable(torch.ones(2))).sum().backward()
    assert seen == [(True, False)] * 2


def test_in_place():
    z = random(4, 3) * 1
    y = ReLU(inplace=True)(z)
    assert y is z and y.grad_fn.name() == "ReLUBackward"
    square = z * z  # saves z
    ReLU(inplace=True)(z)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_a_gradient_does_not_share_memory_with_what_the_instance_keeps():
    x, stored = random(3), nn.Parameter(torch.ones(3).double())
    function = made(lambda self, input: input * 1, lambda self, grad_output: stored)
    function(x).sum().backward()
    assert x.grad.data_ptr() != stored.data_ptr() and not x.grad.requires_grad


# What was wrong in 2017


def test_called_twice():
    function, a, b = Square(), random(2, seed=1), random(2, seed=2)
    first, second = function(a), function(b)
    with pytest.raises(RuntimeError, match="object was called twice"):
        first.sum().backward()
    second.sum().backward()
    assert a.grad is None and torch.equal(b.grad, 2 * b.detach())
    y = function(a * 2)
    function(a * 3)  # the first input is gone; its place in memory may be the same
    with pytest.raises(RuntimeError, match="object was called twice"):
        y.sum().backward()
    first, again = function(a), function(a)  # as in gradcheck
    (first + again).sum().backward()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: Square()(x).sum(),
        lambda x: (Square()(x) + x**3).sum(),  # where once_differentiable returns 6 x
        lambda x: Square()(MulConstant(2)(x * x)).sum(),
        lambda x: sum(y.sum() for y in SinCos()(x)),
    ],
)
def test_no_second_derivative(f):
    x = random(3)
    (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="is not differentiable twice"):
        torch.autograd.grad(slope.sum(), x)
    assert gradgradcheck(lambda x: StaticSquare.apply(x, 3), x)  # but in the new style


def returning(*gradients):
    """The backward pass of a product, to these gradients."""
    product = made(lambda self, a, b: a * b, lambda self, grad_output: gradients)
    product(random(2), random(2)).sum().backward()


def data_of(bad):
    made(lambda self, input: bad)(random(2))


X, ONE = torch.ones(2), torch.ones(2).double()


@pytest.mark.parametrize(
    "kind, message, call",
    [
        (TypeError, "expected a Variable argument, but got int", lambda: Square()(3)),
        (TypeError, "Made.forward: .* got list for output 0", lambda: data_of([X])),
        (TypeError, "got int for output 1", lambda: data_of((X, 3))),
        (TypeError, "`with torch.no_grad.*insi", lambda: data_of(random(2))),
        (TypeError, "has to be a tensor, but got list", lambda: Variable([1.0])),
        (TypeError, "but got Variable", lambda: Variable(nn.Parameter(X))),
        (ValueError, "can't be volatile", lambda: Variable(X, True, True)),
        (RuntimeError, "expected 2, but got 1", lambda: returning(ONE)),
        (RuntimeError, "expected 2, but got 3", lambda: returning(ONE, ONE, ONE)),
    ],
)
def test_bad_use_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


# Variable and volatile


def test_variable():
    data = torch.zeros(2)
    x = Variable(data, requires_grad=True)
    y = Square()(x)
    data.fill_(3)  # a buffer may be filled again: no error, as it was
    y.sum().backward()
    assert x.requires_grad and x.is_leaf and x.data_ptr() == data.data_ptr()
    assert isinstance(x, Variable) and isinstance(data, Variable)
    assert not Variable(data).requires_grad and not isinstance([1.0], Variable)
    assert not Variable(torch.ones(2).byte(), requires_grad=True).requires_grad


def test_volatile_spreads_and_ends_at_data():
    x, w = Variable(torch.ones(2, 3).double(), volatile=True), random(4, 3)
    for y in (
        w[:2] + x,
        torch.cat([w, x]),
        nn.Linear(3, 4).double()(x),
        Linear()(x, w),
        SinCos()(x)[1],
        StaticSquare.apply(x, 3),
        ReLU(inplace=True)(x),
    ):
        assert y.volatile and not y.requires_grad
    torch.testing.assert_close(Linear()(x, w).data, F.linear(x.data, w.detach()))
    with pytest.raises(RuntimeError, match="calling backward on a volatile variable"):
        y.sum().backward()
    assert type(x.data) is torch.Tensor


@pytest.mark.parametrize(
    "change", [lambda a, v: a.mul_(v), lambda a, v: torch.mul(v, v, out=a)]
)
def test_volatile_cannot_change_what_has_a_history(change):
    a, volatile = random(3) * 1, Variable(torch.ones(3).double(), volatile=True)
    with pytest.raises(RuntimeError, match="changed one that has a history"):
        change(a, volatile)


# Memory


class Keeps(Square):
    def forward(self, input):
        self.input, self.output = input, super().forward(input)
        return self.output


@pytest.mark.parametrize("run_backward", [False, True])
def test_no_reference_cycle(run_backward):
    gc.disable()
    function = Keeps()
    y = function(random(4, 3) * 1)
    if run_backward:
        y.sum().backward()
    node, instance = weakref.ref(y.grad_fn), weakref.ref(function)
    del y, function
    gc.enable()
    assert node() is None and instance() is None


def test_an_instance_called_again_without_its_third_argument():
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    layer = Linear()
    assert layer(x, weight, None).equal(layer(x, weight, None))
