"""Random numbers: seeded, and noticed where they are drawn."""

import random
import sys

import torch
from torch.overrides import TorchFunctionMode

PYTHONS = random.seed.__self__


def generators():
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *cuda]


def reseed(seed):
    """Seed PyTorch's, Python's and NumPy's random numbers."""
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
