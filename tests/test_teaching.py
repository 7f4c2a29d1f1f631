"""Plans hold what the README's table of chapters says; TEACHING.md's example is right."""

import re
from pathlib import Path

from helpers.lessons.classroom.trial import try_exercises

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEACHING = (ROOT / "TEACHING.md").read_text(encoding="utf-8")
ASSIGNMENT, TWO_INPUTS = re.findall(r"```python\n(.*?)```", TEACHING, re.DOTALL)
WEEKS = [
    [cell.strip() for cell in row.split("|")]
    for row in re.findall(r"^\| (\d+ \| .+) \|$", TEACHING, re.MULTILINE)
]
CHAPTERS = {  # minutes of the core and the exercises, and the chapters that it needs
    chapter: (sum(map(int, minutes.split("+")[:2])), re.findall(r"\d\d", needs))
    for chapter, minutes, needs in re.findall(
        r"^\| \[(\d\d) .*\| ([\d +]+) \| ([^|]+) \|$", README, re.MULTILINE
    )
}


def test_each_week_has_the_hours_of_its_chapters_and_time_to_talk():
    assert [int(week[0]) for week in WEEKS] == [*range(1, 11)]
    for week, chapters, hours, *_ in WEEKS:
        minutes = sum(CHAPTERS[chapter][0] for chapter in chapters.split(", "))
        assert minutes <= 60 * float(hours) <= 1.6 * minutes, (
            f"week {week}: {minutes} minutes"
        )


def test_every_chapter_comes_once_and_after_those_that_it_builds_on():
    seen = set()
    for week, chapters, *_ in WEEKS:
        new = {*chapters.split(", ")}
        assert not new & seen
        seen |= new
        for chapter in new:
            assert {*CHAPTERS[chapter][1]} <= seen, (
                f"week {week}: {chapter} comes too early"
            )
    assert seen == CHAPTERS.keys()


def test_the_ways_through_say_their_hours():
    """The hours of each way in the README are those of its chapters."""
    ways = re.findall(r"^- \*\*.+\*\*, (\d+) hours: (.+)\.$", README, re.MULTILINE)
    assert len(ways) >= 3
    for hours, chapters in ways:
        numbers = {*re.findall(r"\d\d", chapters)}
        if chapters.startswith("all"):
            numbers = CHAPTERS.keys() - numbers
        sums = round(sum(CHAPTERS[number][0] for number in numbers) / 60)
        assert int(hours) == sums, f"write {sums} hours for `{chapters}` into README.md"


def test_the_example_is_as_it_says(tmp_path):
    path = tmp_path / "two_inputs.py"
    path.write_text(TWO_INPUTS, encoding="utf-8")
    assert try_exercises(path) is None
