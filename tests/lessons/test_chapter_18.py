"""What chapter 18 says of modes, compiled code and `double`, and no cell of it shows."""

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.needs import needs_compiler

aten = torch.ops.aten


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def compiled():
    """A function that compiles sin and cos, and the list that grows whenever this code runs."""
    runs = []

    def backend(graph, example_inputs):
        return lambda *args: runs.append(graph) or graph(*args)

    def compile_it(**options):
        torch._dynamo.reset()
        return torch.compile(lambda x: x.sin().cos(), backend=backend, **options)

    return compile_it, runs


def test_a_mode_below_autograd_and_fullgraph(compiled):
    compile_it, runs = compiled
    function = compile_it(fullgraph=True)
    function(torch.ones(2))
    with Operations(), pytest.raises(RuntimeError, match="found no compiled frames"):
        function(torch.ones(2))
    assert len(runs) == 1


def test_compiled_code_stays_compiled_under_a_mode_above_autograd(compiled):
    compile_it, runs = compiled
    function, x = compile_it(), torch.ones(2)
    with Functions() as functions:
        function(x)
        function(x)
    assert functions.seen == ["sin", "cos"] * 2
    assert len(runs) == 2


def test_a_mode_above_autograd_that_splits_the_code_gets_the_wrong_method(compiled):
    class Splits(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            torch._dynamo.graph_break()
            return func(*args, **(kwargs or {}))

    compile_it, _ = compiled
    function, x = compile_it(), torch.ones(2)
    with Splits():
        y = function(x)
    assert y.equal(x.sin().sin())  # and not x.sin().cos(): a defect of torch.compile


@needs_compiler
def test_a_backward_pass_that_was_compiled_outside_of_a_mode_stays_compiled():
    torch._dynamo.reset()
    x = torch.ones(2, requires_grad=True)
    loss = torch.compile(lambda x: x.sin().cos().sum())(x)
    with Operations() as operations:
        loss.backward()
    assert x.grad is not None
    assert "mul" not in operations.seen


def test_a_mode_sees_its_own_thread():
    with Operations() as operations:
        thread = threading.Thread(target=torch.ones, args=(2,))
        thread.start()
        thread.join()
    assert operations.seen == []


class Diagonal(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elements):
        return Tensor._make_wrapper_subclass(cls, 2 * elements.shape, dtype=elements.dtype)

    def __init__(self, elements):
        self.elements = elements

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        elements = args[0].elements
        if func is aten._to_copy.default:
            return cls(elements.to(kwargs["dtype"]))
        assert func is aten.detach.default
        return cls(elements)


class Flattened(Diagonal):
    def __tensor_flatten__(self):
        return ["elements"], None

    @staticmethod
    def __tensor_unflatten__(inner, metadata, size, stride):
        return Flattened(inner["elements"])


@pytest.mark.parametrize(("kind", "kept"), [(Diagonal, torch.float32), (Flattened, torch.float64)])
def test_double(kind, kept):
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(kind(torch.ones(2)))
    layer.double()
    assert layer.weight.dtype == torch.float64
    assert layer.weight.elements.dtype == kept


class Product(Diagonal):
    """Below autograd, the product of a diagonal matrix and a tensor."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.t.default:
            return cls(args[0].elements)
        assert func is aten.mm.default
        return args[0].elements[:, None] * args[1]


def test_a_parameter_inside_a_tensor_gets_no_gradient():
    inside, x = nn.Parameter(torch.ones(2)), torch.ones(2, 2, requires_grad=True)
    torch.mm(Product(inside), x).sum().backward()
    assert inside.grad is None
    torch.testing.assert_close(x.grad, torch.ones(2, 2))  # autograd did go back


def test_a_mode_that_ignores_what_is_compiled_leaves_it_compiled(compiled):
    class Ignores(Operations):
        @classmethod
        def ignore_compile_internals(cls):
            return True

    compile_it, runs = compiled
    function = compile_it(fullgraph=True)
    with Ignores():
        function(torch.ones(2))
    assert len(runs) == 1
