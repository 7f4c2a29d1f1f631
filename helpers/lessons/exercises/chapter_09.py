"""Exercises of chapter 09: custom operators that compile."""

import re
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.library import CustomOpDef, opcheck

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import difference
from helpers.lessons.complaints import essence


def fake_windows(x, size, step):
    count = (x.shape[0] - size) // step + 1
    return x.new_empty(count, size)


def make_soft_threshold():
    @torch.library.custom_op("exercise_9_2::soft_threshold", mutates_args=())
    def soft_threshold(x: Tensor, limit: float) -> Tensor:
        array = x.numpy()
        return torch.as_tensor(np.sign(array) * np.maximum(np.abs(array) - limit, 0))

    @soft_threshold.register_fake
    def _(x, limit):
        return torch.empty_like(x)

    def setup_context(ctx, inputs, output):
        x, ctx.limit = inputs
        ctx.save_for_backward(x)

    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.abs() > ctx.limit), None

    soft_threshold.register_autograd(backward, setup_context=setup_context)
    return soft_threshold


def clip_by_norm(x, limit):
    norm = x.detach().norm()
    return x * (limit / norm.clamp(min=limit))


def _check_fake_windows(attempt):
    for n, size, step, dtype in [
        (10, 3, 1, torch.float64),
        (11, 4, 2, torch.float32),
        (9, 2, 3, torch.int64),
        (8, 5, 5, torch.float64),
    ]:
        where = f"for {n} numbers of {dtype}, size {size}, step {step}"
        try:
            given = attempt(torch.empty(n, dtype=dtype, device="meta"), size, step)
        except Exception as error:
            return (
                f"{where}: given a tensor without data, it raises {type(error).__name__}: "
                f"{_sentence(error)}"
            )
        wrong = _wrong_promise(given, (((n - size) // step) + 1, size), dtype)
        if wrong:
            return f"{where}: {wrong}"
    return _wrong_when_compiled(attempt)


def _compiled(function, **options):
    """`function`, compiled in one graph, and the list that its graphs go to."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True, **options), graphs


def _wrong_promise(given, shape, dtype):
    if not isinstance(given, Tensor):
        return _no_tensor(given)
    if tuple(given.shape) != shape:
        return f"it promises the shape {tuple(given.shape)}, but the kernel makes {shape}."
    if given.dtype != dtype:
        return f"it promises {given.dtype}, but the kernel keeps the dtype of x, {dtype}."
    if given.device.type != "meta":
        return f'x is on the device "meta", but it promises "{given.device.type}".'
    if not given.is_contiguous():
        return (
            f"it promises the strides {given.stride()}, but the kernel's result is contiguous, "
            f"with strides {(shape[1], 1)}."
        )
    return None


def _no_tensor(given):
    if given is None:
        return "it returns None. Is a `return` missing?"
    return f"it must return a tensor, got a value of type {type(given).__name__}."


def _wrong_when_compiled(attempt):
    def windows(x: Tensor, size: int, step: int) -> Tensor:
        view = np.lib.stride_tricks.sliding_window_view(x.numpy(), size)
        return torch.from_numpy(view[::step].copy())

    op = torch.library.custom_op("exercise_9_1::windows", windows, mutates_args=())
    elsewhere = []  # devices that a fake tensor on the CPU became

    def watched(x, size, step):
        promise = attempt(x, size, step)
        if promise.device != x.device:
            elsewhere.append(promise.device)
        return promise

    op.register_fake(watched)
    lengths = 10, 5, 13, 100

    def rows(x):
        return op(x, 3, 2).sum(0), op(x, 3, 2).shape[0]

    compiled, graphs = _compiled(rows, dynamic=True)
    for n in lengths:
        x = torch.arange(float(n))
        try:
            sums, count = compiled(x)
        except Exception as error:
            if elsewhere:
                return f'x is on the device "cpu", but it promises "{elsewhere[0]}".'
            return (
                f"with a symbol for the length, PyTorch says: {_sentence(error)} With a symbol you "
                "may use +, -, * and //."
            )
        if elsewhere:
            return f'x is on the device "cpu", but it promises "{elsewhere[0]}".'
        expected, right = rows(x)
        if not torch.equal(sums, expected) or count != right:
            return f"compiled, and called with {n} numbers: {count} windows, but {right} is right."
    if len(graphs) > 1:
        return (
            f"it is right, but compiled with dynamic=True it needs {len(graphs)} graphs for the "
            f"lengths {', '.join(map(str, lengths))}. Something in it makes a fixed number of a "
            "symbolic size, or compares it with one."
        )
    return None


def _check_soft_threshold(make):
    if isinstance(make, CustomOpDef):
        return "give check the function make_soft_threshold, not the operator that it made."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns about what the verdict says
        return _wrong_operator(make())


def _wrong_operator(op):
    op = op.default if isinstance(op, OpOverloadPacket) else op
    if not isinstance(op, (CustomOpDef, OpOverload)):
        return f"it must return the operator, got a value of type {type(op).__name__}."
    numbers = torch.linspace(-2, 2, 12, dtype=torch.float64).view(3, 4)
    for name, x, limit in [
        ("float64", numbers, 0.5),
        ("float32", numbers.float(), 0.5),
        ("limit 0", numbers, 0.0),
        ("transposed", numbers.t(), 0.5),
        ("one number", numbers[0, 0], 0.5),
    ]:
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        torch.compiler.reset()
        for test, result in opcheck(op, (leaf, limit), raise_exception=False).items():
            if result != "SUCCESS":
                return f"{test}, sample `{name}`: {_sentence(result)}"
        if not op(leaf, limit).requires_grad:
            return "opcheck passes, but the result has no derivative any more."
    wrong = difference(lambda x: op(x, 0.5), lambda x: F.softshrink(x, 0.5), [numbers])
    if wrong:
        return f"opcheck passes, but: {wrong}"
    x = torch.tensor([-0.5, 0.5], dtype=torch.float64, requires_grad=True)
    if torch.autograd.grad(op(x, 0.5).sum(), x)[0].any():
        return "opcheck passes, but at x = ±limit the given gradient is 0, and yours is not."
    return None


def _given_clip_by_norm(x, limit):
    norm = x.norm()
    if norm > limit:
        x = x * (limit / norm.item())
    return x


def _through_the_norm(x, limit):
    return x * (limit / x.norm()) if x.norm() > limit else x


def _check_clip_by_norm(attempt):
    numbers = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
    samples = {
        "x is longer than limit": numbers * 10,
        "x is shorter than limit": numbers / 10,
        "x = 0": numbers * 0,
        "x is float32": numbers.float() * 5,
    }
    for name, x in samples.items():
        try:
            wrong = _wrong_clip(attempt, x)
        except ZeroDivisionError:
            wrong = "it divides by 0. `.item()` makes a plain number, and both ways are computed."
        if wrong:
            return f"{name}: {wrong}"
    compiled, graphs = _compiled(attempt)
    for name, x in samples.items():
        try:
            wrong = _wrong_clip(compiled, x)
        except Exception as error:
            return f"there is still a break. PyTorch says: {_sentence(error)}"
        if wrong:
            return f"{name}: eager is right, but compiled {wrong}"
    if len(graphs) > 2:  # float64 and float32
        return f"no break, but {len(graphs)} graphs where 2 would do, one for each dtype."
    return None


def _wrong_clip(clip, x):
    before = x.clone()
    given, theirs, through = (x.clone().requires_grad_() for _ in range(3))
    output, expected = clip(given, 2.0), _given_clip_by_norm(theirs, 2.0)
    if not isinstance(output, Tensor):
        return _no_tensor(output)
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return (
            f"the result has shape {tuple(output.shape)} and {output.dtype}, but "
            f"{tuple(expected.shape)} and {expected.dtype} is right."
        )
    if not torch.equal(given.detach(), before):
        return "the x of the caller is changed."
    if not torch.allclose(output, expected):
        return f"the norm of the result is {output.norm():.4g}, {expected.norm():.4g} is right."
    if not output.requires_grad:
        return "the result has no gradient any more."
    weights = torch.linspace(1, 2, x.numel(), dtype=x.dtype).view(x.shape)
    (gradient,) = torch.autograd.grad((output * weights).sum(), given)
    (right,) = torch.autograd.grad((expected * weights).sum(), theirs)
    if gradient.isnan().any():
        return "the gradient is nan. Something divides by the norm where it is not needed."
    if torch.allclose(gradient, right):
        return None
    words = f"the first gradient is {gradient[0, 0]:.4g}, but {right[0, 0]:.4g} is right."
    loss = (_through_the_norm(through, 2.0) * weights).sum()
    if torch.allclose(gradient, torch.autograd.grad(loss, through)[0]):
        words += " In the given function the norm in the denominator is a plain number."
    return words


def _sentence(error):
    """What PyTorch's message says, in one sentence, with a hint where it has no place to look."""
    line = re.sub(r" in file `.*?`", "", essence(error))
    line = re.sub(
        r"(Shapes|Dtypes|Strides|Devices|Layouts) (.*) and (.*) are not equal",
        r"\1 \2 of the kernel and \3 of the promise are not equal",
        line,
    )
    line = re.sub(
        r"Stride mismatch! Strides are (\(.*?\)) and (\(.*?\)) \(.*\)",
        r"Strides are \1 in the kernel's result and \2 in the promise",
        line,
    )
    line = re.split(r"(?<=\.) The most common|  \(", line)[0].rstrip(".!") + "."
    for words, hint in HINTS.items():
        if words in line:
            line += f" {hint}"
    return line


IN_BACKWARD = "Does backward change grad_output, or leave PyTorch?"
HINTS = {
    "incorrectly registered or not traceable": IN_BACKWARD,
    "written-to tensor": IN_BACKWARD,
    "Could not guard on": "A mask as an index makes a size that depends on numbers; torch.where "
    "does not.",
}


EXERCISES = [
    Exercise(
        number="9.1",
        name="fake_windows",
        stub="def fake_windows(x, size, step): ...",
        reference=fake_windows,
        finding=_check_fake_windows,
        success="shape, dtype, device and strides are as promised, and one graph serves every "
        "length.",
        hints=(
            "How many windows start before the end of x? Try it with 10 numbers, size 3, step 2.",
            "The result has the dtype and the device of x, and lies in memory row by row.",
            "x.shape[0] may be a symbol. Compute with it, with // and not with int() or len().",
        ),
        explanation="The last window starts at n - size, so there are (n - size) // step + 1 of "
        "them. x.new_empty makes a contiguous tensor with the dtype and the device of x.",
    ),
    Exercise(
        number="9.2",
        name="make_soft_threshold",
        stub="""def make_soft_threshold():
    @torch.library.custom_op("exercise_9_2::soft_threshold", mutates_args=())
    def soft_threshold(x: Tensor, limit: float) -> Tensor:
        if limit == 0:
            return x
        array = x.numpy()
        sign = np.sign(array)
        np.abs(array, out=array)
        return torch.as_tensor(sign * np.maximum(array - limit, 0))

    @soft_threshold.register_fake
    def _(x, limit):
        return torch.empty(x.shape)

    def setup_context(ctx, inputs, output):
        x, ctx.limit = inputs
        ctx.save_for_backward(x)

    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        passes = np.abs(x.numpy()) > ctx.limit
        return grad_output * torch.from_numpy(passes), None

    soft_threshold.register_autograd(backward, setup_context=setup_context)
    return soft_threshold""",
        reference=make_soft_threshold,
        finding=_check_soft_threshold,
        success="opcheck passes on every sample, and numbers and gradients are those of "
        "torch.nn.functional.softshrink.",
        hints=(
            "x.numpy() shares its memory with x. What does out=array do to x?",
            "The result needs memory of its own in every case. The fake kernel must promise what "
            "the kernel makes: shape, dtype, strides.",
            "backward is traced with fake tensors, so it must not leave PyTorch.",
        ),
        explanation="Four defects: the input was overwritten, the input was returned for limit 0, "
        "the fake result had the default dtype and strides, and backward called NumPy.",
    ),
    Exercise(
        number="9.3",
        name="clip_by_norm",
        stub="""def clip_by_norm(x, limit):
    norm = x.norm()
    if norm > limit:
        print("clipped")
        x = x * (limit / norm.item())
    return x""",
        reference=clip_by_norm,
        finding=_check_clip_by_norm,
        success="one graph for long and short x, and the same numbers and gradients as before.",
        hints=(
            "Ask complaint(lambda: one_graph(clip_by_norm)(x, 2.0)) what is in the way.",
            "Divide by the larger of norm and limit, and there is nothing to choose.",
            ".item() made a constant of the norm. detach() does the same to a tensor.",
        ),
        explanation="Where nothing is clipped, the larger of norm and limit is limit, and the "
        "factor 1. torch.where between two tensors x would give nan at x = 0. The print has no "
        "place in a graph.",
    ),
]
