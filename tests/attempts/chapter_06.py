"""Wrong attempts at the exercises of chapter 06, each with words that the verdict must hold."""

import torch
from torch import nn

from helpers.lessons.exercises.chapter_06 import Center, Dense, Scale


class ForgetsSuper(nn.Module):
    def __init__(self, features, bias=True):
        self.scale = nn.Parameter(torch.ones(features))


class PlainTensors(nn.Module):
    def __init__(self, features, bias=True):
        super().__init__()
        self.scale = torch.ones(features)
        self.bias = torch.zeros(features) if bias else None

    def forward(self, x):
        return self.scale * x


class AlwaysABias(Scale):
    def __init__(self, features, bias=True):
        super().__init__(features)


class NoName(nn.Module):
    def __init__(self, features, bias=True):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))
        if bias:
            self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return self.scale * x + getattr(self, "bias", 0)


class IgnoresTheBias(Scale):
    def forward(self, x):
        return self.scale * x


class StartsAtZero(Scale):
    def __init__(self, features, bias=True):
        super().__init__(features, bias)
        nn.init.zeros_(self.scale)


class ForgetsReturnInScale(Scale):
    def forward(self, x):
        super().forward(x)


class ReturnsATuple(Scale):
    def forward(self, x):
        return super().forward(x), self.bias


class ScaleByData(Scale):
    def forward(self, x):
        y = self.scale.data * x
        return y if self.bias is None else y + self.bias


class BiasDetached(Scale):
    def forward(self, x):
        y = self.scale * x
        return y if self.bias is None else y + self.bias.detach()


class CastsTheInput(Scale):
    def forward(self, x):
        return super().forward(x.float())


class CastsEverything(Scale):
    def forward(self, x):
        return super().forward(x).float()


class PlainAttribute(Center):
    def __init__(self, features):
        nn.Module.__init__(self)
        self.mean = torch.zeros(features)


class TrainsTheMean(Center):
    def __init__(self, features):
        nn.Module.__init__(self)
        self.mean = nn.Parameter(torch.zeros(features))


class KeepsTheHistory(Center):
    def forward(self, x):
        if self.training:
            self.mean = self.mean + 0.1 * (x.mean(0) - self.mean)
        return x - self.mean


class SubtractsFirst(Center):
    def forward(self, x):
        output = x - self.mean
        if self.training:
            self.mean += 0.1 * (x.detach().mean(0) - self.mean)
        return output


class AlwaysTraining(Center):
    def forward(self, x):
        self.mean += 0.1 * (x.detach().mean(0) - self.mean)
        return x - self.mean


class MeanOfEverything(Center):
    def forward(self, x):
        if self.training:
            self.mean += 0.1 * (x.detach().mean() - self.mean)
        return x - self.mean


class ReturnsOnlyInTraining(Center):
    def forward(self, x):
        if self.training:
            return super().forward(x)


class MeanInFloat32(Center):
    def forward(self, x):
        if self.training:
            self.mean = self.mean.float() + 0.1 * (x.detach().float().mean(0) - self.mean.float())
        return x - self.mean


class OutputInFloat32(Center):
    def forward(self, x):
        return super().forward(x).float()


class Untranslated(Dense):
    @staticmethod
    def translate(module, state_dict, prefix, *_):
        state_dict["unused"] = 0


class NotTransposed(Dense):
    @staticmethod
    def translate(module, state_dict, prefix, *_):
        if prefix + "weight" in state_dict:
            state_dict[prefix + "kernel"] = state_dict.pop(prefix + "weight")
            state_dict[prefix + "offset"] = state_dict.pop(prefix + "bias")


class IgnoresThePrefix(Dense):
    @staticmethod
    def translate(module, state_dict, prefix, *_):
        if "weight" in state_dict:
            state_dict["kernel"] = state_dict.pop("weight").t()
            state_dict["offset"] = state_dict.pop("bias")


class OnlyTheNewOnes(Dense):
    @staticmethod
    def translate(module, state_dict, prefix, *_):
        state_dict[prefix + "kernel"] = state_dict.pop(prefix + "weight").t()
        state_dict[prefix + "offset"] = state_dict.pop(prefix + "bias")


class RenamesItself(nn.Linear):
    pass


class Frozen(Scale):
    def __init__(self, features, bias=True):
        super().__init__(features, bias)
        self.scale.requires_grad_(False)


class OnlyMatrices(Scale):
    def forward(self, x):
        return super().forward(x) if x.dim() == 2 else x


class NotAModule:
    def __init__(self, features, bias=True):
        self.scale = torch.ones(features)


class KeepsTheDimension(Center):
    def forward(self, x):
        if self.training:
            self.mean = self.mean + 0.1 * (x.detach().mean(0, keepdim=True) - self.mean)
        return x - self.mean


class ForgetsReturn(Center):
    def forward(self, x):
        super().forward(x)


class TransposesInPlace(Dense):
    @staticmethod
    def translate(module, state_dict, prefix, *_):
        if prefix + "weight" in state_dict:
            weight = state_dict.pop(prefix + "weight")
            bias = state_dict.pop(prefix + "bias", torch.zeros(len(weight)))
            state_dict[prefix + "offset"] = bias
            state_dict[prefix + "kernel"] = weight.t_()


class OnlyIfShapesDiffer(Dense):
    @staticmethod
    def translate(module, state_dict, prefix, *_):
        if prefix + "weight" in state_dict:
            weight = state_dict.pop(prefix + "weight")
            bias = state_dict.pop(prefix + "bias", torch.zeros(len(weight)))
            state_dict[prefix + "offset"] = bias
            same = weight.shape == module.kernel.shape
            state_dict[prefix + "kernel"] = weight if same else weight.t()


class KeepsTheOldOffset(Dense):
    @staticmethod
    def translate(module, state_dict, prefix, *_):
        if prefix + "weight" in state_dict:
            state_dict[prefix + "kernel"] = state_dict.pop(prefix + "weight").t()
            bias = state_dict.pop(prefix + "bias", module.offset)
            state_dict[prefix + "offset"] = bias


class InventsAnOffset(Dense):
    @staticmethod
    def translate(module, state_dict, prefix, *_):
        if prefix + "weight" in state_dict:
            state_dict[prefix + "kernel"] = state_dict.pop(prefix + "weight").t()
        if prefix + "bias" in state_dict:
            state_dict[prefix + "offset"] = state_dict.pop(prefix + "bias")
        state_dict.setdefault(prefix + "offset", torch.zeros_like(module.offset))


class ForgetsStaticmethod(Dense):
    def translate(module, state_dict, prefix, *_):  # noqa: N805
        return Dense.translate(module, state_dict, prefix)


ATTEMPTS = {
    "6.1": [
        (ForgetsSuper, "before Module.__init__() call"),
        (PlainTensors, "trains the parameters []"),
        (AlwaysABias, "Scale(3, bias=False) trains the parameters ['scale', 'bias']"),
        (NoName, "must exist and be None"),
        (IgnoresTheBias, "Scale(3), for an input of shape (2, 3): `forward`"),
        (StartsAtZero, "at first"),
        (Frozen, "trains the parameters ['bias']"),
        (OnlyMatrices, "for an input of shape (3,)"),
        (NotAModule, "must derive from nn.Module"),
        (ForgetsReturnInScale, "returns None. Is a `return` missing?"),
        (ReturnsATuple, "a tuple, not a tensor"),
        (ScaleByData, "`scale` is cut off"),
        (BiasDetached, "`bias` is cut off"),
        (CastsTheInput, "in float32?"),
        (CastsEverything, "the output is torch.float32, but torch.float64 is right"),
    ],
    "6.2": [
        (PlainAttribute, "the buffer `mean` alone is asked for"),
        (TrainsTheMean, "is a parameter"),
        (KeepsTheHistory, "has a history"),
        (SubtractsFirst, "as it was before the update"),
        (AlwaysTraining, "Ask self.training"),
        (KeepsTheDimension, "has shape (1, 3)"),
        (ForgetsReturn, "Is a `return` missing"),
        (MeanOfEverything, "after a batch in training"),
        (ReturnsOnlyInTraining, "in evaluation: it returns None"),
        (MeanInFloat32, "after a batch, `mean` is torch.float32"),
        (OutputInFloat32, "the output is torch.float32"),
    ],
    "6.3": [
        (Untranslated, "Missing key(s) in state_dict"),
        (NotTransposed, "size mismatch for kernel"),
        (IgnoresThePrefix, "inside nn.Sequential"),
        (OnlyTheNewOnes, "its own checkpoint does not load any more: KeyError"),
        (TransposesInPlace, "changed the caller's state_dict"),
        (OnlyIfShapesDiffer, "square"),
        (RenamesItself, "no longer called kernel and offset"),
        (KeepsTheOldOffset, "without a bias: it loads, but"),
        (InventsAnOffset, "lacks `offset`"),
        (ForgetsStaticmethod, "which arguments arrive"),
    ],
}
