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


ATTEMPTS = {
    "6.1": [
        (ForgetsSuper, "before Module.__init__() call"),
        (PlainTensors, "has the parameters []"),
        (AlwaysABias, "Scale(3, bias=False) has the parameters ['scale', 'bias']"),
        (NoName, "must exist and be None"),
        (IgnoresTheBias, "Scale(3, bias=True): `forward`"),
        (StartsAtZero, "at first"),
    ],
    "6.2": [
        (PlainAttribute, "a buffer `mean` is asked for"),
        (TrainsTheMean, "is a parameter"),
        (KeepsTheHistory, "has a history"),
        (SubtractsFirst, "after the update"),
        (AlwaysTraining, "in evaluation"),
        (MeanOfEverything, "after a batch in training"),
    ],
    "6.3": [
        (Untranslated, "Missing key(s) in state_dict"),
        (NotTransposed, "size mismatch for kernel"),
        (IgnoresThePrefix, "inside nn.Sequential"),
        (OnlyTheNewOnes, "its own checkpoint does not load any more: KeyError"),
        (RenamesItself, "no longer called kernel and offset"),
    ],
}
