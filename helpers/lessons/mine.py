"""Copies the chapters into `mine/`, where you can work while `notebooks/` stays as it came.

    python -m helpers.lessons.mine       # the English edition
    python -m helpers.lessons.mine zh    # the Chinese one

Git ignores `mine/`. A chapter that is already there is left alone, so that your answers stay; the
checks and hints come from `helpers`, and follow every pull.
"""

import argparse
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy(source=ROOT / "notebooks", target=ROOT / "mine"):
    """Copies each chapter that `target` does not hold yet; returns the names of those copied."""
    target.mkdir(exist_ok=True)
    new = [path for path in sorted(source.glob("*.ipynb")) if not (target / path.name).exists()]
    for path in new:
        shutil.copyfile(path, target / path.name)
    return [path.name for path in new]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m helpers.lessons.mine")
    parser.add_argument("edition", nargs="?", choices=["notebooks", "zh"], default="notebooks")
    source = ROOT / parser.parse_args().edition
    if not source.is_dir():
        parser.error(f"there is no folder {source}: run this in a clone of the repository")
    copied = copy(source)
    print(f"{len(copied)} chapters copied to {ROOT / 'mine'}; those that were there are untouched.")
