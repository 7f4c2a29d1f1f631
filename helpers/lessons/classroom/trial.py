"""Your exercise's reference, stub and wrong attempts, put to the test."""

import importlib.util
import sys

from helpers.lessons.exercise import NOT_ATTEMPTED, RIGHT, WRONG, Exercise
from helpers.lessons.judge.numbers import raises
from helpers.lessons.language import _

NAMED = "{kind}: {message}"


def try_exercises(path):
    """Prints what is said of each attempt at the exercises in the module at `path`.

    Returns what is wrong with the module or with an exercise, a sentence, or None.
    """
    try:
        module = _imported(path)
    except Exception as error:
        return _(
            "{path} could not be imported: {error}",
            path=path,
            error=raises(error, NAMED),
        )
    found = [value for value in vars(module).values() if isinstance(value, Exercise)]
    if not found:
        return _("{path} holds no Exercise", path=path)
    unexpected = 0
    for exercise in found:
        print(f"{exercise.number} {exercise.name}")
        for what, edits, expected, words in _attempts(exercise):
            said, as_expected = _told(exercise, what, edits, expected, words)
            print(said)
            unexpected += not as_expected
    return _("{count} not as expected", count=unexpected) if unexpected else None


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
    """(what, edits of the reference or None, expected mark, words due)."""
    yield _("the reference"), {}, RIGHT, ""
    yield _("the stub"), None, NOT_ATTEMPTED, ""
    for count, (edits, words) in enumerate(exercise.wrong, 1):
        yield _("wrong attempt {count}", count=count), edits, WRONG, words


def _told(exercise, what, edits, expected, words):
    """What is said of an attempt, and whether it is as expected."""
    try:
        source = exercise.cell if edits is None else exercise.edited(edits)
        attempt = exercise.made_of(source) if edits != {} else exercise.reference
    except Exception as error:  # an old text does not occur, a new one is no Python
        return _(
            "  {what} cannot be made: {error}", what=what, error=raises(error, NAMED)
        ), False
    verdict = exercise.judge(attempt)
    gaps = {"what": what, "mark": verdict.mark, "message": verdict.message}
    if verdict.mark != expected:
        return _(
            "  {what}: {mark} {message} (expected {expected})",
            **gaps,
            expected=expected,
        ), False
    if words not in verdict.message:
        return _(
            "  {what}: {mark} {message} (expected the words {words!r})",
            **gaps,
            words=words,
        ), False
    return _("  {what}: {mark} {message}", **gaps), True
