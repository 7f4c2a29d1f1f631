"""Copies the chapters into `mine/`, where you can work.

    python -m helpers.lessons.mine       # the English edition
    python -m helpers.lessons.mine zh    # the Chinese one

Git ignores `mine/`. A chapter that is already there is left alone, so that your answers
stay; the checks and hints come from `helpers`, and follow every pull. Run it again
after a pull: it says which chapters have changed since they were copied.
"""

import argparse
import hashlib
import json
import os
import shutil
from pathlib import Path

from helpers.lessons.language import VARIABLE, _

ROOT = Path(__file__).parents[2]
# In mine/: {edition/chapter: the digest of its cells when it was copied}.
COPIED = ".copied.json"


def copy(source=ROOT / "notebooks", target=ROOT / "mine"):
    """Copies each chapter that `target` does not hold yet.

    Returns the names of those copied, and of those that have changed since they were
    copied.
    """
    target.mkdir(exist_ok=True)
    record = target / COPIED
    digests = json.loads(record.read_bytes()) if record.exists() else {}
    copied, changed = [], []
    for path in sorted(source.glob("*.ipynb")):
        key = f"{source.name}/{path.name}"
        if not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)
            digests[key] = _digest(path)
            copied.append(path.name)
        elif digests.get(key, _digest(path)) != _digest(path):
            changed.append(path.name)
    record.write_text(json.dumps(digests, indent=1), encoding="utf-8")
    return copied, changed


def _digest(path):
    """Of what its cells say, not of their outputs."""
    cells = json.loads(path.read_bytes())["cells"]
    text = json.dumps([(cell["cell_type"], "".join(cell["source"])) for cell in cells])
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m helpers.lessons.mine")
    parser.add_argument(
        "edition", nargs="?", choices=["notebooks", "zh"], default="notebooks"
    )
    edition = parser.parse_args().edition
    os.environ.setdefault(VARIABLE, "zh" if edition == "zh" else "en")
    source = ROOT / edition
    if not source.is_dir():
        parser.error(
            f"there is no folder {source}: run this in a clone of the repository"
        )
    copied, changed = copy(source)
    print(
        _(
            "{n} chapters copied to {folder}; those that were there are untouched.",
            n=len(copied),
            folder=ROOT / "mine",
        )
    )
    for name in changed:
        print(
            _(
                "{name} has changed since. To get the new one, rename yours, and run this "
                "again.",
                name=name,
            )
        )
