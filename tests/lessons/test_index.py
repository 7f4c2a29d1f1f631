"""The indexes of chapter 19.

Every link leads somewhere, and every message is what PyTorch says.
"""

import copy
import io
import json
import pickle
import re
import warnings
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from helpers.lessons import index
from helpers.lessons.index import MESSAGES, ROOT, SYMPTOMS, TASKS
from helpers.lessons.index.matrix import one_graph, process_group, reverse
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


def unscaled_step():
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)


def two_paths(second):
    runs = []

    def block(x):
        runs.append(x)
        return x.sin() * x if len(runs) == 1 else second(x)

    x = torch.ones(2, 2, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()


class NoBackward(Function):
    @staticmethod
    def forward(ctx, x, *saved):
        ctx.save_for_backward(x, *saved)
        return 2 * x


def filled(make):
    """A tensor without the batch, or with it, is written into under `vmap`."""

    def f(x):
        y = make(x)
        y[0] = x.sum()
        return y

    return torch.vmap(f)(torch.ones(3, 2))


def compiled_under_vmap():
    x = torch.ones(2, requires_grad=True)
    y = one_graph(torch.sin)(x)
    torch.vmap(lambda g: torch.autograd.grad(y, x, g))(torch.eye(2))


class Checkpointed(nn.Linear):
    def forward(self, x, **options):
        return checkpoint(super().forward, x, **options)


def ready_twice(use_reentrant):
    with process_group():
        module = DistributedDataParallel(
            Checkpointed(2, 2), find_unused_parameters=True
        )
        x = torch.ones(1, 2, requires_grad=True)
        module(x, use_reentrant=use_reentrant).sum().backward()


def operator(kernel, schema):
    name = "which_way::operator"
    return torch.library.custom_op(name, kernel, mutates_args=(), schema=schema)


def fake_of_another_signature():
    op = operator(lambda x, n: x.repeat(n), "(Tensor x, int n) -> Tensor")
    op.register_fake(lambda x: x.clone())
    one_graph(lambda x: op(x, 2))(torch.ones(2))


def same_memory(kernel):
    operator(kernel, "(Tensor x) -> (Tensor, Tensor)")(torch.ones(2))


class Refuses(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class ReturnsView(nn.Linear):
    def forward(self, x):
        return super().forward(x).squeeze(1)


class ChangesIt(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change, self.inner = change, fully_shard(ReturnsView(2, 2))

    def forward(self, x):
        return self.change(self.inner(x))


def view_changed(change):
    with process_group(), warnings.catch_warnings(action="ignore"):  # FSDP2 warns of it
        module = fully_shard(ChangesIt(change))
        module(torch.ones(2, 1, 2, requires_grad=True)).sum().backward()


class WithoutCtx(NoBackward):
    @staticmethod
    def forward(x, y):
        return x * y


class WithCtxBesideSetup(NoBackward):
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class TwoOutputs(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return 2 * first + second * 3


class OneGradient(TwoOutputs):
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Product(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.bmm(x, y)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return torch.bmm(grad_output, y.mT), torch.bmm(x.mT, grad_output)


def half_in_forward_only():
    x = torch.ones(1, 2, 2, requires_grad=True)
    with torch.autocast("cpu"):
        y = Product.apply(x, x)
    y.sum().backward()


def of_inference_mode():
    with torch.inference_mode():
        y = torch.ones(2)
    return X * y


def copy_of_a_result():
    module = nn.Linear(2, 2)
    module.kept = module.weight * 2
    copy.deepcopy(module)


def without_annotations():
    torch.library.custom_op("index::bare", lambda x: x * 2, mutates_args=())


class Subclass(torch.Tensor):
    pass


def load_a_subclass():
    file = io.BytesIO()
    torch.save(torch.ones(2).as_subclass(Subclass), file)
    file.seek(0)
    torch.load(file)


def recompiles_too_often():
    torch.compiler.reset()
    repeat = torch.compile(lambda x, s: x * len(s), backend="eager", fullgraph=True)
    for count in range(20):
        repeat(X, "a" * (count + 2))


class ReadsMemory(nn.Module):
    def forward(self, x):
        x.data_ptr()
        return 2 * x


PROVOKED = {  # the messages that no chapter prints
    "backward() takes": lambda: sum(OneGradient.apply(X)).sum().backward(),
    "forward() takes": lambda: WithoutCtx.apply(X, X),
    "missing a required argument": lambda: WithCtxBesideSetup.apply(X),
    "unsupported operand type(s) for *: 'NoneType'": lambda: (
        TwoOutputs.apply(X)[0].sum().backward()
    ),
    "Inference tensors cannot be saved for backward": of_inference_mode,
    "support the deepcopy protocol": copy_of_a_result,
    "infer_schema(func)": without_annotations,
    "Weights only load failed": load_a_subclass,
    "Hard failure due to fullgraph=True": recompiles_too_often,
    "Cannot access data pointer of Tensor (e.g. FakeTensor": lambda: (
        torch.export.export(ReadsMemory(), (torch.ones(2),))
    ),
    "Failed to convert args/kwargs to proxy": lambda: torch.compile(
        torch.sin, backend="eager", fullgraph=True
    )(torch.Tensor._make_subclass(Refuses, torch.ones(2))),
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
    "mat1 and mat2 must have the same dtype": lambda: F.linear(
        torch.ones(2, 2), torch.ones(2, 2).half(), torch.ones(2).half()
    ),
    "expected scalar type": lambda: F.conv2d(
        torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3).half()
    ),
    "not implemented for 'BFloat16'": lambda: torch.cdist(
        *torch.ones(2, 3, 3).bfloat16()
    ),
    "with arguments from the": lambda: torch.eye(2).to_sparse().view(4),
    "No inf checks were recorded for this optimizer": unscaled_step,
    "Recomputed values for the following tensors have different metadata": lambda: (
        two_paths(lambda x: x.sin() * x[:1].clone())
    ),
    "A different number of tensors was saved during the original forward": lambda: (
        two_paths(torch.sin)
    ),
    "is invalid for input of size": lambda: torch.ones(3).view(2, 2),
    "You must implement either the backward or vjp method": lambda: (
        NoBackward.apply(torch.ones(2, requires_grad=True)).sum().backward()
    ),
    "save_for_backward can only save variables": lambda: NoBackward.apply(
        torch.ones(2, requires_grad=True), 3
    ),
    "is not possible because there exists a Tensor": lambda: filled(
        lambda x: torch.zeros(2)
    ),
    "call a compiled backward function within vmap": compiled_under_vmap,
    "Expected to mark a variable ready only once": lambda: ready_twice(True),
    "when making fake tensor call": fake_of_another_signature,
    "Multiple dispatch failed": lambda: torch.sin(
        torch.Tensor._make_subclass(Refuses, torch.ones(2))
    ),
    "Can't pickle": lambda: pickle.dumps(lambda: None),
}
QUOTED = {  # what needs a GPU, other processes or C: a file of PyTorch that has the words
    "error when deserializing the saved file": "export/__init__.py",
    "Dynamo does not know how to trace the builtin": "_dynamo/variables/functions.py",
    "Expected all tensors to be on the same device": "testing/_internal/common_methods_invocations.py",
    "illegal memory access": "testing/_internal/common_cuda.py",
    "permitted when stream is capturing": "cuda/graphs.py",
    "Ninja is required to load C++ extensions": "utils/cpp_extension.py",
    "Error compiling objects for extension": "utils/cpp_extension.py",
    "CUDA_HOME environment variable is not set": "utils/cpp_extension.py",
    "mismatches the version that was used to compile": "utils/cpp_extension.py",
}
OF_OTHERS = {  # the words of the dynamic linker, of CUDA, of Triton, and of kernels
    "cannot be accessed from Triton",
    "undefined symbol",
    "cannot open shared object file",
    "must be contiguous",
    "no kernel image is available for execution on the device",
}
FURTHER_CAUSES = [  # of a message that is raised above, or that a chapter prints
    ("expected scalar type", half_in_forward_only),
    ("must not also be an input", lambda: same_memory(lambda x: (x.view(-1), x + 1))),
    ("must not also be an input", lambda: same_memory(lambda x: (x + 1,) * 2)),
    ("In order to use an autograd.Function", lambda: torch.func.jacrev(reverse)(X)),
    (
        "are out of bounds for storage of size 0",
        lambda: view_changed(lambda y: y.add_(1)),
    ),
]
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
    "grad is incorrect layout": "says itself what is wrong",
    "cube_root.default": "of the chapter's own operator",
}


def every(groups):
    return [row for group in groups.values() for row in group]


def test_every_row_leads_to_a_heading_or_a_file():
    for task in every(TASKS):
        index.section(task.read)
        index.source(task.copy or task.read)
    for row in (*every(MESSAGES), *SYMPTOMS):
        index.section(row.read)


def test_every_link_to_a_section_names_the_cell_that_its_heading_begins():
    """JupyterLab 4.6 does not land on a heading whose link is percent-encoded."""
    lost = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
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
    said, parts = printed(), {message.part for message in every(MESSAGES)}
    for part in parts - {*QUOTED, *OF_OTHERS}:
        if part in PROVOKED:
            with pytest.raises(Exception, match=re.escape(part)):
                PROVOKED[part]()
        else:
            assert part in said, f"no chapter prints {part!r}"
    for part, file in QUOTED.items():
        assert part in (Path(torch.__file__).parent / file).read_text("utf-8")
    assert {*PROVOKED, *QUOTED, *OF_OTHERS} <= parts


@pytest.mark.parametrize(("part", "make"), FURTHER_CAUSES)
def test_a_message_has_the_other_causes_that_its_row_names(part, make):
    with pytest.raises(RuntimeError, match=re.escape(part)):
        make()


def test_each_error_that_a_chapter_prints_is_in_the_index():
    parts = [message.part for message in every(MESSAGES)]
    missing = [
        said[:90]
        for said in re.findall(r"\b(?=(\w*(?:Error|Unsupported): .{150}))", printed())
        if not any(part in said for part in (*parts, *LEFT_OUT))
    ]
    assert not missing, "write a row for it into helpers/lessons/index/messages.py"
    stale = [words for words in LEFT_OUT if words not in printed()]
    assert not stale, "no chapter prints it any more"


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
    ready_twice(False)
    view_changed(lambda y: y + 1)
    assert filled(lambda x: x.new_zeros(2)).tolist() == [[2, 0]] * 3
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
