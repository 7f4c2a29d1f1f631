"""`drill("3.a")`: a line or a few, written between the larger exercises."""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import raises
from helpers.lessons.judge.properties import random
from helpers.lessons.judge.source import edited, made_of, outline
from helpers.lessons.judge.surroundings import usual_settings
from helpers.lessons.language import N_, _, at, followed


def backward_of(forward, *shapes, output=False):
    """One case: `grad_output` and the arguments of `forward`, of these shapes; and the
    gradient of the last of them that autograd computes.

    output: True if the line is given the output in place of the arguments
    """
    *others, last = (random(*shape, seed=k) for k, shape in enumerate(shapes))
    y = forward(*others, last.requires_grad_())
    g = random(*y.shape, seed=len(shapes))
    given = [y.detach()] if output else [*others, last.detach()]
    yield (g, *given), torch.autograd.grad(y, last, g)[0]


def tangent_of(forward, *shapes):
    """Cases: for an `x` of each shape, a tangent, and the tangent of the output."""
    for shape in shapes:
        x, tangent = random(2, *shape)
        yield (x, tangent), torch.func.jvp(forward, (x,), (tangent,))[1]


def jacobian_of(forward, size):
    """Cases: the place of each entry, and the entry."""
    jacobian = torch.func.jacrev(forward)(torch.zeros(size, dtype=torch.float64))
    for i in range(size):
        for j in range(size):
            yield (i, j), jacobian[i, j]


def third_of(f, *derivatives):
    """One case: `f`, a point and the order, and these derivatives of `f` there."""
    x = random(2, 3).requires_grad_()
    yield (f, x, len(derivatives)), tuple(d(x.detach()) for d in derivatives)


def twice():
    """One case: a point, and the first and the second derivative of sinh²."""
    x = random(2, 3).requires_grad_()
    y = x.detach()
    yield (x,), ((2 * y).sinh(), 2 * (2 * y).cosh())


def first_and_second(kind, x):
    """Both derivatives of the square of a Function."""
    (first,) = torch.autograd.grad(kind.apply(x).square().sum(), x, create_graph=True)
    return first, torch.autograd.grad(first.sum(), x)[0]


def moved_weight():
    """One case: a linear layer, its tensors, and vᵀJu for its weight."""
    x, weight, u = random(5, 3), random(4, 3, seed=1), random(4, 3, seed=2)
    v = random(5, 4, seed=3)
    yield (torch.nn.functional.linear, x, weight, u, v), (v * (x @ u.T)).sum()


@dataclass(frozen=True)
class Drill:
    """One line, which a learner writes as a lambda; or what "Write it yourself" asks
    for.

    cases:  a function without arguments that makes (arguments, expected) pairs
    answer: a right answer, as source: a lambda, or what defines one name
    wrong:  {source, or (old, new) in the answer: what is said to whoever wrote what
            does the same}
    why:    said under the answer
    stub:   the source of what the cell held before anyone touched it; of a lambda,
            `...` tells
    called: what is written -> the function that the cases are for
    names:  what sources may use beside torch, by name
    """

    number: str
    cases: Callable[[], Iterable]
    answer: str
    wrong: dict[str | tuple[str, str], str]
    why: str
    stub: str = ""
    called: Callable = lambda line: line
    names: dict = field(default_factory=dict)

    @usual_settings()
    def verdict(self, line):
        """One line that begins with ○, ✗ or ✓."""
        if self.stub and outline(line) == outline(self.made(self.stub)):
            line = _untouched
        elif self.stub:
            line = self.called(line)
        if not callable(line):
            return "✗ " + _(
                "{number}: write a lambda, such as `lambda g: 2 * g`"
            ).format(number=self.number)
        for arguments, expected in self.cases():
            given = _called(line, arguments)
            if given is ...:
                return "○ " + _("{number}: not attempted yet").format(
                    number=self.number
                )
            if isinstance(given, Exception):
                wrong = raises(given, _("your code raises {kind}: {message}"))
                wrong = wrong.removesuffix(".") + "."
            else:
                wrong = _difference(given, expected)
            if wrong:
                why = self._known(line)
                return "✗ " + at(self.number, followed(wrong, why))
        return "✓ " + at(self.number, _(self.why))

    def check(self, line):
        """Print the verdict on a learner's lambda."""
        print(self.verdict(line))

    def made(self, source):
        """What a source defines, or a pair (old, new) makes of the answer."""
        if isinstance(source, tuple):
            source = edited(self.answer, dict([source]))
        names = {"torch": torch, **self.names}
        if source.startswith("lambda"):
            return eval(source, names)
        name = re.search(r"^(?:def|class) (\w+)|^(\w+) =", source, re.MULTILINE)
        return made_of(source, names, name[1] or name[2])

    def _known(self, line):
        inputs = [arguments for arguments, _expected in self.cases()]
        given = [_called(line, arguments) for arguments in inputs]
        for source, why in self.wrong.items():
            wrong = self.called(self.made(source))
            theirs = [_called(wrong, arguments) for arguments in inputs]
            if not any(map(_difference, given, theirs)):
                return _(why)
        return None


def _untouched(*arguments):
    return ...


def _difference(given, right):
    if isinstance(given, Exception) or isinstance(right, Exception):
        return repr(given) != repr(right)
    return wrong_outputs(given, right, differentiable=False, what=_("what it returns"))


def _called(line, arguments):
    arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    try:
        takes = len(inspect.signature(line).parameters)
        result = line(*arguments[:takes])
        is_number = isinstance(result, bool | int | float)
        return torch.tensor(float(result)).double() if is_number else result
    except Exception as error:
        return error


MINE = """\
class Mine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (torch.exp(x) - torch.exp(-x)) / 2

    @staticmethod
"""

_DRILLS = (
    Drill(
        "1.a",
        lambda: backward_of(lambda w, x: x * w + x, (3,), (3,)),
        "lambda g, w: g * w + g",
        {"lambda g, w: g * w": N_("Two edges lead to `x`.")},
        N_("each of the two edges brings a contribution."),
    ),
    Drill(
        "1.b",
        lambda: backward_of(lambda x: x.sum(), (2, 3)),
        "lambda g, x: g * torch.ones_like(x)",
        {
            "lambda g, x: g": N_("Each element of `x` gets a gradient."),
            "lambda g, x: g * x": N_("If an element grows by 1, so does the sum."),
        },
        N_("each element moves the sum as much as itself."),
    ),
    Drill(
        "2.a",
        lambda: backward_of(lambda X, W: X @ W.T, (4, 3), (2, 3)),
        "lambda G, X: G.T @ X",
        {"lambda G, X: X.T @ G": N_("`W` has a row for each output.")},
        N_("each element is a sum over the rows of the batch."),
    ),
    Drill(
        "2.b",
        lambda: backward_of(lambda b: b.expand(4, 2), (2,)),
        "lambda G: G.sum(0)",
        {
            "lambda G: G.sum(1)": N_("`b` has an element for each column."),
            "lambda G: G.mean(0)": N_(
                "An element of `b` is added to every row, and the effects add up."
            ),
        },
        N_("what goes to every row comes back from every row."),
    ),
    Drill(
        "3.a",
        lambda: backward_of(lambda x: x.flip(0), (4, 2)),
        "lambda g: g.flip(0)",
        {"lambda g: g": N_("Each element of `x` went to another place.")},
        N_("a flip is its own inverse, and its own backward."),
    ),
    Drill(
        "3.b",
        lambda: backward_of(lambda x: x.roll(1, 0), (4, 2)),
        "lambda g: g.roll(-1, 0)",
        {"lambda g: g.roll(1, 0)": N_("That goes on in the same direction.")},
        N_("what went forward by one comes back by one."),
    ),
    Drill(
        "3.c",
        lambda: backward_of(lambda x: x.repeat(2), (3,)),
        "lambda g: g[: len(g) // 2] + g[len(g) // 2 :]",
        {
            "lambda g: g[: len(g) // 2]": N_("Each element was used twice."),
            "lambda g: g.view(-1, 2).sum(1)": N_(
                "The two copies do not stand side by side: they are half of `y` apart."
            ),
        },
        N_("an element that was used twice adds up two gradients."),
    ),
    Drill(
        "4.a",
        lambda: backward_of(lambda x: 1 / x, (3,), output=True),
        "lambda g, y: -g * y**2",
        {
            "lambda g, y: -g / y**2": N_("`y` is 1 / x already."),
            "lambda g, y: g * y**2": N_("As `x` grows, `y` falls."),
        },
        N_("the derivative is -1 / x², and 1 / x is `y`."),
    ),
    Drill(
        "4.b",
        lambda: backward_of(torch.expm1, (3,), output=True),
        "lambda g, y: g * (y + 1)",
        {"lambda g, y: g * y": N_("The derivative is exp(x), not exp(x) - 1.")},
        N_("exp(x) is `y + 1`."),
    ),
    Drill(
        "5.derivatives",
        lambda: third_of(torch.sin, torch.cos, lambda x: -x.sin(), lambda x: -x.cos()),
        """\
def derivatives(f, x, order):
    values = [f(x)]
    for _ in range(order):
        values.append(torch.autograd.grad(values[-1].sum(), x, create_graph=True)[0])
    return values[1:]
""",
        {
            (", create_graph=True", ""): N_(
                "A derivative without `create_graph=True` has no history, so there is "
                "nothing to differentiate again."
            ),
            ("[-1].sum()", "[-1]"): N_(
                "`grad` goes back from one number. Sum the elements first."
            ),
            ("[-1].sum()", "[0].sum()"): N_("Differentiate the last derivative."),
            ("values[1:]", "values"): N_("The list begins with the first derivative."),
            ("return values[1:]", "values[1:]"): N_("Is a `return` missing?"),
        },
        N_("each derivative kept its history for the next."),
        stub="def derivatives(f, x, order): ...",
        called=lambda derivatives: lambda f, x, order: tuple(derivatives(f, x, order)),
    ),
    Drill(
        "5.again",
        twice,
        MINE
        + """\
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (torch.exp(x) + torch.exp(-x)) / 2
""",
        {
            ("(x,) = ctx.saved_tensors", "x = ctx.saved_tensors[0].detach()"): N_(
                "What the slope is computed from has no history, so the second "
                "derivative takes the slope for a constant."
            ),
            ("torch.exp(x) + ", "torch.exp(x) - "): N_(
                "The derivative of exp(-x) is -exp(-x), so the sign changes."
            ),
            ("grad_output * ", ""): N_("`backward` multiplies by `grad_output`."),
        },
        N_("what `backward` computes from a saved input is recorded."),
        stub=MINE + "    def backward(ctx, grad_output): ...\n",
        called=lambda kind: lambda x: first_and_second(kind, x),
    ),
    Drill(
        "5.a",
        lambda: backward_of(lambda g, x: g * torch.cos(x), (3,), (3,)),
        "lambda h, g, x: -h * g * torch.sin(x)",
        {
            "lambda h, g, x: h * torch.cos(x)": N_("That is what reaches `g`."),
            "lambda h, g, x: -h * torch.sin(x)": N_(
                "The cosine is multiplied by `g`, and so is its derivative."
            ),
            "lambda h, g, x: -g * torch.sin(x)": N_("`h` arrives. Multiply by it."),
        },
        N_("a backward pass is a function of `g` and `x`, with a gradient for each."),
    ),
    Drill(
        "5.b",
        lambda: backward_of(lambda x: 3 * x**2, (3,)),
        "lambda v, x: 6 * x * v",
        {
            "lambda v, x: 3 * x**2 * v": N_("That is the gradient, times `v`."),
            "lambda v, x: 6 * x": N_("That is the diagonal of `H`, without `v`."),
        },
        N_("the gradient is 3x², and its derivative 6x stands on the diagonal of `H`."),
    ),
    Drill(
        "6.a",
        lambda: backward_of(lambda x, s: s * x, (4, 3), (3,)),
        "lambda g, x: (g * x).sum(0)",
        {
            "lambda g, x: g.sum(0)": N_("The derivative of `s * x` for `s` is `x`."),
            "lambda g, x: g * x": N_("An element of `s` was used in every row."),
        },
        N_("every row sends back a product, and they add up."),
    ),
    Drill(
        "6.b",
        lambda: backward_of(lambda x, w: w * (w * x), (3,), (3,)),
        "lambda g, x, w: 2 * g * w * x",
        {"lambda g, x, w: g * w * x": N_("`w` was used in two places.")},
        N_("a weight in two places gets the sum of two gradients."),
    ),
    Drill(
        "10.a",
        lambda: tangent_of(torch.exp, (3,), (2, 2)),
        "lambda x, tangent: torch.exp(x) * tangent",
        {"lambda x, tangent: torch.exp(x)": N_("`x` need not move by 1.")},
        N_(
            "forward mode multiplies by the slope, as backward does, in the other order."
        ),
    ),
    Drill(
        "10.b",
        lambda: tangent_of(torch.sum, (3,), (2, 2)),
        "lambda x, tangent: tangent.sum()",
        {
            "lambda x, tangent: tangent": N_(
                "That has the shape of `x`. A tangent of `y` has the shape of `y`."
            ),
            "lambda x, tangent: torch.ones_like(x)": N_("That is the gradient of `x`."),
        },
        N_("where `x` moves by `tangent`, its sum moves by the sum of it."),
    ),
    Drill(
        "10.c",
        lambda: jacobian_of(lambda x: x.cumsum(0), 3),
        "lambda i, j: 1.0 if j <= i else 0.0",
        {
            "lambda i, j: 1.0 if i <= j else 0.0": N_(
                "That is the transposed Jacobian."
            ),
            "lambda i, j: 1.0 if j < i else 0.0": N_(
                "Output `i` contains input `i`, too."
            ),
            "lambda i, j: 1.0": N_("Output 0 contains only input 0."),
        },
        N_("output `i` is the sum of the inputs up to `i`."),
    ),
    Drill(
        "11.differences",
        moved_weight,
        """\
def from_forward(f, x, weight, u, v, h=1e-5):
    return (v * (f(x, weight + h * u) - f(x, weight - h * u)) / (2 * h)).sum()
""",
        {
            ("/ (2 * h)", "/ h"): N_(
                "From `weight - h * u` to `weight + h * u` it is 2h, not h."
            ),
            ("/ (2 * h)", ""): N_("A slope is a difference divided by the step."),
            ("(v * ", "("): N_("`v` weights each output before you sum."),
            (".sum()", ""): N_("It is one number: sum over all outputs."),
            ("f(x, weight - h * u)) / (2 * h)", "f(x, weight)) / (2 * h)"): N_(
                "From `weight` to `weight + h * u` it is h, not 2h."
            ),
            (
                "f(x, weight + h * u) - f(x, weight - h * u)",
                "f(x + h * u[0], weight) - f(x - h * u[0], weight)",
            ): N_("`u` moves the weight, not the input."),
        },
        N_("two evaluations of `forward`, and no `backward`."),
        stub="def from_forward(f, x, weight, u, v, h=1e-5):\n    return 0.0",
    ),
    Drill(
        "13.a",
        lambda: backward_of(torch.nn.functional.hardtanh, (3, 4)),
        "lambda g, x: g * (x.abs() < 1)",
        {
            "lambda g, x: g": N_("That is the slope 1 everywhere."),
            "lambda g, x: g.clamp(-1, 1)": N_("Where is decided by `x`, not by `g`."),
        },
        N_("the mask stands in for a derivative that is 0 everywhere."),
    ),
    Drill(
        "13.b",
        lambda: backward_of(
            lambda a: a.sign() * a.abs() ** (1 / 3), (2, 3), output=True
        ),
        "lambda g, z: g / (3 * z**2)",
        {
            "lambda g, z: 3 * z**2 * g": N_(
                "That is the slope of `a` with respect to `z`. Which one is asked for?"
            )
        },
        N_("from 3z² dz = da; how z was found does not matter."),
    ),
)
DRILLS = {drill.number: drill for drill in _DRILLS}


def drill(number):
    """The drill with that number, such as "3.a".

    Raises ValueError if there is none.
    """
    if number not in DRILLS:
        raise ValueError(f"number must be one of {', '.join(DRILLS)}; got {number!r}")
    return DRILLS[number]
