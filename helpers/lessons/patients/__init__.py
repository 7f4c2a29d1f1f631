"""Broken Functions for chapter 11 and for the tests of the gradient doctor, and healthy ones.

`BROKEN` and `HEALTHY` are lists of `Patient`. Those of `BROKEN` carry the code of the finding that
names what is wrong with them; the doctor must not accuse those of `HEALTHY`, which may carry the
code of a note. Every code of the doctor has a patient.
"""

from . import (  # noqa: F401
    contributions,
    formulas,
    healthy,
    healthy_numbers,
    left_behind,
    misleading,
    numbers,
    products,
    protocol,
    refused,
    transforms,
)  # fmt: skip
from .patient import BROKEN, HEALTHY, Patient

__all__ = ["BROKEN", "HEALTHY", "PATIENTS", "Patient"]

PATIENTS = {patient.name: patient for patient in HEALTHY + BROKEN}
