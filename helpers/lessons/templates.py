"""What is said, as data: it becomes words where it is shown, in the language of who shows it."""

import string


class Name(str):
    """What fills a gap as it is, in every language: the name of an input, of a function."""


class Said:
    """A template, and what fills its gaps: `Said("{x} lacks {count} terms", x="`w`", count=2)`.

    gaps: values, or what is `Said` itself; a string is a template without gaps, and a `Name` is
          none. They have names, or are numbered ("0") as in `str.format`.
    """

    def __init__(self, template, /, **gaps):
        self.template, self.gaps = template, gaps

    def text(self, translate=str):
        """In words; translate(template) is the template in another language, with the same gaps."""
        return filled(self.template, self.gaps, translate)

    def __str__(self):
        return self.text()

    def __repr__(self):
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other):
        return isinstance(other, Said) and vars(self) == vars(other)

    def __hash__(self):
        return hash(self.template)  # what is equal has the same


def filled(template, gaps, translate):
    """The words of a template; translate is asked for those of each part."""

    def words(part):
        if isinstance(part, Said):
            return part.text(translate)
        return translate(part) if part and type(part) is str else part

    parts = {name: words(part) for name, part in gaps.items()}
    numbered = [parts[k] for k in map(str, range(len(parts))) if k in parts]
    return words(template).format(*numbered, **parts) if gaps else words(template)


def said(value):
    """`value` as `Said`, if it is a string."""
    return Said(value) if isinstance(value, str) else value


def listed(parts, between=", ", last=None):
    """The parts, one after the other; `last`, if given, stands before the last one."""
    parts = {str(k): part for k, part in enumerate(parts)}
    *before, end = [f"{{{k}}}" for k in parts] or [""]
    template = "{last}".join(["{between}".join(before), end] if before else [end])
    return Said(template, **parts, between=between, last=last or between)


def gaps_of(template):
    """The names of its gaps."""
    return {name for _, name, *_ in string.Formatter().parse(template) if name}
