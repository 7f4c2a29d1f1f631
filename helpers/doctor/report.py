"""What the doctor found: sentences, findings, and the report as text, HTML and JSON."""

import functools
import html
import json
import re
import textwrap
from dataclasses import dataclass, field

import torch

# White words on these colours can be read, and these colours on a white and on a black page.
SEVERITIES = {"error": "#c04a00", "warning": "#8f6400", "note": "#1a73b8"}
MARK = "background-color: {}; color: #ffffff; border-radius: 3px; padding: 1px 6px"
FRAME = "border-left: 4px solid {}; padding-left: 8px; margin: 6px 0"
CODE_AS = '<code style="color: inherit; background: none">'  # as readable as the words around it
CODE = re.compile(
    r"`(.+?)`|(?<![\w.])((?:[.@](?=[a-z])|(?=[a-z]\w*[_.=]\w))\w+(?:\.\w+)*(?:=\w+|\(\))?)"
)
MEANT = " If that is meant, `examine(..., faithful=False)` accepts it."
NAMELESS = ", in no way that has a name"
CUT_OFF = "what is cut off from autograd: .detach(), .data, .item(), NumPy, torch.no_grad(), hooks"
TEXTS = {}  # by code


class Said(str):
    """Words that are data: a template, and what fills its gaps. As a string, they are English."""

    def __new__(cls, template, /, **gaps):
        made = super().__new__(cls, template.format(**gaps))
        made.template, made.gaps = template, gaps
        return made

    def __reduce__(self):
        return said, (self.template, self.gaps)

    def text(self, translate):
        """In another language: translate(template) is a template with the same gaps."""
        gaps = {k: v.text(translate) if isinstance(v, Said) else v for k, v in self.gaps.items()}
        return translate(self.template).format(**gaps)


def said(template, gaps):
    return Said(template, **gaps)


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


NOT_COMPARED = Said("differences of forward show nothing of it there")
JUDGED = "judged: {what}"
UNJUDGED = "not judged: `{x}` ({why})"
ORDERS = {
    (1, 1): "{which} at one point, first order",
    (1, 2): "{which} at one point, first and second order",
    (2, 1): "{which} at {points} points, first order",
    (2, 2): "{which} at {points} points, first and second order",
}


def told(judged):
    """What was judged, and what was not, as lines."""
    groups = {}
    for one in judged:
        if one.points:
            groups.setdefault((one.points, one.order), []).append(f"`{one.input}`")
    parts = [
        Said(ORDERS[min(points, 2), order], which=", ".join(names), points=points)
        for (points, order), names in groups.items()
    ]
    yield from [Said(JUDGED, what="; ".join(parts))] if parts else []
    for one in judged:
        if not one.points:
            yield Said(UNJUDGED, x=one.input, why=one.why or NOT_COMPARED)


@dataclass
class Finding:
    """One thing that was found.

    code:     a short name, a key of TEXTS, such as "transposed"
    severity: "error", "warning" (the gradient is right, but it will hurt) or "note"
    message:  what is the matter, in one or two sentences
    remedy:   where to look
    input, output: the names of those concerned, or None
    evidence: what was measured: numbers, lists of indices, strings; for a wrong gradient of few
              elements also "given_jacobian" and "expected_jacobian", of shape (outputs, inputs)
    through:  the output through which it is so, if it is not so through all of them
    change:   "right if: …", what would make the gradient right; or "as if: …", what would make it
              that of forward; if one change was found
    place:    of this change: "line 12, in `backward`"
    words:    what fills the gaps of the text with this code, by the gap's name: {"factor": "2"}
    """

    code: str
    severity: str
    message: str
    remedy: str = ""
    input: str | None = None
    output: str | None = None
    evidence: dict = field(default_factory=dict)
    through: str = ""
    change: str = ""
    place: str = ""
    words: dict = field(default_factory=dict)

    def lines(self):
        """Message, remedy and evidence, as far as there are any."""
        seen = [(k, v) for k, v in self.evidence.items() if not isinstance(v, torch.Tensor)]
        pair = distinct(self.evidence.get("given"), self.evidence.get("expected"))
        ratio = distinct(self.evidence.get("ratio"), 1.0)
        digits = {"given": pair, "expected": pair, "ratio": ratio}
        yield f"{self.severity} ({self.code}): {self.message}"
        if self.change:
            yield self.change + (self.place and f" ({self.place})")
        elif self.remedy:
            yield f"look at: {self.remedy}"
        if seen:
            yield "seen: " + ", ".join(f"{k} {brief(v, digits.get(k, 3))}" for k, v in seen)


class Text:
    """What a finding says; called with the words that fill its gaps, it makes the `Finding`.

    {x} is the input, {y} the output, {meant} is MEANT where forward is the identity, for nobody
    writes one for its forward, {nameless} is NAMELESS unless a change makes it right.
    """

    def __init__(self, severity, code, message, look=""):
        self.severity, self.code, self.message, self.look = severity, code, message, look
        assert TEXTS.setdefault(code, self) is self, f"there are two texts for {code}"

    def __call__(
        self, x=None, y=None, seen=None, severity=None, through="", groups=(), change="", place="",
        **words,
    ):  # fmt: skip
        named = f"gradient of {{x}} through {through}" if through else "gradient of {x}"
        message = self.message.replace("gradient of {x}", named, 1)
        gaps = {"x": f"`{x}`", "y": y, "meant": "", "nameless": NAMELESS, **words}
        message, look = message.format(*groups, **gaps), self.look.format(**gaps)
        message = message[:1].upper() + message[1:] if y and message.startswith(y) else message
        words |= {str(k): group for k, group in enumerate(groups)}
        return Finding(
            self.code, severity or self.severity, message, look, x, y, seen or {}, through, change,
            place, words,
        )  # fmt: skip


error, warning, note = (functools.partial(Text, severity) for severity in SEVERITIES)


@dataclass(repr=False)
class Report:
    """What `examine` found, as text (`print`), as HTML (in a notebook) and as JSON."""

    name: str
    findings: list
    examined: bool = True  # False if forward did not run, or there is nothing to differentiate
    judged: list = field(default_factory=list)  # a `Judged` for each input

    @property
    def ok(self):
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def summary(self):
        counts = [(s, sum(f.severity == s for f in self.findings)) for s in SEVERITIES]
        found = ", ".join(f"{n} {s}{'s' * (n > 1)}" for s, n in counts if n)
        return f"{self.name}: {found or 'nothing found'}"

    def __repr__(self):
        lines = [self.summary]
        for finding in self.findings:
            for indent, line in zip(("  ", "      ", "      "), finding.lines(), strict=False):
                lines += textwrap.wrap(
                    line, 96, initial_indent=indent, subsequent_indent=indent + "  ",
                    break_long_words=False, break_on_hyphens=False,
                )  # fmt: skip
        for line in told(self.judged):
            lines += textwrap.wrap(
                line, 96, initial_indent="  ", subsequent_indent="    ", break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip
        return "\n".join(lines)

    def _repr_html_(self):
        rows = [f"<b>{html.escape(self.summary)}</b>"]
        for finding in self.findings:
            colour, (first, *rest) = SEVERITIES[finding.severity], map(marked_up, finding.lines())
            first = first.removeprefix(finding.severity)
            mark = f'<span style="{MARK.format(colour)}">{finding.severity}</span>'
            rest = "".join(f"<br><small>{line}</small>" for line in rest)
            rows.append(f'<div style="{FRAME.format(colour)}">{mark}{first}{rest}</div>')
        rows += [f"<div><small>{marked_up(line)}</small></div>" for line in told(self.judged)]
        return "".join(rows)

    def to_json(self):
        """All fields of the report and of its findings; what JSON does not know is a string."""
        return json.dumps({"ok": self.ok, **vars(self)}, default=as_json)

    def raise_if_wrong(self):
        """Raise WrongGradientError if there is an error; otherwise return the report."""
        if not self.ok:
            raise WrongGradientError(str(self))
        return self


def as_json(value):
    """A finding as a dict, a tensor as nested lists, anything else in words."""
    if isinstance(value, (Finding, Judged)):
        return vars(value)
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
        parts = brief(value.real, digits), brief(abs(value.imag), digits)
        return f"{parts[0]}{'-' if value.imag < 0 else '+'}{parts[1]}i"
    if isinstance(value, float):
        return "0" if abs(value) < 1e-12 else f"{value:.{digits}g}"
    return str(value).removeprefix("torch." * isinstance(value, torch.dtype))
