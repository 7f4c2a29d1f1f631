"""Predictions on the pages: buttons or a field in place of the cell that asks.

What a page answers is made of the notebook: the outcome of its stored output, and of
`helpers/lessons/tempting.py` why a wrong guess tempts. Without scripts the fold stays.
"""

import json
import re
from html import escape
from pathlib import Path

from exercises import speaking

from helpers.lessons.language import _
from helpers.lessons.prediction import shown
from helpers.lessons.reading import question
from helpers.lessons.tempting import TEMPTING

ASKED = re.compile(r"^prediction = \.\.\.  # yours: (.+)$", re.MULTILINE)
CHOICES = re.compile(r'(?:one of )?(?:"[^"]+"(?:, | or )?)+')
WITHIN = re.compile(r"within=([\d.e-]+)")
KEY = re.compile(r'tempting="(.+?)"')
WORDS = {  # by the folder of the edition
    "notebooks": ("Your prediction", "Reveal"),
    "zh": ("你的预测", "揭晓"),
}
# What is asked for, and the choices, in Chinese. Without its Chinese, a wish stops the build.
CHINESE = json.loads(Path(__file__).with_name("prediction_words.zh.json").read_bytes())
CELL = """<form class="predict" data-answer="{data}">
<b>{title}</b> {fields} <output></output>
</form>"""


def _templates():
    """What is said before there is a prediction, of a right, a wrong, an unread one."""
    return [
        _("○ It is {outcome}. Predict before you run: put your answer in place of ..."),
        _("✓ It is {outcome}, as you predicted."),
        _("✗ You predicted {prediction}; it is {outcome}."),
        _("○ I read this as {prediction}. What is asked for: {wish}."),
    ]


def _outcome(cell, untouched):
    """What a cell's stored output says that the outcome is, or None."""
    before, after = untouched.split("{outcome}")
    text = "".join("".join(o.get("text", "")) for o in cell.get("outputs", []))
    found = re.search(re.escape(before) + "(.+)" + re.escape(after), text)
    return found and found[1]


def _answer_alone(cell, untouched):
    """Leaves "It is …" of a stored output: on the page, one has predicted before."""
    before, _, rest = untouched.partition("{outcome}")
    for output in cell.get("outputs", []):
        if "text" in output:
            text = "".join(output["text"]).replace(rest, rest[0])
            output["text"] = text.replace(before, before.removeprefix("○ "))


def _label(choice, folder):
    if folder == "zh":
        chinese = CHINESE["choices"].get(choice)
        choice = (
            f"{choice}（{chinese}）" if chinese else choice.replace(" and ", " 和 ")
        )
    return escape(choice)


def _labels(text, folder):
    """{what a notebook says: the same in Chinese} of the words in a text."""
    words = CHINESE["choices"] if folder == "zh" else {}
    return {word: words[word] for word in words if re.search(rf"\b{word}\b", text)}


def _fields(wish, reveal, folder):
    if wish == "True or False":
        choices = ["True", "False"]
    else:
        choices = re.findall('"([^"]+)"', wish) if CHOICES.fullmatch(wish) else []
    buttons = [
        f'<button type="submit" value="{escape(c)}">{_label(c, folder)}</button>'
        for c in choices
    ]
    hint = (
        "" if choices else escape(CHINESE["wishes"][wish] if folder == "zh" else wish)
    )
    field = f'<input aria-label="{hint}" autocomplete="off">'
    ask = f'{field} <button type="submit">{reveal}</button> <small>{hint}</small>'
    return " ".join(buttons) or ask


def add_forms(notebook, folder):
    """Puts a form in place of each cell that asks for a prediction."""
    title, reveal = WORDS[folder]
    with speaking(folder):
        untouched, right, wrong, unread = _templates()
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
            why = {
                shown(guess): _(said).replace("`", "")
                for guess, said in TEMPTING.get(key and key[1], {}).items()
            }
            wish = CHINESE["wishes"].get(asked[1]) if folder == "zh" else asked[1]
            share = float(within[1]) if within else 0
            data = {
                **question(asked[1], outcome, share, why),
                "right": right,
                "wrong": wrong,
                "unread": unread.replace("{wish}", wish or asked[1]),
                "labels": _labels(" ".join([asked[1], outcome, *why]), folder),
                "why": why,
            }
            form = CELL.format(
                data=escape(json.dumps(data, ensure_ascii=False)),
                title=title,
                fields=_fields(asked[1], reveal, folder),
            )
            _answer_alone(answers, untouched)
            cell["cell_type"], cell["source"] = "markdown", form
            cell.pop("outputs"), cell.pop("execution_count")
