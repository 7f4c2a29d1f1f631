"""What was wrong in 2017 or is no longer there, and how legacy.py tells it."""

import operator

import pytest
import torch
from torch.autograd import gradgradcheck

from helpers.ops.legacy import Function, Variable

from .programs import (
    Exp,
    Linear,
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


def returning(*gradients):
    """The product of two inputs, whose backward returns these."""
    return made(lambda self, a, b: a * b, lambda self, grad_output: gradients)


def test_called_twice():
    function, a, b = Square(), variable(2, seed=1), variable(2, seed=2)
    first, second = function(a), function(b)
    assert torch.equal(function.saved_tensors[0], b)
    with pytest.raises(RuntimeError, match="Legacy autograd function object was called twice"):
        first.sum().backward()
    second.sum().backward()
    assert a.grad is None and torch.equal(b.grad, 2 * b.detach())


def test_called_twice_in_disguise():
    x, w, function = variable(2, 3), variable(2, 3), Linear()
    y = function(x * 2, w)
    function(x * 3, w)  # the first input is gone; its place in memory may be the same
    with pytest.raises(RuntimeError, match="called twice"):
        y.sum().backward()
    for inputs, others in (
        ((x, w), (x, w, variable(2))),
        ((x, w), (x, w, None)),
        ((x, w), (w, x)),
        ((x, w, variable(2)), (x, w, None)),
        ((x, w, None), (x, w, variable(2))),
    ):
        y = function(*inputs)
        inputs = None  # the bias is gone when None comes in its place
        function(*others)
        with pytest.raises(RuntimeError, match="called twice"):
            y.sum().backward()


def test_called_again_with_the_same_inputs():
    x, function = variable(3), Exp()
    y = function(x)
    x.data.add_(1)
    function(x)
    y.sum().backward()  # with what the first call saved
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(function(x).detach(), x.detach().exp())
    x, w, function = variable(2, 3), variable(4, 3), Linear()
    y = function(x, w, None)
    function(x, w, None)
    y.sum().backward()
    assert torch.equal(x.grad, w.detach().sum(0).expand(2, 3))


ONE = torch.ones(2).double()
NO_DATA = "Variable data has to be a tensor, but got"


def test_trailing_nones_are_dropped():
    x = variable(2)
    returning(ONE, None, None, None)(x, variable(2)).sum().backward()
    assert torch.equal(x.grad, ONE)


def test_backward_twice():
    x = variable(3)
    y = Exp()(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().exp())
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.sum().backward()
    y = MulConstant(2)(x)  # saves nothing, so nothing is missed, then as now
    y.sum().backward()
    y.sum().backward()


def test_saved_tensor_changed_in_place():
    x = variable(3)
    z = x * 1
    y = Square()(z)
    z.add_(1)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        y.sum().backward()
    y = Exp()(x)
    total = y.sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: Square()(x).sum(),
        lambda x: (Square()(x) + x**3).sum(),  # where once_differentiable returns 6 x
        lambda x: Square()(MulConstant(2)(x * x)).sum(),
        lambda x: sum(y.sum() for y in SinCos()(x)),
        lambda x: ReLU(inplace=True)(x * x).sum() ** 2,
        lambda x: linear(x.view(1, 3), x.view(1, 3)).sum(),
    ],
)
def test_no_second_derivative(f):
    x = variable(3)
    for differentiate in (lambda y: torch.autograd.grad(y, x), torch.Tensor.backward):
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        with pytest.raises(RuntimeError, match="is not differentiable twice"):
            differentiate(g.sum())


def test_no_second_derivative_with_respect_to_the_upstream_gradient():
    x, scale = variable(3), variable(3)
    (g,) = torch.autograd.grad((Square()(x) * scale).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="Square is not differentiable twice"):
        torch.autograd.grad(g.sum(), scale)
    with pytest.raises(RuntimeError, match="Square is not differentiable twice"):
        gradgradcheck(lambda x: Square()(x), (x,))


def data_of(bad):
    """A `Made` whose forward returns this."""
    return made(lambda self, input: bad)(variable(2))


def back(*gradients, of=None):
    """A backward pass of the product of two inputs, to these gradients."""
    of = variable(2) if of is None else of
    returning(*gradients)(of, variable(2)).sum().backward()


def forward_mode():
    with torch.autograd.forward_ad.dual_level():
        Exp()(torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3)))


X = torch.ones(2)


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (TypeError, "Exp: expected a Variable argument, but got int at .* 0", lambda: Exp()(3)),
        (TypeError, "Made: expected a Variable .* got list at .* 1", lambda: returning()(X, [1.0])),
        (TypeError, "takes no arguments", lambda: Exp(X)),
        (TypeError, "Made.forward: .* but got list for output 0$", lambda: data_of([X])),
        (TypeError, "Made.forward: .* but got NoneType for output 0$", lambda: data_of(None)),
        (TypeError, "Made.forward: .* but got int for output 1$", lambda: data_of((X, 3))),
        (NotImplementedError, None, lambda: Function()(X)),
        (NotImplementedError, None, lambda: Function().backward(X)),
        (TypeError, f"{NO_DATA} list", lambda: Variable([1.0])),
        (TypeError, f"{NO_DATA} NoneType", lambda: Variable(None)),
        (TypeError, f"{NO_DATA} Variable", lambda: Variable(torch.nn.Parameter(X))),
        (TypeError, f"{NO_DATA} Variable", lambda: Variable(Variable(X, volatile=True))),
        (ValueError, "can't be volatile and require_grad at the same time",
         lambda: Variable(X, requires_grad=True, volatile=True)),
        (TypeError, "Number.forward: .* but got float for output 0",
         lambda: type("Number", (Function,), {"forward": lambda ctx, x: 1.0}).apply(X)),
        (TypeError, "without history, but got Variable for output 0; .* `with torch.no_grad.*insi",
         lambda: made(lambda self, input: torch.nn.Linear(2, 2)(input))(Variable(X))),
        # gradients that do not fit
        (RuntimeError, r"Made returned an invalid number of .* \(expected 2, but got 1\)",
         lambda: back(ONE)),
        (RuntimeError, r"\(expected 2, but got 3\)", lambda: back(ONE, ONE, ONE)),
        (RuntimeError, r"\(expected 2, but got 4\)", lambda: back(ONE, ONE, None, ONE)),
        (RuntimeError, r"expected Variable or None \(got float\)", lambda: back(1.0, None)),
        *((RuntimeError, "MadeBackward returned an invalid gradient at",
           lambda size=size, of=of: back(torch.ones(size), None, of=variable(*of)))
          for size, of in (((3,), (2,)), ((4,), (2, 2)), ((1, 2), (2, 2)), ((2,), (2, 2)))),
        (RuntimeError, "a gradient different than None at",
         lambda: made(lambda self, a, b: a * 1, lambda self, g: (g, g))(variable(2), None).sum()
         .backward()),
        # changes in place
        (RuntimeError, "a leaf Variable that requires grad has been used",
         lambda: ReLU(inplace=True)(variable(4, 3))),
        (RuntimeError, "is a view and is being modified inplace",
         lambda: Transpose(0, 1)(variable(4, 3) * 1).mul_(2)),
        # what is not provided
        (NotImplementedError, "jvp", forward_mode),
        (RuntimeError, "setup_context", lambda: torch.func.grad(lambda x: Exp()(x).sum())(X)),
        (RuntimeError, "setup_context", lambda: torch.func.vmap(lambda x: Exp()(x))(X)),
    ],
)  # fmt: skip
def test_bad_use_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


def test_code_of_0_4_to_1_4_is_told_to_use_no_grad():
    layer = torch.nn.Linear(2, 2).double()
    quiet = made(
        lambda self, input: torch.no_grad()(layer)(input), lambda self, g: g @ layer.weight
    )
    assert_same(quiet, layer, variable(2))


def test_a_failed_forward_leaves_nothing_behind():
    class Fails(Square):
        fail = True

        def forward(self, input):
            if not self.fail:
                return input * input
            self.save_for_backward(input)
            self.mark_dirty(input)
            raise ZeroDivisionError

    x, function = variable(2), Fails()
    with pytest.raises(ZeroDivisionError):
        function(x)
    function.fail = False
    function(x)
    assert function.saved_tensors == () and x._version == 0


# What is not provided.


@pytest.mark.parametrize(
    ("f", "reference"),
    [(lambda x: Exp()(x), torch.exp), (lambda x: StaticSquare.apply(x, 1), torch.square)],
)
def test_compile(f, reference):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    compiled = torch.compile(lambda x: f(x * 2).sin(), backend=backend)
    assert_same(compiled, lambda x: reference(x * 2).sin(), variable(3))
    assert graphs == [[operator.mul], ["sin"]]  # the call runs between them
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, backend="eager", fullgraph=True)(variable(3))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch before 2.13 compiles none of these")
@pytest.mark.parametrize("change", [lambda x: x, lambda x: x * 3])
def test_compile_what_makes_a_variable(change):
    def compiled(f, backend="eager", **kwargs):
        torch._dynamo.reset()
        return torch.compile(f, backend=backend, **kwargs)

    x = torch.ones(2)
    y = compiled(lambda x: Variable(change(x), volatile=True) * 2)(x)
    assert y.volatile and torch.equal(y.data, 2 * change(x))
    y = compiled(lambda x: StaticSquare.apply(Variable(x, volatile=True), 2))(x)
    assert y.volatile and torch.equal(y.data, torch.full((2,), 2.0))

    def f(x):
        leaf = Variable(change(x), requires_grad=True)
        return leaf, (leaf * 2).sum()

    leaf, loss = compiled(f, "aot_eager")(x)
    loss.backward()
    assert torch.equal(leaf.grad, torch.full((2,), 2.0))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(f, fullgraph=True)(x)
    y = compiled(lambda x: type(x) == Variable and isinstance(x, Variable) and x * 2)(x)  # noqa: E721
    assert torch.equal(y, 2 * x)
