"""What the course says is data until it is shown: a template, and what fills its gaps.

Whoever must decide something looks at fields. The words are made here, and nowhere else.
"""

import copy

from helpers.lessons.language import translated

BEGINS, FOLLOWS = "{where}: {words}", "{before} {after}"  # Chinese needs no space


class Said:
    """Something that is said: `Said("on rank {rank}, the gradient is missing.", rank=2)`.

    template: English, and the key under which its translation is found; gaps as in `str.format`
    gaps:     what fills them, by name or position ("0"): values, or what is `Said` itself
    where:    at which places it was seen, each `Said`, the outermost first
    then:     what follows it, each `Said`
    """

    where, then = (), ()

    def __init__(self, template, /, **gaps):
        self.template, self.gaps = template, gaps

    def __str__(self):
        words = _filled(self.template, self.gaps)
        for place in reversed(self.where):
            words = _filled(BEGINS, {"where": place, "words": words})
        for other in self.then:
            words = _filled(FOLLOWS, {"before": words, "after": other})
        return words

    def __repr__(self):
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other):
        return isinstance(other, Said) and vars(self) == vars(other)

    __hash__ = None

    def and_then(self, *others):
        """The same, and what follows it; None among `others` stands for nothing."""
        result = copy.copy(self)
        result.then = (*self.then, *(said(one) for one in others if one is not None))
        return result


class Wrong(Said):
    """What is wrong with an attempt, in a sentence or two that do not give the solution away."""


def _filled(template, gaps):
    numbered = [gaps[number] for number in map(str, range(len(gaps))) if number in gaps]
    words = translated(template)
    return words.format(*numbered, **gaps) if gaps else words


def said(value, kind=Said):
    """`value`, as `kind` if it is a string: a template without gaps, or one of the doctor's."""
    if not isinstance(value, str):
        return value
    gaps = getattr(value, "gaps", {})
    return kind(getattr(value, "template", value), **{k: said(v) for k, v in gaps.items()})


def at(where, wrong):
    """The same, and where it is so, if that is to be said; None if nothing is wrong."""
    wrong = said(wrong, Wrong)
    if not (where and wrong):
        return wrong
    result = copy.copy(wrong)
    result.where = said(where), *wrong.where
    return result
