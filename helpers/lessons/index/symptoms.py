"""What goes wrong without a message, and where in the course each is explained."""

from typing import NamedTuple


class Symptom(NamedTuple):
    what: str
    look: str  # for what
    read: str


SYMPTOMS = [
    Symptom("the loss does not go down since an operation was replaced",
            "`rounds` of the doctor, then a list of the parameters that get a "
            "gradient",
            "11 A whole program: rounds"),
    Symptom("a parameter does not move",
            "its gradient is None, zero, or of a copy; or the optimizer holds another, as "
            "one that was made before `fully_shard`",
            "06 Test that every parameter gets a gradient"),
    Symptom("wrong only on the second GPU",
            "the kernel runs on another device or stream: `torch.cuda.device_of(x)`, "
            "the current stream", "16 The C++ and CUDA files"),
    Symptom("right with `CUDA_LAUNCH_BLOCKING=1`, garbage without",
            "a kernel on the default stream, or a temporary that is freed too early: "
            "the current stream, `record_stream`",
            "16 The C++ and CUDA files"),
    Symptom("`backward` of a Function is not called",
            "`forward` was called instead of `apply`, no input requires a gradient, or "
            "the tensor came inside a list",
            "02 Deeper: a list or a dict of tensors, into a Function and out of it (3 "
            "minutes)"),
    Symptom("one branch gets another one's gradient",
            "a `backward` or a hook that writes into `grad_output`",
            "11 6. grad_output changed in place"),
    Symptom("a gradient too large by the number of processes (world size)",
            "all processes have the same loss, and a collective adds their gradients",
            "14 Two correct answers: the identity, or an all-reduce"),
    Symptom("a gradient too small by the number of processes",
            "under DDP, which averages: a collective between the processes takes "
            "`loss=\"summed\"`; AdamW hides the factor",
            "14 Deeper: a contrastive loss under DDP (4 minutes)"),
    Symptom("a second derivative through `scan` is wrong",
            "in eager mode, without an error: a Python loop",
            "23 A loop in one graph: scan, while_loop"),
    Symptom("a tensor subclass becomes a plain Tensor",
            "`__torch_dispatch__` must wrap its results again, also those of "
            "`detach` and `clone`",
            "18 A matrix that is never made"),
    Symptom("wrong only on two processes",
            "a collective with another backward, or what looks at a part: batch norm "
            "(`SyncBatchNorm`), a mean over parts of unequal size",
            "14 Two correct answers: the identity, or an all-reduce"),
    Symptom("a run on several processes hangs",
            "one process calls another collective, or none",
            "14 When one is missing: time-out, deadlock, mismatch"),
    Symptom("the backward pass is slow",
            "work for gradients that nobody needs; a kernel that waits; "
            "`set_detect_anomaly`, left on",
            "02 Work that is not needed: ctx.needs_input_grad"),
    Symptom("a small Function is slow",
            "what a call costs beside a plain operation",
            "23 What a call of a Function or an operator costs"),
    Symptom("memory grows from step to step",
            "a graph, as in `total += loss` (`.item()`), a cycle, a view, a closure",
            "12 Deeper: what keeps memory alive in a training loop: cycle, closure, "
            "view, graph"),
    Symptom("`CUDA out of memory` (`OutOfMemoryError`) in training",
            "autograd keeps what each layer saves. `checkpoint(block, x, "
            "use_reentrant=False)` keeps only inputs of blocks. For the logits, "
            "`linear_cross_entropy`",
            "12 Tickets instead of tensors: recompute"),
    Symptom("out of memory (`Tried to allocate`), and nobody knows of what",
            "`torch.cuda.memory._record_memory_history()`, then `_dump_snapshot`, "
            "and [memory_viz](https://docs.pytorch.org/docs/2.15/torch_cuda_memory.html) "
            "shows which line made what is alive",
            "12 Deeper: what keeps memory alive in a training loop: cycle, closure, "
            "view, graph"),
    Symptom("decoding with a cache gives other numbers",
            "`is_causal` lets query i see keys 0 to i, also where there are more keys: "
            "`attn_mask=torch.ones(L, S, dtype=torch.bool).tril(S - L)`",
            "20 Deeper: rows with nothing to attend to, causal blocks, grouped "
            "queries (3 minutes)"),
    Symptom("nan now and then",
            "a formula that overflows, or 0 · inf: `sqrt` at 0, a `softmax` of a row of "
            "`-inf`",
            "11 Where a nan is born: set_detect_anomaly"),
    Symptom("the gradient of `eigh` or `svd` is huge or nan",
            "it divides by differences of eigenvalues: `eigvalsh`, or `d / (d**2 + "
            "eps)` for `1 / d` in a Function",
            "11 Where a nan is born: set_detect_anomaly"),
    Symptom("a gradient is wrong since a kernel (Triton, NumPy, a pointer) writes into "
            "a tensor",
            "autograd does not see it: `torch.autograd.graph.increment_version(x)`, or a "
            "`custom_op` with `mutates_args`",
            "23 An operator that writes into a buffer or a cache: mutates_args"),
    Symptom("zeros, or `illegal memory access`, beyond `2**31` elements",
            "int32 products in a kernel: `tl.program_id(0).to(tl.int64)`",
            "23 Sum over rows in a backward kernel, without atomicAdd"),
    Symptom("other numbers on each run",
            "no seed, a draw in backward, or an order of sums by chance",
            "11 9. A backward that draws at random"),
    Symptom("other last digits on each run, on a GPU",
            "`atomicAdd`, which is not deterministic: one thread adds a sum",
            "15 Deeper: a backward that reduces across rows, and atomicAdd (6 "
            "minutes)"),
    Symptom("an error in `backward`, and no line of `forward`",
            "`set_detect_anomaly(True)` prints that line, too",
            "11 Where a nan is born: set_detect_anomaly"),
    Symptom("right in eager mode, wrong when compiled",
            "a gradient that the compiler drops, a side effect, or other random numbers: "
            "`torch._inductor.config.fallback_random = True`",
            "19 The matrix: which way of writing works where"),
    Symptom("a hook is not called when compiled",
            "it was registered after the first call: register it before, or "
            "`torch.compiler.reset()`",
            "11 Deeper: hooks of modules, parameters and nodes; gradient edges (14 "
            "minutes)"),
    Symptom("a breakpoint or a thread-local is not seen in `backward`",
            "the backward pass runs in a thread of its own",
            "11 Deeper: a breakpoint in backward, and its thread (2 minutes)"),
    Symptom("the parameters of a module or closure in a Function get no gradient",
            "only tensors that are arguments of `apply` get one",
            "12 Recompute: activation checkpointing"),
    Symptom("a second derivative of 0 when compiled",
            "a Function inside two transforms: leave it out while "
            "`torch.compiler.is_compiling()`",
            "20 Deeper: compiled, and differentiated twice (2 minutes)"),
    Symptom("an edit of a registration has no effect when compiled",
            "inductor's cache on disk does not notice it: "
            "`torch.compiler.config.force_disable_caches = True`",
            "09 Deeper: the loops that inductor writes, counted (4 minutes)"),
    Symptom("right in float32, wrong in 16 bits",
            "a sum that stops growing, a gradient that underflows",
            "17 A sum that stops growing"),
    Symptom("gradcheck passes, training does not",
            "one layout, one dtype, one point: what gradcheck does not try",
            "11 gradcheck passes, and the gradient is wrong"),
    Symptom("a second derivative is wrong or zero",
            "an intermediate that was taken for a constant",
            "05 Surprise: a second derivative that is silently wrong"),
    Symptom("weights at the end of a quantised range stop learning",
            "`clamp` has slope 0 at its bounds since 2.14: `torch.where` first, then "
            "round",
            "13 Straight-through: a gradient for round and sign"),
    Symptom("right with one loss, wrong if the output is summed first",
            "the gradient of a sum is not contiguous: stride 0",
            "07 Deeper: AssertionError in backward: the gradient of a sum is not "
            "contiguous (3 minutes)"),
    Symptom("wrong for a slice or a transposed tensor",
            "a kernel that knows no strides",
            "08 Surprise: the columns of a photograph"),
]  # fmt: skip
