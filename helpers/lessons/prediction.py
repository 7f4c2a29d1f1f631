"""`predicted(prediction, outcome)`: a learner's prediction beside what came out."""

import re
import sys

from helpers.lessons import hold_back
from helpers.lessons.language import _
from helpers.lessons.reading import judged, question
from helpers.lessons.tempting import TEMPTING

ASKED = re.compile(r"^prediction = .*?(?:# yours: (.+))?$", re.MULTILINE)


def predicted(prediction, outcome, within=0.0, tempting=None):
    """Print `outcome`, and whether `prediction` is it; `...` stands for none.

    prediction, outcome: numbers, strings, or tuples or lists of them. The prediction
                         may be in other words, as `reading.py` says. If it is none of
                         the answers that the cell asks for, the outcome is not printed.
    within:          how far a number may be off and still count, as a share of the
                     outcome
    tempting:        a key of TEMPTING, with what is added to a wrong prediction
    """
    why = {shown(guess): said for guess, said in TEMPTING.get(tempting, {}).items()}
    asked = question(_wish(), shown(outcome), within, why)
    if prediction is ...:
        verdict, template = (
            None,
            _(
                "○ It is {outcome}. Predict before you run: put your answer in place of ..."
            ),
        )
    else:
        verdict = judged(shown(prediction), asked)
        template = {
            True: _("✓ It is {outcome}, as you predicted."),
            False: _("✗ You predicted {prediction}; it is {outcome}."),
            None: _("○ I read this as {prediction}. What is asked for: {wish}.")
            if asked["wish"]  # somebody may have typed over it
            else _("○ I read this as {prediction}; write it in the question's words."),
        }[verdict]
    said = template.format(
        prediction=shown(prediction), outcome=shown(outcome), wish=asked["wish"]
    )
    if verdict is None and prediction is not ...:
        hold_back.because(said)
    print(said)
    if verdict is False:
        for guess, reason in why.items():
            if judged(shown(prediction), asked | {"outcome": guess}):
                print(_(reason))
                break


def _wish():
    """What the last cell with a prediction asks for, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    for cell in reversed(shell.user_ns.get("In", []) if shell else []):
        if found := ASKED.search(cell):
            return found[1]
    return None


def shown(value):
    """As one would say it: numbers to four digits, strings without quotes.

    `Tensor` and `torch.float16`, typed without quotes, are said by their names.
    """
    if isinstance(value, tuple | list):
        return ", ".join(map(shown, value)) or "[]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return getattr(value, "__name__", str(value)).removeprefix("torch.")


predicted.show = hold_back.show
