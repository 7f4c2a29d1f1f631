"""What a cell shows waits until there is a prediction: "Predict first, or `show()`".

A cell that calls `predicted` runs as always. What it prints and draws is kept, and
shown when it has ended, if `predicted` has read a prediction; if not, `show()` shows it.
The stored outputs are those without a prediction, so where notebooks are executed or
compared, the environment variable `EXTENDING_PYTORCH_SHOW` is set to 1: nothing waits.
"""

import os
import re
import sys

from helpers.lessons.language import _

VARIABLE = "EXTENDING_PYTORCH_SHOW"
JUDGES = re.compile(r"^\s*predicted\(\s*prediction\b", re.MULTILINE)
_held = []  # what the last such cell showed, in order: functions that show it
_said = None  # why it waits, if there is a prediction


class _Stream:
    """In place of `sys.stdout` or `sys.stderr`."""

    def __init__(self, name):
        self._name, self._stream = name, getattr(sys, name)

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        _held.append(lambda: getattr(sys, self._name).write(text))
        return len(text)


class _HoldBack:
    """Its two methods are called before and after each cell of a learner's notebook."""

    def __init__(self, shell):
        self.shell, self.before = shell, None

    def start(self, info):
        global _said
        if not JUDGES.search(info.raw_cell or ""):
            return
        _held.clear()
        _said = None
        self.before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Stream("stdout"), _Stream("stderr")
        publisher = self.shell.display_pub
        publisher.publish = lambda *args, **named: _held.append(
            lambda: publisher.publish(*args, **named)  # by then, its own again
        )

    def end(self, result):
        if self.before is None:
            return
        (sys.stdout, sys.stderr), self.before = self.before, None
        del self.shell.display_pub.publish  # the method of its class is found again
        names = self.shell.user_ns
        if result.success and (names.get("prediction") is ... or _said):
            free = names.setdefault("show", show) is show
            call = "show()" if free else "predicted.show()"
            print(_said or _("○ Predict first, or `{show}`.", show=call))
        else:
            show()


def because(said):
    """The prediction is none of the answers: what to say in place of the outcome."""
    global _said
    _said = said


def show():
    """Shows what the last cell with an outcome has held back."""
    for one in _held:
        one()
    _held.clear()


def register():
    """In a notebook, from its next cell on."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell and os.environ.get(VARIABLE) != "1":
        hold_back = _HoldBack(shell)
        shell.events.register("pre_run_cell", hold_back.start)
        shell.events.register("post_run_cell", hold_back.end)
