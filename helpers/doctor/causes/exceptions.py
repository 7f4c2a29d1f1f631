"""What Python and PyTorch refuse, by the exception's message: a table, a row each."""

import re
import textwrap
import traceback
from dataclasses import replace

from ..function.private import FunctionCtx
from ..function.source import HERE, LIBRARIES
from ..report import TEXTS, error
from ..words import N_, _

IN_PLACE = N_(
    "methods that end in an underscore, += and its like, and assignments to an index"
)
GRADIENT_SHAPE = error(
    "gradient-shape",
    "The gradient of {x} has shape {got}, but {wanted} belongs there.",
    "reductions and transposes, with the shapes written beside each step",
)

# pattern of the message, whose groups fill the gaps; code, sentence, where to look
EXCEPTIONS = {
    r"written-to tensor": error(
        "grad-output-modified",
        "Backward changes grad_output in place, which other parts of the graph "
        "may share.",
        IN_PLACE,
    ),
    r"incorrect number of gradients \(expected (\d+), got (\d+)\)": error(
        "gradient-count",
        "Backward returned {1} gradient(s), but forward has {0} argument(s) "
        "besides ctx.",
        "one gradient for each argument of forward, None for those without one, "
        "as a tuple; a forgotten return, and a list, count as one",
    ),
    r"gradient different than None at position (\d+)": error(
        "gradient-for-constant",
        "Backward returned a gradient for argument {0} of forward, which is no tensor.",
        "the place where None belongs",
    ),
    r"expected Variable or None \(got ([\w.]+)\)": error(
        "gradient-type",
        "Backward returned `{0}` where a tensor or None belongs.",
        "the return statement of backward",
    ),
    r"input_is_complex == grad_is_complex": error(
        "complex-for-real",
        "Backward returned a complex gradient for a real input.",
        "the real part",
    ),
    r"modified by an inplace operation": error(
        "saved-modified",
        "A tensor was changed in place after it had been saved for backward{which}.",
        IN_PLACE,
    ),
    r"leaf Variable that requires grad": error(
        "in-place-leaf",
        "{phase} failed: an input that requires a gradient is changed in place.",
        IN_PLACE,
    ),
    r"marked as dirty during the forward method were not returned": error(
        "dirty-not-returned",
        "Forward marks an input as dirty but does not return it.",
        "ctx.mark_dirty",
    ),
    r"Legacy autograd function with non-static": error(
        "not-static",
        "forward and backward of a Function must be static methods.",
        "@staticmethod",
    ),
    r"You must implement": error(
        "method-missing",
        "The Function lacks a method.",
        "the names of its methods, and their indentation",
    ),
    r"(save_for_\w+) (?:can only save variables|expects all arguments)": error(
        "saved-no-tensor",
        "{0} was handed something that is no tensor.",
        "its arguments: one tensor after the other, not in a list; what is no "
        "tensor goes on ctx",
    ),
    r"Backward' object has no attribute '(\w+)'": error(
        "attribute-missing",
        "ctx has no `{0}`.",
        "what forward stores on ctx, and under which name",
    ),
    r"values to unpack": error(
        "saved-count",
        "{phase} unpacks another number of values than there is.",
        "save_for_backward against saved_tensors",
    ),
    r"backward\(\) (?:takes|missing) \d+": error(
        "backward-arguments",
        "Backward must take ctx and one gradient for each output of forward.",
        "the arguments of backward",
    ),
    r"numpy\(\) on Tensor that requires grad": error(
        "numpy-detour",
        "{phase} handed a tensor that autograd records to NumPy.",
        "the detour by NumPy",
    ),
    r"cannot be multiplied|size of tensor|must match|expand\(|for input of "
    r"size|Expected size": error(
        "shapes-do-not-fit",
        "{phase} failed: shapes do not fit.",
        "transposes and reductions, with the shapes written beside each step",
    ),
    r"contiguous|view size is not compatible": error(
        "layout",
        "{phase} failed: a contiguous tensor was expected.",
        ".view, data_ptr and kernels",
    ),
    r"": error("raised", "{phase} raised {error}.", "the call"),
}
GRAD_OUTPUT_MODIFIED = TEXTS["grad-output-modified"]
SAVED_MODIFIED = TEXTS["saved-modified"]
PHASES = {"forward": N_("Forward"), "backward": N_("Backward")}  # as a sentence begins
UNRECORDED = N_(
    "torch.enable_grad(), around what backward differentiates: nothing is recorded "
    "there"
)
IN_FORWARD = N_(
    "torch.enable_grad(), around what is differentiated there: inside the forward of a "
    "Function, nothing is recorded: {place}"
)
NOT_ASKED = N_(
    "ctx.needs_input_grad: torch.autograd.grad takes no tensor that requires no "
    "gradient: {place}"
)
SHAPE = r"index (\d+) - got \[(.*?)\] but expected shape compatible with \[(.*?)\]"


def as_finding(subject, raised, text=None, x=None, **words):
    """The `CallError` as a finding: as `text`, if it is given, or as its message says.

    words: keyword arguments of `text`
    """
    message = str(raised.error).strip() or "(no message)"
    message = re.sub(r"0x[0-9a-f]+", "0x...", message)
    # What follows "expected one of:" is a list of signatures.
    message = message.splitlines()[0].removesuffix(", but expected one of:")
    message = textwrap.shorten(message, 200, placeholder=" ...")
    error = type(raised.error).__name__
    values = {"message": f"{error}: {message}"}
    found = (
        (re.search(pattern, message), meant) for pattern, meant in EXCEPTIONS.items()
    )
    match, meant = next(pair for pair in found if pair[0])
    if text and meant is not GRAD_OUTPUT_MODIFIED:
        finding = text(x, values=values, message=text.raises, **words)
    elif shapes := re.search(SHAPE, message):
        return wrong_shape(subject, *shapes.groups(), values)
    else:
        phase = _(PHASES.get(raised.phase, raised.phase))
        if any(f.name == "setup_context" for f in frames_of(raised.error)):
            phase = "`setup_context`"
        gaps = {"groups": match.groups(), "which": "", "phase": phase, "error": error}
        finding = meant(values=values, **gaps)
    frame = users_line(raised.error)
    if not (frame and finding.remedy):
        return finding
    in_backward = raised.phase == "backward"
    unrecorded = "does not require grad" in message
    of_inputs = in_backward and "differentiated Tensors" in message
    if unrecorded and in_backward and not (text or of_inputs):
        return replace(finding, remedy=_(UNRECORDED))
    remedy = _(
        "`{code}` (line {line}, in `{function}`)",
        code=frame.line,
        line=frame.lineno,
        function=frame.name,
    )
    if of_inputs:
        remedy = _(NOT_ASKED, place=remedy)
    elif unrecorded and not in_backward and in_a_forward(raised.error):
        remedy = _(IN_FORWARD, place=remedy)
    elif finding.code != "raised":
        remedy = _("{look}: {place}", look=finding.remedy, place=remedy)
    return replace(finding, remedy=remedy, file=frame.filename, line=frame.lineno)


def wrong_shape(subject, k, got, wanted, values):
    """The finding for argument k of a Function, whose gradient has another shape."""
    own = subject.cls and int(k) < len(subject.names)
    x = subject.names[int(k)] if own else f"tensor {k} of a Function"
    got, wanted = (
        tuple(map(int, re.findall(r"\d+", shape))) for shape in (got, wanted)
    )
    return GRADIENT_SHAPE(x, values=values, got=got, wanted=wanted)


def frames_of(error):
    return traceback.extract_tb(error.__traceback__)


def in_a_forward(error):
    """Was it raised in the forward of a Function?"""
    frames = [frame for frame, _line in traceback.walk_tb(error.__traceback__)]
    held = [value for frame in frames for value in frame.f_locals.values()]
    return any(isinstance(value, FunctionCtx) for value in held)


def users_line(error):
    """The last frame of the user's own code on the way to `error`, or None."""
    frames = frames_of(error)
    known = (*LIBRARIES, HERE)
    own = [f for f in frames if f.line and not f.filename.startswith(known)]
    # Who called for what raises says more.
    while len(own) > 1 and own[-1].line.startswith("raise "):
        own.pop()
    return own[-1] if own else None
