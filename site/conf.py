"""How the pages are made that people read without installing anything.

    pip install -r requirements.txt -r site/requirements.txt
    npm ci --prefix site  # sets the formulas, makes the index of the search
    sphinx-build -j auto -W --keep-going -n -c site . _site

Both editions come from the outputs stored in the notebooks; only wrong attempts at the
exercises are judged while the pages are made.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from gettext import NullTranslations
from html import escape
from itertools import chain, repeat
from pathlib import Path
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx import locale
from sphinx.util import logging

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "site"))
import front  # noqa: E402
from attempts import add_fields  # noqa: E402
from exercises import add_help  # noqa: E402
from formulas import FONTS, set_formulas  # noqa: E402
from panels import for_a_phone  # noqa: E402
from predictions import add_forms  # noqa: E402
from search import name_rows, write_index  # noqa: E402

from helpers.lessons.reading import TABLE  # noqa: E402

ADDRESS = os.environ.get("GITHUB_REPOSITORY")  # unknown to a local build
FOLDERS = [  # that are copied as they are
    Path("helpers", *names)
    for names in (
        ["doctor"],
        ["derive"],
        ["ops", "collectives"],
        ["ops", "involution"],
        ["template", "project"],
    )
]
REPOSITORY = f"https://github.com/{ADDRESS or 'OWNER/REPOSITORY'}"
README = {"notebooks": "README", "zh": "README.zh"}  # by the folder of the edition
CHAPTERS = {"notebooks": "The chapters", "zh": "各章"}
LANGUAGE = {"notebooks": "en", "zh": "zh-CN"}
SWITCH = {"notebooks": "中文", "zh": "English"}
NOTHING = {
    "notebooks": "No section has these words.",
    "zh": "没有找到含有这些词的小节。",
}
FOLD = {
    "notebooks": ("Show the output", "Hide the output"),
    "zh": ("显示输出", "收起输出"),
}
SET_UP = re.compile(
    r'(<details class="[^"]*hide above-input">\s*<summary[^>]*>).*?(</summary>)',
    re.DOTALL,
)
# Of the first folded cell, and of the others.
FOLDED = {"notebooks": ("Imports", "Code"), "zh": ("导入", "代码")}
RUN = {
    "notebooks": '<summary>Run this chapter</summary><span id="run"></span>'
    '<a href="{front}#install">Install the course</a>, then: '
    "<code>python -m helpers.lessons.mine && jupyter lab --notebook-dir=. mine/{name}</code>",
    "zh": '<summary>运行本章</summary><span id="run"></span>'
    '先<a href="{front}#install">安装课程</a>，然后执行：'
    "<code>python -m helpers.lessons.mine zh && jupyter lab --notebook-dir=. mine/{name}</code>",
}
# A paragraph on what one does there, which a page does not need.
OF_JUPYTERLAB = re.compile(r"\n\n(In JupyterLab,|在 JupyterLab 里).*")
COLAB = f"https://colab.research.google.com/github/{ADDRESS}/blob/main/{{file}}"
ONLINE = {  # where the address of the repository is known
    "notebooks": '<br>Without installing: open it in <a href="{colab}">Colab</a>, and run this '
    "in a cell of its own first: "
    "<code>!pip install --no-deps git+{repository}</code>"
    '<br><a href="{repository}/issues/new?title={file}">Report an error</a> · '
    '<a href="{repository}/edit/main/{source}">Edit this page</a>',
    "zh": '<br>不想安装：在 <a href="{colab}">Colab</a> 里打开本章，先在一个单元格里运行：'
    "<code>!pip install --no-deps git+{repository}</code>"
    '<br><a href="{repository}/issues/new?title={file}">报告错误</a> · '
    '<a href="{repository}/edit/main/{source}">修改译文</a>',
}
SOURCE = {
    "notebooks": "notebooks/{}.ipynb",
    "zh": "zh/messages/{}.po",
}  # what is edited

CHINESE = {  # the words of Sphinx and the theme, which know one language for all pages
    "Back to top": "回到顶部",
    "Chapters": "各章",
    "Color mode": "颜色模式",
    "Contents": "本页内容",
    "Dark": "深色",
    "Index": "索引",
    "Light": "浅色",
    "Link to this heading": "本节的链接",
    "On this page": "本页内容",
    "Search": "搜索",
    "Site navigation": "各章",
    "Skip to main content": "跳到正文",
    "System Settings": "跟随系统",
    "Version warning": "版本提示",
}


class Chinese(NullTranslations):
    def gettext(self, message):
        return CHINESE.get(message, message)


WORDS = {"notebooks": NullTranslations(), "zh": Chinese()}

project = "Extending PyTorch, one gradient at a time"
html_baseurl = os.environ.get("SITE_ADDRESS", "")  # for the links that are shared

extensions = ["myst_nb", "sphinx_copybutton"]
root_doc = "README"
include_patterns = ["README.md", "README.zh.md", "notebooks/*.ipynb", "zh/*.ipynb"]
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_heading_slug_func = "anchors.of_jupyterlab"
smartquotes_action = (
    "qe"  # quotes and ellipses: `--doctor` in a heading keeps its two dashes
)
html_theme = "sphinx_book_theme"
html_context = {
    "default_mode": "auto"
}  # or the theme complains in the console of each page
html_theme_options = {
    "article_header_start": ["toggle-primary-sidebar.html", "names.html"],
    "footer_content_items": "",
    "navbar_persistent": [],  # or hidden twins of the buttons are wired instead of these
    "show_prev_next": False,  # a notebook ends with links to its neighbours
    "use_download_button": False,  # the bar leads to the notebook
    "use_fullscreen_button": False,
}
copybutton_selector = "div.highlight:not(.cell_output *, .attempt *) pre"
html_title = project
html_favicon = "static/favicon.svg"
LETTERS = [  # of text, of code, of headings: one look on each system
    f"node_modules/@fontsource/{name}/files/{name}-latin-{weight}-normal.woff2"
    for name, weight in (
        ("source-sans-3", 400),
        ("source-sans-3", 600),
        ("source-code-pro", 400),
        ("source-serif-4", 600),
    )
]
html_static_path = [
    "static",
    "../.github/pictures",
    str(FONTS),
    *LETTERS,
]
html_css_files = ["style.css"]
html_js_files = [
    (None, {"body": f"const WORDS = {json.dumps(TABLE, ensure_ascii=False)}"}),
    "search.js",
    "reading.js",
    "page.js",
]
html_sourcelink_suffix = (
    ""  # the notebook that a page is made of is downloaded as it is
)
templates_path = ["templates"]
html_additional_pages = dict.fromkeys(front.FRONT.values(), "front.html") | {
    "404": "elsewhere.html",
    "search": "elsewhere.html",
}
html_sidebars = {"**": ["search-button-field.html", "chapters.html"]}
html_sidebars |= {page: [] for page in front.FRONT.values()}  # which lists the chapters

DEEPER = re.compile(
    r'<section id="[^"]*">\s*(?:<span id="[^"]*"></span>\s*)?<h2>(?:Deeper:|选读：)'
)
LOG = logging.getLogger(__name__)
EMPTY_HEAD = re.compile(r"<th([^>]*)>(?:<p></p>)?</th>")
TABLE_OF_19 = re.compile(r'(<table class=")(.*?)(</table>)', re.DOTALL)
PLAIN = re.compile(r'<span class="(?:[npw]|std std-ref)">([^<]*)</span>')
PIECE = re.compile('<span class="pre">([^<]*)</span>')  # of one piece of code
PART = re.compile(r"(?<=[^\W_][_/.=])(?=\w{3})")
TO_A_CELL = re.compile(r"\]\((\d\d_\w+\.ipynb)#cell-id=([^)\s]+)\)")
LINK = re.compile(r"(?s:```.*?```)|`[^`\n]*`|\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def chapters(folder):
    """(document, title) of each chapter of an edition, in order."""
    for path in sorted((ROOT / folder).glob("*.ipynb")):
        first = json.loads(path.read_bytes())["cells"][0]["source"]
        yield f"{folder}/{path.stem}", first[0].removeprefix("# ").strip()


def edition(document):
    """The folder of the edition that a document belongs to."""
    of_readme = README["zh"], front.FRONT["zh"]
    return "zh" if document.startswith("zh/") or document in of_readme else "notebooks"


def twin(document):
    """The same page in the other edition."""
    other = "notebooks" if edition(document) == "zh" else "zh"
    if "/" in document:
        return f"{other}/{document.split('/')[1]}"
    return (README if document in README.values() else front.FRONT)[other]


def lead_to_the_repository(document, markdown):
    """The Markdown, in which links to files that are no pages lead to the repository."""

    def led(found):
        target, anchor = found[1], found[2] or ""
        if target is None:  # code
            return found[0]
        path = (ROOT / document).parent.joinpath(target).resolve()
        if not path.exists():
            LOG.warning("%s has a link to %s, which does not exist", document, target)
        page = (
            path.suffix == ".ipynb"
            or path.parent == ROOT
            and path.name.startswith("README.")
        )
        if page or path.suffix == ".png":
            return found[0]
        return f"]({REPOSITORY}/blob/main/{path.relative_to(ROOT).as_posix()}{anchor})"

    return LINK.sub(led, markdown)


def lead_to_headings(folder, markdown):
    """The Markdown, in which links to a cell lead to the heading that it begins."""

    def led(found):
        notebook = json.loads((ROOT / folder / found[1]).read_bytes())
        (source,) = (c["source"] for c in notebook["cells"] if c["id"] == found[2])
        heading = re.match("#+ (.+)", source[0])[1]
        return f"]({found[1]}#{quote(re.sub('[`*$]', '', heading).replace(' ', '-'))})"

    return TO_A_CELL.sub(led, markdown)


def on_source_read(app, document, content):
    """Turns links to files outward; gives each README its chapters, which "next" follows."""
    if document in README.values():
        pages = [name for name, _ in chapters(edition(document))]
        if document == root_doc:
            pages.append(README["zh"])
        markdown = lead_to_the_repository(document, content[0])
        content[0] = "\n".join(
            [markdown, "```{toctree}", ":hidden:", "", *pages, "```", ""]
        )
        return
    notebook = json.loads(content[0])
    prompts = zip(
        ("code_prompt_show", "code_prompt_hide"), FOLD[edition(document)], strict=True
    )
    notebook["metadata"]["mystnb"] = dict(prompts)
    add_forms(notebook, edition(document))
    if any("".join(c["source"]).startswith(("!", "%")) for c in notebook["cells"]):
        notebook["metadata"]["language_info"]["pygments_lexer"] = "ipython3"
    first = next(c for c in notebook["cells"] if c["cell_type"] == "code")
    for cell in notebook["cells"]:
        tags = cell["metadata"].setdefault("tags", [])
        folded = cell["metadata"].get("jupyter", {})  # in JupyterLab, too
        if folded.get("outputs_hidden"):
            tags.append("hide-output")
        if cell is first or folded.get("source_hidden"):
            tags.append("hide-input")
        if cell["cell_type"] == "markdown":
            source = OF_JUPYTERLAB.sub("", "".join(cell["source"]))
            source = lead_to_headings(edition(document), source)
            cell["source"] = lead_to_the_repository(document, source)
    content[0] = json.dumps(notebook)


def lead_to_pytorch(doctree):
    """The first mention of each of PyTorch's names on a page leads to its documentation."""
    left = json.loads((ROOT / "site" / "pytorch.json").read_bytes())
    for name in list(doctree.findall(nodes.literal)):
        # no heading, no link already, and no table, where links lead to the course
        if isinstance(name.parent, nodes.paragraph) and not isinstance(
            name.parent.parent, nodes.entry
        ):
            address = left.pop(name.astext().removesuffix("()"), None)
            if address:
                name.replace_self(
                    nodes.reference("", "", name.deepcopy(), refuri=address)
                )


def on_doctree_read(app, doctree):
    lead_to_pytorch(doctree)
    add_help(doctree, edition(app.env.current_document.docname))
    add_fields(doctree, edition(app.env.current_document.docname))
    name_rows(doctree)


def speak(app, document):
    """Sphinx and the theme speak the language of a document."""
    words = WORDS[edition(document)]
    for catalogue in ("sphinx", "booktheme"):
        locale.translators["general", catalogue] = words
    if app.builder.format == "html":
        app.builder.templates.environment.install_gettext_translations(words)


def let_break(cell):
    """Lets the lines of a cell break within a name, after_each/part.of=it."""
    for text in list(cell.findall(nodes.Text)):
        first, *rest = PART.split(text)
        pairs = (
            (nodes.raw("", "<wbr>", format="html"), nodes.Text(part)) for part in rest
        )
        text.parent.replace(text, [nodes.Text(first), *chain.from_iterable(pairs)])


SIGNS = {"✗": ["fails"], "!": ["raises"]}  # of chapter 19's matrix


def on_doctree(app, doctree, document):
    """Before a page is written: its language; where the lines of a table's cell break.

    While the address of the repository is unknown, a link to a file of Python, or to a
    folder of helpers, leads to a copy, and no other links to it.
    """
    speak(app, document)
    for link in list(doctree.findall(nodes.reference)):
        address, _, path = link.get("refuri", "").partition("/blob/main/")
        if ADDRESS or address != REPOSITORY:
            continue
        path = path.rstrip("/")
        if (ROOT / path).is_dir() and path in map(str, FOLDERS):
            path += ".zip"
        path += ".html" * path.endswith(".py")
        if path.endswith((".py.html", ".zip")):
            link["refuri"] = f"{'../' * document.count('/')}_static/course/{path}"
        else:
            link.replace_self(link.children)
    for link in doctree.findall(nodes.reference):
        link["classes"] += SIGNS.get(link.astext(), [])
    for image in doctree.findall(nodes.image):
        image["loading"] = "lazy"
        if "width" not in image:  # a cell's output says it
            # 200 dpi. Sphinx then says how big it is: nothing jumps when it is loaded.
            image["scale"] = 50
    for cell in doctree.findall(nodes.entry):
        if len(cell.astext()) < 8:  # such as "25 + 20"
            cell["classes"].append("short")
        else:
            let_break(cell)


STEP = {"notebooks": ("Previous", "Next"), "zh": ("上一章", "下一章")}
NEIGHBOURS = {  # by how far they are
    -1: '<a href="{}.html" aria-label="{name}">← <span>{name}</span><b>{step}</b></a>',
    1: '<a href="{}.html" aria-label="{name}"><span>{name}</span><b>{step}</b> →</a>',
}


def neighbours(document):
    """Links to the chapters before and after."""
    named = dict(enumerate(chapters(edition(document))))
    (place,) = (n for n, (page, _) in named.items() if page == document)
    steps = STEP[edition(document)]  # on a phone, instead of the name
    links = []
    for (far, link), step in zip(NEIGHBOURS.items(), steps, strict=True):
        if place + far in named:
            page, name = named[place + far]
            links.append(link.format(Path(page).name, name=name, step=step))
    return " ".join(links)


def on_page(app, document, template, context, doctree):
    """What the templates need: the chapters of the edition, the switch, how to run a chapter."""
    speak(app, document)
    folder = edition(document)
    course = app.env.titles[README[folder]].astext()
    context |= {
        "language": LANGUAGE[folder],
        "course": course,
        "front": front.FRONT[folder],
        "numbered": [*chapters(folder)],
        "readme_page": README[folder],
        "nothing_found": NOTHING[folder],
        "docstitle": course if "/" in document else "",
        "letters": [Path(file).name for file in LETTERS],
    }
    if template == "elsewhere.html":
        context |= {"base": html_baseurl}
        return
    other = app.builder.get_relative_uri(document, twin(document))
    if doctree is not None:
        up = "../" * document.count("/")
        names = [*front.bar(app.builder, folder, [*chapters(folder)])]
        context["leads_to"] = [(name, up + page) for name, page in names]
    if template == "front.html":
        shown = front.context(app.builder, folder, README[folder], [*chapters(folder)])
        context |= shown | {
            "title": course,
            "other": other,
            "switch": SWITCH[folder],
            "readme": README[folder],
            "chapters_title": CHAPTERS[folder],
        }
        said = " · ".join([shown["claim"], shown["holds"]])
        describe(context, document, said, other)
    if doctree is None:
        return
    body = context["body"]
    if "/" in document:
        page = f"../{front.FRONT[folder]}.html"
        line = RUN[folder].format(front=page, name=f"{Path(document).name}.ipynb")
        if ADDRESS:
            line += ONLINE[folder].format(
                colab=COLAB.format(file=f"{document}.ipynb"),
                repository=REPOSITORY,
                file=f"{document}.ipynb",
                source=SOURCE[folder].format(Path(document).name),
            )
        bar = neighbours(document)
        tools = {"Notebook": f"../_sources/{document}.ipynb"}
        if ADDRESS:
            tools |= {
                "GitHub": REPOSITORY,
                "Colab": COLAB.format(file=f"{document}.ipynb"),
            }
        others = [
            f'<a class="tool {name.lower()}" href="{to}">{name}</a>'
            for name, to in tools.items()
        ]
        others.append(f'<a class="switch" href="{other}">{SWITCH[folder]}</a>')
        if document.endswith("19_which_way"):
            body = TABLE_OF_19.sub(fold_on_a_phone, body)
            field = front.look_up(app.builder, folder)
            for name in (page.partition("#")[2] for _, page in names if "#" in page):
                heading = re.search(
                    rf'(?s)<section id="{re.escape(name)}">.*?</h2>', body
                )
                if heading:
                    body = body[: heading.end()] + field + body[heading.end() :]
            app.add_js_file("look_up.js")
        body = body.replace(
            "</h1>", f'</h1>\n<details class="how-to-run">{line}</details>', 1
        )
        body = f'<nav class="bar">{bar} {" ".join(others)}</nav>\n{body}'
        core = DEEPER.search(body)
        if core:  # at the end of the core, too
            body = f'{body[: core.start()]}<p class="neighbours">{bar}</p>\n{body[core.start() :]}'
    if 'class="attempt"' in body:
        for script in ("expression.js", "attempts.js"):
            app.add_js_file(script)  # to this page alone
    images = {name: Path(app.srcdir, file) for file, name in app.builder.images.items()}
    beside = Path(app.outdir, app.builder.imagedir)
    body = for_a_phone(body, images, beside, folder)
    if context["has_maths_elements"]:
        fonts = context["pathto"]("_static", resource=True)
        body, style = set_formulas(body, fonts)
        context["metatags"] = context.get("metatags", "") + style
        context["has_maths_elements"] = False  # or Sphinx brings MathJax
    imports, code = FOLDED[folder]
    names = chain([imports], repeat(code))
    body = SET_UP.sub(lambda found: found[1] + next(names) + found[2], body)
    body = EMPTY_HEAD.sub(r"<td\1></td>", body)
    body = PLAIN.sub(r"\1", body)  # in the colour of the text
    body = PIECE.sub(r"\1", body)
    unhelpful = ' aria-label="Toggle hidden content"'  # is read out instead of "Show the output"
    body = body.replace(unhelpful, "")
    context["body"] = body
    paragraphs = (  # of words; the first of a README is the link to the other edition
        text.astext()
        for text in doctree.findall(nodes.paragraph)
        if not all(isinstance(part, nodes.reference | nodes.image) for part in text)
    )
    describe(context, document, next(paragraphs), other)


def fold_on_a_phone(found):
    """A table of 19, whose cells are told the heads of their columns."""
    head, _, body = found[2].partition("</thead>")
    names = [re.sub("<.+?>", "", name) for name in re.findall("<th.+?</th>", head)]
    if names[-1].isdigit():  # one looks along its rows
        return f"{found[1]}matrix {found[2]}{found[3]}"

    def with_heads(row):
        left = iter(names)
        return re.sub("<td", lambda _: f'<td data-head="{next(left)}"', row[0])

    body = re.sub("(?s)<tr.*?</tr>", with_heads, body)
    return f"{found[1]}folds {head}</thead>{body}{found[3]}"


def describe(context, document, description, other):
    """Says in a page's head what it is, for whoever finds or shares it; `other`: its twin."""
    description = escape(description[:200].replace("\n", " "), quote=True)
    tags = [f'<meta name="description" content="{description}">']
    for name, value in {
        "og:title": escape(context["title"], quote=True),
        "og:description": description,
        "og:image": f"{html_baseurl}_static/slope.png",
    }.items():
        tags.append(f'<meta property="{name}" content="{value}">')
    if html_baseurl:
        other = f"{html_baseurl}{twin(document)}.html"
    language = LANGUAGE[edition(twin(document))]
    tags.append(f'<link rel="alternate" hreflang="{language}" href="{other}">')
    context["metatags"] = "\n".join([context.get("metatags", ""), *tags, ""])


def without_unused_rules(out):
    """Leaves in the large style sheets what pages and scripts name: a quarter."""
    content = [out / "**/*.html", out / "**/*.js"]
    for name in ("styles/pydata-sphinx-theme.css", "mystnb.*.css"):
        (sheet,) = (out / "_static").glob(name)
        command = ["npx", "--prefix", ROOT / "site", "purgecss", "--css", sheet]
        command += ["--output", sheet.parent, "--content", *content]
        subprocess.run(command, check=True)


DARK = re.compile(r"""([^{}]*html\[data-theme="?)dark("?\][^{}]*\{[^{}]*\})""")
WITHOUT_SCRIPTS = """<noscript><link rel="stylesheet" media="(prefers-color-scheme: dark)"
 href="{}_static/dark.css"></noscript></head>"""


def write_dark_sheet(out):
    """The rules of a dark page again, for a page that no script has made dark."""
    rules = []
    for sheet in sorted((out / "_static").rglob("*.css")):
        text = re.sub(r"(?s)/\*.*?\*/", "", sheet.read_text(encoding="utf-8"))
        rules += [before + "light" + after for before, after in DARK.findall(text)]
    (out / "_static" / "dark.css").write_text("\n".join(rules), encoding="utf-8")


PAGE_OF_CODE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{name}</title><link rel="icon" href="{static}favicon.svg">
<style>{light} @media (prefers-color-scheme: dark) {{ {dark} }}
:root {{ color-scheme: light dark; }}
@font-face {{ font-family: code; src: url("{static}source-code-pro-latin-400-normal.woff2"); }}
@font-face {{ font-family: text; src: url("{static}source-sans-3-latin-400-normal.woff2"); }}
body {{ margin: 0; font: 1rem/1.5 text, sans-serif; }}
header {{ padding: 1rem 1.5rem; color: #fff; background: #04243b; }}
header a {{ display: inline-block; min-height: 24px; color: inherit; margin-inline-end: 1rem; }}
header .tool {{ padding: 0.2rem 0.9rem; margin-block: 0.3rem; border-radius: 6px; }}
header .tool {{ color: #04243b; background: #fff; text-decoration: none; }}
h1 {{ margin: 0.3rem 0; font-size: 1.4rem; }}
.highlight {{ padding: 0 1.5rem; overflow-x: auto; background: none; }}
.highlight pre {{ font: 0.85rem/1.5 code, monospace; }}</style>
<header><a href="{front}">{course}</a> <a href="{front}#copy">All operations</a><h1>{name}</h1>
<a class="tool" href="{file}" download>Download</a> <a class="tool" href="#"
onclick="navigator.clipboard.writeText(document.querySelector('pre').textContent);
this.textContent = 'Copied'; return false">Copy</a>{chapters}</header>
{code}"""


@cache
def sources():
    """{document: what its cells hold} of the English chapters."""
    chapters = sorted((ROOT / "notebooks").glob("*.ipynb"))
    return {
        path.stem: "\n".join(
            "".join(cell["source"]) for cell in json.loads(path.read_bytes())["cells"]
        )
        for path in chapters
    }


@cache
def colours(theme):
    style = f"a11y-high-contrast-{theme}"
    return HtmlFormatter(style=style).get_style_defs(".highlight")


def as_page(path):
    """A file of Python to read, by its path in the course, to copy and to download.

    Its head leads to the chapters that import the file or link to it.
    """
    light, dark = map(colours, ("light", "dark"))
    text = (ROOT / path).read_text(encoding="utf-8")
    static = "../" * len(path.parts)
    module = ".".join(path.with_suffix("").parts)
    named = re.compile(rf"{re.escape(module)}\b|/{re.escape(path.as_posix())}\b")
    links = [
        f'<a href="{static}../notebooks/{chapter}.html">{source.splitlines()[0][2:]}</a>'
        for chapter, source in sources().items()
        if named.search(source)
    ]
    return PAGE_OF_CODE.format(
        chapters=f"<br>In {' '.join(links)}" if links else "",
        name=path.as_posix(),
        file=path.name,
        front=f"{static}../index.html",
        course=project,
        static=static,
        light=light,
        dark=dark,
        code=highlight(text, PythonLexer(), HtmlFormatter()),
    )


def write_the_course(out):
    """All files of the course, for a reader of pages that know no repository.

    They come as an archive; those of Python also one by one, to read and to copy, and
    what is copied as a folder.
    """
    folders = ("helpers", "notebooks", "site", "tests", "tools", "zh")
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*")]
    left_out = {"node_modules", "__pycache__", ".ipynb_checkpoints"}
    files = {path.relative_to(ROOT): path for path in files if path.suffix != ".so"}
    files = {n: path for n, path in files.items() if left_out.isdisjoint(n.parts)}
    for name, path in files.items():
        if name.suffix == ".py":
            copy = out / "course" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
            copy.with_suffix(".py.html").write_text(as_page(name), encoding="utf-8")
    inside = {"course": {path: "course" / name for name, path in files.items()}}
    for folder in FOLDERS:
        inside[f"course/{folder}"] = {
            path: name.relative_to(folder.parent)
            for name, path in files.items()
            if name.is_relative_to(folder)
        }
    for archive, names in inside.items():
        with ZipFile(out / f"{archive}.zip", "w", ZIP_DEFLATED) as packed:
            for path, name in names.items():
                packed.write(path, name)


def on_finished(app, exception):
    """Write the index of the search, what `zh/` leads to, and lighter style sheets."""
    if exception or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for page in out.rglob("*.html"):  # a script of the theme chooses, where one runs
        text = page.read_text(encoding="utf-8")
        root = "../" * (len(page.relative_to(out).parts) - 1)
        text = text.replace('data-theme="auto"', 'data-theme="light"', 1)
        if "dark.css" not in text:  # a page that was written by an earlier build
            text = text.replace("</head>", WITHOUT_SCRIPTS.format(root), 1)
        page.write_text(text, "utf-8")
    if not ADDRESS:
        write_the_course(out / "_static")
    without_unused_rules(out)
    write_dark_sheet(out)
    write_index(app, lambda document: LANGUAGE[edition(document)])
    (out / "zh" / "index.html").write_text(
        '<!doctype html><meta http-equiv="refresh" content="0; url=../index.zh.html">'
        '<a href="../index.zh.html">中文</a>\n',
        encoding="utf-8",
    )


def without_search(app):
    """Sphinx makes no index: Pagefind does."""
    app.builder.search = False


def setup(app):
    app.connect("builder-inited", without_search)
    app.connect("source-read", on_source_read)
    app.connect("doctree-read", on_doctree_read)
    app.connect("doctree-resolved", on_doctree)
    app.connect("html-page-context", on_page, priority=400)  # before the theme's
    app.connect("build-finished", on_finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
