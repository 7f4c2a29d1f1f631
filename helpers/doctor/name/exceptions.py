"""What Python and PyTorch refuse, told by the message of the exception."""

import difflib
import os
import re
import traceback

import torch

from ..report import TEXTS, error

IN_PLACE = "methods that end in an underscore, and +="
OF_CTX = [
    "saved_tensors", "save_for_backward", "save_for_forward", "needs_input_grad", "mark_dirty",
]  # fmt: skip

EXCEPTIONS = {  # pattern of the message, whose groups fill the gaps of the text: text
    r"written-to tensor":
        error("grad-output-modified", "Backward changes grad_output in place, which other parts "
              "of the graph may share.", IN_PLACE),
    r"gradient at index (\d+) - got \[(.*?)\] but expected shape compatible with \[(.*?)\]":
        error("gradient-shape", "The gradient of {x} has shape ({1}), but ({2}) belongs there.",
              "reductions and transposes, with the shapes written beside each step"),
    r"incorrect number of gradients \(expected (\d+), got (\d+)\)":
        error("gradient-count", "Backward returned {1} gradient(s), but forward has {0} "
              "argument(s) besides ctx.",
              "one gradient for each argument of forward, None for those without one, as a tuple; "
              "a forgotten return, and a list, count as one"),
    r"gradient different than None at position (\d+)":
        error("gradient-for-constant", "Backward returned a gradient for argument {0} of forward, "
              "which is no tensor.",
              "the place where None belongs"),
    r"expected device (\S+) but got (\S+)":
        error("gradient-device", "Backward returned a gradient on {1} for an input on {0}.",
              "tensors made inside backward"),
    r"expected Variable or None \(got ([\w.]+)\)":
        error("gradient-type", "Backward returned {article} {0} where a tensor or None belongs.",
              "the return statement of backward"),
    r"input_is_complex == grad_is_complex":
        error("complex-for-real", "Backward returned a complex gradient for a real input.",
              "the real part"),
    r"modified by an inplace operation":
        error("saved-modified", "A tensor was changed in place after it had been saved for "
              "backward{which}.", IN_PLACE),
    r"leaf Variable that requires grad":
        error("in-place-leaf", "{phase} failed: an input that requires a gradient is changed in "
              "place.", IN_PLACE),
    r"marked as dirty during the forward method were not returned":
        error("dirty-not-returned", "Forward marks an input as dirty but does not return it.",
              "ctx.mark_dirty"),
    r"Legacy autograd function with non-static":
        error("not-static", "forward and backward of a Function must be static methods.",
              "@staticmethod"),
    r"You must implement":
        error("method-missing", "The Function lacks a method.",
              "the names of its methods, and their indentation"),
    r"(save_for_\w+) (?:can only save variables|expects all arguments)":
        error("saved-no-tensor", "{0} was handed something that is no tensor.",
              "its arguments: one tensor after the other, not in a list; what is no tensor goes "
              "on ctx"),
    r"Backward' object has no attribute '(\w+)'":
        error("attribute-missing", "ctx has no `{0}`{why}.{close}", "{stored}"),
    r"values to unpack":
        error("saved-count", "{phase} unpacks another number of values than there is.",
              "save_for_backward against saved_tensors"),
    r"backward\(\) (?:takes|missing) \d+":
        error("backward-arguments", "Backward must take ctx and one gradient for each output of "
              "forward.",
              "the arguments of backward"),
    r"numpy\(\) on Tensor that requires grad":
        error("numpy-detour", "{phase} handed a tensor that autograd records to NumPy.",
              "the detour by NumPy"),
    r"expected scalar type|same dtype|dtype":
        error("dtype-mix", "{phase} failed: dtypes do not fit.",
              "tensors made with a fixed dtype"),
    r"cannot be multiplied|size of tensor|must match|expand\(|for input of size|Expected size":
        error("shapes-do-not-fit", "{phase} failed: shapes do not fit.",
              "transposes and reductions, with the shapes written beside each step"),
    r"contiguous|view size is not compatible":
        error("layout", "{phase} failed: a contiguous tensor was expected.",
              ".view, data_ptr and kernels"),
    r"":
        error("raised", "{phase} raised {error}.",
              "{line}"),
}  # fmt: skip
GRAD_OUTPUT_MODIFIED = TEXTS["grad-output-modified"]
GRADIENT_SHAPE = TEXTS["gradient-shape"]
SAVED_MODIFIED = TEXTS["saved-modified"]


def told(subject, raised, text=None, x=None, **words):
    """The exception as a finding: as `text`, or as what its message says."""
    said = re.sub(r"0x[0-9a-f]+", "0x...", str(raised.error).strip() or "(no message)")
    said = in_short(said.splitlines()[0])
    seen = {"message": f"{type(raised.error).__name__}: {said}"}
    pattern, meant = next((p, text) for p, text in EXCEPTIONS.items() if re.search(p, said))
    if text and meant is not GRAD_OUTPUT_MODIFIED:
        return placed(text(x, seen=seen, fails="fails with", **words), users_line(raised.error))
    groups = re.search(pattern, said).groups()
    if meant is GRADIENT_SHAPE:
        return wrong_shape(subject, groups, seen)
    place = users_line(raised.error)
    within = [frame.name for frame in traceback.extract_tb(raised.error.__traceback__)]
    words = {
        "phase": "`setup_context`" if "setup_context" in within else raised.phase.capitalize(),
        "error": type(raised.error).__name__,
        "line": place or "the call",
        "which": "",
    }
    if meant.code == "attribute-missing":
        close = difflib.get_close_matches(groups[0], OF_CTX, 1)
        words["close"] = f" Did you mean `{close[0]}`?" if close else ""
        late = raised.phase == "backward"
        words["why"] = ": forward did not put it there" if late else ""
        words["stored"] = "what forward stores on ctx" if late else words["line"]
    if meant.code == "gradient-type":
        words["article"] = "an" if groups[0][0] in "aeiou" else "a"
    return placed(meant(seen=seen, groups=groups, **words), place)


def placed(finding, place):
    """The finding; where it says what to look at, and there is a place, with that."""
    if finding.remedy and place not in finding.remedy:
        finding.remedy += f": {place}"
    return finding


def in_short(line, most=200):
    """As much of a long message as fits: whole sentences, or else whole words."""
    line = re.sub(r",? but expected one of:$", "", line)
    if len(line) <= most:
        return line
    sentences = re.match(rf".{{,{most}}}\.(?= [A-Z])", line)
    return sentences[0] if sentences else line[:most].rpartition(" ")[0] + " ..."


def wrong_shape(subject, groups, seen):
    index, got, wanted = groups
    own = subject.cls and int(index) < len(subject.names)
    x = subject.names[int(index)] if own else f"tensor {index} of a Function"
    if got.split(", ")[::-1] == wanted.split(", ") and got != wanted:
        how = f"transposed: its shape is ({got}), not ({wanted})"
        return TEXTS["transposed"](x, seen=seen, how=how)
    return GRADIENT_SHAPE(x, seen=seen, groups=groups)


def users_line(error):
    """In words, the last line of the user's own code on the way to `error`, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.line and not is_library(f.filename)]
    while len(own) > 1 and own[-1].line.startswith("raise "):  # who called for it says more
        own.pop()
    return "".join(f"`{f.line}` (line {f.lineno}, in `{f.name}`)" for f in own[-1:])


def is_library(file):
    """Is it PyTorch's, of what stands beside it, or the doctor's?"""
    libraries = os.path.dirname(os.path.dirname(torch.__file__))
    return file.startswith(
        tuple(os.path.join(f, "") for f in (libraries, os.path.dirname(__file__)))
    )
