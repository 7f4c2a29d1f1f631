"""Each drill accepts its answer, and says why a line that learners write is wrong."""

import re

import pytest

from helpers.lessons import drill
from helpers.lessons.drill import DRILLS
from tests.needs import needs_compiler, why_not
from tests.notebooks.test_notebooks import NOTEBOOKS

each_drill = pytest.mark.parametrize("given", DRILLS.values(), ids=DRILLS)


@each_drill
def test_a_drill_is_untouched_right_and_wrong(given):
    assert given.verdict(given.made(given.stub or "lambda *a: ...")).startswith("○")
    missing = why_not(given.needs)
    if missing:
        assert given.verdict(given.made(given.answer)).endswith(missing)
        return
    assert given.verdict(given.made(given.answer)) == f"✓ {given.number}: {given.why}"
    assert given.wrong, "which wrong line tempts?"
    for source, why in given.wrong.items():
        assert given.verdict(given.made(source)).startswith("✗"), source
        assert given.verdict(given.made(source)).endswith(why), source


def test_what_cannot_be_judged_is_said():
    assert "write a lambda" in drill("3.a").verdict(3)
    assert "IndexError" in drill("3.a").verdict(lambda g: g.flip(2))
    with pytest.raises(ValueError, match="number must be one of"):
        drill("3.z")


def test_a_number_is_not_rounded():
    element = drill("7.element").made(drill("7.element").answer)
    line = lambda p, f, n, c, h, w: element(p, f, n, c, h, w).item()  # noqa: E731
    assert drill("7.element").verdict(line).startswith("✓")


@needs_compiler
def test_what_does_not_compile_is_told_with_its_line():
    given = drill("7.bias")
    said = given.verdict(given.made(("int column =", "column =")))
    assert "it does not compile in line 5 of the cell: " in said


def test_each_drill_stands_in_its_chapter():
    for path in NOTEBOOKS:
        found = re.findall(r'drill\(\\"(.+?)\\"\)', path.read_text(encoding="utf-8"))
        chapter = str(int(path.name[:2]))
        due = [n for n in DRILLS if n.partition(".")[0] == chapter]
        assert found == due, (
            f"write drill(...) for {due} into {path.name}, in this order"
        )
