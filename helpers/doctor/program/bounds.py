"""The bounds of an examination: its seconds, and a process of its own.

Where the system can fork and no GPU is in use, it runs in a child: one that hangs is ended by an
alarm, one that crashes takes nothing with it. What waits there for threads that only the parent
has, as torch.jit.fork does, ends in the same way, and the report says how to examine it here. What
has started threads of numba or of autograd runs here at once, and so does all of it with
`child=False`, until a Function is applied after its time.
"""

import contextlib
import faulthandler
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings

import torch

from ..function.private import BOUND, LOCK, BlindError, methods
from ..function.raised import of_a_signal
from ..function.undisturbed import undisturbed
from ..report import Report, error
from ..said import Said
from ..trials import TRIALS
from ..trials.examination import Examination

SECONDS = 60.0  # for all examinations of a program, or of a session of pytest
LEAST = 1.0  # a share of them, while they last
SHOWN = 1.0  # after this many, the user is told what is examined
QUICK = 400  # calls a second, counted: where there are fewer, no line is looked for
OVER = "it used up its share of the seconds"
NO_THREADS = "; if it waits for threads, which a child lacks, examine it here: `child=False`"
KILLED = "something ended the process of its examination, perhaps because memory ran out"
ENDED_ITSELF = "the process of its examination was ended, as threads of OpenMP do after a fork"
AGAIN = "it cannot be called again with copies of what it was given, as it could in the program"
NEVER_BACK = "autograd was off when it was called, and its backward raises"
FREED = "backward through the graph a second time"  # so says PyTorch
NOT_IN_A_CHILD = "no backward pass runs in a child"  # of a process with threads of autograd
EXAMINING = []  # not empty during an examination, whose own calls are not noted
CRASHED = error(
    "crashed",
    "The process in which it was examined ended: {how}.",
    look="memory that a kernel reads or writes, a process that the code itself ends",
)


@contextlib.contextmanager
def unheard():
    """No rounds note the calls that are made inside."""
    EXAMINING.append(True)
    try:
        yield
    finally:
        EXAMINING.pop()


def warm_up():
    """Examine a wrong Function: what that imports, each child would import for itself.

    Raises BlindError if nothing is found.
    """
    with unheard(), undisturbed():
        report = Examination(BOUND, (torch.ones(2),), {}, faithful=True).report(TRIALS)
    if report.ok:
        raise BlindError(f"the doctor finds no wrong gradient on torch {torch.__version__}")


def reports(calls, faithful):
    """Yields (k, report) for each of the calls, or why there is none, as `examined` returns it.

    Then once more for those that were wrong, but not slow: with the line to change.
    """
    known, again = set(), []
    for k, call in enumerate(calls):
        yield k, (report := examined(call, faithful))
        new = {f.code for f in getattr(report, "findings", ()) if f.severity == "error"} - known
        again += [k] if new else []
        known |= new
    for k in again:
        report = examined(calls[k], faithful, lines=True)
        if isinstance(report, Report):
            yield k, report


def examined(call, faithful, lines=False):
    """The report on a call as the program made it, or a sentence that says why there is none."""
    try:
        with unheard(), undisturbed(), unchanged(call):
            # What is held in low precision cannot be doubled, nor can what it makes.
            held = [t.dtype for t in call.held() if t.is_floating_point() or t.is_complex()]
            low = any(torch.finfo(dtype).eps > 1e-10 for dtype in held)
            fn, args, kwargs = call.again()
            exam = Examination(fn, args, kwargs, faithful, True, as_given=low, lines=lines)
            if exam.subject.lower and call.autocasts:
                exam.subject.lower = call.autocasts[0][1]  # in which the outcome is precise
            if lines and exam.subject.calls_a_second < QUICK:
                return None
            if not exam.subject.values:
                return "no input that requires a gradient has elements"
            report = exam.report(TRIALS)
            if not call.records and exam.first is None and messages(report):
                return NEVER_BACK
            return AGAIN if is_the_copys(report) else report
    except SystemExit as left:
        what = f"SystemExit({left.code!r})"
        return Report("", [CRASHED(how=Said("its code raised {what}", what=what))])
    except Exception as raised:
        if of_a_signal(raised):
            raise
        return f"the doctor raised {type(raised).__name__}: {raised}"


def is_the_copys(report):
    """Does it speak of the copies only? The program's own call had a forward that did not raise.

    And what a closure holds may belong to a graph that the program's backward has freed.
    """
    return any(FREED in message for message in messages(report)) or not report.examined


def messages(report):
    """Those of exceptions."""
    return [f.evidence["message"] for f in report.findings if "message" in f.evidence]


@contextlib.contextmanager
def unchanged(call):
    """Afterwards the tensors that arguments hold are what they were."""
    held = [(t, t.detach().clone(), t.grad if t.is_leaf else None) for t in call.held()]
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


# --- within its seconds ---------------------------------------------------------------------------


def bounded(work, seconds, show, child=True):
    """Yields the pairs (k, …) that the generator work() yields, for at most this many seconds.

    Where it ends before its time, the next k with a report or a sentence that says so. show() is
    called once if one takes more than a second. child: may it run in a process of its own?
    """
    way = isolated if child and can_fork() else in_here
    return way(work, seconds, functools.cache(show))


def can_fork():
    """Can the system fork, and does nothing in this process, such as a GPU's, forbid it?"""
    used = torch.cuda.is_initialized() or torch.xpu.is_initialized()
    numba = sys.modules.get("numba.np.ufunc.parallel")  # whose threads no child survives
    used |= getattr(numba, "_is_initialized", False)
    return hasattr(os, "fork") and sys.platform != "darwin" and not used


class TimeIsUp(BaseException):  # noqa: N818  (what is examined catches errors)
    pass


def in_here(work, seconds, show):
    start = time.monotonic()

    def way(method, cls, *args):
        passed = time.monotonic() - start
        if EXAMINING and passed > seconds:
            raise TimeIsUp
        if passed > SHOWN:
            show()
        return method(*args)

    with methods("forward", way), contextlib.suppress(TimeIsUp):
        yield from work()


def isolated(work, seconds, show):
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with LOCK, warnings.catch_warnings():  # LOCK: else a thread that is not there might hold it
        warnings.simplefilter("ignore")
        pid = os.fork()
    if not pid:
        child(work, seconds, sender)
    sender.close()
    following, ends = 0, time.monotonic() + seconds + SHOWN
    try:
        while True:
            if not receiver.poll(SHOWN):
                show()
                if time.monotonic() > ends:  # the alarm was switched off
                    yield following, OVER + NO_THREADS
                    return
                continue
            result = pickle.loads(receiver.recv_bytes())
            if result is None:
                return
            if result == NOT_IN_A_CHILD:
                yield from in_here(work, seconds, show)
                return
            following = max(following, result[0] + 1)
            yield result
    except (EOFError, OSError):  # OSError: in the middle of a report
        code, pid = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), None
        yield following, ended(code)
    finally:
        receiver.close()
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def ended(code):
    """What is said of an examination whose process ended with this exit code before its time."""
    if code == -signal.SIGALRM:
        return OVER + NO_THREADS
    if code == -signal.SIGKILL:
        return KILLED
    if code == -signal.SIGTERM:
        return ENDED_ITSELF + NO_THREADS
    how = signal.Signals(-code).name if code < 0 else Said("exit status {code}", code=code)
    return Report("", [CRASHED(how=how)])


def child(work, seconds, sender):
    """Sends what work() yields, and None when it is done; never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e6))
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        faulthandler.disable()
        import resource  # which Windows has not

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is reported, not dumped
        torch.set_num_threads(1)  # the parent's other threads are not here
        try:
            torch.ones((), requires_grad=True).backward()
        except RuntimeError:  # as where torch.compile came before the first backward pass
            sender.send_bytes(pickle.dumps(NOT_IN_A_CHILD))
            return
        for k, report in work():
            sender.send_bytes(pickle.dumps((k, report)))  # send() would share tensors' memory
        sender.send_bytes(pickle.dumps(None))
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
