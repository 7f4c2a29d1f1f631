"""What Python and PyTorch refuse, told by the message of the exception: a table, one row each."""

import re
import textwrap
import traceback
from dataclasses import replace

from ..function.frames import HERE, LIBRARIES
from ..report import TEXTS, error
from ..said import Said

IN_PLACE = "methods that end in an underscore, += and its like, and assignments to an index"
GRADIENT_SHAPE = error(
    "gradient-shape", "The gradient of {x} has shape {got}, but {wanted} belongs there{asked}.",
    "reductions and transposes, with the shapes written beside each step",
)  # fmt: skip

# pattern of the message, whose groups fill the gaps; code, sentence, where to look
EXCEPTIONS = [
    (r"written-to tensor", "grad-output-modified",
     "Backward changes grad_output in place, which other parts of the graph may share.", IN_PLACE),
    (r"incorrect number of gradients \(expected (\d+), got (\d+)\)", "gradient-count",
     "Backward returned {1} gradient(s), but forward has {0} argument(s) besides ctx.",
     "one gradient for each argument of forward, None for those without one, as a tuple; a "
     "forgotten return, and a list, count as one"),
    (r"gradient different than None at position (\d+)", "gradient-for-constant",
     "Backward returned a gradient for argument {0} of forward, which is no tensor.",
     "the place where None belongs"),
    (r"expected device (\S+) but got (\S+)", "gradient-device",
     "Backward returned a gradient on {1} for an input on {0}.", "tensors made inside backward"),
    (r"expected Variable or None \(got ([\w.]+)\)", "gradient-type",
     "Backward returned `{0}` where a tensor or None belongs.", "the return statement of backward"),
    (r"input_is_complex == grad_is_complex", "complex-for-real",
     "Backward returned a complex gradient for a real input.", "the real part"),
    (r"modified by an inplace operation", "saved-modified",
     "A tensor was changed in place after it had been saved for backward{which}.", IN_PLACE),
    (r"leaf Variable that requires grad", "in-place-leaf",
     "{phase} failed: an input that requires a gradient is changed in place.", IN_PLACE),
    (r"marked as dirty during the forward method were not returned", "dirty-not-returned",
     "Forward marks an input as dirty but does not return it.", "ctx.mark_dirty"),
    (r"Legacy autograd function with non-static", "not-static",
     "forward and backward of a Function must be static methods.", "@staticmethod"),
    (r"You must implement", "method-missing", "The Function lacks a method.",
     "the names of its methods, and their indentation"),
    (r"(save_for_\w+) (?:can only save variables|expects all arguments)", "saved-no-tensor",
     "{0} was handed something that is no tensor.",
     "its arguments: one tensor after the other, not in a list; what is no tensor goes on ctx"),
    (r"Backward' object has no attribute '(\w+)'", "attribute-missing", "ctx has no `{0}`.",
     "what forward stores on ctx, and under which name"),
    (r"values to unpack", "saved-count",
     "{phase} unpacks another number of values than there is.",
     "save_for_backward against saved_tensors"),
    (r"backward\(\) (?:takes|missing) \d+", "backward-arguments",
     "Backward must take ctx and one gradient for each output of forward.",
     "the arguments of backward"),
    (r"numpy\(\) on Tensor that requires grad", "numpy-detour",
     "{phase} handed a tensor that autograd records to NumPy.", "the detour by NumPy"),
    (r"expected scalar type|same dtype|dtype", "dtype-mix", "{phase} failed: dtypes do not fit.",
     "tensors made with a fixed dtype"),
    (r"cannot be multiplied|size of tensor|must match|expand\(|for input of size|Expected size",
     "shapes-do-not-fit", "{phase} failed: shapes do not fit.",
     "transposes and reductions, with the shapes written beside each step"),
    (r"contiguous|view size is not compatible", "layout",
     "{phase} failed: a contiguous tensor was expected.", ".view, data_ptr and kernels"),
    (r"", "raised", "{phase} raised {error}.", "the call"),
]  # fmt: skip
ROWS = [(pattern, error(*text)) for pattern, *text in EXCEPTIONS]
GRAD_OUTPUT_MODIFIED, SAVED_MODIFIED = TEXTS["grad-output-modified"], TEXTS["saved-modified"]
PHASES = {"forward": "Forward", "backward": "Backward"}  # where a sentence begins
SHAPE = r"index (\d+) - got \[(.*?)\] but expected shape compatible with \[(.*?)\]"


def told(subject, raised, text=None, x=None, **words):
    """The `CallError` as a finding: as `text`, if it is given, or as what its message says.

    words: keyword arguments of `text`
    """
    message = re.sub(r"0x[0-9a-f]+", "0x...", str(raised.error).strip() or "(no message)")
    # What follows "expected one of:" is a list of signatures.
    message = message.splitlines()[0].removesuffix(", but expected one of:")
    message = textwrap.shorten(message, 200, placeholder=" ...")
    seen = {"message": f"{type(raised.error).__name__}: {message}"}
    place = users_line(raised.error)
    meant, groups = next((text, m.groups()) for pattern, text in ROWS
                         if (m := re.search(pattern, message)))  # fmt: skip
    if text and meant is not GRAD_OUTPUT_MODIFIED:
        finding = text(x, seen=seen, fails="fails with", **words)
    elif shapes := re.search(SHAPE, message):
        return wrong_shape(subject, *shapes.groups(), seen)
    else:
        within = [frame.name for frame in traceback.extract_tb(raised.error.__traceback__)]
        phase = PHASES.get(raised.phase, raised.phase)
        phase = "`setup_context`" if "setup_context" in within else phase
        numbered = {str(k): group for k, group in enumerate(groups)}
        error = type(raised.error).__name__
        finding = meant(seen=seen, which="", phase=phase, error=error, **numbered)
    if not (place and finding.look):
        return finding
    if finding.code == "raised":
        return replace(finding, look=place)
    return replace(finding, look=Said("{look}: {place}", look=finding.look, place=place))


def wrong_shape(subject, k, got, wanted, seen):
    """The finding for argument k of a Function, whose gradient has another shape than it."""
    own = subject.cls and int(k) < len(subject.names)
    x = subject.names[int(k)] if own else f"tensor {k} of a Function"
    got, wanted = (tuple(map(int, re.findall(r"\d+", shape))) for shape in (got, wanted))
    asked = ": perhaps it is transposed" * (got[::-1] == wanted != got)
    return GRADIENT_SHAPE(x, seen=seen, got=got, wanted=wanted, asked=asked)


def users_line(error):
    """The last line of the user's own code on the way to `error`: `Said`, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.line and not f.filename.startswith((*LIBRARIES, HERE))]
    while len(own) > 1 and own[-1].line.startswith("raise "):  # who called for it says more
        own.pop()
    if not own:
        return None
    last = own[-1]
    where = {"line": last.lineno, "function": last.name}
    return Said("`{code}` (line {line}, in `{function}`)", code=last.line, **where)
