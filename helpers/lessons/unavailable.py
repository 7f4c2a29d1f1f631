"""What chapters say in place of a result where something is missing here."""

import contextlib
import re

import cffi
import matplotlib.pyplot as plt

from helpers.lessons.language import _
from helpers.lessons.native.c_and_cpp import NativeError
from helpers.ops.involution.compiler import CompilerNotFoundError

# English in both editions, because the tests of the notebooks read it.
NOT_HERE = "not on this machine: "
MISSING = "{missing}. The course's own run shows what you would see here."
_missing = None  # why an earlier block of this notebook ended early


@contextlib.contextmanager
def or_say_why():
    """Run the block, or print a sentence where a compiler or CuPy is missing.

    So do later blocks, for names that an earlier one would have made.
    """
    global _missing
    try:
        yield
    except (CompilerNotFoundError, ImportError, cffi.VerificationError) as error:
        _missing = str(error)
    except RuntimeError as error:
        if not str(error).startswith(("Ninja is required", "Error building extension")):
            raise
        lines = str(error).splitlines()
        said = [line for line in lines if "error:" in line or "not found" in line]
        line = (said or lines)[0]
        own = re.search(r"main\.cpp:(\d+):.*?error: (.*)", line)
        if own:  # the reader's text, not the machine
            wrong = _(
                "line {line} of the text does not compile: {error}",
                line=own[1],
                error=own[2],
            )
            raise NativeError(wrong) from None
        _missing = line
    except NameError:
        if _missing is None:
            raise
    else:
        return
    plt.close()  # a figure that was begun
    print(NOT_HERE + MISSING.format(missing=_missing))
