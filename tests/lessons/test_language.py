"""What the course says, and in which language: that of the edition."""

import json
import re

import pytest

from helpers.lessons import exercise, language
from helpers.lessons.cases import PATIENTS
from helpers.lessons.language import at, followed, listed
from tests.lessons.judged import judged
from tools import translate


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv(language.VARIABLE, "zh")


def test_what_is_wrong_says_where_and_what_follows():
    assert at("in float32", at("at 0", "it is 2.")) == "in float32: at 0: it is 2."
    assert at("at 0", None) is None and at("", "it is 2.") == "it is 2."
    assert followed("it is 2.", None, "Look.") == "it is 2. Look."
    assert listed("abc", last=" and ") == "a, b and c" and listed([1]) == "1"


LOOSE_ENDS = "a|an|the|and|or|but|nor|of|is|are|has|not|than"
BETWEEN_VALUES = " and "  # of a list


def test_every_message_is_a_sentence_or_a_clause():
    """What ends within a clause is glued to something, and has no translation."""
    for place, text in translate.messages(translate.LESSONS):
        # Whose clauses have gaps at their ends.
        if text == BETWEEN_VALUES or place == "doctor":
            continue
        assert not re.search(rf"(^|\s)({LOOSE_ENDS})\s*$", text), f"{place}: {text!r}"
        assert text.count("`") % 2 == 0, f"{place}: {text!r}"


def test_reports_of_the_doctor_are_chinese(chinese):
    report = repr(PATIENTS["UntransposedMatrix"].examine())
    assert re.search("[\u4e00-\u9fff]", report)
    assert not re.search("error|warning|note|judged|seen", report)


def test_a_gap_that_is_lost_is_noticed():
    assert translate.gaps("{x} is {y:.2f}") != translate.gaps("{x} is {y}")
    assert translate.gaps("{x} is {y}") == translate.gaps("{y} {x}")


def test_verdicts_of_chapter_02_are_chinese(chinese, capsys):
    for number in ("2.1", "2.2", "2.3"):
        given = exercise(number)
        verdicts = [given.judge(...), given.judge(given.reference), given.judge(3)]
        verdicts += [judged(number, edits) for edits, _ in given.wrong]
        for verdict in verdicts:
            # Code and what PyTorch says stay English. So do the doctor's clauses with
            # gaps of their own, which it hands over filled.
            prose = re.sub(
                r"`[^`]*`|[\w.]*Error.*|what calls leave elsewhere than on ctx"
                "|there it should be zero",
                "",
                verdict.message,
            )
            assert re.search("[\u4e00-\u9fff]", verdict.message), verdict.message
            english = re.findall(r"[a-z]+ [a-z]+ [a-z]+ [a-z]+", prose)
            assert not english, verdict.message
        for _ in given.hints:
            given.hint()
        given.hints_given = 0
        given.solution()
        assert "提示" in capsys.readouterr().out


@pytest.mark.parametrize(
    "number, english", [("1.2", " and "), ("16.2", "wheel for|release 1| and ")]
)
def test_what_fills_a_gap_is_chinese(chinese, number, english):
    for edits, _ in exercise(number).wrong:
        message = judged(number, edits).message
        assert not re.search(english, re.sub(r"[\w.]*Error.*", "", message)), message


def test_the_notebook_says_the_language(tmp_path, monkeypatch):
    monkeypatch.delenv(language.VARIABLE, raising=False)
    for name, metadata in (("ours", {"language": "zh"}), ("english", {})):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "02.ipynb"
        path.write_text(json.dumps({"metadata": metadata}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert language.language() == "en"
    # In JupyterLab.
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "ours" / "02.ipynb"))
    assert language.language() == "zh"
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "english" / "02.ipynb"))
    assert language.language() == "en"
    monkeypatch.delenv("JPY_SESSION_NAME")
    monkeypatch.chdir(tmp_path / "ours")  # nbval
    assert language.language() == "zh"
    monkeypatch.setenv(language.VARIABLE, "en")
    assert language.language() == "en"
