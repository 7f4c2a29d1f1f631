"""What Python and PyTorch refuse, told by the message of the exception."""

import difflib
import os
import re
import traceback

import torch

from .report import TEXTS, error

IN_PLACE = "methods that end in an underscore, and +="
OF_CTX = ["saved_tensors", "save_for_backward", "needs_input_grad", "mark_dirty"]

EXCEPTIONS = {}  # pattern: text; the groups of the pattern fill the gaps of the text


def refused(pattern, code, message, look=""):
    EXCEPTIONS[pattern] = error(code, message, look)
    return EXCEPTIONS[pattern]


GRAD_OUTPUT_MODIFIED = refused(
    r"written-to tensor",  # an expanded grad_output, which has one element
    "grad-output-modified",
    "Backward changes grad_output in place, which other parts of the graph may share.",
    look=IN_PLACE,
)
GRADIENT_SHAPE = refused(
    r"gradient at index (\d+) - got \[(.*?)\] but expected shape compatible with \[(.*?)\]",
    "gradient-shape",
    "The gradient of {x} has shape ({1}), but ({2}) belongs there.",
    look="reductions and transposes, with the shapes written beside each step",
)
refused(
    r"incorrect number of gradients \(expected (\d+), got (\d+)\)",
    "gradient-count",
    "Backward returned {1} gradient(s), but forward has {0} argument(s) besides ctx.",
    look="one gradient for each argument of forward, None for those without one, as a tuple; a "
    "forgotten return, and a list, count as one",
)
refused(
    r"gradient different than None at position (\d+)",
    "gradient-for-constant",
    "Backward returned a gradient for argument {0} of forward, which is no tensor.",
    look="the place where None belongs",
)
refused(
    r"expected device (\S+) but got (\S+)",
    "gradient-device",
    "Backward returned a gradient on {1} for an input on {0}.",
    look="tensors made inside backward",
)
refused(
    r"expected Variable or None \(got (\w+)\)",
    "gradient-type",
    "Backward returned {article} {0} where a tensor or None belongs.",
    look="the return statement of backward",
)
refused(
    r"input_is_complex == grad_is_complex",
    "complex-for-real",
    "Backward returned a complex gradient for a real input.",
    look="the real part",
)
SAVED_MODIFIED = refused(
    r"modified by an inplace operation",
    "saved-modified",
    "A tensor was changed in place after it had been saved for backward{which}.",
    look=IN_PLACE,
)
refused(
    r"leaf Variable that requires grad",
    "in-place-leaf",
    "{phase} failed: an input that requires a gradient is changed in place.",
    look=IN_PLACE,
)
refused(
    r"marked as dirty during the forward method were not returned",
    "dirty-not-returned",
    "Forward marks an input as dirty but does not return it.",
    look="ctx.mark_dirty",
)
refused(
    r"Legacy autograd function with non-static",
    "not-static",
    "forward and backward of a Function must be static methods.",
    look="@staticmethod",
)
refused(
    r"You must implement",
    "method-missing",
    "The Function lacks a method.",
    look="the names of its methods, and their indentation",
)
refused(
    r"save_for_backward can only save variables",
    "saved-no-tensor",
    "save_for_backward was handed something that is no tensor.",
    look="its arguments: one tensor after the other, not in a list; what is no tensor goes on ctx",
)
refused(
    r"Backward' object has no attribute '(\w+)'",
    "attribute-missing",
    "ctx has no `{0}`: forward did not put it there.{close}",
    look="what forward stores on ctx",
)
refused(
    r"values to unpack",
    "saved-count",
    "{phase} unpacks another number of values than there is.",
    look="save_for_backward against saved_tensors",
)
refused(
    r"backward\(\) (?:takes|missing) \d+",
    "backward-arguments",
    "Backward must take ctx and one gradient for each output of forward.",
    look="the arguments of backward",
)
refused(
    r"numpy\(\) on Tensor that requires grad",
    "numpy-detour",
    "{phase} handed a tensor that autograd records to NumPy.",
    look="the detour by NumPy",
)
refused(
    r"expected scalar type|same dtype|dtype",
    "dtype-mix",
    "{phase} failed: dtypes do not fit.",
    look="tensors made with a fixed dtype",
)
refused(
    r"cannot be multiplied|size of tensor|must match|expand\(|for input of size|Expected size",
    "shapes-do-not-fit",
    "{phase} failed: shapes do not fit.",
    look="transposes and reductions, with the shapes written beside each step",
)
refused(
    r"contiguous|view size is not compatible",
    "layout",
    "{phase} failed: a contiguous tensor was expected.",
    look=".view, data_ptr and kernels",
)
refused(r"", "raised", "{phase} raised {error}.", look="{line}")


def told(subject, raised, text=None, x=None, **words):
    """The exception as a finding: as `text`, or as what its message says."""
    said = re.sub(r"0x[0-9a-f]+", "0x...", str(raised.error).strip() or "(no message)")
    said = said.splitlines()[0][:200]
    seen = {"message": f"{type(raised.error).__name__}: {said}"}
    pattern, meant = next((p, text) for p, text in EXCEPTIONS.items() if re.search(p, said))
    if text and meant is not GRAD_OUTPUT_MODIFIED:
        return text(x, seen=seen, fails="fails with", **words)
    groups = re.search(pattern, said).groups()
    if meant is GRADIENT_SHAPE:
        return wrong_shape(subject, groups, seen)
    line = users_line(raised.error)
    words = {
        "phase": raised.phase.capitalize(),
        "error": type(raised.error).__name__,
        "line": f"`{line}`" if line else "the call",
        "which": "",
    }
    if meant.code == "attribute-missing":
        close = difflib.get_close_matches(groups[0], OF_CTX, 1)
        words["close"] = f" Did you mean `{close[0]}`?" if close else ""
    if meant.code == "gradient-type":
        words["article"] = "an" if groups[0][0] in "aeiou" else "a"
    return meant(seen=seen, groups=groups, **words)


def wrong_shape(subject, groups, seen):
    index, got, wanted = groups
    own = subject.cls and int(index) < len(subject.names)
    x = subject.names[int(index)] if own else f"tensor {index} of a Function"
    if got.split(", ")[::-1] == wanted.split(", ") and got != wanted:
        how = f"transposed: its shape is ({got}), not ({wanted})"
        return TEXTS["transposed"](x, seen=seen, how=how)
    return GRADIENT_SHAPE(x, seen=seen, groups=groups)


def users_line(error):
    """The last line of the user's own code on the way to `error`, or None."""
    libraries = os.path.dirname(os.path.dirname(torch.__file__))
    others = tuple(os.path.join(folder, "") for folder in (libraries, os.path.dirname(__file__)))
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.line for f in frames if f.line and not f.filename.startswith(others)]
    while len(lines) > 1 and lines[-1].startswith("raise "):  # who called for it says more
        lines.pop()
    return lines[-1] if lines else None
