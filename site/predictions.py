"""Predictions on the pages: buttons or a field in place of the cell that asks.

What a page answers is made of the notebook: the outcome of its stored output, and of
`helpers/lessons/tempting.py` why a wrong guess tempts. Without scripts the fold stays.
"""

import json
import re
from html import escape

from exercises import speaking

from helpers.lessons.language import _
from helpers.lessons.prediction import shown
from helpers.lessons.tempting import TEMPTING

ASKED = re.compile(r"^prediction = \.\.\.  # yours: (.+)$", re.MULTILINE)
CHOICES = re.compile(r'(?:one of )?(?:"[^"]+"(?:, | or )?)+')
WITHIN = re.compile(r"within=([\d.e-]+)")
KEY = re.compile(r'tempting="(.+?)"')
WORDS = {  # by the folder of the edition
    "notebooks": ("Your prediction", "Reveal"),
    "zh": ("你的预测", "揭晓"),
}
CELL = """<form class="predict" data-answer="{data}">
<b>{title}</b> {fields} <output></output>
</form>"""


def _templates():
    """What is said before there is a prediction, of a right one, and of a wrong one."""
    return [
        _("○ It is {outcome}. Predict before you run: put your answer in place of ..."),
        _("✓ It is {outcome}, as you predicted."),
        _("✗ You predicted {prediction}; it is {outcome}."),
    ]


def _outcome(cell, untouched):
    """What a cell's stored output says that the outcome is, or None."""
    before, after = untouched.split("{outcome}")
    text = "".join("".join(o.get("text", "")) for o in cell.get("outputs", []))
    found = re.search(re.escape(before) + "(.+)" + re.escape(after), text)
    return found and found[1]


def _fields(wish, reveal):
    if wish == "True or False":
        choices = ["True", "False"]
    else:
        choices = re.findall('"([^"]+)"', wish) if CHOICES.fullmatch(wish) else []
    buttons = [
        f'<button type="submit" value="{escape(c)}">{escape(c)}</button>'
        for c in choices
    ]
    hint = escape(wish)
    field = f'<input aria-label="{hint}" placeholder="{hint}" autocomplete="off">'
    return " ".join(buttons) or f'{field} <button type="submit">{reveal}</button>'


def add_forms(notebook, folder):
    """Puts a form in place of each cell that asks for a prediction."""
    title, reveal = WORDS[folder]
    with speaking(folder):
        untouched, right, wrong = _templates()
        for place, cell in enumerate(notebook["cells"]):
            source = "".join(cell["source"])
            asked = ASKED.search(source) if cell["cell_type"] == "code" else None
            after = [c for c in notebook["cells"][place:] if c["cell_type"] == "code"]
            answers = (
                next(c for c in after if "predicted(" in "".join(c["source"]))
                if asked
                else None
            )
            outcome = answers and _outcome(answers, untouched)
            if not outcome:
                continue
            code = "".join(answers["source"])
            within, key = WITHIN.search(code), KEY.search(code)
            data = {
                "outcome": outcome,
                "within": float(within[1]) if within else 0,
                "right": right,
                "wrong": wrong,
                "why": {
                    shown(guess): _(why)
                    for guess, why in TEMPTING.get(key and key[1], {}).items()
                },
            }
            form = CELL.format(
                data=escape(json.dumps(data, ensure_ascii=False)),
                title=title,
                fields=_fields(asked[1], reveal),
            )
            cell["cell_type"], cell["source"] = "markdown", form
            cell.pop("outputs"), cell.pop("execution_count")
