"""Calls that disturb nobody: what they raise, draw, print and set."""

import contextlib
import io
import os
import random
import signal
import sys
import traceback
import warnings

import torch
from torch.overrides import TorchFunctionMode

from .private import buffers_kept

# --- what a call raises ---------------------------------------------------------------

HANDLERS = set()  # the code of the caller's signal handlers


class CallError(Exception):
    """The examined function raised `error` in `phase`."""

    def __init__(self, phase, error):
        self.phase, self.error = phase, error


# Classes, not generators: a generator's frames would hold the error until Python next
# collects cycles, and with it what the call had left open, such as a checkpoint's hooks.
class phase(contextlib.AbstractContextManager):  # noqa: N801
    """What is raised inside becomes a CallError, but for a caller's time limit."""

    def __init__(self, name):
        self.name = name

    def __exit__(self, kind, error, _traceback):
        if isinstance(error, Exception) and not of_a_signal(error):
            raise CallError(self.name, error) from error


class forgiving(contextlib.AbstractContextManager):  # noqa: N801
    """What is raised inside does not matter, but for a caller's time limit."""

    def __exit__(self, kind, error, _traceback):
        return isinstance(error, Exception) and not of_a_signal(error)


@contextlib.contextmanager
def empty_is_nan():
    """Inside, `torch.empty` and its like hold nan, so that what is not filled shows."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def of_a_signal(error):
    """Was it raised by a signal handler, such as that of a caller's time limit?"""
    if isinstance(error, CallError):  # one of a signal has not become one
        return False
    return any(
        frame.f_code in HANDLERS for frame, _ in traceback.walk_tb(error.__traceback__)
    )


# --- random numbers: seeded, and noticed where they are drawn -------------------------


def generators():
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *cuda]


def reseed(seed):
    """Seed PyTorch's, Python's and NumPy's random numbers."""
    seed += 2718281828  # not the seed of a caller whose input was drawn from it
    for generator in generators():
        generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def draws():
    """Has the run that has just ended drawn random numbers?"""
    after = [generator.get_state() for generator in generators()]
    reseed(0)
    before = [generator.get_state() for generator in generators()]
    return any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


class OwnGenerators(TorchFunctionMode):
    """Notes whether random numbers come from other generators than the default."""

    used = False

    @contextlib.contextmanager
    def everywhere(self):
        """Inside, from those of Python, too, and from what the system seeds."""
        before, default = sys.getprofile(), random.random.__self__

        def hear(_frame, event, called):
            owner = event == "c_call" and getattr(called, "__self__", None)
            own = isinstance(owner, random.Random) and owner is not default
            self.used |= own or called is os.urandom

        sys.setprofile(hear)
        try:
            yield
        finally:
            sys.setprofile(before)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.used |= bool(kwargs) and kwargs.get("generator") is not None
        return func(*args, **(kwargs or {}))


# --- the random state and global settings stay as they are ----------------------------


@contextlib.contextmanager
def undisturbed():
    """Whatever happens inside to the random state and to global settings is undone."""
    handlers = map(signal.getsignal, map(int, signal.valid_signals()))
    codes = {getattr(getattr(h, "__func__", h), "__code__", None) for h in handlers}
    HANDLERS.update(codes)
    numpy = sys.modules.get("numpy")
    states = [
        (random.setstate, random.getstate()),
        (torch.set_default_dtype, torch.get_default_dtype()),
        *((one.set_state, one.get_state()) for one in generators()),
    ]
    states += [(numpy.random.set_state, numpy.random.get_state())] if numpy else []
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            buffers_kept(),
            torch.inference_mode(False),
            torch.autograd.set_detect_anomaly(False),
            # A GPU's backward, too, runs in this thread, where it can be watched.
            torch.autograd.set_multithreading_enabled(False),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for restore, state in states:
            restore(state)
