"""The network `RedNet` of involution's paper, and its published checkpoints."""

import math
import re

import torch
from torch import nn

from .modules import Involution2d


def _conv_bn_relu(in_channels, out_channels, stride=1):
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class Bottleneck(nn.Module):
    """A residual block of ResNet with a 7 x 7 involution for its 3 x 3 convolution."""

    def __init__(self, in_channels, out_channels, stride=1, keep_filters=True):
        super().__init__()
        middle = out_channels // 4
        self.conv1 = nn.Conv2d(in_channels, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.involution = Involution2d(middle, 7, stride, keep_filters=keep_filters)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, input):
        x = self.relu(self.bn1(self.conv1(input)))
        x = self.relu(self.bn2(self.involution(x)))
        x = self.bn3(self.conv3(x))
        return self.relu(
            x + (input if self.downsample is None else self.downsample(input))
        )


class RedNet(nn.Module):
    """ResNet with involutions: (N, 3, H, W) -> (N, num_classes).

    depth: 26, 38, 50, 101 or 152. Raises ValueError for another one.
    num_classes: without it (None) there is no classifier, and the result is a tuple of
        the four stages' maps: (N, 256, H / 4, W / 4), (N, 512, H / 8, W / 8), (N, 1024,
        H / 16, W / 16), (N, 2048, H / 32, W / 32), sizes rounded up.
    keep_filters: of each `Involution2d`.
    stem_kernel_size: of the involution in the stem: 3 in the authors' code for
        classification, 7 in that for detection and segmentation. With 7, and 1000
        classes, the parameters and the multiply-adds are those of the paper's table.

    Source: Li et al., Involution, CVPR 2021, https://arxiv.org/abs/2103.06255, section
    4; the details from the authors' https://github.com/d-li14/involution, whose
    checkpoints `from_checkpoint` reads.
    """

    BLOCKS = {
        26: (1, 2, 4, 1),
        38: (2, 3, 5, 2),
        50: (3, 4, 6, 3),
        101: (3, 4, 23, 3),
        152: (3, 8, 36, 3),
    }

    def __init__(self, depth, num_classes=1000, keep_filters=True, stem_kernel_size=3):
        super().__init__()
        if depth not in tuple(self.BLOCKS):  # a list has no hash
            raise ValueError(
                f"depth must be one of {', '.join(map(str, self.BLOCKS))}, got "
                f"{depth!r}"
            )
        self.stem = nn.Sequential(
            _conv_bn_relu(3, 32, stride=2),
            Involution2d(32, stem_kernel_size, keep_filters=keep_filters),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            _conv_bn_relu(32, 64),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages, in_channels = [], 64
        for stage, blocks in enumerate(self.BLOCKS[depth]):
            out_channels = 256 * 2**stage
            stride = 1 if stage == 0 else 2
            stages.append(
                nn.Sequential(
                    Bottleneck(in_channels, out_channels, stride, keep_filters),
                    *[
                        Bottleneck(out_channels, out_channels, 1, keep_filters)
                        for _ in range(blocks - 1)
                    ],
                )
            )
            in_channels = out_channels
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = None if num_classes is None else nn.Linear(in_channels, num_classes)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)  # a block starts as the identity

    def forward(self, input):
        x = self.stem(input)
        stages = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            stages.append(x)
        return tuple(stages) if self.fc is None else self.fc(self.pool(x).flatten(1))

    @classmethod
    def from_checkpoint(cls, checkpoint):
        """(the network that a published checkpoint holds, a sentence on what it was).

        checkpoint: what `torch.load` returned, a dict with the key "state_dict", or
            that state dict: of a classifier of mmcls, of a detector of mmdet, of a
            segmentor of mmseg with a RedNet backbone, or of the backbone alone. Only a
            classifier has a `fc`.
        The network has the checkpoint's dtype and device. Raises ValueError or
        TypeError for something else.

            model, what = RedNet.from_checkpoint(torch.load("rednet50.pth"))
        """
        state = (
            checkpoint.get("state_dict", checkpoint)
            if isinstance(checkpoint, dict)
            else None
        )
        if not isinstance(state, dict):
            raise TypeError(
                "checkpoint must be a dict, or have one as its state_dict, got"
                f" {type(checkpoint if state is None else state).__name__}"
            )
        state, others = _renamed(state)
        blocks = tuple(
            len(
                {key.split(".")[1] for key in state if key.startswith(f"layer{stage}.")}
            )
            for stage in (1, 2, 3, 4)
        )
        depths = [depth for depth, known in cls.BLOCKS.items() if known == blocks]
        if not depths or "stem.1.span.weight" not in state:
            raise ValueError(
                "checkpoint must hold a RedNet of the authors' code, with the keys"
                " [backbone.]stem.1.conv2.conv.weight and "
                "[backbone.]layer1.0.conv1.weight among"
                f" others, got {', '.join(list(state)[:3]) or 'none'}, ..."
            )
        stem = math.isqrt(len(state["stem.1.span.weight"]) // 2)  # of two groups
        classes = len(state["fc.weight"]) if "fc.weight" in state else None
        with torch.device("meta"):  # no numbers to be drawn and thrown away
            model = cls(depths[0], classes, stem_kernel_size=stem)
        model.to(state["stem.1.span.weight"].dtype)
        model.to_empty(device=state["stem.1.span.weight"].device)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            said = "; ".join(line.strip() for line in str(error).splitlines()[1:])
            raise ValueError(
                f"checkpoint does not fit RedNet-{depths[0]}: {said}"
            ) from error
        what = (
            f"RedNet-{depths[0]} with a {stem} x {stem} involution in the stem and "
            + (f"a classifier of {classes} classes" if classes else "no classifier")
        )
        return model, what + (f"; left out: {', '.join(others)}" if others else "")


def _renamed(state):
    """The tensors of a RedNet under our names, and the names of the other parts."""
    state = {key.removeprefix("module."): value for key, value in state.items()}
    whole = any(key.startswith("backbone.") for key in state)
    renamed, others = {}, []
    for key, value in state.items():
        if whole and not key.startswith(("backbone.", "head.fc.")):
            others.append(key.split(".")[0])
            continue
        for theirs, ours in (
            (r"^backbone\.", ""),
            (r"^head\.fc\.", "fc."),
            (r"^(layer\d\.\d+)\.conv2\.", r"\1.involution."),
            (r"(^stem\.1|\.involution)\.conv1\.conv\.", r"\1.reduce.0."),
            (r"(^stem\.1|\.involution)\.conv1\.bn\.", r"\1.reduce.1."),
            (r"(^stem\.1|\.involution)\.conv2\.conv\.", r"\1.span."),
            (r"^(stem\.[04])\.conv\.", r"\1.0."),
            (r"^(stem\.[04])\.bn\.", r"\1.1."),
        ):
            key = re.sub(theirs, ours, key)
        renamed[key] = value
    return renamed, list(dict.fromkeys(others))
