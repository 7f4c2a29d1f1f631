"""The course's exercises, as `exercise("2.1")`, with a check, hints and a solution."""

import html
import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from helpers.lessons.classroom.record import record
from helpers.lessons.judge.compare import explain_difference, find_difference
from helpers.lessons.judge.declaration import check_declaration
from helpers.lessons.judge.kind import is_function_class, wrong_kind
from helpers.lessons.judge.later import silently_wrong
from helpers.lessons.judge.numbers import raises
from helpers.lessons.judge.source import edited, made_of, outline, source_of
from helpers.lessons.judge.surroundings import usual_settings
from helpers.lessons.judge.variations import Inputs, caught, disturbed
from helpers.lessons.language import _, at

NOT_ATTEMPTED, WRONG, RIGHT = "○", "✗", "✓"
# White on these is read on a light page and on a dark one; colour-blind people tell
# them apart.
COLOURS = {NOT_ATTEMPTED: "#696969", WRONG: "#b34f00", RIGHT: "#007a59"}
KNOWN = {}  # every Exercise made so far, by its number


@dataclass(frozen=True)
class Verdict:
    """What a check says of an attempt: `mark` is one of ○ ✗ ✓, `message` is why."""

    mark: str
    message: str


@dataclass(repr=False, kw_only=True)
class Exercise:
    """One exercise, with what a learner can do: `check`, `hint`, `solution`.

    number:      "2.1" is the first of chapter 02
    reference:   a right answer: a class or function, whose source `solution()` shows,
                 or a string
    name:        by default that of the reference
    stub:        what the notebook's cell holds before anyone touched it, without the
                 check; or {old: new}, what to change in the source of the reference to
                 get it; by default `def f(…): ...`, as the reference begins
    wrong:       wrong attempts, each ({old: new}, words): what to change in the source
                 of the reference, and words that the verdict on it must hold
    like:        what an attempt must do, written with PyTorch's own operations
    inputs:      what an answer may be fed, each `Inputs` from which tensors are made
    called:      attempt -> the function that is like `like`, if not the attempt or its
                 apply
    order:       2 if there must be second derivatives; silently wrong they are never
                 right
    faithful:    False if the gradient is not meant to be the derivative
    doctor:      False if the doctor, who looks for a Function, has nothing to say
    kind:        properties that say whether it is an answer at all, before it is called
    properties:  what else must hold, in this order (see judge/properties.py)
    needs:       a function that raises, and says what is missing, where attempts cannot
                 be tried
    success:     said of a right attempt
    hints:       two or three, from vague to nearly there
    explanation: said under the solution

    What is wrong is said in one or two sentences, without giving the solution away.
    """

    number: str
    reference: object
    name: str = ""
    stub: str | dict[str, str] = ""
    wrong: Iterable[tuple[dict[str, str], str]] = ()
    like: Callable | None = None
    inputs: tuple[Inputs, ...] = ()
    called: Callable | None = None
    order: int = 1
    faithful: bool = True
    doctor: bool = True
    kind: Iterable[Callable[[object], Iterable[str | None]]] = ()
    properties: Iterable[Callable[[object], Iterable[str | None]]] = ()
    needs: Callable = lambda: None
    success: str
    hints: tuple[str, ...]
    explanation: str
    hints_given: int = 0

    def __post_init__(self):
        self.name = self.name or getattr(self.reference, "__name__", "")
        if not self.stub and callable(self.reference):
            self.stub = self.edited().partition(":\n")[0] + ": ..."
        check_declaration(self)
        KNOWN[self.number] = self

    @usual_settings()
    def judge(self, attempt):
        """The verdict on an attempt; an exception inside it becomes one, too."""
        if self._is_untouched(attempt):
            return Verdict(NOT_ATTEMPTED, _("not attempted yet"))
        try:
            self.needs()
        except Exception as error:
            said = _("it cannot be checked here: {error}", error=error)
            return Verdict(NOT_ATTEMPTED, said)
        try:
            wrong = next(filter(None, self._sentences(attempt)), None)
        except Exception as error:
            wrong = raises(error, _("your code raises {kind}: {message}"))
        if wrong:
            return Verdict(WRONG, wrong)
        return Verdict(RIGHT, _(self.success))

    def check(self, attempt):
        """Show the verdict on an attempt."""
        verdict = self.judge(attempt)
        record(self.number, verdict.mark)
        title = f"{self.number} {self.name}"
        message = re.sub(
            r"`(.+?)`", r"<code>\1</code>", html.escape(verdict.message, quote=False)
        )
        colour = COLOURS[verdict.mark]
        style = f"background: {colour}; color: white; padding: 0 4px"
        mark = f'<b style="{style}">{verdict.mark}</b>'
        frame = f"border-left: 4px solid {colour}; padding-left: 8px"
        says = at(f"{mark} <b>{html.escape(title)}</b>", message)
        _show(
            _wrapped(at(f"{verdict.mark} {title}", verdict.message)),
            "text/html",
            f'<div style="{frame}">{says}</div>',
        )

    def hint(self):
        """Show the next hint; after the last one, say so and repeat it."""
        self.hints_given = min(self.hints_given + 1, len(self.hints))
        given, all_of_them = self.hints_given, len(self.hints)
        template = _("Hint {given} of {all}: {hint}")
        if given == all_of_them:
            template = _("Hint {given} of {all} (the last one): {hint}")
        hint = _(self.hints[given - 1])
        text = template.format(given=given, all=all_of_them, hint=hint)
        _show(_wrapped(text), "text/markdown", text)

    def solution(self):
        """Show the reference and why it is right."""
        source, explained = self.edited().strip(), _(self.explanation)
        _show(
            f"{source}\n\n{_wrapped(explained)}",
            "text/markdown",
            f"```python\n{source}\n```\n\n{explained}",
        )

    def edited(self, edits=None):
        """The source of the reference, with edits {old: new}.

        Raises ValueError if an old text does not occur.
        """
        is_text = isinstance(self.reference, str)
        source = self.reference if is_text else source_of(self.reference)
        try:
            return edited(source, edits or {})
        except ValueError as error:
            raise ValueError(f"{self.number}: {error}") from None

    def made_of(self, source):
        """What a learner's cell with that source would hand to `check`."""
        if isinstance(self.reference, str):
            return source
        names = vars(sys.modules[self.reference.__module__])
        return made_of(source, names, self.reference.__name__)

    @property
    def cell(self):
        """The text of the stub."""
        return (
            self.stub if isinstance(self.stub, str) else self.edited(self.stub).strip()
        )

    def __repr__(self):
        return f"exercise {self.number} {self.name}: .check(...), .hint(), .solution()"

    def _is_untouched(self, attempt):
        if attempt is ...:
            return True
        (kind, parts), (stub_kind, stub_parts) = map(
            outline, (attempt, self.made_of(self.cell))
        )
        return kind == stub_kind and parts in ({}, stub_parts)

    def _sentences(self, attempt):
        """What is wrong, the coarsest first, and None for what is not."""
        yield wrong_kind(attempt, self.reference)
        for has in self.kind:
            yield from has(attempt)
        function = attempt.apply if is_function_class(attempt) else attempt
        function = self.called(attempt) if self.called else function
        how = {"order": self.order, "faithful": self.faithful}

        def explained(inputs):
            return explain_difference(function, self.like, inputs, **how)

        for given in self.inputs if self.doctor else ():
            yield _with_doctor(explained, given)
        for given in self.inputs:
            compared = partial(find_difference, faithful=self.faithful)
            yield from caught(
                compared, function, self.like, given, self.doctor and explained
            )
            yield from disturbed(function, self.like, given)
        for has in self.properties:
            yield from has(attempt)
        for given in self.inputs:
            compared = partial(silently_wrong, order=self.order)
            yield from caught(compared, function, self.like, given)


def _with_doctor(explained, given):
    """What is wrong in the plain case, and where if it is not the same everywhere."""
    (where, inputs), *others = given.plain()
    wrong = explained(inputs)
    everywhere = wrong and all(explained(other) == wrong for _, other in others[:1])
    return wrong if everywhere else at(where, wrong)


def exercises():
    """The exercises of the course, in order."""
    for path in sorted((Path(__file__).parent / "exercises").glob("chapter_*.py")):
        module = importlib.import_module(f"helpers.lessons.exercises.{path.stem}")
        yield from [
            value for value in vars(module).values() if isinstance(value, Exercise)
        ]


@usual_settings()  # the first call imports the exercises, which hold tensors
def exercise(number):
    """The `Exercise` with that number: of the course, or made elsewhere.

    Raises ValueError if there is none.
    """
    if not isinstance(number, str):
        raise ValueError(f'number must be a string such as "2.1", got {number!r}')
    wanted = number.strip().replace(",", ".")
    # Nothing takes a number of the course's.
    known = KNOWN | {given.number: given for given in exercises()}
    if wanted not in known:
        raise ValueError(f"number must be one of {', '.join(known)}; got {number!r}")
    record(wanted)
    return known[wanted]


def _show(text, kind, rich):
    """Show what is rich, of this MIME type, in a notebook, and plain text elsewhere."""
    ipython = sys.modules.get("IPython")
    if ipython and ipython.get_ipython():
        ipython.display.display({"text/plain": text, kind: rich}, raw=True)
    else:
        print(text)


def _wrapped(text):
    return textwrap.fill(text, width=96, break_on_hyphens=False, break_long_words=False)
