"""All trials, in the order in which they are made."""

from . import (
    arguments,
    backward,
    circumstances,
    derivative,
    forward,
    precision,
    second,
    transforms,
)

GROUPS = (forward, backward, derivative, arguments, circumstances, second, transforms,
          precision)  # fmt: skip
TRIALS = [trial for group in GROUPS for trial in group.trial]
