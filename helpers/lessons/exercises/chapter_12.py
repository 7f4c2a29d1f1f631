"""Exercises of chapter 12: memory for time."""

from functools import partial

import torch
from torch.autograd import Function, grad

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import alike, changed_in_place, copies, near_miss
from helpers.lessons.judge.properties import (
    bytes_hidden,
    each,
    no_tensor_on_ctx,
    random,
)
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import N_, _, at
from helpers.lessons.memory import Alive, Kept


class Dropout(Function):
    @staticmethod
    def thinned(x, p, seed):
        generator = torch.Generator().manual_seed(seed)
        kept = torch.rand(x.shape, generator=generator) >= p
        return torch.where(kept, x / (1 - p), 0)

    @staticmethod
    def forward(ctx, x, p):
        ctx.p, ctx.seed = p, int(torch.randint(2**40, ()))
        return Dropout.thinned(x, p, ctx.seed)

    @staticmethod
    def backward(ctx, grad_output):
        return Dropout.thinned(grad_output, ctx.p, ctx.seed), None


WIDE = random(100, 400)

# Rates, shapes, layouts, dtypes; the first is large enough to count what is dropped.
FED = {
    "": (WIDE, 0.25),
    N_("for a transposed input of shape (301, 51)"): (random(51, 301, seed=1).t(), 0.6),
    N_("for one dimension, with p = 0.1"): (random(4000, seed=2), 0.1),
    N_("in bfloat16"): (random(60, 70, seed=3).bfloat16(), 0.5),
    N_("with p = 0"): (random(30, 40, seed=4), 0.0),
}


def _drops_independently(attempt):
    x, p = FED[""]
    masks = {tuple((attempt.apply(x[0, :200], p) == 0).tolist()) for _ in range(200)}
    if len(masks) < 200:
        yield _(
            "200 calls drop only {count} different sets of elements.", count=len(masks)
        )
    if len(set(map(sum, masks))) == 1:
        yield _(
            "each call drops as many elements as the others: they are not drawn "
            "independently."
        )


def _drops(attempt, x, p):
    torch.manual_seed(0)
    (leaf,) = copies([x])  # which lies in memory as x does
    y = attempt.apply(leaf, p)
    yield wrong_outputs(y, leaf, numbers=False)
    yield changed_in_place(x=(leaf, x))
    dropped = y == 0
    strange = ~dropped & ~torch.isclose(y, x / (1 - p), rtol=1e-10)
    if strange.any():
        factor = (y / x)[strange][0].item()
        yield _(
            "an element of the result is {factor:.9g} times that of x; 0 or 1/(1 - "
            "p) is right.",
            factor=factor,
        )
    share = dropped.double().mean().item()
    for dim in range(x.dim() if 0 < share < 1 and x.dim() > 1 else 0):
        if torch.equal(dropped, dropped.narrow(dim, 0, 1).expand(y.shape)):
            yield _(
                "what is dropped is the same all along dimension {dim}: not "
                "independently.",
                dim=dim,
            )
    if abs(share - p) > 3 * (p / y.numel()) ** 0.5:
        yield _("with p = {p}, the share of zeros is {share:.2f}.", p=p, share=share)
    torch.manual_seed(0)
    if not torch.equal(attempt.apply(x, p), y):
        yield _("two calls, each after torch.manual_seed(0), drop different elements.")
    if torch.initial_seed() != 0:
        yield _("forward reseeds the program's generator.")
    attempt.apply(WIDE + 1, 0.7)  # the program goes on
    torch.rand(3)
    state = torch.get_rng_state()
    weight = random(*x.shape, seed=1).to(x.dtype)
    for where in ("", _("in a second backward through the same graph")):
        handed = weight.clone()
        (given,) = grad(y, leaf, handed, retain_graph=True)
        yield changed_in_place(grad_output=(handed, weight))
        if not torch.equal(given == 0, dropped):
            yield at(where, _("backward drops other elements than forward does."))
        right = torch.where(dropped, 0.0, weight / (1 - p))
        if not alike(given, right):
            factor = (given / weight)[~dropped][0].item()
            yield _(
                "where nothing was dropped, the gradient is {factor:.4g} times "
                "grad_output; the factor of forward is right.",
                factor=factor,
            )
    if not torch.equal(torch.get_rng_state(), state):
        yield _("backward changes the random state of the program: later draws differ.")
    handed, second = weight.clone().requires_grad_(), None
    (given,) = grad(attempt.apply(leaf, p), leaf, handed, create_graph=True)
    if given.requires_grad:
        try:
            (second,) = grad(given.sum(), handed)
        except RuntimeError:  # it is refused
            return
    if second is None or not alike(second, (given / handed).detach(), 1e-2):
        yield _(
            "the gradient is right, but its own derivative with respect to grad_output "
            "is silently wrong."
        )


def _knows_what_it_dropped(attempt):
    leaf = WIDE.relu().requires_grad_()
    (given,) = grad(attempt.apply(leaf, 0.25).sum(), leaf)
    if (given == 0)[leaf == 0].double().mean() > 0.5:
        yield _(
            "where `x` is 0, as after a ReLU, the gradient is 0 for what was kept, "
            "too: the output does not show what was dropped."
        )


def _keeps_a_bit(attempt):
    # Large beside what Python and a generator take.
    x = random(400, 1000).requires_grad_()
    with Kept() as kept:
        attempt.apply(x, 0.25)
    bits = 8 * kept.total / x.numel()
    if bits > 1.5:
        yield _(
            "it is right, but it saves {bits:.0f} bits for each element, where 1 is enough.",
            bits=bits,
        )
    hidden = bytes_hidden(attempt.apply, x, 0.25)
    if 8 * hidden > 4 * x.numel():  # bits that NumPy packed are counted twice
        yield _(
            "it is right, but {hidden:,} bytes stay alive for backward, in tensors, "
            "arrays, lists or functions that the hooks do not see.",
            hidden=hidden,
        )


FORWARD = """ctx.p, ctx.seed = p, int(torch.randint(2**40, ()))
        return Dropout.thinned(x, p, ctx.seed)"""
BACKWARD = "Dropout.thinned(grad_output, ctx.p, ctx.seed)"
EXERCISE_1 = Exercise(
    number="12.1",
    reference=Dropout,
    wrong=[
        (
            {
                FORWARD: "mask = torch.rand(x.shape) >= p; "
                "ctx.save_for_backward(mask); ctx.p = p\n        return x * "
                "mask / (1 - p)",
                BACKWARD: "grad_output * ctx.saved_tensors[0] / (1 - ctx.p)",
            },
            "it saves 8 bits for each element",
        ),
        (
            {
                FORWARD: "y = x * (torch.rand(x.shape) >= p) / (1 - p); "
                "ctx.save_for_backward(y); ctx.p = p\n        return y",
                BACKWARD: "grad_output * (ctx.saved_tensors[0] != 0) / (1 - ctx.p)",
            },
            "as after a ReLU",
        ),
        (
            {
                FORWARD: "ctx.mask = torch.rand(x.shape) >= p; ctx.p = p\n"
                "        return x * ctx.mask / (1 - p)",
                BACKWARD: "grad_output * ctx.mask / (1 - ctx.p)",
            },
            "`ctx.mask` holds a tensor outside",
        ),
        (
            {
                "torch.rand(x.shape, generator=generator) >= p": "torch.randperm(x.numel(), "
                "generator=generator).view(x.shape) >= p * x.numel()"
            },
            "not drawn independently",
        ),
        ({"thinned(grad_output,": "thinned(grad_output.detach(),"}, "silently wrong"),
    ],
    properties=[
        each(FED, _drops),
        _drops_independently,
        _knows_what_it_dropped,
        no_tensor_on_ctx(WIDE, 0.25),
        _keeps_a_bit,
    ],
    success="forward and backward draw the same elements, and next to nothing is "
    "kept for it.",
    hints=(
        "What can make the same mask again?",
        "A separate torch.Generator, seeded with the same number, draws the same "
        "numbers.",
        "Draw the seed from the program's generator, so that torch.manual_seed "
        "repeats it.",
    ),
    explanation="The seed, one number, stands for the whole mask, and a separate "
    "generator leaves the program's generator alone. Packing eight elements "
    "of a mask into a byte is right, too.",
)


class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x, weight, size):
        result = torch.full_like(x[:, 0], -torch.inf)
        for part in weight.split(size):
            result = torch.logaddexp(result, torch.logsumexp(x @ part.t(), 1))
        ctx.save_for_backward(x, weight, result)
        ctx.size = size
        return result

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, result = ctx.saved_tensors
        to_x, to_weight = torch.zeros_like(x), []
        for part in weight.split(ctx.size):
            slope = grad_output[:, None] * torch.exp(x @ part.t() - result[:, None])
            to_x = to_x + slope @ part
            to_weight.append(slope.t() @ x)
        return to_x, torch.cat(to_weight), None


def _in_parts(attempt, size):
    rows, classes = 100, 2017
    x, weight = (random(n, 2, seed=n).requires_grad_() for n in (rows, classes))
    whole = rows * classes * x.element_size()
    with Alive() as alive:
        result = attempt.apply(x, weight, size)
        forward = alive.peak
        grad(result.sum(), (x, weight))
    asked = _(
        "with {rows} rows, {classes} classes and size = {size}",
        rows=rows,
        classes=classes,
        size=size,
    )
    for when, held in (("forward", forward), ("backward", alive.peak)):
        if held > whole / 4:
            yield _(
                "it is right, but {asked}, {when} holds {bytes_there:,} bytes at a "
                "time; all logits are {whole:,}.",
                asked=asked,
                when=when,
                bytes_there=held,
                whole=whole,
            )
    for shape, operation in sorted(alive.results, reverse=True):
        if classes in shape and shape not in (weight.shape, weight.t().shape):
            yield _(
                "it is right, but it has {classes} columns at a time: cut weight, "
                "not x.",
                classes=classes,
            )
        widest = max([n for n in shape if n != rows] or [rows])
        # A number for each part.
        one_each = widest == -(-classes // size) and operation != "mm"
        if rows in shape and len(shape) > 1 and widest > size and not one_each:
            yield _(
                "it is right, but with size = {size}, a tensor of {made} logits is "
                "made.",
                size=size,
                made=" × ".join(map(str, shape)),
            )


STEEP = torch.tensor([-14.0, 0.0, 14.0])[:, None] + random(3, 5)
EXERCISE_2 = Exercise(
    number="12.2",
    reference=LogSumExp,
    wrong=[
        ({"split(size)": "chunk(size)"}, "tensor of 100 × 68 logits is made"),
        ({"split(ctx.size)": "split(len(weight))"}, "backward holds"),
        ({"split(size)": "split(25)"}, "with size = 7, a tensor of 100 × 25 logits"),
        (
            {"torch.logsumexp(x @ part.t(), 1)": "(x @ part.t()).exp().sum(1).log()"},
            "`forward`",
        ),
        (
            {
                "torch.logaddexp(result, torch.logsumexp(x @ part.t(), 1))": "torch.cat("
                "[torch.logsumexp(r @ weight.t(), 1) for r in x.split(9)])"
            },
            "cut weight, not x",
        ),
    ],
    like=lambda x, weight, size: torch.logsumexp(x @ weight.t(), 1),
    inputs=(
        Inputs(
            shapes="N D, V D",
            constants=(5, 2, 1, 3, 100),
            names="size",
            far=30,
            numbers={
                "with logits near -1000": (random(4, 5) + 14, random(3, 5) - 14),
                "with logits from -1000 to 1000": (random(4, 5) + 14, STEEP),
            },
            without={"empty": "without rows, or classes, there is nothing to add up"},
        ),
    ),
    properties=[each({"": 30, N_("in smaller parts"): 7}, _in_parts)],
    success="no part of the logits lives longer than its turn, forward or backward.",
    hints=(
        "The logsumexp of two parts follows from the logsumexp of each.",
        "torch.logaddexp combines two of them without overflow.",
        "In backward, exp(logits - result) is the softmax, part by part.",
    ),
    explanation="Backward recomputes the logits of each part. The saved result, one "
    "number per row, turns them into probabilities.",
)


def inverse(s, f, g, y1, y2):
    x2 = y2 - g(y1)
    x1 = (y1 - f(x2)) * torch.exp(-s(x2))
    return x1, x2


def _inverts(attempt):
    x1, x2 = random(4, 3), random(4, 3, seed=1)
    scale, shift = 4 * x2, torch.sin(2 * x2)
    y1 = x1 * torch.exp(scale) + shift
    y2 = x2 + torch.cos(y1)
    functions = {"s": lambda x: 4 * x, "f": lambda x: torch.sin(2 * x), "g": torch.cos}
    calls = {name: [] for name in functions}  # (argument, result, a copy of it)

    def noted(name, x):
        given = functions[name](x)
        calls[name].append((x.clone(), given, given.clone()))
        return given

    given1, given2 = y1.clone(), y2.clone()
    result = attempt(*(partial(noted, name) for name in functions), given1, given2)
    result = tuple(result) if isinstance(result, list) else result
    yield wrong_outputs(result, (y1, y2), numbers=False)
    for name, those in calls.items():
        if len(those) != 1:
            yield _(
                "`{name}` must be called once; it was called {count} times.",
                name=name,
                count=len(those),
            )
    if not alike(calls["g"][0][0], y1):
        yield _(
            "`g` was called with another argument than in forward. What did it get "
            "there?"
        )
    if alike(result, (x2, x1)):
        yield _("x1 and x2 are exchanged.")
    yield near_miss(
        result[1],
        x2,
        {_("x2 is wrong. What undoes an addition?"): y2 + torch.cos(y1)},
        _(
            "x2 is wrong, although `g` got what it got in forward. What was added to "
            "x2?"
        ),
    )
    for name in "sf":
        if not alike(calls[name][0][0], x2):
            yield _(
                "x2 is right, but `{name}` was called with another argument than in "
                "forward.",
                name=name,
            )
    unscaled = [(y1 - shift) * factor for factor in (1, scale.exp(), 1 / scale, scale)]
    one_term = y1 - shift * torch.exp(-scale)
    misses = {
        _("x2 is right. In x1 the shift is undone, the scale is not."): unscaled,
        _(
            "x2 is right. In x1 the scale is undone for one term only: look at the "
            "brackets."
        ): one_term,
    }
    yield near_miss(result[0], x1, misses, _("x2 is right, x1 is not."))
    yield changed_in_place(y1=(given1, y1), y2=(given2, y2))
    yield changed_in_place(
        **{f"{name}(x)": those[0][1:] for name, those in calls.items()}
    )


EXERCISE_3 = Exercise(
    number="12.3",
    reference=inverse,
    wrong=[
        ({"return x1, x2": "return x2, x1"}, "x1 and x2 are exchanged"),
        (
            {"return x1, x2": "return torch.stack([x1, x2])"},
            "it returns a Tensor, but a tuple of 2 tensors is asked for",
        ),
        (
            {"    x1 =": "    x2 = y2 - g(y1)\n    x1 ="},
            "`g` must be called once; it was called 2",
        ),
        ({"torch.exp(-s(x2))": "s(x2).neg_().exp()"}, "it changes `s(x)` in place"),
        ({"(y1 - f(x2))": "(y1 - f(y2))"}, "`f` was called with another argument"),
    ],
    properties=[_inverts],
    success="what was done last is undone first, and s, f and g need no inverse.",
    hints=(
        "y2 was made last, from x2 and y1. Both y are here.",
        "With x2, s(x2) and f(x2) are known, too.",
        "Take the shift away before the scale.",
    ),
    explanation="Neither s nor f nor g is inverted: each is called with what it got in "
    "forward, and then its effect is taken away.",
)
