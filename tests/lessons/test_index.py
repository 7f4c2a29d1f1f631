"""The indexes of chapter 19.

Every link leads somewhere, and every message is what PyTorch says.
"""

import importlib.machinery
import importlib.util
import io
import json
import math
import re
import warnings
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed.fsdp import fully_shard
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.parallel import DistributedDataParallel

from helpers.lessons import index
from helpers.lessons.index import MESSAGES, SYMPTOMS, TASKS
from helpers.lessons.index.matrix import process_group
from tests.notebooks.test_notebooks import NOTEBOOKS
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


def scaled(dtype, times):
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    optimizer, scaler = torch.optim.SGD([weight]), torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    for _ in range(times):
        scaler.unscale_(optimizer)


def not_finite():
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.full((1,), torch.nan)
    nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def second_graph():
    x = torch.ones(1, requires_grad=True)
    x.square().backward(create_graph=True)


def exported(f, **sizes):
    class Model(nn.Module):
        def forward(self, x):
            return f(x)

    torch.export.export(Model(), (torch.ones(8),), dynamic_shapes=sizes or None)


def under_inference():
    with torch.inference_mode():
        return torch.ones(2)


def hooked(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return x.sin().sum()


def computed():
    return 2 * torch.ones(1, requires_grad=True)


def doubled_in_place(x):
    x.register_hook(lambda grad: grad.mul_(2))
    x.sum().backward()


def in_a_group(f):
    """Calls f in a process group of one."""
    with process_group():
        return f()


def another_layout():
    model = DistributedDataParallel(nn.Conv2d(8, 8, 3))
    model.to(memory_format=torch.channels_last)
    model(torch.ones(2, 8, 3, 3)).sum().backward()


def two_dtypes():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    fully_shard(model, mesh=mesh)(torch.ones(1, 2))


def without_its_init():
    name, file = "other", torch._C.__file__
    loader = importlib.machinery.ExtensionFileLoader(name, file)
    loader.create_module(importlib.util.spec_from_loader(name, loader))


def compiled(f, *arguments):
    return torch.compile(f, fullgraph=True, backend="eager")(*arguments)


@torch.library.custom_op("test_index::times", mutates_args=())
def times(x: torch.Tensor, number: float) -> torch.Tensor:
    return number * x


times.register_fake(lambda x, number: torch.empty_like(x))


def asked_to_require(x):
    return (2 * x).requires_grad_()


def with_keyword(x: torch.Tensor, *, weight: torch.Tensor) -> torch.Tensor:
    return x * weight


def assigned(shape):
    torch.ones(3).grad = torch.ones(shape)


def loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    torch.load(file)


class NamedOnly:
    """An object that export does not know."""


class Keeps(nn.Module):
    def forward(self, x):
        self.last = 2 * x
        return self.last + 1


class Misspelt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.saved_tensor[0]


class SavesItsInput(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, tangent):
        with forward_ad._set_fwd_grad_enabled(True):
            return 2 * ctx.saved_tensors[0] * tangent


class TooLong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, x):
        ctx.save_for_backward(rows, x)
        return rows[:, None] * x

    @staticmethod
    def backward(ctx, grad_output):
        rows, x = ctx.saved_tensors
        return grad_output * x, grad_output * rows[:, None]  # no sum over dimension 1


class TakesAGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.autograd.grad(x.square().sum(), x)[0]


def under_fake(f):
    with FakeTensorMode():
        f(torch.ones(1))


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2).clone()


class OneReturn(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x):
        return 2 * x


class Endless(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args)


class Unwrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        made = cls._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(args[0].inner)


def view_without_grad():
    x = computed()
    with torch.no_grad():
        part = x[:1]
    part.mul_(2)


def packed_in_place():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t):
        computed().exp()


def in_a_dict():
    class Dict(nn.Linear):
        def forward(self, x):
            return {"y": super().forward(x)}

    module = Dict(1, 1)
    module.register_full_backward_hook(lambda *_: None)
    module(torch.ones(1, 1))


def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        torch.ones(3).put_(torch.tensor([0]), torch.ones(1))
    finally:
        torch.use_deterministic_algorithms(False)


def unscaled():
    weight = nn.Parameter(torch.ones(1))
    torch.amp.GradScaler("cpu").step(torch.optim.SGD([weight]))


def vectors_of_svd():
    x = torch.tensor([[1, 2j], [3, 4 + 1j]], requires_grad=True)
    torch.linalg.svd(x).U.real.sum().backward()


PROVOKED = {  # without a Function where that is the likeliest cause
    "not implemented for 'BFloat16'": lambda: torch.cdist(
        *torch.ones(2, 3, 3).bfloat16()
    ),
    "is not possible because there exists a Tensor": lambda: torch.vmap(
        torch.zeros(2).copy_
    )(torch.ones(3, 2)),
    "mat1 and mat2 must have the same dtype": lambda: nn.Linear(2, 2).half()(
        torch.ones(1, 2)
    ),
    "Could not guard on data-dependent expression": lambda: exported(
        lambda x: x if x.sum() > 3 else 2 * x
    ),
    "flex_attention called without torch.compile()": lambda: flex_attention(
        *torch.ones(3, 1, 1, 16, 16)
    ),
    "to be a tuple of example positional inputs": lambda: torch.export.export(
        nn.Linear(2, 2), torch.ones(3, 2)
    ),
    "its top-level keys must be the arg names": lambda: exported(torch.sin, y={}),
    "could not infer output dtype": lambda: torch.ones(2, dtype=torch.int64).mean(),
    "can't retain_grad": lambda: torch.ones(2).retain_grad(),
    "must only return Tensors": lambda: torch.vmap(lambda x: 1.0)(torch.ones(2)),
    "Setting a forward grad that itself has a forward gradient": lambda: torch.func.jvp(
        SavesItsInput.apply, (torch.ones(2),), (torch.ones(2),)
    ),
    "Constraints violated": lambda: exported(
        lambda x: x.view(2, 4), x={0: torch.export.Dim("rows")}
    ),
    "element 0 of tensors does not require grad": lambda: TakesAGradient.apply(
        torch.ones(2, requires_grad=True)
    ),
    "call numpy() on Tensor that requires grad": lambda: computed().numpy(),
    "Attempting to unscale FP16 gradients": lambda: scaled(torch.float16, 1),
    "unscale_() has already been called": lambda: scaled(torch.float32, 2),
    "returned an invalid gradient at index": lambda: (
        TooLong.apply(torch.ones(2, requires_grad=True), torch.ones(2, 3))
        .sum()
        .backward()
    ),
    "DataDependentOutputException": lambda: under_fake(torch.Tensor.item),
    "DynamicOutputShapeException": lambda: under_fake(torch.nonzero),
    "is non-finite, so it cannot be clipped": not_finite,
    "view size is not compatible with input tensor's size and stride": lambda: (
        torch.ones(2, 3).t().view(6)
    ),
    "Using backward() with create_graph=True will create a reference cycle": second_graph,
    "use_reentrant parameter should be passed explicitly": lambda: (
        torch.utils.checkpoint.checkpoint(torch.sin, computed())
    ),
    "Inplace update to inference tensor": lambda: under_inference().add_(1),
    "Setting requires_grad=True on inference tensor": lambda: (
        under_inference().requires_grad_()
    ),
    "you can only change requires_grad flags of leaf variables": lambda: (
        computed().requires_grad_(False)
    ),
    "can't optimize a non-leaf Tensor": lambda: torch.optim.SGD([computed()]),
    "Batch norm got a batched tensor": lambda: torch.vmap(nn.BatchNorm1d(3))(
        torch.ones(2, 4, 3)
    ),
    "Default process group has not been initialized": lambda: (
        torch.distributed.all_reduce(torch.ones(1))
    ),
    "BackendCompilerFailed": lambda: torch.compile(torch.sin, backend=lambda *_: 1 / 0)(
        torch.ones(1)
    ),
    "don't yet support saved tensor hooks": lambda: torch.func.grad(hooked)(
        torch.ones(2)
    ),
    "only for real scalar outputs": lambda: torch.fft.fft(computed()).sum().backward(),
    "Mismatch in shape: grad_output[0]": lambda: computed().backward(torch.ones(2)),
    "One of the differentiated Tensors does not require grad": lambda: (
        torch.autograd.grad(computed(), torch.ones(1))
    ),
    "Backward' object has no attribute": lambda: (
        Misspelt.apply(computed()).sum().backward()
    ),
    "attempting to assign a gradient of size": lambda: assigned(2),
    "don't support automatic differentiation": lambda: torch.add(
        computed(), 1, out=torch.empty(1)
    ),
    "missing 1 required keyword-only argument: 'device_type'": lambda: (
        torch.amp.custom_fwd(Misspelt.forward)
    ),
    "to return a scalar Tensor": lambda: torch.func.grad(torch.sin)(torch.ones(2)),
    "same size in the mapped dimension": lambda: torch.vmap(torch.mul)(
        torch.ones(2, 3), torch.ones(3)
    ),
    "Got in_dim=0 for": lambda: torch.vmap(torch.mul)(torch.ones(2), 3.0),
    "We do not support batching operators that can": lambda: torch.vmap(
        lambda x: x[x > 0]
    )(torch.ones(2, 3)),
    "returning intermediate with requires_grad_()": lambda: torch.compile(
        asked_to_require, fullgraph=True, backend="eager"
    )(torch.ones(2)),
    "Calling train() is not supported yet": lambda: (
        torch.export.export(nn.Dropout(), (torch.ones(2),)).module().train()
    ),
    "was assigned during export": lambda: torch.export.export(
        Keeps(), (torch.ones(2),)
    ),
    "kwarg-only Tensor args": lambda: torch.library.custom_op(
        "test_index::scaled", with_keyword, mutates_args=()
    ),
    "incompatible function arguments": lambda: torch._C._jit_set_profiling_mode("no"),
    "is invalid for input of size": lambda: torch.ones(3, 4).view(4, 4),
    "forward() takes": lambda: nn.Sequential()(torch.ones(1), torch.ones(1)),
    "missing a required argument": lambda: torch.export.export(
        nn.Bilinear(1, 1, 1), (torch.ones(1),)
    ),
    "unsupported operand type(s) for *:": lambda: torch.ones(1).grad * 0.1,
    "only integer tensors of a single element can be converted": lambda: [1, 2][
        torch.tensor([0, 1])
    ],
    "expected scalar type": lambda: torch.bmm(
        torch.ones(1, 1, 1), torch.ones(1, 1, 1).double()
    ),
    "Found dtype": lambda: nn.functional.binary_cross_entropy(
        computed() / 4, torch.ones(1).double()
    ).backward(),
    "doesn't match the broadcast shape": lambda: torch.ones(3).add_(torch.ones(2, 3)),
    "Weights only load failed": lambda: loaded(nn.Linear(1, 1)),
    "when making fake tensor call": lambda: compiled(
        torch.add, torch.ones(2), torch.ones(3)
    ),
    "The size of tensor a": lambda: torch.ones(2) + torch.ones(3),
    "Using a target size": lambda: nn.functional.mse_loss(
        torch.ones(4, 1), torch.ones(4)
    ),
    "shapes cannot be multiplied": lambda: nn.Linear(2, 2)(torch.ones(2, 3)),
    "Boolean value of Tensor with more than one value": lambda: bool(torch.ones(2)),
    "more than one element of the written-to tensor": lambda: doubled_in_place(
        torch.ones(3, requires_grad=True)
    ),
    "Tensor-likes are not close": lambda: torch.testing.assert_close(
        torch.ones(2), torch.zeros(2)
    ),
    "Cannot copy out of meta tensor": lambda: nn.Linear(1, 1, device="meta").to("cpu"),
    "Grad strides do not match bucket view strides": lambda: in_a_group(another_layout),
    "'DistributedDataParallel' object has no attribute": lambda: in_a_group(
        lambda: DistributedDataParallel(nn.Linear(1, 1)).weight
    ),
    "FSDP expects uniform original parameter dtype": lambda: in_a_group(two_dtypes),
    "Some elements marked as dirty": lambda: Dirty.apply(computed()),
    "A view was created in no_grad mode": view_without_grad,
    "pack hook is modifying its input in place": packed_in_place,
    "post accumulate grad hooks cannot be registered": lambda: (
        computed().register_post_accumulate_grad_hook(print)
    ),
    "For backward hooks to be called": in_a_dict,
    "duplicate parameters": lambda: torch.optim.SGD([nn.Parameter(torch.ones(1))] * 2),
    "optimizer got an empty parameter list": lambda: torch.optim.SGD([]),
    "gradcheck expects at least one input tensor": lambda: torch.autograd.gradcheck(
        torch.sin, torch.ones(2)
    ),
    "input has a dimension with stride 0": lambda: torch.autograd.gradcheck(
        torch.sin, torch.ones(1).double().expand(2).requires_grad_()
    ),
    "singular vectors in the complex case": vectors_of_svd,
    "Got unsupported ScalarType BFloat16": lambda: torch.ones(1).bfloat16().numpy(),
    "At least one stride in the given numpy array": lambda: torch.from_numpy(
        torch.ones(2).numpy()[::-1]
    ),
    "does not have a deterministic implementation": deterministic,
    "Attempted step but _scale is None": unscaled,
    "Expected the vmap staticmethod to have two returns": lambda: torch.vmap(
        OneReturn.apply
    )(torch.ones(2)),
    "DistributedDataParallel is not needed": lambda: in_a_group(
        lambda: DistributedDataParallel(nn.Linear(1, 1).requires_grad_(False))
    ),
    "cannot be used as inputs to control flow": lambda: torch.fx.symbolic_trace(
        lambda x: x if x.sum() > 0 else -x
    ),
    "Encountered aliasing during higher order op": lambda: torch.cond(
        torch.tensor(True), lambda x: x, lambda x: 2 * x, (torch.ones(2),)
    ),
    "maximum recursion depth exceeded": lambda: torch.ones(1).as_subclass(Endless) * 2,
    "requires that detach() returns an instance of the same type": lambda: nn.Parameter(
        Unwrapped(torch.ones(1))
    ),
    "expression zuf0": lambda: compiled(
        lambda x: math.exp(x.item()) * x, torch.ones(1)
    ),
    "SymFloat": lambda: compiled(lambda x: times(x, x.item()), torch.ones(1)),
    "Unsupported input type": lambda: torch.export.export(
        nn.Identity(), (NamedOnly(),)
    ),
    "dynamic module does not define module export function": without_its_init,
    "'NoneType' object has no attribute": lambda: torch.ones(1).grad.norm(),
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
    cells = nbformat.read(CHAPTER, as_version=4).cells
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    words = re.sub(r"\]\([^)]*\)|\|", " ", text).split()
    words = [word for word in words if re.search(r"\w", word)]  # no ✓, no ---
    assert len(words) <= MOST_WORDS
    ids = [cell.id for cell in cells]
    assert ids.index("matrix-links") < ids.index("w01") < ids.index("w02")
    assert len([t for t in every(TASKS) if t.visitor and t.use]) == 12


def test_every_link_to_a_section_names_the_cell_that_its_heading_begins():
    """JupyterLab 4.6 does not land on a heading whose link is percent-encoded."""
    lost = []
    for path in NOTEBOOKS:
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
        for path in NOTEBOOKS
        for cell in json.loads(path.read_bytes())["cells"]
        if cell["cell_type"] == "code"
    ]
    texts = (
        "".join(output.get("text", "")) for cell in cells for output in cell["outputs"]
    )
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
    texts = [printed().encode(), *texts_of_pytorch()]
    for part in {m.part for m in every(MESSAGES)} - OF_OTHERS - {*PROVOKED}:
        assert any(part.encode() in text for text in texts), part


@pytest.mark.parametrize("part", PROVOKED)
def test_a_message_comes_from_what_its_row_says(part):
    assert any(part in (row.part, *row.cause.split("`")) for row in every(MESSAGES))
    torch.compiler.reset()
    torch.set_warn_always(True)  # also what PyTorch says once in a process
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            PROVOKED[part]()
            said = ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            torch.set_warn_always(False)
    assert part in said + "".join(str(warning.message) for warning in warned)


def test_each_error_that_a_chapter_prints_is_in_the_index():
    texts, parts = printed(), [message.part for message in every(MESSAGES)]
    missing = [
        said[:90]
        for said in re.findall(r"\b(?=(\w*(?:Error|Unsupported): .{150}))", texts)
        if not any(part in said for part in (*parts, *LEFT_OUT))
    ]
    assert not missing, "write a row for it into helpers/lessons/index/messages.py"
    stale = [words for words in LEFT_OUT if words not in texts]
    assert not stale, "no chapter prints it any more"
