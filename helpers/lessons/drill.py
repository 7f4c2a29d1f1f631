"""`drill("3.a")`: a line or a few, written between the larger exercises."""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product

import torch

from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import raises
from helpers.lessons.judge.properties import random
from helpers.lessons.judge.source import edited, made_of, outline
from helpers.lessons.judge.surroundings import usual_settings
from helpers.lessons.language import N_, _, at, followed


def backward_of(forward, *shapes, output=False):
    """One case: `grad_output`, the arguments of `forward`, and the last one's gradient.

    output: True if the line is given the output in place of the arguments
    """
    *others, last = (random(*shape, seed=k) for k, shape in enumerate(shapes))
    y = forward(*others, last.requires_grad_())
    g = random(*y.shape, seed=len(shapes))
    given = [y.detach()] if output else [*others, last.detach()]
    yield (g, *given), torch.autograd.grad(y, last, g)[0]


def clipped():
    """One case: the gradient of a clip to ±1, within, beyond and at its ends."""
    x = torch.tensor([[-2.0, -1.0, -0.3], [0.4, 1.0, 1.7]], dtype=torch.float64)
    g = random(2, 3)
    y = torch.nn.functional.hardtanh(x.requires_grad_())
    yield (g, x.detach()), torch.autograd.grad(y, x, g)[0]


def tangent_of(forward, *shapes):
    """Cases: for an `x` of each shape, a tangent, and the tangent of the output."""
    for shape in shapes:
        x, tangent = random(2, *shape)
        yield (x, tangent), torch.func.jvp(forward, (x,), (tangent,))[1]


def jacobian_of_cumsum():
    """Cases: the place of each entry, and the entry."""
    jacobian = torch.func.jacrev(lambda x: x.cumsum(0))(random(3))
    for place in product(range(3), repeat=2):
        yield place, jacobian[place]


def derivatives_of_sine():
    """Cases: it, a point and an order, and its derivatives there up to this order."""
    x = random(2, 3).requires_grad_()
    y = x.detach()
    right = y.cos(), -y.sin(), -y.cos()
    for order in (3, 2):
        yield (torch.sin, x, order), right[:order]


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
    """A layer, its tensors, and vᵀJu for its weight; one whose difference shows h."""
    x, weight, u = random(5, 3), random(4, 3, seed=1), random(4, 3, seed=2)
    v = random(5, 4, seed=3)
    yield (torch.nn.functional.linear, x, weight, u, v), (v * (x @ u.T)).sum()
    a, b, h = x @ weight.T, x @ u.T, 0.25
    cubed = lambda x, weight: torch.nn.functional.linear(x, weight) ** 3  # noqa: E731
    right = (v * (3 * a**2 * b + h**2 * b**3)).sum()
    yield (cubed, x, weight, u, v, h), right


class PartlyUsed(torch.nn.Module):
    """A gradient reaches `used` alone; `unused` has an older one.

    Some elements of that gradient are 0, and others cancel.
    """

    def __init__(self):
        super().__init__()
        self.used, self.silenced, self.unused, self.untouched = (
            torch.nn.Linear(3, 2, dtype=torch.float64) for _ in range(4)
        )
        for parameter in self.unused.parameters():
            parameter.grad = torch.ones_like(parameter)

    def forward(self, x):
        y = self.used(x * torch.tensor([1, 1, 0]))
        return y - y.flip(-1) + 0 * self.silenced(x)


def names_by(reached):
    """(a module's class, x) -> what is wrong with the names of `reached`, or ""."""

    def wrong(module, x):
        right = ["used.weight", "used.bias"]
        given = [
            name if isinstance(name, str) else type(name).__name__
            for name in reached(module(), x)
        ]
        if set(given) == set(right):
            return ""
        return _("it returns {given}; {right} is right.", given=given, right=right)

    return wrong


def elements():
    """Cases: elements of involutions of six channels, in groups of three and of two."""
    # Here, for the import takes time, and chapters import it when they need it.
    from helpers.ops.involution import involution2d

    x = random(2, 6, 6, 5)
    for groups, K in ((2, 3), (3, 5)):
        weight = random(2, groups, K, K, 6, 5, seed=1)
        y = involution2d(x, weight, padding=K // 2)
        padded = torch.nn.functional.pad(x, [K // 2] * 4)
        for place in [(0, 0, 2, 2), (1, 4, 0, 4), (1, 2, 5, 0)]:
            yield (padded, weight, *place), y[place]


def compiler():
    """Raises where there is none."""
    from helpers.ops.involution.compiler import find_compiler

    find_compiler()


def biased():
    """One case: a table and its bias."""
    x, bias = random(3, 5).float(), random(5, seed=1).float()
    yield (x, bias), x + bias


def launched(source):
    """(x, bias) -> what the kernel `add_bias` of this source writes, in 16 threads."""
    from helpers.lessons.cuda_on_cpu import emulator

    def added(x, bias):
        y, (rows, columns) = torch.empty_like(x), x.shape
        arrays = {"x": x, "bias": bias, "y": y, "rows": rows, "columns": columns}
        try:
            emulator.run(source, "add_bias", 2, 8, arrays)
        except emulator.KernelError as error:
            if not error.compiler:
                raise
            return emulator.compiler_says(error, source)
        return y

    return added


def smoothed(x, a):
    """`smooth_in_c`, in Python."""
    state, steps = torch.zeros_like(x[..., 0]), []
    for t in range(x.shape[-1]):
        state = a * state + (1 - a) * x[..., t]
        steps.append(state)
    return torch.stack(steps, -1)


def smoothing_backwards():
    """Cases: a gradient that arrives, a factor, and the gradient of smoothing."""
    x, g = random(2, 3, 5).requires_grad_(), random(2, 3, 5, seed=1)
    for a in (0.9, 0.5):
        yield (g, a), torch.autograd.grad(smoothed(x, a), x, g)[0]


def dropped_by(kind):
    """() -> "", or how the two runs of dropout by this Function differ."""

    runs = []

    class Weighted(torch.nn.Dropout):
        def __init__(self):
            super().__init__(0.5)
            self.weight = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            runs.append(x)
            return super().forward(self.weight * x)

    def wrong():
        x, seed = torch.ones(1000, requires_grad=True), torch.initial_seed()
        module, g = Weighted(), random(1000).float()
        y, other = (kind.apply(module, x, module.weight) for _call in range(2))
        if torch.initial_seed() != seed:
            return _("forward reseeds the program's generator.")
        if torch.equal(y, other):
            return _("two calls drop the same elements.")
        torch.rand(1)  # the program goes on to draw
        before = torch.get_rng_state()
        runs.clear()
        gradient, slope = torch.autograd.grad(y, (x, module.weight), g)
        if not runs:
            return _("backward does not run the module again.")
        if not torch.equal(y == 0, gradient == 0):
            return _("the second run does not drop the elements of the first.")
        if not torch.equal(before, torch.get_rng_state()):
            return _("after backward, the program does not draw as it would have.")
        if not gradient.allclose(g * y):
            return _(
                "for an input of ones, the gradient is `grad_output` times the output; "
                "here it is not."
            )
        if not slope.allclose((g * y).sum() / 2):
            return _("the gradient of the module's parameter is wrong.")
        return ""

    return wrong


def two_steps():
    """One case: z, W, c, y, and y after two steps of y = c + Jᵀ y."""
    z, W, c, y = random(3), random(3, 3, seed=1), random(3, seed=2), random(3, seed=3)
    J = torch.func.jacrev(lambda z: torch.tanh(W @ z))(z)
    yield (z, W, c, y), c + J.T @ (c + J.T @ y)


def stepped_by(next_y):
    def stepped(z, W, c, y):
        output = torch.tanh(W @ z.requires_grad_())
        for _step in range(2):
            y = next_y(y, output, z, c)
        return y

    return stepped


@dataclass(frozen=True)
class Drill:
    """One line, written as a lambda; or what "Write it yourself" asks for.

    cases:  a function without arguments that makes (arguments, expected) pairs
    answer: a right answer, as source: a lambda, or what defines one name
    wrong:  {source, or (old, new) in the answer: what is said to whoever wrote what
            does the same}
    why:    said under the answer
    stub:   the source of what the cell held before anyone touched it; of a lambda,
            `...` tells
    called: what is written -> the function that the cases are for; instead of a
            result it may return a sentence, what is wrong, and "" is expected
    names:  what sources may use beside torch, by name
    needs:  a function that raises, and says what is missing, where it cannot be judged
    """

    number: str
    cases: Callable[[], Iterable]
    answer: str
    wrong: dict[str | tuple[str, str], str]
    why: str
    stub: str = ""
    called: Callable = lambda line: line
    names: dict = field(default_factory=dict)
    needs: Callable = lambda: None

    @usual_settings()
    def verdict(self, line):
        """One line that begins with ○, ✗ or ✓."""
        if self.stub and outline(line) == outline(self.made(self.stub)):
            line = _untouched
        elif self.stub:
            try:
                self.needs()
            except Exception as error:
                said = _("it cannot be checked here: {error}", error=error)
                return "○ " + at(self.number, said)
            line = self.called(line)
        if not callable(line):
            return "✗ " + _(
                "{number}: write a lambda, such as `lambda g: 2 * g`",
                number=self.number,
            )
        for arguments, expected in self.cases():
            given = _called(line, arguments)
            if given is ...:
                return "○ " + _("{number}: not attempted yet", number=self.number)
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
    if isinstance(given, str):
        return given if given != right else None
    return wrong_outputs(given, right, differentiable=False, what=_("what it returns"))


def _called(line, arguments):
    arguments = [a.clone() if torch.is_tensor(a) else a for a in arguments]
    try:
        takes = len(inspect.signature(line).parameters)
        result = line(*arguments[:takes])
        is_number = isinstance(result, bool | int | float)
        return torch.tensor(float(result), dtype=torch.float64) if is_number else result
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

BIAS = '''\
ADD_BIAS = """
__global__ void add_bias(const float* x, const float* bias, float* y, int rows, int columns) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
'''
AGAIN = {
    "Function": torch.autograd.Function,
    "grad": torch.autograd.grad,
    "trained": lambda module: [p for p in module.parameters() if p.requires_grad],
}

_DRILLS = (
    Drill(
        "1.a",
        lambda: backward_of(lambda w, x: x * w + x, (3,), (3,)),
        "lambda g, w: g * w + g",
        {
            "lambda g, w: g * w": N_("Two edges lead to `x`."),
            "lambda g, w: w + 1": N_("What arrives, `g`, goes into each contribution."),
        },
        N_("each of the two edges brings a contribution."),
    ),
    Drill(
        "1.b",
        lambda: backward_of(lambda x: x.sum(), (2, 3)),
        "lambda g, x: g * torch.ones_like(x)",
        {
            "lambda g, x: g": N_("Each element of `x` gets a gradient."),
            "lambda g, x: g * x": N_("If an element grows by 1, so does the sum."),
            "lambda g, x: torch.ones_like(x)": N_("The gradient that arrives is `g`."),
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
        lambda: (
            case for n in (3, 4) for case in backward_of(lambda x: x.repeat(2), (n,))
        ),
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
            "lambda g, y: -g * y": N_("The derivative of 1 / x is -1 / x²."),
            "lambda g, y: -(y**2)": N_("`g` arrives. Multiply by it."),
        },
        N_("the derivative is -1 / x², and 1 / x is `y`."),
    ),
    Drill(
        "4.b",
        lambda: backward_of(torch.expm1, (3,), output=True),
        "lambda g, y: g * (y + 1)",
        {
            "lambda g, y: g * y": N_("The derivative is exp(x), not exp(x) - 1."),
            "lambda g, y: g * (y - 1)": N_(
                "The derivative is exp(x), which is larger than `y`."
            ),
            "lambda g, y: g * torch.exp(y)": N_("`y` is exp(x) - 1, and not `x`."),
            "lambda g, y: y + 1": N_("`g` arrives. Multiply by it."),
        },
        N_("exp(x) is `y + 1`."),
    ),
    Drill(
        "5.derivatives",
        derivatives_of_sine,
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
            ("create_graph=True)[0]", "create_graph=True)"): N_(
                "`grad` returns a tuple. Take its first element."
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
            "lambda h, g, x: h * g * torch.sin(x)": N_(
                "As `x` grows from 0, the cosine falls."
            ),
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
        "6.reached",
        lambda: [((PartlyUsed, random(2, 3)), "")],
        """\
def reached(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    ]
""",
        {
            ("    model.zero_grad()\n", ""): N_(
                "A gradient of an earlier pass is still there."
            ),
            (" and parameter.grad.any()", ""): N_("A gradient of zeros moves nothing."),
            (".any()", ".all()"): N_("One 0 in a gradient does not make it all zeros."),
            (".square()", ""): N_(
                "Here the outputs add up to 0, and so do the elements of a gradient."
            ),
            ("parameter.grad is not None and ", ""): N_(
                "What no backward pass has reached has `None` in `.grad`."
            ),
            ("        name\n", "        parameter\n"): N_(
                "It is the names that count."
            ),
            ("return [", "["): N_("Is a `return` missing?"),
        },
        N_("the other layers would not be trained, and nothing says so."),
        stub="def reached(model, x): ...",
        called=names_by,
    ),
    Drill(
        "7.element",
        elements,
        """\
def element(padded, weight, n, c, h, w):
    group, K = c * weight.shape[1] // padded.shape[1], weight.shape[2]
    patch = padded[n, c, h : h + K, w : w + K]
    return (weight[n, group, :, :, h, w] * patch).sum()
""",
        {
            ("c * weight.shape[1] // padded.shape[1]", "c % weight.shape[1]"): N_(
                "A group is a run of neighbouring channels."
            ),
            ("c * weight.shape[1] // padded.shape[1]", "c // weight.shape[1]"): N_(
                "That is how many groups there are, not how many channels each has."
            ),
            ("c * weight.shape[1] // padded.shape[1]", "c"): N_(
                "There is a filter for each group, not for each channel."
            ),
            ("h : h + K, w : w + K", "h - 1 : h - 1 + K, w - 1 : w - 1 + K"): N_(
                "Row h of `padded` is row h - p of X: the shift is in it already."
            ),
            (" * patch).sum()", ".flip(0, 1) * patch).sum()"): N_(
                "Element (i, j) of the filter belongs to row h + i, column w + j."
            ),
        },
        N_("a neighbourhood times the filter of its pixel, summed."),
        stub="def element(padded, weight, n, c, h, w): ...",
    ),
    Drill(
        "7.bias",
        biased,
        BIAS
        + '''\
    if (i >= rows * columns) return;
    int column = i % columns;
    y[i] = x[i] + bias[column];
}
"""
''',
        {
            ("    if (i >= rows * columns) return;\n", ""): N_(
                "The threads to spare must stop before they read."
            ),
            ("i % columns", "i / columns"): N_("That is the row."),
            ("i % columns", "i % rows"): N_("A row has `columns` elements."),
            ("bias[column]", "bias[i]"): N_("`bias` has an element for each column."),
            ("x[i]", "x[column]"): N_("`x` has an element for each thread."),
        },
        N_("one thread, one element."),
        stub=BIAS + '}\n"""\n',
        called=launched,
        needs=compiler,
    ),
    Drill(
        "8.backward",
        smoothing_backwards,
        """\
def smooth_backward(g, a):
    return smooth_in_c(g.flip(-1), a).flip(-1)
""",
        {
            ("smooth_in_c(g.flip(-1), a).flip(-1)", "smooth_in_c(g, a)"): N_(
                "That sums over the steps before s. Here the sum runs over those after."
            ),
            (", a).flip(-1)", ", a)"): N_("The result is still turned around."),
            ("smooth_in_c(g.flip(-1)", "smooth_in_c(g"): N_(
                "What goes into the loop must be turned around, too."
            ),
            ("smooth_in_c(g.flip(-1), a).flip(-1)", "smooth_in_c(g.mT, a).mT"): N_(
                "The steps in time are the last dimension, and their order turns around."
            ),
        },
        N_("the same loop, from right to left."),
        stub="def smooth_backward(g, a): ...",
        names={"smooth_in_c": smoothed},
        needs=compiler,
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
        jacobian_of_cumsum,
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
            ("f(x, weight - h * u)) / (2 * h)", "f(x, weight)) / h"): N_(
                "That steps to one side; the formula steps to both."
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
        "12.repair",
        lambda: [((), "")],
        """\
class Mine(Function):
    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x, torch.get_rng_state())
        return module(x)

    @staticmethod
    def backward(ctx, grad_output):
        x, state = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(state)
            y = ctx.module(x)
        return None, *grad(y, (x, *trained(ctx.module)), grad_output)
""",
        {
            ("            torch.set_rng_state(state)\n", ""): N_(
                "The state must be taken before the first run, and be restored before "
                "the second."
            ),
            ("torch.random.fork_rng(devices=[]), ", ""): N_(
                "It goes on from the old state, and draws the same numbers again."
            ),
            ("x, state =", "(x,) ="): N_("`backward` unpacks what `forward` saved."),
        },
        N_("the second run is the first one again, and the program draws on."),
        stub="""\
class Mine(Function):
    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.module(x)
        return None, *grad(y, (x, *trained(ctx.module)), grad_output)
""",
        called=dropped_by,
        names=AGAIN,
    ),
    Drill(
        "13.a",
        clipped,
        "lambda g, x: g * (x.abs() < 1)",
        {
            "lambda g, x: g": N_("That is the slope 1 everywhere."),
            "lambda g, x: g.clamp(-1, 1)": N_("Where is decided by `x`, not by `g`."),
            "lambda g, x: g * (x.abs() <= 1)": N_("At -1 and 1, the slope is 0, too."),
            "lambda g, x: g * x.sign()": N_("That is the sign itself, not a slope."),
            "lambda g, x: 1.0 * (x.abs() < 1)": N_("`g` arrives. Multiply by it."),
        },
        N_("the mask stands in for a derivative that is 0 everywhere."),
    ),
    Drill(
        "13.next",
        two_steps,
        """\
def next_y(y, output, z, c):
    return c + torch.autograd.grad(output, z, y, retain_graph=True)[0]
""",
        {
            ("c + ", ""): N_("The right-hand side has two terms."),
            ("c + ", "y + "): N_("`c` is added, the gradient of the loss."),
            ("z, y,", "z, c,"): N_("`y` is what goes back through the step."),
            (", retain_graph=True", ""): N_(
                "The graph of one step is used again and again: `retain_graph=True`."
            ),
            ("[0]", ""): N_("`grad` returns a tuple."),
        },
        N_("one backward pass through one step, and no matrix."),
        stub="def next_y(y, output, z, c): ...",
        called=stepped_by,
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
            ),
            "lambda g, z: 1 / (3 * z**2)": N_("That is the slope alone, without `g`."),
            "lambda g, z: g / 3 * z**2": N_("This divides by 3 alone."),
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
