"""Three indexes, of tasks, messages and symptoms, and where each is answered.

Chapter 19 and the README hold what is made of them:

    python -m tools.which_way

A place is written `"02 Several outputs"`: the number of a chapter, and a heading in it,
without its marks. What can be copied is a path from the root, or a recipe's place.
"""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import quote

from helpers.lessons.index.messages import MESSAGES
from helpers.lessons.index.symptoms import SYMPTOMS
from helpers.lessons.index.tasks import TASKS

ROOT = Path(__file__).parents[3]
AT_THE_END = re.compile(r"\]\(([^)]+)\) \|$", re.MULTILINE)  # of a row: a link's target
SIGNS = {"·": "✓", "error": "!", "WRONG": "✗"}
AOTINDUCTOR = "16 Deeper: AOTInductor, running a model without Python (10 minutes)"


@cache
def headings(chapter):
    """The file of a chapter, and {heading: the id of the cell that it begins}."""
    (path,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
    cells = json.loads(path.read_bytes())["cells"]
    texts = {
        c["id"]: "".join(c["source"]) for c in cells if c["cell_type"] == "markdown"
    }
    found = {id: re.match(r"#+ (.+)", text) for id, text in texts.items()}
    plain = {id: re.sub(r"[`*$]", "", line[1]) for id, line in found.items() if line}
    return path.name, {heading: id for id, heading in plain.items()}


def anchor(heading):
    """What the pages and a repository's page call a heading in a link."""
    return quote(heading.replace(" ", "-"))


def section(place, text=None, folder=None):
    """A link to a place, as Markdown; ValueError where the chapter has no such heading.

    JupyterLab opens the cell. In the README, for which `folder` is "notebooks/", the
    heading's anchor leads there.
    """
    chapter, heading = place.split(" ", 1)
    name, cells = headings(chapter)
    if heading not in cells:
        raise ValueError(
            f"{name} has no heading {heading!r}; it has {', '.join(cells)}"
        )
    text = text or short_name(place)
    at = anchor(heading) if folder else f"cell-id={cells[heading]}"
    return f"[{text}]({folder or ''}{name}#{at})"


def short_name(place):
    name = re.sub(r" \(\d+ minutes?\)$", "", place)
    return re.sub(r"__\w+__", r"`\g<0>`", name)  # or Markdown sets it in bold


def briefly(place):
    """A name's beginning, up to a colon or a comma, for a long table.

    It is not for tasks: the pages' search reads there which section answers them.
    """
    name = short_name(place).replace("Deeper: ", "")
    return re.match(r"\d\d( \S+?){2,}?(?=: )|\d\d( \S+?){2,}?(?=[,;] )|.+", name)[0]


def source(copy, folder=None):
    """A link to what can be copied: a file, a folder, or a recipe.

    In the README, `folder` is "notebooks/", as for `section`.
    """
    if re.match(r"\d\d ", copy):
        return section(copy, "recipe", folder)
    if not (ROOT / copy).exists():
        raise ValueError(f"there is nothing to copy at {copy}")
    shown = re.sub("^helpers/(lessons/|ops/)?", "", copy)
    if not copy.endswith("/"):
        shown = Path(copy).name  # or the table is too wide
    up = "" if folder else "../"
    return f"[{shown}]({up}{copy})"  # as code, no line of the table could break


def table(head, rows):
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def index_of_tasks(group):
    rows = [(t.want, source(t.copy), section(t.read), t.check) for t in TASKS[group]]
    return table(("I want to …", "copy", "read", "check with"), rows)


def index_of_messages(group):
    rows = [
        (
            f"`{m.part}`" + f" {m.where}".rstrip(),
            m.cause,
            section(m.read, briefly(m.read)),
        )
        for m in MESSAGES[group]
    ]
    return table(("the message holds", "cause, and cure", "read"), rows)


def index_of_symptoms():
    rows = [(s.what, s.look, section(s.read, briefly(s.read))) for s in SYMPTOMS]
    return table(("what you see", "look for", "read"), rows)


INDEXES = {  # heading -> the tables below it, by their own headings
    "I want to …": (TASKS, index_of_tasks),
    "What does this error mean?": (MESSAGES, index_of_messages),
}


def of_tasks():
    """For the README: the tasks that bring most visitors, in their words."""
    rows = [
        (task.visitor, source(task.copy, "notebooks/"), task.use)
        for tasks in TASKS.values()
        for task in tasks
        if task.visitor
    ]
    return table(("I want to …", "copy", "and write"), rows)


def of_messages():
    """For the README: the messages that are met most often."""
    often = [m for group in MESSAGES.values() for m in group if m.short]
    rows = [
        (f"`{m.part}`", m.cause, section(m.read, None, "notebooks/")) for m in often
    ]
    return table(("the message holds", "cause, and cure", "read"), rows)


def linked_matrix(cells):
    """The matrix of chapter 19, from what its cells show, with a link in each field.

    What is right leads to the section on the way to write it, all else to that on the
    situation. cells: those of the notebook, by their id.
    """
    ways = AT_THE_END.findall(cells["matrix"].source)
    explained = {}
    for row in re.findall(r"^\| `.+$", cells["w11"].source, re.MULTILINE):
        for situation in re.findall("`([^`]+)`", row.split("|")[1]):
            (explained[situation],) = AT_THE_END.findall(row)
    rows = []
    for line in cells["w07"].outputs[0].text.split("\n\n")[1].splitlines()[1:]:
        situation, words = line[:20].strip(), line[20:].split()
        linked = []
        for word, way in zip(words, ways, strict=True):
            target = way if word == "·" else explained[situation]
            linked.append(f"[{SIGNS[word]}]({target})")
        rows.append((f"`{situation}`", *linked))
    by_hand = "`AOTInductor`, value", *[section(AOTINDUCTOR, "✓")] * len(ways)
    return table(("", *map(str, range(1, len(ways) + 1))), [*rows, by_hand])
