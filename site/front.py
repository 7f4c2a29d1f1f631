"""The front page: what this is, four ways in, the tasks, the chapters, and how to install.

What is said here stands below, in both languages; tables and commands are the README's, titles,
questions and pictures are the notebooks'.
"""

import json
import re
from pathlib import Path

from docutils import nodes
from PIL import Image

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / ".github" / "pictures"
FRONT = {
    "notebooks": "index",
    "zh": "index.zh",
}  # the page, by the folder of the edition
WIDTH = 480  # of a thumbnail, in pixels: twice what it is shown at
WORDS = {
    "notebooks": {
        "claim": "A course on writing your own differentiable operations in PyTorch, with tested "
        "code to copy into your project.",
        "caption": "Plain autograd loses this slope where x is large. The first chapter repairs "
        "it, in one `backward`.",
        "start": "Start with chapter 00",
        "install": "Install it",
        "more": "All commands, what they download, and how to teach with the course: the README",
        "ways": {
            "learn": ("Learn", "Each chapter shows the obvious code failing, and repairs it. "
                      "Exercises say at once why an attempt is wrong."),
            "look up": ("Look up", "From what you want to do, or from an error message, to the "
                        "code and to the section that explains it."),
            "copy": ("Copy", "Tested operations, each a file or folder that needs nothing but "
                     "torch."),
            "check": ("Check my gradient", "The doctor names what is wrong with a gradient, and "
                      "often the line to change."),
        },
    },
    "zh": {
        "claim": "一门课程，讲怎样在 PyTorch 里写你自己的可微算子，"
        "并附有经过测试、可以复制到你的项目里的代码。",
        "caption": "x 较大时，普通的 autograd 算不出这个斜率。"
        "第 00 章用一个 `backward` 把它修好。",
        "start": "从第 00 章开始",
        "install": "安装",
        "more": "全部命令、要下载多少、怎样用这门课程教学：见 README",
        "ways": {
            "learn": ("学习", "每一章让你看到显而易见的代码怎样失败，然后把它修好。"
                      "练习当场告诉你错在哪里。"),
            "look up": ("查找", "从你想做的事，或从一条报错信息，直接找到代码和讲解它的那一节。"),
            "copy": ("复制", "经过测试的算子，每个自成一个文件或文件夹，只需要 torch。"),
            "check": ("检查我的梯度", "梯度医生说出梯度错在哪里，往往还能指出要改的那一行。"),
        },
    },
}  # fmt: skip


def _first(found, what):
    """The first of `found`; ValueError where the README no longer has it."""
    for one in found:
        return one
    raise ValueError(f"the front page takes {what} from the README, which has none")


def _section(node):
    while not isinstance(node, nodes.section):
        node = node.parent
    return node


def _of_readme(builder, readme):
    """What the front page shows of the README, and the address of its table of what to copy."""
    doctree = builder.env.get_and_resolve_doctree(readme, builder)
    marks = (
        raw
        for raw in doctree.findall(nodes.raw)
        if raw.astext().strip() == "<!-- tasks -->"
    )
    table = _first(marks, "the tasks").next_node(nodes.bullet_list, ascend=True)
    blocks = [
        b for b in doctree.findall(nodes.literal_block) if "jupyter lab" in b.astext()
    ]
    code = (
        t for t in doctree.findall(nodes.literal) if t[-1].astext() == "softplus.py"
    )
    copy = _section(_first(code, "the table of what to copy"))["ids"][0]
    shown = [
        builder.render_partial(node.deepcopy())["fragment"] for node in (table, *blocks)
    ]
    return {
        "tasks": shown[0],
        "tasks_title": _section(table).next_node(nodes.title).astext(),
        "commands": shown[1:],
        "copy": f"{readme}.html#{copy}",
        "picture": _first(doctree.findall(nodes.image), "a picture")["alt"],
    }


def _chapter(document, title):
    """A chapter's number, title, question and picture, if it has one."""
    cells = json.loads((ROOT / f"{document}.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    question = re.search(r"(?s)\*\*(.+?)\*\*", "".join(cells[0]["source"]))[1]
    tags = [tag for cell in cells for tag in cell["metadata"].get("tags", [])]
    pictures = [
        tag.removeprefix("picture-") for tag in tags if tag.startswith("picture-")
    ]
    number, _, name = title.partition(" ")
    return {
        "number": number,
        "name": name,
        "question": re.sub("[`*]", "", question),
        "picture": pictures[0] if pictures else None,
        "page": f"{document}.html",
    }


def context(builder, folder, readme, chapters):
    """What the template of the front page needs."""
    words = WORDS[folder]
    of_readme = _of_readme(builder, readme)
    cards = [_chapter(document, title) for document, title in chapters]
    by_stem = {card["page"].split("/")[1][3:-5]: card for card in cards}
    leads = {  # a way in: where it leads, its picture
        "learn": (cards[0]["page"], "graph"),
        "look up": (by_stem["which_way"]["page"], "transforms"),
        "copy": (of_readme["copy"], "involution"),
        "check": (by_stem["when_gradients_lie"]["page"], "jacobians"),
    }
    ways = [(*words["ways"][way], *leads[way]) for way in leads]
    return words | of_readme | {"ways": ways, "cards": cards, "first": cards[0]["page"]}


def write_thumbnails(folder):
    """Small copies of the README's pictures; nobody loads the large ones to see cards."""
    folder.mkdir(exist_ok=True)
    for path in PICTURES.glob("*.png"):
        with Image.open(path) as picture:
            small = picture.convert("RGB")
            small.thumbnail((WIDTH, WIDTH))
            small.save(folder / f"{path.stem}.webp", quality=80)
