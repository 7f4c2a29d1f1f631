"""What a call raises: whose it is, and in which phase."""

import contextlib
import traceback

HANDLERS = set()  # the code of the caller's signal handlers


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
