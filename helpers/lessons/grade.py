"""A table of students and exercises, from notebooks that were handed in.

    python -m helpers.lessons.grade handed_in/*.ipynb [--csv verdicts.csv]
    python -m helpers.lessons.grade --try assignment.py

A folder in place of a notebook is one student: its notebooks make one row. Each
notebook is executed from the start, in a kernel and a folder of its own, which holds a
copy of what lies beside the notebook: modules and data, but no other notebooks, nor
folders that hold some. A cell is interrupted after its seconds, and the kernel is ended
after those of the notebook.

✓ right, ✗ wrong, ○ not attempted; ! no verdict, and a sentence under the table says
why; an empty place: no such check was run. The table grows with each student, and so
does the CSV file.

With --try, the exercises in a module of yours are tried: what is said of the reference,
the stub and the wrong attempts of each.

Formative, not an exam: the solutions lie beside the exercises, and anyone who wants a ✓
can get one. The notebooks run with your rights: run those of people you do not trust in
a container.
"""

import argparse
import asyncio
import contextlib
import csv
import glob
import os
import sys
from pathlib import Path

from helpers.lessons.classroom.handed_in import verdicts
from helpers.lessons.classroom.trial import try_exercises
from helpers.lessons.exercise import exercises
from helpers.lessons.language import _


def students(paths):
    """{student: notebooks}: a folder is one student, and so is a notebook."""
    found = {}
    for path in (p for given in paths for p in _expanded(given)):
        name = path if path.is_dir() else path.with_suffix("")
        notebooks = sorted(path.glob("*.ipynb")) if path.is_dir() else [path]
        found.setdefault(name.as_posix(), []).extend(notebooks)
    return found


def _expanded(path):
    """What a pattern stands for: the shells of Windows leave that to us."""
    return (
        [path]
        if path.exists()
        else [*map(Path, sorted(glob.glob(str(path))))] or [path]
    )


async def grade(notebooks, seconds, total, jobs, after_each):
    """{student: (marks, sentences)} of the students whose notebooks were all run.

    notebooks:  {student: notebooks}
    after_each: called with what is known, and the student who is new in it
    """
    found, free = {}, asyncio.Semaphore(jobs)
    # A kernel that is interrupted as it starts says so with a traceback.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

    async def one(path):
        async with free:
            return await verdicts(path, seconds, total)

    async def row(student):
        marks, sentences = {}, []
        for more, why in await asyncio.gather(*map(one, notebooks[student])):
            marks |= more
            sentences += why
        if not notebooks[student]:
            sentences = [_("the folder holds no notebook.")]
        found[student] = marks, sentences
        after_each(found, student)

    with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C
        await asyncio.gather(*map(row, notebooks))
    return {student: found[student] for student in notebooks if student in found}


def table(found):
    """Rows, the first with the exercises of the chapters that were handed in."""
    seen = {number for marks, why in found.values() for number in marks}
    chapters = {number.split(".")[0] for number in seen}
    numbers = [e.number for e in exercises() if e.number.split(".")[0] in chapters]
    numbers += sorted(seen - {*numbers})
    yield ["student", *numbers, "why"]
    for student, (marks, sentences) in found.items():
        yield [
            student,
            *(marks.get(number, "") for number in numbers),
            " ".join(sentences),
        ]


def write(path, found):
    """The table as a CSV file, with the mark by which Excel knows UTF-8."""
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(table(found))


def show(found):
    """Print the table, and under it the sentences."""
    rows = [row[:-1] for row in table(found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(
                f"{value:<{width}}" for value, width in zip(row, widths, strict=True)
            )
        )
    for student, (_marks, sentences) in found.items():
        for sentence in sentences:
            print(_("{student}: {sentence}", student=student, sentence=sentence))


def say_in_utf_8():
    """For an output that cannot show the marks, as a file of a Windows shell."""
    for stream in (sys.stdout, sys.stderr):
        try:
            "○✗✓".encode(stream.encoding or "utf-8")
        except UnicodeEncodeError:
            stream.reconfigure(encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.lessons.grade",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = os.cpu_count()
    parser.add_argument(
        "notebooks", nargs="*", type=Path, help="notebooks, or folders of them"
    )
    parser.add_argument(
        "--seconds", type=float, default=120, help="for each cell (120)"
    )
    parser.add_argument(
        "--total", type=float, default=900, help="seconds for each notebook (900)"
    )
    parser.add_argument(
        "--jobs", type=int, default=cores, help=f"notebooks at once ({cores})"
    )
    parser.add_argument("--csv", type=Path, default=Path("verdicts.csv"))
    parser.add_argument("--try", type=Path, dest="module", metavar="MODULE")
    arguments = parser.parse_args()
    for option in ("seconds", "total", "jobs"):
        if not getattr(arguments, option) > 0:
            parser.error(
                f"--{option} must be larger than 0, got {getattr(arguments, option):g}"
            )
    if bool(arguments.notebooks) == bool(arguments.module):
        parser.error("give notebooks, or a module with --try")
    say_in_utf_8()
    if arguments.module:
        sys.exit(try_exercises(arguments.module))
    write(arguments.csv, {})  # an error is raised before anything is run
    by_student = students(arguments.notebooks)

    def after_each(found, student):
        # It is open in Excel; the last one is not suppressed.
        with contextlib.suppress(OSError):
            write(arguments.csv, found)
        marks = "  ".join(
            f"{number} {mark}" for number, mark in sorted(found[student][0].items())
        )
        said = _(
            "{done} of {all}: {student}  {marks}",
            done=len(found),
            all=len(by_student),
            student=student,
            marks=marks,
        )
        print(said.rstrip(), file=sys.stderr, flush=True)

    limits = arguments.seconds, arguments.total, arguments.jobs
    # Of the loops that Windows has, this is the one on which Jupyter's sockets work.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        found = runner.run(grade(by_student, *limits, after_each))
    show(found)
    try:
        write(arguments.csv, found)
    except OSError as error:
        sys.exit(
            _("the table is not in {path}: {error}", path=arguments.csv, error=error)
        )
    if len(found) < len(by_student):
        sys.exit(
            _(
                "interrupted: {done} of {all} students are in the table",
                done=len(found),
                all=len(by_student),
            )
        )


if __name__ == "__main__":
    main()
