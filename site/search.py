"""The index of the search: each section of each page is found by itself, in its edition.

Pagefind makes it, because its index comes in pieces that a page loads when somebody searches.
Outputs and solutions are left out: they are not to be given away. Pagefind and the browser do not
cut Chinese into the same words, so each character is a word here.
"""

import re
import shutil
from html import escape
from pathlib import Path

from docutils import nodes
from node import node

RECORD = (
    '<html lang="{language}"><body><h1 data-pagefind-weight="{weight}">{heading}</h1>'
    '<p data-pagefind-meta="page" data-pagefind-ignore>{page}</p>{text}'
    '<p data-pagefind-meta="called" data-pagefind-weight="7">{called}</p></body></html>'
)
CALLED = {  # what people type who look for a chapter, in English and in Chinese
    "00": (
        "overflow, log1p, softplus nan for large x, first custom gradient",
        "数值溢出，第一个自定义梯度",
    ),
    "02": (
        "custom backward function, autograd.Function, forward and backward, ctx",
        "自定义反向传播，自定义函数，前向和反向",
    ),
    "03": (
        "constant argument, optional input None, non-tensor argument",
        "常数参数，返回 None，可选输入，不可微参数",
    ),
    "04": (
        "test a gradient, test my backward pass, numerical gradient check, finite differences",
        "梯度检验，数值梯度检查，怎么检查我的梯度对不对，有限差分",
    ),
    "05": (
        "double backward, second derivative of a custom function, Hessian",
        "二次反向传播，自定义函数的二阶导数，高阶导数，黑塞矩阵",
    ),
    "06": ("custom module, custom layer, nn.Module", "自定义模块，自定义层"),
    "07": (
        "write a CUDA kernel, CuPy RawKernel, convolution, involution",
        "写 CUDA 核函数，写 CUDA 内核，卷积，内卷",
    ),
    "08": (
        "bind C++ to Python, C++ extension, pybind11, TORCH_LIBRARY, ctypes",
        "绑定 C++，C++ 扩展，调用 C++",
    ),
    "09": (
        "custom op, torch.library, register a kernel for torch.compile, fake tensor, meta, "
        "graph break",
        "编译自定义算子，图中断，伪张量，动态形状",
    ),
    "10": (
        "vmap of a custom function, jvp, forward mode, Jacobian, per-sample gradients, "
        "gradients per example",
        "自定义函数的 vmap，前向模式，雅可比矩阵，逐样本梯度",
    ),
    "11": ("debug a wrong gradient, nan gradient", "调试错误的梯度，梯度出错"),
    "12": (
        "save memory in backward, activation checkpointing, recompute",
        "节省显存，节省内存，激活值，梯度检查点，重计算",
    ),
    "13": (
        "train through what is not differentiable, straight-through estimator, "
        "gradient of argmax, implicit differentiation, reparameterization trick, policy gradient",
        "不可导的函数怎么训练，直通估计，argmax 的梯度，隐式微分，重参数化，策略梯度",
    ),
    "14": (
        "distributed, multi-GPU training, average gradients between several GPUs, all_reduce, "
        "tensor parallel, DDP, FSDP",
        "分布式，多进程，多卡，张量并行，数据并行",
    ),
    "15": (
        "speed up, optimize a kernel, memory bandwidth, occupancy, roofline, shared memory",
        "加速，优化核函数，内存带宽，占用率，共享内存",
    ),
    "16": (
        "publish a wheel, package, PyPI, setup.py, distribute an extension",
        "发布 wheel，打包，分发扩展",
    ),
    "17": (
        "quantization, int8, float8, bfloat16, mixed precision, autocast",
        "量化，低精度，混合精度",
    ),
    "18": (
        "tensor subclass, __torch_function__, __torch_dispatch__, wrapper",
        "张量子类，包装张量",
    ),
    "20": (
        "flash attention and its second derivative, softmax backward, scaled_dot_product_attention",
        "注意力，softmax 的反向传播",
    ),
}
HIDDEN = {"cell_output", "exercise-help"}
ASIDE = (
    "Deeper:",
    "选读：",
)  # what stands beside the way through a chapter is found after it
INDEX = 5  # rows; a table of more in chapter 19 is for looking things up
COLUMNS = 3, 4  # of such a table: of a matrix of signs, nothing is found
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
    if isinstance(part, nodes.tbody) and is_index(part):
        return ""
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


def is_index(body):
    """Is each row of a table's body found by itself?"""
    return (
        "19_which_way" in str(body.document and body.document["source"])
        and len(body) > INDEX
        and len(body[0]) in COLUMNS
    )


def rows(doctree):
    """The rows of the tables in which things are looked up."""
    return [
        row for body in doctree.findall(nodes.tbody) if is_index(body) for row in body
    ]


def name_rows(doctree):
    """Gives each row that is found by itself an id, which the search leads to."""
    for number, row in enumerate(rows(doctree), start=1):
        row["ids"].append(f"row-{number}")


def sections(doctree):
    """(id, heading, text) of each section, without its subsections', and of each row."""
    for section in doctree.findall(nodes.section):
        parts = [
            part for part in section.children if not isinstance(part, nodes.section)
        ]
        heading = section.next_node(nodes.title).astext()
        yield section["ids"][0], heading, "".join(map(text_of, parts))
    for row in rows(doctree):
        yield row["ids"][0], row[0].astext(), "".join(map(text_of, row[-2:]))


def write_index(app, language_of):
    """Writes `pagefind/` beside the pages; `language_of` gives the language of a document."""
    records = []
    for document in sorted(app.env.found_docs):
        page = app.env.titles[document].astext()
        language = language_of(document)
        called = CALLED.get(Path(document).name[:2], ("", ""))[
            language.startswith("zh")
        ]
        for name, heading, text in sections(app.env.get_doctree(document)):
            weight = (
                3 if heading.startswith(ASIDE) else 4 if name.startswith("row-") else 7
            )
            content = RECORD.format(
                weight=weight,  # Pagefind's own of an h1 is 7
                language=language,
                heading=escape(heading),
                page=escape(page),
                text=text,
                called=escape(called),
            )
            called = ""  # the chapter is found by it, not each of its sections
            url = f"{app.builder.get_target_uri(document)}#{name}"
            records.append(dict(url=url, content=BETWEEN_CHARACTERS.sub(" ", content)))
    folder = app.outdir / "pagefind"
    shutil.rmtree(
        folder, ignore_errors=True
    )  # or what an earlier build wrote stays there
    node("search_index.mjs", records=records, folder=str(folder))
