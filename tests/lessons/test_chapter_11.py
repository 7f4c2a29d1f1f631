"""How chapter 11 shows its patients."""

import re
from types import SimpleNamespace

import pytest

from helpers.lessons import chapter_11
from helpers.lessons.patients import PATIENTS


def test_an_unknown_patient_gets_the_names():
    with pytest.raises(ValueError, match=r"name must be one of .*, Sinc, .*; got 'nope'"):
        chapter_11.consult("nope")


def patient(code, *found, passes=False):
    """In which the doctor finds these codes, and which passes gradcheck or not."""
    findings = [SimpleNamespace(code=code) for code in found]
    report = SimpleNamespace(findings=findings, ok=not findings)
    gradcheck = "differs" if not passes else None
    return SimpleNamespace(
        name="any", code=code, examine=lambda lines: report, gradcheck=lambda: gradcheck
    )


def test_totals_tell_who_is_missed_and_who_is_accused(monkeypatch, capsys):
    named, right = patient("scaled", "scaled"), patient(None)
    twice, passed = patient("scaled", "scaled", "negated"), patient("kept", "kept", passes=True)
    broken = [twice, *17 * [named], passed]
    mistaken, unseen = patient("negated", "scaled"), patient("negated", passes=True)
    monkeypatch.setattr(chapter_11, "BROKEN", [*broken, PATIENTS["OneOfMany"]])
    monkeypatch.setattr(chapter_11, "HEALTHY", 20 * [right])
    chapter_11.totals()
    monkeypatch.setattr(chapter_11, "BROKEN", [*broken, mistaken, unseen])
    monkeypatch.setattr(chapter_11, "HEALTHY", [right, named])
    chapter_11.totals()
    assert re.findall(r"(?:: |than )(about \d+|all but \d+|\w+)", capsys.readouterr().out) == [
        *("0", "all", "about 1", "20", "none"),
        *("20", "all but 2", "about 1", "0", "1"),
    ]
