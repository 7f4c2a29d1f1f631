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
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.properties import each_of, random
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import N_, _
from helpers.lessons.torch_messages import in_one_sentence, raised


def _compiled(function, **options):
    """`function`, compiled in one graph, and the list that its graphs go to."""
    graphs = []
    torch.compiler.reset()
    backend = lambda graph, inputs: graphs.append(graph) or graph  # noqa: E731
    return torch.compile(function, backend=backend, fullgraph=True, **options), graphs


def fake_windows(x, size, step):
    count = (x.shape[0] - size) // step + 1
    return x.new_empty(count, size)


def _promises(attempt, n, size, step, dtype):
    x = torch.empty(2 * n, dtype=dtype, device="meta")[::2]
    try:
        given = attempt(x, size, step)
    except Exception as error:
        yield _(
            "given a tensor without data, it raises {message}", message=raised(error)
        )
    right = x.new_empty((n - size) // step + 1, size)
    yield wrong_outputs(given, right, what=_("the result"), numbers=False)
    if given.device.type != "meta":
        yield _(
            'x is on the device "meta" (a device without data, used to test the promise), but it '
            'promises "{type}".',
            type=given.device.type,
        )
    if not given.is_contiguous():
        yield _(
            "it promises the strides {stride}, but the kernel's result is "
            "contiguous, with strides {right}.",
            stride=given.stride(),
            right=right.stride(),
        )


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
            problem = _(
                "with a symbol for the length, PyTorch says: {message} With a symbol "
                "you may use +, -, * and //.",
                message=in_one_sentence(error),
            )
        if elsewhere:
            yield _(
                'x is on the device "cpu", but it promises "{elsewhere}".',
                elsewhere=elsewhere[0],
            )
        yield problem
        expected, right = rows(x)
        if not torch.equal(sums, expected) or count != right:
            yield _(
                "compiled, and called with {n} elements: {count} windows, but "
                "{right} is right.",
                n=n,
                count=count,
                right=right,
            )
    if len(graphs) > 1:
        yield _(
            "it is right, but compiled with dynamic=True it needs {count} graphs for "
            "the lengths {names}. Something in it turns a symbolic size into a fixed "
            "number, or compares the two.",
            count=len(graphs),
            names=", ".join(map(str, lengths)),
        )


WINDOWS = (  # elements, size, step, dtype
    (10, 3, 1, torch.float64),
    (11, 4, 2, torch.float32),
    (9, 2, 3, torch.int64),
    (8, 5, 5, torch.bool),
)
NEW = "x.new_empty(count, size)"
EXERCISE_1 = Exercise(
    number="9.1",
    reference=fake_windows,
    wrong=[
        (
            {NEW: "torch.empty(count, size, dtype=x.dtype)"},
            'the promise), but it promises "cpu"',
        ),
        ({"//": "/"}, "That is what new_empty says of a size that is a float"),
        ({NEW: "x.unfold(0, size, step)"}, "it promises the strides (2, 2)"),
        ({"x.shape[0]": "len(x)"}, "4 graphs"),
        (
            {
                "count = (x.shape[0] - size) // step": "import math; count = math.floor((x.shape[0] - size) / step)"
            },
            "+, -, * and //",
        ),
    ],
    properties=[
        each_of(
            WINDOWS,
            _promises,
            N_("for {n} elements of {dtype}, two apart, size {size}, step {step}"),
        ),
        _serves_every_length,
    ],
    success="shape, dtype, device and strides are as promised, and one graph serves "
    "lengths from 5 to 100.",
    hints=(
        "How many windows fit into x? Try it with 10 elements, size 3, step 2.",
        "The result has the dtype and the device of x, and is contiguous.",
        "x.shape[0] may be a symbol. Compute with it: use //, not int() or len().",
    ),
    explanation="The last window starts at n - size, so there are (n - size) // step "
    "+ 1 of them. x.new_empty makes a contiguous tensor with the dtype and the "
    "device of x.",
)


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


def _operator(make):
    op = make()
    return op.default if isinstance(op, OpOverloadPacket) else op


def _passes(make):
    if isinstance(make, CustomOpDef):
        yield _(
            "give check the function make_soft_threshold, not the operator that it "
            "made."
        )
    try:
        op = _operator(make)
    except Exception as error:
        yield _("your code raises {message}", message=raised(error))
    if not isinstance(op, (CustomOpDef, OpOverload)):
        yield _(
            "it must return the operator, got a value of type {kind}.",
            kind=type(op).__name__,
        )
    numbers = random(3, 4)
    samples = {
        "float64": (numbers, 0.5),
        _("limit 0"): (numbers, 0.0),
        _("one number"): (numbers[0, 0], 0.5),
        "float32": (numbers.float(), 0.7),
        _("transposed"): (numbers.t(), 2.5),
        _("three dimensions, expanded"): (numbers[:1].expand(5, 3, 4), 0.5),
        _("nothing"): (numbers[:0], 0.5),
    }
    quick = "test_schema", "test_autograd_registration", "test_faketensor"
    slow = itertools.product(["test_aot_dispatch_dynamic"], [*samples.items()][:3])
    for tests, (name, (x, limit)) in (
        *itertools.product([quick], samples.items()),
        *slow,
    ):
        leaf = x.detach().requires_grad_()
        torch.compiler.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing warns about what the verdict says
            results = opcheck(
                op, (leaf, limit), test_utils=tests, raise_exception=False
            )
        for test, result in results.items():
            if result != "SUCCESS":
                yield _(
                    "{test}, sample `{name}`: {message}",
                    test=test,
                    name=name,
                    message=in_one_sentence(result),
                )


# What the stub gets wrong, each as an edit of the reference.
MUTATES = {
    "return torch.as_tensor(np.sign(array) * np.maximum(np.abs(array)": "sign = np.sign(array)\n        np.abs(array, out=array)\n        return "
    "torch.as_tensor(sign * np.maximum(array",
}
ALIASES = {
    "        array = x": "        if limit == 0:\n            return x\n        array = x"
}
PROMISES = {"torch.empty_like(x)": "torch.empty(x.shape)"}
LEAVES_TORCH = {
    "return grad_output * (x.abs() > ctx.limit)": "passes = np.abs(x.numpy()) > ctx.limit\n"
    "        return grad_output * torch.from_numpy(passes)",
}
EXERCISE_2 = Exercise(
    number="9.2",
    reference=make_soft_threshold,
    stub=MUTATES | ALIASES | PROMISES | LEAVES_TORCH,
    wrong=[
        (MUTATES, "Argument x is not defined as mutable but was mutated"),
        (PROMISES, "torch.float64 of the kernel and torch.float32 of"),
        (
            {"return soft_threshold": "return soft_threshold._init_fn"},
            "must return the operator",
        ),
        (MUTATES | {"mutates_args=()": 'mutates_args=("x",)'}, "the change, avoid it."),
    ],
    like=F.softshrink,
    inputs=(
        Inputs(
            shapes="...",
            constants=(0.5, 1.5, 0.0, 2.7),
            names="limit",
            numbers={
                "at x = ±limit": torch.tensor([-1.5, -0.5, 0.0, 0.5, 1.5]).double()
            },
        ),
    ),
    called=_operator,
    doctor=False,
    kind=[_passes],
    success="opcheck passes on every sample, and results and gradients are those of "
    "torch.nn.functional.softshrink.",
    hints=(
        "x.numpy() shares its memory with x. What does out=array do to x?",
        "The result needs memory of its own in every case. The fake kernel must "
        "promise what the kernel makes: shape, dtype, strides.",
        "backward is traced with fake tensors, so it must not leave PyTorch.",
    ),
    explanation="Four defects: the input was overwritten, the input was returned for "
    "limit 0, the fake result had the default dtype and strides, and "
    "backward called NumPy.",
)


def clip_by_norm(x, limit):
    norm = x.detach().norm()
    return x * (limit / norm.clamp(min=limit))


def _compiles(attempt):
    numbers = random(2, 3)
    compiled, graphs = _compiled(attempt)
    for x in (numbers * 10, numbers / 10, numbers * 0, numbers.float() * 5):
        try:
            compiled(x.requires_grad_(), 2.0)
        except Exception as error:
            yield _(
                "there is still a break. PyTorch says: {message}",
                message=in_one_sentence(error),
            )
    if len(graphs) > 2:  # float64 and float32
        yield _(
            "no break, but {count} graphs where 2 are enough, one per dtype.",
            count=len(graphs),
        )


FACTOR = "(limit / norm.clamp(min=limit))"
EXERCISE_3 = Exercise(
    number="9.3",
    reference=clip_by_norm,
    stub="""def clip_by_norm(x, limit):
    norm = x.norm()
    if norm > limit:
        print("clipped")
        x = x * (limit / norm.item())
    return x""",
    wrong=[
        (
            {
                ".detach()": "",
                f"return x * {FACTOR}": "return x * (limit / norm.item()) if norm > limit else x",
            },
            "Data-dependent branching",
        ),
        (
            {
                ".detach()": "",
                ".norm()": ".norm().item()",
                f"return x * {FACTOR}": "return x * (limit / norm) if norm > limit else x",
            },
            "An `if` on a number from `.item()`",
        ),
        (
            {
                ".detach()": "",
                f"x * {FACTOR}": "torch.where(norm > limit, x * (limit / norm), x)",
            },
            "with limit = 2.0: the gradient is",
        ),
    ],
    like=lambda x, limit: x * (limit / max(x.norm().item(), limit)),
    inputs=(
        Inputs(
            shapes="...",
            constants=(2.0, 1.0, 0.3, 7.3, 100),
            names="limit",
        ),
    ),
    doctor=False,
    properties=[_compiles],
    success="one graph for long and short x, and the same results and gradients as "
    "before.",
    hints=(
        "Ask complaint(lambda: one_graph(clip_by_norm)(x, 2.0)) what is in the way.",
        "Divide by the larger of norm and limit, then no choice is left.",
        ".item() made a constant of the norm. detach() does the same, and the norm "
        "stays a tensor.",
    ),
    explanation="Where nothing is clipped, the larger of norm and limit is limit, and "
    "the factor is 1. torch.where between two tensors x would give nan at x "
    "= 0. The print has no place in a graph.",
)
