"""Attempts at an exercise in several processes: teams of two sizes, no deadlocks."""

import contextlib
import re
import signal
from functools import cache

from helpers.lessons.language import _
from helpers.lessons.processes import Team, TeamError

PROCESSOR_SECONDS, SECONDS = 5, 60  # for an answer; a busy machine takes longer
DEADLOCK = ("Timed out", "Connection closed", "Connection reset")


@cache
def _team(size):
    return Team(size, limit=SECONDS, timeout=5)


def aloud(first):
    """Show what an attempt prints only once, however often it is called."""
    return contextlib.nullcontext() if first else contextlib.redirect_stdout(None)


def _within(seconds, function, *arguments):
    """`function(*arguments)`, or a TimeoutError if it computes for longer.

    On Windows there is no limit.
    """

    def stop(number, frame):
        raise TimeoutError(f"no answer after computing for {seconds} s")

    if not hasattr(signal, "setitimer"):
        return function(*arguments)
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def in_each(size, function, *arguments, first=True):
    """(what `function` returns in each process, None), or (None, what went wrong)."""
    try:
        with aloud(first):
            return _team(size)(_within, PROCESSOR_SECONDS, function, *arguments), None
    except TeamError as error:
        own = {
            r: s
            for r, s in error.errors.items()
            if not any(words in s for words in DEADLOCK)
        }
        if not own:
            return None, _(
                "the processes wait for each other. Does each of them call the same "
                "collectives, in the same order?"
            )
        rank = min(own)
        # Of a log.
        said = re.sub(r"\[rank\d+\]:\[\S+ \S+ \S+\] ", "", own[rank].splitlines()[0])
        if "no answer after" in own[rank]:
            seconds = PROCESSOR_SECONDS
            return None, _(
                "on rank {rank} your code gives no answer after computing for "
                "{seconds} s",
                rank=rank,
                seconds=seconds,
            )
        return None, _("on rank {rank} your code raises {error}", rank=rank, error=said)
