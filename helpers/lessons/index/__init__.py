"""Two indexes, of tasks and of error messages, and where in the course each is
answered.

Chapter 19 and the README hold tables that are made of them:

    python -m tools.which_way

A place is written `"02 Several outputs"`: the number of a chapter, and a heading in it,
without its marks. What can be copied is a path from the root of the repository, or a
place.
"""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import quote

from helpers.lessons.index.messages import MESSAGES
from helpers.lessons.index.tasks import MORE, TASKS

ROOT = Path(__file__).parents[3]
AT_THE_END = re.compile(r"\]\(([^)]+)\) \|$", re.MULTILINE)  # of a row: a link's target
SIGNS = {"·": "✓", "error": "!", "WRONG": "✗"}
AOTINDUCTOR = "16 Deeper: AOTInductor, running a model without Python (10 minutes)"


@cache
def headings(chapter):
    """The file of the chapter with this number, and the anchors of its headings by
    their text.
    """
    (path,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = (
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
    )
    found = (re.findall(r"^#+ (.+)$", text, re.MULTILINE) for text in texts)
    plain = [re.sub(r"[`*$]", "", heading) for group in found for heading in group]
    return path.name, {heading: quote(heading.replace(" ", "-")) for heading in plain}


def section(place, folder="", text=None):
    """A link to a place, as Markdown.

    ValueError where the chapter has no such heading.
    """
    chapter, heading = place.split(" ", 1)
    name, anchors = headings(chapter)
    if heading not in anchors:
        raise ValueError(
            f"{name} has no heading {heading!r}; it has {', '.join(anchors)}"
        )
    text = text or re.sub(r" \(\d+ minutes?\)$", "", place)
    return f"[{text}]({folder}{name}#{anchors[heading]})"


def source(copy, root="../", folder=""):
    """A link to what can be copied: a file, a folder, or the cells of a section."""
    if not re.match(r"\d\d ", copy):
        if not (ROOT / copy).exists():
            raise ValueError(f"there is nothing to copy at {copy}")
        path = re.sub("^helpers/(lessons/|ops/)?", "", copy)
        # Or the table is too wide.
        shown = path if copy.endswith("/") else Path(copy).name
        return f"[`{shown}`]({root}{copy})"
    kind = "skeleton" if "Skeleton" in copy else "cells"
    return section(copy, folder, f"the {kind} of {copy[:2]}")


def table(head, rows):
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def index_of_tasks():
    rows = [(t.want, source(t.copy or t.read), section(t.read), t.check) for t in TASKS]
    return table(("I want to …", "copy", "read", "check with"), rows)


def index_of_messages():
    rows = [(f"`{m.part}`", m.cause, section(m.read)) for m in MESSAGES]
    return table(("the message holds", "cause", "read"), rows)


def most_wanted():
    """The README's table, and links to more tasks."""
    wanted, at = (t for t in TASKS if t.short), "notebooks/"
    rows = [
        (t.want, source(t.copy or t.read, "", at), section(t.read, at)) for t in wanted
    ]
    reads = {word: next(t.read for t in TASKS if word in t.want) for word in MORE}
    more = ", ".join(section(read, at, word) for word, read in reads.items())
    return f"{table(('I want to …', 'copy', 'read'), rows)}\n\nAnd: {more}."


def linked_matrix(cells):
    """The matrix of chapter 19, from what its cells show, with a link in each field.

    What is right leads to the section on the way to write it, all else to that on the
    situation.
    cells: those of the notebook, by their id.
    """
    ways = AT_THE_END.findall(cells["w06"].source)
    explained = {}
    for row in re.findall(r"^\| `.+$", cells["w11"].source, re.MULTILINE):
        for situation in re.findall("`([^`]+)`", row.split("|")[1]):
            (explained[situation],) = AT_THE_END.findall(row)
    rows = []
    for line in cells["w07"].outputs[0].text.split("\n\n")[1].splitlines()[1:]:
        situation, words = line[:20].strip(), line[20:].split()
        targets = [
            way if word == "·" else explained[situation]
            for word, way in zip(words, ways, strict=True)
        ]
        linked = [
            f"[{SIGNS[word]}]({at})" for word, at in zip(words, targets, strict=True)
        ]
        rows.append((f"`{situation}`", *linked))
    untried = "`AOTInductor`", *[section(AOTINDUCTOR, text="?")] * len(ways)
    return table(("", *map(str, range(1, len(ways) + 1))), [*rows, untried])
