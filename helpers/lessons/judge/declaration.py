"""Whether an `Exercise` is declared as it should be, said to its author.

A slip that passed would be said to a learner, as if the answer were wrong.
"""

import re

from helpers.lessons.judge.variations import Inputs


def check_declaration(exercise):
    """Raises ValueError with the field, what was expected and what arrived."""
    for name, (expected, fits) in FIELDS.items():
        value = getattr(exercise, name)
        if not fits(value):
            raise ValueError(f"{name} must be {expected}, got {value!r}")
    if exercise.inputs and not callable(exercise.like):
        raise ValueError(
            "like must be given where there are inputs: what is the answer like?"
        )


def _is_string(value):
    return isinstance(value, str)


def _is_word(value):
    return _is_string(value) and re.fullmatch(r"[^\s,]+", value)


def _are_edits(value):
    """Strings that replace strings, at least one?"""
    strings = isinstance(value, dict) and [*value, *value.values()]
    return bool(strings) and all(map(_is_string, strings))


def _is_wrong_attempt(value):
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    return pair and _are_edits(value[0]) and _is_string(value[1])


def _each(fits):
    return lambda values: isinstance(values, (tuple, list)) and all(map(fits, values))


STRING = "a string", _is_string
FUNCTIONS = "a tuple of functions (of one with a comma)", _each(callable)
FIELDS = {  # by name: what it must be, and whether it is
    "number": ('a word such as "A.1", without a comma', _is_word),
    "name": (
        "a string, where the reference has no name",
        lambda value: value and _is_string(value),
    ),
    "success": STRING,
    "explanation": STRING,
    "stub": (
        "a string, or edits {old: new}",
        lambda value: value and (_is_string(value) or _are_edits(value)),
    ),
    "hints": (
        "a tuple of strings (of one with a comma)",
        lambda values: values and _each(_is_string)(values),
    ),
    "order": ("1 or 2", lambda value: value in (1, 2)),
    "inputs": (
        "a tuple of Inputs (of one with a comma)",
        _each(lambda value: isinstance(value, Inputs)),
    ),
    "kind": FUNCTIONS,
    "properties": FUNCTIONS,
    "wrong": ("pairs ({old: new}, words)", _each(_is_wrong_attempt)),
}
