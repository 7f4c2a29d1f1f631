"""`fixed_point`, against unrolling and closed forms; and when it stops."""

from functools import partial

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck

from helpers.doctor import examine
from helpers.lessons.memory import Kept
from helpers.ops.fixed_point import NotConvergedError, fixed_point
from tests.common import FLOATS, TOLERANCE, assert_refused, random


def f(z, x, weight):
    return torch.tanh(z @ weight.t() + x)


def arguments(dtype=torch.float64):
    weight = (0.25 * random(3, 3, seed=1)).to(dtype).detach().requires_grad_()
    return random(2, 3, dtype=dtype), weight


def solved(x, weight, tol=1e-14):
    return fixed_point(f, torch.zeros_like(x), x, weight, tol=tol)


def unroll(f, z, *inputs):
    for _ in range(80):
        z = f(z, *inputs)
    return z


def unrolled(x, weight):
    return unroll(f, torch.zeros_like(x), x, weight)


# Values and derivatives


@pytest.mark.parametrize("dtype", FLOATS)
def test_agrees_with_unrolling_in_every_dtype(dtype):
    x, weight = arguments(dtype)
    ours = solved(x, weight, tol=max(1e-14, 2 * torch.finfo(dtype).eps))
    theirs = unrolled(x.double(), weight.double())
    tolerance = {name: 5 * number for name, number in TOLERANCE[dtype].items()}
    torch.testing.assert_close(ours, theirs.to(dtype), **tolerance)
    slopes = (grad(z.sum(), (x, weight)) for z in (ours, theirs))
    torch.testing.assert_close(*slopes, **tolerance)


def test_gradcheck_gradgradcheck_and_the_doctor():
    def entangled(x, weight):
        """Each argument depends on both: a partial derivative is not a total one."""
        return solved(x + weight.sum(), weight * x.mean())

    assert gradcheck(entangled, arguments()) and gradgradcheck(entangled, arguments())
    assert not examine(entangled, *arguments()).findings


def test_a_closed_form_to_the_third_order():
    """z = (z + a / z) / 2 is the square root."""
    a = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    y = fixed_point(lambda z, a: (z + a / z) / 2, torch.ones_like(a), a, tol=1e-14)
    for derivative in [0.5 * 5**-0.5, -0.25 * 5**-1.5, 0.375 * 5**-2.5]:
        (y,) = grad(y, a, create_graph=True)
        assert y.item() == pytest.approx(derivative, rel=1e-12)


def test_where_it_began_does_not_matter():
    x, weight = arguments()
    right = grad(unrolled(x, weight).sum(), (x, weight))
    solution = solved(x, weight).detach()
    for z0 in (
        solution,
        5 * torch.ones_like(x),
        torch.ones_like(x, requires_grad=True),
    ):
        z = fixed_point(f, z0, x, weight, tol=1e-14)
        torch.testing.assert_close(grad(z.sum(), (x, weight)), right)


def test_inputs_may_be_nested():
    """As alone, to the second order."""
    results = []
    for given in (lambda x, w: (x, w), lambda x, w: ([x], {"weight": w})):
        x, weight = arguments()

        def step(z, a, b):
            if isinstance(a, list):
                (a,), b = a, b["weight"]
            return f(z, a, b)

        z = fixed_point(step, torch.zeros_like(x), *given(x, weight), tol=1e-14)
        slopes = grad(z.sum(), (x, weight), create_graph=True)
        results.append([*slopes, *grad(slopes[0].square().sum(), (x, weight))])
    torch.testing.assert_close(*results)


def test_inputs_need_not_be_tensors_or_be_used():
    x = random(3)
    z = fixed_point(lambda z, n, x, name: n * x, torch.zeros_like(x), 2, x, "name")
    torch.testing.assert_close(grad(z.sum(), x)[0], torch.full_like(x, 2))
    assert not fixed_point(lambda z, x: torch.ones_like(z), x, x).requires_grad
    with torch.no_grad():
        assert not solved(*arguments()).requires_grad


class Layer(torch.nn.Module):
    """f closes over a parameter, a module and a tensor with a history."""

    def __init__(self, solve):
        super().__init__()
        torch.manual_seed(0)
        self.solve = solve
        self.weight = torch.nn.Parameter(0.3 * torch.randn(3, 3).double())
        self.inner = torch.nn.Linear(3, 3).double()

    def forward(self, x):
        halved = self.weight / 2

        def step(z, x):
            return torch.tanh(z @ halved + self.inner(x)) / 2

        return self.solve(step, torch.zeros_like(x), x).exp()


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_to_what_f_closes_over(compiled):
    torch.compiler.reset()
    results = []
    for solve in (partial(fixed_point, tol=1e-14), unroll):
        layer, x = Layer(solve), random(2, 3)
        call = torch.compile(layer, backend="eager") if compiled else layer
        y = call(x)
        results.append([y, *grad(y.square().sum(), (x, *layer.parameters()))])
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)


def test_a_second_derivative_beside_the_inputs_is_refused():
    x, weight = arguments()
    z = fixed_point(lambda z, x: f(z, x, weight), torch.zeros_like(x), x)
    with pytest.raises(RuntimeError, match="all that f uses among its inputs"):
        grad(z.sum(), x, create_graph=True)


# When it stops


@pytest.mark.parametrize(
    "step, words",
    [
        (
            lambda z, x: x - z,
            "in 200 steps: the last one changed it by 2, about inf is",
        ),
        (lambda z, x: x + z**2, "the fixed point diverged"),
        (lambda z, x: torch.log(z - x), "step 1 of the iteration changed it by nan"),
    ],
)
def test_no_convergence_is_an_error_with_the_residual(step, words):
    x = torch.full((2,), 2.0, requires_grad=True)
    with pytest.raises(NotConvergedError, match=words):
        fixed_point(step, torch.zeros(2), x)


def test_a_solution_that_repels_has_no_gradient():
    x = torch.zeros(2, requires_grad=True)
    z = fixed_point(lambda z, x: torch.tanh(3 * z + x), torch.zeros(2), x)
    with pytest.raises(NotConvergedError, match="the gradient diverged"):
        z.sum().backward()


def test_steps_are_counted():
    calls = []

    def halves(z):
        calls.append(0)
        return z / 2 + 1

    with torch.no_grad():
        z = fixed_point(halves, torch.zeros(1), tol=2**-5)
    assert z.item() == 2 - 2**-5 and len(calls) == 6
    assert fixed_point(halves, torch.zeros(1), tol=2**-5, max_steps=6) == z
    assert fixed_point(halves, torch.full((1,), 2.0), max_steps=1).item() == 2
    with pytest.raises(NotConvergedError, match="in 5 steps"):
        fixed_point(halves, torch.zeros(1), tol=2**-5, max_steps=5)


def test_slow_steps_are_not_taken_for_small_errors():
    """At the rate 0.99, a hundred times the last step is still to go."""

    def slow(z, x):
        return 0.99 * z + 0.01 * x

    x = torch.ones((), dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotConvergedError, match="by 0.0037, about 0.37 is still to go"):
        fixed_point(slow, torch.zeros_like(x), x, tol=0.01, max_steps=100)
    for tol in (1e-2, 1e-6):
        z = fixed_point(slow, torch.zeros_like(x), x, tol=tol, max_steps=1500)
        (slope,) = grad(z, x)
        assert tol / 2 < 1 - z.item() < 1.1 * tol
        assert tol / 2 < 1 - slope.item() < 1.1 * tol


def test_a_ring_in_which_most_steps_are_tiny():
    for size in (2, 3, 4):
        scale = torch.full((size,), 1e-3, dtype=torch.float64)
        scale[0] = 0.9 * 1e3 ** (size - 1)
        rest = torch.eye(size, dtype=torch.float64)[0].requires_grad_()

        def ring(z, rest, scale=scale):
            return rest + scale * z.roll(1)

        z = fixed_point(ring, torch.zeros_like(rest), rest, max_steps=999)
        right = 10 * torch.tensor([1e-3**n for n in range(size)], dtype=torch.float64)
        torch.testing.assert_close(z.detach(), right, rtol=1e-4, atol=0)
        assert grad(z[0], rest)[0][0].item() == pytest.approx(10, rel=1e-4)


def test_small_numbers_count_as_much_as_large_ones():
    x, weight = (1e-9 * arguments()[0]).detach().requires_grad_(), arguments()[1]
    results = [1e-30 * solve(x, weight) for solve in (solved, unrolled)]
    torch.testing.assert_close(*results, rtol=1e-9, atol=0)
    slopes = (grad(z.sum(), (x, weight)) for z in results)
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=0)


# Memory and circumstances


def test_what_is_kept_does_not_grow_with_the_steps():
    sizes = []
    for tol in (0.1, 1e-14):
        with Kept() as kept:
            z = solved(*arguments(), tol=tol)
        sizes.append(kept.total)
        z.sum().backward()
    assert sizes[0] == sizes[1]


def test_autocast_is_the_same_in_backward_and_leaves_weights_their_gradient():
    torch.manual_seed(0)
    layer, dtypes = torch.nn.Linear(3, 3), set()
    x = torch.randn(2, 3)

    def step(z, x):
        output = layer(z)
        dtypes.add(output.dtype)
        return torch.tanh(output.float() / 2 + x)

    with torch.autocast("cpu", torch.float16):
        z = fixed_point(step, torch.zeros_like(x), x, tol=1e-3)
    z.sum().backward()
    assert dtypes == {torch.float16}
    assert layer.weight.grad.abs().min() > 0


def test_a_step_may_end_in_a_linear_under_autocast():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    slopes = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            z = fixed_point(
                lambda z, x: layer(torch.tanh(z) / 2 + x),
                torch.zeros_like(x),
                x,
                tol=1e-2,
            )
        assert z.dtype == torch.float32
        slopes.append(grad(z.sum(), layer.weight)[0])
    torch.testing.assert_close(*slopes, **TOLERANCE[torch.bfloat16])
    with pytest.raises(ValueError, match="must return a tensor like z"):
        fixed_point(lambda z: layer(z).bfloat16(), x)


def test_a_gradient_that_arrives_as_inf_leaves_as_nan():
    """GradScaler looks for one, and skips the step."""
    x, weight = arguments()
    (gradient,) = grad(solved(x, weight), x, torch.full_like(x, torch.inf))
    assert gradient.isnan().all()


def test_what_was_changed_before_backward_is_named():
    x, weight = arguments()
    z = solved(x, weight)
    with torch.no_grad():
        weight.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_hook_of_a_tensor_that_f_closes_over_is_refused():
    x, weight = arguments()
    z = fixed_point(lambda z, x: f(z, x, weight), torch.zeros_like(x), x)
    weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(RuntimeError, match="has a hook"):
        z.sum().backward()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"z0": 1.0}, "z0 must be a torch.Tensor, got float"),
        ({"z0": torch.ones(2).int()}, "z0 must be floating-point, got"),
        ({"tol": 1e-8}, "tol must lie between 1.2e-07"),
        ({"tol": 1.0}, "and 1, got 1.0"),
        ({"tol": float("nan")}, "got nan"),
        ({"z0": torch.ones(2).half()}, "the resolution of torch.float16"),
        ({"max_steps": 0}, "max_steps must be 1 or more, got 0"),
        ({"max_steps": 1.5}, "max_steps must be an int, got float"),
        ({"tol": "1"}, "tol must be a number, got str"),
        ({"f": None}, "f must be callable, got NoneType"),
        ({"f": lambda z: (z, z)}, "f must return a tensor, got tuple"),
        ({"f": lambda z: z[:1]}, "f must return a tensor like z, (2,)"),
        ({"f": lambda z: z.half()}, "got (2,) of torch.float16"),
        ({"f": lambda z: z.mul_(0.5)}, "f must not change z"),
    ],
)
def test_bad_input_is_named(change, words):
    good = {"f": lambda z: z / 2 + 1, "z0": torch.zeros(2), "tol": 1e-6}
    fixed_point(**good)
    assert_refused(words, lambda: fixed_point(**(good | change)))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_torch_func_is_refused(transform):
    def solution(x):
        return fixed_point(lambda z, x: z / 2 + x, torch.zeros_like(x), x).sum()

    with pytest.raises(RuntimeError, match="does not work under torch.func"):
        transform(solution)(random(3))
