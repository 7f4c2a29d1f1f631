"""The indexes of chapter 19.

Every link leads somewhere, and every message is what PyTorch says.
"""

import json
import re
import warnings

import nbformat
import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn.parallel import DistributedDataParallel

from helpers.lessons import index
from helpers.lessons.index import MESSAGES, ROOT, TASKS
from helpers.lessons.index.matrix import process_group
from tools.which_way import CHAPTER, README, written


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


def twice():
    y = torch.ones(2, requires_grad=True).exp().sum()
    y.backward()
    y.backward()


class SkipsOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.skipped = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


def two_steps(**options):
    with process_group():
        module = DistributedDataParallel(SkipsOne(), **options)
        for _ in range(2):
            module(torch.ones(1, 2)).sum().backward()


def other_names():
    op = torch.library.custom_op(
        "which_way::same",
        lambda x: x.clone(),
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    op.register_autograd(lambda c, g: g, setup_context=lambda c, i, o: None)
    op(torch.ones(2, requires_grad=True))


def not_a_leaf():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.ones(1, requires_grad=True).exp().grad  # noqa: B018


PROVOKED = {  # the messages that no chapter prints
    "is a view and is being modified inplace": lambda: Same.apply(
        torch.ones(2, requires_grad=True)
    ).add_(1),
    "a leaf Variable that requires grad is being used in an in-place operation": lambda: (
        torch.ones(2, requires_grad=True).add_(1)
    ),
    "Trying to backward through the graph a second time": twice,
    "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed": not_a_leaf,
    "call numpy() on Tensor that requires grad": lambda: torch.ones(
        2, requires_grad=True
    ).numpy(),
    "Expected to have finished reduction in the prior iteration": two_steps,
    "got an unexpected keyword argument 'ctx'": other_names,
}


def test_every_link_leads_to_a_heading_or_a_file():
    for task in TASKS:
        index.section(task.read)
        index.source(task.copy or task.read)
    for message in MESSAGES:
        index.section(message.read)


def test_every_link_of_a_chapter_to_a_section_leads_to_a_heading():
    lost = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            links = re.findall(r"\]\((\d\d)_\w+\.ipynb#([^)\s]+)\)", cell.source)
            lost += [
                f"{path.name}: {number}#{anchor}"
                for number, anchor in links
                if anchor not in index.headings(number)[1].values()
            ]
    assert not lost


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: index.section("02 No such section"),
            "has no heading 'No such section'",
        ),
        (
            lambda: index.source("helpers/ops/no_such.py"),
            "nothing to copy at helpers/ops/no_s",
        ),
    ],
)
def test_a_link_that_leads_nowhere_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_an_anchor_is_the_one_that_jupyterlab_and_github_make():
    link = index.section("03 The price: None travels on")
    assert link.endswith("(03_mul_constant.ipynb#The-price%3A-None-travels-on)")


def test_chapter_and_readme_hold_the_indexes_of_today():
    stored, readme = CHAPTER.read_text("utf-8"), README.read_text("utf-8")
    notebook, text = written(nbformat.reads(stored, as_version=4), readme)
    assert notebook == nbformat.reads(stored, as_version=4), (
        "run python -m tools.which_way"
    )
    assert text == readme, "run python -m tools.which_way"
    assert index.most_wanted() in readme
    assert sum(task.short for task in TASKS) == 15


def printed():
    """All that the chapters print, on one line."""
    cells = [
        cell
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    texts = (
        "".join(output.get("text", "")) for cell in cells for output in cell["outputs"]
    )
    return re.sub(r"\s+", " ", " ".join(texts))


def test_each_message_is_printed_by_a_chapter_or_raised_here():
    said = printed()
    for message in MESSAGES:
        if message.part in PROVOKED:
            with pytest.raises(
                (RuntimeError, TypeError, UserWarning), match=re.escape(message.part)
            ):
                PROVOKED[message.part]()
        else:
            assert message.part in said, f"no chapter prints {message.part!r}"
    assert PROVOKED.keys() <= {message.part for message in MESSAGES}


class Packs(Function):
    @staticmethod
    def forward(ctx, given, pack):
        x = given[0] if isinstance(given, list) else given
        return pack([x.exp()])

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs


X = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("given", "pack", "tracked"),
    [
        (X, tuple, True),
        (X, list, False),
        (X, lambda xs: dict(enumerate(xs)), False),
        (X, lambda xs: (xs,), False),
        ([X], tuple, False),
    ],
)
def test_tensors_in_a_list_or_a_dict_have_no_gradient(given, pack, tracked):
    output = Packs.apply(given, pack)[0]
    assert (output[0] if isinstance(output, list) else output).requires_grad == tracked


def test_the_cures_that_a_row_names_help():
    two_steps(find_unused_parameters=True)
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    for _ in range(1000):
        weight.sum().backward()
    torch.where(x > 0, torch.where(x > 0, x, 1).sqrt(), 0).sum().backward()
    h = 3 * x
    h.retain_grad()
    torch.where(x > 0, h, h.detach()).sum().backward()
    assert h.grad.tolist() == [0, 1]
    assert weight.grad.tolist() == [1000, 1000]
    assert x.grad.tolist() == [0, 3.25]
