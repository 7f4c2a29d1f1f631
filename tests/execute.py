"""Executes notebooks from a fresh kernel and stores what git should see, and nothing else.

    python -m tests.execute notebooks/02_static_functions.ipynb ...

No time stamps; pieces of one text, which a busy machine prints apart, in one; no version of Python.
Then the README's pictures are made anew.
"""

import sys
from itertools import groupby
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.test_pictures import PICTURES, figures


def in_one_piece(outputs):
    for stream, pieces in groupby(outputs, key=lambda output: output.get("name")):
        first, *rest = pieces
        if not stream:
            yield from (first, *rest)
            continue
        first.text += "".join(piece.text for piece in rest)
        yield first


def execute(path):
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=600, record_timing=False, resources=folder).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(in_one_piece(cell.outputs))
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(argument)
        execute(Path(argument))
    for name, png in figures().items():
        (PICTURES / name).write_bytes(png)
