"""Whether an `Exercise` was declared as it should be: what its author must hear at
once.

A slip that passed would be said to a learner, as if the answer were wrong.
"""

import re

from helpers.lessons.judge.variations import Inputs


def check_declaration(exercise):
    """Raises TypeError or ValueError with the field, what arrived and what was
    expected.
    """
    for name in ("number", "name", "success", "explanation"):
        value = getattr(exercise, name)
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {value!r}")
    _check_number(exercise.number)
    for name, of, fits in TUPLES:
        _check_all(name, getattr(exercise, name), of, fits)
    if not exercise.hints:
        raise ValueError("hints must hold one hint or more, got none")
    if exercise.order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, got {exercise.order!r}")
    if exercise.inputs and not callable(exercise.like):
        raise ValueError(
            "like must be given where there are inputs: what is the answer like?"
        )
    if not (isinstance(exercise.stub, str) or _are_edits(exercise.stub)):
        raise TypeError(
            f"stub must be a string, or edits {{old: new}}, got {exercise.stub!r}"
        )


def _check_number(number):
    if not number.strip() or re.search(r"[\s,]", number):
        raise ValueError(
            f'number must be a word such as "A.1", without a comma, got {number!r}'
        )


def _check_all(name, values, of, fits):
    if not isinstance(values, (tuple, list)):
        raise TypeError(
            f"{name} must be a tuple of {of}, got {values!r}; one alone needs a comma"
        )
    for value in values:
        if not fits(value):
            raise TypeError(f"{name} must hold {of}, got {value!r}")


def _are_edits(value):
    """Strings that replace strings, at least one?"""
    strings = isinstance(value, dict) and [*value, *value.values()]
    return bool(strings) and all(isinstance(text, str) for text in strings)


def _is_wrong_attempt(value):
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    return pair and _are_edits(value[0]) and isinstance(value[1], str)


TUPLES = (
    ("hints", "strings", lambda value: isinstance(value, str)),
    ("inputs", "Inputs", lambda value: isinstance(value, Inputs)),
    ("kind", "functions", callable),
    ("properties", "functions", callable),
    ("wrong", "pairs ({old: new}, words)", _is_wrong_attempt),
)
