"""All trials, in the order in which they are made."""

from . import arguments, backward, derivative, forward, handed, precision, second, transforms

GROUPS = (forward, backward, derivative, arguments, handed, second, transforms, precision)
TRIALS = [trial for group in GROUPS for trial in group.trial]
