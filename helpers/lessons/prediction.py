"""`predicted(prediction, outcome)`: a learner's prediction beside what came out."""

import math

from helpers.lessons.language import _
from helpers.lessons.tempting import TEMPTING


def predicted(prediction, outcome, within=0.0, tempting=None):
    """Print `outcome`, and whether `prediction` is it; `...` stands for no prediction
    yet.

    prediction, outcome: numbers, strings, or tuples or lists of them. Upper and lower
                         case, spaces, quotes and brackets do not count, and neither
                         does the order in "a and b".
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
    print(template.format(prediction=shown(prediction), outcome=shown(outcome)))
    if prediction is not ... and not _is(prediction, outcome, within):
        for guess, why in TEMPTING.get(tempting, {}).items():
            if _is(prediction, guess, within):
                print(_(why))
                break


def _is(prediction, outcome, within):
    given, right = _parts(prediction), _parts(outcome)
    pairs = zip(given, right, strict=False)
    return len(given) == len(right) and all(_same(p, o, within) for p, o in pairs)


def _parts(value):
    """What it holds, one after the other, however it is nested or written."""
    if isinstance(value, tuple | list):
        return [part for one in value for part in _parts(one)]
    if isinstance(value, str):
        together = sorted(value.casefold().split(" and "))
        return [part.strip() for one in together for part in one.split(",")]
    return [value]


def _same(prediction, outcome, within):
    numbers = (int, float)
    if isinstance(outcome, numbers) and isinstance(prediction, numbers):
        return math.isclose(prediction, outcome, rel_tol=within)
    return shown(prediction).casefold() == shown(outcome).casefold()


def shown(value):
    """As one would say it: numbers to four digits, strings without quotes."""
    if isinstance(value, tuple | list):
        return ", ".join(map(shown, value)) or "[]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
