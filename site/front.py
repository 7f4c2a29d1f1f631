"""The front page: a slope that breaks, a `backward` to write, three doors, the map of the chapters.

What is said here stands below, in both languages; commands, minutes and ways through are the
README's, titles and questions are the notebooks', the rows of the indexes are chapter 19's, and
the verdicts are those of the course's judge.
"""

import inspect
import json
import math
import os
import re
import struct
import textwrap
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from attempts import FIELD
from candidates import WRONG, Softplus, front_attempt
from docutils import nodes
from gate import gate
from search import WORDS as SEARCH_WORDS
from search import plain
from search import rows as index_rows

from helpers.derive import derive

ROOT = Path(__file__).parents[1]
ADDRESS = os.environ.get("GITHUB_REPOSITORY")  # unknown to a local build
FRONT = {
    "notebooks": "index",
    "zh": "index.zh",
}  # the page, by the folder of the edition
PARTS = [
    "00 01 02 03 04 05 06",
    "07 08 09 15 16",
    "10 11 13 20 21",
    "12 14 17 18",
    "19 22 23 24",  # to look up
]
KERNELS = [  # chapters, and the headings of the sections that hold a kernel, by their cells
    ("07", "c000"),
    ("08", "c021"),
    ("08", "c006"),
    ("23", "triton-op"),
    ("15", "which-limit-and-what-lowers-it"),
    ("09", "a-name-and-a-promise-custom-op"),
    ("16", "an-empty-folder-start-from-the-template"),
]
INDEXES = [("19", "w02"), ("19", "w01")]  # of errors and of tasks
MESSAGE = "Trying to backward through the graph a second time"  # to try the search with
WORDS = {
    "notebooks": {
        "claim": "Write the gradient that PyTorch lacks, gets wrong, or makes too costly",
        "holds": "For people who train with PyTorch: a course in JupyterLab, no GPU needed, and "
        "tested code to copy.",
        "ask": "Where does autograd stop?",
        "of_what": "The slope of `torch.log(1 + torch.exp(x))` in float32.",
        "slide": " Slide x.",
        "names": {"value": "log(1 + exp(x))", "theirs": "its slope, by autograd",
                  "ours": "the right slope"},
        "drawn": "The slope of log(1 + exp(x)) from -20 to 120: autograd's ends at 88.7, ours goes "
        "on at 1",
        "write": "Repair the last line",
        "on_paper": "The line is what autograd computes for log(1 + exp(x)): right on paper, nan "
        "at x = 100. Write it so that it is right for every x. PyTorch's own is `softplus`.",
        "hint": "Change the line, and check it.",
        "reset": "Reset",
        "derived_by": ("you write", "derive prints"),
        "overflow": "Right up to x = {last}. Above, a step of your line is inf in float32, and "
        "the gradient is {value}. Write it so that nothing overflows.",
        "check": "Check",
        "next": "Next: repair a gate. The doctor says what it lacks.",
        "change": "Repair `d_gate`, or break it in another way.",
        "repair": "What it proposes",
        "then_05": "Next: a backward whose second derivative is silently wrong, chapter 05.",
        "yours": "your line",
        "lost": "Right to rounding in float64. In float32, the slope is lost far on the left: at "
        "x = {x} it is {right}, and your line gives {value}.",
        "narrow": "Right at the inputs that were tried in float64. In float32, it is {value} at "
        "x = {x}.",
        "single": "Right in float32, to its rounding. In float64, {said}",
        "own": "Why a backward at all, if this forward does not overflow? Since torch 2.14, "
        "autograd says that its slope at x = 0 is 0, where 1/2 is right.",
        "repaired": "Chapter 00 shows why.",
        "proof": [("check", "A gradient doctor", "names what is wrong with a gradient, and often "
                   "the line."),
                  ("write", "`derive(forward)`", "writes the backward of your forward, and "
                   "verifies it."),
                  ("copy", "{operations} operations", "to copy: attention without its matrix, "
                   "cross-entropy without its logits, the gradient of a fixed point.")],
        "start": "Read chapter 00",
        "facts": "{chapters} chapters · every printed output is tested · "
        "torch {torch} · BSD-3-Clause",
        "doors": ("New here", "I have an error, or a task", "I need a kernel"),
        "new": "You need Python, tensors and `loss.backward()`, but no GPU.",
        "kernels": ["Write it in CUDA", "Write it in C++", "Write it in C", "Write it in Triton",
                    "Make it fast", "Keep it under torch.compile", "Ship it as a package"],
        "look_up": "Paste the message, or say what you want",
        "paste": "such as: does not require grad",
        "examples": "For example:",
        "typed": [MESSAGE, "the loss is nan after some steps", "a gradient for each sample"],
        "nothing": ["No row has these words.", "Search all chapters"],
        "nearest": "No row has all of this. The nearest:",
        "all_rows": ["All errors", "All tasks"],
        "bar": ["Chapters", "Errors", "Tasks", "Install"],
        "needs": "needs",
        "minutes": "{} + {} min",
        "clock": "20 + 5 min: reading + exercises.",
        "parts": ["Write a gradient and trust it", "Kernels, compilers, packages",
                  "Derivatives and their traps", "Memory, processes, bits, your own tensors",
                  "To look up: which way, and recipes"],
        "repository": "The repository",
        "report": "Report a mistake",
        "install": "Install it",
        "install_or_colab": "Install it, or open it in Colab",
        "files": "First the files, in a folder of your own:",
        "built": "First the files: unpack",
        "without_gpu": "In that folder, on Linux without a GPU, begin with these lines. They "
        "download 0.7 GB in place of 2.9 GB:",
        "then": "After that, or right away on any other machine, with Python 3.11 to 3.14:",
        "colab": "Without installing: open chapter 00 in",
        "colab_first": "and run this in a cell of its own first:",
        "more": "All commands, what they download, and how to teach with the course: the README",
        "ways": {
            "copy": ("Copy an operation", "Tested, each a file or a folder that stands alone."),
            "write": ("Have a backward written", "`derive` writes the backward of your forward, "
                      "in your names, and compares it with autograd's before it prints it. "
                      "It is one folder, which needs only torch:"),
            "check": ("Check my gradient", "The doctor names what is wrong with a gradient, and "
                      "often the line to change. It is one folder, which needs only torch:"),
        },
    },
    "zh": {
        "claim": "PyTorch 没有、算错或者太占内存的梯度，自己来写",
        "holds": "写给会用 PyTorch 训练模型的人：一门在 JupyterLab 里学的课程，不需要 GPU，"
        "并附有经过测试、可以复制到项目里的代码。",
        "ask": "autograd 到哪里就算不下去了？",
        "of_what": "`torch.log(1 + torch.exp(x))` 在 float32 下的斜率。",
        "slide": "拖动 x 看看。",
        "names": {"value": "log(1 + exp(x))", "theirs": "autograd 算出的斜率",
                  "ours": "正确的斜率"},
        "drawn": "log(1 + exp(x)) 在 −20 到 120 之间的斜率：autograd 的曲线在 88.7 处中断，"
        "课程的 backward 则一直是 1",
        "write": "改正最后一行",
        "on_paper": "autograd 对 log(1 + exp(x)) 就是这样求导的：数学上没有错，但在 x = 100 处"
        "算出来是 nan。请改写这一行，让它对每个 x 都正确。PyTorch 自带的版本叫 `softplus`。",
        "hint": "改好这一行，再点“检查”。",
        "reset": "还原",
        "derived_by": ("你写的", "derive 打印的"),
        "overflow": "到 x = {last} 为止都正确。再往上，你这一行里有一步在 float32 下溢出为 inf，"
        "梯度就成了 {value}。请换一种不会溢出的写法。",
        "check": "检查",
        "next": "下一步：改正一个门控，梯度医生会说它缺了什么。",
        "change": "请改正 `d_gate`，或者换一种错法试试。",
        "repair": "它建议的改法",
        "then_05": "下一步：看第 05 章里二阶导数悄悄出错的 backward。",
        "yours": "你写的这一行",
        "lost": "在 float64 下正确，只差舍入误差。但在 float32 下，左边很远处的斜率丢失了："
        "在 x = {x} 处应为 {right}，而你这一行得到 {value}。",
        "narrow": "在试过的 float64 输入上都正确。但在 float32 下，x = {x} 处它是 {value}。",
        "single": "在 float32 下正确，只差舍入误差。但在 float64 下，{said}",
        "own": "这个 forward 不会溢出，为什么还要自己写 backward？从 torch 2.14 起，autograd 在 "
        "x = 0 处给出的斜率是 0，而正确的是 1/2。",
        "repaired": "原因见第 00 章。",
        "proof": [("check", "梯度医生", "指出 backward 错在哪里，往往还能指出是哪一行。"),
                  ("write", "`derive(forward)`", "为你的 forward 写出 backward，并与 autograd "
                   "核对。"),
                  ("copy", "{operations} 个算子", "可以复制到项目里：不存整个矩阵的注意力、"
                   "不存 logits 的交叉熵、不动点的梯度。")],
        "start": "阅读第 00 章",
        "facts": "{chapters} 章 · 打印出的每个结果都由测试重新算过 · "
        "PyTorch {torch} · BSD-3-Clause 许可",
        "doors": ("第一次来", "遇到报错，或想实现某个功能", "要写核函数"),
        "new": "你需要会用 Python、张量和 `loss.backward()`，不需要 GPU。",
        "kernels": ["用 CUDA 写", "用 C++ 写", "用 C 写", "用 Triton 写", "让它更快",
                    "让它支持 torch.compile", "打包发布"],
        "look_up": "粘贴报错，或写下你想做的事",
        "paste": "例如 does not require grad",
        "examples": "例如：",
        "typed": [MESSAGE, "训练一段时间后出现 nan", "每个样本的梯度"],
        "nothing": ["没有哪一行含有这些词。", "搜索全部章节"],
        "nearest": "没有哪一行完全符合，最接近的是：",
        "all_rows": ["全部报错", "全部任务"],
        "bar": ["章节", "报错", "任务", "安装"],
        "needs": "先读",
        "minutes": "{} + {} 分钟",
        "clock": "20 + 5 分钟：正文 + 练习。",
        "parts": ["API，以及怎样确认梯度正确", "核函数、编译器、打包",
                  "各种导数和它们的陷阱", "内存、分布式、低精度、张量子类",
                  "速查：该用哪种写法，以及代码配方"],
        "repository": "代码仓库",
        "report": "报告错误",
        "install": "安装",
        "install_or_colab": "安装，或在 Colab 里打开",
        "files": "先下载文件，放在你自己的文件夹里：",
        "built": "先下载并解压",
        "without_gpu": "进入该文件夹。在 Linux 上，如果没有 GPU，先执行下面几行，只需下载 0.7 GB，"
        "而不是 2.9 GB：",
        "then": "然后执行下面的命令（其他情况直接从这里开始），Python 3.11 至 3.14 都可以：",
        "colab": "不想安装：打开第 00 章的",
        "colab_first": "并先在一个单元格里运行：",
        "more": "全部命令、要下载多少、怎样用这门课程教学：见 README",
        "ways": {
            "copy": ("复制算子", "经过测试，每个自成一个文件或文件夹，可以单独使用。"),
            "write": ("让程序写出 backward", "`derive` 为你的 forward 写出 backward，"
                      "沿用你取的名字，并且先与 autograd 的结果比较，一致才打印出来。"
                      "它是一个文件夹，只依赖 torch："),
            "check": ("检查我的梯度", "梯度医生指出梯度错在哪里，往往还能找到要改的那一行。"
                      "它是一个文件夹，只依赖 torch："),
        },
    },
}  # fmt: skip


def parts(folder):
    """(title, numbers of chapters) of each part of the course."""
    return zip(WORDS[folder]["parts"], PARTS, strict=True)


def _first(found, what, source="the README"):
    """The first of `found`; ValueError where the source no longer has it."""
    for one in found:
        return one
    raise ValueError(f"the front page takes {what} from {source}, which has none")


def _around(node, kind=nodes.section):
    while not isinstance(node, kind):
        node = node.parent
    return node


def _operations(table):
    """(name, where it stands, what it does) of each row of the table of what to copy."""
    for row in table.findall(nodes.row):
        for link in row[0].findall(nodes.reference):
            what = re.split("[;；]", _marked(row[1]))[0]
            file = link["refuri"]
            yield Path(file).name.partition(".")[0], file, what


def _of_readme(builder, readme):
    """What the front page shows of the README, and where what is copied stands."""
    doctree = builder.env.get_and_resolve_doctree(readme, builder)
    blocks = [*doctree.findall(nodes.literal_block)]
    without_gpu = [b for b in blocks if "--index-url" in b.astext()]
    code = (
        t for t in doctree.findall(nodes.literal) if t[-1].astext() == "softplus.py"
    )
    table = _first(code, "the table of what to copy")
    copy = _around(table)["ids"][0]
    links = {n.astext(): n for n in doctree.findall(nodes.reference)}
    return {
        "doctor": links["helpers/doctor"]["refuri"],
        "derive": links["helpers/derive"]["refuri"],
        "operations": [*_operations(_around(table, nodes.table))],
        "commands": [
            _in_lines(builder, b) for b in blocks if "jupyter lab" in b.astext()
        ],
        "on_the_cpu": _in_lines(builder, _first(without_gpu, "the CPU's command")),
        "copy": f"{readme}.html#{copy}",
    }


def _in_lines(builder, block):
    """A block of commands, one a line, as HTML."""
    text = block.astext().replace(" && ", "\n")
    return _highlighted(builder, text, block["language"])


def figures(readme):
    """{number: (file, what it is, caption, size)} of the chapters with a figure in the README."""
    tables = re.findall(r"^\| (!\[.+) \|\n\| (.+) \|$", readme, re.MULTILINE)
    pairs = [
        pair
        for row in tables
        for pair in zip(*(cells.split(" | ") for cells in row), strict=True)
    ]
    found = {}
    for image, caption in pairs:
        text, file = re.fullmatch(r"!\[(.+)\]\(.+/(.+)\)", image).groups()
        words, number = re.fullmatch(r"(.+?) ?[(（](\d\d)[)）]", caption).groups()
        size = (ROOT / ".github" / "pictures" / file).read_bytes()[16:24]  # of a PNG
        found[number] = file, text, words, struct.unpack(">2I", size)
    return found


def _chapters(readme, chapters):
    """{number: card} of the chapters, and the ways through: (name, hours, numbers).

    Minutes and needs are those of the README's table.
    """
    text = (ROOT / f"{readme}.md").read_text(encoding="utf-8")
    drawn = figures(text)
    cards = {}
    for document, title in chapters:
        cells = json.loads((ROOT / f"{document}.ipynb").read_bytes())
        first = "".join(cells["cells"][0]["source"])
        number, _, name = title.partition(" ")
        row = re.search(
            rf"^\| \[{number} .*\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE
        )
        cards[number] = {
            "number": number,
            "name": name,
            "question": re.sub(
                "[`*]", "", re.search(r"(?s)\*\*.+?\*{2,3}？?", first)[0]
            ),
            "figure": drawn.get(number),
            "page": f"{document}.html",
            "minutes": row[1],
            "needs": row[2],
        }
    through = []
    for name, hours, numbers in re.findall(
        r"^- \*\*(.+?)\*\*[,，] ?(.+?)[:：] ?(.+)$", text, re.MULTILINE
    ):
        found = re.findall(r"\b\d\d\b", re.sub(r"\]\([^)]*\)", "", numbers))
        # 19 and 22 to 24 are to look up
        course = [n for n in cards if "+" in cards[n]["minutes"]]
        wanted = [n for n in course if n not in found] if found == ["19"] else found
        if set(wanted) <= set(cards) and wanted:
            through.append((name, hours, " ".join(wanted)))
    return cards, through


def _addresses(builder, cards, sections):
    """The address of each section: of a chapter, by the cell that holds its heading."""
    for number, cell in sections:
        page = cards[number]["page"]
        document = page.removesuffix(".html")
        cells = json.loads((ROOT / f"{document}.ipynb").read_bytes())
        (source,) = (c["source"] for c in cells["cells"] if c["id"] == cell)
        heading = re.sub("^#+ |[`\n]", "", source[0])
        titles = builder.env.get_doctree(document).findall(nodes.title)
        found = (title for title in titles if title.astext() == heading)
        yield f"{page}#{_around(_first(found, heading, document))['ids'][0]}"


@cache
def _indexes(builder, look_up):
    """The addresses of the indexes in this chapter."""
    return [*_addresses(builder, {"19": {"page": f"{look_up}.html"}}, INDEXES)]


def bar(builder, folder, chapters):
    """(name, address) of what the bar of each page leads to."""
    to = _indexes(builder, next(d for d, t in chapters if t.startswith("19")))
    front = f"{FRONT[folder]}.html"
    pages = f"{front}#chapters", *to, f"{front}#install"
    return zip(WORDS[folder]["bar"], pages, strict=True)


def look_up(builder, folder):
    """A field that looks up the rows of chapter 19, as HTML, for that chapter."""
    words = WORDS[folder]
    made = builder.templates.environment.get_template("look_up.html").module
    said = [words[key] for key in ("look_up", "look_up", "nearest", "nothing")]
    return f'<div class="look-up" data-front="../{FRONT[folder]}.html">{made.box(*said)}</div>'


def _function(builder):
    """The Function whose last line the reader writes, without that line, as HTML."""
    code, _, _ = inspect.getsource(Softplus).rpartition("\n        return ")
    return _highlighted(builder, code)


def swiglu(x, w_gate, w_up):
    gate, up = x @ w_gate, x @ w_up
    return F.silu(gate) * up


def _derived(builder):
    """A forward, and the backward that is written for it, as HTML."""
    given = [torch.ones(size) for size in ((4, 8), (8, 16), (8, 16))]
    written = str(derive(swiglu, *given))
    start = written.index("    @staticmethod\n    def backward")
    backward = textwrap.dedent(written[start : written.index("\n\n\ndef check")])
    forward = inspect.getsource(swiglu)
    call = "\nprint(derive(swiglu, x, w_gate, w_up))"
    return _highlighted(builder, forward + call), _highlighted(builder, backward)


def _highlighted(builder, code, language="python", first=None):
    """As HTML; with the numbers of the lines, if the `first` has one."""
    block = nodes.literal_block(code, code, language=language, linenos=bool(first))
    block["highlight_args"] = {"linenostart": first or 1}
    return builder.render_partial(block)["fragment"]


def _called(folder):
    """{chapter: {heading or row: what people type who look for it}}."""
    return SEARCH_WORDS["zh" if folder == "zh" else "en"]


def _marked(cell):
    """The text of a cell, with its code in backticks."""
    cell = cell.deepcopy()
    for literal in list(cell.findall(nodes.literal)):
        literal.replace_self(nodes.Text(f"`{literal.astext()}`"))
    return cell.astext().replace("<wbr>", "")


def _rows(builder, document):
    """(text, page, what to do, its page, link, words) of each row of the indexes of chapter 19.

    its page: of the recipe or the file, or None where words say what to do.
    words: those of the row in one line, and then a line for each of its other names.
    """
    folder = document.split("/")[0]
    called = _called(folder)["19"]

    def address(link):
        target = link.get("refuri") or f"{document.split('/')[1]}.html#{link['refid']}"
        return target if "://" in target else f"{folder}/{target}"

    doctree = builder.env.get_and_resolve_doctree(document, builder)
    for row in index_rows(doctree):
        link = next(row[2].findall(nodes.reference), None)
        if link:
            copied = next(row[1].findall(nodes.reference), None)
            if copied and copied.astext() != row[1].astext():
                copied = None
            text = row[0].astext().replace("<wbr>", "")
            names = re.sub("[,，] ?", "\n", called.get(plain(text), ""))
            yield (
                _marked(row[0]),
                address(link),
                _marked(row[1]),
                copied and address(copied),
                link.astext(),
                row.astext().replace("<wbr>", "").replace("\n", " ") + f"\n{names}",
            )


def _chapter_rows(folder, cards):
    """The same of each chapter, with what else people call it."""
    for number, card in cards.items():
        title = f"{number} {card['name']}"
        called = _called(folder).get(number, {}).get(plain(title), "")
        yield title, card["page"], "", None, card["question"], f"{title}\n{called}"


def curves():
    """Both slopes as PyTorch computes them in float32, as paths in the picture."""
    x = torch.linspace(-20, 120, 281, requires_grad=True)
    (theirs,) = torch.autograd.grad(torch.log(1 + torch.exp(x)).sum(), x)
    points = x.tolist()
    paths = {"ours": torch.sigmoid(x).tolist(), "theirs": theirs.tolist()}
    return {
        key: "M"
        + " ".join(
            f"{at + 20:g} {1 - y:.4f}"
            for at, y in zip(points, slopes, strict=True)
            if math.isfinite(y)
        )
        for key, slopes in paths.items()
    }


def context(builder, folder, readme, chapters):
    """What the template of the front page needs."""
    words = WORDS[folder]
    of_readme = _of_readme(builder, readme)
    cards, through = _chapters(readme, chapters)
    name, hours, afternoon = through[0]
    look_up = next(d for d, title in chapters if title.startswith("19"))
    sections = [*INDEXES, *KERNELS]
    errors, tasks, *kernels = _addresses(builder, cards, sections)
    operations = len(of_readme["operations"])
    return (
        words
        | of_readme
        | {
            "facts": words["facts"].format(
                chapters=len(cards), torch=torch.__version__.partition("+")[0]
            ),
            "five": cards["05"]["page"],
            "eleven": cards["11"]["page"],
            "gate": gate(folder, partial(_highlighted, builder)),
            "function": _function(builder),
            "field": FIELD.format(attributes='id="line"', line=WRONG[0]),
            "derived": _derived(builder),
            "twenty_one": cards["21"]["page"],
            "parts": [
                (title, [cards[number] for number in numbers.split()])
                for title, numbers in parts(folder)
            ],
            "through": through,
            "afternoon": (name, hours, [cards[n] for n in afternoon.split()]),
            "rows": [*_chapter_rows(folder, cards), *_rows(builder, look_up)],
            "kernels": zip(words["kernels"], kernels, strict=True),
            "asked": json.dumps(front_attempt(folder), ensure_ascii=False),
            "curves": curves(),
            "first": cards["00"]["page"],
            "all_rows": [*zip(words["all_rows"], [errors, tasks], strict=True)],
            "bar": [*bar(builder, folder, chapters)],
            "proof": [
                (to, name.format(operations=operations), text)
                for to, name, text in words["proof"]
            ],
            "address": ADDRESS,
        }
    )
