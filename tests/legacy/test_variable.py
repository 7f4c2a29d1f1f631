"""Variable, what volatile does, and what is kept in memory."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from helpers.ops.legacy import Variable

from .programs import (
    Linear,
    LinearModule,
    Max,
    MulConstant,
    ReLU,
    SinCos,
    Square,
    StaticSquare,
    Transpose,
    linear,
    made,
    variable,
)


def test_variable():
    data = torch.zeros(2)
    x = Variable(data, requires_grad=True)
    x.data[0] = 5
    assert data[0] == 5 and x.requires_grad and x.is_leaf and x.data_ptr() == data.data_ptr()
    assert not Variable(data).requires_grad and not data.requires_grad
    y = Square()(x)
    data.fill_(3)  # a buffer may be filled again: no error, as it was
    y.sum().backward()
    assert type(x.grad.data) is torch.Tensor


def test_the_type_of_a_tensor_equals_variable():
    plain, volatile = torch.ones(1), Variable(torch.ones(1), volatile=True)
    for kind in (type(plain), type(volatile)):
        assert kind == Variable and Variable == kind and issubclass(kind, Variable)
        assert not (kind != Variable or Variable != kind)
    assert {Variable: "found"}[type(plain)] == {type(plain): "found"}[Variable] == "found"
    assert Variable == Variable and Variable in {Variable} and issubclass(Variable, Variable)
    assert Variable != nn.Parameter and issubclass(nn.Parameter, Variable)
    assert not issubclass(list, Variable) and not isinstance([1.0], Variable)
    for x in (plain, volatile, nn.Parameter(plain)):
        assert isinstance(x, Variable)


def test_numbers_without_a_gradient():
    for data in (torch.LongTensor([1]), torch.ones(2).byte(), torch.ones(2) > 0):
        assert not Variable(data, requires_grad=True).requires_grad
    assert Variable(torch.ones(2, dtype=torch.complex64), requires_grad=True).requires_grad


def test_volatile_spreads():
    x, w = Variable(torch.ones(2, 3), volatile=True), variable(4, 3, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), LinearModule(4, 2))
    for y in (
        x,
        x * 2,
        w[0] + x,
        torch.cat([w, x]),
        x.view(3, 2).t(),
        x.detach(),
        F.linear(x, w),
        model(x),
        linear(x, w),
        Linear()(Variable(x.data), w * x[:1]),
        MulConstant(2)(x),
        SinCos()(x)[1],
        StaticSquare.apply(x, 3),
        ReLU(inplace=True)(x),
    ):
        assert y.volatile and not y.requires_grad and y.grad_fn is None
    torch.testing.assert_close(linear(x, w).data, F.linear(torch.ones(2, 3), w.detach()))
    torch.testing.assert_close(StaticSquare.apply(x, 3).data, torch.full((2, 3), 3.0))
    assert isinstance(SinCos()(x), tuple)
    assert Linear()(Variable(x.data), w).grad_fn is not None


def test_volatile_ends_at_data():
    tensor = torch.ones(3)
    x = Variable(tensor, volatile=True)
    assert type(x.data) is torch.Tensor and not isinstance(x.data * 1, type(x))
    x.data.mul_(2)
    assert torch.equal(tensor, torch.full((3,), 2.0))
    x.data = torch.zeros(3)
    assert x.volatile and torch.equal(x.data, torch.zeros(3))


def test_volatile_saves_nothing():
    class Plain(Square):
        def forward(self, input):
            assert type(input) is torch.Tensor
            return super().forward(input)

    function = Plain()
    y = function(Variable(torch.ones(3), volatile=True) * 1)
    assert function.saved_tensors == () and function.needs_input_grad == (False,)
    with pytest.raises(RuntimeError, match="calling backward on a volatile variable"):
        y.sum().backward()
    with pytest.raises(AttributeError, match="no setter"):
        y.volatile = False


@pytest.mark.parametrize(
    "change",
    [
        lambda a, v: a.mul_(v),
        lambda a, v: a.__imul__(v),
        lambda a, v: a.__setitem__(0, v[0]),
        lambda a, v: torch.mul(v, v, out=a),
        lambda a, v: made(add_in_place)(a, v),
    ],
)
def test_volatile_cannot_change_what_has_a_history(change):
    w, volatile = variable(3), Variable(torch.ones(3).double(), volatile=True)
    a = w * 1
    with pytest.raises(RuntimeError, match="volatile Variable has changed one that has a history"):
        change(a, volatile)
    with torch.no_grad():
        change(w * 1, volatile)
    for without_history in (torch.ones(3).double(), w.data, volatile * 1):
        change(without_history, volatile)


def add_in_place(self, a, b):
    self.mark_dirty(a)
    return a.add_(b)


def test_volatile_can_be_copied():
    x = Variable(torch.ones(3), volatile=True)
    module = nn.Module()
    module.state, module.shared = x, [x, x.data]
    twin = copy.deepcopy(module)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), twin.state):
        assert y.volatile and torch.equal(y.data, x.data) and y.data_ptr() != x.data_ptr()
    assert twin.state is twin.shared[0]


# Memory.


@pytest.fixture
def no_garbage_collector():
    gc.disable()
    yield
    gc.enable()


class Keeps(Square):
    def forward(self, input):
        self.input, self.output = input, super().forward(input)
        return self.output


@pytest.mark.parametrize(
    "make", [Keeps, SinCos, lambda: ReLU(inplace=True), Max, lambda: Transpose(0, 1)]
)
@pytest.mark.parametrize("run_backward", [False, True])
def test_no_reference_cycle(make, run_backward, no_garbage_collector):
    function, x = make(), variable(4, 3)
    y = function(x * 1)
    y = y if isinstance(y, torch.Tensor) else y[0]
    if run_backward:
        y.sum().backward()
    node, instance = weakref.ref(y.grad_fn), weakref.ref(function)
    assert node() is not None
    del y, function
    assert node() is None and instance() is None


def test_saved_tensors_are_freed_by_backward(no_garbage_collector):
    x = variable(3)
    z = x * 2
    saved = weakref.ref(z)
    y = Square()(z)
    del z
    assert saved() is not None
    y.sum().backward()
    assert saved() is None and y.grad_fn is not None


def test_inputs_that_are_not_saved_are_not_kept(no_garbage_collector):
    x = variable(3)
    z = x * 2
    unsaved = weakref.ref(z)
    y = MulConstant(2)(z)
    del z
    assert unsaved() is None
    y.sum().backward()
