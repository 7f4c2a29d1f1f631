"""Exercises of chapter 06: custom Modules."""

import copy
import operator
import re

import torch
from torch import nn

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.numbers import alike
from helpers.lessons.judge.properties import each, random
from helpers.lessons.judge.variations_of_layers import in_step_with
from helpers.lessons.language import N_, _, followed


class Scale(nn.Module):
    def __init__(self, features, bias=True):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))
        if bias:
            self.bias = nn.Parameter(torch.zeros(features))
        else:
            self.register_parameter("bias", None)

    def forward(self, x):
        y = self.scale * x
        return y if self.bias is None else y + self.bias


def _reserves_the_name(attempt):
    layer = attempt(3, bias=False)
    try:
        layer.bias = torch.zeros(3)
    except TypeError:
        return
    yield _(
        "after Scale(3, bias=False), `bias` accepts a tensor that is not an "
        "nn.Parameter: the name is not reserved."
    )


EXERCISE_1 = Exercise(
    number="6.1",
    reference=Scale,
    wrong=[
        ({"super().__init__()": "pass"}, "before Module.__init__() call"),
        (
            {
                "nn.Parameter(torch.ones(features))": "torch.ones(features)",
                "nn.Parameter(torch.zeros(features))": "torch.zeros(features)",
            },
            "trains the parameters []",
        ),
        (
            {'self.register_parameter("bias", None)': "self.bias = bias"},
            "`bias` is False; None is",
        ),
        (
            {'self.register_parameter("bias", None)': "self.bias = None"},
            "the name is not reserved",
        ),
        ({"self.scale * x": "self.scale.data * x"}, "no gradient reaches `scale`"),
    ],
    properties=[
        in_step_with(
            Scale,
            (
                "Scale(3)",
                "Scale(5)",
                "Scale(1)",
                "Scale(3, True)",
                "Scale(4, bias=False)",
            ),
            shapes=((2,), (), (3,), (1,), (4, 2), (0,)),
        ),
        _reserves_the_name,
    ],
    success="the name `bias` is always reserved, and optimizers find what they "
    "should train.",
    hints=(
        "Which kind of attribute does an optimizer find?",
        'Without a bias: self.register_parameter("bias", None).',
        "forward tests self.bias, not bias.",
    ),
    explanation="register_parameter with None reserves the name, so that `module.bias` "
    "is None instead of an AttributeError. No Function is needed: autograd "
    "knows the derivative of a product.",
)


class Center(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        if self.training:
            self.mean += 0.1 * (x.detach().mean(0) - self.mean)
        return x - self.mean


EXERCISE_2 = Exercise(
    number="6.2",
    reference=Center,
    wrong=[
        (
            {'register_buffer("mean", ': "mean = ("},
            "its state_dict has [], but ['mean']",
        ),
        (
            {"self.mean +=": "mean = self.mean +", "x - self.mean": "x - mean"},
            "afterwards, `mean` is 0.02056 at [2], but",
        ),
        (
            {'register_buffer("mean", ': "mean = nn.Parameter("},
            "it trains the parameters ['mean'], but [] are asked for",
        ),
        (
            {"        return x - self.mean": "            return x - self.mean"},
            "in evaluation: it returns None",
        ),
    ],
    properties=[
        in_step_with(
            Center, ("Center(3)", "Center(5)", "Center(1)"), shapes=((2,), (3,), (1,))
        ),
    ],
    success="remembered, moved and saved, but not trained; and unchanged in "
    "evaluation.",
    hints=(
        "Which kind of tensor is saved and moved, but not trained?",
        "self.training tells you which of the two modes is on.",
        "Change that tensor in place, by a batch mean that has no history.",
    ),
    explanation="A buffer is saved and moved, but not trained. It changes in place, so "
    "that it stays the same tensor, and the batch mean is detached, so that "
    "no history grows.",
)


class Dense(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(in_features, out_features))
        self.offset = nn.Parameter(torch.zeros(out_features))
        self.register_load_state_dict_pre_hook(self.translate)

    @staticmethod
    def translate(module, state_dict, prefix, *_):
        if prefix + "weight" in state_dict:
            weight = state_dict.pop(prefix + "weight")
            state_dict[prefix + "kernel"] = weight.t()
            bias = state_dict.pop(prefix + "bias", torch.zeros(len(weight)))
            state_dict[prefix + "offset"] = bias

    def forward(self, x):
        return x @ self.kernel + self.offset


def _alone(layer):
    return layer


def _around(layer):
    layer.norm = nn.LayerNorm(5)
    return layer


LINEARS = {  # sizes, what both modules are put into, whether there is a bias
    N_("alone"): ((3, 5), _alone),
    N_("with a square weight"): ((3, 3), _alone),
    N_("inside nn.Sequential"): ((3, 5), nn.Sequential),
    N_("around a layer `norm` with a weight and a bias of its own"): ((3, 5), _around),
    N_("without a bias"): ((3, 5), _alone, False),
    N_("inside nn.Sequential, without a bias"): ((3, 2), nn.Sequential, False),
}


def _loads_old_and_new(attempt):
    yield from each(LINEARS, _loads)(attempt)
    try:
        attempt(3, 5).load_state_dict({"bias": torch.ones(5)})
    except RuntimeError:
        return
    yield _(
        "a checkpoint of a bias alone loads; without `weight` or `kernel` it should "
        "be refused."
    )


def _loads(attempt, size, wrap, bias=True):
    """What is wrong where it loads the checkpoint of such a Linear."""
    dense, linear = attempt(*size), nn.Linear(*size, bias=bias)
    nn.init.ones_(dense.offset)  # loading has to overwrite it
    module, parameters = wrap(dense), list(dense.parameters())
    state = wrap(linear).state_dict()
    before = copy.deepcopy(state)
    try:
        module.load_state_dict(state)
    except Exception as error:
        said = _in_one_line(error)
        hook = None
        if dense._load_state_dict_pre_hooks and re.search(
            '"kernel".* Unexp.*"weight"', said
        ):
            hook = _(
                "(The hook ran, but its dict still has the old keys: change that dict.)"
            )
        wrong = _("a checkpoint of nn.Linear does not load: {said}.", said=said)
        yield followed(wrong, hook)
    if not alike(state, before):
        yield _("loading has changed the caller's state_dict.")
    if not all(map(operator.is_, parameters, dense.parameters())):
        yield _(
            "loading replaces the parameters; an optimizer would keep the old ones."
        )
    x = random(2, 3).float()
    if not alike(dense(x), linear(x), 1e-6):
        yield _("it loads, but its output differs from the output of the nn.Linear.")
    twin = copy.deepcopy(module)
    try:
        twin.load_state_dict(module.state_dict())
    except Exception as error:
        message = _in_one_line(error)
        yield _("its own checkpoint no longer loads: {message}.", message=message)
    for name, parameter in module.named_parameters():
        if not torch.equal(twin.get_parameter(name), parameter):
            yield _(
                "its own checkpoint loads, but `{name}` comes back with other values.",
                name=name,
            )


def _in_one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"


# A bias that the checkpoint lacks is taken from the module.
ALWAYS = {
    "            bias =": "        bias =",
    "torch.zeros(len(weight))": "torch.zeros_like(module.offset)",
    '            state_dict[prefix + "offset"]': '        state_dict[prefix + "offset"]',
}
EXERCISE_3 = Exercise(
    number="6.3",
    reference=Dense,
    stub="""class Dense(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(in_features, out_features))
        self.offset = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return x @ self.kernel + self.offset""",
    wrong=[
        (
            {
                'if prefix + "weight" in state_dict': 'state_dict["unused"] = 0\n        if False'
            },
            "Missing key(s) in state_dict",
        ),
        (
            {'if prefix + "weight" in state_dict': "if True"},
            "its own checkpoint no longer loads: KeyError",
        ),
        ({"weight.t()": "weight.t_()"}, "changed the caller's state_dict"),
        (
            ALWAYS
            | {'[prefix + "offset"] = bias': '.setdefault(prefix + "offset", bias)'},
            "lacks `offset`",
        ),
        (
            ALWAYS,
            "alone: its own checkpoint loads, but `offset` comes back",
        ),
    ],
    properties=[
        _loads_old_and_new,
        in_step_with(
            Dense, ("Dense(3, 5)", "Dense(4, 4)"), shapes=((2,), (), (3,), (4, 2), (0,))
        ),
    ],
    success="checkpoints of both kinds load, wherever the module is in a model.",
    hints=(
        "register_load_state_dict_pre_hook, as in the section on renaming.",
        "In a larger model, the keys begin with a prefix, which is the third "
        "argument of the hook, after the module and the dict.",
        "The kernel is the transposed weight, and a missing bias counts as zeros.",
    ),
    explanation="The hook renames keys only if the old name is there, so the module's "
    "own checkpoints load unchanged.",
)
