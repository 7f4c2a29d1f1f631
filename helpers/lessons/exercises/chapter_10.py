"""Exercises of chapter 10: function transforms."""

import torch
from torch.autograd import Function
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from helpers.lessons.exercise import Exercise
from helpers.lessons.function_transforms import TRANSFORMS, everywhere, loss
from helpers.lessons.net import Feed
from helpers.lessons.requirements import random
from helpers.lessons.torch_messages import raised

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
        torch.testing.assert_close(given, right, rtol=1e-10, atol=1e-10)
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
        ("setup_context(ctx, inputs, output)", "setup_context(ctx, x)",
         "`setup_context` must take (ctx, inputs, output)"),
        ("(*inputs)", "(inputs)", "one tensor after the other"),
        ("ctx.save_for_backward(*inputs)", "(x,) = input\n        ctx.save_for_backward(x)",
         "`setup_context` raised TypeError"),
        ("return x / torch.sqrt(1 + x**2)", "return x.div_(torch.sqrt(1 + x**2))",
         "end in an underscore"),
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
        ("** 3", "** 2", "off by another factor at each element"),
        ("grad_output /", "1 /", "does not depend on grad_output"),
        ("def forward(x):\n", "def forward(ctx, x):\n        ctx.save_for_backward(x)\n",
         "    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
         "        ctx.save_for_backward(*inputs)\n\n", "",
         "it must override the setup_context staticmethod"),
    ],
    like=_squash,
    feeds=(Feed(shapes="...", far=1000),),
    order=2,
    properties=[_under(_squash, (SAMPLE,), "grad", "vmap", "vmap(grad)", "jacrev")],
    success="right under `vmap` and `grad`, and so is the second derivative.",
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
    """What the doctor, who compares the slopes, does not say."""
    tensors = (SAMPLE, random(2, 3))
    try:
        slope = jvp(lambda a, b: attempt.apply(a, b), tensors, tensors)
    except Exception as error:
        yield f"forwards it raises {raised(error)}"
    if not _alike(slope, jvp(torch.mul, tensors, tensors)):
        yield "where an input is 0, the tangent of the output is wrong."
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
        ("        ctx.save_for_forward(*inputs)\n", "", "Look at: save_for_forward"),
        ("forward(*inputs)", "forward(inputs)", "save_for_forward was handed something"),
        ("save_for_forward(", "save_for_forwards(", "ctx has no `save_for_forwards`"),
        ("        ctx.save_for_forward(*inputs)", "        ctx.a, ctx.b = inputs",
         "a, b = ctx.saved_tensors\n        return a_", "a, b = ctx.a, ctx.b\n        return a_",
         "for jvp, save_for_forward"),
        (" + a * b_tangent", "", "Where `b` moves, the tangent of the output"),
        ("a_tangent * b + a * b_tangent", "(a + a_tangent) * (b + b_tangent) - a * b",
         "Where all inputs move, the tangent"),
        ("a_tangent * b + a * b_tangent", "a * b * (a_tangent / a + b_tangent / b)",
         "where an input is 0"),
        ("a_tangent * b + a * b_tangent", "a_tangent * a + b * b_tangent",
         "Where `a` moves"),
        ("a_tangent * b + a * b_tangent", "a_tangent * b, a * b_tangent",
         "one for each output"),
        ("a_tangent * b + a * b_tangent", "a_tangent * b - a * b_tangent",
         "gives is negated"),
        ("a_tangent * b + a * b_tangent", "a_tangent + b_tangent", "Where `a` moves"),
        ("def jvp(ctx, a_tangent, b_tangent)", "def jvp(ctx, tangent)",
         "a_tangent * b + a * b_tangent", "tangent * b", "a tangent for each input"),
        ("return a_tangent * b + a * b_tangent", "a_tangent * b + a * b_tangent",
         "Is a `return` missing?"),
        ("a_tangent * b +", "a_tangent * b.detach() +", "differentiated again"),
        ("        a, b = ctx.saved_tensors\n        return a_tangent", "        return a_tangent",
         "name 'b' is not defined"),
        ("a_tangent * b + a * b_tangent",
         "torch.from_numpy(a_tangent.numpy() * b.numpy()) + a * b_tangent",
         "forwards it raises RuntimeError: Cannot access data pointer"),
        ("""

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent):
        a, b = ctx.saved_tensors
        return a_tangent * b + a * b_tangent""", "",
         "forwards it raises NotImplementedError: You must implement the jvp function"),
    ],
    like=torch.mul,
    feeds=(Feed(shapes="..., ..."),),
    order=2,
    properties=[_goes_forward],
    success="it goes forwards, and `hessian` goes forwards over your backward.",
    hints=(
        "How fast does a product change when both factors move?",
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
    """Each argument batched alone, both, and one after the other."""
    if attempt.generate_vmap_rule:
        yield "the rule itself is asked for: a static method `vmap`, and no `generate_vmap_rule`."
    f = attempt.apply
    tensors = [random(4, 2), random(3, 2, seed=1)]
    for in_dims in everywhere(2):
        batches = [
            tensor if dim is None else torch.stack([tensor, 2 * tensor, -tensor], dim)
            for tensor, dim in zip(tensors, in_dims, strict=True)
        ]
        where, rule = f"with in_dims={in_dims}", lambda f, in_dims=in_dims: vmap(f, in_dims)
        yield _unlike(f, rule, batches, where)
        try:
            slopes = [grad(loss(vmap(g, in_dims)), (0, 1))(*batches) for g in (f, _matmul)]
        except Exception as error:
            yield f"the values are right, but with a grad around the vmap, {raised(error)}"
        if not _alike(*slopes):
            yield f"the values are right, but not grad of vmap, {where}."
    batches = [random(2, 4, 3), random(6, 5, 3, seed=1)]
    where = "right under one vmap, but under two, `vmap(vmap(f, (None, 0)), (0, None))`,"
    wrong = _unlike(f, lambda f: vmap(vmap(f, (None, 0)), (0, None)), batches, where)
    yield wrong and f"{wrong} Look at: the argument that has no new dimension."


def _unlike(f, rule, batches, where):
    right = rule(_matmul)(*batches)
    try:
        given = rule(lambda x, w: f(x, w))(*batches)
    except Exception as error:
        return f"{where} it raises {raised(error)}"
    if given.shape != right.shape:
        return (
            f"{where} the result has the shape {tuple(given.shape)} instead of "
            f"{tuple(right.shape)}, without a word."
        )
    return None if _alike(given, right) else f"{where} the numbers are wrong, without a word."


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
         "where the batch is dimension -1 of `x`"),
        ("tensor.expand(info.batch_size, *tensor.shape) if", "tensor if",
         "but under two, `vmap(vmap(f, (None, 0)), (0, None))`"),
        ("Matmul.apply(x, weight), 0", "Matmul.apply(x, weight), in_dims[0]",
         "gives another result than a loop over the batch"),
        ("Matmul.apply(x, weight), 0", "Matmul.apply(x, weight)",
         "to have two returns"),
        ("tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)",
         "tensor.movedim(dim, 0)", "got (NoneType, int)"),
        ("    @staticmethod\n    def forward",
         "    generate_vmap_rule = True\n\n    @staticmethod\n    def forward",
         "which a rule of one's own replaces"),
        ("    @staticmethod\n    def forward",
         "    generate_vmap_rule = True\n\n    @staticmethod\n    def forward",
         "torch.from_numpy(x.numpy() @ weight.numpy().swapaxes(-1, -2))", "x @ weight.mT",
         "def vmap(", "def rule(", "the rule itself is asked for"),
        ("Matmul.apply(x, weight), 0", "Matmul.apply(x, weight), 1",
         "gives another result than a loop over the batch"),
        ("Matmul.apply(x, weight), 0", "x @ weight, 0", "Under vmap, `Matmul` fails"),
        ("def vmap(info, in_dims, x, weight)", "def vmap(in_dims, x, weight)",
         "info.batch_size", "3", "takes 3 positional arguments but 4 were given"),
        ("return Matmul.apply(x, weight), 0",
         "return torch.from_numpy(x.numpy() @ weight.numpy().swapaxes(-1, -2)), 0",
         "what the rule calls: apply"),
    ],
    like=_matmul,
    feeds=(Feed(shapes="N D, V D"),),
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
