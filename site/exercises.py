"""Exercises on the pages, folded: hints, wrong attempts with verdicts, the solution.

All of it is made from the exercises themselves. What a check says is heard while the
pages are built; of an attempt that cannot be checked on this machine, nothing is shown.
"""

import difflib
import os
import re
from contextlib import contextmanager
from functools import cache
from html import escape

from docutils import nodes

from helpers.lessons import drill, exercise
from helpers.lessons.exercise import WRONG
from helpers.lessons.language import VARIABLE, _, at

DRILL = re.compile(r'^drill\("([\w.]+)"\)\.check\(', re.MULTILINE)
CHECK = re.compile(r'^exercise\("([\w.]+)"\)\.check\(', re.MULTILINE)
ATTEMPTS = 3  # of each exercise
WORDS = {  # by the folder of the edition
    "notebooks": {
        "run": "How to run it in JupyterLab",
        "hint": "Hint {} of {}",
        "attempts": "Wrong attempts, and what the check says of them",
        "solution": "Solution",
        "answers": "Answers",
    },
    "zh": {
        "run": "怎样在 JupyterLab 里运行",
        "hint": "提示 {} / {}",
        "attempts": "几种错误的写法，以及各自的检查结果",
        "solution": "答案",
        "answers": "答案",
    },
}


@cache
def _wrong_attempts(number):
    """(verdict, source, numbers of the lines that are not the solution's) of a few."""
    given = exercise(number)
    solution = given.edited().splitlines()
    found = {}  # by verdict: two attempts of which the same is said are one
    for edits, words in given.wrong:
        source = given.edited(edits)
        verdict = given.judge(given.made_of(source))
        if verdict.mark == WRONG and words in verdict.message:
            steps = difflib.SequenceMatcher(
                None, solution, source.splitlines()
            ).get_opcodes()
            new = [
                n + 1
                for kind, *old, i, j in steps
                if kind != "equal"
                for n in range(i, j)
            ]
            found.setdefault(verdict.message, (source, new))
        if len(found) == ATTEMPTS:
            break
    return [(said, *of) for said, of in found.items()]


def _verdict(source, given):
    return given.judge(given.made_of(source)).message


@contextmanager
def speaking(folder):
    """What the course says, it says in the language of the edition."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "zh" if folder == "zh" else "en"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def _paragraph(text, **attributes):
    """A paragraph; what stands in `backticks` is code, as in a verdict."""
    parts = enumerate(text.split("`"))
    return nodes.paragraph(
        "",
        "",
        *(nodes.literal("", p) if n % 2 else nodes.Text(p) for n, p in parts),
        **attributes,
    )


def _code(source, given, lines=()):
    foreign = "cpp" if "\n" in source else "text"  # a source in C; or a word
    language = foreign if isinstance(given.reference, str) else "python"
    source = source.strip("\n")
    return nodes.literal_block(
        source,
        source,
        language=language,
        force=True,
        highlight_args={"hl_lines": list(lines)},
    )


def _folded(summary, *parts):
    begin = f'<details class="exercise"><summary>{escape(summary)}</summary>'
    return [
        nodes.raw("", begin, format="html"),
        *parts,
        nodes.raw("", "</details>", format="html"),
    ]


def help_with(number, folder):
    """What a page says under an exercise, as nodes, in the language of the edition."""
    given, words = exercise(number), WORDS[folder]
    with speaking("notebooks"):  # in English, whose words are expected
        attempts = _wrong_attempts(number)
    result = nodes.container(classes=["exercise-help"])
    link = f'<p><a href="#run">{words["run"]}</a></p>'
    result += nodes.raw("", link, format="html")
    with speaking(folder):
        for count, hint in enumerate(given.hints, 1):
            summary = words["hint"].format(count, len(given.hints))
            result += _folded(summary, _paragraph(_(hint)))
        title = f"{WRONG} {number} {given.name}"
        said = [
            part
            for english, source, lines in attempts
            for part in (
                _code(source, given, lines),
                _paragraph(
                    at(title, english if folder != "zh" else _verdict(source, given)),
                    classes=["verdict"],
                ),
            )
        ]
        if said:
            result += _folded(words["attempts"], *said)
        explained = _paragraph(_(given.explanation))
        result += _folded(words["solution"], _code(given.edited(), given), explained)
    return result


def answers_to(numbers, folder):
    """A fold with the answers to drills, as nodes."""
    result = nodes.container(classes=["exercise-help"])
    with speaking(folder):
        said = [
            part
            for given in map(drill, numbers)
            for part in (
                nodes.literal_block(given.answer, given.answer, language="python"),
                _paragraph(at(given.number, _(given.why))),
            )
        ]
    result += _folded(WORDS[folder]["answers"], *said)
    return result


def add_help(doctree, folder):
    """Puts it under each cell that checks an exercise or drills."""
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") == "cell_code":
            drills = DRILL.findall(cell.astext())
            if drills:
                place = cell.parent.index(cell) + 1
                cell.parent.insert(place, answers_to(drills, folder))
            for number in CHECK.findall(cell.astext()):
                cell["classes"].append("to-write")  # "not attempted yet" says nothing
                cell.parent.insert(
                    cell.parent.index(cell) + 1, help_with(number, folder)
                )
