"""Two indexes, of tasks and of error messages, and where in the course each is answered.

Chapter 19 and the README hold tables that are made of them:

    python -m tools.which_way

A place is written `"02 Several outputs"`: the number of a chapter, and a heading in it, without its
marks. What can be copied is a path from the root of the repository, or a place.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

ROOT = Path(__file__).parents[2]


class Task(NamedTuple):
    want: str  # what goes on after "I want to"
    copy: str  # CELLS: those of the section to read
    read: str
    check: str
    short: bool = False  # whether the README's table has it


class Message(NamedTuple):
    part: str  # a part of the message that is always the same
    cause: str
    read: str


CELLS = ""
FUNCTION = "19 Skeleton: one Function with everything"
OPERATOR = "19 Skeleton: one operator with everything"
OPS = "helpers/ops/"

TASKS = [
    # A Function and its arguments
    Task("write my own backward (`autograd.Function`)", OPS + "exp.py",
         "02 The same thing as a Function: forward, backward, ctx",
         "`gradcheck`, in float64", True),
    Task("take an optional tensor (`bias=None`) and a flag, under `fullgraph=True`", CELLS,
         "19 An optional tensor and a flag, under fullgraph=True",
         "`fullgraph=True`, with and without", True),
    Task("pass a number, a string or a shape", OPS + "mul_constant.py",
         "03 A constant argument: its gradient is None", "as many gradients as arguments"),
    Task("return several outputs, one of them an integer (`mark_non_differentiable`)", FUNCTION,
         "02 An output without a derivative: mark_non_differentiable",
         "`requires_grad` of each output"),
    Task("return a dict or a list, or take a list of tensors", CELLS,
         "02 Deeper: a list or a dict of tensors, into a Function and out of it (1 minute)",
         "`requires_grad` of each output"),
    Task("return a view from `forward` (a slice, `view_as`)", CELLS,
         "02 Deeper: a view returned from forward (5 minutes)", "change the result in place"),
    Task("skip work for a gradient that nobody needs (`needs_input_grad`)", OPS + "linear.py",
         "02 Work that is not needed: ctx.needs_input_grad", "count the operations"),
    Task("add LoRA to a frozen weight, and save less (`needs_input_grad` in `forward`)", CELLS,
         "19 A frozen weight (LoRA): save only what backward needs", "what is saved"),
    Task("freeze a part of a parameter (some rows of an embedding)", CELLS,
         "19 Freeze a part of a parameter: some rows of an embedding", "a step of AdamW"),
    Task("write a loss of my own (label smoothing)", CELLS,
         "19 A loss of your own: label smoothing", "`gradcheck`, and PyTorch's own"),
    Task("get None for an unused output (`set_materialize_grads`)", FUNCTION,
         "03 When no gradient arrives: set_materialize_grads", "use one output only"),
    Task("change a tensor in place (`mark_dirty`)", CELLS,
         "02 Deeper: an input that is changed in place, mark_dirty (4 minutes)",
         "the gradient of the changed tensor", True),
    Task("save a tensor for backward (`save_for_backward` or `ctx.x`)", OPS + "sinh.py",
         "03 What may live on ctx, and what save_for_backward is for", "`examine` of the doctor"),
    # Is it right?
    Task("check a gradient (`gradcheck`)", "helpers/doctor/", "04 gradcheck by hand: two Jacobians",
         "`examine(f, *inputs)`", True),
    Task("find out what is wrong with a gradient, and in which line", "helpers/doctor/",
         "11 A wrong gradient: what gradcheck says, what the doctor says",
         "`examine(f, *inputs)`"),
    Task("know which checks belong in CI", "helpers/doctor/",
         "11 Deeper: which checks belong in CI: pytest --doctor (8 minutes)",
         "`pytest -p doctor.plugin --doctor`", True),
    Task("find and repair a nan that comes now and then (`set_detect_anomaly`)",
         OPS + "softplus.py", "11 Where a nan is born: set_detect_anomaly",
         "`examine`, with large inputs"),
    Task("mask a loss: `torch.where(mask, x, 1)` before what may be nan, not after", CELLS,
         "11 Where a nan is born: set_detect_anomaly", "a nan where the mask is False"),
    Task("have a gradient for complex inputs (conjugate, Wirtinger)", CELLS,
         "04 Deeper: complex numbers, and the two derivatives of Wirtinger (8 minutes)",
         "`gradcheck`, in complex128"),
    # Hooks, and gradients by decision
    Task("see or change a gradient on its way (`register_hook`)", CELLS,
         "11 Deeper: see, clip and scale a gradient with hooks: register_hook (5 minutes)",
         "print the gradient in the hook", True),
    Task("log the gradient norm of each layer (a full backward hook)", CELLS,
         "19 Log the gradient norm of every parameter and every layer", "print the norms"),
    Task("reverse or scale a gradient", OPS + "gradient_reversal.py",
         "10 Deeper: plain operations that survive every transform (3 minutes)",
         "19: the matrix, first column"),
    Task("clip a gradient inside the network", CELLS,
         "03 Deeper: clip a gradient inside the network (3 minutes)", "a gradient above the limit"),
    Task("stop a gradient in one branch (`detach`)", CELLS,
         "13 Straight-through in plain operations: detach", "the gradient of each branch"),
    Task("train through rounding, a quantiser, a sign or a spike (straight-through)",
         OPS + "straight_through.py", "13 Straight-through: a gradient for round and sign",
         "`examine(…, faithful=False)`", True),
    Task("have a gradient through a lookup or a scatter (`index_put_`, `accumulate=True`)",
         "helpers/lessons/exercises/chapter_11.py",
         "11 Choose the inputs: branches, extreme values, repeats", "an index that occurs twice"),
    # Derivatives of derivatives, and transforms
    Task("differentiate twice: gradient penalty (`create_graph`)", CELLS,
         "05 A gradient penalty", "`gradgradcheck`"),
    Task("repair a second derivative that is silently wrong (gradient penalty, Hessian)",
         OPS + "sinh.py", "05 Two repairs: recompute the intermediate, or return it",
         "`gradgradcheck`", True),
    Task("refuse a second derivative (`once_differentiable`)", CELLS,
         "05 A backward in NumPy or C: once_differentiable", "`gradgradcheck` raises"),
    Task("multiply by a Hessian (`hvp`), take a Newton step", CELLS,
         "05 A Hessian times a vector, without the Hessian", "compare with `func.hessian`"),
    Task("get per-sample gradients (`vmap(grad(loss))`)", OPS + "exp.py",
         "10 Per-sample gradients: vmap(grad(loss))", "a loop over the samples", True),
    Task("get per-sample gradients through a kernel in C++ or NumPy (`register_vmap`)", OPERATOR,
         OPERATOR, "a loop over the samples"),
    Task("support `vmap` (`generate_vmap_rule`, a `vmap` rule)", FUNCTION,
         "10 A rule for vmap: generate_vmap_rule, or your own", "`in_dims` other than 0"),
    Task("support forward mode (`jvp`, `jacfwd`)", FUNCTION,
         "10 Forward mode: dual numbers and jvp", "`gradcheck`, with `check_forward_ad`"),
    # Compilers and operators
    Task("use `torch.compile` without a graph break (`fullgraph`)", OPS + "exp.py",
         "09 Breaks that you can remove: a print, an if", "`fullgraph=True`", True),
    Task("call NumPy, SciPy or C in a compiled model (`custom_op`)", OPERATOR,
         "09 A name and a promise: custom_op", "`opcheck`", True),
    Task("write a fake kernel (`register_fake`)", OPERATOR,
         "09 What is promised must hold: opcheck", "`opcheck`"),
    Task("compile once for many shapes (`dynamic=True`, `SymInt`)", OPERATOR,
         "09 One graph for many shapes: dynamic=True", "count the graphs"),
    Task("export a model that holds my operation (`torch.export`)", OPERATOR,
         "09 Export: torch.export", "load the file in a new process, and train it further"),
    Task("copy or pickle a model that holds an operator: call it in `forward`, keep no attribute",
         CELLS, "19 Copy and pickle a module that calls an operator", "pickle the model"),
    Task("write an operator that changes its argument (`mutates_args`)", CELLS,
         "16 Deeper: an operator that writes into its argument, Tensor(a!) (3 minutes)",
         "`opcheck`"),
    # Kernels and packages
    Task("write a CUDA kernel", OPS + "involution/", "07 One thread, one element",
         "on the CPU: every access is checked", True),
    Task("write a Triton operator with autograd (`triton_op`, `wrap_triton`)", CELLS,
         "15 Deeper: a Triton kernel with a gradient: triton_op and register_autograd (2 minutes)",
         "`TRITON_INTERPRET=1`"),
    Task("write a longer Triton kernel (blocks, masks, `tl.constexpr`)", CELLS,
         "15 Deeper: the same in Triton (12 minutes)", "`TRITON_INTERPRET=1`"),
    Task("write a C++ operator (`TORCH_LIBRARY`)", "helpers/template/project/",
         "08 C++ that knows tensors", "a transposed input"),
    Task("ship a wheel for several torches", "helpers/template/project/", "16 The wheel",
         "import it in an empty environment", True),
    Task("ship a wheel for each CUDA version", "helpers/template/project/",
         "16 Deeper: a wheel for each CUDA version (3 minutes)", "load it with each torch"),
    Task("ship a wheel for free-threaded Python (`cp314t`)", "helpers/template/project/",
         "16 Deeper: free-threaded Python, abi3 and Py_mod_gil (4 minutes)",
         "the GIL stays off"),
    Task("run a model without Python (AOTInductor)", CELLS,
         "16 Deeper: AOTInductor, running a model without Python (10 minutes)",
         "the same numbers in C++"),
    Task("export to ONNX (`torch.onnx.export`, `custom_translation_table`)", CELLS,
         "19 Export to ONNX", "ONNX Runtime, and the same numbers"),
    # Memory
    Task("use less memory in training (checkpoint, recompute)", OPS + "recompute/",
         "12 Tickets instead of tensors: recompute", "the peak, and the same gradients", True),
    Task("take the cross-entropy of many classes without the logits",
         OPS + "linear_cross_entropy/", "12 A chunked cross-entropy: never hold the logits",
         "the peak"),
    Task("find a memory leak in training (view, closure, cycle)", CELLS,
         "12 Deeper: what keeps memory alive in a training loop: cycle, closure, view, graph",
         "count the storages that live"),
    # Fewer bits
    Task("use a Function under autocast (`custom_fwd`, `custom_bwd`)", OPS + "linear.py",
         "17 Autocast and a custom Function", "the dtype of each gradient"),
    Task("add up bfloat16 gradients in float32 (`weight.grad_dtype = torch.float32`)", CELLS,
         "17 Deeper: where PyTorch adds up in bfloat16: embedding, index and .grad, with "
         "grad_dtype (2 minutes)", "1,000 gradients of 1, and a step of the optimizer"),
    Task("keep in bf16 what backward needs", CELLS,
         "17 Save for backward in bfloat16", "the error, and the second derivative"),
    Task("train in float16 or float8 (loss scale, `GradScaler`)", CELLS,
         "17 Gradient underflow in float16, and the loss scale", "gradients that are 0"),
    # Solvers, processes, tensors, modules
    Task("differentiate a solver, a fixed point or a minimum (`argmin`)", OPS + "fixed_point.py",
         "13 Implicit differentiation: the gradient of a fixed point",
         "converge tighter: the gradient stays"),
    Task("solve a linear system, and keep its factors for backward (`lu_factor`)", CELLS,
         "13 Deeper: a factorisation that is kept for backward (6 minutes)",
         "count the factorisations"),
    Task("have a gradient through `sort` or `topk`", CELLS,
         "13 Deeper: the gradient of sort and of the top k (7 minutes)",
         "three elements that move in a circle"),
    Task("have a gradient through `all_reduce` (DDP, tensor parallel)", OPS + "collectives/",
         "14 Two correct answers: the identity, or an all-reduce", "the adjoint test"),
    Task("train under DDP a parameter that some steps do not use (`find_unused_parameters`)", CELLS,
         "14 Deeper: a gradient that is None, under DDP and AdamW (7 minutes)",
         "two steps, as the first raises nothing"),
    Task("find out why DDP hangs (time-out, `TORCH_DISTRIBUTED_DEBUG`)", OPS + "collectives/",
         "14 When one is missing: time-out, deadlock, mismatch", "an `if` on a process's own data"),
    Task("write a tensor subclass (`__torch_dispatch__`, `__torch_function__`)",
         "18 A matrix that is never made", "18 Which one?", "what type the gradient has", True),
    Task("keep weights in a module (`nn.Parameter`, `nn.Buffer`)", OPS + "linear.py",
         "06 What a module registers: nn.Parameter, nn.Buffer, children",
         "`state_dict`, loaded again"),
    Task("load a checkpoint whose names have changed (`load_state_dict`)", CELLS,
         "06 Rename a parameter: register_load_state_dict_pre_hook", "an old and a new checkpoint"),
    Task("know whether every parameter gets a gradient", CELLS,
         "06 Test that every parameter gets a gradient", "a list of names that you wrote"),
    Task("run a Function written for PyTorch 0.1 to 0.3", OPS + "legacy.py",
         "01 Migrate: old spelling and new spelling, in one table",
         "the same numbers as today's spelling"),
]  # fmt: skip

MESSAGES = [
    # In eager mode
    Message("one of the variables needed for gradient computation has been modified",
            "a saved tensor was changed in place between forward and backward",
            "02 Deeper: an input that is changed in place, mark_dirty (4 minutes)"),
    Message("is a view and is being modified inplace",
            "`forward` returned a view of its input, and someone writes into it",
            "02 Deeper: a view returned from forward (5 minutes)"),
    Message("a leaf Variable that requires grad is being used in an in-place operation",
            "a parameter is changed in place while autograd records",
            "02 Deeper: an input that is changed in place, mark_dirty (4 minutes)"),
    Message("does not require grad and does not have a grad_fn",
            "nothing that led to the loss requires a gradient, or it was detached on the way",
            "02 An output without a derivative: mark_non_differentiable"),
    Message("grad can be implicitly created only for scalar outputs",
            "`backward()` of a tensor with several elements: pass `gradient=`, or sum first",
            "02 The same thing as a Function: forward, backward, ctx"),
    Message("Trying to backward through the graph a second time",
            "the first backward pass freed what was saved: `retain_graph=True`, or a new forward",
            "04 Save the result for backward, not the input"),
    Message("returned an incorrect number of gradients",
            "`backward` must return one gradient, or None, for each argument of `forward`",
            "03 A constant argument: its gradient is None"),
    Message("returned an invalid gradient at index",
            "the shape is not that of the input: a transpose or a sum over the batch is missing",
            "02 A surprise: a wrong gradient that trains"),
    Message("positional arguments but",
            "`backward` gets `ctx` and one gradient for each output",
            "02 Several outputs"),
    Message("trying to differentiate twice a function that was marked with @once_differentiable",
            "this `backward` leaves autograd on purpose",
            "05 A backward in NumPy or C: once_differentiable"),
    Message("appears to not have been used in the graph",
            "no path leads from the output to that tensor: detached, or None returned",
            "03 The price: None travels on"),
    Message("Jacobian mismatch for output 0 with respect to input 0",
            "`gradcheck`: the gradient differs from the measured one; the doctor says how",
            "11 A wrong gradient: what gradcheck says, what the doctor says"),
    Message("Backward is not reentrant",
            "two backward passes of one graph differ: a random draw, or state",
            "04 3. Randomness"),
    Message("returned nan values in its 0th output",
            "anomaly mode: the first node whose backward returned nan; `forward` may have made it",
            "11 Where a nan is born: set_detect_anomaly"),
    Message("Legacy autograd function with non-static forward method is deprecated",
            "a Function of PyTorch 0.1 to 0.3",
            "01 Surprise: the same class today"),
    Message("cannot assign parameters before Module.__init__() call",
            "a module without `super().__init__()`",
            "01 Deeper: mistakes in the documentation of 2017 (6 minutes)"),
    Message("call numpy() on Tensor that requires grad",
            "NumPy has no gradients: write a Function, or an operator",
            "09 A name and a promise: custom_op"),
    Message("object has no attribute '_fwd_used_autocast'",
            "`custom_fwd` does not go with `setup_context`",
            "17 Surprise: custom_fwd fails with setup_context"),
    # torch.func
    Message("In order to use an autograd.Function with functorch transforms",
            "`torch.func` needs a Function with `setup_context`",
            "10 Per-sample gradients: vmap(grad(loss))"),
    Message("You must implement the jvp function for custom autograd.Function",
            "forward mode needs a `jvp`",
            "10 Forward mode: dual numbers and jvp"),
    Message("does not have vmap support",
            "no `vmap` method, and no `generate_vmap_rule = True`",
            "10 A rule for vmap: generate_vmap_rule, or your own"),
    Message("attempting to use a Tensor in some data-dependent control flow",
            "an `if` on a tensor's elements under `vmap`",
            "10 A rule for vmap: generate_vmap_rule, or your own"),
    Message("Cannot access data pointer of Tensor that doesn't have storage",
            "NumPy or C under `vmap`, or inside a compiler",
            "10 A rule for vmap: generate_vmap_rule, or your own"),
    # Processes
    Message("Expected to have finished reduction in the prior iteration",
            "DDP: the loss did not reach a parameter: freeze it, or `find_unused_parameters=True`",
            "14 Deeper: a gradient that is None, under DDP and AdamW (7 minutes)"),
    Message("Timed out waiting",
            "a process did not call the collective that the others wait in",
            "14 When one is missing: time-out, deadlock, mismatch"),
    # Compilers
    Message("Unsupported: Data-dependent branching",
            "an `if` on a tensor's elements under `fullgraph=True`",
            "09 Breaks that you can remove: a print, an if"),
    Message("Could not guard on data-dependent expression",
            "an `if` on a number from `.item()`",
            "09 Deeper: a number from .item() in a graph (1 minute)"),
    Message("does not currently support double backward",
            "what `torch.compile` returned was differentiated twice",
            "19 The matrix: which way of writing works where"),
    Message("Unsupported custom jvp",
            "a compiler takes no Function with a `jvp`",
            "19 What to choose"),
    Message("duplicate tensor input",
            "a compiled Function got one tensor in two arguments: pass a clone, or use an operator",
            "09 Deeper: a Function that gets a tensor twice, or is differentiated twice "
            "(3 minutes)"),
    # Operators
    Message("cannot pickle 'torch._C._DispatchModule' object",
            "a module keeps a `custom_op` as an attribute: call the operator in `forward`",
            "19 Copy and pickle a module that calls an operator"),
    Message("There was no fake impl registered for",
            "the compiler needs `register_fake`",
            "09 A name and a promise: custom_op"),
    Message("no autograd formula was registered",
            "the operator needs `register_autograd`",
            "09 Its derivative: register_autograd"),
    Message("got an unexpected keyword argument 'ctx'",
            "`register_autograd` passes by name: `setup_context(ctx, inputs, output)`",
            "09 Its derivative: register_autograd"),
    Message("an autograd kernel was not registered to the Autograd key(s)",
            "the same of an operator in C++: a warning, and no gradient or a wrong one",
            "08 A derivative for the C++ operator: register_autograd"),
    Message("is not defined as mutable but was mutated",
            "`opcheck`: the kernel changes an argument that the schema calls constant",
            "09 What is promised must hold: opcheck"),
    Message("found mismatched tensor metadata",
            "`opcheck`: the fake kernel promises another shape, stride or dtype",
            "09 What is promised must hold: opcheck"),
    Message("Cannot register autograd formula for non-functional operator",
            "an operator that writes has no gradient: make one that returns a new tensor",
            "16 Deeper: an operator that writes into its argument, Tensor(a!) (3 minutes)"),
    Message("Could not find schema for",
            "a package of AOTInductor calls an operator that is not in it: import its module, or "
            "define its schema in C++",
            "16 Deeper: AOTInductor, running a model without Python (10 minutes)"),
]  # fmt: skip


# For the README: words of further tasks
MORE = ("a view|autocast|bf16|complex inputs|label smoothing|leak|linear system|LoRA|nan|ONNX|"
        "several outputs|solver|`sort`|Triton operator").split("|")  # fmt: skip


@cache
def headings(chapter):
    """The file of the chapter with this number, and the anchors of its headings by their text."""
    (path,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    found = (re.findall(r"^#+ (.+)$", text, re.MULTILINE) for text in texts)
    plain = [re.sub(r"[`*$]", "", heading) for group in found for heading in group]
    return path.name, {heading: quote(heading.replace(" ", "-")) for heading in plain}


def section(place, folder="", text=None):
    """A link to a place, as Markdown; ValueError where the chapter has no such heading."""
    chapter, heading = place.split(" ", 1)
    name, anchors = headings(chapter)
    if heading not in anchors:
        raise ValueError(f"{name} has no heading {heading!r}; it has {', '.join(anchors)}")
    text = text or re.sub(r" \(\d+ minutes?\)$", "", place)
    return f"[{text}]({folder}{name}#{anchors[heading]})"


def source(copy, root="../", folder=""):
    """A link to what can be copied: a file, a folder, or the cells of a section."""
    if not re.match(r"\d\d ", copy):
        if not (ROOT / copy).exists():
            raise ValueError(f"there is nothing to copy at {copy}")
        shown = copy.removeprefix("helpers/").removeprefix("lessons/")
        return f"[`{shown}`]({root}{copy})"
    kind = "skeleton" if "Skeleton" in copy else "cells"
    return section(copy, folder, f"the {kind} of {copy[:2]}")


def table(head, rows):
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def index_of_tasks():
    rows = [(t.want, source(t.copy or t.read), section(t.read), t.check) for t in TASKS]
    return table(("I want to …", "copy", "read", "check with"), rows)


def index_of_messages():
    rows = [(f"`{m.part}`", m.cause, section(m.read)) for m in MESSAGES]
    return table(("the message holds", "cause", "read"), rows)


def most_wanted():
    """The README's table, and links to more tasks."""
    wanted, at = (t for t in TASKS if t.short), "notebooks/"
    rows = [(t.want, source(t.copy or t.read, "", at), section(t.read, at)) for t in wanted]
    reads = {word: next(t.read for t in TASKS if word in t.want) for word in MORE}
    more = ", ".join(section(read, at, word) for word, read in reads.items())
    return f"{table(('I want to …', 'copy', 'read'), rows)}\n\nAnd: {more}."
