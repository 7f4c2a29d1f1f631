"""The language in which the course speaks: that of the notebook's edition.

`tools.translate` compiles the translations into `zh.mo`, which Python's own gettext
reads, so that an installed course needs neither Babel nor the catalogues. A message is
English, and the key under which its translation is found: `_("on rank {rank}, it is
{x}", rank=2, x=3)`. The doctor's `_` looks it up here, and fills the gaps.
"""

import gettext
import json
import os
import re
from functools import cache
from pathlib import Path

from helpers.doctor import words
from helpers.doctor.words import N_, _, followed, listed

__all__ = ["N_", "_", "at", "followed", "language", "listed"]

# "zh", or "en"; it overrides what the notebook says.
VARIABLE = "EXTENDING_PYTORCH_LANGUAGE"


def translation(message):
    """The message in the edition's language; itself where it has no translation."""
    translations = _translations(language())
    return translations.gettext(message) if translations else message


def at(where, wrong):
    """What is wrong, and where; None if nothing is."""
    if not (where and wrong):
        return wrong
    return _("{where}: {words}", where=where, words=wrong)


def language():
    """ "zh" in the Chinese edition and in copies of it, "en" elsewhere.

    The metadata of a notebook says it. Jupyter tells a kernel which notebook it serves;
    nbval and nbclient do not, but start it in the notebook's folder, where all are of
    one edition.
    """
    notebook = os.environ.get("JPY_SESSION_NAME") or next(
        Path.cwd().glob("*.ipynb"), ""
    )
    return os.environ.get(VARIABLE) or _language_of(notebook)


@cache
def _language_of(notebook):
    try:
        return json.loads(Path(notebook).read_bytes())["metadata"]["language"]
    except (OSError, ValueError, KeyError):  # a console, or a notebook of one's own
        return "en"


@cache
def _translations(language):
    compiled = Path(__file__).parent / f"{language}.mo"
    if not compiled.exists():
        return None
    with open(compiled, "rb") as file:
        return gettext.GNUTranslations(file)


def spaced(line):
    """No blank between Chinese words; one between them and code."""
    line = re.sub("(?<=[一-鿿]) (?=[一-鿿])", "", line)
    return re.sub(r"(?<=[一-鿿])(?=`\w)|(?<=\w`)(?=[一-鿿])", " ", line)


words.translate = translation  # which the doctor's sentences go through, too

if language() != "en":  # and so do figures
    words.spaced = spaced
    from helpers.lessons.labels import translate_labels

    translate_labels(_)
