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


def test_linear():
    x, w, b = variable(4, 3), variable(5, 3), variable(5)
    assert_same(linear, F.linear, x, w, b)
    assert_same(linear, F.linear, x, w)  # the wrapper passes None
    assert_same(linear, F.linear, x[:0], w, b)
    assert_same(lambda x, w: Linear()(x, w), F.linear, x, w)  # one gradient too many


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (lambda x: Exp()(x), torch.exp),
        (lambda x: Square()(x), torch.square),
        (lambda x: MulConstant(3)(x), lambda x: x * 3),
        (lambda x: ReLU()(x), torch.relu),
        (lambda x: ReLU(inplace=True)(x * 1), torch.relu),
        (lambda x: SinCos()(x), lambda x: (x.sin(), x.cos())),
        (lambda x: Max()(x), lambda x: x.max(1)),
        (lambda x: Transpose(0, 1)(x), lambda x: x.transpose(0, 1)),
        (lambda x: StaticSquare.apply(x, 2), lambda x: 2 * x * x),
    ],
)
def test_programs_of_the_time(function, reference):
    x = variable(4, 3)
    assert_same(function, reference, x)
    assert_same(function, reference, x.detach().t())  # not contiguous
    assert_same(function, reference, x[:0])  # empty


def test_unused_output_has_a_gradient_of_zeros():
    x, function = variable(3), SinCos()
    function(x)[0].sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
    assert torch.equal(function.received[1], torch.zeros(3, dtype=torch.float64))


def test_non_differentiable_outputs():
    x = variable(4, 3)
    _, index, position = Max()(x)
    assert torch.equal(index, x.max(1)[1]) and torch.equal(position, index.double())
    assert not index.requires_grad and not position.requires_grad


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


def test_variables_inside_backward_record():
    class Recompute(Function):
        def forward(self, input):
            self.save_for_backward(input)
            output = Variable(input, requires_grad=True).sin()
            assert output.requires_grad
            return output.data

        def backward(self, grad_output):
            input = Variable(self.saved_tensors[0], requires_grad=True)
            input.sin().backward(grad_output)
            return input.grad.data

    assert_same(lambda x: Recompute()(x), torch.sin, variable(3))


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


def test_returning_the_input_makes_a_new_node():
    reverse = made(lambda self, input: input, lambda self, grad_output: -grad_output)
    assert_same(reverse, lambda x: 2 * x.detach() - x, variable(3))
    x = variable(3)
    assert reverse(x) is not x and x.is_leaf


def test_in_place():
    x = variable(4, 3)
    z = x * 1
    y = ReLU(inplace=True)(z)
    assert y is z and z._version > 0 and y.grad_fn.name() == "ReLUBackward"
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad has been used"):
        ReLU(inplace=True)(x)
    z = x * 1
    square = z * z  # saves z
    ReLU(inplace=True)(z)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        square.sum().backward()


def test_a_view_of_an_input_stays_one_and_a_view_of_another_tensor_does_not():
    x = variable(4, 3) * 1
    y = Transpose(0, 1)(x)
    assert y.data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        y.mul_(2)
    flat = made(lambda self, input: input.clone().view(-1), lambda self, grad: grad.view(4, 3))
    assert_same(lambda x: flat(x).mul_(2), lambda x: x.view(-1) * 2, variable(4, 3))


# Two generations.


def test_mixes_with_modern_code():
    def legacy(x):
        return Square()(modern.exp(Exp()(x) * 0.1)).sin()

    assert_same(legacy, lambda x: (torch.exp(x.exp() * 0.1) ** 2).sin(), variable(3))


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


def test_checkpoint_and_saved_tensor_hooks():
    assert_same(
        lambda x: checkpoint(lambda x: Exp()(x * 2), x, use_reentrant=False),
        lambda x: torch.exp(2 * x),
        variable(3),
    )
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

    class Numpy(StaticSquare):  # plain tensors, in a child
        @staticmethod
        def forward(ctx, input, scale):
            ctx.save_for_backward(input)
            ctx.scale, ctx.output = scale, torch.from_numpy(scale * input.numpy() ** 2)
            return ctx.output

    assert_same(lambda x: Numpy.apply(x, 3), lambda x: 3 * x * x, x)
    assert gradgradcheck(lambda x: Numpy.apply(x, 3), (x,))
    assert_same(Max.apply, lambda x: x.max(1), variable(4, 3))  # self is ctx
    with pytest.raises(TypeError, match="Number.forward: .* but got float for output 0"):
        type("Number", (Function,), {"forward": lambda ctx, x: 1.0}).apply(x)


def test_class_keywords_and_a_second_base():
    class Registered:
        def __init_subclass__(cls, name=None, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.name = name

    class Named(Exp, Registered, name="exponential"):
        pass

    assert Named.name == "exponential" and Named()(variable(2)).grad_fn.name() == "NamedBackward"
