"""Exercises of chapter 13: gradients by decision and by theorem."""

import contextlib

import torch
from torch.autograd import Function, grad

from helpers.lessons.exercise import Exercise
from helpers.lessons.function_transforms import along
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import alike, copies, first_line, near_miss
from helpers.lessons.judge.properties import random
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import _, at
from helpers.lessons.memory import Alive

NUMBERS = torch.tensor(
    [[-3.7, -2.0, -1.5, -0.5000000001], [0.2, 0.5, 1.0, 7.6]], dtype=torch.float64
)


def quantise(x, low, high):
    inside = (x >= low) & (x <= high)
    smooth = torch.where(inside, x, x.clamp(low, high).detach())
    step = torch.round(smooth.detach())
    return step - (smooth.detach() - smooth)


def _in_range(x, low, high):
    passes = (x >= low) & (x <= high)
    return torch.round(x.detach()).clamp(low, high) + passes * (x - x.detach())


def _has_forward_mode(attempt):
    try:
        given = along(lambda x: attempt(x, -2, 1))(NUMBERS)
    except Exception as error:
        yield _(
            "`backward` is right, but forward mode (torch.func.jvp) raises: {message}",
            message=first_line(error),
        )
    right = along(lambda x: _in_range(x, -2, 1))(NUMBERS)
    if not alike(given, right):
        yield _(
            "`backward` is right, but the derivative in forward mode "
            "(torch.func.jvp) is not: its largest element is {given:.4g}, and "
            "{right:.4g} is right.",
            given=given.abs().max(),
            right=right.abs().max(),
        )


def _is_exact(attempt):
    large = torch.tensor([-torch.inf, -3e4, 5.0, 3e4], dtype=torch.float16)
    given = attempt(large, -1, 1)
    if given.tolist() != [-1, -1, 1, 1]:
        yield _(
            "in float16, {numbers} between -1 and 1 becomes {given}: adding a large "
            "number and subtracting it again loses digits; inf - inf and inf times 0 are nan.",
            numbers=large.tolist(),
            given=given.tolist(),
        )


STEP = """
    class Step(Function):
        @staticmethod
        def forward(x):
            return torch.round(x)

        @staticmethod
        def setup_context(ctx, inputs, output): ...

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output

    return Step.apply(smooth)"""
EXERCISE_1 = Exercise(
    number="13.1",
    reference=quantise,
    wrong=[
        (
            {"return step - (smooth.detach() - smooth)": "return torch.round(smooth)"},
            "with low = -2 and high = 1: the gradient is 0 at",
        ),
        (
            {"def quantise(x": "class quantise(Function):\n    pass\n\ndef other(x"},
            "give check the function itself, got the class quantise",
        ),
        (
            {"return step - (smooth.detach() - smooth)": STEP},
            "forward mode (torch.func.jvp) raises: You must",
        ),
        (
            {
                "return step - (smooth.detach() - smooth)": "return step + x - x.detach() "
                "- (~inside) * (x - x.detach())"
            },
            "in float16",
        ),
    ],
    like=_in_range,
    inputs=(
        Inputs(
            shapes="...",
            constants=((-2, 1), (0, 3), (-8, 7), (2, 2)),
            names="low high",
            numbers={"at halves and whole numbers": NUMBERS},
        ),
    ),
    faithful=False,
    properties=[_has_forward_mode, _is_exact],
    success="the values of a step and the slope of a ramp, in both backward and "
    "forward mode.",
    hints=(
        "Which function has the slope 1 in the range and 0 outside?",
        "x.clamp(low, high) does, but since torch 2.14 its slope is 0 at the ends. "
        "With torch.where, you choose what belongs to the range.",
        "step - (smooth.detach() - smooth), as in the chapter.",
    ),
    explanation="`where` gives the slope that the exercise asks for, and rounding its "
    "result gives the values. Plain operations support forward mode without "
    "further code.",
)


class TriangleSpike(Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).to(u.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (u,) = ctx.saved_tensors
        return grad_output * (1 - u.abs()).clamp(min=0)


POTENTIALS = torch.tensor([[-2.5, -0.75, -0.25, 0.0], [0.125, 0.5, 1.5, 3.0]]).double()


def _triangle(u):
    near = u.clamp(-1, 1)
    smooth = near - near * near.abs() / 2
    return (u > 0).to(u.dtype) - (smooth.detach() - smooth)


EXERCISE_2 = Exercise(
    number="13.2",
    reference=TriangleSpike,
    wrong=[
        ({".clamp(min=0)": ""}, ", but 0 is right"),
        ({"grad_output * (1": "(1"}, "does not depend on grad_output"),
        (
            {
                "ctx.save_for_backward(u)": "pass",
                "(u,) = ctx.saved_tensors": "u = ctx.saved_tensors[0]",
            },
            "forward saved none",
        ),
    ],
    like=_triangle,
    inputs=(Inputs(shapes="...", numbers={"at 0, ±1 and between": POTENTIALS}),),
    faithful=False,
    success="`forward` fires, and `backward` lets the neurons near their threshold "
    "learn.",
    hints=(
        "`backward` needs the potential, not the spike.",
        "max(0, …) is .clamp(min=0). Multiply grad_output by the slope.",
    ),
    explanation="The slope is chosen, not derived, so `backward` needs the potential "
    "that `forward` saw. Neurons further than 1 from their threshold do not "
    "learn from this scan.",
)


class NewtonSqrt(Function):
    @staticmethod
    def forward(ctx, a):
        z = torch.ones_like(a)
        for _step in range(60):
            before, z = z, (z + a / z) / 2
            if torch.equal(z, before):
                break
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return grad_output / (2 * z)


# Close together, so that no finite difference of the doctor reaches below 0. Not 0.25,
# at which 2 z and 1 / (2 z) are the same.
POSITIVE = torch.tensor([[0.3, 2.0], [9.0, 1.5]], dtype=torch.float64)
OTHERS = (
    *(
        torch.tensor(n, dtype=torch.float64)
        for n in ([1e-20], [1e20], [1e-20, 1e12], [0.5, 1.5])
    ),
    torch.tensor([0.5, 9.0]).half(),
)
NEGATIVE = torch.tensor([-2.0], dtype=torch.float64)  # no root: the steps never settle


class _Operations(Alive):
    """Their names, in order; the 5000th is the last."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if len(self.operations) == 5000:
            raise TimeoutError
        return result


def _ends(attempt):
    for numbers in (POSITIVE, *OTHERS, NEGATIVE):
        # Which others name.
        with _Operations() as forward, contextlib.suppress(Exception):
            attempt.apply(numbers.clone())
        if len(forward.operations) == 5000:
            yield _(
                "`forward` does not end for {value}. It must take at most 60 steps, "
                "whatever the numbers are.",
                value=numbers.flatten().tolist(),
            )
        if {"sqrt", "rsqrt"} & {*forward.operations}:
            yield _(
                "`forward` calls PyTorch's own root. Find the root by Newton's steps."
            )
    with _Operations() as forward, contextlib.suppress(Exception):
        # The root already: the first step changes nothing.
        attempt.apply(torch.ones(1, dtype=torch.float64))
    if len(forward.operations) > 60:
        yield _(
            "`forward` goes on for [1.0], where no step changes an element: stop there."
        )


def _goes_by_the_theorem(attempt):
    with contextlib.suppress(Exception):  # which others name
        output = attempt.apply(*copies([POSITIVE]))
        with _Operations() as backward:
            output.sum().backward()
        if len(backward.operations) > 20:
            yield _(
                "`backward` takes {count} operations. It need not iterate: "
                "differentiate both sides of z · z = a.",
                count=len(backward.operations),
            )


def _is_the_root(attempt):
    for a in OTHERS:
        of = _("of {value}, {dtype}", value=a.tolist(), dtype=a.dtype)
        (leaf,) = copies([a])
        given, right = attempt.apply(leaf), a.sqrt()
        yield at(of, wrong_outputs(given, right, differentiable=False, numbers=False))
        (slope,) = grad(given.sum(), leaf)
        for sentence, one, other in (
            (_("`forward` returns {given}, but {right} is right."), given, right),
            (_("the gradient is {given}, but {right} is right."), slope, 0.5 / right),
        ):
            if not torch.allclose(
                one, other, rtol=2e-3 if a.itemsize == 2 else 1e-6, atol=0
            ):
                yield at(of, sentence.format(given=one.tolist(), right=other.tolist()))


ITERATES = """\
a, z = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            f = (z + a / z) / 2
        y = grad_output
        for _step in range(60):
            y = grad_output + grad(f, z, y, retain_graph=True)[0]
        return grad(f, a, y)[0]"""
EXERCISE_3 = Exercise(
    number="13.3",
    reference=NewtonSqrt,
    wrong=[
        ({"range(60)": "range(20)"}, "of [1e-20], torch.float64: `forward` returns"),
        (
            {
                "for _step in range(60)": "while True",
                "torch.equal(z, before)": "(z - before).abs().max() < 0",
            },
            "`forward` does not end for",
        ),
        ({"torch.equal(z, before)": "False"}, "`forward` goes on for [1.0]"),
        ({"torch.ones_like(a)": "a.sqrt()"}, "`forward` calls PyTorch's own root"),
        (
            {
                "save_for_backward(z)": "save_for_backward(a, z)",
                "(z,) = ctx.saved_tensors\n        return grad_output / (2 * z)": ITERATES,
            },
            "need not iterate",
        ),
    ],
    like=torch.sqrt,
    inputs=(
        Inputs(
            shapes="...",
            of=torch.exp,
            far=3,
            without={"empty": "an empty tensor has no largest change"},
        ),
    ),
    order=2,
    kind=[_ends, _goes_by_the_theorem],
    properties=[_is_the_root],
    success="the solution is all that `backward` needs, however you found it.",
    hints=(
        "z · z = a holds for every a. Differentiate both sides.",
        "2 z · dz = da. Which tensor is needed, and is it an input or an output?",
        "Save z, the same tensor that `forward` returns, and divide by 2 z.",
    ),
    explanation="The equation gives dz = da / (2 z). Because z is an output, "
    "`saved_tensors` returns it with its history, so the second derivative "
    "is correct as well.",
)


def reinforce(costs, log_probs):
    others = (costs.sum() - costs) / (len(costs) - 1)
    return ((costs - others).detach() * log_probs).mean()


def _weights_each_draw(attempt):
    for n in (2, 3, 7):
        costs = (random(n).abs() + 1).requires_grad_()
        log_probs = (-random(n, seed=1).abs()).requires_grad_()
        where = _("with {n} draws", n=n)
        given = attempt(costs, log_probs)
        yield wrong_outputs(given, costs.sum(), what=_("the result"), numbers=False)
        to_costs, to_log_probs = grad(given, (costs, log_probs), allow_unused=True)
        if to_log_probs is None:
            yield at(where, _("no gradient reaches `log_probs`."))
        if to_costs is not None and to_costs.any():
            yield at(where, _("a gradient goes to `costs`, too."))
        values = costs.detach()
        right = (values - (values.sum() - values) / (n - 1)) / n
        misses = {
            _("`costs` has no baseline."): values / n,
            _("the baseline of a draw contains its own cost."): (values - values.mean())
            / n,
            _("it is the sum of the estimates, not their mean."): n * right,
            _("the sign is the other one."): -right,
        }
        yield at(where, near_miss(to_log_probs, right, misses))
        what = _("the gradient of `log_probs`")
        yield at(where, wrong_outputs(to_log_probs, right, what=what))


EXERCISE_4 = Exercise(
    number="13.4",
    reference=reinforce,
    wrong=[
        ({"(costs - others)": "costs"}, "has no baseline"),
        (
            {
                "others = (costs.sum() - costs) / (len(costs) - 1)": "others = costs.mean()"
            },
            "contains its own cost",
        ),
        ({".detach()": ""}, "a gradient goes to `costs`, too"),
        ({".mean()": ".sum()"}, "the sum of the estimates"),
        ({"costs - others": "others - costs"}, "the sign is the other one"),
    ],
    properties=[_weights_each_draw],
    success="the baseline takes away most of the spread, and no draw is its own baseline, "
    "so the mean stays right.",
    hints=(
        "The gradient of a sum of weights times `log_probs` is the weights, if the weights "
        "have no history.",
        "The mean of the others: the sum of all, without this one, divided by n - 1.",
        "`((costs - others).detach() * log_probs).mean()`: what is `others`?",
    ),
    explanation="With its own cost in the baseline, each estimate would be too small by "
    "the factor (n - 1)/n. Without `detach`, costs that depend on the parameters would be "
    "differentiated, too.",
)
