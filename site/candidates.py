"""Lines for one `backward`, and what the judge says of each: the front page's field."""

import re

import torch
from attempts import data_of, templates
from exercises import speaking
from torch.autograd import Function

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.properties import random
from helpers.lessons.judge.variations import Inputs
from helpers.lessons.language import _

FAR = 800  # exp of it overflows in float64, too


class Softplus(Function):
    @staticmethod
    def forward(ctx, x):  # log(1 + exp(x))
        ctx.save_for_backward(x)
        rest = torch.log1p(torch.exp(-x.abs()))
        return torch.clamp(x, min=0) + rest

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(x)


RIGHT = "grad_output * torch.sigmoid(x)"
WRONG = [  # what people write, with what the judge says; the first stands in the field
    "grad_output * torch.exp(x) / (1 + torch.exp(x))",
    "torch.sigmoid(x)",
    "torch.exp(x) / (1 + torch.exp(x))",
    "grad_output",
    "grad_output * x",
    "-grad_output * torch.sigmoid(x)",
    "grad_output + torch.sigmoid(x)",
    "grad_output * torch.tanh(x)",
    "torch.sigmoid(grad_output)",
    "grad_output * torch.sigmoid(grad_output)",
]
ITSELF = {
    "notebooks": "That is softplus itself, which forward returns: multiply by its slope.",
    "zh": "这是 softplus 本身，也就是 forward 的返回值：要乘的是它的斜率。",
}
WHY = {  # where the judge has numbers alone
    "grad_output * F.softplus(x)": ITSELF,
    "grad_output * torch.log(1 + torch.exp(x))": ITSELF,
    "grad_output * torch.exp(x)": {
        "notebooks": "The denominator is missing: divide by 1 + exp(x).",
        "zh": "缺了分母：还要除以 1 + exp(x)。",
    },
    "grad_output * (torch.exp(x) / 1 + torch.exp(x))": {
        "notebooks": "The denominator needs brackets: exp(x) / (1 + exp(x)).",
        "zh": "分母要加括号：exp(x) / (1 + exp(x))。",
    },
    "grad_output * torch.tanh(x / 2)": {
        "notebooks": "That goes from -1 to 1, and the slope of softplus from 0 to 1.",
        "zh": "它从 -1 变到 1，而斜率应当从 0 变到 1。",
    },
    "grad_output**2 * torch.sigmoid(x)": {
        "notebooks": "grad_output is a factor, once.",
        "zh": "grad_output 只乘一次。",
    },
    "grad_output * torch.sigmoid(x.mean())": {
        "notebooks": "Each element has a slope of its own: leave out the mean.",
        "zh": "每个元素都有自己的斜率，不要取平均。",
    },
    "grad_output * torch.sigmoid(-x)": {
        "notebooks": "That is the slope at -x, which is 1 / (1 + exp(x)).",
        "zh": "这是 -x 处的斜率，也就是 1 / (1 + exp(x))。",
    },
    "grad_output * torch.sigmoid(2 * x)": {
        "notebooks": "That is sigmoid(2x), however it is written: halve the argument.",
        "zh": "不论怎样写，这都是 sigmoid(2x)，请把自变量减半。",
    },
    "grad_output * (1 + torch.exp(-x))": {
        "notebooks": "That is the reciprocal of the slope: divide instead.",
        "zh": "这是斜率的倒数，应该用除法。",
    },
    "grad_output * F.logsigmoid(x)": {
        "notebooks": "That is the logarithm of the slope.",
        "zh": "这是斜率的对数。",
    },
    "grad_output * x * torch.sigmoid(x)": {
        "notebooks": "That is x times the slope: leave out x.",
        "zh": "这是斜率再乘以 x，请去掉 x。",
    },
    "grad_output * F.relu(x)": {
        "notebooks": "That is relu itself, not a slope.",
        "zh": "这是 relu 本身，不是斜率。",
    },
    "(grad_output * torch.sigmoid(x)).sum()": {
        "notebooks": "Each element has a gradient of its own: leave out the sum.",
        "zh": "每个元素都有自己的梯度，不要求和。",
    },
    "grad_output.mean() * torch.sigmoid(x)": {
        "notebooks": "Each element has a grad_output of its own: leave out the mean.",
        "zh": "每个元素都有自己的 grad_output，不要取平均。",
    },
    "grad_output.sum() * torch.sigmoid(x)": {
        "notebooks": "Each element has a grad_output of its own: leave out the sum.",
        "zh": "每个元素都有自己的 grad_output，不要求和。",
    },
    "grad_output * torch.sigmoid(x) * (1 - torch.sigmoid(x))": {
        "notebooks": "That is the slope of sigmoid: one derivative too many.",
        "zh": "这是 sigmoid 的斜率，多求了一次导。",
    },
    "grad_output * (x > 0)": {
        "notebooks": "That is the slope of relu.",
        "zh": "这是 relu 的斜率。",
    },
    "grad_output * torch.sigmoid(x).mean()": {
        "notebooks": "Each element has a slope of its own: leave out the mean.",
        "zh": "每个元素都有自己的斜率，不要取平均。",
    },
    "grad_output * torch.sigmoid(x).sum()": {
        "notebooks": "Each element has a slope of its own: leave out the sum.",
        "zh": "每个元素都有自己的斜率，不要求和。",
    },
}
NONE = {
    "notebooks": "with None, `x` gets no gradient.",
    "zh": "返回 None，`x` 就得不到梯度。",
}
SUCCESS = {  # no more than the page has seen
    "notebooks": "Right, also at x = 100 in float32. It was checked at {count} inputs in "
    "float64, out to about ±{far}.",
    "zh": "在 x = 100 处它是 1，在 float32 下也是；在 {count} 个 float64 输入上"
    "都正确，最远取到 ±{far} 附近。",
}
OVERFLOWS = {  # and the gradient is right all the same
    "notebooks": "Right, also at x = 100 in float32. It was checked at {count} inputs in "
    "float64, out to about ±{far}. Far out, a step is inf: there the second derivative "
    "may be nan.",
    "zh": "在 {count} 个 float64 输入上都正确，最远取到 ±{far} 附近。离 0 很远处有一步溢出为 inf，"
    "所以再求一次导，那里可能得到 nan。",
}
BRANCHES = {  # of a line whose own derivative PyTorch may get wrong
    "notebooks": "Right, also at x = 100 in float32. It was checked at {count} inputs in "
    "float64, out to about ±{far}. Whether your line can be differentiated again, this page "
    "cannot see.",
    "zh": "在 x = 100 处它是 1，在 float32 下也是；在 {count} 个 float64 输入上都正确，最远取到 "
    "±{far} 附近。你这一行能不能再求一次导，本页看不出来。",
}


def cases():
    """(inputs, grad_output, where, a key of the sentences) in the order of looking.

    Near 800 the judge sees a second derivative that is nan, as where exp(x) is infinite;
    near -800 that of its own logaddexp is nan, and nothing is compared.
    """
    x, g = random(4, 5, seed=1), random(4, 5, seed=2)
    near = _("at numbers near {far:g}")
    # On both sides up to 700, where exp(x) is still finite, and closest together near 0.
    side = (700 * torch.linspace(0.1, 1, 40, dtype=x.dtype) ** 3).round(decimals=2)
    # From 20 on, PyTorch's own slope is 1.
    side = torch.cat([side[side < 20], side.new_tensor([19.9]), side[side > 23]])
    yield x, torch.ones_like(x), "", "value"
    yield x, g, "", "value with a grad_output"
    yield torch.zeros_like(x), g, _("at 0"), "value"
    yield side, torch.ones_like(side), "", "value"
    yield -side, torch.ones_like(side), "", "value"
    yield FAR + x, g, near.format(far=FAR), "value"
    yield x - FAR, g, near.format(far=-FAR), "value"
    yield x, 100 * g, "", "value with a grad_output"


def without_numbers(message):
    """What the judge says, but for numbers of inputs that are not the page's."""
    numbers = re.escape(_("At {at} it is {given}, but {right} is right."))
    return re.sub(re.sub(r"\\{\w+\\}", ".+?", numbers) + " ?", "", message)


def front_attempt(folder):
    """What the page needs to judge a line, as `attempts.data_of_drill` gives it."""
    given = Exercise(
        number=f"front.{folder}",
        name="Softplus",
        reference=Softplus,
        stub={RIGHT: "..."},
        like=lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        inputs=(Inputs(shapes="...", far=FAR),),
        order=1,
        success=SUCCESS[folder],
        hints=("log(1 + exp(x))", "sigmoid"),
        explanation="sigmoid",
    )
    names = ["grad_output", "x"]
    with speaking(folder):
        wrong = []
        for line in WRONG:
            verdict = given.judge(given.made_of(given.edited({RIGHT: line})))
            assert verdict.mark == "✗", line
            cause = without_numbers(verdict.message)
            for _x, _g, where, _key in cases():  # which is said before it
                cause = (
                    re.sub(f"^{re.escape(where)}[:：] ?", "", cause) if where else cause
                )
            wrong.append({"line": line, "names": names, "why": cause})
        for line, said in WHY.items():
            wrong.append({"line": line, "names": names, "why": said[folder]})
        seen = [
            {
                "given": [data_of(g), data_of(x)],
                "expected": data_of(g * torch.sigmoid(x)),
                "where": where,
                "sentence": sentence,
            }
            for x, g, where, sentence in cases()
        ]
        count = sum(x.numel() for x, *_others in cases())
        return {
            "number": "",
            "what": _("the gradient"),
            "names": names,
            "shown": ["x", "grad_output"],
            "arriving": ["grad_output"],
            "cases": seen,
            "wrong": wrong,
            "right": SUCCESS[folder].format(count=count, far=FAR),
            "overflows": OVERFLOWS[folder].format(count=count, far=FAR),
            "branches": BRANCHES[folder].format(count=count, far=FAR),
            "words": templates(folder) | {"none": NONE[folder]},
        }
