"""Exercises of chapter 10: function transforms."""

import torch
from torch.autograd import Function
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from helpers.lessons.checking import Exercise
from helpers.lessons.complaints import raised
from helpers.lessons.properties import random
from helpers.lessons.transforms import TRANSFORMS, everywhere, loss

SAMPLE = torch.tensor([[-2.0, 0.5, 1.0], [0.0, 3.0, -1.5]], dtype=torch.float64)


def _under(like, tensors, *names):
    """Under these transforms the attempt does what `like` does."""

    def sentences(attempt):
        for name in names:
            try:
                given = TRANSFORMS[name](lambda *tensors: attempt.apply(*tensors))(*tensors)
                same = _alike(given, TRANSFORMS[name](like)(*tensors))
            except Exception as error:
                yield f"under `{name}` it raises {raised(error)}"
            else:
                yield None if same else f"under `{name}` it is wrong, without a word."

    return sentences


def _alike(given, right):
    try:
        torch.testing.assert_close(given, right)
    except AssertionError:
        return False
    return True


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


def _squash(x):
    return x / torch.sqrt(1 + x**2)


EXERCISE_1 = Exercise(
    number="10.1",
    name="Squash",
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
        ("    generate_vmap_rule = True\n\n", "", "it does not have vmap support"),
        ("def forward(x)", "def forward(ctx, x)", "`forward` must take (x)"),
        ("        ctx.save_for_backward(*inputs)",
         "        (x,) = inputs\n        ctx.save_for_backward(torch.sqrt(1 + x**2))",
         "(x,) = ctx.saved_tensors", "(root,) = ctx.saved_tensors",
         "torch.sqrt(1 + x**2) ** 3", "root**3", "its own derivative"),
        ("return x / torch.sqrt(1 + x**2)",
         "root = torch.sqrt(1 + x**2)\n        return x / root, root",
         "(*inputs)", "(output[1])", "(x,) =", "(root,) =", "torch.sqrt(1 + x**2) ** 3", "root**3",
         "def backward(ctx, grad_output)", "def backward(ctx, grad_output, grad_root)",
         "it returns a tuple, but a tensor is asked for"),
        ("ctx.save_for_backward(*inputs)", "(ctx.x,) = inputs", "(x,) = ctx.saved_tensors",
         "x = ctx.x", "`ctx.x` holds an input"),
        ("** 3", "** 2", "The gradient of `x`"),
        ("grad_output /", "1 /", "does not depend on grad_output"),
        ("def forward(x):\n", "def forward(ctx, x):\n        ctx.save_for_backward(x)\n",
         "    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
         "        ctx.save_for_backward(*inputs)\n\n", "",
         "it must override the setup_context staticmethod"),
    ],
    like=_squash,
    samples={"": [SAMPLE]},
    order=2,
    properties=[_under(_squash, (SAMPLE,), "grad", "vmap", "vmap(grad)", "jacrev")],
    success="one forward for a whole batch, and derivatives of every order.",
    hints=(
        "In setup_context there are only inputs and outputs. Which of them do you need?",
        "The root can be computed again in backward, from x.",
        "vmap needs one more line, which the chapter's Split has.",
    ),
    explanation="The intermediate is computed again, so that it has a history. With the output "
    "saved instead, 1 - y² is 1 / (1 + x²): no root at all, but no digits left where y is nearly "
    "1.",
)  # fmt: skip


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


def _goes_forward(attempt):
    tensors = (SAMPLE, random(2, 3))
    for name, place in (("a", 0), ("b", 1)):
        tangents = [torch.zeros_like(tensor) for tensor in tensors]
        tangents[place] = random(2, 3, seed=1)
        try:
            slope = jvp(lambda a, b: attempt.apply(a, b), tensors, tuple(tangents))[1]
        except Exception as error:
            if "INTERNAL ASSERT" in str(error):
                yield "`jvp` must return a tensor. Is a `return` missing?"
            yield f"forwards it raises {raised(error)}" + (
                " What jvp finds there is what save_for_forward saved."
                if "not enough values to unpack" in str(error)
                else ""
            )
        else:
            if not _alike(slope, jvp(torch.mul, tensors, tuple(tangents))[1]):
                yield f"The slope along `{name}` is wrong: the other tangent is 0 there."
    small = [tensor[0] for tensor in tensors]
    for outer, inner in ((jacfwd, jacrev), (jacrev, jacfwd)):
        second = [outer(inner(loss(f), (0, 1)), (0, 1))(*small) for f in (attempt.apply, torch.mul)]
        if not _alike(*second):
            yield (
                "the slopes are right, but not when they are differentiated again: "
                f"`{outer.__name__}({inner.__name__}(f))` is wrong."
            )


EXERCISE_2 = Exercise(
    number="10.2",
    name="Multiply",
    reference=Multiply,
    stub=("        ctx.save_for_forward(*inputs)\n", "", """

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent):
        a, b = ctx.saved_tensors
        return a_tangent * b + a * b_tangent""", ""),
    wrong=[
        ("        ctx.save_for_forward(*inputs)\n", "", "save_for_forward"),
        (" + a * b_tangent", "", "The slope along `b` is wrong"),
        ("a_tangent * b + a * b_tangent", "a_tangent * a + b * b_tangent",
         "The slope along `a` is wrong"),
        ("a_tangent * b + a * b_tangent", "a_tangent * b, a * b_tangent",
         "expected 1 but got 2"),
        ("a_tangent * b + a * b_tangent", "a_tangent * b - a * b_tangent",
         "The slope along `b` is wrong"),
        ("a_tangent * b + a * b_tangent", "a_tangent + b_tangent", "along `a` is wrong"),
        ("def jvp(ctx, a_tangent, b_tangent)", "def jvp(ctx, tangent)",
         "a_tangent * b + a * b_tangent", "tangent * b", "takes 2 positional arguments but 3"),
        ("return a_tangent * b + a * b_tangent", "a_tangent * b + a * b_tangent",
         "Is a `return` missing?"),
        ("a_tangent * b +", "a_tangent * b.detach() +", "differentiated again"),
        ("        a, b = ctx.saved_tensors\n        return a_tangent", "        return a_tangent",
         "name 'b' is not defined"),
        ("a_tangent * b + a * b_tangent",
         "torch.from_numpy(a_tangent.numpy() * b.numpy()) + a * b_tangent",
         "Cannot access data pointer"),
        ("""

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent):
        a, b = ctx.saved_tensors
        return a_tangent * b + a * b_tangent""", "", "You must implement the jvp function"),
    ],
    like=torch.mul,
    samples={"": [SAMPLE, random(2, 3)]},
    order=2,
    properties=[_goes_forward],
    success="it goes forwards, and `hessian` goes forwards over your backward.",
    hints=(
        "What happens to a product when both factors move a little?",
        "The product rule: two terms, each with one tangent.",
        "jvp reads ctx.saved_tensors, too, but only what save_for_forward saved.",
    ),
    explanation="The product rule. What jvp reads must be saved for forward as well. For jvp of "
    "jvp, forward mode would have to be switched on, and the tangents taken off a and b: see "
    "helpers/ops/linear.py.",
)  # fmt: skip


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
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, weight), in_dims, strict=True)
        )
        return Matmul.apply(x, weight), 0


def _matmul(x, weight):
    return x @ weight.mT


def _has_a_rule(attempt):
    f = attempt.apply
    if attempt.generate_vmap_rule:
        yield "`generate_vmap_rule` is on, but NumPy cannot look through a batch."
    for sizes in ((3, 3), (3, 3)), ((4, 2), (3, 2)):
        tensors = [random(*size, seed=seed) for seed, size in enumerate(sizes)]
        for in_dims in everywhere(2):
            batches = [
                tensor if dim is None else torch.stack([tensor, 2 * tensor, -tensor], dim)
                for tensor, dim in zip(tensors, in_dims, strict=True)
            ]
            right = vmap(_matmul, in_dims)(*batches)
            try:
                given = vmap(lambda x, w: f(x, w), in_dims)(*batches)
            except Exception as error:
                yield f"with in_dims={in_dims} it raises {raised(error)}"
            if given.shape != right.shape:
                yield (
                    f"with in_dims={in_dims} the result has the shape {tuple(given.shape)} instead "
                    f"of {tuple(right.shape)}, without a word."
                )
            if not _alike(given, right):
                yield f"with in_dims={in_dims} the numbers are wrong, without a word."
            try:
                slopes = [grad(loss(vmap(g, in_dims)), (0, 1))(*batches) for g in (f, _matmul)]
            except Exception as error:
                yield f"the values are right, but with a grad around the vmap, {raised(error)}"
            if not _alike(*slopes):
                yield f"the values are right, but not grad of vmap, with in_dims={in_dims}."


EXERCISE_3 = Exercise(
    number="10.3",
    name="Matmul",
    reference=Matmul,
    stub=("""

    @staticmethod
    def vmap(info, in_dims, x, weight):
        x, weight = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, weight), in_dims, strict=True)
        )
        return Matmul.apply(x, weight), 0""", ""),
    wrong=[
        ("if dim is None else tensor.movedim(dim, 0)", "if dim is None else tensor",
         "with in_dims=(None, -1) the numbers are wrong"),
        ("Matmul.apply(x, weight), 0", "Matmul.apply(x, weight), in_dims[0]",
         "the result has the shape (3, 3, 3, 3)"),
        ("Matmul.apply(x, weight), 0", "Matmul.apply(x, weight)",
         "to have two returns"),
        ("tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)",
         "tensor.movedim(dim, 0)", "got (NoneType, int)"),
        ("    @staticmethod\n    def forward",
         "    generate_vmap_rule = True\n\n    @staticmethod\n    def forward",
         "NumPy cannot look through a batch"),
        ("Matmul.apply(x, weight), 0", "Matmul.apply(x, weight), 1",
         "in_dims=(None, 0) the numbers are wrong"),
        ("Matmul.apply(x, weight), 0", "x @ weight, 0", "the numbers are wrong"),
        ("def vmap(info, in_dims, x, weight)", "def vmap(in_dims, x, weight)",
         "info.batch_size", "3", "takes 3 positional arguments but 4 were given"),
        ("return Matmul.apply(x, weight), 0",
         "return torch.from_numpy(x.numpy() @ weight.numpy().swapaxes(-1, -2)), 0",
         "with a grad around the vmap"),
    ],
    like=_matmul,
    samples={"": [random(3, 2), random(4, 2, seed=1)]},
    properties=[_has_a_rule],
    success="wherever the new dimension comes in, it goes out where you say.",
    hints=(
        "Bring both arguments into one form first. Which form does forward take?",
        "tensor.movedim(dim, 0) puts the new dimension in front; expand makes one.",
        "With the dimension in front of both, call apply, and say that it is in front.",
    ),
    explanation="Both arguments get the dimension in front, so the result has it in front. apply, "
    "and not forward: there may be a grad around the vmap.",
)  # fmt: skip
