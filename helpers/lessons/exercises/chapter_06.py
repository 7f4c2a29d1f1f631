"""Exercises of chapter 06: custom Modules."""

import copy
import re

import torch
from torch import nn

from helpers.lessons.exercise import Exercise
from helpers.lessons.judging import difference
from helpers.lessons.requirements import at

SAMPLE = torch.tensor([[0.5, -1.0, 2.0], [1.5, 3.0, -0.5]], dtype=torch.float64)


def _no_tensor_of(dtype, output):
    if output is None:
        return "it returns None. Is a `return` missing?"
    if not isinstance(output, torch.Tensor):
        return f"it returns a {type(output).__name__}, not a tensor."
    return None if output.dtype == dtype else f"the output is {output.dtype}, but {dtype} is right."


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


def _scales(attempt):
    for call, names in (
        ("Scale(3)", ["scale", "bias"]),
        ("Scale(3, bias=True)", ["scale", "bias"]),
        ("Scale(3, bias=False)", ["scale"]),
    ):
        module = eval(call, {"Scale": attempt})
        found = [name for name, p in module.named_parameters() if p.requires_grad]
        if sorted(found) != sorted(names):
            yield f"{call} trains the parameters {found}, but {names} are asked for."
        for name, start in [("scale", 1.0), ("bias", 0.0)][: len(names)]:
            parameter = getattr(module, name)
            if parameter.shape != (3,) or not (parameter == start).all():
                given = parameter.tolist()
                yield f"`{name}` of {call} should be {[start] * 3} at first, got {given}."
        if len(names) == 1 and getattr(module, "bias", 0) is not None:
            yield f"`bias` of {call} must exist and be None."
        if "bias" not in module._parameters:
            yield (
                f"`bias` of {call} is None, but the name is not reserved for a parameter: a tensor "
                "assigned later is taken in silence."
            )
        where = f"{call}, for a float32 input of shape (2, 3)"
        try:
            output = module(torch.ones(2, 3))
        except Exception as error:
            yield f"{where}: it raises {_in_one_line(error)}."
        yield at(where, _no_tensor_of(torch.float32, output))
        module.double()
        with torch.no_grad():
            for number, parameter in enumerate(module.parameters(), start=2):
                parameter.copy_(number * torch.tensor([1.0, -2.0, 0.5]).double() / 3)

        def reference(x, module=module):
            y = module.scale * x
            return y if module.bias is None else y + module.bias

        sample = SAMPLE / 3  # in thirds, so that float32 shows
        for x in (sample, sample[0], torch.stack([sample, -sample])):
            wrong = difference(module, reference, [x])
            cut = re.search(r"gradient of `(scale|bias)` is None", wrong or "")
            if cut:
                yield (
                    f"`{cut[1]}` is cut off, as by .data or detach: the output of {call} depends "
                    "on it, but no gradient reaches it."
                )
            yield at(f"{call}, for an input of shape {tuple(x.shape)}", wrong)


EXERCISE_1 = Exercise(
    number="6.1",
    name="Scale",
    reference=Scale,
    stub="class Scale(nn.Module): ...",
    wrong=[
        ("super().__init__()", "pass", "before Module.__init__() call"),
        ("nn.Parameter(torch.ones(features))", "torch.ones(features)",
         "nn.Parameter(torch.zeros(features))", "torch.zeros(features)",
         "trains the parameters []"),
        ("if bias:", "if True:", "Scale(3, bias=False) trains the parameters ['scale', 'bias']"),
        ('self.register_parameter("bias", None)', "pass",
         "y if self.bias is None else y + self.bias", 'y + getattr(self, "bias", 0)',
         "must exist and be None"),
        ('self.register_parameter("bias", None)', "self.bias = None",
         "is None, but the name is not reserved for a parameter"),
        ("self.bias is None", "True", "Scale(3), for an input of shape (2, 3): `forward`"),
        ("torch.ones", "torch.zeros", "at first"),
        ("torch.ones(features)", "torch.ones(features), requires_grad=False",
         "trains the parameters ['bias']"),
        ("y = self", "if x.dim() != 2: return x\n        y = self", "for an input of shape (3,)"),
        ("nn.Module", "object", "must derive from nn.Module"),
        ("return y if self.bias is None else y + self.bias", "",
         "returns None. Is a `return` missing?"),
        ("return y if self.bias is None else y + self.bias", "return y, self.bias",
         "a tuple, not a tensor"),
        ("self.scale * x", "self.scale.data * x", "`scale` is cut off"),
        ("torch.ones(features)", "torch.ones(1)", "[1.0, 1.0, 1.0] at first, got [1.0]."),
        ("torch.ones(features)", "torch.ones(features, 1)", "at first, got [[1.0], [1.0], [1.0]]."),
        ("self.scale * x", "self.scale[:, None] * x",
         "Scale(3), for a float32 input of shape (2, 3): it raises RuntimeError: The size"),
        ("y + self.bias", "y + self.bias.detach()", "`bias` is cut off"),
        ("self.scale * x", "self.scale * x.float()", "in float32?"),
        ("y if self.bias is None else y + self.bias",
         "(y if self.bias is None else y + self.bias).float()",
         "the output is torch.float32, but torch.float64 is right"),
    ],
    properties=[_scales],
    success="the name `bias` exists in both cases, and optimizers find what is to be trained.",
    hints=(
        "Which kind of attribute does an optimizer find?",
        'Without a bias: self.register_parameter("bias", None).',
        "forward asks self.bias, not bias.",
    ),
    explanation="register_parameter with None reserves the name, so that `module.bias` is "
    "None instead of an AttributeError. No Function is needed: autograd knows the product.",
)  # fmt: skip


class Center(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        if self.training:
            self.mean += 0.1 * (x.detach().mean(0) - self.mean)
        return x - self.mean


def _centers(attempt):
    module = attempt(3).double()
    if "mean" in dict(module.named_parameters()):
        yield "the mean is a parameter. It should be a buffer: kept, but not trained."
    if "mean" in dict(module.named_buffers()) and "mean" not in module.state_dict():
        yield "`mean` is registered with persistent=False, so it is not saved."
    if isinstance(vars(module).get("mean"), torch.Tensor):
        yield "`mean` is a plain attribute; register_buffer makes it a buffer."
    if list(module.state_dict()) != ["mean"]:
        found = list(module.state_dict())
        yield f"its state_dict has {found}, but the buffer `mean` alone is asked for."
    if module.mean.dtype != torch.float64:
        yield "`mean` does not follow .double()."
    mean = torch.zeros(3, dtype=torch.float64)
    for factor in (1.0, -2.0):
        x = (factor * SAMPLE).requires_grad_()
        before, old = x.detach().clone(), mean
        mean = mean + 0.1 * (before.mean(0) - mean)
        output = module(x)
        yield at("in training", _no_tensor_of(torch.float64, output))
        if not torch.equal(x, before):
            yield "it changes its input in place."
        if module.mean.shape != (3,):
            yield f"after a batch, `mean` has shape {tuple(module.mean.shape)}; (3,) is right."
        if module.mean.dtype != torch.float64:
            yield f"after a batch, `mean` is {module.mean.dtype}, but torch.float64 before."
        if not torch.allclose(module.mean, mean):
            stays = " (It never moved: is the new value assigned to self.mean?)"
            yield (
                f"after a batch in training, `mean` is {_rounded(module.mean)}, but "
                f"{_rounded(mean)} is right." + stays * torch.equal(module.mean, old)
            )
        if module.mean.requires_grad:
            yield "`mean` has a history, which grows with every batch. Cut it off with detach."
        if torch.allclose(output, x - old):
            yield "in training it subtracts the mean as it was before the update."
        if not torch.allclose(output, x - mean):
            yield "in training, the output is not x minus the mean after the update."
        if not output.requires_grad:
            yield "the output is cut off from x: no gradient can reach it."
        (gradient,) = torch.autograd.grad(output.sum(), x)
        if not torch.allclose(gradient, torch.ones_like(x)):
            yield "a gradient flows through the mean; that of x should be 1 everywhere."
    for where, with_grad in (("for ordinary data", True), ("under torch.no_grad()", False)):
        mean = mean + 0.1 * (SAMPLE.mean(0) - mean)
        with torch.set_grad_enabled(with_grad):
            module(SAMPLE)
        if not torch.allclose(module.mean, mean):
            yield (
                f"after a batch in training, {where}, `mean` is {_rounded(module.mean)}, but "
                f"{_rounded(mean)} is right. Ask self.training alone."
            )
    if module.mean.is_inference():
        yield (
            "`mean` has become an inference tensor, so no checkpoint can be loaded into it: use "
            "no_grad or detach."
        )
    module.eval()
    for x in (SAMPLE + 5, (SAMPLE + 5).requires_grad_()):
        output = module(x)
        yield at("in evaluation", _no_tensor_of(torch.float64, output))
        if not torch.allclose(module.mean, mean):
            yield "in evaluation the mean has changed. Ask self.training."
        if not torch.allclose(output, x - mean):
            yield "in evaluation, the output is not x minus the mean."
    module.load_state_dict({"mean": 2 * mean})
    if not torch.allclose(module(x), x - 2 * mean):
        yield "it does not subtract the mean of a checkpoint that was loaded."


def _rounded(tensor):
    return [round(value, 4) for value in tensor.tolist()]


EXERCISE_2 = Exercise(
    number="6.2",
    name="Center",
    reference=Center,
    stub="class Center(nn.Module): ...",
    wrong=[
        ('register_buffer("mean", ', "mean = (", "`mean` is a plain attribute"),
        ("torch.zeros(features)", "torch.zeros(features), persistent=False",
         "`mean` is registered with persistent=False, so it is not saved"),
        ('"mean", torch.zeros(features)', '"running", torch.zeros(features)',
         "self.mean", "self.running", "its state_dict has ['running'], but the buffer `mean`"),
        ("self.mean +=", "mean = self.mean +", "x - self.mean", "x - mean",
         "It never moved: is the new value assigned to self.mean?"),
        ("self.mean += 0.1 * (x.detach().mean(0) - self.mean)", "with torch.inference_mode():\n"
         "                self.mean = self.mean + 0.1 * (x.detach().mean(0) - self.mean)",
         "`mean` has become an inference tensor"),
        ('register_buffer("mean", ', "mean = nn.Parameter(", "is a parameter"),
        ("self.mean +=", "self.mean = self.mean +", "x.detach()", "x", "has a history"),
        ("return x - self.mean", "if self.training:\n            self.last = self.mean.clone()\n"
         "        return x - self.last", "the mean of a checkpoint that was loaded"),
        ("if self.training", "output = x - self.mean\n        if self.training",
         "return x - self.mean", "return output", "as it was before the update"),
        ("if self.training", "if True", "Ask self.training"),
        ("if self.training", "if x.requires_grad", "in training, for ordinary data, `mean` is"),
        ("if self.training", "if self.training and x.requires_grad", "for ordinary data, `mean`"),
        ("if self.training", "if self.training and torch.is_grad_enabled()",
         "in training, under torch.no_grad(), `mean` is"),
        ("if self.training", "if self.training or x.requires_grad", "the mean has changed"),
        ("self.mean +=", "self.mean = self.mean +", "mean(0)", "mean(0, keepdim=True)",
         "has shape (1, 3)"),
        ("return x - self.mean", "", "Is a `return` missing"),
        ("mean(0)", "mean()", "after a batch in training"),
        ("        return x - self.mean", "            return x - self.mean",
         "in evaluation: it returns None"),
        ("self.mean += 0.1 * (x.detach().mean(0) - self.mean)", "self.mean = self.mean.float() + "
         "0.1 * (x.detach().float().mean(0) - self.mean.float())",
         "after a batch, `mean` is torch.float32"),
        ("return x - self.mean", "return (x - self.mean).float()", "the output is torch.float32"),
    ],
    properties=[_centers],
    success="kept, moved and saved, but not trained; and still in evaluation.",
    hints=(
        "Which kind of tensor is saved and moved, but not trained?",
        "self.training tells which of the two modes is on.",
        "Change the buffer in place, with a batch mean that is detached from x.",
    ),
    explanation="In place, so that the buffer stays the same tensor; detached, so that the "
    "history of all batches does not grow behind it.",
)  # fmt: skip


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


def _loads_old_and_new(attempt):
    if sorted(dict(attempt(3, 5).named_parameters())) != ["kernel", "offset"]:
        yield "its parameters are no longer called kernel and offset."

    def deeper(layer):
        return nn.ModuleDict({"part": nn.Sequential(nn.Identity(), layer)})

    def around(layer):
        layer.norm = nn.LayerNorm(5)
        return layer

    for size, bias, wrap, where in [
        ((3, 5), True, lambda layer: layer, "alone"),
        ((3, 3), True, lambda layer: layer, "square"),
        ((3, 5), True, nn.Sequential, "inside nn.Sequential"),
        ((3, 5), True, deeper, "deeper inside"),
        ((3, 5), True, around, "around a layer `norm` with a weight and a bias of its own"),
        ((3, 5), False, lambda layer: layer, "without a bias"),
    ]:
        linear, dense = nn.Linear(*size, bias=bias), attempt(*size)
        nn.init.ones_(dense.offset)  # loading has to overwrite it
        theirs, module, parameters = wrap(linear), wrap(dense), list(dense.parameters())
        state = theirs.state_dict()
        before = copy.deepcopy(state)
        try:
            module.load_state_dict(state)
        except Exception as error:
            said = _in_one_line(error)
            hook = " Print which arguments arrive in the hook." * isinstance(error, TypeError)
            if dense._load_state_dict_pre_hooks and re.search('"kernel".* Unexp.*"weight"', said):
                hook = " (The hook ran, but its dict still has the old keys: change that dict.)"
            yield f"{where}: a checkpoint of nn.Linear does not load: {said}.{hook}"
        if list(state) != list(before) or any(
            state[k].shape != v.shape or not torch.equal(state[k], v) for k, v in before.items()
        ):
            yield f"{where}: loading has changed the caller's state_dict."
        if any(a is not b for a, b in zip(parameters, dense.parameters(), strict=False)):
            yield (
                f"{where}: loading replaces the parameters; an optimizer would keep the old ones."
            )
        x = torch.linspace(-1, 2, 6).view(2, 3)
        if not torch.allclose(dense(x), linear(x), atol=1e-6):
            yield f"{where}: it loads, but its output is not that of the nn.Linear."
        try:
            copy.deepcopy(module).load_state_dict(module.state_dict())
        except Exception as error:
            yield f"{where}: its own checkpoint does not load any more: {_in_one_line(error)}."
    try:
        attempt(3, 5).load_state_dict({"kernel": torch.ones(3, 5)})
    except Exception:
        return
    yield "its own checkpoint loads even if it lacks `offset`; that should still be refused."


def _in_one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"


EXERCISE_3 = Exercise(
    number="6.3",
    name="Dense",
    reference=Dense,
    stub="""class Dense(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(in_features, out_features))
        self.offset = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return x @ self.kernel + self.offset""",
    wrong=[
        ('if prefix + "weight" in state_dict', 'state_dict["unused"] = 0\n        if False',
         "Missing key(s) in state_dict"),
        ("        if prefix", "        state_dict = dict(state_dict)\n        if prefix",
         "The hook ran, but its dict still has the old keys: change that dict"),
        ("weight.t()", "weight", "size mismatch for kernel"),
        ('prefix + "', '"', "inside nn.Sequential"),
        ('if prefix + "weight" in state_dict', "if True",
         "its own checkpoint does not load any more: KeyError"),
        ("weight.t()", "weight.t_()", "changed the caller's state_dict"),
        ("weight.t()", "weight if weight.shape == module.kernel.shape else weight.t()", "square"),
        ("torch.zeros(len(weight))", "module.offset", "without a bias: it loads, but"),
        ('            bias = state_dict.pop(prefix + "bias", torch.zeros(len(weight)))\n'
         '            state_dict[prefix + "offset"] = bias',
         '        bias = state_dict.pop(prefix + "bias", torch.zeros_like(module.offset))\n'
         '        state_dict.setdefault(prefix + "offset", bias)', "lacks `offset`"),
        ("    @staticmethod\n", "", "which arguments arrive"),
        ("class Dense(nn.Module)", "class Dense(nn.Linear): pass\n\n\nclass Other(nn.Module)",
         "no longer called kernel and offset"),
        ('if prefix + "weight" in state_dict', "for key in list(state_dict)",
         'weight = state_dict.pop(prefix + "weight")',
         'new = key.replace("weight", "kernel").replace("bias", "offset")',
         'state_dict[prefix + "kernel"] = weight.t()', "value = state_dict.pop(key)",
         'bias = state_dict.pop(prefix + "bias", torch.zeros(len(weight)))',
         'value = value.t() if key.endswith("weight") else value',
         'state_dict[prefix + "offset"] = bias', "state_dict[new] = value",
         "around a layer `norm` with a weight and a bias of its own: a checkpoint"),
    ],
    properties=[_loads_old_and_new],
    success="both generations load, wherever the module stands.",
    hints=(
        "register_load_state_dict_pre_hook, as in the section on renaming.",
        "The keys in a larger model begin with a prefix, which the hook gets as its third "
        "argument, after the module and the dict.",
        "The kernel is the transposed weight, and a missing bias counts as zero.",
    ),
    explanation="The hook renames only if the old name is there, so the module's own "
    "checkpoints pass untouched.",
)  # fmt: skip
