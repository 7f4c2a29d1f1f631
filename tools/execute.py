"""Executes notebooks from a fresh kernel and stores what git should see, and nothing else.

    python -m tools.execute notebooks/02_static_functions.ipynb ...
    python -m tools.execute zh/02_static_functions.ipynb ...          # answers in Chinese

No time stamps; pieces of one text, which a busy machine prints apart, in one; no version of Python.
Figures have 200 dpi, and in the Chinese edition Chinese words, which take a Chinese font. A
figure of it that still says something in English ends the command with 1, and names the words.
Then the pictures of both READMEs are made again.
"""

import base64
import os
import re
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from helpers.lessons.labels import UNTRANSLATED, chinese_font

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / ".github" / "pictures"
ENDINGS = {"notebooks": ".png", "zh": ".zh.png"}
# What is called so in Chinese, too.
NAMES = set(
    "all-gather all-reduce all-to-all autocast autograd backward bool checkpoint clip "
    "compile ctx deepcopy detach eager expand export forward gate grad hessian jvp linear mul "
    "nan pickle pow rank reduce-scatter reverse sigmoid square sum unfold vmap".split()
)


def figures():
    """The PNG bytes of each tagged cell that a README shows, by file name."""
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = set(re.findall(r"\(\.github/pictures/(\w+)\.png\)", readme))
    found = {}
    for path in sorted(p for f in ENDINGS for p in (ROOT / f).glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for tag in cell.metadata.get("tags", []):
                name = tag.removeprefix("picture-")
                if name in shown and name != tag:
                    data = [output.get("data", {}) for output in cell.outputs]
                    (png,) = [d["image/png"] for d in data if "image/png" in d]
                    name += ENDINGS[path.parent.name]
                    assert name not in found, f"{tag} stands at two cells"
                    found[name] = base64.b64decode(png)
    return found


def in_one_piece(outputs):
    for stream, pieces in groupby(outputs, key=lambda output: output.get("name")):
        first, *rest = pieces
        if not stream:
            yield from (first, *rest)
            continue
        first.text += "".join(piece.text for piece in rest)
        yield first


def in_english(labels):
    """Those that a figure says in English: words that are neither code nor names."""
    for label in labels:
        words = re.findall(r"(?<![\w.\\-])[a-z-]{3,}(?![\w.(])", label)
        if set(words) - NAMES and not re.search(r"[\u4e00-\u9fff$=]", label):
            yield label


def execute(path):
    """Executes the notebook; returns what its figures should have said in Chinese."""
    if path.parent.name == "zh" and not chinese_font():
        raise SystemExit("No Chinese font: install one, such as Noto Sans CJK SC.")
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    os.environ["EXTENDING_PYTORCH_SHOW"] = "1"  # no prediction holds an output back
    missing = Path(tempfile.mkstemp()[1])
    os.environ[UNTRANSLATED] = str(missing)
    NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        resources=folder,
        extra_arguments=["--InlineBackend.figure_formats=retina"],  # 200 dpi
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(in_one_piece(cell.outputs))
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)
    return sorted(set(in_english(missing.read_text("utf-8").splitlines())))


if __name__ == "__main__":
    english = []
    for argument in sys.argv[1:]:
        print(argument)
        english += execute(Path(argument))
    for name, png in figures().items():
        (PICTURES / name).write_bytes(png)
    if english:
        raise SystemExit(f"no Chinese for what a figure says: {', '.join(english)}")
