"""A prediction in the learner's words: the outcome, another answer, or neither?

The words stand in `prediction_words.json`. `site/static/page.js` reads them, too, and
does the same; `tests/lessons/prediction_cases.json` holds both to it.
"""

import json
import re
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path

TABLE = json.loads(Path(__file__).with_name("prediction_words.json").read_bytes())
SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
NUMBER = r"(?<![a-z\d.])-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
NUMBERS = re.compile(rf"{NUMBER}(\s+{NUMBER})+")  # with blanks between them
ARE_LETTERS = re.compile("[A-F]+").fullmatch
LATIN = r"[a-z0-9_.+±^]"
IN_WORDS = [  # numbers: in English with blanks between them, in Chinese without
    (rf"(?<!{LATIN}){one}(?:[\s-]+{one})*(?!{LATIN})", one)
    for one in ["(?:" + "|".join(w for w in TABLE["numbers"] if w.isascii()) + ")"]
] + [
    (f"{one}+", one)
    for one in ["[" + "".join(w for w in TABLE["numbers"] if not w.isascii()) + "]"]
]


def question(wish, outcome, within=0.0, tempting=()):
    """What `judged` has to know, and can be handed on as JSON.

    wish:     what the cell asks for: '"first" or "second"', "two numbers"; None if
              nobody knows, and then only `outcome` and `tempting` say it
    outcome, tempting: what came out, and what else one may think, as text
    """
    asks = wish or ""
    whole = [
        outcome,
        *tempting,
        *filter(None, TABLE["wishes"].get(wish, "").split("|")),
    ]
    told = [outcome, *tempting]  # which tell what is asked for if the wish does not
    quoted = re.findall('"([^"]+)"', asks) + ["none"] * ("[]" in asks)
    words = [*quoted, *re.findall(NUMBER, re.sub('"[^"]+"', "", asks))]
    words += ["True", "False"] * ("True" in asks)
    letters = asks.startswith("letters") or all(map(ARE_LETTERS, told))
    whole += ["none"] * (letters and wish is None)
    if not re.match("two|three|a pair|a list of four", asks):
        whole += quoted
    free = r"list of numbers|or more|or several|such as \[|letters"
    return {
        "outcome": outcome,
        "within": within,
        "wish": wish,
        "whole": list(dict.fromkeys(whole)),  # answers
        "words": list(dict.fromkeys([*whole, *words])),  # and what they are made of
        "letters": letters,
        "free": wish is None or bool(re.search(free, asks)),  # in how many it says
    }


def judged(guess, asked):
    """True: it is the outcome. False: it is another answer. None: it is no answer."""
    given = _letters(guess) if asked["letters"] else None
    right = asked["outcome"]
    if given:
        return given == _letters(right)
    if isinstance(_value(right), float) and _value(right) > 1:
        guess = guess.replace("%", "")  # per cent were asked for
    given = _read(guess, asked)
    if given is None:
        return None
    right = _parts(right)
    if " and " in asked["outcome"]:
        given, right = sorted(given, key=str), sorted(right)
    pairs = zip(given, right, strict=False)
    return len(given) == len(right) and all(_same(*pair, asked) for pair in pairs)


def _letters(text):
    """A set of letters, such as "B, D"; None if it is something else."""
    text = re.sub(r"\b(and|only|just)\b|只有|仅|只|和", "", _plain(text), flags=re.A)
    text = re.sub(r"[\s,.;]", "", text)
    return "".join(sorted(set(text))) if re.fullmatch("[a-f]+|[cep]+", text) else None


@cache
def _plain(text):
    """Without marks that say nothing; one sign for each minus, power and comma."""
    text = re.sub(
        "[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda m: "^" + m[0].translate(SUPERSCRIPTS), text.strip()
    )
    text = unicodedata.normalize("NFKC", text).lower().replace("**", "^")
    text = re.sub("[−–]", "-", text).replace("、", ",").replace("⁄", "/")  # ½ is 1⁄2
    if re.fullmatch(r"\[\s*]|\(\s*\)", text):
        return "none"
    text = re.sub(r"n['’]t\b", " not", text)
    text = re.sub(r"['’]s\b", "", text)
    return re.sub(r"[\"'`“”‘’()\[\]{}「」《》]|[.。!?]+$", "", text).strip()


def _parts(text):
    return [
        part.strip()
        for part in re.split(r"[,;&\n]|\band\b|(?<!求)[和与]", _plain(text), flags=re.A)
        if part.strip()
    ]


def _read(guess, asked):
    """The parts of a guess in the words of the question; numbers as float."""
    whole = _found(_plain(guess), asked["whole"])
    if whole is None and _plain(guess) in TABLE["same"][0]:
        several = [word for word in asked["whole"] if " and " in word]
        whole = several[0] if len(several) == 1 else None
    if whole is not None:
        return [_value(part) for part in _parts(whole)]
    count = len(_parts(asked["outcome"]))
    parts = _parts(re.sub(r"(?<=\d),(?=\d{3}\b)", "", guess) if count == 1 else guess)
    if count > 1 and len(parts) == 1:
        parts = _apart(parts[0], count)
    elif asked["free"] and len(parts) == 1 and NUMBERS.fullmatch(parts[0]):
        parts = parts[0].split()
    words = list(
        dict.fromkeys(part for word in asked["words"] for part in _parts(word))
    )
    read, place, ordered = [], 0, count > 1 and " and " not in asked["outcome"]
    for part in parts:
        value, rest = _one(part, words)
        if value is None or re.search(TABLE["not"], rest, re.A):
            return None
        if ordered:  # "block 1, thread 2" is not in the order that was asked for
            for word in _said(rest):
                wish = (asked["wish"] or "").lower()
                alike = [*(w for same in TABLE["same"] if word in same for w in same)]
                place = max(wish.find(form, place) for form in [word, *alike])
                if place < 0:
                    return None
                place += 1
        read.append(value)
    return read if asked["free"] or len(read) == count else None


def _apart(text, count):
    """ "2/2/1/1", "F T T F", "both larger" and "thread 2, block 1" without the comma."""
    both = re.fullmatch(r"(?:both|all|两[个次]都是?|都是?)\s*(.+)", text)
    if both:
        return [both[1]] * count
    for mark in ("/", r"\s+"):
        parts = [part for part in re.split(mark, text) if part]
        if len(parts) == count:
            return parts
    numbers = list(re.finditer(NUMBER, text))
    if len(numbers) != count:
        return [text]
    ends = [0, *(m.end() for m in numbers[:-1]), len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


def _one(part, words):
    """One part in a word of the question, or as a number, and what else it says."""
    word = _found(part, words)
    if word is not None:
        return _value(word), ""
    numbers = any(isinstance(_value(word), float) for word in words)
    if numbers and re.fullmatch("-?(nan|inf|infinity)", part):
        return part, ""
    value, rest = _number(part) if numbers else (None, "")
    if value is not None:
        return value, rest
    if numbers and _key(part) in map(_key, TABLE["same"][2]):
        return 0.0, ""
    found = [
        (form, word) for word in words for form in _forms(word) if _within(form, part)
    ]
    longest = max((len(form) for form, _ in found), default=0)
    found = {(form, word) for form, word in found if len(form) == longest}
    if not found:
        return _by_a_word(part, words)
    form, word = min(found, key=lambda pair: words.index(pair[1]))
    rest = part.replace(form, " ")
    longer = any(form != other and form in other for other in words)
    others = [w for w in words for f in _forms(w) if w != word and _within(f, rest)]
    if len({word for _, word in found}) > 1 or others or longer and _said(rest):
        return None, rest
    return _value(word), rest


def _by_a_word(part, words):
    """By a word that only one answer has: "the rows" for "smoothed rows"."""
    said = set(part.split())
    only = {
        word: said
        & set(word.split()) - {w for o in words if o != word for w in o.split()}
        for word in words
        if isinstance(_value(word), str)
    }
    found = [word for word in only if only[word]]
    if len(found) == 1:
        rest = " ".join(w for w in part.split() if w not in found[0].split())
        return _value(found[0]), rest
    name = (
        not found
        and re.match(TABLE["names"], part)
        and re.match(TABLE["names"], words[0])
    )
    return (part, "") if name else (None, part)


def _found(text, words):
    """The word of the question that is this text, or means the same."""
    plain = {_plain(word): word for word in words}
    if text in plain:
        return plain[text]
    keys = {_key(word): word for word in words}
    for word in words:  # `mul_constant` beside `MulConstant`
        if keys[_key(word)] != word:
            keys[_key(word)] = ""
    for one in (text, " ".join(_said(text))):
        if keys.get(_key(one)):
            return keys[_key(one)]
        for same in TABLE["same"]:
            same = list(map(_key, same))
            if _key(one) in same:
                means = [keys[key] for key in same if keys.get(key)]
                means = [word for word in means if isinstance(_value(word), str)]
                if means:
                    return means[0]
    return None


@cache
def _key(text):
    """Articles, blanks and hyphens do not count: reduce_scatter, FileNotFound."""
    text = re.sub(r"^(an?|the)\s+", "", _plain(text))
    return re.sub(r"[\s_^]|(?<=[a-z])-(?=[a-z])|(?<=[a-z]{3})error$", "", text) or text


@cache
def _forms(word):
    """A word and what means the same, as they may stand in a sentence."""
    if isinstance(_value(word), float):
        return []
    keys = [same for same in TABLE["same"] if _key(word) in map(_key, same)]
    forms = {_plain(word), *(_plain(form) for same in keys for form in same)}
    forms = {re.sub(r"^(an?|the)\s+", "", form) for form in forms}
    return [f for f in forms if len(f) > 1 or f == _plain(word)]


def _within(form, part):
    return re.search(rf"(?<!{LATIN}){re.escape(form)}(?!{LATIN})", part)


def _said(text):
    """What a text says beside fillers, such as articles and "about"."""
    text = re.sub(TABLE["besides"], " ", text)
    return [w for w in text.split() if w not in TABLE["beside"].split("|")]


def _number(text):
    """The one number in a text and what else it says: 4/5, 2^8, 80 %, thirty-six."""
    for run, one in IN_WORDS:
        text = re.sub(
            run, lambda m, one=one: f" {_counted(re.findall(one, m[0]))} ", text
        )
    text = re.sub(
        r"(\d+)\s*\^\s*(-?\d+)", lambda m: f"{float(m[1]) ** int(m[2]):.12g}", text
    )
    text = re.sub(r"(\d)\s*%", r"\1/100", text)
    text = re.sub(r"(\d) (out )?of \d+\b", r"\1", text)
    text = re.sub(r"(\d)\s*/\s*(?=\d)", r"\1/", text)
    found = re.findall(rf"({NUMBER})(?:/(\d+))?", text)
    rest = re.sub(rf"{NUMBER}(?:/\d+)?", " ", text)
    if len(found) != 1 or re.search(r"\d", re.sub("[a-z][a-z0-9_]*", "", rest)):
        return None, text
    return float(found[0][0]) / float(found[0][1] or 1), rest


def _counted(words):
    """Two hundred fifty-six, 二百五十六."""
    total = last = 0
    for word in words:
        value = TABLE["numbers"][word]
        if value in TABLE["times"]:
            total, last = total + (last or 1) * value, 0
        else:
            last += value
    return f"{total + last:g}"


def _value(word):
    return float(word) if re.fullmatch(NUMBER, word) else word


def _same(given, right, asked):
    right = _value(right)
    if isinstance(given, str) or isinstance(right, str):
        return given == right
    rounded = re.search(r"\.|e-", asked["outcome"])  # and the guess may be, too
    digits = len(re.sub(r"e.*|\D", "", f"{given:g}").lstrip("0"))
    if rounded and digits > 1 and float(f"{right:.{digits}g}") == given:
        return True
    shown = 6e-4 if rounded else 0  # to four digits
    return abs(given - right) <= max(asked["within"], shown) * abs(right)
