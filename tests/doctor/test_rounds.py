"""The doctor on rounds: what it sees of a program, and that it leaves no trace."""

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import FunctionMeta
from torch.utils.checkpoint import checkpoint

from helpers.doctor import WrongGradientError, examine, rounds
from helpers.lessons.cases.case import function
from helpers.lessons.cases.formulas import Quantize
from tests.doctor.common import (
    Half,
    LookUp,
    OfAModule,
    Recomputes,
    Square,
    errors,
    leaf,
    that,
    visits,
)


def test_real_inputs_reach_what_others_do_not_and_the_line_is_named():
    class Reader(torch.nn.Module):
        def forward(self, table, index):
            return LookUp.apply(table, index)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([Reader()])

        def forward(self, table, index):
            return self.parts[0](table, index)

    assert examine(LookUp, leaf(4), torch.tensor([2, 0])).ok
    with rounds() as found:
        assert "under way" in str(found)
        Net()(leaf(4), torch.tensor([2, 2, 0])).sum().backward()
        Square.apply(leaf(3))
    assert not found.ok and [v.name for v in found.visits] == ["LookUp", "Square"]
    text = " ".join(str(found).split())
    number = Reader.forward.__code__.co_firstlineno + 1
    for words in (
        "Rounds: 2 Functions, 1 wrong",
        "error (contribution-lost)",
        "Square: nothing found",
        f"{Path(__file__).name}:{number} in forward, `return LookUp.apply(table, "
        f"index)`",
        "in module `parts.0` (Reader) given (4) float32, (3) int64",
    ):
        assert words in text, text
    with pytest.raises(WrongGradientError, match="contribution-lost"):
        found.raise_if_wrong()


def test_a_call_is_judged_by_what_it_was_handed_not_by_what_became_of_it():
    def program():
        index = torch.tensor([2, 2])
        LookUp.apply(leaf(4), index)
        index[0] = 1

    assert not visits(program)["LookUp"].ok


def test_the_program_is_not_changed():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    x, start = torch.randn(3, 2), {k: v.clone() for k, v in net.state_dict().items()}
    untouched = dict(vars(FunctionMeta))

    class Net(torch.nn.Module):
        def forward(self, x):
            return Half.apply(net(x) + torch.rand(3, 2))

    def numbers():
        return [
            n.clone()
            for n in (*net.state_dict().values(), *(p.grad for p in net.parameters()))
        ]

    def program():
        torch.manual_seed(1)
        net.load_state_dict(start)
        net.zero_grad()
        checkpoint(
            Net(), x.clone().requires_grad_(), use_reentrant=True
        ).sum().backward()
        checkpoint(lambda v: Recomputes.apply(net, v), x, use_reentrant=False).sum()
        Recomputes.apply(net, leaf(3, 2)).sum().backward()
        return numbers()

    plain, state = program(), torch.get_rng_state()
    with rounds() as found:
        inside = program()
    torch.testing.assert_close(inside, plain, rtol=0, atol=0)
    torch.testing.assert_close(numbers(), plain, rtol=0, atol=0)
    assert (
        torch.equal(state, torch.get_rng_state())
        and dict(vars(FunctionMeta)) == untouched
    )
    assert {v.name: v.patterns for v in found.visits} == {"Half": 1, "Recomputes": 1}


def test_what_is_said_of_classes_made_by_one_function_is_said_once():
    def negated(power):
        return function(
            lambda x: x**power, lambda g, x: -g * power * x ** (power - 1), "Power"
        )

    with rounds() as found:
        negated(2).apply(leaf(3)), negated(3).apply(leaf(3))
    (visit,) = found.visits
    assert (visit.calls, visit.patterns) == (2, 2), found


def test_nothing_is_kept_afterwards():
    def tensors():
        gc.collect()
        # `isinstance` would ask each for its `__class__`, at which a deprecated object
        # warns.
        found = (t for t in gc.get_objects() if issubclass(type(t), torch.Tensor))
        return {id(t): weakref.ref(t) for t in found}

    x, manager = (
        leaf(2),
        rounds(),
    )  # which outlives the block, as at the top of a notebook
    before = tensors()
    with manager as found:
        Square.apply(x)
        copies = [ref for key, ref in tensors().items() if key not in before]
        assert copies
    gc.collect()
    assert all(ref() is None for ref in copies) and found.ok


def test_a_program_that_raises_is_left_to_raise():
    before = dict(vars(FunctionMeta))
    with pytest.raises(KeyError), rounds() as found:
        Half.apply(leaf(2))
        raise KeyError
    assert found.ok and "the program raised before the end" in str(found)
    assert dict(vars(FunctionMeta)) == before


Power = function(
    lambda x, c, n: c * x**n, lambda g, x, c, n: g * c * n * x ** (n - 1), "Power"
)


def test_once_for_each_pattern():
    x, small = leaf(3), leaf(2)

    def program():
        for c in (1.0, 2.0, 3.0):  # a float is no new pattern
            Power.apply(x, c, 2)
        Power.apply(x, 1.0, 3)
        Power.apply(x.double(), 1.0, 2)
        Power.apply(small, 1.0, 2)
        Power.apply(small.detach(), 1.0, 2)

    visit = visits(program)["Power"]
    assert (visit.calls, visit.patterns) == (7, 4)
    assert visit.left == {"no input required a gradient": 1}
    visit = visits(lambda: [Square.apply(leaf(n)) for n in range(1, 36)])["Square"]
    assert visit.patterns == 32 and visit.left["more than 32 patterns"] == 3


def test_what_does_not_fit_is_left_out_and_said():
    def program():
        for n in (10, 20, 1000):
            Square.apply(leaf(n))

    visit = visits(program, max_bytes=4 * 40)["Square"]
    assert visit.patterns == 2 and visit.left == {"too large for max_bytes": 1}
    assert "1 call left out (too large for max_bytes)" in " ".join(str(visit).split())
    assert "Square: not examined" in str(visits(program, max_bytes=0)["Square"])
    assert visits(program)["Square"].patterns == 3


def test_which_are_examined():
    def program():
        Square.apply(Half.apply(leaf(2)))

    assert set(visits(program)) == {"Square", "Half"}
    assert set(visits(program, skip=f"{Half.__module__}.H*")) == {"Square"}
    assert set(visits(program, skip=["Half"])) == {"Square"}
    assert not visits(program, faithful=["Square"])["Half"].ok
    (finding,) = [
        f for f in visits(program, faithful=[Half])["Half"].findings if f.input
    ]
    assert finding.code == "unfaithful"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_bytes": "1 GB"}, "max_bytes must be a number"),
        ({"seconds": -1}, "seconds must be a number"),
        ({"skip": [3]}, "skip must hold Functions or their names, got 3"),
        ({"faithful": 3}, "faithful must hold Functions or their names, got 3"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        rounds(**options)


class WrongInTwoWays(Square):
    @staticmethod
    def backward(ctx, g):
        return (1.5 if g.dim() == 2 else -1) * Square.backward(ctx, g)


def test_an_input_is_accused_once():
    def program():
        WrongInTwoWays.apply(leaf(5)), WrongInTwoWays.apply(leaf(3, 5))

    visit = visits(program)["WrongInTwoWays"]
    assert visit.patterns == 2 and len(errors(visit)) == 1


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_module_holds_too_is_not_told_apart_from_it(wrapped, frozen):
    net, x = torch.nn.Linear(4, 4), leaf(3, 4).requires_grad_(not frozen)
    with rounds() as found:
        given = (lambda x: net(x)) if wrapped else net
        OfAModule.apply(given, x, *net.parameters()).sum().backward()
    (visit,) = found.visits
    assert found.ok and visit.patterns == (not frozen), visit
    why = "another argument holds the same tensor"
    assert str(visit).count(why) == (1 if frozen else 2), visit


class Checks(Square):
    @staticmethod
    def forward(ctx, x, allowed):
        if not allowed:
            raise ValueError("not allowed")
        return Square.forward(ctx, x)

    @staticmethod
    def backward(ctx, grad_output):
        return Square.backward(ctx, grad_output), None


def test_a_call_that_raises_in_the_program_is_left_out():
    with rounds() as found:
        Checks.apply(leaf(3), True)
        with pytest.raises(ValueError, match="not allowed"):
            Checks.apply(leaf(3), False)
    (visit,) = found.visits
    assert found.ok and (visit.calls, visit.patterns) == (1, 1) and not visit.left


def test_nested_functions_and_nested_rounds():
    class Outer(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Half.apply(x)

    with rounds() as outer:
        Square.apply(leaf(2))
        with rounds() as inner:
            Outer.apply(leaf(2))
    assert {(v.name, v.ok, v.calls) for v in inner.visits} == {
        ("Outer", True, 1),
        ("Half", False, 1),
    }
    assert {(v.name, v.calls) for v in outer.visits} == {
        ("Square", 1),
        ("Outer", 1),
        ("Half", 1),
    }


def test_a_thread_and_a_backward_are_heard():
    CallsHalf = that(lambda: Half.apply(leaf(2)))  # noqa: N806

    def program():
        thread = threading.Thread(
            target=lambda: CallsHalf.apply(leaf(2)).sum().backward()
        )
        thread.start()
        thread.join()

    found = visits(program)
    assert {name: v.ok for name, v in found.items()} == {"Does": True, "Half": False}


@pytest.mark.parametrize("goes_back", [False, True])
def test_what_nobody_goes_back_through_is_not_accused_of_raising(goes_back):
    class Raises(Square):
        @staticmethod
        def backward(ctx, grad_output):
            raise RuntimeError("the adjoint of an adjoint")

    class Solves(Square):
        """Its backward applies another Function, as an adjoint equation's does."""

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
        backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
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


def of_x(answer):
    class Answers(Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, grad_output):
            x, weight = ctx.saved_tensors
            return answer(ctx, grad_output * weight), (grad_output * x).sum(0)

    return Answers


def refused(ctx, grad):
    if ctx.needs_input_grad[0]:
        raise NotImplementedError("no gradient of x")


@pytest.mark.parametrize(
    ("answer", "ok", "missed"),
    [
        (lambda ctx, grad: 2 * grad, False, False),
        (lambda ctx, grad: None, True, False),
        (refused, True, True),
    ],
)
def test_the_gradient_of_a_frozen_input_is_judged(answer, ok, missed):
    found = visits(lambda: of_x(answer).apply(leaf(3, 4).detach(), leaf(4)))["Answers"]
    assert found.ok == ok and bool(found.missed) == missed
    assert ("not judged: `x`" in str(found)) == missed


def test_one_input_alone_may_be_unfaithful():
    for name, accused in (("Quantize", set()), ("Quantize(x)", {"scale"})):
        found = visits(lambda: Quantize.apply(leaf(6), leaf()), faithful=[f"*{name}"])
        assert {f.input for f in errors(found["Quantize"])} == accused


def test_a_name_that_no_function_has_is_said():
    with rounds(skip=["Halve"], faithful=["Sqare(x)", "Half"]) as found:
        Half.apply(leaf(3))
    assert found.unmatched == ["Halve", "Sqare(x)"]
    assert "no Function is called Halve" in str(found)


def test_a_reference_is_believed():
    Rounds = function(lambda x: x.round(), lambda g, x: g, "Rounds")  # noqa: N806

    def do():
        Rounds.apply(leaf(3)).sum().backward()

    def reference(x):
        return x + (x.round() - x).detach()

    visit = visits(do, reference={Rounds: reference})["Rounds"]
    assert visit.ok and {one.beside for one in visit.judged} == {"reference"}


@pytest.mark.parametrize("handed", [lambda layer: layer, lambda layer: layer.forward])
def test_what_an_optimizer_changes_is_as_it_was_at_the_call(handed):
    layer = torch.nn.Linear(3, 3)

    def do():
        Recomputes.apply(handed(layer), leaf(2, 3)).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=1.0).step()
        do.weight = layer.weight.detach().clone()

    visit = visits(do)["Recomputes"]
    assert visit.examined and not errors(visit)
    assert torch.equal(layer.weight, do.weight)


class Asks(Square):
    """`what` it asks of its input, no copy need have."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return Square.forward(ctx, x)

    @classmethod
    def backward(cls, ctx, grad_output):
        assert cls.what(ctx.x)
        return Square.backward(ctx, grad_output)


class AsksForGrad(Asks):
    what = staticmethod(lambda x: x.grad is not None)


class AsksForALeaf(Asks):
    what = staticmethod(lambda x: x.is_leaf)


@pytest.mark.parametrize(
    "function, missed",
    [(AsksForGrad, ""), (AsksForALeaf, "as it could in the program")],
)
def test_a_backward_that_ran_in_the_program_is_not_accused_of_raising(function, missed):
    x = leaf(3)
    x.grad = torch.zeros(3)
    with rounds() as found:
        function.apply(x).sum().backward()
    (visit,) = found.visits
    assert found.ok and missed in visit.missed and bool(visit.missed) == bool(missed)


def test_a_warned_input_that_was_not_judged_is_named():
    with rounds() as found:
        Square.apply(leaf(3).detach().log().requires_grad_()).sum().backward()
        Square.apply(torch.full((2,), torch.nan, requires_grad=True)).sum().backward()
    assert "it has nan or inf itself" in str(found), found


def test_what_returns_something_else_afterwards_is_not_judged():
    Times = function(  # noqa: N806
        lambda x, factor: factor() * x, lambda g, x, factor: factor() * g, "Times"
    )
    held = {"factor": 2.0}

    def factor():
        return held["factor"]

    def do():
        Times.apply(leaf(3), factor).sum().backward()
        held["factor"] = 3.0

    visit = visits(do)["Times"]
    assert not visit.examined and "something else" in visit.missed
