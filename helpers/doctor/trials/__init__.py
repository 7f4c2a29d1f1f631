"""The same function under other circumstances: what gradcheck does not ask.

A trial is a generator that takes an `Examination` and yields findings; if it returns
True, what it found makes all later trials pointless. To add one, write its row here,
where it is due, and a patient. A trial that asks for the same gradient with one thing
changed belongs in `again.py`.
"""

from . import again, backward, derivative, forward, second_derivative, transforms

# Codes of findings, or their severity.
ANOTHER = "backward-not-deterministic", "state-between-calls"
NOT_FINITE = "input-not-finite", "forward-not-finite", "backward-not-finite"
COARSE = "too-coarse", "coarse-forward"
NOISY = *ANOTHER, "backward-not-finite", "too-coarse"
UNJUDGED = (
    *ANOTHER,
    *NOT_FINITE,
    "saved-modified",
    "raised",
    "symmetric-only",
    *COARSE,
)
NO_SECOND = (
    *ANOTHER,
    *NOT_FINITE,
    "error",
    "unfaithful",
    "estimator",
    "gradient-none",
    "gradient-wrong",
    "gradient-dtype",
    "output-dtype",
    "singular",
    "symmetric-only",
    *COARSE,
)
TRIALS = {  # in the order in which they are made: after which findings one is left out
    forward.there_are_inputs: (),
    forward.numbers_that_are_given: (),
    forward.forward_twice: (),
    forward.precision_inside: (),
    forward.numbers_that_are_returned: (),
    forward.inputs_are_untouched: (),
    forward.what_ctx_holds: (),
    backward.outputs_require_a_gradient: (),
    backward.what_backward_does: (),
    backward.gradients_are_finite: (),
    again.repeated: ["saved-modified"],  # what is not so has no derivative
    derivative.derivative_of_forward: NOISY,
    again.layouts: ANOTHER,
    again.input_layouts: (*ANOTHER, *NOT_FINITE),
    again.another_user: (*ANOTHER, *NOT_FINITE, "error"),
    again.unused_outputs: (*ANOTHER, *NOT_FINITE, "singular"),
    again.one_input: (*ANOTHER, "swapped"),
    second_derivative.second_derivative: NO_SECOND,
    transforms.forward_mode: UNJUDGED,
    transforms.over_batches: UNJUDGED,
    backward.as_given: (*ANOTHER, "error"),
}
