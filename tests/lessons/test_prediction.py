"""A prediction is told what came out, and whether it was that."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.lessons import predicted
from helpers.lessons.hold_back import VARIABLE
from helpers.lessons.prediction import shown
from helpers.lessons.reading import TABLE, judged, question
from helpers.lessons.tempting import TEMPTING
from tests.notebooks.test_notebooks import NOTEBOOKS, cells, printed, read

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SITE = ROOT / "site"
CASES = [  # what is typed, the question, what is said
    (
        guess,
        question(
            case["wish"],
            case["outcome"],
            case.get("within", 0),
            case.get("tempting", ()),
        ),
        mark,
    )
    for case in json.loads((HERE / "prediction_cases.json").read_bytes())
    for mark in "✓✗○"
    for guess in case.get(mark, [])
]
MARK = {True: "✓", False: "✗", None: "○"}


@pytest.mark.parametrize(
    ("prediction", "outcome", "mark"),
    [
        (..., 8, "○"),
        (8, 8, "✓"),
        (7, 8, "✗"),
        (8.0, 8, "✓"),
        (True, True, "✓"),
        ((True, 3), [True, 3], "✓"),
        ((True,), (True, 3), "✗"),
        (float("nan"), 1.0, "✗"),
        (True, "yes", "✓"),
        ("not 8", 8, "○"),
        ((bool, str), ("bool", "str"), "✓"),
        (len, "len", "✓"),
    ],
)
def test_a_prediction_is_compared(prediction, outcome, mark, capsys):
    """Other words are in prediction_cases.json."""
    predicted(prediction, outcome)
    said = capsys.readouterr().out
    assert said.startswith(mark)
    assert str(outcome) in said or not isinstance(outcome, int)


def test_a_number_may_be_off_by_what_is_said(capsys):
    predicted(100, 104.0, within=0.05)
    predicted(100, 106.0, within=0.05)
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["✓", "✗"]


def test_what_came_out_is_not_translated(monkeypatch, capsys):
    monkeypatch.setenv("EXTENDING_PYTORCH_LANGUAGE", "zh")
    predicted(
        "nothing", ("one number", "nothing")
    )  # each is a clause of the catalogue, too
    said = capsys.readouterr().out
    assert "one number" in said and "nothing" in said and "You predicted" not in said


def test_a_tempting_prediction_is_answered(capsys):
    for key, reasons in TEMPTING.items():
        for guess, why in reasons.items():
            predicted(guess, "what came out", tempting=key)
            assert why in capsys.readouterr().out
    predicted(..., "what came out", tempting="5 term")
    predicted("2 sinh²", "2 sinh²", tempting="5 term")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_one_of_a_list_may_be_given_without_its_brackets(capsys):
    predicted(0.1, [0.1])
    predicted([], [0.1])
    assert capsys.readouterr().out.splitlines() == [
        "✓ It is 0.1, as you predicted.",
        "✗ You predicted []; it is 0.1.",
    ]


def test_other_words_are_read():
    said = [(guess, asked, MARK[judged(guess, asked)]) for guess, asked, _ in CASES]
    assert said == CASES


@pytest.mark.skipif(not shutil.which("node"), reason="the pages' script needs Node.js")
def test_a_page_reads_the_same():
    handed = {
        "script": str(SITE / "static" / "reading.js"),
        "table": TABLE,
        "asked": [(guess, asked) for guess, asked, _ in CASES],
    }
    command = ["node", HERE / "reading.cjs"]
    done = subprocess.run(
        command, input=json.dumps(handed), capture_output=True, text=True, check=True
    )
    pairs = zip(CASES, json.loads(done.stdout), strict=True)
    said = [(guess, asked, MARK[verdict]) for (guess, asked, _), verdict in pairs]
    assert said == CASES


def test_what_a_chapter_says_is_read():
    """The stored outcome is right, each tempting prediction is wrong."""
    for path in NOTEBOOKS:
        wish = None
        for cell in cells(read(path), "code"):
            asked = re.search(
                r"^prediction = \.\.\.  # yours: (.+)$", cell.source, re.M
            )
            wish = asked[1] if asked else wish
            told = r"○ It is (.+)\. Predict before you run"
            if found := re.search(told, printed(cell)):
                key = re.search('tempting="(.+?)"', cell.source)
                why = [shown(guess) for guess in TEMPTING.get(key and key[1], ())]
                asked = question(wish, found[1], 0, why)
                verdicts = [judged(guess, asked) for guess in (found[1], *why)]
                assert verdicts == [True, *[False] * len(why)], asked


def test_each_word_of_a_chapter_may_be_said_in_chinese():
    words = json.loads((SITE / "prediction_words.zh.json").read_bytes())
    for word, chinese in words["choices"].items():
        assert judged(chinese, question(f'"{word}"', word)), chinese


OUTCOME = """outcome = 41
print("a table")
display({"image/png": "", "text/plain": "a figure"}, raw=True)
predicted(prediction, outcome)
print("after it")"""
ASK = "prediction = {}  # yours: a number"


@pytest.mark.parametrize("shown", ["", "1"])
def test_what_is_not_predicted_is_held_back(shown, tmp_path):
    first = ["from helpers.lessons import predicted", ASK.format("...")]
    guesses = [ASK.format(guess) for guess in ('"not 41"', 40, '"forty-one"')]
    cells = [*first, OUTCOME, "show()" if not shown else "", "outcome"]
    cells += [cell for guess in guesses for cell in (guess, OUTCOME)]
    made = [
        nbformat.v4.new_code_cell(cell) for cell in [*cells, "predicted(..., 1 / 0)"]
    ]
    made += [nbformat.v4.new_code_cell("print(1)\npredicted(prediction, 1 / 0)")]
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=made),
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    environment = os.environ | {VARIABLE: shown, "PYTHONPATH": str(ROOT)}
    client.execute(env=environment)
    texts = [
        "".join(
            o.get("text") or o.get("data", {}).get("text/plain") or o["ename"]
            for o in c.outputs
        )
        for c in made
    ]
    whole = "a table\na figure{}\nafter it\n"
    untouched = whole.format(
        "○ It is 41. Predict before you run: put your answer in place of ..."
    )
    unread = "○ I read this as not 41. What is asked for: a number.\n"
    if shown:
        assert texts[2] == untouched
        assert texts[6] == whole.format(unread[:-1])
    else:
        assert texts[2] == "○ Predict first, or `show()`.\n"
        assert texts[3] == untouched
        assert texts[6] == unread
    assert texts[4] == "41"  # it has run
    assert texts[8] == whole.format("✗ You predicted 40; it is 41.")
    assert texts[10] == whole.format("✓ It is 41, as you predicted.")
    assert "ZeroDivisionError" in texts[12] and "1\n" in texts[12]
