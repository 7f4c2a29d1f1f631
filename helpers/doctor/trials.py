"""All trials, in the order in which they are made."""

from . import backward, circumstances, derivative, forward, precision, second, transforms

GROUPS = (forward, backward, derivative, circumstances, second, transforms, precision)
TRIALS = [trial for group in GROUPS for trial in group.trial]
