"""The README's pictures are figures of the notebooks: that of the cell tagged `picture-NAME`."""

import base64
import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / ".github" / "pictures"


def figures():
    """The PNG bytes of each tagged cell, by file name."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for tag in cell.metadata.get("tags", []):
                if tag.startswith("picture-"):
                    data = [output.get("data", {}) for output in cell.outputs]
                    (png,) = [d["image/png"] for d in data if "image/png" in d]
                    name = tag.removeprefix("picture-") + ".png"
                    assert name not in found, f"{tag} stands at two cells"
                    found[name] = base64.b64decode(png)
    return found


def test_each_picture_is_the_figure_of_its_notebook():
    shown = re.findall(r"\(\.github/pictures/(\S+?)\)", (ROOT / "README.md").read_text("utf-8"))
    given = figures()
    assert sorted(shown) == sorted(given) == sorted(path.name for path in PICTURES.iterdir())
    stale = [name for name in given if (PICTURES / name).read_bytes() != given[name]]
    assert stale == [], "make them anew: python -m tests.execute"
