"""Exercises of chapter 11: five patients to cure, and five backwards to judge."""

from math import log

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from helpers.doctor import examine
from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.properties import random, slips
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import N_, _


class RowDot(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a * b).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_output = grad_output.unsqueeze(1)
        return grad_output * b, grad_output * a


EXERCISE_1 = Exercise(
    number="11.1",
    reference=RowDot,
    stub={"grad_output * b, grad_output * a": "grad_output * a, grad_output * b"},
    wrong=[
        ({"        grad_output = grad_output.unsqueeze(1)\n": ""}, "shapes do not fit"),
        (
            {"grad_output * b, grad_output * a": "b.clone(), a.clone()"},
            "does not depend on grad_output",
        ),
        ({".unsqueeze(1)": ".sum()"}, "holds a sum or a mean over dimension 1"),
        (
            {"grad_output * b,": "(grad_output * b).sum(0),"},
            "has shape (5,), but (4, 5) belongs",
        ),
    ],
    like=lambda a, b: (a * b).sum(1),
    inputs=(Inputs(shapes="N D, N D"),),
    order=2,
    success="the derivative of a product with respect to one factor is the other "
    "factor.",
    hints=(
        "Examine it: examine(RowDot, torch.randn(4, 3), torch.randn(4, 3)).",
        "In which order does backward return its gradients?",
    ),
    explanation="backward returns its gradients in the order of forward's arguments.",
)


class Delay(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x)
        y[1:] = x[:-1]
        return y

    @staticmethod
    def backward(ctx, grad_output):
        grad_x = torch.zeros_like(grad_output)
        grad_x[:-1] = grad_output[1:]
        return grad_x


EXERCISE_2 = Exercise(
    number="11.2",
    reference=Delay,
    stub={"grad_x[:-1] = grad_output[1:]": "grad_x[1:] = grad_output[:-1]"},
    wrong=[
        ({"return grad_x": "return grad_output.clone()"}, "The gradient of `x`"),
        ({"return grad_x": "return grad_output.roll(-1, 0)"}, "right in part"),
        (
            {"zeros_like(grad_output)": "empty_like(grad_output)"},
            "gradient has no value at [3, 0]",
        ),
    ],
    like=lambda x: torch.cat([torch.zeros_like(x[:1]), x[:-1]]),
    inputs=(
        Inputs(
            shapes="N D", without={"empty": "without rows, there is nothing to move"}
        ),
    ),
    order=2,
    success="what forward moves down, backward moves up.",
    hints=(
        "Which output does x[0] go to? So where does its gradient come from?",
        "Write the rule of forward for one row, y[k + 1] = x[k], and read it "
        "backwards.",
    ),
    explanation="The last x goes nowhere, so its gradient is 0.",
)


class CenterRows(Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output - grad_output.mean(1, keepdim=True)


CENTERS_COLUMNS = slips(
    lambda g, x: g - g.mean(0),
    N_("`backward` takes the means of the columns. Whose means did `forward` take?"),
    random(4, 3),
)


EXERCISE_3 = Exercise(
    number="11.3",
    reference=CenterRows,
    stub={" - grad_output.mean(1, keepdim=True)": ""},
    wrong=[
        ({"grad_output.mean(1": "grad_output.mean(0"}, "the means of the columns"),
        ({"grad_output.mean": "grad_output.sum"}, "The gradient of `x`"),
        (
            {"- grad_output.mean(1, keepdim=True)": "* (1 - 1 / grad_output.shape[1])"},
            "The gradient of `x`",
        ),
    ],
    like=lambda x: x - x.mean(1, keepdim=True),
    kind=[CENTERS_COLUMNS],
    inputs=(Inputs(shapes="N D"),),
    order=2,
    success="the mean depends on every element, too.",
    hints=(
        "If one x grows by 1, how does the mean of its row change?",
        "Each output contains -x/D for every x of its row: the same second term for "
        "all of them.",
    ),
    explanation="The matrix of this operation, the identity minus a constant, is "
    "symmetric, so backward is forward applied to grad_output.",
)


def _rows(*rows):
    return lambda table: torch.tensor(
        [n for n in rows if -len(table) <= n < len(table)]
    ).long()


# Repeated, negative, none, all different; a table of one row takes what is left of
# them.
INDICES = (
    _rows(0, 2, 2, 1, 0, 2, 3, 3, 0),
    _rows(-1, 1, -3, 2),
    _rows(-1, -1),
    _rows(),
    _rows(2, 0, 1),
    _rows(-3, 0),
)


class LookUp(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = len(table)
        return table[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad_table = grad_output.new_zeros(ctx.rows, grad_output.shape[1])
        return grad_table.index_put_((index,), grad_output, accumulate=True), None


def _minds_the_index(attempt):
    table, index = random(4, 2).requires_grad_(), torch.tensor([0, -1])
    if attempt.apply(table, index).grad_fn.apply(random(2, 2))[1] is not None:
        yield _(
            "it returns a gradient for the index, which has none: None belongs there."
        )


EXERCISE_4 = Exercise(
    number="11.4",
    reference=LookUp,
    stub={
        "return grad_table.index_put_((index,), grad_output, accumulate=True), None": "grad_table[index] = grad_output\n        return grad_table, None"
    },
    wrong=[
        ({", accumulate=True": ""}, "lacks contributions"),
        (
            {
                "index_put_((index,), grad_output, accumulate=True)": "index_add_(0, index, grad_output)"
            },
            "out of bounds for dimension 0",
        ),
        (
            {
                "        ctx.save": "        index[index < 0] += len(table)\n        ctx.save"
            },
            "it changes an input in place",
        ),
        ({"None": "torch.zeros(grad_output.shape[0])"}, "None belongs there"),
    ],
    like=lambda table, index: table[index],
    inputs=(
        Inputs(
            shapes="R D",
            constants=INDICES,
            without={"empty": "an empty table has no rows to look up"},
        ),
    ),
    order=2,
    properties=[_minds_the_index],
    success="a row that was looked up three times gets three contributions.",
    hints=(
        "Which index did you examine it with? A report is about that index only.",
        "What does grad_table[index] = ... do if an index occurs twice?",
    ),
    explanation="If an element is used several times, its gradient is the sum over its "
    "uses. As long as all indices differ, the broken version passes every "
    "check. MXNet had this mistake: "
    "https://github.com/apache/mxnet/issues/9172.",
)


class LogCosh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(torch.cosh(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.tanh(x)


EXERCISE_5 = Exercise(
    number="11.5",
    reference=LogCosh,
    stub={
        " * torch.tanh(x)": ".mul_(ctx.slope)",
        "save_for_backward(x)": "slope = torch.tanh(x)",
        "        (x,) = ctx.saved_tensors\n": "",
    },
    wrong=[
        (
            {
                "torch.tanh(x)": "ctx.slope",
                "save_for_backward(x)": "slope = torch.tanh(x)",
                "(x,) = ctx.saved_tensors": "",
            },
            "silently wrong",
        ),
        (
            {"grad_output * torch.tanh(x)": "grad_output.mul_(torch.tanh(x))"},
            "changes grad_output in place",
        ),
        (
            {"* torch.tanh(x)": "* (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)"},
            "at numbers near",
        ),
    ],
    like=lambda x: torch.logaddexp(x, -x) - log(2),
    inputs=(Inputs(shapes="...", far=700),),
    order=2,
    success="backward leaves grad_output alone, and the slope has a history. "
    "(log(cosh(x)) is inf at 100 in float32; |x| + log1p(exp(-2|x|)) - "
    "log(2) is not.)",
    hints=(
        "One of the two causes is a method whose name ends in an underscore.",
        "The slope on ctx is a constant to the second derivative. Save x instead.",
    ),
    explanation="grad_output may be shared with other parts of the graph, so it must "
    "not be changed; and what backward computes from a saved x has a history.",
)


# --- five backwards, as an assistant hands them in ----------------------------------------------


class Mish(Function):
    """x · tanh(softplus(x))."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.nn.functional.softplus(x).tanh()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = torch.nn.functional.softplus(x).tanh()
        return grad_output * (t + x * x.sigmoid() * (1 - t * t))


class RowMax(Function):
    @staticmethod
    def forward(ctx, x):
        top, index = x.max(1)
        ctx.save_for_backward(index)
        ctx.columns = x.shape[1]
        return top

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad_x = grad_output.new_zeros(len(index), ctx.columns)
        return grad_x.scatter(1, index[:, None], grad_output[:, None])


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.contiguous())
        return x.contiguous().sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        rows = torch.as_strided(
            grad_output, x.shape, x.stride(), grad_output.storage_offset()
        )
        return rows * x.cos()


class Drop(Function):
    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) > 0.5) * 2

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (torch.rand_like(grad_output) > 0.5) * 2


class Unit(Function):
    """Each row divided by its length."""

    @staticmethod
    def forward(ctx, x):
        r = 1 / x.norm(dim=1, keepdim=True)
        ctx.save_for_backward(x * r, r)
        return x * r

    @staticmethod
    def backward(ctx, grad_output):
        y, r = ctx.saved_tensors
        return r * (grad_output - y * (grad_output * y).sum(1, keepdim=True))


HANDED_IN = Mish, RowMax, Sine, Drop, Unit


def review():
    return {
        "Mish": "accept",
        "RowMax": "accept",
        "Sine": "grad-output-layout",
        "Drop": "backward-not-deterministic",
        "Unit": "double-backward-wrong",
    }


def _reviewed(attempt):
    """Is each accepted, or rejected for what the doctor finds?"""
    x = random(3, 4)
    given = attempt()
    if not isinstance(given, dict):
        yield _(
            "it must return a dict, got a value of type {kind}.",
            kind=type(given).__name__,
        )
    for fn in HANDED_IN:
        found = [
            f.code
            for f in examine(fn, x, lines=False).findings
            if f.severity == "error"
        ]
        name, said = fn.__name__, given.get(fn.__name__)
        if not isinstance(said, str):
            yield _("`{name}` has no verdict yet: accept, or a code.", name=name)
        said = said.strip("[] ").lower()
        if found and said == "accept":
            yield _("`{name}` is accepted, but the doctor finds an error.", name=name)
        elif not found and said != "accept":
            yield _(
                "`{name}` is rejected, but its gradient is right. Which line of the "
                "report says what was judged?",
                name=name,
            )
        elif found and said not in found:
            yield _("`{name}` is rejected, but for another reason.", name=name)


EXERCISE_6 = Exercise(
    number="11.6",
    reference=review,
    stub="""def review():
    return dict.fromkeys(["Mish", "RowMax", "Sine", "Drop", "Unit"], ...)""",
    wrong=[
        ({"grad-output-layout": "accept"}, "`Sine` is accepted"),
        ({'"RowMax": "accept"': '"RowMax": "double-backward-refused"'}, "`RowMax` is rejected, but"),
        ({"grad-output-layout": "layout"}, "for another reason"),
        ({'"Sine": "grad-output-layout",': ""}, "`Sine` has no verdict yet"),
    ],
    properties=[_reviewed],
    success="two are right. `RowMax` refuses a second derivative openly, which is no error.",
    hints=(
        "Examine each with torch.randn(3, 4), and read the report to its last line.",
        "An error is a reason to reject; its code stands in brackets. A note is none.",
    ),
    explanation="`Sine` reads the memory of grad_output as if it were contiguous; `Drop` draws a new "
    "mask in backward; `Unit` saves what it does not return, which a second derivative takes for a "
    "constant.",
)  # fmt: skip
