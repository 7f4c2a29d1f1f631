"""What an exercise of your own says of its reference, its stub and its wrong attempts."""

import importlib.util
import sys

from helpers.lessons.exercise import NOT_ATTEMPTED, RIGHT, WRONG, Exercise
from helpers.lessons.handed_in import first_line, said
from helpers.lessons.said import Said


def try_exercises(path):
    """Prints what is said of each attempt at the exercises in the module at `path`.

    Returns what is wrong with the module or with an exercise, a sentence, or None.
    """
    try:
        module = _imported(path)
    except Exception as error:
        return said("not imported", path=path, error=f"{type(error).__name__}: {first_line(error)}")
    found = [value for value in vars(module).values() if isinstance(value, Exercise)]
    unexpected = 0
    for exercise in found:
        print(f"{exercise.number} {exercise.name}")
        for what, edits, expected, words in _attempts(exercise):
            key, gaps = _told(exercise, edits, expected, words)
            print(said(key, what=what, expected=expected, words=words, **gaps))
            unexpected += key != "attempt"
    if not found:
        return said("no exercise", path=path)
    return said("unexpected", count=unexpected) if unexpected else None


def _imported(path):
    """The module, which may import what lies beside it."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise ImportError("a module is a file that ends in .py")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _attempts(exercise):
    """(what, edits of the reference or None for the stub, expected mark, words in the verdict)"""
    yield Said("the reference"), {}, RIGHT, ""
    yield Said("the stub"), None, NOT_ATTEMPTED, ""
    for count, (edits, words) in enumerate(exercise.wrong, 1):
        yield Said("wrong attempt {count}", count=count), edits, WRONG, words


def _told(exercise, edits, expected, words):
    """The key of what is said of an attempt, and what fills its gaps."""
    try:
        source = exercise.cell if edits is None else exercise.edited(edits)
        attempt = exercise.made_of(source) if edits != {} else exercise.reference
    except Exception as error:  # an old text that does not occur, a new one that is no Python
        return "no attempt", {"error": f"{type(error).__name__}: {first_line(error)}"}
    verdict = exercise.judge(attempt)
    gaps = {"mark": verdict.mark, "message": verdict.message}
    if verdict.mark != expected:
        return "another mark", gaps
    return ("attempt" if words in verdict.message else "other words"), gaps
