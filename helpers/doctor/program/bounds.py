"""The bounds of an examination: its seconds, and a process of its own.

Where the system can fork and no accelerator is in use, the examination runs in a child: one that
hangs is killed, one that crashes takes nothing with it. Elsewhere it runs here, and ends when a
Function is applied after its time.
"""

import contextlib
import faulthandler
import itertools
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings

import torch

try:
    import resource
except ImportError:  # a system that cannot fork
    resource = None

from ..circumstances.examination import Examination
from ..circumstances.trials import TRIALS
from ..function.private import BOUND, LOCK, BlindError, methods
from ..function.surroundings import of_a_signal, undisturbed
from ..report import Report, error

SECONDS = 60.0  # for all examinations of a program, or of a session of pytest
LEAST = 1.0  # a share of them, while they last
SHOWN = 1.0  # seconds after which it is said what is examined
SLOW = 1.0  # seconds without looking for the line, after which nobody looks for it
OVER = "it used up its share of the seconds"
EXAMINING = []  # not empty during an examination, whose own calls are not noted
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL} | {
    getattr(signal, name) for name in ("SIGBUS", "SIGSYS", "SIGTRAP") if hasattr(signal, name)
}
CRASHED = error(
    "crashed",
    "The process in which it was examined ended: {how}.",
    look="memory that a kernel reads or writes, a process that the code itself ends",
)


class StoppedError(Exception):
    """The examination did not come to its end. crashed: did its process end by itself?"""

    def __init__(self, why, crashed=False):
        super().__init__(why)
        self.crashed = crashed


class TimeIsUp(BaseException):  # noqa: N818  (no error: what is examined must not catch it)
    pass


def reports(calls, faithful):
    """Examine calls of one Function: yields (number of the call, report, why there is none).

    A wrong one that was not slow is examined again, for the line to change: a second report on
    this call takes the place of the first.
    """
    known = set()
    for k, call in enumerate(calls):
        start, lines = time.monotonic(), False
        while True:
            try:
                report = examined(call, faithful, lines)
            except SystemExit as left:
                found = CRASHED(how=f"its code raised SystemExit({left.code!r})")
                report = Report(call.cls.__name__, [found])
            except Exception as raised:
                if of_a_signal(raised):
                    raise
                yield k, None, f"the doctor raised {type(raised).__name__}: {raised}"
                break
            yield k, report, ""
            new = {f.code for f in report.findings if f.severity == "error"} - known - {"crashed"}
            if lines or not new or time.monotonic() - start > SLOW:
                known |= new
                break
            lines = True


def examined(call, faithful, lines):
    """The report on one call, as the program made it."""
    EXAMINING.append(call)
    try:
        with undisturbed(), unchanged(call):
            # What is held in low precision cannot be doubled, nor can what it makes.
            held = [t.dtype for t in call.held() if t.is_floating_point() or t.is_complex()]
            low = any(torch.finfo(dtype).eps > 1e-10 for dtype in held)
            fn, args, kwargs = call.again()
            exam = Examination(fn, args, kwargs, faithful, as_given=low, lines=lines)
            exam.of_a_program = True
            exam.subject.leaves = set()  # the copies are, what was copied perhaps not
            if exam.subject.lower and call.autocasts:
                exam.subject.lower = call.autocasts[0][1]  # in which the outcome is precise
            return exam.report(TRIALS)
    finally:
        EXAMINING.remove(call)


@contextlib.contextmanager
def unchanged(call):
    """Afterwards the tensors that arguments hold are what they were, and the class, too."""
    held = [(t, t.detach().clone(), t.grad if t.is_leaf else None) for t in call.held()]
    attributes = dict(vars(call.cls))
    for tensor, _, grad in held:
        if grad is not None:
            tensor.grad = None
    try:
        yield
    finally:
        for tensor, value, grad in held:
            if not torch.equal(tensor, value):
                with torch.no_grad():
                    tensor.copy_(value)
            if tensor.is_leaf:
                tensor.grad = grad
        for name, value in vars(call.cls).copy().items():
            if name not in attributes:
                delattr(call.cls, name)
            elif value is not attributes[name]:
                setattr(call.cls, name, attributes[name])


def warm_up():
    """Examine a wrong Function: what that imports, each child would import for itself.

    Raises BlindError if nothing is found.
    """
    with undisturbed():
        report = Examination(BOUND, (torch.ones(2),), {}, faithful=True).report(TRIALS)
    if report.ok:
        raise BlindError(f"the doctor finds no wrong gradients on torch {torch.__version__}")


# --- within so many seconds -----------------------------------------------------------------------


def bounded(work, seconds, show):
    """Yields what the generator work() yields, for so many seconds; show() says what it is.

    Raises StoppedError, after all that was yielded in time, if it did not come to its end.
    """
    return (isolated if can_fork() else in_here)(work, seconds, show)


def can_fork():
    """Can the system fork, and does nothing in this process, such as a GPU's, forbid it?"""
    used = [torch.cuda.is_initialized(), torch.xpu.is_initialized()]
    return hasattr(os, "fork") and sys.platform != "darwin" and not any(used)


def in_here(work, seconds, show):
    start, shown = time.monotonic(), []

    def way(method, cls, *args):
        passed = time.monotonic() - start
        if EXAMINING and passed > seconds:
            raise TimeIsUp
        if passed > SHOWN and not shown:
            shown.append(show())
        return method(*args)

    try:
        with methods("forward", way):
            yield from work()
    except TimeIsUp:
        raise StoppedError(OVER) from None


def isolated(work, seconds, show):
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with LOCK, warnings.catch_warnings():  # LOCK: no other thread has it when the child needs it
        warnings.simplefilter("ignore")
        pid = os.fork()
    if not pid:
        child(work, sender, seconds)
    sender.close()
    ends, alive = time.monotonic() + seconds, True
    shows = ends - seconds + SHOWN
    try:
        while True:
            now = time.monotonic()
            if now > shows:
                shows = math.inf
                show()
            if receiver.poll(max(0.0, min(ends, shows, now + 3600) - now)):
                match pickle.loads(receiver.recv_bytes()):
                    case None:
                        return
                    case StoppedError() as stopped:
                        raise stopped
                    case result:
                        yield result
            elif now > ends:
                raise StoppedError(OVER)
    except EOFError:
        alive = False
        raise ended(os.waitpid(pid, 0)[1]) from None
    finally:
        receiver.close()
        if alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def ended(status):
    """What a child has come to that has not said that it is done."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return StoppedError(f"exit status {code}", crashed=True)
    name = signal.Signals(-code).name
    if -code in CRASHES:
        return StoppedError(name, crashed=True)
    return StoppedError(f"{name} ended its examination, perhaps for want of memory")


def child(work, sender, seconds):
    """Sends what work() yields, and None when it is done; never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who kills
        if seconds < math.inf:  # unless the parent has been killed itself
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(math.ceil(seconds) + 2)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dump: who crashes is reported
        torch.set_num_threads(1)  # the parent's other threads are not here
        for result in itertools.chain(work(), [None]):
            sender.send_bytes(pickle.dumps(result))  # send() would share the memory of tensors
    except BaseException as raised:
        with contextlib.suppress(BaseException):
            stopped = StoppedError(f"the doctor raised {type(raised).__name__}: {raised}")
            sender.send_bytes(pickle.dumps(stopped))
    finally:
        os._exit(0)
