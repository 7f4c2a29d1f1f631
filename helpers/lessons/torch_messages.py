"""What chapter 09 needs: PyTorch's long messages, cut down to what they say."""

import re
import textwrap

import torch

from helpers.lessons.language import N_, _, followed

# What a message holds, as a regular expression, and what to do about it. The first one
# counts.
HINTS = {
    "incorrectly registered or not traceable|written-to tensor": N_(
        "Does backward change grad_output, or leave PyTorch?"
    ),
    # zuf is a float from .item(), u an integer from it, or (then it is size-like) from
    # a mask.
    r"guard on .* zuf|symbols: none\)(?s:.*)"
    r"\nCaused by: .*(\b(if|while|int|bool)\b|item\()": N_(
        "An `if` on a number from `.item()` must know its value; `max` and `min` "
        "count as computing, `if` does not."
    ),
    "Could not guard on": N_(
        "An `if` on a tensor needs, and a mask as an index may need, numbers that "
        "tracing does not have; torch.where needs none."
    ),
    r"new_empty\(\) takes 1 positional argument": N_(
        "That is what new_empty says of a size that is a float, as / makes it."
    ),
    "leaf Variable that requires grad .* in-place": N_(
        "Return a new tensor; the given function leaves x as it is."
    ),
    "in-place operation .* mutate a captured": N_(
        "Look at: methods that end in an underscore."
    ),
    "autograd formula for non-functional": N_("Do not declare the change, avoid it."),
}


# How PyTorch says what differs between what a kernel returns and what its fake kernel
# promises.
DIFFERENCES = {
    r"Shapes (.*) and (.*) are not equal": N_(
        "Shapes {kernel} of the kernel and {promise} of the promise are not equal."
    ),
    r"Dtypes (.*) and (.*) are not equal": N_(
        "Dtypes {kernel} of the kernel and {promise} of the promise are not equal."
    ),
    r"Devices (.*) and (.*) are not equal": N_(
        "Devices {kernel} of the kernel and {promise} of the promise are not equal."
    ),
    r"Layouts (.*) and (.*) are not equal": N_(
        "Layouts {kernel} of the kernel and {promise} of the promise are not equal."
    ),
    r"Stride mismatch! Strides are (\(.*?\)) and (\(.*?\)) \(.*\)": N_(
        "Strides are {kernel} in the kernel's result and {promise} in the promise."
    ),
}


def essence(error):
    """The innermost cause of `error`, or its first line and the explanation."""
    beside = r" \(with implementation in .*?>\)| \(scroll up.*?\)| at 0x\w+"
    text = re.sub(beside, "", str(error).strip())
    text = text or type(error).__name__
    cause = re.search(r"got \w+\([\"'](.*?)[\"']\)[\"')]*\s*$", text, re.MULTILINE)
    if cause:
        return cause[1]
    explanation = re.search(r"Explanation: (.*)", text)
    return text.splitlines()[0] + (f". {explanation[1]}" if explanation else "")


def in_one_sentence(error):
    """What PyTorch says: a sentence, and a hint where it has no place to look."""
    line = re.sub(r" in file `.*?`", "", essence(error))
    line = re.split(r"(?<=\.) The most common|  \(", line)[0].rstrip(".!")
    line = _difference(line) or f"{line}."
    hints = (hint for pattern, hint in HINTS.items() if re.search(pattern, str(error)))
    hint = next(hints, None)
    return followed(line, hint and _(hint))


def _difference(line):
    """What PyTorch's test says, and what differs, if a promise was broken."""
    for pattern, said in DIFFERENCES.items():
        if match := re.fullmatch(f"(.*?){pattern}", line):
            before, kernel, promise = match.groups()
            return before + _(said, kernel=kernel, promise=promise)
    return None


def raised(error):
    """The type of an exception, and what it says, in one sentence."""
    kind, message = type(error).__name__, in_one_sentence(error)
    return _("{kind}: {message}", kind=kind, message=message)


def say(text, indent=""):
    """Print `text`, wrapped; lines after the first are indented."""
    print(
        textwrap.fill(
            text,
            96,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
    )


def complaint(call, sentences=3):
    """Print what `call()` raises, in at most so many sentences, or nothing."""
    torch.compiler.reset()
    try:
        print("no complaint:", call())
    except Exception as error:
        said = re.split(r"(?<=\.) (?=[A-Z])", essence(error))
        say(f"{type(error).__name__}: {' '.join(said[:sentences])}")
