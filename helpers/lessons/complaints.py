"""What chapter 09 needs: PyTorch's long messages, cut down to what they say."""

import re
import textwrap

import torch


def essence(error):
    """The innermost cause of `error`, or its first line and the explanation under it."""
    text = re.sub(r" \(with implementation in .*?>\)| \(scroll up.*?\)", "", str(error).strip())
    cause = re.search(r"got \w+\([\"'](.*?)[\"']\)\s*$", text, re.MULTILINE)
    if cause:
        return cause[1]
    explanation = re.search(r"Explanation: (.*)", text)
    return text.splitlines()[0] + (f". {explanation[1]}" if explanation else "")


def say(text, indent=""):
    """Print `text`, wrapped; lines after the first are indented."""
    print(
        textwrap.fill(
            text, 96, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
        )
    )


def complaint(call, sentences=3):
    """Print what `call()` raises, in at most so many sentences, or that it raises nothing."""
    torch.compiler.reset()
    try:
        print("no complaint:", call())
    except Exception as error:
        words = re.split(r"(?<=\.) (?=[A-Z])", essence(error))
        say(f"{type(error).__name__}: {' '.join(words[:sentences])}")
