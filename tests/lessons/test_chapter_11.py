"""How chapter 11 shows its patients."""

import re
from dataclasses import replace

import pytest

from helpers.lessons import chapter_11
from helpers.lessons.patients import PATIENTS


def test_an_unknown_patient_gets_the_names():
    with pytest.raises(ValueError, match=r"name must be one of .*, Sinc, .*; got 'nope'"):
        chapter_11.consult("nope")


def test_totals_tell_who_is_missed_and_who_is_accused(monkeypatch, capsys):
    named, passed, right = (PATIENTS[k] for k in ("IgnoresGradOutput", "InputOnCtx", "sine"))
    broken = [PATIENTS["TransposedWeight"], *17 * [named], passed]  # the first has two findings
    mistaken, unseen = (replace(p, code="negated") for p in (named, right))
    monkeypatch.setattr(chapter_11, "BROKEN", [*broken, PATIENTS["OneInAMillion"]])
    monkeypatch.setattr(chapter_11, "HEALTHY", 20 * [right])
    chapter_11.totals()
    monkeypatch.setattr(chapter_11, "BROKEN", [*broken, mistaken, unseen])
    monkeypatch.setattr(chapter_11, "HEALTHY", [right, named])
    chapter_11.totals()
    assert re.findall(r"(?:: |than )(about \d+|all but \d+|\w+)", capsys.readouterr().out) == [
        *("0", "all", "about 1", "20", "none"),
        *("20", "all but 2", "about 1", "0", "1"),
    ]
