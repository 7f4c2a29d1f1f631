"""What the course says is data until it is shown: a template, and what fills its gaps.

Whoever must decide something looks at fields. The words are made here, and nowhere else.
"""

import copy

from helpers.lessons import templates as doctor
from helpers.lessons.language import translated

BEGINS, FOLLOWS = "{where}: {words}", "{before} {after}"  # Chinese needs no space


class Said(doctor.Said):
    """Something that is said: `Said("on rank {rank}, the gradient is missing.", rank=2)`.

    template: English, and the key under which its translation is found; gaps as in `str.format`
    gaps:     what fills them, by name or position ("0"): values, what is `Said` itself, or strings,
              which are templates without gaps
    where:    at which places it was seen, each `Said`, the outermost first
    then:     what follows it, each `Said`
    """

    where, then = (), ()

    def text(self, translate=translated):
        words = super().text(translate)
        for place in reversed(self.where):
            words = translate(BEGINS).format(where=place.text(translate), words=words)
        for other in self.then:
            words = translate(FOLLOWS).format(before=words, after=other.text(translate))
        return words

    def and_then(self, *others):
        """The same, and what follows it; None among `others` stands for nothing."""
        result = copy.copy(self)
        result.then = (*self.then, *(said(one) for one in others if one is not None))
        return result


class Wrong(Said):
    """What is wrong with an attempt, in a sentence or two that do not give the solution away."""


def said(value, kind=Said):
    """`value` as `kind`, if it is a string, a template without gaps, or what the doctor says."""
    if isinstance(value, str):
        return kind(value)
    if isinstance(value, doctor.Said) and not isinstance(value, Said):
        return kind(value.template, **value.gaps)
    return value


def at(where, wrong, **gaps):
    """The same, and where it is so, if that is to be said; None if nothing is wrong.

    wrong: `Wrong`, or its template, whose gaps are filled with `gaps`
    """
    wrong = Wrong(wrong, **gaps) if isinstance(wrong, str) else wrong
    if not (where and wrong):
        return wrong
    result = copy.copy(wrong)
    result.where = said(where), *wrong.where
    return result
