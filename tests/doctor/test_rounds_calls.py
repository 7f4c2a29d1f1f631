"""The calls that the doctor hears on its rounds: where from, and in what state."""

import threading

import pytest
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from helpers.doctor import rounds
from tests.doctor.programs import Square, half, leaf, visits


def test_nested_functions_and_nested_rounds():
    class Outer(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return half(x)

    with rounds() as outer:
        Square.apply(leaf(2))
        with rounds() as inner:
            Outer.apply(leaf(2))
    assert {(v.name, v.ok, v.calls) for v in inner.visits} == {
        ("Outer", True, 1),
        ("Half", False, 1),
    }
    assert {(v.name, v.calls) for v in outer.visits} == {("Square", 1), ("Outer", 1), ("Half", 1)}


def test_a_thread_and_a_backward_are_heard():
    class CallsHalf(Square):
        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            half(x)
            return 2 * grad_output * x

    def program():
        thread = threading.Thread(target=lambda: CallsHalf.apply(leaf(2)).sum().backward())
        thread.start()
        thread.join()

    assert {name: v.ok for name, v in visits(program).items()} == {"CallsHalf": True, "Half": False}


@pytest.mark.parametrize("goes_back", [False, True])
def test_what_nobody_goes_back_through_is_not_accused_of_raising(goes_back):
    class Raises(Square):
        @staticmethod
        def backward(ctx, grad_output):
            raise RuntimeError("the adjoint of an adjoint")

    class Solves(Square):
        """Its backward applies another Function, as one that solves an adjoint equation does."""

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return 2 * grad_output * Raises.apply(x) / x

    found = visits(lambda: Solves.apply(leaf(2)).sum().backward(create_graph=goes_back))
    assert found["Raises"].ok != goes_back, found["Raises"]
    assert ("autograd was off" in found["Raises"].missed) != goes_back


def test_setup_context_with_defaults_and_functorch_wrappers():
    class Scale(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, c=2.0):
            return x * c

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.c = inputs[1]

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output, None

    (finding, *_) = visits(lambda: Scale.apply(leaf(2)))["Scale"].findings
    assert "multiplied by 0.5" in finding.message
    assert set(visits(lambda: torch.vmap(Scale.apply)(leaf(2, 2)))) <= {"Scale"}
    checked = visits(lambda: checkpoint(torch.sin, leaf(2), use_reentrant=True))
    assert checked == {}  # PyTorch's own


def test_an_operator_of_torch_library_has_the_names_of_its_arguments():
    @torch.library.custom_op("rounds_test::cube", mutates_args=())
    def cube(base: torch.Tensor) -> torch.Tensor:
        return base**3

    def backward(ctx, grad_output):
        return 2 * grad_output * ctx.saved_tensors[0] ** 2

    cube.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    visit = visits(lambda: cube(leaf(2)))["rounds_test::cube"]
    assert "The gradient of `base` is right, but multiplied by 0.667" in str(visit)


def test_autocast_is_that_of_the_call():
    class Product(Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w  # of two dtypes, which autocast permits

        @staticmethod
        def backward(ctx, g):
            x, w = (t.to(g.dtype) for t in ctx.saved_tensors)
            dx = g @ w.t() if ctx.needs_input_grad[0] else None
            return dx, (x.t() @ g).to(ctx.saved_tensors[1].dtype)

    def program():
        with torch.autocast("cpu", torch.bfloat16):
            Product.apply(leaf(2, 3).bfloat16(), leaf(3, 2))
            Product.apply(leaf(2, 3), leaf(3, 2))

    visit = visits(program)["Product"]
    assert visit.patterns == 2 and visit.ok, str(visit)


def test_arguments_with_a_state_are_copied_for_each_call():
    class Counts(Function):
        @staticmethod
        def forward(ctx, x, counter, generator):
            counter["n"] = ctx.n = counter["n"] + 1
            mask = torch.rand(x.shape, generator=generator) > 0.5
            ctx.save_for_backward(mask)
            return x * ctx.n * mask

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.n * ctx.saved_tensors[0], None, None

    counter, generator = {"n": 0}, torch.Generator().manual_seed(0)

    def program():
        Counts.apply(leaf(8), counter, generator)
        program.state = generator.get_state()

    visit = visits(program)["Counts"]
    assert visit.ok, str(visit)
    assert counter == {"n": 1} and torch.equal(generator.get_state(), program.state)
