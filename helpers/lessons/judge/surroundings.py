"""The settings of torch that a check relies on, whatever the notebook has set."""

import contextlib
import errno
import os
import re
import tempfile

import torch

FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
SAYS_FULL = re.compile("No space left on device|Disk quota exceeded")


@contextlib.contextmanager
def usual_settings():
    """Gradients on, no anomaly mode, float32 and the CPU as defaults; then what was
    there before.

    A decorator, too.
    """
    dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.is_anomaly_enabled():  # it prints a warning when it is set
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        yield


def is_full(error):
    """Does `error`, or what caused it, say that a disk is full?"""
    while error:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if SAYS_FULL.search(str(error)):  # what setuptools makes of it
            return True
        error = error.__cause__ or error.__context__
    return False


def raise_if_full(text):
    """Raise OSError if `text`, of a compiler or a linker that failed, says that a disk
    is full.
    """
    if SAYS_FULL.search(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), tempfile.gettempdir())
