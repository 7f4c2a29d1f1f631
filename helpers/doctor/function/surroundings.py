"""What surrounds an examination, and is left as it was: random state, settings, what is printed."""

import contextlib
import io
import random
import signal
import sys
import warnings

import torch
from torch.overrides import TorchFunctionMode

PYTHONS = random.seed.__self__
HANDLERS = set()  # the code of the caller's signal handlers


def generators():
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *cuda]


def reseed(seed):
    seed += 2718281828  # not the seed of a caller whose input was drawn from it
    for generator in generators():
        generator.manual_seed(seed)
    super(random.Random, PYTHONS).seed(seed)  # in half the time
    PYTHONS.gauss_next = None
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def draws():
    """Has the run that has just ended drawn random numbers? (Each starts from one seed.)"""
    after = [generator.get_state() for generator in generators()]
    reseed(0)
    before = [generator.get_state() for generator in generators()]
    return any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


class OwnGenerators(TorchFunctionMode):
    """Notes whether random numbers are drawn from generators that are not PyTorch's default."""

    used = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.used |= bool(kwargs) and kwargs.get("generator") is not None
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def undisturbed():
    """Whatever happens to the random state and to global settings is undone."""
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
