"""The front page: a slope that breaks, one field for both indexes, the map of the chapters.

What is said here stands below, in both languages; commands, minutes and ways through are the
README's, titles and questions are the notebooks', the rows of the indexes are chapter 19's, and
the verdicts are those of the course's judge.
"""

import json
import os
import re
from pathlib import Path

from candidates import verdicts
from docutils import nodes
from search import WORDS as SEARCH_WORDS
from search import plain
from search import rows as index_rows

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
COVERS = {  # what a chapter is about, in code
    "00": "x = 100: nan",
    "01": "2017",
    "02": "ctx",
    "03": "None",
    "04": "gradcheck",
    "05": "∂²L/∂x²",
    "06": "nn.Module",
    "07": "threadIdx.x",
    "08": 'extern "C"',
    "09": "fullgraph=True",
    "10": "vmap(grad(f))",
    "11": "✗ transposed",
    "12": "recompute(f, x)",
    "13": "round′(x) = 1",
    "14": "all_reduce",
    "15": "61 µs → 9.7",
    "16": "pip install",
    "17": "bfloat16",
    "18": "Diagonal(d)",
    "19": "custom_op?",
    "20": "softmax(QKᵀ)V",
    "21": "print(derive(f, x))",
    "22": "register_hook(clip)",
    "23": "torch.cond",
    "24": "grad_dtype",
}
WORDS = {
    "notebooks": {
        "claim": "A course on writing your own differentiable operations in PyTorch, with tested "
        "code to copy into your project.",
        "slide": "The slope of log(1 + exp(x)), in float32. Slide x beyond 88:",
        "names": {"value": "log(1 + exp(x))", "theirs": "its slope, by autograd",
                  "ours": "its slope, by our backward"},
        "drawn": "The slope of log(1 + exp(x)) from -20 to 120: autograd's ends near 89, ours "
        "goes on at 1",
        "lines": "Which line belongs in `backward`? Choose one, and the course's judge answers:",
        "repaired": "The first chapter tells this story, in 15 minutes.",
        "for_whom": "For whoever trains models, and needs a gradient that PyTorch does not "
        "have, gets wrong, or pays too much memory for. You need Python, tensors and "
        "`loss.backward()`, but no GPU.",
        "start": "Start with chapter 00",
        "look_up": "What do you want to do, or which error do you have?",
        "example": "retain_graph, a gradient penalty, expected m1 and m2 …",
        "nothing": "No row has these words.",
        "all_rows": "All tasks, messages and symptoms: chapter 19",
        "needs": "needs",
        "minutes": "minutes",
        "which_minutes": "Minutes: to read, plus the exercises, plus the deeper sections.",
        "parts": ["The API, and whether it is right", "Kernels, compilers, packages",
                  "Derivatives and their traps", "Memory, processes, bits, tensors",
                  "To look up: which way, and recipes"],
        "repository": "The repository",
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
        "slide": "这是 log(1 + exp(x)) 在 float32 下的斜率。把 x 拖到 88 以上看看：",
        "names": {"value": "log(1 + exp(x))", "theirs": "autograd 算出的斜率",
                  "ours": "我们的 backward 算出的斜率"},
        "drawn": "log(1 + exp(x)) 在 −20 到 120 之间的斜率：autograd 的曲线在 89 附近中断，"
        "我们的曲线保持为 1",
        "lines": "`backward` 里该写哪一行？点开看看课程的检查结果：",
        "repaired": "第 00 章讲的就是这个故事，只要 15 分钟。",
        "for_whom": "如果你在训练模型，而 PyTorch 没有你要的梯度，或者算得不对、占用的内存太多，"
        "这门课程就是为你准备的。你需要会用 Python、张量和 `loss.backward()`，不需要 GPU。",
        "start": "从第 00 章开始",
        "look_up": "你想做什么？或者遇到了什么报错？",
        "example": "retain_graph、梯度惩罚、expected m1 and m2 ……",
        "nothing": "没有哪一行含有这些词。",
        "all_rows": "全部任务、报错和症状：第 19 章",
        "needs": "先读",
        "minutes": "分钟",
        "which_minutes": "分钟数依次是：阅读、练习、选读。",
        "parts": ["API，以及怎样确认它正确", "核函数、编译器、打包",
                  "各种导数和它们的陷阱", "显存、进程、位数、张量",
                  "供查阅：走哪条路，以及配方"],
        "repository": "代码仓库",
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
    blocks = [
        b for b in doctree.findall(nodes.literal_block) if "jupyter lab" in b.astext()
    ]
    code = (
        t for t in doctree.findall(nodes.literal) if t[-1].astext() == "softplus.py"
    )
    copy = _section(_first(code, "the table of what to copy"))["ids"][0]
    return {
        "commands": [
            builder.render_partial(block.deepcopy())["fragment"] for block in blocks
        ],
        "copy": f"{readme}.html#{copy}",
    }


def _chapters(folder, chapters):
    """{number: card} of the chapters, with the minutes and needs of the README's table, and the
    ways through them: (name, hours, numbers).
    """
    readme = "README.zh.md" if folder == "zh" else "README.md"
    text = (ROOT / readme).read_text(encoding="utf-8")
    cards = {}
    for document, title in chapters:
        cells = json.loads((ROOT / f"{document}.ipynb").read_text(encoding="utf-8"))
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
            "cover": COVERS.get(number),
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


def _called(folder):
    """{chapter: {heading or row: what people type who look for it}}"""
    return SEARCH_WORDS["zh" if folder == "zh" else "en"]


def _rows(builder, document):
    """(text, page, link, all words) of each row of the indexes of chapter 19."""
    folder = document.split("/")[0]
    called = _called(folder)["19"]
    doctree = builder.env.get_and_resolve_doctree(document, builder)
    for row in index_rows(doctree):
        link = next(row[2].findall(nodes.reference), None)
        if link:
            target = link.get("refuri") or f"#{link['refid']}"
            own = f"{document}.html" if target.startswith("#") else f"{folder}/"
            text = row[0].astext()
            yield (
                text,
                own + target,
                link.astext(),
                f"{row.astext().replace('<wbr>', '')} {called.get(plain(text), '')}",
            )


def _chapter_rows(folder, cards):
    """The same of each chapter, with what else people call it."""
    for number, card in cards.items():
        title = f"{number} {card['name']}"
        called = _called(folder).get(number, {}).get(plain(title), "")
        yield title, card["page"], card["question"], f"{title} {called}"


def context(builder, folder, readme, chapters):
    """What the template of the front page needs."""
    words = WORDS[folder]
    of_readme = _of_readme(builder, readme)
    cards, through = _chapters(folder, chapters)
    look_up = next(d for d, title in chapters if title.startswith("19"))
    leads = {  # a way in: where it leads
        "learn": cards["00"]["page"],
        "look up": cards["19"]["page"],
        "copy": of_readme["copy"],
        "check": cards["11"]["page"],
    }
    parts = [
        (title, [cards[number] for number in numbers.split()])
        for title, numbers in zip(words["parts"], PARTS, strict=True)
    ]
    return (
        words
        | of_readme
        | {
            "ways": [(*words["ways"][way], leads[way]) for way in leads],
            "parts": parts,
            "through": through,
            "rows": [*_chapter_rows(folder, cards), *_rows(builder, look_up)],
            "candidates": list(verdicts(folder)),
            "first": cards["00"]["page"],
            "nineteen": cards["19"]["page"],
            "address": ADDRESS,
        }
    )
