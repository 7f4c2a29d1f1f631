"""Exercises of chapter 06: custom Modules."""

import copy

import torch
from torch import nn

from helpers.lessons.checking import Exercise
from helpers.lessons.compare import finding


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


class Center(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        if self.training:
            self.mean += 0.1 * (x.detach().mean(0) - self.mean)
        return x - self.mean


class Dense(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(in_features, out_features))
        self.offset = nn.Parameter(torch.zeros(out_features))
        self.register_load_state_dict_pre_hook(self.translate)

    @staticmethod
    def translate(module, state_dict, prefix, *_):
        if prefix + "weight" in state_dict:
            state_dict[prefix + "kernel"] = state_dict.pop(prefix + "weight").t()
            state_dict[prefix + "offset"] = state_dict.pop(prefix + "bias")

    def forward(self, x):
        return x @ self.kernel + self.offset


def _sample():
    return torch.tensor([[0.5, -1.0, 2.0], [1.5, 3.0, -0.5]], dtype=torch.float64)


def _check_scale(attempt):
    for bias, names in [(True, ["scale", "bias"]), (False, ["scale"])]:
        call = f"Scale(3, bias={bias})"
        module = attempt(3, bias=bias).double()
        found = [name for name, _ in module.named_parameters()]
        if sorted(found) != sorted(names):
            return f"{call} has the parameters {found}, but {names} are asked for."
        for name, start in [("scale", 1.0), ("bias", 0.0)][: len(names)]:
            parameter = getattr(module, name)
            if parameter.shape != (3,) or not (parameter == start).all():
                return f"`{name}` of {call} is {parameter.tolist()} at first, not [{start}] * 3."
        if not bias and getattr(module, "bias", 0) is not None:
            return f"`bias` of {call} must exist and be None."
        with torch.no_grad():
            for number, parameter in enumerate(module.parameters(), start=2):
                parameter.copy_(number * torch.tensor([1.0, -2.0, 0.5]))

        def reference(x, module=module, bias=bias):
            y = module.scale * x
            return y + module.bias if bias else y

        wrong = finding(module, reference, [_sample()])
        if wrong:
            return f"{call}: {wrong}"
    return None


def _check_center(attempt):
    module = attempt(3).double()
    if [name for name, _ in module.named_parameters()]:
        return "the mean is a parameter, so an optimizer would train it. It should be a buffer."
    if list(module.state_dict()) != ["mean"]:
        return f"its state_dict has {list(module.state_dict())}, but a buffer `mean` is asked for."
    if module.mean.dtype != torch.float64:
        return "`mean` does not follow .double()."
    mean = torch.zeros(3, dtype=torch.float64)
    for factor in (1.0, -2.0):
        x = (factor * _sample()).requires_grad_()
        mean = mean + 0.1 * (x.detach().mean(0) - mean)
        output = module(x)
        if not torch.allclose(module.mean, mean):
            return (
                f"after a batch in training, `mean` is {_rounded(module.mean)}, but "
                f"{_rounded(mean)} is right."
            )
        if module.mean.requires_grad:
            return "`mean` has a history, which grows with every batch. Cut it off with detach."
        if not torch.allclose(output, x - mean):
            return "in training, the output is not x minus the mean after the update."
        (gradient,) = torch.autograd.grad(output.sum(), x)
        if not torch.allclose(gradient, torch.ones_like(x)):
            return "a gradient flows through the mean; that of x should be 1 everywhere."
    module.eval()
    if not torch.allclose(module(_sample() + 5), _sample() + 5 - mean):
        return "in evaluation, the output is not x minus the mean."
    if not torch.allclose(module.mean, mean):
        return "in evaluation, the mean has changed."
    return None


def _check_dense(attempt):
    checkpoint = nn.Linear(3, 5)
    x = _sample().float()
    for wrap, where in [(lambda m: m, "alone"), (nn.Sequential, "inside nn.Sequential")]:
        theirs, module = wrap(checkpoint), wrap(attempt(3, 5))
        state = theirs.state_dict()
        names = list(state)
        try:
            module.load_state_dict(state)
        except Exception as error:
            return f"{where}, a checkpoint of nn.Linear does not load: {_in_one_line(error)}"
        if list(state) != names:
            return f"{where}, loading has changed the caller's state_dict."
        output = module(x)
        if output.shape != (2, 5) or not torch.allclose(output, theirs(x), atol=1e-6):
            return f"{where}, it loads, but its output is not that of the nn.Linear."
        fresh = copy.deepcopy(module)
        try:
            fresh.load_state_dict(module.state_dict())
        except Exception as error:
            return f"{where}, its own checkpoint does not load any more: {_in_one_line(error)}"
    if sorted(dict(attempt(3, 5).named_parameters())) != ["kernel", "offset"]:
        return "its parameters are no longer called kernel and offset."
    return None


def _in_one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _rounded(tensor):
    return [round(value, 4) for value in tensor.tolist()]


EXERCISES = [
    Exercise(
        number="6.1",
        name="Scale",
        stub="class Scale(nn.Module): ...",
        reference=Scale,
        finding=_check_scale,
        success="the name `bias` exists in both cases, and optimizers find what is to be trained.",
        hints=(
            "super().__init__() first. Then nn.Parameter(torch.ones(features)).",
            'Without a bias: self.register_parameter("bias", None).',
            "forward asks self.bias, not bias.",
        ),
        explanation="register_parameter with None reserves the name, so that `module.bias` is "
        "None instead of an AttributeError. No Function is needed: autograd knows the product.",
    ),
    Exercise(
        number="6.2",
        name="Center",
        stub="class Center(nn.Module): ...",
        reference=Center,
        finding=_check_center,
        success="kept, moved and saved, but not trained; and still in evaluation.",
        hints=(
            'self.register_buffer("mean", torch.zeros(features))',
            "self.training tells which of the two modes is on.",
            "Change the buffer in place, with a batch mean that is detached from x.",
        ),
        explanation="In place, so that the buffer stays the same tensor; detached, so that the "
        "history of all batches does not grow behind it.",
    ),
    Exercise(
        number="6.3",
        name="Dense",
        stub="""class Dense(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(in_features, out_features))
        self.offset = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return x @ self.kernel + self.offset""",
        reference=Dense,
        finding=_check_dense,
        success="both generations load, wherever the module stands.",
        hints=(
            "register_load_state_dict_pre_hook, as in the section on renaming.",
            "The keys in a larger model begin with a prefix, which the hook gets.",
            "The kernel is the transposed weight.",
        ),
        explanation="The hook renames only if the old name is there, so the module's own "
        "checkpoints pass untouched.",
    ),
]
