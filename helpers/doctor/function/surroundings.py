"""What surrounds a call: what it raises, draws and prints, its dtypes, its lines, its work.

What is measured of a gradient is bounded by counting, so that a report is always the same; the
search for lines has a `Budget`.
"""

import contextlib
import io
import os
import random
import signal
import sys
import time
import traceback
import warnings

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from ..report import note
from .private import Mode, on_ctx
from .tensors import tensors

PYTHONS = random.seed.__self__
HANDLERS = set()  # the code of the caller's signal handlers

# --- what is raised -------------------------------------------------------------------------------


class CallError(Exception):
    """The examined function raised `error` in `phase`."""

    def __init__(self, phase, error):
        self.phase, self.error = phase, error


@contextlib.contextmanager
def phase(name):
    """What is raised inside becomes a CallError, unless a caller's time limit raised it."""
    try:
        yield
    except Exception as error:
        if of_a_signal(error):
            raise
        raise CallError(name, error) from error


@contextlib.contextmanager
def forgiving():
    """What is raised inside does not matter, unless a caller's time limit raised it."""
    try:
        yield
    except Exception as error:
        if of_a_signal(error):
            raise


def of_a_signal(error):
    """Was it raised by a signal handler, such as that of a caller's time limit?"""
    if isinstance(error, CallError):  # one of a signal has not become one
        return False
    return any(frame.f_code in HANDLERS for frame, _ in traceback.walk_tb(error.__traceback__))


# --- random numbers -------------------------------------------------------------------------------


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


# --- an examination -------------------------------------------------------------------------------


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


# --- the coarsest dtype on the way ----------------------------------------------------------------


class Grain(Mode):
    """Follows what is computed from some tensors, and through which dtypes it has gone.

    Integers and truth values end a trail, as of a mask; so does what leaves PyTorch.
    """

    def __init__(self, start):
        super().__init__()
        self.known = {}
        self.note(start)

    @classmethod
    def within(cls, start, outputs):
        """The eps of the coarsest dtype on the way from `start` to what outputs() returns, or 0."""
        try:
            with cls(start) as watch:
                return max(filter(None, watch.of(outputs())), default=0.0)
        except CallError:  # what does not run under a mode
            outputs()
            return 0.0

    def note(self, found, eps=0.0):
        for t in found:
            if t.is_floating_point() or t.is_complex():
                key = StorageWeakRef(t.untyped_storage())
                self.known[key] = max(self.known.get(key, 0.0), eps, torch.finfo(t.dtype).eps)

    def of(self, found):
        """The coarsest eps on the way to each; None for one to which there was none."""
        return [self.known.get(StorageWeakRef(t.untyped_storage())) for t in found]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = self.of(strided((args, kwargs)))
        if any(given):
            self.note(strided(result), max(filter(None, given)))
        return result


def strided(obj):
    return [t for _, t in tensors(obj) if t.layout is torch.strided and not t.is_nested]


def dtype_of(eps):
    known = torch.float32, torch.float16, torch.bfloat16
    return next((dtype for dtype in known if torch.finfo(dtype).eps >= eps), "float8")


# --- lines of the user's code ---------------------------------------------------------------------

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def users_frame():
    """The frame that called PyTorch or the doctor, or None."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith((LIBRARY, HERE)):
        frame = frame.f_back
    return frame


def place_of(frame):
    return f"line {frame.f_lineno}, in `{frame.f_code.co_name}`"


def saving(instead):
    """For a while, save_for_backward saves instead(tensors, frame that saves them)."""

    def way(save, ctx, *tensors):
        save(ctx, *instead(tensors, users_frame()))

    return on_ctx("save_for_backward", way)


# --- work -----------------------------------------------------------------------------------------

PER_ELEMENT = 7  # calls of forward, at least
AN_OPERATION = 2000  # takes as long as this many elements of its output
STOPPED_LOOKING = note(
    "stopped-looking",
    "The search for the line to change stopped after {runs} runs, {seconds:.0f} s after the "
    "examination began; the verdict stands.",
    look="smaller inputs; or more of both: `lines=Budget(runs, seconds)`",
)


class Budget:
    """What the search for lines may cost in one examination.

    runs: of the function; seconds: since the examination began
    """

    def __init__(self, runs=2000, seconds=10.0):
        self.runs, self.seconds, self.start = runs, seconds, time.monotonic()
        self.spent, self.stopped = 0, False
        self.known = []  # what was found for one gradient, to be tried first for the next
        self.mends_all = None  # what was found for all of them

    def spend(self, runs=1):
        self.spent += runs

    @property
    def is_spent(self):
        """Must the search stop? The report then says that it did."""
        self.stopped |= self.spent >= self.runs or time.monotonic() - self.start > self.seconds
        return self.stopped

    def findings(self):
        """The note that the search has stopped, if it has."""
        if self.stopped:
            yield STOPPED_LOOKING(runs=self.spent, seconds=time.monotonic() - self.start)


class Work(Mode):
    """Counts as FlopCounterMode does, but leaves modules alone, which backward may call."""

    def __init__(self):
        super().__init__()
        self.flops = self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        size = result.numel() if isinstance(result, torch.Tensor) else 0
        self.elements += AN_OPERATION + size
        return result


def calls_a_second(subject):
    """How often forward can be called in about a second, estimated from its operations."""
    with Work() as work:
        subject.forward(subject.values)
    return int(3e8 / (work.elements + work.flops / 10))


def calls_allowed(subject):
    """How often a diagnosis may call forward: three times as often as until then, or a second."""
    return max(3 * subject.calls, subject.calls_a_second)


def shared(calls, inputs):
    """How many inputs, and how many elements of each, this many calls of forward can examine."""
    inputs = max(1, min(inputs, calls // (16 * PER_ELEMENT)))
    return inputs, min(512, max(16, calls // (PER_ELEMENT * inputs)))
