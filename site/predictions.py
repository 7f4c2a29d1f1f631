"""Predictions on the pages: buttons or a field in place of the cell that asks.

What a page answers is made of the notebook: the outcome of its stored output, and of
`helpers/lessons/tempting.py` why a wrong guess tempts. Without scripts the fold stays.
"""

import json
import re
from html import escape

from exercises import speaking

from helpers.lessons.language import _
from helpers.lessons.prediction import shown
from helpers.lessons.tempting import TEMPTING

ASKED = re.compile(r"^prediction = \.\.\.  # yours: (.+)$", re.MULTILINE)
CHOICES = re.compile(r'(?:one of )?(?:"[^"]+"(?:, | or )?)+')
WITHIN = re.compile(r"within=([\d.e-]+)")
KEY = re.compile(r'tempting="(.+?)"')
WORDS = {  # by the folder of the edition
    "notebooks": ("Your prediction", "Reveal"),
    "zh": ("你的预测", "揭晓"),
}
WISHES = {  # in Chinese; what is not here stays as the code says it
    r"a list of four, each True or False": "四个，每个是 True 或 False",
    r"a type and a number": "类型和数",
    r"a number; 1 would be the floor": "一个数，下限是 1",
    r"a list of numbers.*": "几个数",
    r"(a list of )?four numbers.*": "四个数",
    r"three numbers.*": "三个数",
    r"(a list of )?two numbers.*|a pair of numbers": "两个数",
    r"a number.*|loads per multiply-add": "一个数",
    r"one or more columns, 0 to 7": "一列或几列，0 到 7",
    r"one of the .*": "其中一个",
    r"a pair|two words": "两个词",
    r"letters": "字母",
    r", ([A-Z]) for ": r"，\1 表示 ",
    r"the name of an exception": "异常的名字",
    r", or several(, such as|:) ": "，也可以是几个：",
    r"^such as ": "例如 ",
    r", such as | such as ": "，例如 ",
    r"two of": "两个，取自",
    r"three of": "三个，取自",
    r"one of ": "",
    r"a list of ": "依次取自 ",
    r"a list": "列表",
    r", in this order$": "",
    r", or | or ": " 或 ",
}
CHOICES_IN_CHINESE = {  # beside the words that the code prints
    "yes": "是",
    "no": "否",
    "both": "两者都",
    "neither": "两者都不",
    "none": "都没有",
    "all three": "三者都",
    "an error": "报错",
    "a wrong gradient": "梯度错误",
    "a right gradient": "梯度正确",
    "no gradient": "没有梯度",
    "a gradient": "有梯度",
    "a pass": "通过",
    "a failure": "不通过",
    "first": "第一次",
    "second": "第二次",
    "third": "第三次",
    "right": "正确",
    "wrong": "错误",
    "raises": "报错",
    "weight and bias": "权重和偏置",
    "equal": "相等",
    "close": "接近",
    "other": "不同",
    "smoothed columns": "平滑了列",
    "smoothed rows": "平滑了行",
    "noise": "噪声",
    "the solution": "解本身",
    "1e-12 off": "偏离 1e-12",
    "the slope": "斜率",
    "converges": "收敛",
    "diverges": "发散",
    "mean": "均值",
    "spread": "离散程度",
    "bytes": "字节",
    "loads": "加载",
    "instructions": "指令",
    "nothing": "无",
    "error": "报错",
    "larger": "变大",
    "smaller": "变小",
    "clip": "裁剪",
    "default": "默认",
    "metres": "米",
    "square metres": "平方米",
    "too large": "太大",
    "too small": "太小",
    "falls": "下降",
    "stays": "不变",
    "only gradcheck": "只有 gradcheck",
    "only gradgradcheck": "只有 gradgradcheck",
}
CELL = """<form class="predict" data-answer="{data}">
<b>{title}</b> {fields} <output></output>
</form>"""


def _templates():
    """What is said before there is a prediction, of a right one, and of a wrong one."""
    return [
        _("○ It is {outcome}. Predict before you run: put your answer in place of ..."),
        _("✓ It is {outcome}, as you predicted."),
        _("✗ You predicted {prediction}; it is {outcome}."),
    ]


def _outcome(cell, untouched):
    """What a cell's stored output says that the outcome is, or None."""
    before, after = untouched.split("{outcome}")
    text = "".join("".join(o.get("text", "")) for o in cell.get("outputs", []))
    found = re.search(re.escape(before) + "(.+)" + re.escape(after), text)
    return found and found[1]


def _answer_alone(cell, untouched):
    """Takes "Predict before you run" out of a stored output: on the page, one has."""
    rest = untouched.partition("{outcome}")[2]
    for output in cell.get("outputs", []):
        if "text" in output:
            output["text"] = "".join(output["text"]).replace(rest, rest[0])


def _in_chinese(wish):
    for english, chinese in WISHES.items():
        wish = re.sub(english, chinese, wish)
    return wish


def _label(choice, folder):
    chinese = CHOICES_IN_CHINESE.get(choice) if folder == "zh" else None
    return escape(f"{choice}（{chinese}）" if chinese else choice)


def _labels(text, folder):
    """{what a notebook says: the same in Chinese} of the words in a text."""
    words = CHOICES_IN_CHINESE if folder == "zh" else {}
    return {word: words[word] for word in words if re.search(rf"\b{word}\b", text)}


def _fields(wish, reveal, folder):
    if wish == "True or False":
        choices = ["True", "False"]
    else:
        choices = re.findall('"([^"]+)"', wish) if CHOICES.fullmatch(wish) else []
    buttons = [
        f'<button type="submit" value="{escape(c)}">{_label(c, folder)}</button>'
        for c in choices
    ]
    hint = escape(_in_chinese(wish) if folder == "zh" else wish)
    field = f'<input aria-label="{hint}" autocomplete="off">'
    ask = f'{field} <button type="submit">{reveal}</button> <small>{hint}</small>'
    return " ".join(buttons) or ask


def add_forms(notebook, folder):
    """Puts a form in place of each cell that asks for a prediction."""
    title, reveal = WORDS[folder]
    with speaking(folder):
        untouched, right, wrong = _templates()
        for place, cell in enumerate(notebook["cells"]):
            source = "".join(cell["source"])
            asked = ASKED.search(source) if cell["cell_type"] == "code" else None
            after = [c for c in notebook["cells"][place:] if c["cell_type"] == "code"]
            answers = (
                next(c for c in after if "predicted(" in "".join(c["source"]))
                if asked
                else None
            )
            outcome = answers and _outcome(answers, untouched)
            if not outcome:
                continue
            code = "".join(answers["source"])
            within, key = WITHIN.search(code), KEY.search(code)
            data = {
                "outcome": outcome,
                "within": float(within[1]) if within else 0,
                "right": right,
                "wrong": wrong,
                "labels": _labels(f"{asked[1]} {outcome}", folder),
                "why": {
                    shown(guess): _(why).replace("`", "")
                    for guess, why in TEMPTING.get(key and key[1], {}).items()
                },
            }
            form = CELL.format(
                data=escape(json.dumps(data, ensure_ascii=False)),
                title=title,
                fields=_fields(asked[1], reveal, folder),
            )
            _answer_alone(answers, untouched)
            cell["cell_type"], cell["source"] = "markdown", form
            cell.pop("outputs"), cell.pop("execution_count")
