"""Exercises of chapter 05: higher-order gradients."""

import gc
import warnings
import weakref

import torch
from scipy import special
from torch.autograd import Function, functional, grad

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import alike, changed_in_place
from helpers.lessons.judge.properties import keeps_only, random
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import _, at, followed
from helpers.lessons.torch_messages import raised

SAMPLE = random(2, 3)


class Sinh(Function):
    @staticmethod
    def forward(ctx, x):
        s, c = torch.sinh(x), torch.cosh(x)
        ctx.save_for_backward(s, c)
        return s, c

    @staticmethod
    def backward(ctx, grad_sinh, grad_cosh):
        s, c = ctx.saved_tensors
        return grad_sinh * c + grad_cosh * s


EXERCISE_1 = Exercise(
    number="5.1",
    reference=Sinh,
    wrong=[
        ({" + grad_cosh * s": ""}, "`output[1]` depends on `x`"),
        (
            {"grad_sinh * c + grad_cosh * s": "grad_sinh * s + grad_cosh * c"},
            "right if the gradients of output 0 and output 1 change places",
        ),
        ({"return s, c": "return s"}, "a tuple of 2 tensors is asked for"),
    ],
    like=lambda x: (torch.sinh(x), torch.cosh(x)),
    inputs=(Inputs(shapes="...", far=400),),
    order=2,
    properties=[keeps_only("outputs")],
    success="both outputs are saved and both are differentiated, so every order is "
    "right.",
    hints=(
        "Two outputs: backward gets two gradients, and adds two terms.",
        "ctx.save_for_backward(s, c) with the very tensors that forward returns.",
        "sinh' = cosh and cosh' = sinh.",
    ),
    explanation="In backward the saved outputs come with their history, an edge to "
    "this very node. A second derivative follows that edge.",
)


def hvp(f, x, v):
    x = x.detach().requires_grad_()
    (first,) = grad(f(x), x, create_graph=True)
    return grad((first * v).sum(), x)[0]


class _Counted(Function):
    backwards = 0

    @staticmethod
    def forward(ctx, x):
        result = torch.exp(x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        _Counted.backwards += 1
        return grad_output * ctx.saved_tensors[0]


def _multiplies(attempt):
    needs, seen = set(), []
    one = torch.ones((), dtype=torch.float64, requires_grad=True)  # as a parameter in f

    def f(x):
        needs.add(x.requires_grad)
        seen.append(weakref.ref(x))
        return one * (_Counted.apply(x.sin()).sum(-1) ** 2).sum()

    with_grad = SAMPLE.clone().requires_grad_()
    with_grad.grad = torch.ones_like(SAMPLE)
    flat, plain = SAMPLE.flatten().requires_grad_(), SAMPLE.clone()
    for x in (flat, with_grad, plain, SAMPLE[0, 0].clone(), random(2, 1, 4)):
        v = random(*x.shape, seed=1)
        before, v_before = x.detach().clone(), v.clone()
        needed, kept = x.requires_grad, x.grad
        right = functional.hvp(f, x.detach(), v)[1]
        gradient = functional.jacobian(f, x.detach())
        where = _(
            "for x of shape {shape}, requires_grad={needed}",
            shape=tuple(x.shape),
            needed=needed,
        )
        _Counted.backwards = 0
        needs.clear()
        seen.clear()
        try:
            with warnings.catch_warnings():
                # That of create_graph=True is answered below.
                warnings.simplefilter("ignore")
                given = attempt(f, x, v)
        except RuntimeError as error:
            asks = "does not require grad" in str(error)
            why = (
                _("(f got a tensor without requires_grad: make a leaf of your own.)")
                if False in needs
                else _("(Does the first derivative have a history?)")
            )
            wrong = _("it raises: {error}", error=error)
            yield at(where, followed(wrong, why if asks else None))
        if alike(given, right + gradient):
            yield at(
                where, _("it is H·v plus ∇f: the first gradient is still in x.grad.")
            )
        yield at(
            where,
            wrong_outputs(given, right, differentiable=False, what=_("the result")),
        )
        if one.grad is not None:
            yield _(
                "it fills the .grad of a tensor that f uses, as .backward() does for "
                "every leaf."
            )
        if _Counted.backwards > 2:
            yield _(
                "the values are right, but f was differentiated {backwards} times.",
                backwards=_Counted.backwards,
            )
        spoilt = x.grad is not kept or kept is not None and not kept.eq(1).all()
        if spoilt or not torch.equal(x, before) or x.requires_grad != needed:
            yield _(
                "it leaves a trace in x: its values, its .grad or its requires_grad "
                "changed."
            )
        yield changed_in_place(v=(v, v_before))
    gc.collect()
    if any(reference() is not None and reference() is not x for reference in seen):
        yield _(
            "the values are right, but the tensor that f got is not freed, not even "
            "by Python's garbage collector. Does its .grad, or the result, have a "
            "history?"
        )


EXERCISE_2 = Exercise(
    number="5.2",
    reference=hvp,
    wrong=[
        ({"(first * v).sum()": "first @ v"}, "for x of shape (2, 3)"),
        (
            {
                "grad((first * v).sum(), x)[0]": "sum(n * grad(g, x, retain_graph=True)[0] "
                "for g, n in zip(first.flatten(), v.flatten()))"
            },
            "differentiated 7 times",
        ),
        ({".detach()": ""}, "leaves a trace in x"),
        (
            {".sum(), x)": ".sum(), x, create_graph=True)"},
            "or the result, have a history?",
        ),
        (
            {
                "(first,) = grad(f(x), x, create_graph=True)": "f(x).backward(create_graph=True)\n    first, x.grad = "
                "x.grad, None"
            },
            "fills the .grad",
        ),
    ],
    properties=[_multiplies],
    success="two backward passes, any shape, and no trace left in x.",
    hints=(
        "∇f · v is one number. What is its gradient?",
        "grad(f(x), x, create_graph=True), then grad of the product with v.",
        "x.detach().requires_grad_() makes a leaf of your own; (first * v).sum() "
        "works for any number of dimensions.",
    ),
    explanation="H·v is the gradient of ∇f·v, because v does not depend on x. The leaf "
    "is our own, so x and its .grad stay as they were.",
)


class SiLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return grad_output * sigmoid * (1 + x * (1 - sigmoid))


EXERCISE_3 = Exercise(
    number="5.3",
    reference=SiLU,
    stub={
        "        sigmoid = torch.sigmoid(x)\n": "",
        "* sigmoid": "* ctx.sigmoid",
        "- sigmoid": "- ctx.sigmoid",
        "x * torch.sigmoid(x)": "x * ctx.sigmoid",
        "ctx.save_": "ctx.sigmoid = torch.sigmoid(x)\n        ctx.save_",
    },
    wrong=[
        (
            {
                "save_for_backward(x)": "save_for_backward(x, torch.sigmoid(x))",
                "(x,) =": "x, sigmoid =",
                "        sigmoid = torch.sigmoid(x)\n": "",
            },
            "silently wrong",
        ),
        (
            {"ctx.save_": "ctx.sigmoid = torch.sigmoid(x); ctx.save_"},
            "`ctx.sigmoid` is kept outside `save_for_backward`",
        ),
        (
            {"sigmoid = torch.sigmoid(x)": "sigmoid = 1 / (1 + torch.exp(-x))"},
            "at numbers near -720: the gradient is right; its own derivative",
        ),
    ],
    like=torch.nn.functional.silu,
    inputs=(Inputs(shapes="...", far=720),),
    order=2,
    properties=[keeps_only("inputs and outputs")],
    success="the second derivative is right, too: the sigmoid in backward has a "
    "history.",
    hints=(
        "Which tensor in backward depends on x, but has no history?",
        "Nothing in forward is recorded. What if the sigmoid is computed in backward?",
    ),
    explanation="x comes out of saved_tensors with its history, so torch.sigmoid(x) in "
    "backward is recorded, and the second derivative sees it. The price is a "
    "second evaluation.",
)


class Polygamma(Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return torch.from_numpy(special.polygamma(n, x.detach().numpy())).to(x.dtype)

    @staticmethod
    def backward(ctx, h):
        (x,) = ctx.saved_tensors
        return h * Polygamma.apply(x, ctx.n + 1), None


class LogGamma(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(special.gammaln(x.detach().numpy()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * Polygamma.apply(x, 0)


def _third_derivative(attempt):
    def third(function):
        # The cube's own path goes around a node that refuses.
        x = torch.tensor([1.5, 2.5], dtype=torch.float64, requires_grad=True)
        y = function(x) + x**3
        for _order in range(3):
            (y,) = grad(y.sum(), x, create_graph=True)
        return y

    try:
        given = third(attempt.apply)
    except Exception as error:
        yield _("the third derivative raises {error}", error=raised(error))
    if not alike(given, right := third(torch.lgamma)):
        yield _(
            "the third derivative is silently wrong: of LogGamma(x) + x³ at 1.5, it is "
            "{given:.4g}, but {right:.4g} is right. Is the formula of the second "
            "`backward` right, and does its result have a history?",
            given=given[0],
            right=right[0],
        )


TWICE = """class PsiTimes(Function):
    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return g * torch.from_numpy(special.psi(x.detach().numpy()))

    @staticmethod
    def backward(ctx, h):
        g, x = (t.detach() for t in ctx.saved_tensors)
        psi, slope = special.psi(x.numpy()), special.polygamma(1, x.numpy())
        return h * torch.from_numpy(psi), h * g * torch.from_numpy(slope).to(x.dtype)


class LogGamma"""
SLOPE = "Polygamma.apply(x, 0)"
EXERCISE_4 = Exercise(
    number="5.4",
    reference=LogGamma,
    wrong=[
        (
            {SLOPE: "torch.from_numpy(special.psi(x.detach().numpy()))"},
            "silently wrong",
        ),
        (
            {
                "class LogGamma": TWICE,
                f"grad_output * {SLOPE}": "PsiTimes.apply(grad_output, x)",
            },
            "third derivative",
        ),
        ({f"grad_output * {SLOPE}": SLOPE}, "grad_output"),
        ({f"grad_output * {SLOPE}": "None"}, "is None"),
    ],
    like=torch.lgamma,
    inputs=(Inputs(shapes="N D", of=lambda x: 1 + x.abs()),),
    order=2,
    properties=[_third_derivative],
    success="the first three derivatives are right.",
    hints=(
        "What must `backward` call, so that its own derivative is known?",
        "polygamma(n, x) as a Function of its own. Its slope is polygamma(n + 1, x).",
    ),
    explanation="`Polygamma` calls itself in `backward`, so every derivative is right. "
    "torch.lgamma has them, too.",
)
