"""legacy.py runs programs in the style of PyTorch 0.1.12 to 0.3; PyTorch's own operations judge."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import gradgradcheck
from torch.utils.checkpoint import checkpoint

from helpers.ops import exp as modern
from helpers.ops.legacy import Function, Variable

from .programs import (
    Exp,
    Linear,
    Max,
    MulConstant,
    ReLU,
    SinCos,
    Square,
    StaticSquare,
    Transpose,
    assert_same,
    linear,
    made,
    variable,
)

# What it computes.


class Recomputes(Function):
    """Variables inside backward record."""

    def forward(self, input):
        self.save_for_backward(input)
        output = Variable(input, requires_grad=True).sin()
        assert output.requires_grad
        return output.data

    def backward(self, grad_output):
        input = Variable(self.saved_tensors[0], requires_grad=True)
        input.sin().backward(grad_output)
        return input.grad.data


class StaticNumpy(StaticSquare):  # plain tensors, in a child
    @staticmethod
    def forward(ctx, input, scale):
        ctx.save_for_backward(input)
        ctx.scale, ctx.output = scale, torch.from_numpy(scale * input.numpy() ** 2)
        return ctx.output


def spoils(self, grad_output):
    grad_output[self.input.ge(0)] = 0
    return grad_output


class Clamp(Function):
    backward = spoils  # also where it is one number, expanded

    def forward(self, input):
        self.input = input
        return input.clamp(max=0)


def twice(change):
    """2 x, whose gradient has dimensions of size 1 too many, or too few."""
    return made(lambda self, input: input * 2, lambda self, grad: change(grad * 2))


BIAS = variable(1).data
flat = made(lambda self, input: input.clone().view(-1), lambda self, grad: grad.view(4, 3))
square = made(lambda self, b: b * b, lambda self, grad: grad.sum(0).squeeze(0) * 2 * BIAS)
again = Exp()  # called twice, with the same input

SAME = [  # legacy code, today's, and the sizes of the inputs; without them, in three layouts
    (linear, F.linear, (4, 3), (5, 3), (5,)),
    (linear, F.linear, (4, 3), (5, 3)),  # the wrapper passes None
    (linear, F.linear, (0, 3), (5, 3), (5,)),
    (lambda x, w: Linear()(x, w), F.linear, (4, 3), (5, 3)),  # one gradient too many
    (lambda x: Exp()(x), torch.exp),
    (lambda x: Square()(x), torch.square),
    (lambda x: MulConstant(3)(x), lambda x: x * 3),
    (lambda x: ReLU()(x), torch.relu),
    (lambda x: ReLU(inplace=True)(x * 1), torch.relu),
    (lambda x: SinCos()(x), lambda x: (x.sin(), x.cos())),
    (lambda x: Max()(x), lambda x: x.max(1)),
    (lambda x: Transpose(0, 1)(x), lambda x: x.transpose(0, 1)),
    (lambda x: StaticSquare.apply(x, 2), lambda x: 2 * x * x),
    (lambda x: StaticNumpy.apply(x, 3), lambda x: 3 * x * x),
    (Max.apply, lambda x: x.max(1)),  # self is ctx
    (lambda x: Recomputes()(x), torch.sin),
    (lambda x: Square()(modern.exp(Exp()(x) * 0.1)).sin(),
     lambda x: (torch.exp(x.exp() * 0.1) ** 2).sin()),
    (lambda x: checkpoint(lambda x: Exp()(x * 2), x, use_reentrant=False),
     lambda x: torch.exp(2 * x)),
    (made(lambda self, x: x, lambda self, grad: -grad), lambda x: 2 * x.detach() - x),
    (lambda x: again(x) + again(x), lambda x: 2 * x.exp()),
    (lambda x: flat(x).mul_(2), lambda x: x.view(-1) * 2, (4, 3)),  # a view of no input
    *((lambda x: Clamp()(x).sum(), lambda x: x.clamp(max=0).sum(), size)
      for size in ((4, 3), (4, 1), (1,), (0, 3))),
    *((twice(change), lambda x: x * 2, (3, 1))
      for change in (torch.squeeze, lambda g: g.unsqueeze(0), lambda g: g.view(1, 3, 1))),
    (square, torch.square, (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "reference", "sizes"), [(f, g, n) for f, g, *n in SAME])
def test_the_same_as_today(function, reference, sizes):
    if sizes:
        assert_same(function, reference, *(variable(*size) for size in sizes))
    else:
        x = variable(4, 3)
        for one in (x, x.detach().t(), x[:0]):
            assert_same(function, reference, one)


def test_unused_output_has_a_gradient_of_zeros():
    x, function = variable(3), SinCos()
    function(x)[0].sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
    assert torch.equal(function.received[1], torch.zeros(3, dtype=torch.float64))


def test_forward_and_backward_get_plain_tensors():
    class Numpy(Function):
        def forward(self, input, other):
            self.seen = input, other
            self.output = torch.from_numpy(np.exp(input.numpy()))
            return self.output

        def backward(self, grad_output):
            return torch.from_numpy(grad_output.numpy() * self.output.numpy()), None

    x, function = variable(3), Numpy()
    y = function(x, variable(3))
    for tensor in (*function.seen, function.output):
        assert tensor.grad_fn is None and not tensor.requires_grad
    (gradient,) = torch.autograd.grad(y.sum() ** 2, x, create_graph=True)
    torch.testing.assert_close(gradient, 2 * x.exp().sum() * x.exp())


def test_saved_tensors_are_plain_and_saved_variables_are_not():
    class Saves(Square):
        def backward(self, grad_output):
            (tensor,), (variable,) = self.saved_tensors, self.saved_variables
            assert not tensor.requires_grad and tensor.grad_fn is None
            assert variable.requires_grad and torch.equal(tensor, variable)
            return 2 * variable * grad_output  # the Variable's history goes no further

    x, function = variable(3), Saves()
    assert function.saved_tensors == function.saved_variables == ()
    y = function(x)
    assert function.saved_variables[0] is x
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, 2 * x) and not gradient.requires_grad
    with torch.no_grad():
        function(variable(3))
    assert function.saved_tensors == ()


def test_needs_input_grad():
    seen = []

    def forward(self, a, b):
        seen.append(self.needs_input_grad)
        return a * b

    def backward(self, grad_output):
        seen.append(self.needs_input_grad)
        return grad_output, grad_output

    x, other, function = variable(2), variable(2), made(forward, backward)
    function(x, Variable(torch.ones(2))).sum().backward()
    assert seen == [(True, False)] * 2
    y = function(x, other)
    function(x, other.requires_grad_(False))
    y.sum().backward()  # of the first call
    assert seen[2:] == [(True, True), (True, False), (True, True)]


def test_in_place():
    x = variable(4, 3)
    z = x * 1
    y = ReLU(inplace=True)(z)
    assert y is z and z._version > 0 and y.grad_fn.name() == "ReLUBackward"
    square = z * z  # saves z
    ReLU(inplace=True)(z)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        square.sum().backward()


# Two generations.


def test_hooks_and_graph():
    x, seen = variable(3), []
    y = Exp()(x)
    assert y.grad_fn.name() == "ExpBackward"
    assert y.grad_fn.next_functions[0][0].name() == "torch::autograd::AccumulateGrad"
    x.register_hook(lambda grad: grad * 2)
    y.register_hook(seen.append)
    y.grad_fn.register_hook(lambda grad_inputs, grad_outputs: seen.append(len(grad_inputs)))
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().exp())
    assert torch.equal(seen[0], torch.ones(3, dtype=torch.float64)) and len(seen) == 2


def test_saved_tensor_hooks():
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        y = Exp()(variable(3))
    assert len(packed) == 1 and torch.equal(packed[0], y)


def test_instances_in_modules_can_be_copied():
    module = nn.Module()
    module.scale, module.square = MulConstant(7), Square()
    y = module.square(variable(3))
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.scale.constant == 7 and twin.square.saved_tensors == ()
        assert twin.square._call_inputs == () and twin.square is not y.grad_fn.function


def test_static_functions():
    x = variable(3)
    assert gradgradcheck(lambda x: StaticSquare.apply(x, 3), (x,))
    assert StaticSquare.apply(x, 3).grad_fn.name() == "StaticSquareBackward"
    node = StaticSquare._call_static
    StaticSquare.apply(x, 3)
    assert StaticSquare._call_static is node

    assert gradgradcheck(lambda x: StaticNumpy.apply(x, 3), (x,))


def test_class_keywords_and_a_second_base():
    class Registered:
        def __init_subclass__(cls, name=None, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.name = name

    class Named(Exp, Registered, name="exponential"):
        pass

    assert Named.name == "exponential" and Named()(variable(2)).grad_fn.name() == "NamedBackward"
