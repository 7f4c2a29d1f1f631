"""`predicted(prediction, outcome)`: a learner's prediction beside what came out."""

import math

from helpers.lessons.language import N_, _

# What a wrong prediction has for it, and why it is wrong all the same: by the `tempting`
# of a cell, then by the prediction. It stands here because the cell is read before.
TEMPTING = {
    "5 call": {
        "second": N_(
            "The second call leaves no history behind, but its own argument has one: it "
            "comes from the first call."
        ),
    },
    "5 term": {
        "none": N_("`gradcheck` passes, but it compares first derivatives only."),
        "both": N_("The factor sinh x is the output, which comes with its history."),
        "2 cosh²": N_(
            "The factor sinh x is the output, which comes with its history. What comes "
            "without one are the two exponentials."
        ),
    },
    "5 once": {
        "an error": N_(
            "The error waits in a node that leads nowhere. `grad` follows only edges "
            "that lead to `x`."
        ),
        "right": N_("`once_differentiable` runs `backward` without recording."),
    },
    "5 penalty": {
        "w1 and w2": N_(
            "The layer after the activation is reached through `grad_output`, and that "
            "edge is there."
        ),
        "penalty": N_("The penalty itself needs first derivatives only."),
    },
    "13 sign": {
        1: N_("That is what the formula says, in numbers with enough digits."),
        3000: N_(
            "The value is meant to be that of the step; `x` is added and subtracted."
        ),
    },
    "13 clamp": {
        3: N_(
            "Three weights lie in the range. But `clamp` does not see the weights: it sees "
            "the rounded numbers."
        ),
    },
    "13 export": {
        (1, 1): N_(
            "Both have the slope 1 in eager mode. An exported program holds operations, "
            "and a `backward` of your own is none."
        ),
    },
    "13 start": {
        0: N_("The loop has to take one step to see that nothing moves."),
        53: N_(
            "So many steps lead from 0 to the solution. Here the loop starts there."
        ),
    },
    "13 several": {
        "converges": N_(
            "The forward pass starts at the solution. The backward pass does not: each of "
            "its steps multiplies the error by 3."
        ),
    },
    "13 shift": {
        "neither": N_(
            "That is true of the gradient of the expectation. A single estimate is the "
            "cost times a random number."
        ),
        "mean": N_("The 100 is multiplied by a random number whose mean is 0."),
        "both": N_("The 100 is multiplied by a random number whose mean is 0."),
    },
    "15 order": {
        "CEP": N_("One addition after the other: but which one is first?"),
        "C": N_(
            "The partial sums are added in another order than the rows of `by_columns`, "
            "but in the same order each time."
        ),
    },
}


def predicted(prediction, outcome, within=0.0, tempting=None):
    """Print `outcome`, and whether `prediction` is it; `...` stands for no prediction
    yet.

    prediction, outcome: numbers, strings, or tuples or lists of them. Upper and lower
                         case, and spaces around a string, do not count.
    within:          how far a number may be off and still count, as a share of the
                     outcome
    tempting:        a key of TEMPTING, with what is added to a wrong prediction
    """
    if prediction is ...:
        template = _(
            "○ It is {outcome}. Predict before you run: put your answer in place of ..."
        )
    elif _is(prediction, outcome, within):
        template = _("✓ It is {outcome}, as you predicted.")
    else:
        template = _("✗ You predicted {prediction}; it is {outcome}.")
    print(template.format(prediction=_shown(prediction), outcome=_shown(outcome)))
    if prediction is not ... and not _is(prediction, outcome, within):
        for guess, why in TEMPTING.get(tempting, {}).items():
            if _is(prediction, guess, within):
                print(_(why))


def _is(prediction, outcome, within):
    sequences = (tuple, list)
    if isinstance(outcome, sequences) and isinstance(prediction, sequences):
        pairs = zip(prediction, outcome, strict=False)
        return len(prediction) == len(outcome) and all(
            _is(p, o, within) for p, o in pairs
        )
    if isinstance(outcome, str) and isinstance(prediction, str):
        return prediction.strip().casefold() == outcome.strip().casefold()
    numbers = (int, float)
    if isinstance(outcome, numbers) and isinstance(prediction, numbers):
        return prediction == outcome or math.isclose(
            prediction, outcome, rel_tol=within
        )
    return prediction == outcome


def _shown(value):
    """As one would say it: numbers to four digits, strings without quotes."""
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
