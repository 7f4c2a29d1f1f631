"""What the checks say of notebooks that were handed in, as a table of students and exercises.

    python -m helpers.lessons.grade handed_in/*.ipynb [--seconds 120] [--csv verdicts.csv]

Each notebook is executed from the start, in a kernel and a folder of its own, and each cell ends
after its seconds. ✓ right, ✗ wrong, ○ not attempted; ! the cell raised, ran out of time or ended
its kernel; an empty place: the notebook has no such check.

Formative, not an exam: the solutions lie beside the exercises, and anyone who wants a ✓ can get
one. The notebooks run with your rights: run those of people you do not trust in a container.
"""

import argparse
import csv
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from helpers.lessons.exercise import NOT_ATTEMPTED, RIGHT, WRONG, exercises

RAISED = "!"
VERDICT = re.compile(rf"([{NOT_ATTEMPTED}{WRONG}{RIGHT}]) (\S+) ")
CHECK = re.compile(r"""exercise\(["'](\S+?)["']\)\s*\.check""")


def verdicts(path, seconds):
    """The marks in the notebook at `path`, by the exercise's number; and why it stopped, or None.

    seconds: after which a cell is interrupted
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:
        return {}, f"is no notebook: {error}".splitlines()[0]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs = []  # what was handed in counts for nothing
    stopped = None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        client = NotebookClient(
            notebook,
            timeout=seconds,
            interrupt_on_timeout=True,
            allow_errors=True,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute()
        except Exception as error:
            stopped = f"{type(error).__name__}: {error}".splitlines()[0]
    marks = {}
    for cell in cells:
        asked = CHECK.findall(cell.source)
        said = [
            VERDICT.match(output.data.get("text/plain", ""))
            for output in cell.outputs
            if output.output_type == "display_data"  # not what a cell prints
        ]
        marks |= dict.fromkeys(asked, RAISED)
        marks |= {verdict[2]: verdict[1] for verdict in said if verdict and verdict[2] in asked}
    return marks, stopped


def table(paths, seconds=120):
    """Rows of the table, the first with the exercises of the chapters that were handed in."""
    found = {}
    for path in paths:
        found[path], stopped = verdicts(path, seconds)
        if stopped:
            print(f"{path}: {stopped}", file=sys.stderr)
    seen = {number for marks in found.values() for number in marks}
    chapters = {number.split(".")[0] for number in seen}
    numbers = [e.number for e in exercises() if e.number.split(".")[0] in chapters]
    numbers += sorted(seen - set(numbers))
    yield ["student", *numbers]
    for path, marks in found.items():
        yield [path.with_suffix("").as_posix(), *(marks.get(number, "") for number in numbers)]


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.lessons.grade",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=120, help="for each cell (120)")
    parser.add_argument("--csv", type=Path, default=Path("verdicts.csv"))
    arguments = parser.parse_args()
    if not arguments.seconds > 0:
        parser.error(f"--seconds must be larger than 0, got {arguments.seconds:g}")
    rows = list(table(arguments.notebooks, arguments.seconds))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{value:<{width}}" for value, width in zip(row, widths, strict=True)))
    with open(arguments.csv, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


if __name__ == "__main__":
    main()
