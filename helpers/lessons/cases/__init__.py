"""Functions for the gradient doctor, for chapter 11 and its own tests.

`BROKEN` and `HEALTHY` are lists of `Case`. A case of `BROKEN` carries the code of the
finding that names what is wrong. The doctor must not accuse a case of `HEALTHY`, which
may carry the code of a note. Chapter 11 calls the cases patients; `PATIENTS` has them
by name.
"""

from . import (  # noqa: F401 (each registers its cases)
    formulas,
    healthy,
    layers,
    paths,
    protocol,
)
from .case import BROKEN, HEALTHY, Case

__all__ = ["BROKEN", "HEALTHY", "PATIENTS", "Case"]

PATIENTS = {case.name: case for case in HEALTHY + BROKEN}
