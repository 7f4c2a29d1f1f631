"""The front page's second field: a gate that forgets a path, and what the doctor says of lines."""

import html
import inspect
import json
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from attempts import FIELD, data_of, templates
from exercises import speaking
from torch.autograd import Function

from helpers.doctor import examine
from helpers.lessons.judge.properties import random
from helpers.lessons.judge.source import made_of


class SwiGLU(Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        act = gate * torch.sigmoid(gate)
        return act * up

    @staticmethod
    def backward(ctx, grad_output):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        d_act = grad_output * up
        d_gate = d_act * s
        return d_gate, grad_output * gate * s


NAME = "d_gate ="
WRONG = [  # what people write; the first stands in the field
    "d_act * s",
    "d_act * gate * s * (1 - s)",
    "d_act * s * (1 - s)",
    "d_act",
    "d_act * up",
    "d_act * gate",
    "d_act * gate * s",
    "-d_act * s",
    "grad_output * s",
    "grad_output * (s + gate * s * (1 - s))",
    "d_act * (s + s * (1 - s))",
    "d_act * (s + gate * (1 - s))",
    "d_act * (s + gate * s * (1 + s))",
    "d_act * (s - gate * s * (1 - s))",
    "d_act * (1 + gate * (1 - s))",
    "d_act * s * (1 + gate * s)",
    "d_act * (s + gate * s)",
    "-d_act * (s + gate * s * (1 - s))",
    "2 * d_act * (s + gate * s * (1 - s))",
    "d_act * s * s",
    "d_act + gate * s * (1 - s)",
    "d_act * s + gate * s * (1 - s)",
    "s + gate * s * (1 - s)",
]
RIGHT = "d_act * (s + gate * s * (1 - s))"
FURTHER = re.compile(r"\n(?: {4}| {8})(?=\S)")  # how a report's line goes on
SAID = {
    "notebooks": {
        "what": "`d_gate`",
        "right": "Right at the numbers that were tried: both uses of `gate` count.",
        "why": "See the doctor's report.",
        "forgets": {
            "d_act * s": "`gate` stands in `act` twice: what comes through `sigmoid(gate)` is "
            "missing.",
            "d_act * gate * s * (1 - s)": "`gate` stands in `act` twice: what comes through the "
            "factor `gate` is missing.",
        },
        "other": "Only common lines have their report here; lines 16 and 17 print it for any line."
        " The report on the first one:",
        "examined": "The doctor, at inputs of its own, on",
        "same": "The doctor, on a line that gives the same:",
        "act": "`act` is a variable of `forward`, which has not saved it.",
    },
    "zh": {
        "what": "`d_gate` ",
        "right": "在试过的数上都正确：两处 `gate` 都算进去了。",
        "why": "请看梯度医生的报告。",
        "forgets": {
            "d_act * s": "`act` 里有两处 `gate`：经过 `sigmoid(gate)` 的那部分梯度还没有算进去。",
            "d_act * gate * s * (1 - s)": "`act` 里有两处 `gate`：经过因子 `gate` "
            "的那部分梯度还没有算进去。",
        },
        "other": "这里只存有常见写法的报告，其他写法的报告可以用第 16、17 行打印。"
        "下面是最初那一行的报告：",
        "examined": "梯度医生用自己的输入检查",
        "same": "梯度医生检查了结果相同的一行：",
        "act": "`act` 是 `forward` 里的变量，没有保存下来。",
    },
}


def _code(line):
    return inspect.getsource(SwiGLU).replace(f"{NAME} {WRONG[0]}", f"{NAME} {line}")


def _report(line):
    """(before the change that it proposes, the change, after it), each as HTML."""
    names = {"torch": torch, "Function": Function}  # its lines are counted from 1
    gate = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(3, 4)
    function = made_of(_code(line), names, "SwiGLU")
    report = examine(function.apply, gate.requires_grad_(), gate.cos().detach())
    lines = [*map(_as_html, FURTHER.sub(" ", str(report)).splitlines())]
    begins = report.findings and report.findings[0].change.partition("`")[0]
    whole = len(lines)
    at = next((n for n in range(whole) if begins and begins in lines[n]), whole)
    parts = slice(at), slice(at, at + 1), slice(at + 1, None)
    return ["".join(lines[part]) for part in parts]


def _as_html(text):
    """A line of a report, which wraps at any width, further in than it begins."""
    words = text.lstrip()
    begin = f'<samp style="--indent: {len(text) - len(words)}ch">'
    return f"{begin}{html.escape(words, quote=False)}</samp>"


def _case(seed, times=1):
    gate, up, grad_output = (times * random(2, 3, seed=seed + n) for n in range(3))
    s = torch.sigmoid(gate)
    d_act = grad_output * up
    right = d_act * (s + gate * s * (1 - s))
    given = [data_of(value) for value in (d_act, s, gate, up, grad_output)]
    return {"given": given, "expected": data_of(right)}


def gate_attempt(folder):
    """What the page needs to judge a line, as `attempts.data_of_drill` gives it."""
    names = ["d_act", "s", "gate", "up", "grad_output"]
    said = SAID[folder]
    with speaking(folder):
        return {
            "number": "",
            "what": said["what"],
            "names": names,
            "cases": [_case(1), _case(5), _case(9, times=20)],
            "wrong": [
                {"line": w, "names": names, "why": said["forgets"].get(w, said["why"])}
                for w in WRONG
            ],
            "absent": {"act": said["act"]},
            "shown": ["gate", "up", "grad_output"],
            "arriving": ["d_act", "grad_output"],
            "right": said["right"],
            "words": templates(folder),
        }


def gate(folder, highlighted):
    """What the template needs: the code around the field, the field, a report of each line.

    highlighted: of a text, its language and the number of its first line, the HTML.
    """
    before, after = _code("").split(f"        {NAME} \n")
    lines = [*WRONG, RIGHT]
    # The threads of OpenMP do not survive a fork: a worker that used them would wait.
    alone = {"initializer": torch.set_num_threads, "initargs": (1,)}
    pool = ProcessPoolExecutor(mp_context=get_context("fork"), **alone)
    with speaking(folder), pool:
        reports = [*zip(lines, pool.map(_report, lines), strict=True)]
    called = (
        "\nfrom helpers.doctor import examine\nprint(examine(SwiGLU.apply, gate, up))"
    )
    return {
        "asked": json.dumps(gate_attempt(folder), ensure_ascii=False),
        "before": highlighted(before, first=1),
        "line": before.count("\n") + 1,
        "after": highlighted(after + called, first=before.count("\n") + 2),
        "name": NAME,
        "field": FIELD.format(attributes='id="gate"', line=WRONG[0]),
        "other": SAID[folder]["other"],
        "examined": SAID[folder]["examined"],
        "same": SAID[folder]["same"],
        "reports": reports,
    }
