"""How a row of the tables of this folder is written: a function, its inputs, and what is due."""

import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from helpers.doctor import examine
from helpers.lessons.patients.patient import function
from tests.common import random

NUMBERS = itertools.count()


@dataclass
class Case:
    """codes: of the errors, or of the warnings where there is none, as one string.

    words: what the texts contain. Those that start with "not " must not be there; what starts with
    "note " is the code of a note.
    """

    name: str
    fn: Callable
    inputs: Callable[[], tuple]
    codes: str
    words: tuple = ()
    options: dict = field(default_factory=dict)

    def check(self):
        report = examine(self.fn, *self.inputs(), **{"lines": False, **self.options})
        serious = errors(report) or [f for f in report.findings if f.severity == "warning"]
        assert list(dict.fromkeys(f.code for f in serious)) == self.codes.split(), str(report)
        text = " ".join(f"{f.message} look at: {f.remedy}" for f in report.findings)
        notes = [f.code for f in report.findings if f.severity == "note"]
        for words in self.words:
            if words.startswith("note "):
                assert words.removeprefix("note ") in notes, str(report)
            elif words.startswith("not "):
                assert words.removeprefix("not ") not in text, text
            else:
                assert words in text, text
        return report


class Table(list):
    """The cases of one file. Called, it registers the decorated class or function, or a value."""

    def __call__(self, codes, *words, inputs, name=None, **options):
        def register(fn):
            made = inputs if callable(inputs) else lambda: inputs
            self.append(Case(name or getattr(fn, "__name__", ""), fn, made, codes, words, options))
            return fn

        return register

    def of_two(self, name, codes, *words, inputs, forward, backward, **options):
        """Registers the `function` of these two."""
        self(codes, *words, inputs=inputs, name=name, **options)(function(forward, backward))


def errors(report):
    return [finding for finding in report.findings if finding.severity == "error"]


def ones(*shape):
    return torch.ones(shape, dtype=torch.float64)


def drawn(*shapes, dtype=torch.float64):
    """Leaves that require a gradient, the same numbers at every call."""
    return tuple(random(*shape, dtype=dtype, seed=k) for k, shape in enumerate(shapes))


def written(text, folder, name="Layer"):
    """What this source defines, in a file of its own, which `inspect` finds."""
    file = folder / f"written_{next(NUMBERS)}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
