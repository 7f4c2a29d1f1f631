"""What the course says: data until it is shown, in the language of the edition."""

import ast
import json
import re
from pathlib import Path

import pytest

from helpers.lessons import exercise, language
from helpers.lessons.said import Said, Wrong, at
from tools import translate

ROOT = Path(__file__).parents[2]
READS = {"search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn"}  # of `re`
EDITS = {
    "replace", "removeprefix", "removesuffix", "partition", "rpartition", "split", "splitlines",
    "startswith", "endswith", "lower", "upper", "capitalize", "lstrip", "rstrip", "find",
    "index", "join",
}  # fmt: skip
SENTENCES = {
    "wrong", "verdict", "sentence", "words", "template", "look", "clause", "hint",
    "success", "counting",
}  # fmt: skip


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
    """In the code: a `Said` is no string, so it must be made one to be read.

    While all wrong attempts are judged, and all patients, test_exercises.py and
    tests/doctor/test_patients.py let nothing become words.
    """
    for path in (ROOT / "helpers" / "lessons").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            found = [node for node in ast.walk(function) if looked_at(node) & SENTENCES]
            places = [f"{path.relative_to(ROOT)}:{node.lineno}" for node in found]
            assert not places, "look at fields, not at the words"


@pytest.mark.parametrize(
    "code",
    [
        "wrong.message.template[0]", "str(wrong)[:9]", "'nan' in str(second.sentence)",
        "f'{wrong} It is late.'", "str(found.sentence) + '.'", "words.lower()",
        "', '.join(template)", "re.sub('a', 'b', str(wrong))", "verdict += '!'",
    ],
)  # fmt: skip
def test_looking_at_words_is_noticed(code):
    assert any(looked_at(node) & SENTENCES for node in ast.walk(ast.parse(code))), code


def looked_at(node):
    """The names of the strings whose words `node` looks at or changes."""
    values = ()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if getattr(node.func.value, "id", "") == "re" and node.func.attr in READS:
            values = node.args
        elif node.func.attr in EDITS:
            values = (node.func.value, *node.args)
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        values = node.comparators
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult, ast.Mod)):
        values = node.left, node.right
    elif isinstance(node, ast.AugAssign):
        values = node.target, node.value
    elif isinstance(node, ast.Subscript) and is_of_a_string(node.slice):
        values = (node.value,)
    elif isinstance(node, ast.JoinedStr):
        values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    bare = [
        of.args[0] if getattr(getattr(of, "func", 0), "id", "") == "str" else of for of in values
    ]
    return {getattr(one, "id", getattr(one, "attr", None)) for one in bare}


def is_of_a_string(place):
    """Is it a slice or a number, as of a string, and no key?"""
    return isinstance(place, ast.Slice) or isinstance(getattr(place, "value", ""), int)


LOOSE_ENDS = "a|an|the|and|or|but|nor|of|is|are|has|not|than"
BETWEEN_VALUES = " and "  # of a list


def test_every_template_is_a_sentence_or_a_clause():
    """What ends in the middle of a clause is glued to something, and cannot be translated."""
    for place, text in translate.messages(translate.LESSONS):
        if text == BETWEEN_VALUES or place == "doctor":  # whose clauses have gaps at their ends
            continue
        assert not re.search(rf"(^|\s)({LOOSE_ENDS})\s*$", text), f"{place}: {text!r}"
        assert text.count("`") % 2 == 0, f"{place}: {text!r}"


def test_every_template_is_known_to_the_translators_tools():
    known = {text for _, text in translate.messages(translate.LESSONS)}
    for given in (Said("x"), exercise("2.1")):
        texts = [given.template] if isinstance(given, Said) else [given.success, *given.hints]
        assert all(text in known for text in texts if " " in text)
    wrong = exercise("2.1").judge(int).said
    assert wrong.template in known


def test_a_clause_of_the_doctor_is_a_message_if_the_catalogue_holds_it():
    held = [text for _, text in translate.clauses()]
    assert {"everywhere", "Backward", "is negated{value}"} <= {*held}
    assert not {"double-copy", "an output"} & {*held}  # a code; and what it does not say


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
