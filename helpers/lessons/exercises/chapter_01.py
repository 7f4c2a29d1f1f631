"""Exercises of chapter 01: the legacy Function API."""

import contextlib
import inspect
from dataclasses import replace

import torch

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.compare import explain_difference, find_difference
from helpers.lessons.judge.numbers import raises
from helpers.lessons.judge.properties import instances_apart, keeps_only, random
from helpers.lessons.judge.variations import Inputs, caught
from helpers.lessons.language import N_, _, at
from helpers.ops import legacy
from helpers.ops.legacy import Function


def _is_legacy(attempt):
    if issubclass(attempt, torch.autograd.Function):
        yield _(
            "it derives from today's torch.autograd.Function. In the old style you "
            "write `from helpers.ops.legacy import Function`."
        )
    if not issubclass(attempt, Function):
        yield _(
            "it does not derive from Function: `from helpers.ops.legacy import "
            "Function`."
        )
    for name, argument in {"forward": "x", "backward": "grad_output"}.items():
        method = inspect.getattr_static(attempt, name)
        if isinstance(method, staticmethod):
            yield _(
                "`{name}` is a static method, as it is today. In 2017 {name} took "
                "(self, {argument}), and arguments that were not tensors went to "
                "`__init__`.",
                name=name,
                argument=argument,
            )
        if method is getattr(Function, name):
            yield _(
                "it has no method `{name}`, nor inherits one. Look at spelling and "
                "indentation.",
                name=name,
            )


def _instances_like(like, *feeds):
    """The net, for instances: what follows the tensor goes to the constructor."""

    def sentences(attempt):
        def explained(inputs):
            return _wrong_instance(attempt, inputs[1:], like, inputs[0])

        for where, inputs in (case for feed in feeds for case in feed.plain()):
            yield at(where, explained(inputs))
        for feed in feeds:
            called = lambda x, *arguments: attempt(*arguments)(x)  # noqa: E731
            yield from caught(find_difference, called, like, feed, explained)

    return sentences


def _wrong_instance(attempt, arguments, like, x):
    """`explain_difference` for legacy classes, after what it has no words for."""
    try:
        attempt(*arguments)
    except Exception as error:
        return raises(error, _("the constructor raises {kind}: {message}."))
    with contextlib.suppress(Exception):  # What raises is said below
        output = attempt(*arguments)(x.clone().requires_grad_())
        # Before the engine casts it.
        gradient = output.grad_fn.apply(torch.ones_like(output))[1]
        if output.dtype == x.dtype != gradient.dtype:
            given, right = (str(t.dtype)[6:] for t in (gradient, x))
            return _(
                "`backward` returns {given} for `x`, which is {right}.",
                given=given,
                right=right,
            )
    return explain_difference(
        lambda x: attempt(*arguments)(x),
        lambda x: like(x, *arguments),
        [x],
        adapted=_of_2017,
    )


RENAMED = N_(
    "The gradient of `x` has the elements of grad_output in their old order, as a "
    "reshape or a view leaves them. That renames positions; it does not exchange "
    "dimensions."
)
REMEDIES = {  # with `self` where today it is ctx
    "saved-no-tensor": N_(
        "its arguments: one tensor after the other, not in a list; what is no "
        "tensor goes on self"
    ),
    "dirty-not-returned": N_("self.mark_dirty"),
}


def _of_2017(found):
    """A finding in the words of the old style."""
    if found.code == "transposed":  # it has the right shape, so it was no transpose
        return replace(found, message=_(RENAMED), remedy="")
    ours = found.file == legacy.__file__  # whose lines nobody needs to read
    remedy = REMEDIES.get(found.code, "" if ours else found.remedy)
    message = found.message.replace(f"`{found.input}`", "`x`")
    return replace(found, message=message, remedy=_(remedy))


class AddConstant(Function):
    def __init__(self, constant):
        self.constant = constant

    def forward(self, x):
        return x + self.constant

    def backward(self, grad_output):
        return grad_output


EXERCISE_1 = Exercise(
    number="1.1",
    reference=AddConstant,
    stub="""class AddConstant(Function):
    def __init__(self, constant): ...

    def forward(self, x): ...

    def backward(self, grad_output): ...""",
    wrong=[
        (
            {"return grad_output": "return grad_output.float()"},
            "returns float32 for `x`",
        ),
        (
            {"self.constant": "AddConstant.constant"},
            "two instances with different constants disturb each other",
        ),
        ({"def backward": "def backwards"}, "it has no method `backward`"),
        (
            {"(self, constant)": "(self)", "= constant": "= 2.5"},
            "the constructor raises TypeError",
        ),
        (
            {"def forward": "@staticmethod\n    def forward"},
            "In 2017 forward took (self, x), and arguments that were not tensors "
            "went to `__init__`.",
        ),
    ],
    properties=[
        _is_legacy,
        _instances_like(
            lambda x, constant: x + constant,
            Inputs(
                shapes="...",
                constants=(2.5, -1.0, 0.1, 0),
                names="constant",
            ),
        ),
        instances_apart(
            [1.0],
            [100.0],
            random(3),
            N_(
                "two instances with different constants disturb each other. Keep it "
                "in `self`."
            ),
        ),
    ],
    success="the constant came in through the constructor, and the gradient passes "
    "unchanged.",
    hints=(
        "The constant is not a tensor. Which method took such arguments in 2017?",
        "If x grows by 1, how much does x + c grow?",
    ),
    explanation="The slope of x + c is 1, whatever c is, so backward returns the "
    "gradient that it received.",
)


class Transpose(Function):
    def __init__(self, dim0, dim1):
        self.dims = dim0, dim1

    def forward(self, x):
        return x.transpose(*self.dims)

    def backward(self, grad_output):
        return grad_output.transpose(*self.dims)


DIMENSIONS = {
    "N D": ((-1, 0), (-2, 1)),
    "N D E": ((0, 1), (0, 2), (1, -1), (-3, -2)),
    "... N D E": ((1, -1),),
}
EXERCISE_2 = Exercise(
    number="1.2",
    reference=Transpose,
    stub="""class Transpose(Function):
    def __init__(self, dim0, dim1): ...

    def forward(self, x): ...

    def backward(self, grad_output): ...""",
    wrong=[
        (
            {
                "return x.transpose": "self.size = x.size(); return x.transpose",
                "grad_output.transpose(*self.dims)": "grad_output.reshape(self.size)",
            },
            "That renames positions; it does not exchange dimensions.",
        ),
        (
            {"x.transpose(*self.dims)": "x.transpose(*map(abs, self.dims))"},
            "with dim0 = -2",
        ),
        ({"self.dims": "Transpose.dims"}, "disturb each other"),
        ({"(Function)": "(torch.autograd.Function)"}, "derives from today's"),
    ],
    properties=[
        _is_legacy,
        _instances_like(
            torch.transpose,
            *(
                Inputs(shapes=shape, constants=dimensions, names="dim0 dim1")
                for shape, dimensions in DIMENSIONS.items()
            ),
        ),
        instances_apart(
            (0, 1),
            (1, 2),
            random(3, 3, 3),
            N_(
                "two instances with different dimensions disturb each other. Keep "
                "the two in `self`."
            ),
        ),
    ],
    success="exchanging the same two dimensions again brings each gradient back to "
    "its place.",
    hints=(
        "Each output element is one input element that has moved. Its gradient moves "
        "back.",
        "What undoes an exchange of two dimensions?",
    ),
    explanation="A transposition is its own inverse. backward needs only the two "
    "dimensions, and they live in self.",
)


class SquaredErrorToday(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x)
        ctx.target = target
        return (x - target) ** 2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * (x - ctx.target), None


EXERCISE_3 = Exercise(
    number="1.3",
    reference=SquaredErrorToday,
    wrong=[
        (
            {"torch.autograd.Function": "Function"},
            "must derive from torch.autograd.Function; its Function is that of "
            "helpers.ops.legacy.",
        ),
        (
            {
                "(ctx, x, target)": "(ctx, x)",
                "ctx.target = target": "ctx.target = 5",
                "(x - target)": "(x - 5)",
            },
            "`forward` must take (ctx, x, target).",
        ),
        ({"ctx.target": "SquaredErrorToday.target"}, "disturb each other"),
        ({"ctx.target = target": "ctx.target = int(target)"}, "with target = 0.3"),
    ],
    like=lambda x, target: (x - target) ** 2,
    inputs=(Inputs(shapes="...", constants=(5, 0, 0.3), names="target"),),
    order=2,
    properties=[keeps_only("inputs and outputs", 5)],
    success="the same formula in a new home: ctx instead of self, and None for the "
    "constant. The second derivative, which the old style could not have, is "
    "there.",
    hints=(
        "Two decorators, and self becomes ctx. There is no constructor any more: "
        "forward takes the target after x.",
        "ctx.save_for_backward and ctx.saved_tensors keep their names; the target, a "
        "number, is an attribute of ctx.",
        "backward returns two values: the gradient of x, and None for the target. "
        "For the second derivative, use x as saved_tensors gives it to you: no "
        ".data, no detach.",
    ),
    explanation="In the new style saved tensors come with their history, so backward "
    "is recorded like any other computation and can be differentiated.",
)
