"""The pins: those that torch chooses are torch's own."""

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from helpers.lessons.setup_check import VERIFIED_WITH
from tests.ops.table import TORCH
from tools import other_torch

ROOT = Path(__file__).parents[1]


def ours():
    """{"torch": "2.15.0", ...}."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)(?:\[.*\])?==([\w.]+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", ["cuda-toolkit", "triton"])
def test_what_the_cuda_build_of_torch_asks_for(name):
    theirs = {r.name: r.specifier for r in map(Requirement, requires("torch"))}
    if name not in theirs:
        pytest.skip(f"this build of torch does not ask for {name}")
    assert ours()[name] in theirs[name]


def test_the_version_that_is_written_in_several_places():
    pin = ours()["torch"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert pin == VERIFIED_WITH
    assert set(re.findall(r"torch(?:==| )(\d+\.\d+\.\d+)", readme)) == {pin}
    documentation = set()
    for path in [*(ROOT / "notebooks").glob("*.ipynb"), ROOT / "site/pytorch.json"]:
        text = path.read_text(encoding="utf-8")
        documentation |= set(re.findall(r"docs\.pytorch\.org/docs/([^/]*)", text))
    assert documentation == {pin.rpartition(".")[0]}
    workflow = (ROOT / ".github/workflows/other-torch.yml").read_text(encoding="utf-8")
    oldest = min(
        TORCH.values(), key=lambda version: tuple(map(int, version.split(".")))
    )
    assert f'torch: "{oldest}.0"' in workflow


def test_another_torch_has_the_other_pins():
    needed = other_torch.requirements("2.10.0")
    assert (
        needed[0] == "torch==2.10.0"
        and other_torch.requirements("newest")[0] == "torch"
    )
    names = {re.match(r"[\w-]+", pin)[0] for pin in needed}
    left_out = {"triton", "cupy-cuda13x", "cuda-toolkit", "jupyterlab"}
    assert names == {*ours(), "ipykernel"} - left_out
    for paths in other_torch.SUITES.values():
        assert all((ROOT / path).exists() for path in paths)
