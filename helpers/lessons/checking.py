"""`exercise("2.1")`: the exercises of the course, each with a check, hints and a solution."""

import dis
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from helpers.ops.involution.compiler import CompilerNotFoundError

NOT_ATTEMPTED, WRONG, RIGHT = "○", "✗", "✓"


@dataclass(frozen=True)
class Verdict:
    """What a check says of an attempt: `mark` is one of ○ ✗ ✓, `message` says why."""

    mark: str
    message: str


@dataclass(repr=False)
class Exercise:
    """One exercise, with the three things that a learner can do: `check`, `hint`, `solution`.

    number:      "2.1" is the first of chapter 02
    stub:        what the notebook's cell holds before anyone touched it, without the check
    reference:   a right answer: a class or function, whose source `solution()` shows, or a value
    finding:     finding(*attempts) is None for a right attempt, otherwise what is wrong with it
                 in one or two sentences, without giving the solution away
    success:     said of a right attempt
    hints:       two or three, from vague to nearly there
    explanation: said under the solution
    """

    number: str
    name: str
    stub: str
    reference: object
    finding: Callable[..., str | None]
    success: str
    hints: tuple[str, ...]
    explanation: str
    hints_given: int = 0

    def judge(self, *attempts):
        """The verdict on `attempts`; an exception inside them becomes one, too."""
        if self._is_untouched(attempts):
            return Verdict(NOT_ATTEMPTED, "not attempted yet")
        finding = _misfit(attempts, self.reference)
        if finding is None:
            try:
                finding = self.finding(*attempts)
            except CompilerNotFoundError as error:
                return Verdict(NOT_ATTEMPTED, f"it cannot be checked here: {error}")
            except Exception as error:
                finding = f"your code raises {type(error).__name__}: {first_line(error)}"
        return Verdict(WRONG, finding) if finding else Verdict(RIGHT, self.success)

    def check(self, *attempts):
        """Print the verdict on `attempts`."""
        verdict = self.judge(*attempts)
        print(_wrapped(f"{verdict.mark} {self.number} {self.name}: {verdict.message}"))

    def hint(self):
        """Print the next hint; after the last one, say so and repeat it."""
        self.hints_given = min(self.hints_given + 1, len(self.hints))
        last = " (the last one)" if self.hints_given == len(self.hints) else ""
        text = self.hints[self.hints_given - 1]
        print(_wrapped(f"Hint {self.hints_given} of {len(self.hints)}{last}: {text}"))

    def solution(self):
        """Print the reference and why it is right."""
        has_source = inspect.isclass(self.reference) or inspect.isfunction(self.reference)
        text = inspect.getsource(self.reference) if has_source else str(self.reference)
        print(f"{text.strip()}\n\n{_wrapped(self.explanation)}")

    def __repr__(self):
        return f"exercise {self.number} {self.name}: .check(...), .hint(), .solution()"

    def _is_untouched(self, attempts):
        names = {}
        exec(self.stub, dict(vars(importlib.import_module(_module_of(self.number)))), names)
        stubs = [v for v in names.values() if v is ... or isinstance(v, str) or _code_of(v)]
        return bool(attempts) and all(
            any(
                _same(a, stub) or (_is_blank(a) and _parents(a) == _parents(stub)) for stub in stubs
            )
            for a in attempts
        )


def exercise(number):
    """The `Exercise` with that number, such as "2.1". Raises ValueError if there is none."""
    if not isinstance(number, str):
        raise ValueError(f'number must be a string such as "2.1", got {number!r}')
    chapters = sorted((Path(__file__).parent / "exercises").glob("chapter_*.py"))
    wanted = number.strip().replace(",", ".")
    numbers = []
    for path in chapters:
        for candidate in importlib.import_module(_module_of(path.stem[-2:])).EXERCISES:
            if candidate.number == wanted:
                return candidate
            numbers.append(candidate.number)
    raise ValueError(f"number must be one of {', '.join(numbers)}; got {number!r}")


def first_line(error):
    """The first line of an exception's message; its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _module_of(number):
    return f"helpers.lessons.exercises.chapter_{int(number.split('.')[0]):02d}"


def _wrapped(text):
    return textwrap.fill(text, width=96, break_on_hyphens=False, break_long_words=False)


def _misfit(attempts, reference):
    """Why `attempts` is no answer of the kind that `reference` is, or None."""
    if len(attempts) != 1:
        return f"check takes one answer, got {len(attempts)}."
    (attempt,), is_class = attempts, inspect.isclass(reference)
    if is_class and not inspect.isclass(attempt):
        apply = ", its apply" if issubclass(reference, torch.autograd.Function) else ""
        return (
            f"give check the class {reference.__name__} itself, not its instance{apply} or a "
            f"result; got a value of type {type(attempt).__name__}."
        )
    if inspect.isfunction(reference) and not callable(attempt):
        return f"give check the function itself, got a value of type {type(attempt).__name__}."
    if not (is_class and issubclass(reference, torch.autograd.Function)):
        return None
    if not issubclass(attempt, torch.autograd.Function):
        return "it must derive from torch.autograd.Function."
    for name in ("forward", "backward"):
        method = inspect.getattr_static(attempt, name)
        if method is inspect.getattr_static(torch.autograd.Function, name):
            if name == "backward" and vars(attempt).get("vjp"):
                continue
            return f"it has no method `{name}`. Look at its spelling and indentation."
        if not isinstance(method, staticmethod):
            return f"`{name}` must be a static method: @staticmethod, and no self."
    return None


def _same(attempt, stub):
    """Is `attempt` the stub as it stood? Compared by compiled code, so comments do not count."""
    if attempt is ... or stub is ...:
        return attempt is stub
    if isinstance(stub, str):
        return isinstance(attempt, str) and _tokens(attempt) == _tokens(stub)
    same_kind = type(attempt) is type(stub) and _parents(attempt) == _parents(stub)
    return same_kind and _code_of(attempt) == _code_of(stub)


def _tokens(source):
    """What is left of a text in C without comments and layout."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL).split()


def _code_of(value):
    """What a function or the methods of a class compile to, without names of files and lines."""
    if inspect.isclass(value):
        methods = {n: _code_of(m) for n, m in vars(value).items() if not inspect.isclass(m)}
        return value.__name__, {name: code for name, code in methods.items() if code}
    function = getattr(value, "__func__", value)
    code = value if inspect.iscode(value) else None
    code = getattr(inspect.unwrap(function), "__code__", code)
    if code is None:
        return None
    constants = [_code_of(c) if inspect.iscode(c) else c for c in code.co_consts]
    is_wrapped = hasattr(function, "__wrapped__")  # torch.compile(stub) is an attempt
    return is_wrapped, code.co_code, constants, code.co_names, code.co_varnames


def _parents(value):
    return value.__mro__[1:] if inspect.isclass(value) else None


def _is_blank(value):
    """Is it a function, or a class all of whose methods are functions, that does nothing at all?"""
    if inspect.isclass(value):
        methods = [getattr(m, "__func__", m) for m in vars(value).values()]
        methods = [m for m in methods if inspect.isfunction(m)]
        return bool(methods) and all(_is_blank(method) for method in methods)
    if not inspect.isfunction(value):
        return False
    # What `...`, `pass` and a docstring leave behind: return None.
    steps = [i for i in dis.get_instructions(value) if i.opname not in ("RESUME", "NOP")]
    loads = [i for i in steps if i.opname in ("LOAD_CONST", "RETURN_CONST")]
    return len(steps) <= 2 and [i.argval for i in loads] == [None]
