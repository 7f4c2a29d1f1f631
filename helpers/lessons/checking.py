"""`exercise("2.1")`: the exercises of the course, each with a check, hints and a solution."""

import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

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
        try:
            finding = self.finding(*attempts)
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
        text = inspect.getsource(self.reference).strip() if has_source else repr(self.reference)
        print(f"{text}\n\n{_wrapped(self.explanation)}")

    def __repr__(self):
        return f"exercise {self.number} {self.name}: .check(...), .hint(), .solution()"

    def _is_untouched(self, attempts):
        names = {}
        exec(self.stub, dict(vars(importlib.import_module(_module_of(self.number)))), names)
        stubs = [value for value in names.values() if value is ... or _code_of(value)]
        return len(attempts) == 0 or all(
            any(_same(attempt, stub) for stub in stubs) for attempt in attempts
        )


def exercise(number):
    """The `Exercise` with that number, such as "2.1". Raises ValueError if there is none."""
    if not isinstance(number, str):
        raise ValueError(f'number must be a string such as "2.1", got {number!r}')
    try:
        exercises = importlib.import_module(_module_of(number)).EXERCISES
    except (ModuleNotFoundError, ValueError):
        exercises = ()
    for candidate in exercises:
        if candidate.number == number:
            return candidate
    known = ", ".join(candidate.number for candidate in exercises) or "none in that chapter"
    raise ValueError(f"number must name an exercise ({known}), got {number!r}")


def first_line(error):
    """The first line of an exception's message; its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _module_of(number):
    return f"helpers.lessons.exercises.chapter_{int(number.split('.')[0]):02d}"


def _wrapped(text):
    return textwrap.fill(text, width=96, break_on_hyphens=False, break_long_words=False)


def _same(attempt, stub):
    """Is `attempt` the stub as it stood? Compared by compiled code, so comments do not count."""
    if attempt is ... or stub is ...:
        return attempt is stub
    return type(attempt) is type(stub) and _code_of(attempt) == _code_of(stub)


def _code_of(value):
    """What a function or the methods of a class compile to, without names of files and lines."""
    if inspect.isclass(value):
        methods = {n: _code_of(m) for n, m in vars(value).items() if not inspect.isclass(m)}
        return value.__name__, {name: code for name, code in methods.items() if code}
    code = value if inspect.iscode(value) else None
    code = getattr(inspect.unwrap(getattr(value, "__func__", value)), "__code__", code)
    if code is None:
        return None
    constants = [_code_of(c) if inspect.iscode(c) else c for c in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames
