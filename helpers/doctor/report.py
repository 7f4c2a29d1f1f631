"""What the doctor found: findings, which are data, and the report as text, HTML and JSON."""

import functools
import html
import json
import re
import textwrap
from dataclasses import dataclass, field, replace

import torch

from .course import section_of
from .said import Name, Said, gaps_of, listed, said

# White words on these colours can be read, and these colours on a white and on a black page.
SEVERITIES = {"error": "#c04a00", "warning": "#8f6400", "note": "#1a73b8"}
MARK = "background-color: {}; color: #ffffff; border-radius: 3px; padding: 1px 6px"
FRAME = "border-left: 4px solid {}; padding-left: 8px; margin: 6px 0"
CODE_AS = '<code style="color: inherit; background: none">'  # as readable as the words around it
CODE = re.compile(
    r"`(.+?)`|(?<![\w.])((?:[.@](?=[a-z])|(?=[a-z]\w*[_.=]\w))\w+(?:\.\w+)*(?:=\w+|\(\))?)"
)
MEANT = Said(" If that is meant, {how} accepts it.", how="`examine(..., faithful=False)`")
DRAWN = Said(
    " Forward draws random numbers: if the gradient is an estimator's, {how} accepts it.",
    **MEANT.gaps,
)
NAMELESS = ", in no way that has a name"
IN_A_CORNER = "In a corner of shape {corner}, "
CUT_OFF = "what is cut off from autograd: .detach(), .data, .item(), NumPy, torch.no_grad(), hooks"
TEXTS = {}  # by code


class WrongGradientError(AssertionError):
    """Raised by `Report.raise_if_wrong`; its text is the report."""


@dataclass
class Judged:
    """How far the gradient of one input was judged.

    points: how many, of up to three, at which it was compared with differences of forward
    order:  2 if its derivative was compared, too; 1 if only the gradient was; 0 if nothing was
    why:    the reason why it is not more
    meant:  is that so because of what the caller gave or accepted?
    """

    input: str
    points: int = 0
    order: int = 0
    why: str = ""
    meant: bool = False


NOT_COMPARED = "differences of forward show too little of it"
PREVENTED = "what was found prevents it"
JUDGED = "judged: {what}"
UNJUDGED = "not judged: `{x}` ({why})"
ORDERS = {
    (1, 1): "{which} at one point, first order",
    (1, 2): "{which} at one point, first and second order",
    (2, 1): "{which} at {points} points, first order",
    (2, 2): "{which} at {points} points, first and second order",
}
POINTS, FEWER = 3, "{what} (not at more: {why})"


def what_was(judged):
    """What was judged, and what was not: a list of `Said`."""
    groups = {}
    for one in judged:
        if one.points:
            why = one.why if one.points < POINTS else ""
            groups.setdefault((one.points, one.order, why), []).append(f"`{one.input}`")
    parts = []
    for (points, order, why), names in groups.items():
        what = Said(ORDERS[min(points, 2), order], which=listed(names), points=points)
        parts.append(Said(FEWER, what=what, why=why) if why else what)
    left = [one for one in judged if not one.points]
    found = [Said(JUDGED, what=listed(parts, "; "))] if parts else []
    return found + [Said(UNJUDGED, x=Name(one.input), why=one.why or PREVENTED) for one in left]


@dataclass(frozen=True)
class Clause:
    """What would mend a gradient, or explain it, and where. Both are `Said`.

    what:  "right if: …", or "as if: …"
    place: "line 12, in `backward`"
    """

    what: Said
    place: Said


ENGLISH = "message", "remedy", "change", "place", "section"  # of a finding, in words
HEAD = "({code}): {message}"
LOOK = "look at: {remedy}"
CLAUSE = "{what} ({place})"
SEEN, NUMBER = "seen: {numbers}", "{what} {number}"


@dataclass(frozen=True)
class Finding:
    """One thing that was found, as data. In English: `message`, `remedy`, `change` and `place`.

    section:  where the course explains it, or "" where the course is not installed

    code:     a short name, a key of TEXTS, such as "transposed"
    severity: "error", "warning" (the gradient is right, but it will hurt) or "note"
    sentence: what is the matter, in one or two sentences: `Said`
    look:     where to look: `Said`, or None
    input, output: the names of those concerned, or None
    evidence: what was measured: numbers, lists of indices, strings; for a wrong gradient of few
              elements also "given_jacobian" and "expected_jacobian", of shape (outputs, inputs)
    through:  the output through which it is so, if it is not so through all of them
    clause:   the `Clause` of what would make the gradient right, or make it that of forward; if
              one was found
    """

    code: str
    severity: str
    sentence: Said
    look: Said | None = None
    input: str | None = None
    output: str | None = None
    evidence: dict = field(default_factory=dict)
    through: str = ""
    clause: Clause | None = None

    @property
    def message(self):
        return str(self.sentence)

    @property
    def remedy(self):
        return str(self.look or "")

    @property
    def change(self):
        return str(self.clause.what) if self.clause else ""

    @property
    def place(self):
        return str(self.clause.place) if self.clause else ""

    @property
    def section(self):
        return section_of(self.code)

    def accepted_by(self, how):
        """The same finding, with another way to accept it if it is meant."""
        gaps = self.sentence.gaps
        other = {k: Said(p.template, how=how) for k, p in gaps.items() if p in (MEANT, DRAWN)}
        return replace(self, sentence=Said(self.sentence.template, **gaps | other))

    def lines(self):
        """After the severity, each `Said`: message; clause, or where to look; numbers."""
        yield Said(HEAD, code=Name(self.code), message=self.sentence)
        if self.clause:
            yield Said(CLAUSE, **vars(self.clause))
        elif self.look:
            yield Said(LOOK, remedy=self.look)
        pair = distinct(self.evidence.get("given"), self.evidence.get("expected"))
        ratio = distinct(self.evidence.get("ratio"), 1.0)
        digits = {"given": pair, "expected": pair, "ratio": ratio}
        numbers = [
            Said(NUMBER, what=k, number=v if isinstance(v, Said) else brief(v, digits.get(k, 3)))
            for k, v in self.evidence.items() if not isinstance(v, torch.Tensor)
        ]  # fmt: skip
        if numbers:
            yield Said(SEEN, numbers=listed(numbers))


def of_a_corner(template):
    """What `template` says, of a part of the input only, whose shape is {corner}."""
    return IN_A_CORNER + template[0].lower() + template[1:]


class Text:
    """What a finding says; called with what fills its gaps, it makes the `Finding`.

    {x} is the input, {y} the output, {Y} the same where a sentence begins, {meant} MEANT where it
    may be so on purpose, {nameless} NAMELESS unless a change makes it right.
    through: the template if it is so through one output only
    """

    def __init__(self, severity, code, message, look=""):
        self.severity, self.code, self.message, self.look = severity, code, message, look
        self.through = message.replace("gradient of {x}", "gradient of {x} through {through}", 1)
        assert TEXTS.setdefault(code, self) is self, f"there are two texts for {code}"

    def __call__(
        self, x=None, y=None, seen=None, *, severity=None, through="", corner=None, remedy=None,
        clause=None, **gaps,
    ):  # fmt: skip
        """corner: the shape of the part that was judged; remedy: where to look, if elsewhere."""
        template = self.through if through else self.message
        if corner:
            template = of_a_corner(template)
        Y = "The output" if y == "the output" else y
        own = {"x": f"`{x}`", "y": y, "Y": Y, "nameless": NAMELESS}
        gaps = {**own, "meant": "", "through": through, "corner": corner, **gaps}
        sentence, look = (
            Said(text, **{name: gaps[name] for name in gaps_of(text)})
            for text in (template, self.look)
        )
        look = said(remedy) or (look if self.look else None)
        severity = severity or self.severity
        return Finding(self.code, severity, sentence, look, x, y, seen or {}, through, clause)


error, warning, note = (functools.partial(Text, severity) for severity in SEVERITIES)
COUNTS = {  # of one, of several
    "error": ("{n} error", "{n} errors"),
    "warning": ("{n} warning", "{n} warnings"),
    "note": ("{n} note", "{n} notes"),
}
SUMMARY = "{name}: {found}"
NOTHING = "nothing found"


@dataclass(repr=False)
class Report:
    """What `examine` found, as text (`print`), as HTML (in a notebook) and as JSON."""

    name: str
    findings: list
    examined: bool = True  # False if forward did not run, or there is nothing to differentiate
    judged: list = field(default_factory=list)  # a `Judged` for each input

    # What each report that is shown is translated with: put another in here, of all reports.
    translate = str

    @property
    def ok(self):
        return all(finding.severity != "error" for finding in self.findings)

    def headline(self):
        """The report in one line: `Said`."""
        counts = [(s, sum(f.severity == s for f in self.findings)) for s in SEVERITIES]
        found = [Said(COUNTS[s][n > 1], n=n) for s, n in counts if n]
        return Said(SUMMARY, name=Name(self.name), found=listed(found) if found else NOTHING)

    def text(self, translate=str):
        """The report in words; translate(template) is a template in another language."""
        lines = [self.headline().text(translate)]
        for finding in self.findings:
            lines += shown(finding, translate)
        for line in what_was(self.judged):
            lines += wrapped(line.text(translate), "  ", "    ")
        return "\n".join(lines)

    def __repr__(self):
        return self.text(Report.translate)

    def html(self, translate=str):
        """The same as HTML."""
        rows = [f"<b>{html.escape(self.headline().text(translate))}</b>"]
        for finding in self.findings:
            colour = SEVERITIES[finding.severity]
            first, *rest = (marked_up(line.text(translate)) for line in finding.lines())
            mark = f'<span style="{MARK.format(colour)}">{translate(finding.severity)}</span>'
            rest = "".join(f"<br><small>{line}</small>" for line in rest)
            rows.append(f'<div style="{FRAME.format(colour)}">{mark} {first}{rest}</div>')
        for line in what_was(self.judged):
            rows.append(f"<div><small>{marked_up(line.text(translate))}</small></div>")
        return "".join(rows)

    def _repr_html_(self):
        return self.html(Report.translate)

    def to_json(self):
        """All fields of the report and of its findings; what JSON does not know is a string."""
        return json.dumps({"ok": self.ok, **vars(self)}, default=as_json)

    def raise_if_wrong(self):
        """Raise WrongGradientError if there is an error; otherwise return the report."""
        if not self.ok:
            raise WrongGradientError(str(self))
        return self


def shown(finding, translate=str):
    """A finding as lines of text."""
    first, *rest = (line.text(translate) for line in finding.lines())
    lines = wrapped(f"{translate(finding.severity)} {first}", "  ", "    ")
    return lines + [line for text in rest for line in wrapped(text, "      ", "        ")]


def wrapped(text, first, further):
    """Lines of text with these indents."""
    return textwrap.wrap(
        text, 96, initial_indent=first, subsequent_indent=further, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def as_json(value):
    """A finding as a dict, with its words; a tensor as nested lists; anything else in words."""
    if isinstance(value, Finding):
        return vars(value) | {name: getattr(value, name) for name in ENGLISH}
    if isinstance(value, (Clause, Judged)):
        return vars(value)
    if isinstance(value, Said):
        return {"template": value.template, "gaps": value.gaps}
    return value.tolist() if isinstance(value, torch.Tensor) else brief(value)


def marked_up(line):
    """As HTML: what stands in backticks, and what looks like a name in Python, is set as code."""
    line = html.escape(line, quote=False)
    return CODE.sub(lambda m: f"{CODE_AS}{m[1] or m[2]}</code>", line)


def distinct(one, other):
    """How many digits two numbers need to look different."""
    for digits in range(3, 17) if isinstance(one, float) and isinstance(other, float) else ():
        if brief(one, digits) != brief(other, digits):
            return digits
    return 3


def brief(value, digits=3):
    """A number with this many digits, a dtype without "torch.", anything else as it prints."""
    if isinstance(value, complex):
        real, imaginary = brief(value.real, digits), brief(abs(value.imag), digits)
        sign = "-" if value.imag < 0 else "+"
        return real if imaginary == "0" else f"{real}{sign}{imaginary}i"
    if isinstance(value, float):
        return "0" if abs(value) < 1e-12 else f"{value:.{digits}g}"
    return str(value).removeprefix("torch." * isinstance(value, torch.dtype))
