"""What the course says: data until it is shown, in the language of the edition."""

import json
import re
from pathlib import Path

import pytest

from helpers.lessons import exercise, language
from helpers.lessons.cases import PATIENTS
from helpers.lessons.said import Said, Wrong, at
from tools import translate

ROOT = Path(__file__).parents[2]


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv(language.VARIABLE, "zh")


def test_a_sentence_is_made_of_its_template_and_what_fills_the_gaps():
    wrong = Wrong("{what} is {given:.2f}", what=Said("the slope of {x}", x="x"), given=2)
    assert str(wrong) == "the slope of x is 2.00"
    assert str(at("in float32", at("at 0", wrong))) == "in float32: at 0: the slope of x is 2.00"
    assert (
        str(at("at 0", wrong.and_then(Said("Look."), None))) == "at 0: the slope of x is 2.00 Look."
    )
    assert str(wrong) == "the slope of x is 2.00"  # still
    assert at("at 0", None) is None
    assert str(Said("{1} of {0}", **{"0": 2, "1": 1})) == "1 of 2"
    assert str(Said("a set {x}")) == "a set {x}"  # without gaps, braces are braces


def test_nobody_looks_at_the_words_of_a_sentence():
    """Its template is only handed on. That nothing becomes words while it is judged, as it must to
    be read, test_exercises.py sees for all wrong attempts, tests/doctor/test_patients.py for all
    patients.
    """
    for path in (ROOT / "helpers" / "lessons").rglob("*.py"):
        looked_at = r"(?<!helpers)\.template\b(?![,)])"
        assert not re.search(looked_at, path.read_text(encoding="utf-8")), f"{path}: look at fields"


LOOSE_ENDS = "a|an|the|and|or|but|nor|of|is|are|has|not|than"
BETWEEN_VALUES = " and "  # of a list


def test_every_template_is_a_sentence_or_a_clause():
    """What ends in the middle of a clause is glued to something, and cannot be translated."""
    for place, text in translate.messages(translate.LESSONS):
        if text == BETWEEN_VALUES or place == "doctor":  # whose clauses have gaps at their ends
            continue
        assert not re.search(rf"(^|\s)({LOOSE_ENDS})\s*$", text), f"{place}: {text!r}"
        assert text.count("`") % 2 == 0, f"{place}: {text!r}"


def test_a_clause_of_the_doctor_is_a_message_if_the_catalogue_holds_it():
    held = [text for _, text in translate.clauses()]
    assert {"everywhere", "Backward", "is negated{value}"} <= {*held}
    assert not {"double-copy", "an output"} & {*held}  # a code; and what it does not say


def test_reports_of_the_doctor_are_chinese(chinese):
    """Each part of them that is words; code and what PyTorch says are English."""
    english = []

    def asked(text):
        words = re.sub(r"`[^`]*`|^\w*(Error|Exception): .*", "", text)
        if re.search(r"[a-z]{2,} [a-z]{2,}", words) and language.translated(text) == text:
            english.append(text)
        return text

    for name in ("NeverAsks", "abs_at_0", "root_or_zero", "OneStep", "UntransposedMatrix"):
        report = PATIENTS[name].examine()
        report.text(asked)
        assert not re.search("error|warning|note|judged|seen", repr(report))
    assert english == []


def test_a_gap_that_is_lost_is_noticed():
    assert translate.gaps("{x} is {y:.2f}") != translate.gaps("{x} is {y}")
    assert translate.gaps("{x} is {y}") == translate.gaps("{y} {x}")


def test_verdicts_of_chapter_02_are_chinese(chinese, capsys):
    for number in ("2.1", "2.2", "2.3"):
        given = exercise(number)
        verdicts = [given.judge(...), given.judge(given.reference), given.judge(3)]
        verdicts += [given.judge(given.made_of(given.edited(edits))) for edits, _ in given.wrong]
        for verdict in verdicts:
            # Code and what PyTorch says stay English.
            # So do the doctor's clauses with gaps of their own, which it hands over filled.
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
    given = exercise(number)
    for edits, _ in given.wrong:
        message = given.judge(given.made_of(given.edited(edits))).message
        assert not re.search(english, re.sub(r"[\w.]*Error.*", "", message)), message


def test_the_notebook_says_the_language(tmp_path, monkeypatch):
    monkeypatch.delenv(language.VARIABLE, raising=False)
    for name, metadata in (("ours", {"language": "zh"}), ("english", {})):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "02.ipynb"
        path.write_text(json.dumps({"metadata": metadata}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert language.language() == "en"
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "ours" / "02.ipynb"))  # in JupyterLab
    assert language.language() == "zh"
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "english" / "02.ipynb"))
    assert language.language() == "en"
    monkeypatch.delenv("JPY_SESSION_NAME")
    monkeypatch.chdir(tmp_path / "ours")  # nbval
    assert language.language() == "zh"
    monkeypatch.setenv(language.VARIABLE, "en")
    assert language.language() == "en"
