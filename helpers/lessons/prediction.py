"""`predicted(prediction, outcome)`: a learner's prediction beside what came out."""

import math

from helpers.lessons.language import _
from helpers.lessons.tempting import TEMPTING


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
    print(template.format(prediction=shown(prediction), outcome=shown(outcome)))
    if prediction is not ... and not _is(prediction, outcome, within):
        for guess, why in TEMPTING.get(tempting, {}).items():
            if _is(prediction, guess, within):
                print(_(why))


def _is(prediction, outcome, within):
    sequences = (tuple, list)
    if isinstance(outcome, sequences):
        if not isinstance(prediction, sequences):
            prediction = [prediction]
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


def shown(value):
    """As one would say it: numbers to four digits, strings without quotes."""
    if isinstance(value, tuple | list):
        return ", ".join(map(shown, value)) or "[]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
