"""Exercises of chapter 11: five patients to cure."""

import torch
from torch.autograd import Function

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import difference


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


class CenterRows(Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output - grad_output.mean(1, keepdim=True)


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
        return grad_table.index_add_(0, index, grad_output), None


class LogCosh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(torch.cosh(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.tanh(x)


def _random(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def _checked(attempt, reference, samples):
    """The finding on the first sample of inputs for which there is one."""
    for inputs in samples:
        wrong = difference(attempt.apply, reference, inputs, order=2)
        if wrong:
            return f"for an input of shape {tuple(inputs[0].shape)}: {wrong}"
    return None


def _check_row_dot(attempt):
    samples = [[_random(n, d), 2 * _random(n, d).flip(0)] for n, d in [(4, 3), (2, 5)]]
    return _checked(attempt, lambda a, b: (a * b).sum(1), samples)


def _check_delay(attempt):
    def reference(x):
        return torch.cat([torch.zeros_like(x[:1]), x[:-1]])

    return _checked(attempt, reference, [[_random(6, 2)], [_random(4, 3)]])


def _check_center_rows(attempt):
    samples = [[_random(3, 5)], [_random(2, 7)]]
    return _checked(attempt, lambda x: x - x.mean(1, keepdim=True), samples)


def _check_look_up(attempt):
    samples = [
        [_random(5, 3), torch.tensor([0, 2, 2, 4, 0, 2])],
        [_random(6, 2), torch.tensor([1, 1, 3])],
    ]
    wrong = _checked(attempt, lambda table, index: table[index], samples)
    if wrong:
        return wrong
    table, index = _random(4, 2).requires_grad_(), torch.tensor([0, 1])
    if attempt.apply(table, index).grad_fn.apply(_random(2, 2))[1] is not None:
        return "it returns a gradient for the index, which has none: None belongs there."
    return None


def _check_log_cosh(attempt):
    reference = lambda x: torch.log(torch.cosh(x))  # noqa: E731
    return _checked(attempt, reference, [[_random(2, 4)], [100 * _random(3, 1)]])


EXERCISES = [
    Exercise(
        number="11.1",
        name="RowDot",
        stub="""class RowDot(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a * b).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_output = grad_output.unsqueeze(1)
        return grad_output * a, grad_output * b""",
        reference=RowDot,
        finding=_check_row_dot,
        success="the derivative of a product by one factor is the other factor.",
        hints=(
            "Examine it: examine(RowDot, torch.randn(4, 3), torch.randn(4, 3)).",
            "In which order does backward return its gradients?",
        ),
        explanation="backward returns its gradients in the order of forward's arguments.",
    ),
    Exercise(
        number="11.2",
        name="Delay",
        stub="""class Delay(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x)
        y[1:] = x[:-1]
        return y

    @staticmethod
    def backward(ctx, grad_output):
        grad_x = torch.zeros_like(grad_output)
        grad_x[1:] = grad_output[:-1]
        return grad_x""",
        reference=Delay,
        finding=_check_delay,
        success="what forward moves down, backward moves up.",
        hints=(
            "Which output does x[0] go to? From where does its gradient come?",
            "Write the rule of forward for one row, y[k + 1] = x[k], and read it backwards.",
        ),
        explanation="The last x goes nowhere, so its gradient is 0.",
    ),
    Exercise(
        number="11.3",
        name="CenterRows",
        stub="""class CenterRows(Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output""",
        reference=CenterRows,
        finding=_check_center_rows,
        success="the mean depends on every element, too.",
        hints=(
            "If one x grows by 1, how does the mean of its row change?",
            "Each output contains -x/D for every x of its row: a second term, the same for all.",
        ),
        explanation="The matrix of this operation, the identity minus a constant, is symmetric, "
        "so backward is forward applied to grad_output.",
    ),
    Exercise(
        number="11.4",
        name="LookUp",
        stub="""class LookUp(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = len(table)
        return table[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad_table = grad_output.new_zeros(ctx.rows, grad_output.shape[1])
        grad_table[index] = grad_output
        return grad_table, None""",
        reference=LookUp,
        finding=_check_look_up,
        success="a row that was looked up three times gets three contributions.",
        hints=(
            "What happens in grad_table[index] = ... if an index occurs twice?",
            "index_add_ adds where assignment overwrites.",
        ),
        explanation="Where one number is used several times, its gradient is the sum over its "
        "uses. With all indices different, the broken version passes every check.",
    ),
    Exercise(
        number="11.5",
        name="LogCosh",
        stub="""class LogCosh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = torch.tanh(x)
        return torch.log(torch.cosh(x))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.mul_(ctx.slope)""",
        reference=LogCosh,
        finding=_check_log_cosh,
        success="both cured: grad_output is left alone, and the slope has a history.",
        hints=(
            "An underscore at the end of a method is one of the two causes.",
            "The slope on ctx is a constant for the second derivative. Save x instead.",
        ),
        explanation="grad_output may be shared with other parts of the graph, so it must not be "
        "changed; and what backward computes from a saved x has a history.",
    ),
]
