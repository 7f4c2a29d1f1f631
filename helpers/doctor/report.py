"""What the doctor found: findings, and the report as text, HTML and JSON."""

import functools
import html
import json
import re
import textwrap
import warnings
from dataclasses import asdict, dataclass, field

import torch

from .course import section_of
from .words import N_, _, finished, followed, listed, number

# White words on these colours can be read, and these colours on a white and on a black
# page.
SEVERITIES = {
    N_("error"): "#c04a00",
    N_("warning"): "#8f6400",
    N_("note"): "#1a73b8",
}
MARK = "background-color: {}; color: #ffffff; border-radius: 3px; padding: 1px 6px"
FRAME = "border-left: 4px solid {}; padding-left: 8px; margin: 6px 0"
CODE_AS = '<code style="color: inherit; background: none">'  # as readable as the words
CODE = re.compile(
    r"`(.+?)`|(?<![\w.])((?:[.@](?=[a-z])|(?=[a-z]\w*[_.=]\w))\w+(?:\.\w+)*(?:=\w+|\(\))?)"
)
ACCEPT = "`examine(..., faithful=False)`"
MEANT = N_("If that is meant, {how} accepts it.")
DRAWN = N_(
    "Forward draws random numbers: if the gradient is an estimator's, {how} accepts it."
)
THROUGH = N_("Through {y}: {what}")
CUT_OFF = N_(
    "what is cut off from autograd: .detach(), .data, .item(), NumPy, "
    "torch.no_grad(), hooks"
)
TEXTS = {}  # by code


class WrongGradientError(AssertionError):
    """Raised by `Report.raise_if_wrong`; its text is the report."""


# --- what was judged ------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """How far the gradient of one input was judged.

    points: how many, of up to three, at which it was compared with differences of
            forward
    order:  2 if its derivative was compared, too; 1 if only the gradient was; 0 if
            nothing
    why:    the reason why it is not more, in words
    meant:  is that so because of what the caller gave or accepted?
    beside: "differences" of forward, or the "reference" that the caller gave
    """

    input: str
    points: int = 0
    order: int = 0
    why: str = ""
    meant: bool = False
    beside: str = "differences"


NOT_COMPARED = N_("differences of forward show too little of it")
NOT_FINITE = N_("it has nan or inf itself")
PREVENTED = N_("what was found prevents it")
ORDERS = {
    (1, 1): N_("{which} at one point, first order"),
    (1, 2): N_("{which} at one point, first and second order"),
    (2, 1): N_("{which} at {points} points, first order"),
    (2, 2): N_("{which} at {points} points, first and second order"),
}
POINTS = 3


def what_was(judged):
    """What was judged, and what was not: a list of sentences."""
    groups = {}
    for one in judged:
        if one.points:
            why = one.why if one.points < POINTS else ""
            key = one.points, one.order, why
            groups.setdefault(key, []).append(f"`{one.input}`")
    parts = []
    for (points, order, why), names in groups.items():
        template = ORDERS[min(points, 2), order]
        what = _(template, which=listed(names), points=points)
        if why:
            what = _("{what} (not at more: {why})", what=what, why=why)
        parts.append(what)
    template = N_("judged: {what}")
    if any(one.beside == "reference" for one in judged):
        template = N_("judged beside the reference: {what}")
    found = [_(template, what=listed(parts, "; "))] if parts else []
    return found + [
        _("not judged: `{x}` ({why})", x=one.input, why=one.why or _(PREVENTED))
        for one in judged
        if not one.points
    ]


# What the given inputs leave open, though their gradients are right.
ONE_ROW = N_("not seen: a batch of more than one, as `{x}` has one")
NO_REPEAT = N_("not seen: a value of `{x}` that repeats")
NO_DIFFERENCES = N_(
    "not judged: what comes through `{y}`, as {dtype} has no arithmetic"
)


@dataclass(frozen=True)
class Output:
    """An output: its name, its dtype, and whether it carries a gradient."""

    output: str
    dtype: str
    gradient: bool


def what_came_out(outputs):
    """Of several outputs, which carry a gradient: a list of one sentence, or none."""
    with_gradient, without = N_("`{y}` ({dtype})"), N_("`{y}` ({dtype}, no gradient)")
    words = [
        _(with_gradient if one.gradient else without, y=one.output, dtype=one.dtype)
        for one in outputs
    ]
    return [_("outputs: {what}", what=listed(words))] if len(words) > 1 else []


# --- findings -------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One thing that was found, in words and as data.

    code:     a short name, a key of TEXTS, such as "transposed"
    severity: "error", "warning" (the gradient is right, but it will hurt) or "note"
    message:  what is the matter
    meant:    how to accept it if it is meant, or ""
    remedy:   where to look, or ""
    change:   what would make the gradient right: "right if: …", or ""
    place:    where that is: "line 12, in `backward`", or ""
    first_wrong, right_so_far: which local of backward goes wrong first, and which
              before it are right, where no change is known; or ""
    also_wrong: other inputs, whose gradients are wrong for the same reason
    input, output: the names of those concerned, or None; output: if only one is
    file, line: of the change, or of what raised; old, new: what the change replaces, by
                what
    values:   what was measured: numbers, lists of indices, strings; for a wrong
              gradient of few elements also "given_jacobian" and "expected_jacobian", of
              shape (outputs, inputs)
    """

    code: str
    severity: str
    message: str
    meant: str = ""
    remedy: str = ""
    change: str = ""
    place: str = ""
    first_wrong: str = ""
    right_so_far: str = ""
    also_wrong: tuple = ()
    input: str | None = None
    output: str | None = None
    file: str = ""
    line: int | None = None
    old: str = ""
    new: str = ""
    values: dict = field(default_factory=dict)

    @property
    def section(self):
        """Where the course explains it, or "" where the course is not installed."""
        return section_of(self.code)

    def lines(self, known=()):
        """In words, after the severity: message; change, or where to look; numbers.

        known: changes that have been said before, to which this one is added
        """
        said = followed(self.message, self.meant)
        yield _("({code}): {message}", code=self.code, message=said)
        if self.right_so_far:
            yield _("right so far: {what}", what=self.right_so_far)
        if self.first_wrong:
            yield self.first_wrong
        if self.change and (self.change, self.place) in known:
            yield _("the same change")
        elif self.change:
            yield _("{what} ({place})", what=self.change, place=self.place)
        elif self.remedy and not self.first_wrong:
            yield _("look at: {remedy}", remedy=self.remedy)
        pair = distinct(self.values.get("given"), self.values.get("expected"))
        ratio = distinct(self.values.get("ratio"), 1.0)
        digits = {"given": pair, "expected": pair, "ratio": ratio}
        numbers = [
            f"{_(name)} {brief(value, digits.get(name, 3))}"
            for name, value in self.values.items()
            if not torch.is_tensor(value)
        ]
        if numbers:
            yield _("seen: {numbers}", numbers=listed(numbers))


# The keys of `values`, to be translated.
SEEN = (
    N_("at"),
    N_("given"),
    N_("expected"),
    N_("ratio"),
    N_("angle"),
    N_("message"),
    N_("shape"),
    N_("input there"),
    N_("value"),
    N_("slopes"),
    N_("runs"),
    N_("seconds"),
)


@dataclass(frozen=True)
class Change:
    """What would make a gradient right, as a `Finding` holds it."""

    change: str
    place: str
    file: str = ""
    line: int | None = None
    old: str = ""
    new: str = ""


class Text:
    """What a finding says; called with what fills its gaps, it makes the `Finding`.

    {x} is the input, {y} the output, {Y} the same where a sentence begins.

    kind: of a cause of a wrong gradient, as in `causes/cause.py`
    """

    def __init__(self, severity, code, message, look="", raises="", none="", kind=""):
        self.severity, self.code, self.kind = severity, code, kind
        self.message, self.look = message, look
        self.raises, self.none = raises or message, none or message
        assert TEXTS.setdefault(code, self) is self, f"there are two texts for {code}"

    def __call__(
        self,
        x=None,
        y=None,
        values=None,
        *,
        message=None,
        severity=None,
        remedy=None,
        meant="",
        accept=ACCEPT,
        further=(),
        groups=(),
        output=None,
        through=None,
        change=None,
        first_wrong=None,
        also_wrong=(),
        **gaps,
    ):
        """The `Finding`, of this text and what fills its gaps.

        message: `raises` or `none`, in place of the usual one; remedy: where to look,
                if elsewhere; meant: a template, in which {how} is accept
        groups: fill gaps by position; further: sentences that follow; output: the only
                one concerned; through: the same, and said first; change: a `Change`;
                first_wrong: a `FirstWrong`; also_wrong: other inputs
        """
        Y = _("The output") if y == "the output" else y
        gaps = {"x": f"`{x}`", "y": _(y), "Y": Y} | gaps
        said = _(message or self.message, *groups, **gaps)
        if through:
            said = _(THROUGH, y=_(through), what=said)
        return Finding(
            self.code,
            severity or self.severity,
            followed(said, *further),
            _(meant, how=accept),
            _(self.look, **gaps) if remedy is None else remedy,
            input=x,
            output=output or through,
            values=values or {},
            also_wrong=tuple(also_wrong),
            **(first_wrong.words() if first_wrong else {})
            | (vars(change) if change else {}),
        )


error, warning, note = (functools.partial(Text, severity) for severity in SEVERITIES)


# --- reports --------------------------------------------------------------------------

COUNTS = {  # of one, of several
    "error": (N_("{n} error"), N_("{n} errors")),
    "warning": (N_("{n} warning"), N_("{n} warnings")),
    "note": (N_("{n} note"), N_("{n} notes")),
}


@dataclass(repr=False)
class Report:
    """What `examine` found, as text (`print`), as HTML (in a notebook) and as JSON.

    examined: False if forward did not run, or there is nothing to differentiate
    judged:   a `Judged` for each input
    unseen:   what these inputs leave open, in sentences
    outputs:  an `Output` for each output
    """

    name: str
    findings: list
    examined: bool = True
    judged: list = field(default_factory=list)
    unseen: list = field(default_factory=list)
    outputs: list = field(default_factory=list)

    @property
    def ok(self):
        return all(finding.severity != "error" for finding in self.findings)

    def headline(self):
        """The report in one line."""
        counts = [(s, sum(f.severity == s for f in self.findings)) for s in SEVERITIES]
        found = [number(n, COUNTS[s]) for s, n in counts if n]
        judged = any(one.points for one in self.judged)
        nothing = _("nothing found") if judged else _("nothing judged")
        found = listed(found) if found else nothing
        return _("{name}: {found}", name=self.name, found=found)

    @property
    def scope(self):
        """What was judged and what was not, in sentences."""
        return what_was(self.judged) + self.unseen + what_came_out(self.outputs)

    def __repr__(self):
        lines = [self.headline(), *shown(self.findings)]
        for line in self.scope:
            lines += wrapped(line, "  ", "    ")
        return "\n".join(lines)

    def _repr_html_(self):
        rows = [f"<b>{html.escape(self.headline())}</b>"]
        for finding, lines in in_turn(self.findings):
            colour = SEVERITIES[finding.severity]
            first, *rest = map(marked_up, lines)
            mark = f'<span style="{MARK.format(colour)}">{_(finding.severity)}</span>'
            rest = "".join(f"<br><small>{line}</small>" for line in rest)
            rows.append(
                f'<div style="{FRAME.format(colour)}">{mark} {first}{rest}</div>'
            )
        for line in self.scope:
            rows.append(f"<div><small>{marked_up(line)}</small></div>")
        return "".join(rows)

    def as_dict(self, jacobians=False):
        """The report as JSON holds it; jacobians: with the tensors among the values."""
        return {
            **vars(self),
            "ok": self.ok,
            "findings": [flat(finding, jacobians) for finding in self.findings],
            "judged": [asdict(one) for one in self.judged],
            "outputs": [asdict(one) for one in self.outputs],
        }

    def to_json(self, jacobians=False):
        return json.dumps({"version": SCHEMA, **self.as_dict(jacobians)})

    def raise_if_wrong(self):
        """Raise WrongGradientError if there is an error; otherwise return the report.

        Warns if no gradient was judged, which a test would take for a pass.
        """
        if not self.ok:
            raise WrongGradientError(str(self))
        if not any(one.points or one.meant for one in self.judged):
            warnings.warn(_("No gradient was judged.") + f"\n{self}", stacklevel=2)
        return self


SCHEMA = 3  # of the JSON, which README.md describes


def flat(finding, jacobians):
    """A finding as JSON holds it."""
    values = {
        name: as_json(value)
        for name, value in finding.values.items()
        if jacobians or not torch.is_tensor(value)
    }
    return {**vars(finding), "section": finding.section, "values": values}


def as_json(value):
    """A tensor as nested lists, and what JSON does not know in words."""
    if torch.is_tensor(value):
        return as_json(value.tolist())
    if isinstance(value, list):
        return [as_json(item) for item in value]
    is_finite = isinstance(value, float) and abs(value) < torch.inf
    return value if is_finite or isinstance(value, (int, str)) else brief(value)


def in_turn(findings):
    """(finding, its lines) of each; the same change is said once."""
    known = set()
    for finding in findings:
        yield finding, [*finding.lines(known)]
        known.add((finding.change, finding.place))


def shown(findings):
    """Findings as lines of text."""
    found = []
    for finding, (first, *rest) in in_turn(findings):
        found += wrapped(f"{_(finding.severity)} {first}", "  ", "    ")
        found += [x for text in rest for x in wrapped(text, "      ", "        ")]
    return found


def wrapped(text, first, further):
    """Lines of text with these indents."""
    return textwrap.wrap(
        finished(text),
        96,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def marked_up(line):
    """As HTML, with code in backticks and Python's names set as code."""
    line = html.escape(finished(line), quote=False)
    return CODE.sub(lambda m: f"{CODE_AS}{m[1] or m[2]}</code>", line)


def distinct(one, other):
    """How many digits two numbers need to look different."""
    found = (d for d in range(3, 17) if brief(one, d) != brief(other, d))
    return next(found, 3)


def brief(value, digits=3):
    """A number with this many digits, a dtype without "torch.", or as printed."""
    if isinstance(value, complex):
        real, imaginary = brief(value.real, digits), brief(abs(value.imag), digits)
        sign = "-" if value.imag < 0 else "+"
        return real if imaginary == "0" else f"{real}{sign}{imaginary}i"
    if isinstance(value, float):
        return "0" if abs(value) < 1e-12 else f"{value:.{digits}g}"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(value)
