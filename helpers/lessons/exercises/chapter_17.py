"""Exercises of chapter 17: fewer bits."""

import torch
from torch.autograd import Function, grad

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.later import silently_wrong
from helpers.lessons.judge.numbers import alike, changed_in_place
from helpers.lessons.judge.properties import each, keeps_only, random
from helpers.lessons.language import N_, _, at, followed


class Product(Function):
    """The chapter's: it multiplies only tensors of one dtype, forward and backward."""

    @staticmethod
    def forward(x, weight):
        return x @ weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight.t(), x.t() @ grad_output


def product(x, weight):
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    return Product.apply(x, weight)


SITUATIONS = {
    N_("outside of autocast"): (torch.bfloat16, False),
    N_("under autocast to bfloat16"): (torch.bfloat16, True),
    N_("under autocast to float16"): (torch.float16, True),
}


def _casts(attempt, dtype, enabled):
    # The weight has 16 bits in further rounds, once those of autocast's dtype.
    for weight_dtype in [torch.float32, *[torch.half, torch.bfloat16] * enabled]:
        x = random(3, 4).float().requires_grad_()
        weight = random(4, 2, seed=1).to(weight_dtype).requires_grad_()
        weighting = random(3, 2, seed=2).float()
        with torch.autocast("cpu", dtype, enabled=enabled):
            y, right = attempt(x, weight), torch.mm(x, weight)
        yield wrong_outputs(y, right, what=_("the result"), numbers=False)
        if "Product" not in str(y.grad_fn):
            yield _("the result is not that of `Product`, with its history.")
        if not alike(y, right, 1e-5):
            yield _(
                "the result is not the product of x and weight in that dtype, to the "
                "last digits."
            )
        expected = grad((right * weighting).sum(), (x, weight))
        given = grad((y * weighting).sum(), (x, weight), allow_unused=True)
        for name, leaf, got, wanted in zip(
            ("x", "weight"), (x, weight), given, expected, strict=True
        ):
            if got is None:
                yield _(
                    "no gradient reaches `{name}`: the cast must be recorded.",
                    name=name,
                )
            if not alike(got, wanted.to(leaf.dtype), 0.02):
                yield _("the gradient of `{name}` is wrong.", name=name)


EXERCISE_1 = Exercise(
    number="17.1",
    reference=product,
    wrong=[
        (
            {"if torch.is_autocast_enabled(x.device.type):": "if False:"},
            "raises RuntimeError",
        ),
        (
            {"if torch.is_autocast_enabled(x.device.type):": "if True:"},
            "outside of autocast: the result is torch.bfloat16, but torch.float32",
        ),
        (
            {"torch.get_autocast_dtype(x.device.type)": "torch.bfloat16"},
            "under autocast to float16: the result is not the product",
        ),
        (
            {"x.to(dtype), weight": "x.detach().to(dtype), weight"},
            "no gradient reaches `x`",
        ),
        ({"Product.apply(x, weight)": "x @ weight"}, "is not that of `Product`"),
    ],
    properties=[each(SITUATIONS, _casts)],
    success="the cast is recorded, so its backward returns each gradient in the "
    "dtype of its leaf.",
    hints=(
        "Cast before `Product.apply`: autograd records what happens outside of a "
        "Function.",
        "torch.is_autocast_enabled and torch.get_autocast_dtype take the type of a "
        "device: x.device.type.",
    ),
    explanation="The Function sees one dtype, forward and backward, and needs to know "
    "nothing of autocast. helpers/ops/linear.py does the same.",
)


def update(scale, streak, finite, interval):
    if not finite:
        return scale / 2, 0
    streak += 1
    if streak == interval:
        return scale * 2, 0
    return scale, streak


def as_gradscaler(history, interval, scale=2.0**10):
    """The scales of `torch.amp.GradScaler` after steps with finite gradients or not."""
    weight = torch.ones(1, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    scales = []
    for finite in history:
        optimiser.zero_grad()
        scaler.scale(weight.sum() * (1.0 if finite else torch.inf)).backward()
        scaler.step(optimiser)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


HISTORIES = {
    N_("when every gradient is finite"): ([True] * 9, 3),
    N_("when no gradient is finite"): ([False] * 12, 3),
    N_("when an overflow comes within the interval"): (
        [True, True, False, True, True, True, True],
        3,
    ),
    N_("when the overflow comes right after the scale grew"): (
        [True] * 3 + [False] + [True] * 3,
        3,
    ),
}


STEPS = {  # by whether the gradient is finite
    True: N_(
        "after step {n}, whose gradient is finite, your scale goes from {before:g} to "
        "{scale:g}; GradScaler's is {right:g}."
    ),
    False: N_(
        "after step {n}, whose gradient is not finite, your scale goes from "
        "{before:g} to {scale:g}; GradScaler's is {right:g}."
    ),
}


def _follows(attempt):
    for where, (history, interval) in HISTORIES.items():
        scale, streak = 2.0**10, 0
        steps = zip(history, as_gradscaler(history, interval), strict=True)
        for n, (finite, right) in enumerate(steps, 1):
            given = attempt(scale, streak, finite, interval)
            if not (isinstance(given, tuple) and len(given) == 2):
                yield _(
                    "it must return the pair (scale, streak), got a {kind}.",
                    kind=type(given).__name__,
                )
            before, (scale, streak) = scale, given
            if scale != right:
                yield at(
                    _(where),
                    _(STEPS[finite], n=n, before=before, scale=scale, right=right),
                )
            elif scale != before and streak:
                yield at(
                    _(where),
                    _(
                        "the scale has changed after step {n}, so the streak is 0. Yours "
                        "is {streak}.",
                        n=n,
                        streak=streak,
                    ),
                )


EXERCISE_2 = Exercise(
    number="17.2",
    reference=update,
    wrong=[
        (
            {
                "streak == interval": "streak % interval == 0",
                "2, 0\n    r": "2, streak\n    r",
            },
            "so the streak is 0. Yours is 3",
        ),
        (
            {"return scale / 2, 0": "return scale / 2, streak"},
            "an overflow comes within",
        ),
        (
            {"scale / 2, 0": "scale, 0"},
            "your scale goes from 1024 to 1024; GradScaler's is 512",
        ),
        (
            {"return scale, streak": "return scale"},
            "the pair (scale, streak), got a float",
        ),
    ],
    properties=[_follows],
    success="the scale climbs until a gradient overflows, falls back by half, and "
    "climbs again.",
    hints=(
        "There are three cases: an overflow, the last step of an interval, and any "
        "other step.",
        "The steps in a row begin again at 0 in two of the three cases.",
    ),
    explanation="One overflow costs one skipped step and starts the count again. The "
    "scale stays within a factor of 2 or so of the largest that does not "
    "overflow.",
)


def round_randomly(x, step):
    return torch.floor(x / step + torch.rand_like(x)) * step


def _rounds(attempt):
    step, draws = 0.25, 4000
    torch.manual_seed(0)
    for value in (0.3, 0.45, 1.0, -0.3, 0.02, -0.2):
        x = torch.full((2, draws // 2), value)
        given = attempt(x, step)
        yield wrong_outputs(given, x, what=_("the result"), numbers=False)
        yield changed_in_place(x=(x, torch.full_like(x, value)))
        below = value // step * step
        fed = {"value": value, "step": step}
        for number in given.unique().tolist():
            if number not in (below, below + step):
                yield _(
                    "of {value} with step = {step} it makes {given:g}, which is not a "
                    "multiple of the step next to it.",
                    given=number,
                    **fed,
                )
        if value != below and len(given.unique()) == 1:
            yield _(
                "with step = {step}, each element of a tensor of {value} becomes "
                "{given:g}.",
                given=given[0, 0].item(),
                **fed,
            )
        rows = given[1], given[0], attempt(x, step)[0]
        if value != below and any(map(torch.equal, rows, rows[1:])):
            yield _(
                "two rows, or two calls, are rounded in the same way. Draw a number for "
                "each element, at each call."
            )
        mean = given.mean().item()
        # Five standard deviations at most.
        if abs(mean - value) > 5 * step / 2 / draws**0.5:
            yield _(
                "of {value} with step = {step} it makes {mean:.3f} on average over "
                "{draws:,} draws; {value} is right.",
                mean=mean,
                draws=draws,
                **fed,
            )


EXERCISE_3 = Exercise(
    number="17.3",
    reference=round_randomly,
    wrong=[
        (
            {"torch.floor(x / step + torch.rand_like(x))": "torch.round(x / step)"},
            "each element",
        ),
        ({"torch.floor(": "torch.round("}, "on average"),
        ({") * step": ")"}, "not a multiple of the step next to it"),
        ({"rand_like(x)": "rand(x.shape[-1])"}, "are rounded in the same way"),
    ],
    properties=[_rounds],
    success="each result is off, but on average nothing is lost.",
    hints=(
        "How far is x above the multiple of step below it, as a share of step? With "
        "that probability, round up.",
        "A uniform random number u of [0, 1) is below p with probability p. What does "
        "floor(p + u) do?",
    ),
    explanation="floor(x / step + u) is the lower neighbour, or the upper one if the "
    "fraction and u together reach 1, which has the probability of the "
    "fraction.",
)


class MeanSquare(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().square().mean()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return (grad_output * x.float() * (2 / x.numel())).half()


def _survives(attempt):
    """Numbers and loss scales at both ends of the range."""
    for size, largest in ((4096, 6e4), (64, 1e-3), (6, 1e-3)):
        wide = largest * random(2, size // 2).float().clamp(-1, 1)
        x = wide.half().requires_grad_()
        right = x.detach().float()
        where = _("at numbers up to {far:g}", far=largest)
        y = attempt.apply(x)
        what = _("the result")
        yield at(where, wrong_outputs(y, right.square().mean(), False, what))
        given = None
        for scale in (1.0, 2.0**16, 2.0**24):
            before = given
            (given,) = grad(attempt.apply(x), x, torch.tensor(scale))
            if before is not None and alike(before, given):
                yield _(
                    "the gradient is the same with any loss scale: multiply by "
                    "`grad_output`."
                )
            due = (scale * (right * (2 / size))).half()
            if due.isinf().any() and given.isfinite().all():
                yield _(
                    "with a loss scale of {scale:g} the gradient overflows float16. "
                    "Yours is finite, so GradScaler takes a wrong step.",
                    scale=scale,
                )
            where = _("with a loss scale of {scale:g}", scale=scale)
            wrong = wrong_outputs(given, due, False, _("the gradient"))
            if (
                wrong
                and given.shape == due.shape
                and (given.isinf() > due.isinf()).any()
            ):
                wrong = followed(
                    wrong,
                    _("Is something rounded to float16 before the last step?"),
                )
            yield at(where, wrong)


def _is_seen_by_autograd(attempt):
    def like(x):
        return x.float().square().mean()

    yield silently_wrong(attempt.apply, like, [random(8).half()], order=1)


EXERCISE_4 = Exercise(
    number="17.4",
    reference=MeanSquare,
    wrong=[
        ({"x.float() * (2": "x * (2"}, "rounded to float16 before the last step"),
        (
            {").half()": ").clamp(-65504, 65504).half()"},
            "GradScaler takes a wrong step",
        ),
        ({"grad_output * ": ""}, "the same with any loss scale"),
        ({"backward(x)": "backward(x.float())"}, "one is a copy"),
        ({"x.float() * (2": "x.detach().float() * (2"}, "silently"),
    ],
    properties=[
        _survives,
        keeps_only("inputs", random(100, 200).half()),
        _is_seen_by_autograd,
    ],
    success="computed in float32, rounded once, linear in grad_output, and infinite "
    "where it must be.",
    hints=(
        "Which product on the way leaves the range of float16?",
        "Compute in float32, in both passes, and round once at the end.",
    ),
    explanation="grad_output arrives in float32, because the result is float32. So the "
    "only rounding is the last one, and an overflow there is an inf that GradScaler "
    "finds.",
)
