"""Exercises of chapter 05: higher-order gradients."""

import torch
from torch.autograd import Function, grad

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import difference


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


def hvp(f, x, v):
    x = x.detach().requires_grad_()
    (first,) = grad(f(x), x, create_graph=True)
    return grad((first * v).sum(), x)[0]


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


def _sample():
    return torch.tensor([[-1.5, 0.5, 1.0], [0.25, 2.0, -0.75]], dtype=torch.float64)


def _check_sinh(attempt):
    reference = lambda x: (torch.sinh(x), torch.cosh(x))  # noqa: E731
    wrong = difference(attempt.apply, reference, [_sample()], order=2)
    if wrong:
        return wrong
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        outputs = attempt.apply(_sample().requires_grad_())
    pointers = {tensor.data_ptr() for tensor in saved}
    if pointers != {output.data_ptr() for output in outputs}:
        return "it is right, but what it saves is not its two outputs."
    return None


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


def _check_hvp(attempt):
    shapes = set()

    def f(x):
        shapes.add(tuple(x.shape))
        return (_Counted.apply(x.sin()).sum(-1) ** 2).sum()

    for x in (_sample().flatten().requires_grad_(), _sample().requires_grad_(), _sample()):
        v = torch.linspace(-1, 2, 6, dtype=torch.float64).view(x.shape)
        v_before, needed = v.clone(), x.requires_grad
        hessian = torch.autograd.functional.hessian(f, x.detach()).view(6, 6)
        expected = (hessian @ v.flatten()).view(x.shape)
        kind = f"x of shape {tuple(x.shape)}, requires_grad={x.requires_grad}"
        leaf = x.detach().requires_grad_()
        (gradient,) = grad(f(leaf), leaf)
        before = x.detach().clone()
        _Counted.backwards = 0
        shapes.clear()
        try:
            given = attempt(f, x, v)
        except RuntimeError as error:
            asks = "element 0 of tensors does not require grad" in str(error)
            why = " (Which of the two derivatives needs create_graph=True?)" if needed else ""
            return f"for {kind}, it raises: {error}" + (why if asks else "")
        if not isinstance(given, torch.Tensor) or given.shape != x.shape:
            shape = tuple(getattr(given, "shape", ())) if isinstance(given, torch.Tensor) else None
            return f"for {kind}, the result must be a tensor of that shape, got {shape or given!r}."
        if given.dtype != expected.dtype:
            return f"for {kind}, the result must be {expected.dtype}, got {given.dtype}."
        strange = shapes - {tuple(x.shape)}
        if strange:
            return f"for {kind}, f got a tensor of shape {strange.pop()}."
        if torch.allclose(given - expected, gradient):
            return f"for {kind}, it is H·v plus ∇f: the first gradient is still in x.grad."
        if not torch.allclose(given, expected, rtol=1e-12, atol=1e-12):
            if torch.allclose(given, expected, rtol=1e-4, atol=1e-4):
                off = f"off by {(given - expected).abs().max():.0e}"
                return f"for {kind}, it is only nearly H·v, {off}: from differences, or float32?"
            return f"for {kind}, the result is not H·v: {given.flatten()[0]:.4g} comes first, " + (
                f"but {expected.flatten()[0]:.4g} is right."
            )
        if _Counted.backwards > 2:
            return f"the values are right, but f was differentiated {_Counted.backwards} times."
        if not torch.equal(x, before) or x.grad is not None or x.requires_grad != needed:
            return "it leaves a trace in x: its values, its .grad or its requires_grad changed."
        if not torch.equal(v, v_before):
            return "it changes v in place."
    return None


def _check_silu(attempt):
    reference = torch.nn.functional.silu
    at_zero = torch.zeros(2, dtype=torch.float64)
    for inputs, which in [(_sample(), ""), (at_zero, "at x = 0: ")]:
        wrong = difference(attempt.apply, reference, [inputs], order=2)
        if wrong:
            return which + wrong
    return None


EXERCISES = [
    Exercise(
        number="5.1",
        name="Sinh",
        stub="class Sinh(Function): ...",
        reference=Sinh,
        finding=_check_sinh,
        success="both outputs are saved and both are differentiated, so every order is right.",
        hints=(
            "Two outputs: backward gets two gradients, and adds two terms.",
            "ctx.save_for_backward(s, c) with the very tensors that forward returns.",
            "sinh' = cosh and cosh' = sinh.",
        ),
        explanation="In backward the saved outputs come with their history, an edge to this very "
        "node. That is what a second derivative walks along.",
    ),
    Exercise(
        number="5.2",
        name="hvp",
        stub="def hvp(f, x, v): ...",
        reference=hvp,
        finding=_check_hvp,
        success="two backwards, any shape, and nothing left behind in x.",
        hints=(
            "∇f · v is one number. What is its gradient?",
            "grad(f(x), x, create_graph=True), then grad of the product with v.",
            "x.detach().requires_grad_() makes a leaf of your own; (first * v).sum() works in any "
            "dimension.",
        ),
        explanation="H·v is the gradient of ∇f·v, because v does not depend on x. Working on a "
        "leaf of one's own leaves x and its .grad alone.",
    ),
    Exercise(
        number="5.3",
        name="SiLU",
        stub="""class SiLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.sigmoid = torch.sigmoid(x)
        ctx.save_for_backward(x)
        return x * ctx.sigmoid

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.sigmoid * (1 + x * (1 - ctx.sigmoid))""",
        reference=SiLU,
        finding=_check_silu,
        success="what backward computes from a saved input has a history. The price is a second "
        "evaluation; returning the sigmoid as an output would save it.",
        hints=(
            "Which number in backward depends on x, but has no history?",
            "Nothing in forward is recorded. What if the sigmoid is computed in backward?",
        ),
        explanation="x comes out of saved_tensors with its history, so torch.sigmoid(x) in "
        "backward is recorded, and the second derivative sees it.",
    ),
]
