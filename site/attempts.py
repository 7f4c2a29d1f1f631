"""Drills that the page itself judges: a field for each, in place of the cell that asks.

A page gets what Python computed: the arguments of a line, what it must return, and the
tempting lines with what is said of them. static/expression.js evaluates a line of the
reader's, static/attempts.js compares and answers. A drill that is more than an
expression stays a cell.
"""

import json
import re
from html import escape

import torch
from docutils import nodes
from exercises import speaking

from helpers.lessons import drill, exercise
from helpers.lessons.judge.compare import SLOPES
from helpers.lessons.judge.numbers import NEARLY
from helpers.lessons.judge.properties import random
from helpers.lessons.language import _

LAMBDA = re.compile(r"lambda ([\w, ]+): (.+)", re.DOTALL)
ASKS = re.compile(
    r'^drill\("([\w.]+)"\)\.check\(lambda ([\w, ]+): \.\.\.\)(?: +# (.+))?$',
    re.MULTILINE,
)
SAID = {  # what only a page says; by the folder of the edition
    "notebooks": {
        "check": "Check",
        "one": "one expression",
        "beyond": "This page runs plain expressions, and not `{what}`: run it in the "
        "course.",
        "broadcast": "shapes {one} and {other} do not fit together.",
        "matmul": "in a matrix product the inner sizes must agree; the shapes are {one} "
        "and {other}.",
        "dim": "a tensor of shape {shape} has no dimension {dim}.",
        "index": "index {index} is out of range, for the size is {size}.",
        "indices": "there are more indices than dimensions: the shape is {shape}.",
        "reshape": "shapes {one} and {other} do not have the same number of elements.",
        "number": "`{name}` takes a tensor, not a number.",
        "called": "a function stands there without its parentheses.",
        "name": "`{name}` is not defined: write `torch.{name}`.",
        "unknown": "this page does not know `{name}`. It knows {names}.",
        "instead": "this page does not know `{name}`: write `{meant}`.",
        "tuple": "one expression is asked for: leave out the comma, and what follows.",
        "functional": "torch has no `{name}`: write `F.{name}`.",
        "typed": "`{sign}` is no sign of Python: write `{meant}`.",
        "slip": "this page does not know `{name}`. Is `{close}` meant? If not, run it in the "
        "course.",
        "syntax": "this page cannot read `{what}`. Is an operator missing before it? If not, run "
        "it in the course.",
        "unfinished": "the line ends where something must follow.",
        "apart": "Where `grad_output` is 0, your line is not: each term needs that factor.",
        "brackets": "brackets: {opened} opened, {closed} closed.",
        "modules": "This page has `torch` alone: write `torch` in place of `{module}`.",
        "times": "Everywhere it is {factor} times what is right.",
        "inPlace": "`{name}` changes a tensor in place, and others may still use it: "
        "write `{meant}`, or run it in the course.",
        "minus": "a tensor of True and False knows no minus: write `~mask`.",
        "power": "`^` is not a power in Python: write `**`.",
        "bits": "`&`, `|` and `~` need True and False: put each comparison in "
        "parentheses.",
        "truth": "a tensor of several elements is neither true nor false, so `if`, "
        "`and`, `or` and `a < b < c` cannot use it.",
    },
    "zh": {
        "check": "检查",
        "one": "一个表达式",
        "beyond": "本页只运行简单的表达式，运行不了 `{what}`，请在课程的 notebook 里运行。",
        "broadcast": "形状 {one} 与 {other} 无法广播到一起。",
        "matmul": "矩阵乘法要求中间的两个维度大小相同，而这里的形状是 {one} 和 {other}。",
        "dim": "形状为 {shape} 的张量没有第 {dim} 维。",
        "index": "下标 {index} 越界，这一维的大小是 {size}。",
        "indices": "下标的个数多于维数，张量的形状是 {shape}。",
        "reshape": "形状 {one} 与 {other} 的元素个数不同。",
        "number": "`{name}` 的参数要是张量，不能是数。",
        "called": "有一个函数后面没有括号，所以没有被调用。",
        "name": "`{name}` 没有定义，请写 `torch.{name}`。",
        "unknown": "这里没有 `{name}` 这个名字，能用的是 {names}。",
        "instead": "这里没有 `{name}`，请写 `{meant}`。",
        "tuple": "这里只要一个表达式，请去掉逗号和它后面的内容。",
        "functional": "torch 里没有 `{name}`，请写 `F.{name}`。",
        "typed": "Python 里没有 `{sign}` 这个符号，请写 `{meant}`。",
        "slip": "这里没有 `{name}`，是不是想写 `{close}`？如果不是，请在课程的 notebook 里运行。",
        "syntax": "`{what}` 无法解析，它前面是不是漏了运算符？如果没有，"
        "请在课程的 notebook 里运行。",
        "unfinished": "这一行还没有写完。",
        "apart": "当 `grad_output` 为 0 时，你的这一行却不为 0：每一项都要乘上它。",
        "brackets": "左括号有 {opened} 个，右括号有 {closed} 个。",
        "modules": "本页只有 `torch`，请把 `{module}` 写成 `torch`。",
        "times": "处处都是正确值的 {factor} 倍。",
        "inPlace": "`{name}` 会原地修改张量，而别处可能还要用它，请写 `{meant}`，"
        "或在课程的 notebook 里运行。",
        "minus": "布尔张量不能做减法，也不能取负，请写 `~mask`。",
        "power": "Python 里的乘方不是 `^`，而是 `**`。",
        "bits": "`&`、`|`、`~` 要用在布尔张量上：请给每个比较加上括号。",
        "truth": "含有多个元素的张量没有真假可言，不能用在 `if`、`and`、`or` 或 "
        "`a < b < c` 里。",
    },
}

NOT_SAVED = {
    "notebooks": "`backward` has no `x`, for `forward` has not saved it. It needs none: the slope "
    "of 3 * x is the same at each x.",
    "zh": "`backward` 里没有 `x`，因为 `forward` 没有保存它。这里也用不着：3 * x 的斜率处处相同。",
}

TASKS = {  # the comments of the Chinese edition's cells are English, as all its code is
    "y = x * w + x; g has the shape of y": "y = x * w + x；g 的形状与 y 相同",
    "the backward of y = x.flip(0)": "y = x.flip(0) 的 backward",
    "the backward of y = x.roll(1, 0)": "y = x.roll(1, 0) 的 backward",
    "the backward of y = x.repeat(2), for one dimension": "y = x.repeat(2) 的 backward，x 是一维的",
    "the backward of y = 1 / x": "y = 1 / x 的 backward",
    "the backward of y = torch.expm1(x), which is exp(x) - 1": "y = torch.expm1(x)（即 "
    "exp(x) - 1）的 backward",
    "what reaches x through g * torch.cos(x), where h arrives": "h 到达时，经过 "
    "g * torch.cos(x) 传到 x 的梯度",
    "Hv for f(x) = (x**3).sum()": "f(x) = (x**3).sum() 的 Hv",
    "dL/ds for y = s * x, where x is (N, 3) and s is (3,)": "y = s * x 的 dL/ds，x 的形状是 "
    "(N, 3)，s 的形状是 (3,)",
    "dL/dw for y = w * (w * x), all of shape (3,)": "y = w * (w * x) 的 dL/dw，形状都是 (3,)",
    "the tangent of y = exp(x)": "y = exp(x) 的切向量",
    "the tangent of y = x.sum()": "y = x.sum() 的切向量",
    "of y = x.cumsum(0)": "y = x.cumsum(0)",
    "of sign(x): slope 1 where |x| < 1, and 0 elsewhere": "sign(x)：在 |x| < 1 处斜率为 1，"
    "在别处为 0",
    "z = the cube root of a": "z 是 a 的立方根",
}


def templates(folder):
    """The sentences with which a page answers; called while `speaking(folder)`."""
    return SAID[folder] | {
        "at": _("{where}: {words}"),
        "followed": _("{before} {after}"),
        "shape": _("{which} has shape {given}, but {right} is right."),
        "dtype": _("{which} is {given}, but {right} is right."),
        "value": _("{what} is {given}{place}, but {right} is right."),
        "value with a grad_output": _(SLOPES[1]),
        "place": _(" at {index}"),
        "nearly": _(NEARLY),
        "untouched": _("{number}: not attempted yet"),
        "none": _("it returns None. Is a `return` missing?"),
        "kind": _("it returns a {kind}, but {asked} is asked for."),
        "a tensor": _("a tensor"),
    }


def data_of(value):
    """A tensor or an int, as the page reads it; a number that JSON lacks is a word."""
    if not torch.is_tensor(value):
        return value
    numbers = [n if abs(n) < torch.inf else str(n) for n in value.flatten().tolist()]
    return {"shape": list(value.shape), "data": numbers}


def names_and_line(source):
    names, line = LAMBDA.fullmatch(source).groups()
    return names.split(", "), line


def data_of_drill(number, folder):
    """What the page needs to judge one drill."""
    given = drill(number)
    with speaking(folder):
        wrong = [(*names_and_line(line), _(why)) for line, why in given.wrong.items()]
        return {
            "number": number,
            "names": names_and_line(given.answer)[0],
            "what": _("what it returns"),
            "cases": [
                {"given": list(map(data_of, arguments)), "expected": data_of(expected)}
                for arguments, expected in given.cases()
            ],
            "wrong": [
                {"names": names, "line": line, "why": why} for names, line, why in wrong
            ],
            "right": _(given.why),
            "words": templates(folder),
        }


def data_of_first(folder):
    """The same of exercise 0.1, whose gap is one line: the last of `backward`."""
    given = exercise("0.1")
    with speaking(folder):
        return {
            "number": given.number,
            "names": ["grad_output"],
            "what": _("the gradient"),
            "cases": [
                {"given": [data_of(g)], "expected": data_of(3 * g)}
                for g in (random(2, 3, seed=1), random(4, seed=2))
            ],
            "wrong": [],
            "absent": {"x": NOT_SAVED[folder]},
            "arriving": ["grad_output"],
            "right": _(given.success),
            "words": templates(folder),
        }


FIELD = """<textarea rows="1" {attributes} enterkeyhint="go" autocomplete="off"
 autocapitalize="off" spellcheck="false">{line}</textarea>"""  # a long line wraps on a phone
FORM = """<form class="attempt" data-asked="{asked}">
<label><span><b>{number}</b> <code>{task}</code></span> <code>{before}</code>
{field}</label>
<button type="submit">{check}</button> <output></output>
</form>"""


def form_of_drill(number, names, task, folder):
    asked = data_of_drill(number, folder) | {"names": names.split(", ")}
    task = TASKS.get(task, task) if folder == "zh" else task
    return form(asked, f"# {task}" if task else "", f"lambda {names}:", folder)


def form(asked, task, before, folder):
    return FORM.format(
        asked=escape(json.dumps(asked, ensure_ascii=False)),
        number=asked["number"],
        task=escape(task),
        before=escape(before),
        check=SAID[folder]["check"],
        field=FIELD.format(attributes=f'placeholder="{SAID[folder]["one"]}"', line=""),
    )


def add_fields(doctree, folder):
    """Puts the fields under each cell that asks for a line.

    Of drills, they stand for the cell; of exercise 0.1, for its output.
    """
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") != "cell_code":
            continue
        forms = [form_of_drill(*one, folder) for one in ASKS.findall(cell.astext())]
        if forms:
            cell["classes"].append("in-fields")
        if 'exercise("0.1").check(Triple)' in cell.astext():
            cell["classes"].append("with-field")
            forms = [form(data_of_first(folder), "", "return", folder)]
        if forms:
            place = cell.parent.index(cell) + 1
            cell.parent.insert(place, nodes.raw("", "\n".join(forms), format="html"))
