"""The Chinese edition: catalogues of messages in zh/messages, and what is made of them.

    python -m tools.translate update   # takes new and changed English into catalogues
    python -m tools.translate build    # makes zh/*.ipynb, README.zh.md and zh.mo
    python -m tools.translate check    # says what is missing, or breaks a rule

As a hint, `check` also says how dense some marks and pronouns stand.

A message is what stands in one line of Markdown, after the marks of a heading or of a
list: a heading, a paragraph, a list item, or a row of a table. Code, display formulas
and lines without a word are copied as they are. A message without a valid translation
stays English in the edition.

What the course says to a learner who acts has a catalogue of its own, lessons.po. There
a message stands in `_(...)`, or is a text of an exercise or a word of a figure.
"""

import ast
import io
import json
import re
import string
import sys
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_python
from babel.messages.mofile import write_mo
from babel.messages.pofile import denormalize, read_po, write_po
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
EDITION = ROOT / "zh"
LESSONS = ROOT / "helpers" / "lessons"
DOCTOR = ROOT / "helpers" / "doctor"

# The English files, without their ending, whose Chinese may lag until their English is
# final: what is missing or outdated there stays English in the edition, and `check`
# accepts it.
BEHIND = set()

HEADER = {
    "header_comment": "# The Chinese edition; see tools/translate.py.",
    "project": "Extending PyTorch, one gradient at a time",
    "version": "1.0",
    "msgid_bugs_address": "the issues of the repository",
    "last_translator": "the authors",
    "language_team": "the authors",
    "revision_date": datetime.now(UTC),
    "fuzzy": False,
}

IN_README = {  # what leads to the edition
    "](notebooks/": "](zh/",
    "-m helpers.lessons.mine": "-m helpers.lessons.mine zh",
    "](README.zh.md)": "](README.md)",
    ".png)": ".zh.png)",
}

CODE = re.compile(r"(`+)(.+?)\1")
FORMULA = re.compile(r"\$[^$]+\$")
COMMENT = re.compile(r"<!--.*?-->|</?\w+>")  # and tags
TARGET = re.compile(r"\]\([^)]*\)")
TO_A_SECTION = re.compile(r"(\]\((?:notebooks/)?(\d\d_\w+\.ipynb)#)([^)\s]+)(?=\))")
LINKED = re.compile(r"\[([^\]]*)\]\((?:notebooks/)?(\d\d_\w+\.ipynb)\)")

LABELLING = {  # arguments and methods by which matplotlib is told what a figure says
    *("title", "xlabel", "ylabel", "label", "labels"),
    *("set_title", "set_xlabel", "set_ylabel", "set_xticks", "set_yticks"),
    *("text", "annotate", "suptitle", "legend", "bar", "barh", "pie"),
}

SCALES = {"million": 1e6, "billion": 1e9, "万": 1e4, "百万": 1e6, "亿": 1e8}
NUMBER = re.compile(rf"(\d+(?:[.,]\d+)*)(?: ({'|'.join(SCALES)}))?")
HAN = "[\u4e00-\u9fff]"
RULES = {  # of typography, on a message without its marks
    f"{HAN}[A-Za-z0-9]|[A-Za-z0-9]{HAN}": "needs a space between Chinese and Latin",
    f"{HAN}[,.;:?!()]|[,;:?!()]{HAN}": "needs full-width punctuation beside Chinese",
    " [，。；：？！（）、《》]|[，。；：？！（）、《》] ": "has a space beside its punctuation",  # noqa: E501
}
PHRASES = {  # what zh/style.md says not to write, and what instead
    "你将能够": "学完之后，你能",
    "原始出处": "参考资料",
    "评判": "检查结果",
    "治法": "改法",
    "悄无声息": "悄悄",
    "分派": "分发",
    "静默": "悄悄",
    "改正": "修正",
    "引用循环": "循环引用",
    "就地": "原地",
    "留住": "保留",
    "折点": "不可导点",
    "尖角": "不可导点",
    "参数个数": "参数量",
}


def sources():
    """The English files: the README and the chapters, in order."""
    return [ROOT / "README.md", *sorted((ROOT / "notebooks").glob("*.ipynb"))]


def pieces(markdown):
    """Splits Markdown into pairs (text, whether it is a message).

    The texts joined give it back.
    """
    block = None  # the mark that ends the code or the formula that a line lies in
    for line in markdown.splitlines(keepends=True):
        bare = line.strip()
        opens = next((mark for mark in ("```", "$$") if bare.startswith(mark)), None)
        if block or opens:
            yield line, False
            if block:
                block = None if bare.endswith(block) else block
            elif bare == opens or not bare.endswith(opens):
                block = opens
            continue
        before, text, after = re.fullmatch(
            r"(\s*(?:#+ |[-*] |\d+\. )?)(.*?)(\s*)", line, re.DOTALL
        ).groups()
        prose = text
        for other in (CODE, FORMULA, COMMENT, TARGET):
            prose = other.sub("", prose)
        is_message = bool(re.search(f"[A-Za-z]{{2}}|{HAN}", prose))
        yield from ((before, False), (text, is_message), (after, False))


def figure(cell):
    """What a code cell says of its figure; "alt": in words, for who does not see it."""
    return cell["metadata"].get("mystnb", {}).get("image", {})


def cells(path):
    """(id, Markdown) of each Markdown cell of a notebook, and the words of its figures.

    Of any other file, it is all of it at once.
    """
    if path.suffix != ".ipynb":
        return [("", path.read_text(encoding="utf-8"))]
    notebook = json.loads(path.read_bytes())
    return [
        (cell["id"], figure(cell).get("alt") or "".join(cell["source"]))
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown" or figure(cell)
    ]


def messages(path):
    """(place, message) of each message of an English file, or of the folder LESSONS."""
    if path == LESSONS:
        yield from said_to_a_learner()
        return
    for cell, markdown in cells(path):
        yield from ((cell, text) for text, is_message in pieces(markdown) if is_message)


def said_to_a_learner():
    """(place, message) of all that `helpers.lessons` and the doctor say.

    Messages stand in `_(...)`, or in `N_(...)` where a table holds them. A finding of
    the doctor declares its sentences. So does an author of an exercise: words of
    success, hints, an explanation, places.
    """
    from helpers.doctor.report import TEXTS
    from helpers.lessons.exercise import exercises

    for path in sorted([*LESSONS.rglob("*.py"), *DOCTOR.rglob("*.py")]):
        with open(path, "rb") as file:
            for found in extract_python(file, ("_", "N_"), (), {}):
                # The first argument; those after it fill its gaps.
                message = found[2][0] if isinstance(found[2], tuple) else found[2]
                # What a variable holds is marked elsewhere.
                if isinstance(message, str):
                    yield path.stem if LESSONS in path.parents else "doctor", message
    for code, text in TEXTS.items():
        yield from ((code, said) for said in (text.message, text.look) if said)
    for path in sources()[1:]:
        yield from ((path.stem[:2], label) for label in labels(path))
    for given in exercises():
        places = [place for fed in given.inputs for place in fed.numbers]
        for text in (given.success, *given.hints, given.explanation, *places):
            yield given.number, text


# What a figure says in words that come from another cell, which `labels` does not see.
FROM_ANOTHER_CELL = {
    "05": ["first"],
    "06": ["default"],
    "08": ["cache, {} GB/s", "main memory, {} GB/s", "shift and add"]
    + ["C++, above", "C++, reference"],
    "10": ["easiest", "hardest"],
    "12": ["filters kept, blocks recomputed", "filters not kept, blocks recomputed"],
    "13": ["both", "no clip", "reparameterised"],
    "14": ["halos", "layers"],
    "15": ["constants", "readable", "registers"],
    "17": ["8 bits, nearest", "8 bits, stochastic", "float16, scaled"],
    "19": ["Function and custom_op", "Function around custom_op"]
    + ["Function under the name", "Function, and jvp", "compile, dynamic"]
    + ["compile, then twice", "define and impl", "export, strict", "hook"]
    + ["plain operations", "tensor subclass", "twice"],
}


def labels(path):
    """What the figures of a notebook say; "{}" stands for what an f-string formats."""
    yield from FROM_ANOTHER_CELL.get(path.stem[:2], ())
    for cell in json.loads(path.read_bytes())["cells"]:
        if any("image/png" in out.get("data", {}) for out in cell.get("outputs", [])):
            for text in shown(ast.parse("".join(cell["source"]))):
                if re.search("[a-z]{3}", text) and text.count("\n") < 2:
                    yield text


def shown(node, is_label=False):
    """The texts in a piece of code that a figure may say.

    They are arguments that label something, and texts of several words; what is
    printed is none of them.
    """
    match node:
        case ast.JoinedStr():
            text = "".join(
                part.value if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
            if is_label or " " in text:
                yield text
        case ast.Constant(value=str(text)):
            if is_label or " " in text:
                yield text
        case ast.Expr(value=ast.Constant()):
            pass  # a docstring
        case ast.keyword(arg="loc" | "ha" | "va" | "tempting"):
            pass
        case ast.keyword():
            yield from shown(node.value, is_label or node.arg in LABELLING)
        case ast.Call(func=ast.Name("print" | "predicted")):
            pass
        case _:
            draws = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if draws and ast.unparse(node.func.value) == "draw":
                is_label = True
            elif draws and node.func.attr in LABELLING:
                is_label = True
            elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 2:
                is_label |= all(isinstance(e, ast.Constant) for e in node.elts)
            for child in ast.iter_child_nodes(node):
                yield from shown(child, is_label)


def gaps(template):
    """What fills a template, and how it is formatted."""
    return {
        (name, spec) for _, name, spec, _ in string.Formatter().parse(template) if name
    }


def catalogue(path):
    """Where the catalogue of an English file lies."""
    return EDITION / "messages" / f"{path.stem}.po"


def read(path):
    """The catalogue of an English file; an empty one if there is none yet."""
    if not catalogue(path).exists():
        return Catalog(locale="zh_CN", charset="utf-8", **HEADER)
    with open(catalogue(path), "rb") as file:
        known = read_po(file, locale="zh_CN")
    # Babel wraps the old English, "#| msgid …", and reads it as a comment.
    for message in known:
        old = [
            line[1:].strip() for line in message.user_comments if line.startswith("|")
        ]
        message.user_comments = [
            line for line in message.user_comments if line[0] != "|"
        ]
        if old:
            message.previous_id = [denormalize(" ".join(old).removeprefix("msgid "))]
    return known


def write(path, known):
    """Stores the catalogue of an English file."""
    catalogue(path).parent.mkdir(parents=True, exist_ok=True)
    for message in known:
        # Babel takes "95% of" for one, msgfmt refuses it.
        message.flags.discard("python-format")
        message.user_comments = []  # what Babel makes of old English that it wrapped
    with open(catalogue(path), "wb") as file:
        write_po(file, known, width=0, ignore_obsolete=True, include_previous=True)


def update(path):
    """Takes the messages of an English file into its catalogue.

    A translation whose English has changed is marked "fuzzy", with the old English
    beside it.
    """
    english = Catalog(charset="utf-8")
    for cell, text in messages(path):
        english.add(text, locations=[(cell, None)] if cell else [])
    known = read(path)
    old = {message.id: message.previous_id for message in known if message.fuzzy}
    known.update(english, update_creation_date=False)
    for message in known:
        message.previous_id = message.previous_id or old.get(message.id, [])
    write(path, known)


def translation(message, known):
    """The Chinese of a message, or None where it is missing or outdated."""
    found = known.get(message)
    return found.string if found and found.string and not found.fuzzy else None


def translate(markdown, known):
    translated = "".join(
        is_message and translation(text, known) or text
        for text, is_message in pieces(markdown)
    )
    return TO_A_SECTION.sub(
        lambda link: link[1] + anchors(link[2], EDITION).get(link[3], link[3]),
        translated,
    )


def anchor(heading):
    """What JupyterLab calls a heading in a link."""
    return quote(re.sub(r"[`*$]", "", heading).replace(" ", "-"))


def headings(path):
    """As they stand in Markdown, with their code in backquotes."""
    markdown = "\n".join(text for _, text in cells(path))
    return re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)


@cache
def anchors(name, edition):
    """The anchors of a chapter's headings in the edition, by those in English."""
    path = ROOT / "notebooks" / name
    known = read(path)
    return {
        anchor(text): anchor(translation(text, known) or text)
        for text in headings(path)
    }


def as_bytes(text):
    return text.encode() if isinstance(text, str) else text


def with_headings(known):
    """With the headings of chapters that the doctor names."""
    from helpers.doctor.course import SECTIONS

    for place in SECTIONS:
        number, _, heading = place.partition(" ")
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        (written,) = (h for h in headings(path) if h.replace("`", "") == heading)
        chinese = translation(written, read(path)) or heading
        known.add(heading, chinese.replace("`", ""))
    return known


def compiled(known):
    """A catalogue as Python's gettext reads it."""
    file = io.BytesIO()
    write_mo(file, known)
    return file.getvalue()


def outputs(path):
    """(id, source) -> outputs of the code cells of an executed notebook."""
    if not path.exists():
        return {}
    notebook = json.loads(path.read_bytes())
    return {
        (cell["id"], "".join(cell["source"])): cell["outputs"]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


def built(path):
    """(place, text) of the Chinese edition of a file, or of LESSONS.

    A code cell keeps the outputs of its run in the edition; they are English until
    there was one.
    """
    known = read(path)
    if path == LESSONS:
        return LESSONS / "zh.mo", compiled(with_headings(known))
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        text = translate(text, known)
        for english, chinese in IN_README.items():
            text = text.replace(english, chinese)
        return path.with_suffix(".zh.md"), text
    notebook, own = json.loads(text), outputs(EDITION / path.name)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            chinese = translate("".join(cell["source"]), known)
            chinese = chinese.replace("](../README.md", "](../README.zh.md")
            cell["source"] = chinese.splitlines(keepends=True)
        elif (cell["id"], "".join(cell["source"])) in own:
            cell["outputs"] = own[cell["id"], "".join(cell["source"])]
        if figure(cell):
            figure(cell)["alt"] = translate(figure(cell)["alt"], known)
    notebook["metadata"]["language"] = (
        "zh"  # which is what `helpers.lessons.language` reads
    )
    as_nbformat_writes = {"indent": 1, "ensure_ascii": False, "sort_keys": True}
    return EDITION / path.name, json.dumps(notebook, **as_nbformat_writes) + "\n"


def parts(message):
    """What both languages must share: formulas, code, links, pictures, columns."""
    found = Counter(
        ("formula", formula) for formula in FORMULA.findall(CODE.sub("", message))
    )
    for token in inline(message):
        if token.type == "code_inline":
            found["code", token.content] += 1
        elif token.type in ("link_open", "image"):
            found["link", token.attrGet("href") or token.attrGet("src")] += 1
    if message.startswith("|"):
        found["columns", str(CODE.sub("", message).count("|") - 1)] += 1
    return found


def inline(message):
    """The tokens of a message as CommonMark has them.

    Of formulas only the dollars are left.
    """
    codes = [code[0] for code in CODE.finditer(message)]
    without = FORMULA.sub("$$", CODE.sub("\0", message))
    for code in codes:
        without = without.replace("\0", code, 1)
    tokens = []
    for token in MarkdownIt().parseInline(without)[0].children:
        tokens += [token, *(token.children or [])]  # the alternative text of a picture
    return tokens


def numbers_in(text):
    """The numbers of a text; 134 million and 1.34 亿 are one."""
    found = set()
    for digits, unit in NUMBER.findall(text):
        value = (
            f"{float(digits.replace(',', '')) * SCALES[unit]:,g}" if unit else digits
        )
        found.add(value)
    return found


def problems(english, chinese):
    """What a translation lacks or breaks, a sentence each."""
    ours, theirs = parts(chinese), parts(english)
    for kind, what in sorted(theirs - ours):
        yield f"lacks the {kind} {what}"
    # A noun may stand again, for a pronoun.
    for kind, what in sorted({*ours} - {*theirs}):
        yield f"has the {kind} {what}, which the English has not"
    texts = [token.content for token in inline(chinese) if token.type == "text"]
    has = numbers_in(" ".join(texts))
    for token in inline(english):
        if token.type == "text":
            for number in sorted(numbers_in(token.content) - has):
                yield f"lacks the number {number}"
    for text in texts:
        if "*" in text or "`" in text:
            yield f"has marks that are shown as they are: {text.strip()[:40]}"
    stand_in = {"code_inline": "x", "softbreak": "\n"}
    plain = "".join(
        token.content.replace("$$", "x")
        if token.type == "text"
        else stand_in.get(token.type, "")
        for token in inline(chinese)
    )
    plain = re.sub(r" ?\| ?", "\n", plain)  # the columns of a table
    for rule, sentence in RULES.items():
        for found in re.finditer(rule, plain):
            yield f"{sentence}: {plain[max(0, found.start() - 8) : found.end() + 8]}"
    for phrase, better in PHRASES.items():
        if phrase in plain:
            yield f"says {phrase}; write {better}"


@cache
def titles():
    """(English, Chinese) title of each chapter, by its file name."""
    first = {path: headings(path)[0] for path in sources()[1:]}
    return {
        path.name: (title, translation(title, read(path)))
        for path, title in first.items()
    }


def mistitled(english, chinese):
    """Links to chapters that carry the title in English, but not in Chinese."""
    ours = {file: label for label, file in LINKED.findall(chinese)}
    for label, file in LINKED.findall(english):
        title, translated = titles().get(file, ("", None))
        if label == title and translated and ours.get(file) != translated:
            yield f"calls {file} {ours.get(file)}; its title is {translated}"


def check(path):
    """What is wrong with the Chinese edition of an English file, a line each."""
    known, lagging = read(path), []
    for cell, text in messages(path):
        chinese, place = translation(text, known), f"{path.name} {cell}".strip()
        if chinese is None:
            state = (
                "outdated" if known.get(text) and known.get(text).fuzzy else "missing"
            )
            lagging.append(f"{place}: {state}: {text[:60]}")
            continue
        for problem in (*problems(text, chinese), *mistitled(text, chinese)):
            yield f"{place}: {problem}"
        if path == LESSONS and gaps(text) != gaps(chinese):
            yield f"{place}: has the gaps {gaps(chinese)}, but {gaps(text)} are filled"
    if path.stem not in BEHIND:
        yield from lagging
    elif not lagging:
        yield f"{path.name}: its Chinese is whole; take it off BEHIND"
    place, text = built(path)
    if not place.exists() or place.read_bytes() != as_bytes(text):
        run = "run `python -m tools.translate build`"
        yield f"{place.name}: not what its catalogue makes; {run}"


def densities(path):
    """Uses, per thousand characters, of what the style asks to write less of."""
    known = read(path)
    text = "".join(translation(english, known) or "" for _, english in messages(path))
    size = len(re.findall(HAN, text)) or 1
    return ", ".join(
        f"{mark} {1000 * text.count(mark) / size:.0f}" for mark in "它：；、"
    )


def main(command):
    if command not in ("update", "build", "check"):
        sys.exit(__doc__)
    wrong = 0
    for path in (*sources(), LESSONS):
        if command == "update":
            update(path)
        elif command == "build":
            place, text = built(path)
            place.write_bytes(as_bytes(text))
        else:
            for line in check(path):
                print(line)
                wrong += 1
            # A hint, no target.
            print(f"{path.name}: in 1,000 characters {densities(path)}")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [None]))
