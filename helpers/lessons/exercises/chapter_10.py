"""Exercises of chapter 10: function transforms."""

from functools import partial
from inspect import getsource

import numpy as np
import torch
from torch.autograd import Function
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from helpers.lessons.exercise import Exercise
from helpers.lessons.function_transforms import TRANSFORMS, everywhere, loss
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import alike
from helpers.lessons.judge.properties import random
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import _, at, followed
from helpers.lessons.torch_messages import raised


def without_rule(function):
    """The stub: the reference, but for its rule for vmap."""
    return {"\n\n" + getsource(function.vmap).rstrip(): ""}


SAMPLE = random(2, 3, seed=1)
SQUARE = random(3, 3)  # so that a batch and a sample can be mistaken for each other


class Squash(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x / torch.sqrt(1 + x**2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / torch.sqrt(1 + x**2) ** 3


def _squashes(attempt):
    for name in ("grad", "vmap", "vmap(grad)", "jacrev"):
        under = TRANSFORMS[name]
        try:
            given = under(attempt.apply)(SAMPLE)
        except Exception as error:
            yield _(
                "under `{name}` it raises {message}",
                name=name,
                message=raised(error),
            )
        if not alike(given, under(Squash.forward)(SAMPLE)):
            yield _("under `{name}` it is silently wrong.", name=name)


EXERCISE_1 = Exercise(
    number="10.1",
    reference=Squash,
    stub="""class Squash(Function):
    @staticmethod
    def forward(ctx, x):
        root = torch.sqrt(1 + x**2)
        ctx.save_for_backward(root)
        return x / root

    @staticmethod
    def backward(ctx, grad_output):
        (root,) = ctx.saved_tensors
        return grad_output / root**3""",
    wrong=[
        ({"    generate_vmap_rule = True\n\n": ""}, "it does not have vmap support"),
        (
            {"setup_context(ctx, inputs, output)": "setup_context(ctx, x)"},
            "`setup_context` must take (ctx, inputs, output)",
        ),
        (
            {"return x / torch.sqrt(1 + x**2)": "return x.div_(torch.sqrt(1 + x**2))"},
            "end in an underscore",
        ),
        (
            {"torch.sqrt(1 + x**2) ** 3": "torch.sqrt(x**2).square().add(1) ** 1.5"},
            "it is nan",
        ),
    ],
    like=Squash.forward,
    inputs=(Inputs(shapes="...", far=1000),),
    order=2,
    properties=[_squashes],
    success="right under `vmap` and `grad`, and so is the second derivative.",
    hints=(
        "setup_context sees only inputs and outputs. Which of them do you need?",
        "Backward can recompute the root from x.",
        "vmap needs one more line, which Split in this chapter has.",
    ),
    explanation="Backward recomputes the intermediate, so it has a history. You could "
    "save the output instead: 1 - y² is 1 / (1 + x²), but it loses its "
    "digits where y is nearly 1.",
)


class Multiply(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a, b):
        return a * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b, grad_output * a

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent):
        a, b = ctx.saved_tensors
        return a_tangent * b + a * b_tangent


def _unlike(f, like, rule, tensors, where, what=None):
    """How `rule(f)` differs from `rule(like)`, or None."""
    right = rule(like)(*tensors)
    try:
        given = rule(f)(*tensors)
    except Exception as error:
        return _("{place} it raises {message}", place=where, message=raised(error))
    what = what or _("the output")
    wrong = wrong_outputs(given, right, differentiable=False, what=what)
    return wrong and followed(where, wrong)


def _of_curves(f):
    """So that the tangents that arrive at f depend on the inputs, too."""
    return lambda a, b: f(a.sin(), b.exp())


def _tangent(f):
    return lambda *tensors: jvp(f, tensors, tensors[::-1])[1]


def _goes_forward(attempt):
    """What the doctor, who compares derivatives, does not say."""
    where, what = _("in forward mode"), _("the tangent of the output")
    for dtype in (torch.float64, torch.float32):
        tensors = (SAMPLE.to(dtype), 1000 * random(2, 3).to(dtype))
        yield _unlike(attempt.apply, torch.mul, _tangent, tensors, where, what)
    small = SQUARE[:2]
    for outer, inner in ((jacfwd, jacrev), (jacrev, jacfwd)):
        second = [
            outer(inner(loss(_of_curves(f)), (0, 1)), (0, 1))(*small)
            for f in (attempt.apply, torch.mul)
        ]
        if not alike(*second):
            yield _(
                "the tangent is right, but not its own derivative: "
                "`{outer}({inner}(f))` is silently wrong.",
                outer=outer.__name__,
                inner=inner.__name__,
            )


def _saves_in_one_order(attempt):
    """vmap takes the batch of a saved tensor from the last call that saves."""
    for in_dims, batches in (
        ((0, None), (SQUARE, SQUARE[0])),
        ((None, 0), (SQUARE[0], SQUARE)),
    ):
        under, under_right = vmap(attempt.apply, in_dims), vmap(torch.mul, in_dims)
        try:
            given, right, given_alone, right_alone = (
                grad(loss(f), (0, 1))(*batches)
                for f in (under, under_right, attempt.apply, torch.mul)
            )
        except Exception:  # the doctor's to say
            return
        if alike(given_alone, right_alone) and not alike(given, right):
            yield _(
                "through `vmap(f, {in_dims})` the gradient is silently wrong. Look "
                "at: the order in save_for_backward and in save_for_forward.",
                in_dims=in_dims,
            )


RULE = "a_tangent * b + a * b_tangent"
EXERCISE_2 = Exercise(
    number="10.2",
    reference=Multiply,
    stub={
        "        ctx.save_for_forward(*inputs)\n": "",
        """

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent):
        a, b = ctx.saved_tensors
        return a_tangent * b + a * b_tangent""": "",
    },
    wrong=[
        (
            {"save_for_forward(": "save_for_forwards("},
            "Did you mean `save_for_forward`?",
        ),
        (
            {
                "        ctx.save_for_forward(*inputs)": "        ctx.a, ctx.b = inputs",
                "a, b = ctx.saved_tensors\n        return a_": "a, b = ctx.a, ctx.b\n        return a_",
            },
            "for jvp, save_for_forward",
        ),
        ({"a_tangent * b +": "a_tangent.detach() * b +"}, "not its own derivative"),
        (
            {
                "forward(*inputs)": "forward(*inputs[::-1])",
                RULE: "a_tangent * a + b * b_tangent",
            },
            "the order in save_for_backward",
        ),
        (
            {RULE: "torch.from_numpy(a_tangent.numpy() * b.numpy()) + a * b_tangent"},
            "in forward mode it raises RuntimeError: Cannot access data pointer",
        ),
    ],
    like=torch.mul,
    inputs=(Inputs(shapes="..., ..."),),
    order=2,
    kind=[_saves_in_one_order],
    properties=[_goes_forward],
    success="forward mode works, and so does `hessian`, forward mode over your "
    "backward.",
    hints=(
        "How fast does a product change when both factors move?",
        "The product rule: two terms, each with one tangent.",
        "jvp reads ctx.saved_tensors, too, but only what save_for_forward saved.",
    ),
    explanation="The product rule. What jvp reads must be saved for forward as well. "
    "For jvp of jvp, you would have to switch forward mode on and remove the "
    "tangents of a and b: see helpers/ops/linear.py.",
)


class Matmul(Function):
    @staticmethod
    def forward(x, weight):
        return torch.from_numpy(x.numpy() @ weight.numpy().swapaxes(-1, -2))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.mT @ x

    @staticmethod
    def vmap(info, in_dims, x, weight):
        x, weight = (
            tensor.expand(info.batch_size, *tensor.shape)
            if dim is None
            else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, weight), in_dims, strict=True)
        )
        return Matmul.apply(x, weight), 0


def _matmul(x, weight):
    return x @ weight.mT


MATRICES = random(4, 2), random(3, 2, seed=1)


def _batches(tensors, in_dims):
    """What `vmap` with these in_dims is called with."""
    return [
        t if dim is None else torch.stack([t, t.flip(0), t.roll(1, 0)], dim)
        for t, dim in zip(tensors, in_dims, strict=True)
    ]


def _says_where(attempt):
    """Results and gradients that are right, if one looks elsewhere.

    The doctor says the rest.
    """
    for in_dims in everywhere(2):
        where = _("with in_dims={in_dims}", in_dims=in_dims)
        batches = _batches(MATRICES, in_dims)
        try:
            given, right = (
                vmap(f, in_dims)(*batches) for f in (attempt.apply, _matmul)
            )
            slopes = grad(loss(vmap(attempt.apply, in_dims)), (0, 1))(*batches)
        except Exception:
            return
        if given.shape == (3, *right.shape) and alike(given[0], right):
            yield _(
                "{place} the result has the batch twice. Look at: 0 and None, which "
                "are different in in_dims, but both false; and the second value that "
                "the rule returns.",
                place=where,
            )
        moved = any(
            alike(given.movedim(0, dim), right) for dim in range(1, right.dim())
        )
        if moved and not alike(given, right):
            yield _(
                "{place} the numbers are right, but `vmap` finds them in the wrong "
                "place. Look at: the second value that the rule returns, which says "
                "where the batch is in the result.",
                place=where,
            )
        for name, slope in zip(("x", "weight"), slopes, strict=True):
            if alike(given, right) and not slope.any():
                yield _(
                    "{place} the values are right, but the gradient of `{name}` is "
                    "0. Look at: .detach(), .data and torch.no_grad in the rule.",
                    place=where,
                    name=name,
                )


def _has_a_rule(attempt, like, *tensors):
    """Each argument batched alone, and both."""
    floats = tuple(i for i, t in enumerate(tensors) if t.is_floating_point())
    for in_dims in [*everywhere(2), (1, None), (None, 1)]:
        batches = _batches(tensors, in_dims)
        where = _("with in_dims={in_dims}", in_dims=in_dims)
        rule = partial(vmap, in_dims=in_dims)
        yield _unlike(attempt.apply, like, rule, batches, where)
        slopes = [grad(loss(rule(f)), floats)(*batches) for f in (attempt.apply, like)]
        if not alike(*slopes):
            yield _("the values are right, but not grad of vmap, {place}.", place=where)


def _multiplies_batches(attempt):
    """Under one vmap, and one argument batched after the other."""
    yield from _has_a_rule(attempt, _matmul, *MATRICES)
    batches = [random(2, 4, 3), random(6, 5, 3, seed=1)]
    where = _(
        "right for matrices under one vmap; under two, `vmap(vmap(f, (None, 0)), (0, "
        "None))`,"
    )
    twice = lambda f: vmap(vmap(f, (None, 0)), (0, None))  # noqa: E731
    wrong = _unlike(attempt.apply, _matmul, twice, batches, where)
    yield wrong and followed(wrong, _("Look at: the argument that has no batch."))


EXERCISE_3 = Exercise(
    number="10.3",
    reference=Matmul,
    stub=without_rule(Matmul),
    wrong=[
        (
            {"tensor.expand(info.batch_size, *tensor.shape)": "tensor"},
            "under two, `vmap(vmap(f, (None, 0)), (0, None))`",
        ),
        (
            {"Matmul.apply(x, weight), 0": "Matmul.apply(x, weight), in_dims[0]"},
            "the batch twice",
        ),
        (
            {"apply(x, weight), 0": "apply(x.detach(), weight), 0"},
            "the gradient of `x` is 0",
        ),
        (
            {"(Function):": "(Function):\n    generate_vmap_rule = True\n"},
            "which a rule of one's own replaces",
        ),
        (
            {"Matmul.apply(x, weight), 0": "Matmul.apply(x, weight), 1"},
            "in the wrong place",
        ),
    ],
    like=_matmul,
    inputs=(Inputs(shapes="N D, V D"),),
    kind=[_says_where],
    properties=[_multiplies_batches],
    success="wherever the batch comes in, it is in the result where your rule says.",
    hints=(
        "Bring both arguments into one form first. Which form does forward take?",
        "tensor.movedim(dim, 0) moves the batch to the front; expand makes one.",
        "With the batch in front of both, call apply, and say that the batch is "
        "dimension 0.",
    ),
    explanation="Both arguments get the batch as dimension 0, so the result has it "
    "there, too. The rule calls apply, not forward, because there may be a "
    "grad around the vmap.",
)


class Take(Function):
    @staticmethod
    def forward(x, index):
        return torch.from_numpy(np.asarray(x.numpy()[index.numpy()]))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, index = inputs
        ctx.save_for_backward(index)
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        zeros = grad_output.new_zeros(ctx.shape)
        return zeros.index_put((index,), grad_output, accumulate=True), None

    @staticmethod
    def vmap(info, in_dims, x, index):
        x, index = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((x, index), in_dims, strict=True)
        )
        first = torch.arange(len(x)).view(-1, *[1] * (index.dim() - 1)) * x.shape[1]
        return Take.apply(x.flatten(0, 1), index + first), 0


def _take(x, index):
    return x[index]


def _calls_apply(attempt):
    """Under grad, NumPy refuses what a rule gives to forward itself."""
    try:
        grad(loss(vmap(attempt.apply)))(random(2, 5), torch.tensor([[3, 0], [1, 1]]))
    except RuntimeError as error:
        if "numpy" in str(error):
            yield _(
                "under grad, your rule gives NumPy a tensor that requires a gradient. "
                "Look at: what the rule calls, `forward` or `apply`."
            )
    except Exception:
        return


def _takes_from_batches(attempt):
    """Of samples of any number of dimensions; of whole numbers, so that sums are exact."""
    index = torch.tensor([3, 0, 3, 1])
    for x in (random(5, 2), random(5), random(5, 2, 3).mul(9).round().float()):
        place = _("with samples of shape {shape}", shape=tuple(x.shape))
        wrong = next(filter(None, _has_a_rule(attempt, _take, x, index)), None)
        yield wrong and at(place, wrong)


EXERCISE_4 = Exercise(
    number="10.4",
    reference=Take,
    stub=without_rule(Take),
    wrong=[
        ({"index + first": "index"}, "the output is"),
        ({"index + first), 0": "index + first), in_dims[0]"}, "the output has shape"),
        (
            {"dim is None else t.movedim(dim, 0)": "dim is None else t"},
            "with in_dims=(None, -1) it raises",
        ),
        ({"apply(x.flatten": "apply(x.detach().flatten"}, "not grad of vmap"),
        ({"apply(x.flatten": "forward(x.flatten"}, "`forward` or `apply`"),
    ],
    kind=[_calls_apply],
    properties=[_takes_from_batches],
    success="each sample takes its own elements, wherever its batch stands.",
    hints=(
        "Bring both arguments into one form first, with the batch in front.",
        "Lay the samples end to end: sample b begins at b times the length of x.",
    ),
    explanation="One call for the whole batch, on the samples laid end to end. A loop "
    "over the samples with torch.stack is right, too.",
)
