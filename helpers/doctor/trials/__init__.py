"""The same function under other circumstances: what gradcheck does not ask.

A trial is a generator that takes an `Examination` and yields findings; if it returns
True, what it found makes all later trials pointless. To add one, write its row here,
where it is due, and a patient. A trial that asks for the same gradient with one thing
changed belongs in `again.py`.
"""

from . import again, backward, derivative, forward, second_derivative, transforms
from .examination import Trial

ANOTHER = "backward-not-deterministic", "state-between-calls"
NOT_FINITE = "input-not-finite", "forward-not-finite", "backward-not-finite"
NO_DIFFERENCES = "too-coarse", "coarse-forward"
NOISY = *ANOTHER, "backward-not-finite", "too-coarse"
UNJUDGED = (
    *ANOTHER,
    *NOT_FINITE,
    "saved-modified",
    "raised",
    "symmetric-only",
    *NO_DIFFERENCES,
)
NO_SECOND = (
    *NOT_FINITE,
    "error",
    "unfaithful",
    "estimator",
    "gradient-none",
    "gradient-dtype",
    "output-dtype",
    "singular",
    "symmetric-only",
    *NO_DIFFERENCES,
)
TRIALS = [  # in the order in which they are made
    Trial(forward.there_are_inputs),
    Trial(forward.numbers_that_are_given),
    Trial(forward.forward_twice),
    Trial(forward.precision_inside),
    Trial(forward.numbers_that_are_returned),
    Trial(forward.inputs_are_untouched),
    Trial(forward.what_ctx_holds),
    Trial(backward.outputs_require_a_gradient),
    Trial(backward.what_backward_does),
    Trial(backward.gradients_are_finite),
    Trial(
        again.repeated, unless=["saved-modified"]
    ),  # what is not so has no derivative
    Trial(derivative.derivative_of_forward, unless=NOISY),
    Trial(again.layouts, unless=ANOTHER),
    Trial(again.input_layouts, unless=(*ANOTHER, *NOT_FINITE)),
    Trial(again.unused_outputs, unless=(*ANOTHER, *NOT_FINITE, "singular")),
    Trial(again.one_input, unless=(*ANOTHER, "swapped")),
    Trial(second_derivative.second_derivative, unless=NO_SECOND),
    Trial(transforms.forward_mode, unless=UNJUDGED),
    Trial(transforms.over_batches, unless=UNJUDGED),
    Trial(backward.as_given, unless=["error"]),
]
