"""No English leaves the Chinese edition: what the doctor and its commands say.

What it says of the cases is read in both languages by `tests/doctor/test_cases.py`.
"""

import itertools
import os
import re
import subprocess
import sys

import pytest

from helpers.doctor import words
from helpers.doctor.line import sentences
from helpers.lessons.language import VARIABLE, _, spaced

# Names that Chinese keeps. What PyTorch says is quoted as it is.
NAMES = set(
    "acos autograd backward conj conjugate ctx dim dirty dtype eps expand float forward grad "
    "hook inf int item jvp kernel lambda log mean nan numel once pass pow replace return "
    "retain shape softmax sqrt staticmethod sum tol view vmap".split()
)
QUOTED = re.compile(r"(报错|抛出|Error|Warning|Exception).*", re.DOTALL)

BLANK = re.compile(  # Chinese has none there
    r"[，。；：！？（）] +\S|\S +[，。；：！？（）]|[一-鿿] +[一-鿿]"
)
BESIDE_CODE = re.compile(r"[一-鿿]`\w|\w`[一-鿿]")  # but there it has one


def english(report):
    """Words of a report that are no code, no name and no quoted message."""
    for line in report.splitlines():
        line = re.sub(r"`[^`]*`|\([a-z-]+\)", "", QUOTED.sub("", line))
        words = re.findall(r"(?<![\w./=-])[a-z]{3,}(?![\w(./=-])", line)
        yield from (word for word in words if word not in NAMES)


HERE_THERE_USES = (
    [sentences.LOCAL, sentences.IN_A_RUN, sentences.RETURNED],
    [sentences.OF_FORWARD, "`{name}`"],
    [sentences.WHOLE_LINE, sentences.IN_LINE, sentences.OUTPUT],
)


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv(VARIABLE, "zh")
    monkeypatch.setattr(words, "spaced", spaced)


def test_a_first_wrong_line(chinese):
    gaps = {"name": "g", "line": 7, "run": 1, "runs": 2, "operation": "mul"}
    gaps |= {"text": "y = g * x"}
    for text in (
        sentences.PART,
        sentences.MULTIPLE,
        sentences.GRADIENT,
        sentences.SHARE,
        sentences.VALUE,
    ):
        for places in itertools.product(*HERE_THERE_USES):
            here, there, uses = (_(place, **gaps) for place in places)
            places = {"here": here, "there": there, "uses": uses}
            said = words.finished(_(text, **places, suspects=here, factor=2))
            assert not BLANK.search(said) and not BESIDE_CODE.search(said), said


def test_english_is_seen():
    assert list(english("`x` 的梯度 is wrong (scaled)")) == ["wrong"]


FUNCTION = """
import torch
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, g):
        return 3 * g
def test_it():
    Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
"""


@pytest.mark.parametrize(
    "command, said",
    [
        ("helpers.doctor test_it.py:Double --input 3x4", "参见：第 11 章"),
        ("helpers.doctor test_it.py:test_it --input 3", "个元素的向量"),
        ("pytest -q -p no:cacheprovider -p helpers.doctor.plugin --doctor", "参见"),
    ],
)
def test_a_command(command, said, tmp_path):
    (tmp_path / "test_it.py").write_text(FUNCTION)
    run = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=tmp_path,
        env=os.environ | {VARIABLE: "zh", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    assert said in run.stdout, run.stdout + run.stderr
