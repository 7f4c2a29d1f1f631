"""All trials, in the order in which they are made."""

from . import again, arguments, backward, derivative, forward, precision, second, transforms

EARLY, LATE = again.trial[:1], again.trial[1:]  # what is not the same twice has no derivative
GROUPS = (
    forward.trial, backward.trial, EARLY, derivative.trial, arguments.trial, LATE, second.trial,
    transforms.trial, precision.trial,
)  # fmt: skip
TRIALS = [trial for group in GROUPS for trial in group]
