"""All trials, in the order in which they are made."""

from . import again, backward, derivative, forward, precision, second, transforms

EARLY, *LATE = again.trial  # what is not the same twice has no derivative
GROUPS = (forward.trial, backward.trial, [EARLY], derivative.trial, LATE, second.trial,
          transforms.trial, precision.trial)  # fmt: skip
TRIALS = [trial for group in GROUPS for trial in group]
