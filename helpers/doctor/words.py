"""What is said, in the language of its reader: English, unless `translate` is set."""

translate = None  # or what makes of an English sentence, with its gaps, another one
spaced = None  # or what sets blanks right in a line of that language, its gaps filled


def _(sentence, /, *groups, **gaps):
    """This sentence in the language of the reader, its gaps filled if any are given."""
    said = translate(sentence) if translate and sentence else sentence
    return said.format(*groups, **gaps) if groups or gaps else said


def finished(line):
    """A line whose gaps are filled, as it is shown."""
    return spaced(line) if spaced else line


def N_(sentence):  # noqa: N802 (so gettext calls it)
    """Marks a sentence of a table, which `_` translates when it is said."""
    return sentence


COMMA = N_(", ")


def listed(parts, between=COMMA, last=None):
    """The parts, one after the other; `last`, if given, stands before the last one."""
    *before, end = [*map(str, parts)] or [""]
    return _(last or between).join([_(between).join(before), end] if before else [end])


def quoted(names):
    """Names as code, one after the other."""
    return listed((f"`{name}`" for name in names), last=" and ")


def followed(first, *others):
    """Sentences, one after the other; None or "" among the others stands for nothing."""
    for other in filter(None, others):
        first = _("{before} {after}", before=first, after=other)
    return first


def number(n, templates):
    """The first template if it is one, else the second, with this number."""
    return _(templates[n != 1], n=n)
