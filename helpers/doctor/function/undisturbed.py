"""What an examination changes of the random state and of global settings is undone."""

import contextlib
import io
import random
import signal
import sys
import warnings

import torch

from .raised import HANDLERS
from .random_state import generators


@contextlib.contextmanager
def undisturbed():
    """Whatever happens inside to the random state and to global settings is undone."""
    handlers = map(signal.getsignal, map(int, signal.valid_signals()))
    codes = {getattr(getattr(h, "__func__", h), "__code__", None) for h in handlers}
    HANDLERS.update(codes - {None})
    numpy = sys.modules.get("numpy")
    states = [(generator.set_state, generator.get_state()) for generator in generators()]
    states += [(random.setstate, random.getstate())]
    states += [(torch.set_default_dtype, torch.get_default_dtype())]
    states += [(numpy.random.set_state, numpy.random.get_state())] if numpy else []
    try:
        with (
            warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            torch.inference_mode(False), torch.autograd.set_detect_anomaly(False),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        for restore, state in states:
            restore(state)
