"""Exercises of chapter 09: custom operators that compile."""

import itertools
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.library import CustomOpDef, opcheck

from helpers.lessons.exercise import Exercise
from helpers.lessons.judging import difference
from helpers.lessons.requirements import at
from helpers.lessons.torch_messages import in_one_sentence, raised
from helpers.lessons.verdicts import differ


def _no_tensor(given):
    if given is None:
        return "it returns None. Is a `return` missing?"
    return f"it must return a tensor, got a value of type {type(given).__name__}."


def _compiled(function, **options):
    """`function`, compiled in one graph, and the list that its graphs go to."""
    graphs = []
    torch.compiler.reset()
    backend = lambda graph, inputs: graphs.append(graph) or graph  # noqa: E731
    return torch.compile(function, backend=backend, fullgraph=True, **options), graphs


def fake_windows(x, size, step):
    count = (x.shape[0] - size) // step + 1
    return x.new_empty(count, size)


def _promises(attempt):
    for n, size, step, dtype in (
        (10, 3, 1, torch.float64),
        (11, 4, 2, torch.float32),
        (9, 2, 3, torch.int64),
        (8, 5, 5, torch.float64),
    ):
        where = f"for {n} numbers of {dtype}, size {size}, step {step}"
        try:
            given = attempt(torch.empty(n, dtype=dtype, device="meta"), size, step)
        except Exception as error:
            yield f"{where}: given a tensor without data, it raises {raised(error)}"
        yield at(where, _wrong_promise(given, ((n - size) // step + 1, size), dtype))


def _wrong_promise(given, shape, dtype):
    if not isinstance(given, Tensor):
        return _no_tensor(given)
    if tuple(given.shape) != shape:
        return f"it promises the shape {tuple(given.shape)}, but the kernel makes {shape}."
    if given.dtype != dtype:
        return f"it promises {given.dtype}, but the kernel keeps the dtype of x, {dtype}."
    if given.device.type != "meta":
        without_data = '"meta" (a device without data, used to test the promise)'
        return f'x is on the device {without_data}, but it promises "{given.device.type}".'
    if not given.is_contiguous():
        return (
            f"it promises the strides {given.stride()}, but the kernel's result is contiguous, "
            f"with strides {(shape[1], 1)}."
        )
    return None


def _serves_every_length(attempt):
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

    def rows(x):
        return op(x, 3, 2).sum(0), op(x, 3, 2).shape[0]

    compiled, graphs = _compiled(rows, dynamic=True)
    lengths, problem = (10, 5, 13, 100), None
    for n in lengths:
        x = torch.arange(float(n))
        try:
            sums, count = compiled(x)
        except Exception as error:
            problem = (
                f"with a symbol for the length, PyTorch says: {in_one_sentence(error)} With a "
                "symbol you may use +, -, * and //."
            )
        if elsewhere:
            yield f'x is on the device "cpu", but it promises "{elsewhere[0]}".'
        yield problem
        expected, right = rows(x)
        if not torch.equal(sums, expected) or count != right:
            yield f"compiled, and called with {n} numbers: {count} windows, but {right} is right."
    if len(graphs) > 1:
        yield (
            f"it is right, but compiled with dynamic=True it needs {len(graphs)} graphs for the "
            f"lengths {', '.join(map(str, lengths))}. Something in it makes a fixed number of a "
            "symbolic size, or compares it with one."
        )


NEW = "x.new_empty(count, size)"
EXERCISE_1 = Exercise(
    number="9.1",
    name="fake_windows",
    reference=fake_windows,
    stub="def fake_windows(x, size, step): ...",
    wrong=[
        (NEW, "torch.empty_like(x)", "it promises the shape (10,), but the kernel makes (8, 3)"),
        ("count, size)", "8, 3)", "for 11 numbers"),
        (NEW, "torch.empty(count, size, device=x.device)", "torch.float32, but the kernel keeps"),
        (NEW, "torch.empty(count, size, dtype=x.dtype)", 'the promise), but it promises "cpu"'),
        ("//", "/", "That is what new_empty says of a size that is a float"),
        (" + 1", "", "the shape (7, 3)"),
        (" // step", "", "size 4, step 2"),
        (NEW, "torch.from_numpy(x.numpy()[:count])", "given a tensor without data, it raises"),
        ("return", "assert x.is_cpu; return", "it raises AssertionError: AssertionError."),
        ("return", "if x.sum().item(): return", "given a tensor without data, it raises"),
        (NEW, "x.unfold(0, size, step)", "it promises the strides (1, 1)"),
        ("(count, size)", "(size, count).t()", "it promises the strides (1, 8)"),
        ("x.shape[0]", "len(x)", "4 graphs"),
        ("x.shape[0]", "int(x.shape[0])", "4 graphs"),
        ("(count, size)", "(count if x.shape[0] > 10 else count, size)", "2 graphs"),
        ("return", "if x.shape[0] > 8: return x.new_empty(count, size)\n    return", "2 graphs"),
        (NEW, 'torch.empty(count, size, dtype=x.dtype, device="meta")',
         'x is on the device "cpu", but it promises "meta"'),
        ("count = (x.shape[0] - size) // step",
         "import math; count = math.floor((x.shape[0] - size) / step)", "+, -, * and //"),
        ("return ", "", "it returns None"),
        (NEW, "count, size", "got a value of type tuple"),
    ],
    properties=[_promises, _serves_every_length],
    success="shape, dtype, device and strides are as promised, and one graph serves every "
    "length.",
    hints=(
        "How many windows start before the end of x? Try it with 10 numbers, size 3, step 2.",
        "The result has the dtype and the device of x, and lies in memory row by row.",
        "x.shape[0] may be a symbol. Compute with it, with // and not with int() or len().",
    ),
    explanation="The last window starts at n - size, so there are (n - size) // step + 1 of "
    "them. x.new_empty makes a contiguous tensor with the dtype and the device of x.",
)  # fmt: skip


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


def _passes(make):
    if isinstance(make, CustomOpDef):
        yield "give check the function make_soft_threshold, not the operator that it made."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns about what the verdict says
        try:
            op = make()
        except Exception as error:
            yield f"your code raises {raised(error)}"
        yield from _wrong_operator(op)


def _wrong_operator(op):
    op = op.default if isinstance(op, OpOverloadPacket) else op
    if not isinstance(op, (CustomOpDef, OpOverload)):
        yield f"it must return the operator, got a value of type {type(op).__name__}."
    numbers = torch.linspace(-2, 2, 12, dtype=torch.float64).view(3, 4)
    samples = {
        "float64": (numbers, 0.5),
        "float32": (numbers.float(), 0.5),
        "limit 0": (numbers, 0.0),
        "transposed": (numbers.t(), 0.5),
        "one number": (numbers[0, 0], 0.5),
    }
    quick = "test_schema", "test_autograd_registration", "test_faketensor"
    each = itertools.product((quick, "test_aot_dispatch_dynamic"), samples.items())
    for tests, (name, (x, limit)) in each:
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        torch.compiler.reset()
        results = opcheck(op, (leaf, limit), test_utils=tests, raise_exception=False)
        for test, result in results.items():
            if result != "SUCCESS":
                yield f"{test}, sample `{name}`: {in_one_sentence(result)}"
    if not op(leaf, 0.5).requires_grad:
        yield "opcheck passes, but the result has no derivative any more."
    for limit in (0.5, 1.5, 0.0):
        yield at(f"opcheck passes, but with limit {limit}", _wrong_numbers(op, limit))


def _wrong_numbers(op, limit):
    # On both sides of ±limit, equally far from it, so that the middle of two numbers is the limit.
    x = torch.tensor([[-3, -1.1, -0.9, -0.2], [0.3, 0.9, 1.1, 2]]).double() * (limit or 1)
    wrong = difference(lambda x: op(x, limit), lambda x: F.softshrink(x, limit), [x])
    x = torch.tensor([-limit, limit], dtype=torch.float64, requires_grad=True)
    if not wrong and torch.autograd.grad(op(x, limit).sum(), x)[0].any():
        return "at x = ±limit the given gradient is 0, and yours is not."
    return wrong


# What the stub gets wrong, each as an edit of the reference.
MUTATES = (
    "return torch.as_tensor(np.sign(array) * np.maximum(np.abs(array)",
    "sign = np.sign(array)\n        np.abs(array, out=array)\n"
    "        return torch.as_tensor(sign * np.maximum(array",
)
ALIASES = "        array = x", "        if limit == 0:\n            return x\n        array = x"
PROMISES = "torch.empty_like(x)", "torch.empty(x.shape)"
LEAVES_TORCH = (
    "return grad_output * (x.abs() > ctx.limit)",
    "passes = np.abs(x.numpy()) > ctx.limit\n        return grad_output * torch.from_numpy(passes)",
)
EXERCISE_2 = Exercise(
    number="9.2",
    name="make_soft_threshold",
    reference=make_soft_threshold,
    stub=(*MUTATES, *ALIASES, *PROMISES, *LEAVES_TORCH),
    wrong=[
        (*MUTATES, "Argument x is not defined as mutable but was mutated"),
        (*ALIASES, "sample `limit 0`: soft_threshold: The output of this"),
        (*PROMISES, "torch.float64 of the kernel and torch.float32 of"),
        (*LEAVES_TORCH, ".numpy() is not supported for tensor subclasses"),
        ("torch.empty_like(x)", "torch.empty(x.shape, dtype=x.dtype, device=x.device)",
         "(1, 4) in the kernel's result and"),
        ("(x.abs() > ctx.limit)", "torch.ones_like(x)",
         "with limit 0.5: The gradient of `x` is right in part: where the magnitude of `x` is "
         "below `ctx.limit` = 0.5,"),
        ("- limit", "- 0.5", "wrong where 0.4 is given in place of 0.5."),
        ("ctx.limit), None", "0.5), None", "opcheck passes, but with limit 1.5: The gradient"),
        ("array = x.numpy()", "array = x.numpy() * (limit != 0)", "with limit 0.0: `forward`"),
        ("    soft_threshold.register_autograd(backward, setup_context=setup_context)\n", "",
         "no autograd formula"),
        ("ctx.limit), None", "ctx.limit)", "incorrect number of gradients"),
        ("np.sign(array) *", "", "opcheck passes, but with limit 0.5: `forward`"),
        ("return soft_threshold", "return soft_threshold._init_fn", "must return the operator"),
        (*MUTATES, "mutates_args=()", 'mutates_args=("x",)', "the change, avoid it."),
        ("grad_output * (x.abs() > ctx.limit)", "(x.abs() > ctx.limit).to(x.dtype)",
         "does not depend on grad_output"),
        ("ctx.save_for_backward(x)", "ctx.x = x", "(x,) = ctx.saved_tensors", "x = ctx.x", "ctx"),
        ("() > ctx.limit", "() >= ctx.limit", "at x = ±limit"),
        (LEAVES_TORCH[0], "g = grad_output.clone(); g[x.abs() <= ctx.limit] = 0; return g",
         "A mask as an index makes a size that depends on numbers"),
        ("grad_output * (", "grad_output.mul_(", "Does backward change grad_output"),
        ("torch.as_tensor(", "torch.from_numpy(", "sample `one number`"),
    ],
    properties=[_passes],
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
)  # fmt: skip


def clip_by_norm(x, limit):
    norm = x.detach().norm()
    return x * (limit / norm.clamp(min=limit))


def _clips(attempt):
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
        except RuntimeError as error:
            wrong = f"your code raises {raised(error)}"
        yield at(name, wrong)
    compiled, graphs = _compiled(attempt)
    for name, x in samples.items():
        try:
            wrong = _wrong_clip(compiled, x)
        except Exception as error:
            yield f"there is still a break. PyTorch says: {in_one_sentence(error)}"
        if wrong:
            yield f"{name}: eager is right, but compiled {wrong}"
    if len(graphs) > 2:  # float64 and float32
        yield f"no break, but {len(graphs)} graphs where 2 would do, one for each dtype."


def _wrong_clip(clip, x):
    given, theirs, through = (x.clone().requires_grad_() for _ in range(3))
    output, expected = clip(given, 2.0), theirs * (2.0 / max(theirs.norm().item(), 2.0))
    if not isinstance(output, Tensor):
        return _no_tensor(output)
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return (
            f"the result has shape {tuple(output.shape)} and {output.dtype}, but "
            f"{tuple(expected.shape)} and {expected.dtype} is right."
        )
    if not torch.equal(given.detach(), x):
        return "the x of the caller is changed."
    exact = {"rtol": 1e-10} if x.dtype == torch.float64 else {}
    if not torch.allclose(output, expected, **exact):
        return f"the norm of the result {differ(output.norm().item(), expected.norm().item())}"
    if not output.requires_grad:
        return "the result has no gradient any more."
    weights = torch.linspace(1, 2, x.numel(), dtype=x.dtype).view(x.shape)
    (gradient,) = torch.autograd.grad((output * weights).sum(), given)
    (right,) = torch.autograd.grad((expected * weights).sum(), theirs)
    if gradient.isnan().any():
        return "the gradient is nan. Something divides by the norm where it is not needed."
    if torch.allclose(gradient, right, **exact):
        return None
    words = f"the first gradient is {gradient[0, 0]:.4g}, but {right[0, 0]:.4g} is right."
    loss = (through * (2.0 / through.norm().clamp(min=2.0)) * weights).sum()
    if torch.allclose(gradient, torch.autograd.grad(loss, through)[0]):
        words += " In the given function the norm in the denominator is a plain number."
    return words


FACTOR = "(limit / norm.clamp(min=limit))"
EXERCISE_3 = Exercise(
    number="9.3",
    name="clip_by_norm",
    reference=clip_by_norm,
    stub="""def clip_by_norm(x, limit):
    norm = x.norm()
    if norm > limit:
        print("clipped")
        x = x * (limit / norm.item())
    return x""",
    wrong=[
        (".detach()", "", f"return x * {FACTOR}",
         "return x * (limit / norm.item()) if norm > limit else x", "Data-dependent branching"),
        (".detach()", "", ".norm()", ".norm().item()", f"return x * {FACTOR}",
         "return x * (limit / norm) if norm > limit else x", "An `if` on a number from `.item()`"),
        (f"x * {FACTOR}", "x * (limit / norm) if (norm > limit).item() else x", "An `if` on a"),
        (f"x * {FACTOR}", "x * (limit / norm) if int(norm > limit) else x", "An `if` on a"),
        (f"x * {FACTOR}", f"x * ({FACTOR} if len(x[x > 0]) else 1)", "A mask as an index"),
        (".detach()", "", f"x * {FACTOR}", "torch.where(norm > limit, x * (limit / norm), x)",
         "the norm in the denominator is a plain number"),
        (f"x * {FACTOR}", "torch.where(norm > limit, x * (limit / norm), x)",
         "x = 0: the gradient is nan"),
        ("norm.clamp(min=limit)", "(norm.clamp(min=limit) + 1e-6)",
         "x is longer than limit: the norm of the result is 1.9999999, but 2 is right"),
        ("min=limit", "min=1e-9", "x is shorter than limit: the norm of the result"),
        ("return x", "return x.detach()", "no gradient any more"),
        (f"x * {FACTOR}", f"torch.compiler.disable(torch.mul)(x, {FACTOR})", "still a break"),
        (FACTOR, "min(limit / norm.item(), 1.0)", "x = 0: it divides by 0"),
        (f"return x * {FACTOR}", f"with torch.no_grad(): x.mul_({FACTOR})\n    return x * 1",
         "the x of the caller is changed"),
        (f"x * {FACTOR}", f"x.mul_({FACTOR})", "Return a new tensor; the given function leaves x"),
        (f"x * {FACTOR}", "3", "got a value of type int"),
        (f"x * {FACTOR}", "x.clamp(-limit, limit)", "the norm of the result is"),
        ("return", 'print("", end="")\n    return', "Failed to trace builtin operator"),
    ],
    properties=[_clips],
    success="one graph for long and short x, and the same numbers and gradients as before.",
    hints=(
        "Ask complaint(lambda: one_graph(clip_by_norm)(x, 2.0)) what is in the way.",
        "Divide by the larger of norm and limit, and there is nothing to choose.",
        ".item() made a constant of the norm. detach() does the same to a tensor.",
    ),
    explanation="Where nothing is clipped, the larger of norm and limit is limit, and the "
    "factor 1. torch.where between two tensors x would give nan at x = 0. The print has no "
    "place in a graph.",
)  # fmt: skip
