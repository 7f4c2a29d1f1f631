"""The calls of a program, examined: in this process, or in a child that may crash."""

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import time
import warnings

import torch

from ..function.budget import Budget
from ..function.isolation import draws, forgiving, of_a_signal, undisturbed
from ..function.private import LOCK, methods
from ..function.subject import eps_of
from ..function.tensors import is_number
from ..report import Report, error
from ..trials import TRIALS
from ..trials.examination import Examination
from ..words import N_, _

SECONDS = 60.0  # for all examinations of a program, or of a session of pytest
LEAST = 1.0  # a share of them, while they last
FOR_LINES = 0.5  # of a share
GRACE = 1.0  # second more, after which a child is ended from outside
OVER = N_("it used up its share of the seconds")
KILLED = N_(
    "something ended the process of its examination, perhaps because memory ran out"
)
NOT_REPEATED = N_(
    "it cannot be called again with copies of what it was given, as it could in the "
    "program"
)
ANOTHER = N_(
    "called again with copies of what it was given, it returns something else than in the "
    "program"
)
NO_CHILD = N_("no backward pass runs in a child of a process with threads of autograd")
FREED = "backward through the graph a second time"  # so says PyTorch
EXAMINING = []  # not empty during an examination, whose own calls are not noted
CRASHED = error(
    "crashed",
    "The process in which it was examined ended: {how}.",
    look="memory that a kernel reads or writes, a process that the code itself ends",
)


class TimeIsUp(BaseException):  # noqa: N818  (what is examined catches errors)
    pass


@contextlib.contextmanager
def until(end):
    """Inside, no rounds note calls, and a Function that is applied too late raises."""

    def way(method, cls, *args):
        if time.monotonic() > end:
            raise TimeIsUp
        return method(*args)

    EXAMINING.append(True)
    try:
        with methods("forward", way):
            yield
    finally:
        EXAMINING.pop()


def in_here(calls, end, options):
    """Yields (k, report) for each of the calls, or a sentence that says why not.

    options: of `Examination`
    """
    lines = True  # are looked for until the first error has been found
    for k, call in enumerate(calls):
        budget = Budget(seconds=FOR_LINES * (end - time.monotonic()))
        report = examined(call, end, lines and budget, options)
        lines = lines and getattr(report, "ok", True)
        yield k, report


def examined(call, end, lines, options):
    """The report on a call as the program made it, or why there is none."""
    try:
        with until(end), undisturbed(), call.as_then():
            # What is held in low precision cannot be doubled, nor can what it makes.
            low = eps_of(filter(is_number, call.held())) > 1e-10
            exam = Examination(
                *call.to_examine(),
                of_a_program=True,
                as_given=low,
                lines=lines,
                shared=call.shared,
                **options,
            )
            if exam.subject.lower and call.autocasts:
                # In which it is precise.
                exam.subject = exam.subject.but(lower=call.autocasts[0][1])
            if not exam.subject.values:
                return next(
                    (one.why for one in exam.judged.values() if one.why),
                    _("no input that requires a gradient has elements"),
                )
            if returns_another(call, exam):
                return _(ANOTHER)
            report = exam.report(TRIALS)
            said = [f.values.get("message", "") for f in report.findings]
            if not call.records and exam.first_gradients is None and any(said):
                return _("autograd was off when it was called, and its backward raises")
            # The program's own call did not raise in forward, nor in backward where one
            # ran. And what a closure holds may belong to a graph that the program's
            # backward has freed.
            raises = any(said) and exam.first_gradients is None
            of_the_copy = (
                not report.examined
                or raises
                and call.goes_back
                or any(FREED in text for text in said)
            )
            return _(NOT_REPEATED) if of_the_copy else report
    except TimeIsUp:
        return _(OVER)
    except SystemExit as left:
        how = _("its code raised {what}", what=f"SystemExit({left.code!r})")
        return Report("", [CRASHED(how=how)])
    except Exception as raised:
        if of_a_signal(raised):
            raise
        return _("the doctor raised {what}", what=f"{type(raised).__name__}: {raised}")


def returns_another(call, exam):
    """Does the call return something else than in the program, each time the same?

    What returns something else each time is for the trials to say.
    """
    with forgiving():  # and before the examination, so in the dtype that was given
        one, draws_numbers = exam.subject.forward(), draws()
        two = exam.subject.forward()
        if call.outputs is None or draws_numbers or not exam.all_same(one, two):
            return False
        return not exam.all_same(one, call.outputs)
    return False


# --- in a child -----------------------------------------------------------------------


def in_a_child(calls, end, options):
    """The same, from a child.

    What ends the child is the outcome of the call under way.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with LOCK, warnings.catch_warnings():  # or a thread that is not there might hold it
        warnings.simplefilter("ignore")
        pid = os.fork()
    if not pid:
        send_all(sender, calls, end, options)
    sender.close()
    following = 0
    try:
        while receiver.poll(max(0, end + GRACE - time.monotonic())):
            result = pickle.loads(receiver.recv_bytes())
            if result is None:
                return
            following = result[0] + 1
            yield result
        yield following, _(OVER)
    except (EOFError, OSError):  # OSError: in the middle of a report
        code, pid = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), None
        yield following, ended(code)
    finally:
        receiver.close()
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def ended(code):
    """What is said of a call whose child ended with this exit code before its time."""
    if code == -signal.SIGKILL:
        return _(KILLED)
    status = _("exit status {code}", code=code)
    how = signal.Signals(-code).name if code < 0 else status
    return Report("", [CRASHED(how=how)])


def send_all(sender, calls, end, options):
    """Sends what `in_here` yields, and None when it is done; never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        faulthandler.disable()  # a crash is reported, not dumped
        torch.set_num_threads(1)  # the parent's other threads are not here
        results = in_here(calls, end, options)
        try:
            torch.ones((), requires_grad=True).backward()
        except RuntimeError:  # as where torch.compile came before the first backward
            results = ((k, _(NO_CHILD)) for k in range(len(calls)))
        for result in results:
            sender.send_bytes(pickle.dumps(result))  # send() would share memory
        sender.send_bytes(pickle.dumps(None))
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
