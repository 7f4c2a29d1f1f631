"""The same function under other circumstances: what gradcheck does not ask.

A trial is a generator that takes an `Examination` and yields findings. To ask for the same gradient
once more with one thing changed: see `again.py`. Any other: a generator under `@trial()` in the
file that it belongs to. Each with a patient.
"""

from . import again, backward, derivative, forward, transforms

EARLY, *LATE = again.trial  # what is not the same twice has no derivative
GROUPS = (forward.trial, backward.trial, [EARLY], derivative.trial, LATE, transforms.trial,
          backward.in_low_precision)  # fmt: skip
TRIALS = [trial for group in GROUPS for trial in group]  # in the order in which they are made
