"""Exercises of chapter 14: across processes."""

from functools import partial

import torch
import torch.distributed as dist
from torch.autograd import Function, grad

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import alike, changed_in_place, near_miss
from helpers.lessons.judge.properties import each, each_of, random
from helpers.lessons.judge.variations_of_processes import aloud, in_each
from helpers.lessons.language import N_, _, followed
from helpers.ops import collectives


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def summed(x):
    result = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result)
    return result


class AllGather(Function):
    @staticmethod
    def forward(ctx, x):
        return gathered(x)

    @staticmethod
    def backward(ctx, grad_output):
        return summed(grad_output).chunk(dist.get_world_size())[dist.get_rank()]


def _arriving(size, rows, columns, silent):
    """grad_output on each rank, 0 on `silent`, which does not use the result."""
    return [
        random(rows, columns, seed=10 + rank) * (rank != silent) for rank in range(size)
    ]


def _there_and_back(apply, rows, columns, arriving):
    x = random(rows, columns, seed=dist.get_rank()).requires_grad_()
    output = apply(x)
    apply(random(1, 1))  # another call, before backward
    v = arriving[dist.get_rank()]
    if dist.get_rank():  # in memory, each process has other strides than the first
        v = v.mT.contiguous().mT
    before = v.clone()
    (gradient,) = grad(output, x, v, allow_unused=True, materialize_grads=True)
    return output.detach(), gradient, changed_in_place(grad_output=(v, before))


def _gathers(attempt, size, rows, columns, silent):
    v = _arriving(size, size * rows, columns, silent)
    call = _there_and_back, attempt.apply, rows, columns, v
    answers, wrong = in_each(size, *call, first=size == 3)
    yield wrong
    whole = torch.cat([random(rows, columns, seed=rank) for rank in range(size)])
    total = sum(v).chunk(size)
    for rank, (output, _gradient, wrong) in enumerate(answers):
        if not alike(output, whole):
            yield _(
                "on rank {rank}, `forward` does not return all rows; leave it "
                "unchanged.",
                rank=rank,
            )
        yield wrong
    for rank in reversed(range(size)):
        misses = {
            _(
                "on rank {rank}, the gradient comes from this process's own loss "
                "only. The other processes used its rows, too."
            ): v[rank].chunk(size)[rank],
            _("on rank {rank}, the gradient is {size} times too small."): total[rank]
            / size,
        }
        yield near_miss(
            answers[rank][1],
            total[rank],
            misses,
            _(
                "on rank {rank}, the gradient is not that of the sum of the losses. "
                "Every process has its own `grad_output`, for all rows."
            ),
            rank=rank,
            size=size,
        )


# Processes, rows, columns, the rank that does not use the result.
TEAMS = (3, 2, 4, None), (5, 4, 1, None), (5, 1, 3, 1)


EXERCISE_1 = Exercise(
    number="14.1",
    reference=AllGather,
    stub={
        """
        return summed(grad_output).chunk(dist.get_world_size())[dist.get_rank()]""": " ...",
    },
    wrong=[
        (
            {"return summed(grad_output).chunk": "return grad_output.chunk"},
            "The other processes used its rows, too",
        ),
        (
            {".chunk(dist.get_world_size())[dist.get_rank()]": ""},
            "returned an invalid gradient",
        ),
        (
            {"summed(grad_output)": "(summed(grad_output) / dist.get_world_size())"},
            "3 times too small",
        ),
        (
            {
                "summed(grad_output)": "(summed(grad_output) if grad_output.any() else grad_output)"
            },
            "the processes wait for each other",
        ),
    ],
    properties=[each_of(TEAMS, _gathers, N_("with {size} processes of {rows} rows"))],
    success="each process adds the gradients that all of them have for its rows: a "
    "reduce-scatter. For second derivatives, `backward` must call a "
    "Function, too, as `Collective` does.",
    hints=(
        "`forward` copies the rows of each process to all. What is the transpose of "
        "copying?",
        "Each process has gradients for all rows. Which of them are about the rows "
        "of this one?",
        "Sum the gradients over the processes, and take the part of this rank.",
    ),
    explanation="The transpose of copying is adding, and the transpose of joining is "
    "cutting. In a ring, an all-reduce, of which each process keeps one "
    "part, sends twice what a reduce-scatter sends; "
    "collectives.reduce_scatter is the transpose of collectives.all_gather.",
)


def mean_of_all(x):
    total = collectives.all_reduce(x.sum(0), loss="summed")
    count = collectives.all_reduce(
        x.new_tensor(len(x), dtype=torch.float64), loss="summed"
    )
    return total / count


def _rows_of(rank, size):
    """One more on each rank; of five processes, the second has none."""
    return random(
        (rank + 1) * (size < 5 or rank != 1), size - 1, seed=rank
    ).requires_grad_()


def _mean_and_slope(answer):
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        short = answer(random(7, 2).float())  # another call, which must not count
    x = _rows_of(rank, size)
    kept, before = x * 1, x.detach().clone()
    mean = answer(kept)
    if not torch.is_tensor(mean) or not mean.requires_grad:
        return mean, None, None
    wrong = changed_in_place(x=(kept, before))
    if short.dtype != torch.float32:
        wrong = _(
            "where `x` is torch.float32, the result is {dtype}.", dtype=short.dtype
        )
    if wrong:
        return mean, wrong, None
    loss = (rank + 1) * ((x - mean) ** 3).sum()
    (slope,) = grad(loss, x, create_graph=True)
    try:
        (second,) = grad(slope.square().sum(), x)
    except RuntimeError as error:
        if "once_differentiable" not in str(error):
            raise
        second = None  # refused, which is not wrong
    return mean.detach(), slope.detach(), second


def _is_the_mean(attempt, size):
    answers, wrong = in_each(size, _mean_and_slope, attempt, first=size == 3)
    yield wrong
    inputs = [_rows_of(rank, size) for rank in range(size)]
    mean = torch.cat(inputs).mean(0)
    means = torch.stack([x.mean(0) for x in inputs]).detach()
    right = mean.detach()
    results, slopes, of_slopes = zip(*answers, strict=True)
    for given in results:
        yield wrong_outputs(given, right, what=_("the result"), numbers=False)
    if all(map(alike, results, means)):
        yield _("on each process, the result is the mean of this process's rows only.")
    misses = {
        _(
            "the result is the mean of the means: where rows are few, they count more."
        ): means.mean(0)
    }
    template = _(
        "on rank {rank}, the result is not the mean over all rows. Does each process "
        "count the rows of all?"
    )
    for rank, given in enumerate(results):
        yield near_miss(given, right, misses, template, rank=rank)
    yield from (slope for slope in slopes if isinstance(slope, str))
    if any(slope is None for slope in slopes):
        yield _(
            "the mean is right, but it has no history: no gradient passes through it."
        )
    losses = [(rank + 1) * ((x - mean) ** 3).sum() for rank, x in enumerate(inputs)]
    expected = grad(sum(losses), inputs, create_graph=True)
    seconds = grad(sum(x.square().sum() for x in expected), inputs, retain_graph=True)
    for rank, (x, slope) in enumerate(zip(inputs, slopes, strict=True)):
        (own,) = grad(losses[rank], x, retain_graph=True)
        misses = {
            _(
                "the mean is right. But on rank {rank} the gradient comes from the "
                "loss of this process only, and the others subtract the mean, too. "
                "Does each sum go through `collectives.all_reduce`, and with which "
                "`loss`?"
            ): own
        }
        template = _(
            "the mean is right, but on rank {rank} the gradient of the summed losses "
            "is not."
        )
        yield near_miss(slope, expected[rank].detach(), misses, template, rank=rank)
    for rank, second in enumerate(of_slopes):
        if second is not None and not alike(second, seconds[rank]):
            yield _(
                "mean and gradient are right. But on rank {rank} the second "
                "derivative is silently wrong: autograd does not see what `backward` "
                "sends. Does each sum go through `collectives.all_reduce`?",
                rank=rank,
            )


EXERCISE_2 = Exercise(
    number="14.2",
    reference=mean_of_all,
    wrong=[
        (
            {"return total / count": "return x.mean(0)"},
            "the mean of this process's rows only",
        ),
        ({"x.sum(0)": "x.float().sum(0)"}, "the result is torch.float32"),
        (
            {
                "collectives.all_reduce(x.sum(0)": "collectives.all_reduce(x.detach().sum(0)"
            },
            "it has no history",
        ),
        (
            {
                "def mean_of_all": "class SumAgain(Function):\n    @staticmethod\n    def "
                "forward(ctx, x):\n        return summed(x)\n\n    "
                "@staticmethod\n    def backward(ctx, g):\n        return "
                "summed(g)\n\n\ndef mean_of_all",
                'collectives.all_reduce(x.sum(0), loss="summed")': "SumAgain.apply(x.sum(0))",
            },
            "the second derivative is silently wrong",
        ),
    ],
    properties=[
        each(
            {
                N_("with 3 processes"): 3,
                N_("with 5 processes, one of them without rows"): 5,
            },
            _is_the_mean,
        )
    ],
    success="each row counts once, and the gradient includes the losses of the other "
    "processes.",
    hints=(
        "A mean is a sum divided by a count. What is the count?",
        "Two all-reduces: of the sums, and of the numbers of rows.",
        "Each process computes its own loss from the mean: which `loss` is that? The "
        "count may be a floating-point tensor, too.",
    ),
    explanation="The count has no gradient; the sum has one. It is counted in float64, "
    "because bfloat16 has no 387. Each process has its own loss, so the sum "
    "is n tensors, not one, and its backward is an all-reduce. "
    "torch.nn.SyncBatchNorm does the same for a mean and a variance.",
)


def wrong_rank(function, x):
    generator = torch.Generator().manual_seed(dist.get_rank())
    for rank in range(dist.get_world_size()):
        u = torch.randn(x.shape, dtype=x.dtype, generator=generator)
        u = u * (dist.get_rank() == rank)
        output = function(u.requires_grad_())
        v = torch.randn(output.shape, dtype=x.dtype, generator=generator)
        (back,) = grad(output, u, v)
        gap = ((v * output).sum() - (back * u).sum()).detach()
        dist.all_reduce(gap)
        if gap.abs() > 1e-9:
            return rank
    return None


class _Spoilt(Function):
    @staticmethod
    def forward(ctx, x, there, back, how):
        ctx.back, ctx.how = back, how
        return there(x)

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.how(ctx.back, grad_output), None, None, None


def _times(factor, back, grad_output):
    return factor * back(grad_output)


def _turned(back, grad_output):
    *others, a, b = back(grad_output).flatten()  # zeros for one element, or for u = v
    return torch.stack([*others, a + b, b - a]).view(2, 2)


def _own_times_n(back, grad_output):
    right, n = back(grad_output), dist.get_world_size()
    own = (
        grad_output
        if right.shape == grad_output.shape
        else grad_output.chunk(n)[dist.get_rank()]
    )
    return n * own


RIGHT, TWICE = partial(_times, 1), partial(_times, 2)
CASES = (
    (3, 1, TWICE, N_("Its gradient is twice what is right.")),
    (
        3,
        0,
        TWICE,
        N_(
            "Its gradient is twice what is right. Is rank 0 left out, or taken for "
            "false?"
        ),
    ),
    (
        3,
        0,
        _turned,
        N_(
            "Two elements of its gradient are mixed up, and x is 0. Are all elements "
            "of `u`, and of `v`, drawn at random, each for itself?"
        ),
    ),
    (
        3,
        2,
        _own_times_n,
        N_(
            "Its gradient is n times its own `grad_output`. Where all draw the same "
            "`v`, that is the sum."
        ),
    ),
    (3, 1, partial(_times, 0.999), N_("Its gradient is off by a thousandth.")),
    (5, 4, TWICE, N_("There are 5 processes here.")),
    (3, None, RIGHT, ""),
)


def _asked(answer, where, how):
    """What this process says of three collectives, wrong on rank `where`."""
    torch.manual_seed(0)  # the same on each, as in fresh processes
    x = random(2, 2, seed=dist.get_rank()) * (how is not _turned)
    found = []
    parts = partial(AllGather.backward, None)
    for there, back in (
        (summed, summed),
        (gathered, parts),
        (torch.clone, torch.clone),
    ):
        spoil = how if dist.get_rank() == where else RIGHT

        def collective(u, there=there, back=back, how=spoil):
            if u.dtype != x.dtype:
                raise TypeError(f"function was given {u.dtype}, but x is {x.dtype}")
            return _Spoilt.apply(u, there, back, how)

        with aloud(there is summed):
            found.append(answer(collective, x))
    return found


def _finds(attempt):
    for i, (size, where, how, why) in enumerate(CASES):
        answers, wrong = in_each(size, _asked, attempt, where, how, first=i == 0)
        yield wrong
        for given in zip(*answers, strict=True):
            if len(set(map(str, given))) > 1:
                yield _(
                    "the processes answer differently: {names}. Each computes a "
                    "part; compare the sums.",
                    names=", ".join(map(str, given)),
                )
            answer = given[0]
            if answer != where:
                if where is not None and type(answer) is int and 0 <= answer < size:
                    why = _(
                        "The backward of rank {given} is right, up to rounding. Are "
                        "both products summed over the processes?",
                        given=answer,
                    )
                template = _("where rank {rank} is wrong, it answers {answer}.")
                if where is None:
                    template = _("where all are right, it answers {answer}.")
                yield followed(template.format(rank=where, answer=answer), _(why))


EXERCISE_3 = Exercise(
    number="14.3",
    reference=wrong_rank,
    wrong=[
        (
            {" * (dist.get_rank() == rank)": " * 1"},
            "where rank 1 is wrong, it answers 0",
        ),
        (
            {"torch.randn(x.shape, dtype=x.dtype, generator=generator)": "x.detach()"},
            "and x is 0. Are all elements of `u`",
        ),
        ({"return None": "return rank"}, "where all are right, it answers 2"),
        (
            {"    return None": "    while True: pass"},
            "gives no answer after computing for",
        ),
    ],
    properties=[_finds],
    success="with u on one process only, the products differ if its backward is wrong.",
    hints=(
        "The adjoint test tells you that something is wrong. Which part of it can "
        "you set to zero?",
        "Let u be zero on all processes except one. Whose backward affects <Aᵀ v, u> "
        "then?",
        "Run one test per rank: sum both products over the processes, and compare "
        "the sums.",
    ),
    explanation="<Aᵀ v, u> is a sum over processes of products with u. If u is zero on "
    "all except one, the sum depends on the backward of that one alone, "
    "whatever the others return.",
)


def from_rank_0(x):
    result = x.clone(memory_format=torch.contiguous_format)
    dist.broadcast(result, 0)
    return result


class Broadcast(Function):
    @staticmethod
    def forward(ctx, x):
        return from_rank_0(x)

    @staticmethod
    def backward(ctx, grad_output):
        total = summed(grad_output)
        return total if dist.get_rank() == 0 else torch.zeros_like(total)


def _broadcasts(attempt, size, silent):
    v = _arriving(size, 2, 3, silent)
    call = _there_and_back, attempt.apply, 2, 3, v
    answers, wrong = in_each(size, *call, first=size == 3)
    yield wrong
    for rank, (output, gradient, wrong) in enumerate(answers):
        if not alike(output, random(2, 3)):
            yield _("on rank {rank}, it is not the tensor of rank 0.", rank=rank)
        yield wrong
        misses = {
            _(
                "on rank {rank}, the gradient comes from this process's own loss "
                "only. Every process used the tensor of rank 0."
            ): v[rank],
            _(
                "on rank {rank}, the gradient is that of rank 0. But nobody used the "
                "tensor of this process."
            ): sum(v),
            _("on rank {rank}, the gradient is {size} times too small."): sum(v) / size,
        }
        yield near_miss(
            gradient,
            sum(v) * (rank == 0),
            {} if rank == silent else misses,
            _("on rank {rank}, the gradient is not that of the sum of the losses."),
            rank=rank,
            size=size,
        )


EXERCISE_4 = Exercise(
    number="14.4",
    reference=Broadcast,
    stub={
        """
        total = summed(grad_output)
        return total if dist.get_rank() == 0 else torch.zeros_like(total)""": " ...",
    },
    wrong=[
        ({"summed(grad_output)": "grad_output"}, "from this process's own loss only"),
        (
            {" if dist.get_rank() == 0 else torch.zeros_like(total)": ""},
            "on rank 1, the gradient is that of rank 0",
        ),
        (
            {"summed(grad_output)": "summed(grad_output) / dist.get_world_size()"},
            "3 times too small",
        ),
    ],
    properties=[
        each(
            {N_("with 3 processes"): (3, None), N_("with 5 processes"): (5, 1)},
            _broadcasts,
        )
    ],
    success="one arrow from rank 0 to each process, and all of them turned around.",
    hints=(
        "Draw the arrows of a broadcast, and turn them around.",
        "Where does the gradient of the tensor of rank 0 come together, and what is "
        "the gradient of the tensors that nobody used?",
    ),
    explanation="The transpose of copying from rank 0 is adding on rank 0. What the "
    "others passed was not used, so its gradient is 0.",
)
