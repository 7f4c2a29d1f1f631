"""What a wrong gradient is called: a table of causes, a row each, in order of trial.

`whole` and `parts` hold the rows, `where` finds words for the elements that are wrong,
and `exceptions` is the table of what Python and PyTorch refuse. To add a cause, write
one row, with its test, where its priority belongs, and one patient for which it is the
name.
"""

from . import parts, whole

__all__ = ["parts", "whole"]
