"""The index of the search: each section of each page is found by itself, in its edition.

Pagefind makes it, because its index comes in pieces that a page loads when somebody searches.
Outputs and solutions are left out: they are not to be given away. Pagefind and the browser do not
cut Chinese into the same words, so each character is a word here.
"""

import json
import re
import shutil
from copy import deepcopy
from html import escape
from pathlib import Path

from docutils import nodes
from node import node
from sphinx.addnodes import pending_xref
from sphinx.util import logging

logger = logging.getLogger(__name__)

RECORD = (
    '<html lang="{language}"><body><h1 data-pagefind-weight="{weight}">{heading}</h1>'
    '<p data-pagefind-meta="page" data-pagefind-ignore>{page}</p>{text}'
    '<p data-pagefind-meta="called" data-pagefind-weight="7">{called}</p></body></html>'
)
MINUTES = re.compile(r" ?[(（]\d+ ?(minutes?|分钟)[)）]$")
STRAIGHT = str.maketrans("“”‘’", "\"\"''")  # Sphinx sets quotes as print does


def plain(heading):
    return MINUTES.sub("", heading).translate(STRAIGHT)


def words_of_readers(language):
    """{chapter: {plain heading: what people type who look for it}}."""
    file = Path(__file__).with_name(f"search_words.{language}.json")
    return {
        chapter: {plain(heading): words for heading, words in headings.items()}
        for chapter, headings in json.loads(file.read_bytes()).items()
    }


WORDS = {language: words_of_readers(language) for language in ("en", "zh")}
C_PLUS_PLUS = (
    ", cpp"  # Pagefind knows no signs, and finds a "c" in each word that begins with it
)
CODE = re.compile("<pre>.*?</pre>", re.DOTALL)
HIDDEN = {"cell_output", "exercise-help"}
ASIDE = (
    "Deeper:",
    "选读：",
)  # what stands beside the way through a chapter is found after it
INDEX = re.compile("[Ii]ndex of|索引$")  # in the heading over what is looked up
READ = 2  # the column of a task that names the section in which it is answered
BETWEEN_CHARACTERS = re.compile(
    r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"
)  # Chinese ones


def text_of(part):
    """The words of a part of a page, without formulas set apart and without outputs."""
    if isinstance(
        part, nodes.math_block | nodes.comment | nodes.raw | nodes.image | nodes.title
    ):
        return ""
    if isinstance(part, nodes.Element) and HIDDEN.intersection(part.get("classes", ())):
        return ""
    if is_index_table(part):
        return ""
    if isinstance(part, nodes.literal_block):
        return f"<pre>{escape(words_of(part))}</pre>"
    if isinstance(part, nodes.TextElement):
        return f"<p>{escape(words_of(part))}</p>"
    return "".join(map(text_of, part.children))


def words_of(part):
    """The words of a paragraph; dots stand for a formula."""
    if isinstance(part, nodes.math):
        return "…"
    if isinstance(part, nodes.raw):
        return ""
    if isinstance(part, nodes.Text):
        return part.astext()
    return "".join(map(words_of, part.children))


def code_last(text):
    """Puts code behind the prose, after a mark: an excerpt is of prose."""
    return f"{CODE.sub('', text)}<p>⁂</p>{''.join(CODE.findall(text))}"


def is_index(body):
    """Is each row of a table's body found by itself? "An index of messages"."""
    above, part = [], body
    while part := part.parent:
        above += [
            title.astext() for title in part.children if isinstance(title, nodes.title)
        ]
    return any(map(INDEX.search, above))


def is_index_table(part):
    return isinstance(part, nodes.table) and is_index(part.next_node(nodes.tbody))


def rows(doctree):
    """The rows of the tables in which things are looked up."""
    return [
        row for body in doctree.findall(nodes.tbody) if is_index(body) for row in body
    ]


def is_task(row):
    """Does a row lead to the section that answers it? "02 Static Functions and ctx"."""
    return len(row) == 4 and row[READ].astext()[:2].isdigit()


def name_rows(doctree):
    """Gives each row that is found by itself an id, which the search leads to."""
    for number, row in enumerate(rows(doctree), start=1):
        row["ids"].append(f"row-{number}")


def sections(doctree):
    """(id, heading, text) of each section, without its subsections', and of each row.

    A section that is but a table in which things are looked up is found by its rows only.
    """
    for section in doctree.findall(nodes.section):
        parts = [
            part for part in section.children if not isinstance(part, nodes.section)
        ]
        below = [part for part in parts if not isinstance(part, nodes.title)]
        if below and all(map(is_index_table, below)):
            continue
        heading = section.next_node(nodes.title).astext()
        yield section["ids"][0], heading, "".join(map(text_of, parts))
    for row in rows(doctree):
        if not is_task(row):
            yield row["ids"][0], row[0].astext(), "".join(map(text_of, row[-2:]))


def lead_to_sections(doctree, words):
    """Makes each task another name of the section that answers it; the search leads there."""
    for row in rows(doctree):
        if is_task(row):
            task, (chapter, heading) = row[0].astext(), row[READ].astext().split(" ", 1)
            sections = words[chapter]
            if plain(heading) not in sections:  # a chapter's own, or called otherwise
                link = next(row[READ].findall(pending_xref), {})
                target = plain(link.get("reftargetid", "").replace("-", " "))
                called = [h for h in sections if h.replace("-", " ") == target]
                heading = (*called, f"{chapter} {heading}")[0]
            names = [
                sections.pop(plain(heading), ""),
                task,
                words["19"].pop(plain(task), ""),
            ]
            sections[plain(heading)] = ", ".join(filter(None, names))


def write_index(app, language_of):
    """Writes `pagefind/` beside the pages; `language_of` gives the language of a document."""
    records = []
    documents = sorted(app.env.found_docs)
    words_in = deepcopy(WORDS)
    for document in documents:
        if document.endswith("19_which_way"):
            lead_to_sections(
                app.env.get_doctree(document), words_in[language_of(document)[:2]]
            )
    for document in documents:
        page = app.env.titles[document].astext()
        language = language_of(document)
        words = words_in[language[:2]].get(Path(document).name[:2], {})
        for name, heading, text in sections(app.env.get_doctree(document)):
            weight = (
                3 if heading.startswith(ASIDE) else 4 if name.startswith("row-") else 7
            )
            content = RECORD.format(
                weight=weight,  # Pagefind's own of an h1 is 7
                language=language,
                heading=escape(heading),
                page=escape(page),
                text=code_last(text),
                called=escape(
                    words.pop(plain(heading), "") + C_PLUS_PLUS * ("C++" in heading)
                ),
            )
            url = f"{app.builder.get_target_uri(document)}#{name}"
            records.append(dict(url=url, content=BETWEEN_CHARACTERS.sub(" ", content)))
        for heading in words:
            logger.warning("%s has no section %r to be found", document, heading)
    folder = app.outdir / "pagefind"
    shutil.rmtree(
        folder, ignore_errors=True
    )  # or what an earlier build wrote stays there
    node("search_index.mjs", records=records, folder=str(folder))
