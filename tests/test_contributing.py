"""CONTRIBUTING.md's map: every room is in it, and what is in it is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "helpers" / "lessons"


def test_the_map_is_true():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set()
    for within, cell in re.findall(r"^\| (– )?(`.+?`) \|", text, re.MULTILINE):
        named |= {
            (LESSONS if within else ROOT) / name for name in re.findall("`(.+?)`", cell)
        }
    missing = [path.relative_to(ROOT).as_posix() for path in named if not path.exists()]
    assert not missing, f"take {missing} out of the map in CONTRIBUTING.md"
    rooms = {
        *LESSONS.iterdir(),
        *(ROOT / "helpers").iterdir(),
        *(ROOT / "tests").iterdir(),
    }
    hidden = [
        path.relative_to(ROOT).as_posix()
        for path in rooms - named
        if not path.name.startswith(("_", "test_"))
    ]
    assert not hidden, f"write a row for {hidden} into the map in CONTRIBUTING.md"
