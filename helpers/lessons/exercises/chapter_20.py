"""Exercises of chapter 20: attention without its matrix."""

import torch
import torch.nn.functional as F
from torch.autograd import Function, grad
from torch.autograd.function import once_differentiable

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import alike, changed_in_place, copies, near_miss
from helpers.lessons.judge.properties import each, keeps_only, random
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import N_, _, followed
from helpers.lessons.memory import Alive


def merge(one, other):
    (m1, z1, o1), (m2, z2, o2) = one, other
    m = torch.maximum(m1, m2)
    c1, c2 = torch.exp(m1 - m), torch.exp(m2 - m)
    return m, c1 * z1 + c2 * z2, c1 * o1 + c2 * o2


def _piece(scores, value):
    m = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - m)
    return m, weights.sum(-1, keepdim=True), weights @ value


SIGNS = torch.tensor([[1], [-1], [1], [-1], [1]])
SCORES = {
    "": random(5, 8),
    N_("with scores near 1000"): random(5, 8) + 1000,
    N_("where the second piece has the larger scores"): random(5, 8) + torch.arange(8),
    N_("where the first piece has the larger scores"): random(5, 8) - torch.arange(8),
    N_("where only some rows have their largest score in the first piece"): (
        300 * (random(5, 8) + SIGNS * torch.arange(8))
    ),
}


def _merges(attempt, scores):
    value = random(8, 3, seed=1)
    pieces = [_piece(scores[:, s], value[s]) for s in (slice(3), slice(3, 8))]
    # Without a graph, or PyTorch refuses a change in place before it is seen here.
    given = [tuple(x.clone() for x in piece) for piece in pieces]
    result = attempt(*given)
    result = tuple(result) if isinstance(result, list) else result
    right_m, right_z, right_o = right = _piece(scores, value)
    yield wrong_outputs(result, right, differentiable=False, numbers=False)
    for piece, before in zip(given, pieces, strict=True):
        pairs = zip(piece, before, strict=True)
        names = "m of a piece", "z of a piece", "o of a piece"
        yield changed_in_place(**dict(zip(names, pairs, strict=True)))
    m, z, o = result
    if not alike(m, right_m):
        yield _("`m` is not the largest score of both pieces.")
    (m1, z1, o1), (m2, z2, o2) = pieces
    if not z.isfinite().all():
        yield _(
            "`z` is not finite: exp of a score overflows. Subtract the new maximum first."
        )
    yield near_miss(
        z,
        right_z,
        {
            _("`z` adds sums that were made beside different maxima."): z1 + z2,
        },
        _("`z` is wrong: both sums must be made with the new maximum."),
    )
    yield near_miss(
        o,
        right_o,
        {
            _(
                "`z` is right, but `o` adds sums that were made beside different "
                "maxima."
            ): o1 + o2,
            _(
                "`o` is divided by `z` already. Divide once, after the last piece."
            ): right_o / right_z,
        },
        _("`z` is right, but `o` is wrong: it is a sum of the same kind."),
    )


EXERCISE_1 = Exercise(
    number="20.1",
    reference=merge,
    wrong=[
        ({"c1 * z1 + c2 * z2, c1 * o1 + c2 * o2": "z1 + z2, o1 + o2"}, "`z` adds sums"),
        ({"c1 * o1 + c2 * o2": "o1 + o2"}, "`o` adds sums"),
        (
            {"c1 * o1 + c2 * o2": "(c1 * o1 + c2 * o2) / (c1 * z1 + c2 * z2)"},
            "divided by `z`",
        ),
        ({"    m = torch": "    z1 *= 2\n    m = torch"}, "changes `z of a piece`"),
    ],
    properties=[each(SCORES, _merges)],
    success="both sums are made again with the common maximum, so any number of "
    "pieces can follow one another.",
    hints=(
        "Both sums of a piece hold a factor exp(-m). Which factor should they hold?",
        "exp(m1 - m) turns exp(-m1) into exp(-m).",
        "The new m is the larger of the two, row by row. Both z and o are rescaled.",
    ),
    explanation="The sums of a piece are too large or too small by exp(m1 - m), the "
    "same factor for z and for o. It is at most 1, so nothing overflows.",
)


def attention_backward(grad_output, q, k, v, hidden, out, lse):
    scale = q.shape[-1] ** -0.5
    scores = (q @ k.mT * scale).masked_fill(hidden, -torch.inf)
    P = torch.exp(scores - lse)
    dP = grad_output @ v.mT
    dS = P * (dP - (grad_output * out).sum(-1, keepdim=True))
    return scale * dS @ k, scale * dS.mT @ q, P.mT @ grad_output


def _scores(q, k, hidden):
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)


def _out_and_lse(q, k, v, hidden):
    scores = _scores(q, k, hidden)
    lse = scores.logsumexp(-1, keepdim=True)
    return torch.exp(scores - lse) @ v, lse


def _with_its_forward(backward_of):
    """The Function whose backward pass an attempt computes."""

    class Attention(Function):
        @staticmethod
        def forward(ctx, q, k, v, hidden):
            out, lse = _out_and_lse(q, k, v, hidden)
            ctx.save_for_backward(q, k, v, hidden, out, lse)
            return out

        @staticmethod
        @once_differentiable
        def backward(ctx, grad_output):
            return *backward_of(grad_output, *ctx.saved_tensors), None

    return Attention.apply


def nothing_hidden(q, k, v):
    return torch.zeros(len(q), len(k), dtype=torch.bool)


def later_hidden(q, k, v):
    return torch.ones(len(q), len(k), dtype=torch.bool).triu(1)


def _one_block():
    """The arguments of `attention_backward` for a causal block."""
    q, k, v, grad_output = (random(5, 4, seed=seed) for seed in range(4))
    forward = q, k, v, later_hidden(q, k, v)
    return grad_output, *forward, *_out_and_lse(*forward)


def _three_without_a_usual_slip(attempt):
    block = _one_block()
    try:
        found = tuple(attempt(*copies(block)))
    except Exception:
        return  # which is said later
    if len(found) != 3:
        yield _(
            "it returns {count} results, but there are three gradients: of `q`, `k` "
            "and `v`.",
            count=len(found),
        )
    grad_output, q, k, v, hidden, out, lse = block
    seen = torch.exp(q @ k.mT / 2 - lse)
    misses = {
        _(
            "`hidden` is not used: a weight that is hidden is 0, in the backward pass, "
            "too."
        ): seen.mT @ grad_output,
        _(
            "`hidden` comes too late: what is hidden still counts in the sum of its "
            "row. The mask belongs in the scores, before the exponential."
        ): (q @ k.mT / 2).softmax(-1).masked_fill(hidden, 0).mT @ grad_output,
    }
    right = attention_backward(*block)
    yield near_miss(found[2], right[2], misses)
    without = (seen.masked_fill(hidden, 0) * (grad_output @ v.mT)) @ k / 2
    misses = {
        _(
            "the gradient of `q` lacks `D`: the sum of a row's weights is 1, whatever "
            "the scores are, and each row of dS corrects for that."
        ): without,
    }
    yield near_miss(found[0], right[0], misses)


def _uses_lse(attempt):
    block = _one_block()
    *others, lse = copies(block)
    if alike(attempt(*others, lse + 1)[2], attention_backward(*block)[2]):
        yield _(
            "the gradients are right, but `lse` is not used: a softmax needs the whole "
            "row again. `lse` turns each score back into its weight alone."
        )


def _numbers(tensor):
    return ", ".join(f"{number:.4g}" for number in tensor.flatten().tolist())


def _holds_far_scores(attempt):
    q, k, v, grad_output = (
        torch.tensor(column, dtype=torch.float64)[:, None]
        for column in ([1e3, -1e5, 1e3], [0, 1], [1, 2], [1, 2, 3])
    )
    hidden = torch.tensor([[False, True], [True, False], [False, False]])
    far = grad_output, q, k, v, hidden, *_out_and_lse(q, k, v, hidden)
    for name, given, right in zip(
        "qkv", attempt(*copies(far)), attention_backward(*far), strict=True
    ):
        if not alike(given, right):
            yield _(
                "where scores are 1,000 apart, or a row's are all below -10,000, the "
                "gradient of `{name}` is {given}, where {right} is right. Take `lse` off "
                "before the exponential, and hide with -inf.",
                name=name,
                given=_numbers(given),
                right=_numbers(right),
            )


EXERCISE_2 = Exercise(
    number="20.2",
    reference=attention_backward,
    called=_with_its_forward,
    wrong=[
        ({" - (grad_output * out).sum(-1, keepdim=True)": ""}, "lacks `D`"),
        ({".masked_fill(hidden, -torch.inf)": ""}, "`hidden` is not used"),
        ({"torch.exp(scores - lse)": "scores.softmax(-1)"}, "`lse` is not used"),
        ({"P.mT @ grad_output": "P.mT @ grad_output, None"}, "it returns 4 results"),
        ({"-torch.inf": "-100.0"}, "all below -10,000"),
    ],
    like=lambda q, k, v, hidden: _scores(q, k, hidden).softmax(-1) @ v,
    inputs=(
        Inputs(
            shapes="L E, S E, S E",
            constants=(nothing_hidden, later_hidden),
            far=3,
            without={"empty": "without queries, there is nothing to attend"},
        ),
    ),
    kind=[_three_without_a_usual_slip],
    properties=[_uses_lse, _holds_far_scores],
    success="three gradients from one number a row, and one more. No softmax was "
    "needed.",
    hints=(
        "exp(scores - lse) is P. The mask belongs in these scores, too.",
        "dV = Pᵀ dO and dP = dO Vᵀ. Then dS = P ∘ (dP - D), with one number D a row.",
        "D = rowsum(dO ∘ O). S = scale · Q Kᵀ, so both dQ and dK hold the factor "
        "scale.",
    ),
    explanation="P comes back from the scores and lse. rowsum(P ∘ dP) is rowsum(dO ∘ "
    "O), so the correction of the softmax needs no matrix, either.",
)


class Anew(Function):
    @staticmethod
    def forward(ctx, fn, *tensors):
        ctx.fn = fn
        ctx.save_for_backward(*tensors)
        return fn(*tensors)

    @staticmethod
    def backward(ctx, *grad_outputs):
        tensors = ctx.saved_tensors

        def pull_back(*arguments):
            inputs, cotangents = arguments[: len(tensors)], arguments[len(tensors) :]
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                leaves = [
                    x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
                    for x in inputs
                ]
                return grad(
                    ctx.fn(*leaves),
                    leaves,
                    cotangents,
                    create_graph=again,
                    materialize_grads=True,
                )

        return None, *Anew.apply(pull_back, *tensors, *grad_outputs)


class LogSoftmax(Function):
    @staticmethod
    def forward(ctx, x, temperature):
        ctx.save_for_backward(x)
        ctx.temperature = temperature
        return F.log_softmax(x / temperature, -1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors

        def slope(x, g):
            P = torch.softmax(x / ctx.temperature, -1)
            return (g - P * g.sum(-1, keepdim=True)) / ctx.temperature

        return Anew.apply(slope, x, grad_output), None


def _keeps_nothing_twice(attempt):
    x, g = random(50, 40).requires_grad_(), random(50, 40, seed=1).requires_grad_()
    y = attempt.apply(x, 0.5)
    with Alive() as alive:
        (first,) = grad(y, x, g, create_graph=True)
    more = alive.now - first.nbytes
    if more > x.nbytes / 2:
        wrong = _(
            "it is right, but a backward pass with create_graph=True keeps {more:,} "
            "bytes besides `x` and grad_output, which have {each:,} each.",
            more=more,
            each=x.nbytes,
        )
        yield followed(
            wrong,
            _("An operation that is recorded keeps what it needs, such as a softmax."),
        )


def _holds_far_numbers(attempt):
    x = torch.tensor([[0.0, 2000.0], [-2000.0, 0.0]], dtype=torch.float64)
    x.requires_grad_()
    given, right = attempt.apply(x, 1.0), F.log_softmax(x, -1)
    if not alike(given.detach(), right.detach()):
        yield _(
            "for elements that are 2,000 apart the output is {given:.4g}, where "
            "{right:.4g} is right: the exponential of one overflows, or is 0.",
            given=given[0, 0].item(),
            right=right[0, 0].item(),
        )
    (given,), (right,) = (grad(y[:, 0].sum(), x) for y in (given, right))
    if not alike(given, right):
        yield _(
            "for elements that are 2,000 apart the gradient is {given}, where {right} "
            "is right: the exponential of one overflows.",
            given=_numbers(given),
            right=_numbers(right),
        )


EXERCISE_3 = Exercise(
    number="20.3",
    reference=LogSoftmax,
    wrong=[
        (
            {"Anew.apply(slope, x, grad_output), None": "slope(x, grad_output), None"},
            "such as a softmax",
        ),
        (
            {
                "F.log_softmax(x / temperature, -1)": "(x / temperature).softmax(-1).log()"
            },
            "2,000 apart the output is -inf",
        ),
        ({" * g.sum(-1, keepdim=True)": " * g"}, "The gradient of `x`"),
        (
            {
                "Anew.apply(slope, x, grad_output), None": "Anew.apply(lambda g: slope(x, g), grad_output), None"
            },
            "is silently wrong",
        ),
    ],
    like=lambda x, temperature: F.log_softmax(x / temperature, -1),
    inputs=(Inputs(shapes="N C D", constants=(0.5, 3.0), names="temperature"),),
    order=2,
    properties=[
        keeps_only("inputs", 0.5),
        _keeps_nothing_twice,
        _holds_far_numbers,
    ],
    success="each order keeps its inputs and computes the rest again.",
    hints=(
        "y = x/T - logsumexp(x/T). The gradient needs the softmax, which x gives "
        "again.",
        "Write the gradient as a function of x and grad_output.",
        "Apply `Anew` to that function, with x and grad_output as its tensors.",
    ),
    explanation="`Anew` runs the gradient's formula without a graph, and keeps x and "
    "grad_output. A derivative of it is `Anew` again.",
)
