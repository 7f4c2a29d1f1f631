"""Notebooks in which a learner has worked: what is stored there is theirs, and not compared."""

import os
import re
from functools import cache

import nbformat

VERDICT = re.compile(r"([○✗✓]) (\d+\.\d+) ")


@cache
def why_left_out(path):
    """A sentence if the notebook holds answers or execution timestamps; else None.

    In CI, where environments set the variable of that name, nothing is left out.
    """
    if os.environ.get("CI"):
        return None
    marks, timed = {}, False
    for cell in nbformat.read(path, as_version=4).cells:
        timed |= "execution" in cell.metadata
        for output in cell.get("outputs", []):
            if verdict := VERDICT.match(output.get("data", {}).get("text/plain", "")):
                marks.setdefault(verdict[2], set()).add(verdict[1])
    # Chapter 00 shows answers.
    answered = [number for number, given in marks.items() if "○" not in given]
    if not answered and not timed:
        return None
    what = f"answers to {', '.join(answered)}" if answered else "execution timestamps"
    return f"{path.name} holds {what}: its cells and the rules for stored notebooks are left out"
