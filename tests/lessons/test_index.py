"""The indexes of chapter 19.

Every link leads somewhere, and every message is what PyTorch says.
"""

import importlib.machinery
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.lessons import index
from helpers.lessons.index import MESSAGES, SYMPTOMS, TASKS
from helpers.lessons.index.matrix import process_group
from tests.notebooks.test_notebooks import NOTEBOOKS, cells, printed, read
from tests.notebooks.test_recipes import ALL as RECIPES
from tools.which_way import CHAPTER, README, written

MOST_WORDS = 12_500  # in chapter 19, without link targets
OF_OTHERS = {  # words of Python, the dynamic linker, CUDA, Triton, and kernels
    "not enough values to unpack (expected 2, got 1)",
    "cannot be accessed from Triton",
    "undefined symbol",
    "cannot open shared object file",
    "No module named 'torch'",
    "must be contiguous",
    "no kernel image is available for execution on the device",
    "Unsupported gpu architecture",
    "outside of the scope of a kernel",
    "list index out of range",
    "Found no NVIDIA driver",
    "Input shapes should have M >= 1, N >= 1 and K >= 16",
    "out of resource: shared memory",
    'identifier "torch_c10_cuda_check_msg" is undefined',
}
IN_A_CAUSE = {  # messages that have no row of their own
    "flex_attention called without torch.compile()",
    "could not infer output dtype",
    "can't retain_grad",
    "DynamicOutputShapeException",
    "Inplace update to inference tensor",
    "Setting requires_grad=True on inference tensor",
    "'NoneType' object has no attribute",
}


def computed():
    return 2 * torch.ones(1, requires_grad=True)


def of_the_module_inside():
    with process_group():
        return DistributedDataParallel(nn.Linear(1, 1)).weight


def without_its_init():
    name, file = "other", torch._C.__file__
    loader = importlib.machinery.ExtensionFileLoader(name, file)
    loader.create_module(importlib.util.spec_from_loader(name, loader))


@torch.library.custom_op("test_index::times", mutates_args=())
def times(x: torch.Tensor, number: float) -> torch.Tensor:
    return number * x


times.register_fake(lambda x, number: torch.empty_like(x))


@torch.compile(fullgraph=True, backend="eager")
def times_itself(x):
    return times(x, x.item())


class Keeps(nn.Module):
    def forward(self, x):
        self.last = 2 * x
        return self.last + 1


class Endless(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args)


def view_without_grad():
    x = computed()
    with torch.no_grad():
        part = x[:1]
    part.mul_(2)


def unscaled():
    weight = nn.Parameter(torch.ones(1))
    torch.amp.GradScaler("cpu").step(torch.optim.SGD([weight]))


PROVOKED = {  # what raises a message that is put together, or no more than a name
    "not implemented for 'BFloat16'": lambda: torch.cdist(
        *torch.ones(2, 3, 3).bfloat16()
    ),
    "is not possible because there exists a Tensor": lambda: torch.vmap(
        torch.zeros(2).copy_
    )(torch.ones(3, 2)),
    "Mismatch in shape: grad_output[0]": lambda: computed().backward(torch.ones(2)),
    "missing 1 required keyword-only argument: 'device_type'": lambda: (
        torch.amp.custom_fwd(torch.sin)
    ),
    "Got in_dim=0 for": lambda: torch.vmap(torch.mul)(torch.ones(2), 3.0),
    "was assigned during export": lambda: torch.export.export(
        Keeps(), (torch.ones(2),)
    ),
    "missing a required argument": lambda: torch.export.export(
        nn.Bilinear(1, 1, 1), (torch.ones(1),)
    ),
    "'DistributedDataParallel' object has no attribute": of_the_module_inside,
    "A view was created in no_grad mode": view_without_grad,
    "Got unsupported ScalarType BFloat16": lambda: torch.ones(1).bfloat16().numpy(),
    "Attempted step but _scale is None": unscaled,
    "maximum recursion depth exceeded": lambda: torch.ones(1).as_subclass(Endless) * 2,
    "SymFloat": lambda: times_itself(torch.ones(1)),
    "dynamic module does not define module export function": without_its_init,
}
LEFT_OUT = {  # words of an error that a chapter prints: why the index lacks it
    "must have shape (..., 2) to fit weight": "of an operation of the course",
    "bias must have shape": "of an operation of the course",
    "weight is torch.float64, but input is": "of an operation of the course",
    "x must be float32 or float64": "of an operation of the course",
    "recurrence has no rule": "of the template",
    "Diagonal does not know": "of the chapter's own class",
    "The differentiated Tensor at index": "cut short: the row holds its end",
    "using `torch.autograd.grad` with": "says itself what to do",
    "not enough values to unpack": "Python's own",
    "missing required argument": "Python's own",
    "Observed exception": "the cause stands above it",
    "Expected torch.Tensor, got <class": "an error of the compiler's own",
    "expected dtype c10::BFloat16 for `end`": "of torch.lerp alone",
    "Creating a new Tensor subclass": "of the matrix's own class",
    "test_faketensor failed": "the row holds what it found",
    "pybind11_detail_function_record": "an object of the matrix that has no pickle",
}


def every(groups):
    return [row for group in groups.values() for row in group]


PARTS = {message.part for message in every(MESSAGES)}


def test_every_row_leads_to_a_heading_or_a_file():
    for task in every(TASKS):
        index.section(task.read)
        index.source(task.copy)
    for row in (*every(MESSAGES), *SYMPTOMS):
        index.section(row.read)
        assert "|" not in f"{row}", "it would end a cell of the table"


def test_tasks_copy_what_runs_alone_and_each_recipe():
    """A file of `ops`, the template, the doctor, `derive`, or a recipe, as its own test sees."""
    paths = "helpers/ops/", "helpers/template/", "helpers/doctor/", "helpers/derive/"
    copied = {t.copy for t in every(TASKS) if not t.copy.startswith(paths)}
    assert copied == RECIPES.keys()


def test_the_index_is_short_and_the_readme_has_twelve_tasks():
    chapter = read(CHAPTER)
    text = "\n".join(cell.source for cell in cells(chapter, "markdown"))
    words = re.sub(r"\]\([^)]*\)|\|", " ", text).split()
    words = [word for word in words if re.search(r"\w", word)]  # no ✓, no ---
    assert len(words) <= MOST_WORDS
    ids = [cell.id for cell in chapter.cells]
    assert ids.index("matrix-links") < ids.index("w01") < ids.index("w02")
    assert len([t for t in every(TASKS) if t.visitor and t.use]) == 12


def test_every_link_to_a_section_names_the_cell_that_its_heading_begins():
    """JupyterLab 4.6 does not land on a heading whose link is percent-encoded."""
    lost = []
    for path in NOTEBOOKS:
        for cell in read(path).cells:
            lost += [
                f"{path.name}: {number}#{target}"
                for number, target in re.findall(
                    r"\]\((\d\d)_\w+\.ipynb#([^)\s]+)\)", cell.source
                )
                if target.removeprefix("cell-id=")
                not in index.headings(number)[1].values()
            ]
            late = re.findall(r"\n#{2,} .+", re.sub(r"(?s)```.*?```", "", cell.source))
            if cell.cell_type == "markdown":
                assert not late, f"{path.name}: {late} must begin a cell"
    assert not lost


def test_the_readme_keeps_the_anchor_that_a_repository_page_makes():
    link = index.section("03 The price: None travels on", folder="notebooks/")
    assert link.endswith(
        "(notebooks/03_mul_constant.ipynb#The-price%3A-None-travels-on)"
    )


def test_chapter_and_readme_hold_the_indexes_of_today():
    stored, readme = CHAPTER.read_text("utf-8"), README.read_text("utf-8")
    notebook, text = written(nbformat.reads(stored, as_version=4), readme)
    assert notebook == nbformat.reads(stored, as_version=4), "run tools.which_way"
    assert text == readme, "run python -m tools.which_way"


def all_printed():
    """What the chapters print, on one line."""
    texts = (printed(c) for path in NOTEBOOKS for c in cells(read(path), "code"))
    return re.sub(r"\s+", " ", " ".join(texts))


def texts_of_pytorch():
    """Its installed files, as bytes."""
    folder = Path(torch.__file__).parent
    whole = "".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    joined = re.sub(r"""["']\s+[rf]*["']""", "", whole)  # literals, side by side
    names = "c10", "torch_cpu", "torch_python"
    libraries = [path for name in names for path in folder.glob(f"lib/*{name}.*")]
    return [joined.encode(), *(path.read_bytes() for path in libraries)]


def test_each_message_is_one_that_a_chapter_prints_or_pytorch_says():
    texts = [all_printed().encode(), *texts_of_pytorch()]
    for part in (PARTS | IN_A_CAUSE) - OF_OTHERS - PROVOKED.keys():
        assert any(part.encode() in text for text in texts), part


@pytest.mark.filterwarnings("error")  # one of them is a warning
@pytest.mark.parametrize("part", PROVOKED)
def test_a_message_comes_from_what_its_row_says(part):
    assert part in PARTS
    with pytest.raises(Exception, match=re.escape(part)):
        PROVOKED[part]()


def test_each_error_that_a_chapter_prints_is_in_the_index():
    texts = all_printed()
    missing = [
        said[:90]
        for said in re.findall(r"\b(?=(\w*(?:Error|Unsupported): .{150}))", texts)
        if not any(part in said for part in (*PARTS, *LEFT_OUT))
    ]
    assert not missing, "write a row for it into helpers/lessons/index/messages.py"
    stale = [words for words in LEFT_OUT if words not in texts]
    assert not stale, "no chapter prints it any more"
