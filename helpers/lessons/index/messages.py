"""Error messages that people look for, and where in the course each is explained."""

from typing import NamedTuple


class Message(NamedTuple):
    part: str  # a part of the message that is always the same
    cause: str  # and what to do
    read: str
    where: str = ""  # where it was raised, if that makes it another cause
    short: bool = False  # is it among the README's?


# By what raises them. Of a message with several causes, the likeliest comes first.
MESSAGES = {
    "Gradients in eager mode": [
        Message("one of the variables needed for gradient computation has been "
                "modified by an inplace operation",
                "a saved tensor was changed in place. Write `h = h + 1` for `h += 1`,"
                " and `optimizer.step()` after the last `backward`. In place of "
                "`retain_graph=True` over steps, `h = h.detach()`. "
                "`set_detect_anomaly` names what saved it",
                "04 Modified by an inplace operation: the price of saving the result",
                short=True),
        Message("is a view and is being modified inplace",
                "`forward`, `unbind`, `split` or a module with a full backward hook "
                "returned a view. Write `y = y + 1`, or `clone()` first. Inside that "
                "module, `inplace=False`",
                "02 Deeper: a view returned from forward (5 minutes)"),
        Message("a leaf Variable that requires grad",
                "`is being used in an in-place operation`: a parameter is changed "
                "while autograd records. Write under `torch.no_grad()`. By a Function"
                " with `mark_dirty`: `apply(x.clone())`",
                "02 Deeper: an input that is changed in place, mark_dirty (4 minutes)"),
        Message("element 0 of tensors does not require grad",
                "nothing that led to the loss requires a gradient. Call "
                "`requires_grad_()` on what should get one, and leave out `no_grad`, "
                "`detach`, `item`, `numpy`",
                "02 Element 0 of tensors does not require grad: a constant",
                short=True),
        Message("element 0 of tensors does not require grad",
                "nothing is recorded in a `backward`: `torch.enable_grad()` around "
                "detached copies",
                "12 Recompute: activation checkpointing",
                "inside a `backward`"),
        Message("element 0 of tensors does not require grad",
                "the first derivative has no history. Pass `create_graph=True`. Or "
                "its `backward` left autograd, also by `@once_differentiable`: "
                "PyTorch's operations need neither",
                "05 A gradient that can be differentiated: create_graph=True",
                "of a second derivative"),
        Message("element 0 of tensors does not require grad",
                "`forward` records nothing: `torch.enable_grad()` around "
                "`x.detach().requires_grad_()`",
                "12 Recompute: activation checkpointing",
                "inside a `forward` of a Function"),
        Message("None of the inputs have requires_grad=True",
                "or `incompatible with .grad()`: `checkpoint` with "
                "`use_reentrant=True`: pass `use_reentrant=False`",
                "12 Tickets instead of tensors: recompute"),
        Message("element 0 of tensors does not require grad",
                "`torch.autograd.grad` records nothing there: "
                "`vmap(torch.func.grad(f))`",
                "10 Per-sample gradients: vmap(grad(loss))",
                "under `vmap`"),
        Message("element 0 of tensors does not require grad",
                "a Function got or returned its tensors in a list: pass them one by "
                "one",
                "02 Deeper: a list or a dict of tensors, into a Function and out of it "
                "(3 minutes)",
                "of a Function's output"),
        Message("cannot register a hook on a tensor that doesn't require gradient",
                "`h.requires_grad` is False: no gradient will come by",
                "11 Deeper: see, clip and scale a gradient with hooks: register_hook "
                "(5 minutes)"),
        Message("Full backward hook is firing when gradients are computed",
                "a warning: no input of the module requires a gradient: a hook of the "
                "output, or of the parameter",
                "11 Deeper: hooks of modules, parameters and nodes; gradient edges (14 "
                "minutes)"),
        Message("has changed the size of value",
                "a module's backward hook returned a tensor: return a tuple with one "
                "entry for each input; or a tensor's hook returned another shape",
                "11 Deeper: hooks of modules, parameters and nodes; gradient edges (14 "
                "minutes)"),
        Message("The .grad attribute of a Tensor that is not a leaf Tensor is being "
                "accessed",
                "no gradient is kept for what was computed, also by `.to()`. Call "
                "`requires_grad_()` after it, or `h.retain_grad()` before "
                "`backward()`. `can't retain_grad`: nothing before it requires one",
                "22 See, change, clip a gradient: register_hook, retain_grad"),
        Message("Using backward() with create_graph=True will create a reference cycle",
                "a warning, and a leak: the `.grad` of a parameter holds its graph: "
                "`torch.autograd.grad(…, create_graph=True)`, or `.grad = None` "
                "afterwards",
                "05 A gradient that can be differentiated: create_graph=True"),
        Message("you can only change requires_grad flags of leaf variables",
                "a computed tensor: `h = h.detach()`, or freeze the parameters, "
                "`module.requires_grad_(False)`",
                "06 Tied weights, frozen weights"),
        Message("can't optimize a non-leaf Tensor",
                "the parameter was computed, as by `.to()` or `2 * …` after "
                "`requires_grad_()`. Make it an `nn.Parameter` last",
                "06 What a module registers: nn.Parameter, nn.Buffer, children"),
        Message("view size is not compatible with input tensor's size and stride",
                "the tensor is transposed or cut, in `backward` often the gradient: "
                "`.reshape(…)`",
                "07 Deeper: AssertionError in backward: the gradient of a sum is not "
                "contiguous (3 minutes)"),
        Message("is non-finite, so it cannot be clipped",
                "`The total norm of order …`: a gradient is nan or infinite: find "
                "the first, or skip the step, as `GradScaler` does",
                "11 Where a nan is born: set_detect_anomaly"),
        Message("grad can be implicitly created only for scalar outputs",
                "`backward()` of a tensor with several elements: pass `gradient=`, "
                "or sum first",
                "02 Deeper: three slips, a result for a function, __init__, squeeze(0) "
                "(4 minutes)"),
        Message("only for real scalar outputs",
                "the loss is complex: `.abs().square()` or `.real` of it",
                "04 Deeper: complex numbers, and the two derivatives of Wirtinger (8 "
                "minutes)"),
        Message("Mismatch in shape: grad_output[0]",
                "`gradient=` or `grad_outputs=` is not of the output's shape, as (4,) "
                "is not (4, 1): `torch.ones_like(y)`",
                "02 The same thing as a Function: forward, backward, ctx"),
        Message("One of the differentiated Tensors does not require grad",
                "`torch.autograd.grad` for an input without `requires_grad_()`, or a "
                "frozen parameter: `[p for p in … if p.requires_grad]`",
                "06 Tied weights, frozen weights"),
        Message("Trying to backward through the graph a second time",
                "the graph was freed. If it is the last step's, `h = h.detach()`. If "
                "it was built before the loop, build it inside. For two losses, `(a +"
                " b).backward()`",
                "12 Deeper: what keeps memory alive in a training loop: cycle, "
                "closure, view, graph",
                short=True),
        Message("returned an incorrect number of gradients",
                "one gradient, or None, for each argument of `forward`; None for one that is no "
                "tensor, else: `returned a gradient different than None`",
                "03 A constant argument: its gradient is None"),
        Message("returned an invalid gradient at index",
                "the shape is not that of the input. A transpose is missing, or a sum"
                " over *last* dimensions, or two gradients are in the wrong order. "
                "Where the input broadcasts, the engine itself sums",
                "02 Leave out the sum",
                short=True),
        Message("is invalid for input of size",
                "numbers that do not fit, often at a last, smaller batch: "
                "`x.flatten(1)`, or `x.view(len(x), -1)`; in a `backward`: the "
                "input's shape, `ctx.shape`",
                "03 A constant argument: its gradient is None"),
        Message("must be contiguous",
                "a kernel's own check, which a transposed tensor fails, and the gradient of "
                "a `sum` or `expand`: `.contiguous()`",
                "07 Deeper: AssertionError in backward: the gradient of a sum is not "
                "contiguous (3 minutes)"),
        Message("expected Variable or None",
                "`backward` returned a number, a list or an array: return a tensor, a "
                "tuple of tensors, or None",
                "02 The same thing as a Function: forward, backward, ctx"),
        Message("You must implement either the backward or vjp method",
                "the Function has no `backward`, or its name is misspelt; if none is "
                "meant, `ctx.mark_non_differentiable` the output",
                "02 The same thing as a Function: forward, backward, ctx"),
        Message("save_for_backward can only save variables",
                "a number, a shape or a list of tensors: numbers go on `ctx`, tensors "
                "one by one",
                "03 What may live on ctx, and what save_for_backward is for"),
        Message("Backward' object has no attribute",
                "`backward` reads from `ctx` what was not put there: misspelt (it is "
                "`saved_tensors`), set in one branch only, or an operator without its "
                "`setup_context`",
                "03 What may live on ctx, and what save_for_backward is for"),
        Message("backward() takes",
                "`backward` gets `ctx` and one gradient for each output",
                "02 Several outputs"),
        Message("forward() takes",
                "a module got more than its `forward` names; `nn.Sequential` passes "
                "one argument",
                "06 What a module registers: nn.Parameter, nn.Buffer, children"),
        Message("forward() takes",
                "`forward` without `ctx` and no `setup_context`: write `forward(ctx, "
                "…)`, or add `setup_context`",
                "10 Per-sample gradients: vmap(grad(loss))",
                "of a Function"),
        Message("missing a required argument",
                "`torch.export` got fewer example inputs than `forward` takes; of a "
                "Function: `ctx` beside a `setup_context`, leave it out",
                "10 Per-sample gradients: vmap(grad(loss))"),
        Message("unsupported operand type(s) for *:",
                "of None, or `'NoneType' object has no attribute`: `.grad` is None before the first "
                "`backward`, and where no gradient arrives; in a `backward` with "
                "`set_materialize_grads(False)`, too",
                "03 When no gradient arrives: set_materialize_grads"),
        Message("Inference tensors cannot be saved for backward",
                "or `Inplace update to inference tensor`, `Setting requires_grad=True on "
                "inference tensor`: made under `inference_mode`: `.clone()` it, or use "
                "`no_grad`",
                "03 What may live on ctx, and what save_for_backward is for"),
        Message("Cannot copy out of meta tensor",
                "in FSDP2, `should be materialized from meta device`: "
                "`to_empty(device=…)`, then write every weight and buffer, which hold "
                "garbage; or `load_state_dict(sd, assign=True)`",
                "06 Deeper: a tie that is lost, assign=True and to_empty (3 minutes)"),
        Message("Unexpected key(s) in state_dict",
                "`_orig_mod.` before each name: saved while compiled; `module.`: of DDP: "
                "`consume_prefix_in_state_dict_if_present(sd, \"_orig_mod.\")`",
                "06 Deeper: a compiled module, its state_dict and its hooks (6 minutes)"),
        Message("support the deepcopy protocol",
                "a module keeps a computed tensor as an attribute: compute it in "
                "`forward`, or detach it",
                "06 What a module registers: nn.Parameter, nn.Buffer, children"),
        Message("trying to differentiate twice a function that was marked with "
                "@once_differentiable",
                "this `backward` leaves autograd on purpose: drop the decorator if it is "
                "made of PyTorch's operations, else write a second Function for it",
                "05 A backward in NumPy or C: once_differentiable"),
        Message("appears to not have been used in the graph",
                "no path leads from the output to that tensor. It was detached, got None, "
                "or is a slice made beside, as `x[:, 0]`: cut the gradient of `x`. "
                "`allow_unused=True` gives None",
                "03 The price: None travels on",
                short=True),
        Message("appears to not have been used in the graph",
                "the copies were made after the function ran, or saved tensors were "
                "asked instead: `x = x.detach().requires_grad_()` first",
                "12 Recompute: activation checkpointing",
                "inside a `backward`"),
        Message("appears to not have been used in the graph",
                "it was differentiated twice: leave the derivative outside of the "
                "compiler, or take `torch.func.grad` inside",
                "05 Deeper: a gradient penalty under torch.compile (7 minutes)",
                "of a compiled function"),
        Message("Jacobian mismatch for output 0 with respect to input 0",
                "`gradcheck`: the gradient differs from the measured one. In float32 "
                "a right one does, too: pass float64. The doctor says how",
                "11 A wrong gradient: what gradcheck says, what the doctor says"),
        Message("is not a double precision floating point",
                "`gradcheck` in float32 rejects right gradients: pass float64; for a "
                "kernel that takes only float32, `examine` of the doctor; for one in "
                "16 bits, a float64 reference",
                "04 1. Single precision: float32"),
        Message("Tensor-likes are not close",
                "`assert_close`: few elements, by little: the tolerance of the dtype, "
                "against float64; nearly all: another formula",
                "17 Deeper: which tolerance for float16 and bfloat16? (3 minutes)"),
        Message("Backward is not reentrant",
                "two backward passes of one graph differ: a random draw, or state; "
                "for an `atomicAdd`, `nondet_tol`",
                "04 3. Randomness"),
        Message("returned nan values in its 0th output",
                "anomaly mode: the first node whose backward returned nan; `forward` "
                "may have made it",
                "11 Where a nan is born: set_detect_anomaly"),
        Message("Legacy autograd function with non-static forward method is "
                "deprecated",
                "a Function of PyTorch 0.1 to 0.3: make its methods static, and call it "
                "by `.apply`", "01 Migrate: old spelling and new spelling, in one table"),
        Message("cannot assign parameters before Module.__init__() call",
                "a module without `super().__init__()`",
                "01 Deeper: mistakes in the documentation of 2017 (6 minutes)"),
        Message("call numpy() on Tensor that requires grad",
                "(of DLPack: `Can't export tensors that require gradient`) for a "
                "figure or a log, `x.detach().numpy()`. In what is differentiated, "
                "NumPy has no gradients: a Function, or an operator",
                "09 A name and a promise: custom_op and register_fake"),
        Message("post accumulate grad hooks cannot be registered",
                "for a computed tensor, `h.register_hook`",
                "11 Deeper: hooks of modules, parameters and nodes; gradient edges (14 "
                "minutes)"),
        Message("For backward hooks to be called",
                "a warning: a module that returns a dict has no full backward hook: return "
                "a tuple",
                "11 Deeper: hooks of modules, parameters and nodes; gradient edges (14 "
                "minutes)"),
        Message("duplicate parameters",
                "or `some parameters appear in more than one parameter group`: a tied "
                "weight, listed twice: `model.parameters()` names each once",
                "06 Tied weights, frozen weights"),
        Message("optimizer got an empty parameter list",
                "no parameter is registered: layers in a list or a dict, in place of "
                "`ModuleList`, `ModuleDict`",
                "06 What a module registers: nn.Parameter, nn.Buffer, children"),
        Message("gradcheck expects at least one input tensor",
                "`x.double().requires_grad_()`",
                "04 gradcheck by hand: two Jacobians"),
        Message("input has a dimension with stride 0",
                "`gradcheck` of an expanded input: `.contiguous().requires_grad_()`",
                "04 4. Memory that overlaps"),
        Message("singular vectors in the complex case",
                "(`svd_backward`) the loss depends on their phase, which is arbitrary: "
                "`U.abs()`, `U @ U.mH`",
                "11 Deeper: numbers: nan, overflow, complex, straight-through (9 minutes)"),
        Message("object has no attribute '_fwd_used_autocast'",
                "`custom_bwd` without `custom_fwd`, or with `setup_context`",
                "17 Surprise: custom_fwd fails with setup_context"),
        Message("missing 1 required keyword-only argument: 'device_type'",
                "`custom_fwd` and `custom_bwd` of `torch.amp`, in place of "
                "`torch.cuda.amp.custom_fwd(args...)`: "
                "`@custom_fwd(device_type=\"cuda\")`",
                "17 custom_fwd and custom_bwd"),
        Message("is not implemented",
                "`scaled_dot_product_attention` has one derivative: `attention`, or "
                "the math backend",
                "20 Twice: what PyTorch refuses",
                "of PyTorch's own attention"),
        Message("is not implemented",
                "`the derivative for 'igamma: input'`: PyTorch has none: give the "
                "operation one of your own",
                "22 Another gradient for one of PyTorch's operations",
                "of another operation"),
        Message("FlexAttention does not support backward on CPU",
                "a GPU, or `attention`, which also gives a learned bias its gradient; for "
                "`flex_attention called without torch.compile()`, compile it once",
                "20 Deeper: rows with nothing to attend to, causal blocks, grouped queries "
                "(3 minutes)"),
        Message("No viable backend for scaled_dot_product_attention",
                "or `No available kernel`: the backend that `sdpa_kernel` forces "
                "refuses these inputs; the warnings above say why",
                "20 Twice: what PyTorch refuses"),
        Message("Trying to use forward AD with",
                "PyTorch has no forward mode for this operation: take `jacrev` or "
                "`vjp`; for attention, the course has it",
                "20 Forward mode: the derivative along a path"),
        Message("can require gradients",
                "`Only Tensors of floating point`: an `nn.Parameter` of integers: `requires_grad=False`, or an "
                "`nn.Buffer`; or integers under `torch.func.grad`, or in `mean` (`could not infer output dtype`): "
                "`x.float()` first",
                "06 Buffers: moved and saved, but not trained"),
        Message("attempting to assign a gradient with dtype",
                "`.grad` in another dtype than the parameter: `g.to(p.dtype)`, or "
                "`weight.grad_dtype`, with which SGD works, and Adam "
                "raises (`expected dtype float`, or `expected dtype c10::BFloat16`)",
                "17 Deeper: where PyTorch adds up in bfloat16: embedding, index and "
                ".grad, with grad_dtype (2 minutes)"),
        Message("attempting to assign a gradient of size",
                "`.grad` is set in another shape than the parameter's: transposed, or "
                "gradients in another order than the parameters",
                "02 Leave out the sum"),
        Message("The size of tensor a",
                "`must match the size of tensor b`: two shapes, counted from the "
                "right, do not broadcast: `x[:, None]`, `keepdim=True`. In a "
                "`backward`, sum the gradient to the input's shape",
                "22 Sum a gradient to the shape of a broadcast input: sum_to_size"),
        Message("Using a target size",
                "a warning of a loss: (4,) against (4, 1) becomes (4, 4), and the "
                "gradient is wrong: `.squeeze(-1)` the output",
                "22 Sum a gradient to the shape of a broadcast input: sum_to_size"),
        Message("shapes cannot be multiplied",
                "`nn.Linear` takes its `in_features` last: `x.flatten(1)`; by hand, `x "
                "@ weight.t()`, as a weight is (out, in)",
                "02 Three matrix gradients, found by their shapes"),
        Message("Boolean value of Tensor with more than one value",
                "`if x:`, `x and y`, `x in list` of tensors: `is not None` for one that "
                "is optional, else `.any()`, `&`, or `torch.where`",
                "22 An optional tensor, a flag, default values, keywords"),
        Message("more than one element of the written-to tensor",
                "an expanded tensor is changed in place, often the gradient of a `sum`, "
                "in a `backward` or a hook: `2 * g` for `g.mul_(2)`",
                "11 6. grad_output changed in place"),
        Message("Some elements marked as dirty",
                "`mark_dirty(x)`, and `forward` returns a copy: return `x` itself",
                "02 Deeper: an input that is changed in place, mark_dirty (4 minutes)"),
        Message("A view was created in no_grad mode",
                "then changed in place while autograd records: make the view outside of "
                "`no_grad`, or `clone()` it",
                "02 Deeper: an input that is changed in place, mark_dirty (4 minutes)"),
        Message("don't support automatic differentiation",
                "`functions with out=...`: leave `out=` out, or write under "
                "`torch.no_grad()`",
                "02 Deeper: an input that is changed in place, mark_dirty (4 minutes)"),
        Message("pack hook is modifying its input in place",
                "`pack` returns a new tensor: `t * s` for `t.mul_(s)`",
                "24 Keep what backward needs in bfloat16 or in 8 bits"),
        Message("unpack_hook expected to be a Tensor",
                "it returned what `pack` kept: of a pair, `p[1].to(p[0])`",
                "24 Keep what backward needs in bfloat16 or in 8 bits"),
        Message("Can't pickle",
                "a lambda or a local class in the module; `MyFunction.apply` can be "
                "pickled",
                "23 Copy and pickle a module that calls an operator or a Function"),
        Message("use_reentrant parameter should be passed explicitly",
                "a warning: `checkpoint(…, use_reentrant=False)`",
                "12 Tickets instead of tensors: recompute"),
        Message("Recomputed values for the following tensors have different metadata",
                "or `A different number of tensors was saved` (`CheckpointError`): the "
                "second run took another path: state that changed, or a random choice; "
                "`debug=True` names the operation",
                "12 Tickets instead of tensors: recompute"),
        Message("already unpacked once",
                "a Function under `checkpoint` reads `ctx.saved_tensors` twice: read it "
                "once, into names",
                "12 Tickets instead of tensors: recompute"),
        Message("only integer tensors of a single element can be converted",
                "a tensor as the index of a list or in `range`: `int(i)`; in a "
                "`backward`, a tuple as an index: `(x,) = ctx.saved_tensors`",
                "02 The same thing as a Function: forward, backward, ctx"),
    ],
    "Dtypes, devices, kernels": [
        Message("mat1 and mat2 must have the same dtype",
                "an input in float64, from NumPy: `x.float()` (a convolution says "
                "`Input type … should be the same`); or a model in 16 "
                "bits and an input in float32: `x.to(weight.dtype)`, or autocast around "
                "a float32 model; under autocast, a Function that got two dtypes: cast "
                "in its wrapper",
                "17 Autocast and a custom Function",
                short=True),
        Message("expected m1 and m2 to have the same dtype",
                "on a CPU, a layer without a bias got another dtype: "
                "`x.to(weight.dtype)`; in a Function under autocast: cast in the wrapper",
                "17 custom_fwd and custom_bwd"),
        Message("expected scalar type",
                "two dtypes in one call: float64, as NumPy makes it, or 16 bits, beside "
                "float32: cast one",
                "24 A layer in bfloat16"),
        Message("expected scalar type",
                "backward runs outside of autocast: `custom_fwd` and `custom_bwd`, "
                "or cast in the wrapper",
                "17 custom_fwd and custom_bwd",
                "inside a `backward`"),
        Message("expected scalar type",
                "`data_ptr<float>()` of a tensor in another dtype, often under "
                "autocast: `register_autocast`, or cast in the wrapper",
                "17 register_autocast for an operator",
                "in a kernel in C++ or CUDA"),
        Message("Found dtype",
                "a loss got two dtypes, often a target in float64, as NumPy makes it, or "
                "an output in float16: cast one",
                "24 A layer in bfloat16"),
        Message("Got unsupported ScalarType BFloat16",
                "(of DLPack: `Unsupported dtype in DLTensor`) NumPy has no bfloat16: "
                "`x.float().numpy()`",
                "05 A backward in NumPy or C: once_differentiable"),
        Message("At least one stride in the given numpy array",
                "a flipped array, or (a warning, `The given NumPy array is not writable`) that "
                "of `np.frombuffer`: `.copy()` first",
                "05 A backward in NumPy or C: once_differentiable"),
        Message("does not have a deterministic implementation",
                "under `torch.use_deterministic_algorithms(True)`: another operation, or "
                "`warn_only=True`",
                "15 Deeper: a backward that reduces across rows, and atomicAdd (6 "
                "minutes)"),
        Message("Attempted step but _scale is None",
                "`scaler.step` without `scaler.scale(loss).backward()`",
                "17 Gradient underflow in float16, and the loss scale"),
        Message("not implemented for 'BFloat16'",
                "this kernel has no such dtype, nor `'Half'`, `'Long'` "
                "(integers) or `'Float8_e4m3fn'`: compute in float32, and cast "
                "back; in your own kernel, add it to `AT_DISPATCH`",
                "17 Save for backward in bfloat16"),
        Message("with arguments from the",
                "`Could not run …`: no kernel for this device or layout: move the tensor, "
                "`register_kernel`, or `.to_dense()`",
                "09 Deeper: a kernel for each device (1 minute)"),
        Message("Expected all tensors to be on the same device",
                "the input or the target was not moved: `x.to(device)`; or a tensor that "
                "`forward` made, a buffer not registered, a default device",
                "06 Buffers: moved and saved, but not trained"),
        Message("No inf checks were recorded for this optimizer",
                "`GradScaler.step` without a gradient: nothing was scaled, or no "
                "parameter has one",
                "17 Gradient underflow in float16, and the loss scale"),
        Message("Attempting to unscale FP16 gradients",
                "the parameters are float16: keep them in float32, without `.half()`, "
                "and compute under autocast",
                "24 Train in float16: a loss scale, and GradScaler"),
        Message("unscale_() has already been called",
                "twice before `update()`: once for each optimizer and step, also where "
                "gradients are accumulated",
                "24 Train in float16: a loss scale, and GradScaler"),
        Message("device-side assert",
                "an index or a label is out of range; run it on the CPU, or with "
                "`CUDA_LAUNCH_BLOCKING=1`, and start Python anew",
                "07 What watching finds, and what only a comparison finds"),
        Message("CUBLAS_STATUS",
                "`NOT_INITIALIZED`, `ALLOC_FAILED`: no memory is left, or an earlier "
                "kernel failed; `EXECUTION_FAILED`: often shapes, or an index out of "
                "range before it: `CUDA_LAUNCH_BLOCKING=1`",
                "07 What watching finds, and what only a comparison finds"),
        Message("0 active drivers",
                "Triton finds no GPU: `TRITON_INTERPRET=1` before the import, and "
                "a `do_bench` for `autotune`; on a machine with one, a torch with CUDA",
                "15 Deeper: a Triton kernel with a gradient: triton_op and "
                "register_autograd (2 minutes)"),
        Message("Found no NVIDIA driver",
                "or `Torch not compiled with CUDA enabled`, of a torch for the CPU: ask "
                "`torch.cuda.is_available()` first; a container needs `--gpus all`",
                "00 Will it run on this machine?"),
        Message("CompilationError",
                "of Triton (its interpreter: `InterpreterError`): the line below names what `@triton.jit` does not know, such as "
                "a size that is no `tl.constexpr`; `arange's range must be a power of 2`: "
                "`triton.next_power_of_2`, and a mask",
                "15 Deeper: the same in Triton (12 minutes)"),
        Message("Input shapes should have M >= 1, N >= 1 and K >= 16",
                "of `tl.dot` on a GPU in 16 bits (8 bits: 32): fill K up by a mask; the "
                "interpreter does not check",
                "20 Deeper: the same forward pass in Triton (4 minutes)"),
        Message("out of resource: shared memory",
                "`OutOfResources` of Triton: smaller blocks, or fewer `num_stages`",
                "23 A Triton operator that is autotuned: triton.autotune"),
        Message("outside of the scope of a kernel",
                "`Cannot call @triton.jit'd`: a kernel is launched with its grid: "
                "`kernel[(blocks,)](x, …)`",
                "15 Deeper: the same in Triton (12 minutes)"),
        Message("illegal memory access",
                "a kernel read or wrote outside; a later call raises, or with "
                "`CUDA_LAUNCH_BLOCKING=1` the call itself: run the kernel on the CPU",
                "07 What watching finds, and what only a comparison finds"),
        Message("Unsupported gpu architecture",
                "`nvcc` is older than the GPU: take a newer toolkit, or an older "
                "architecture with `+PTX`",
                "16 Deeper: a wheel for each CUDA version (3 minutes)"),
        Message("no kernel image is available for execution on the device",
                "PyTorch, or your kernel, was not compiled for this GPU: another torch; "
                "`TORCH_CUDA_ARCH_LIST`, or compile at run time",
                "07 Deeper: compile with NVRTC, and launch (3 minutes)"),
        Message("permitted when stream is capturing",
                "a kernel of your own runs on the default stream, or a copy waits",
                "15 Deeper: CUDA graphs, and what a capture forbids (4 minutes)"),
    ],
    "torch.func": [
        Message("In order to use an autograd.Function with functorch transforms",
                "`torch.func` needs a Function with `setup_context`; `checkpoint` has none: "
                "leave it out",
                "10 Per-sample gradients: vmap(grad(loss))",
                short=True),
        Message("In order to use an autograd.Function with functorch transforms",
                "`register_autograd` knows no `grad`, `vjp` or `jacrev` of "
                "`torch.func`: set a Function beside the operator",
                "23 One operator with everything: custom_op",
                "of a `custom_op`"),
        Message("Setting a forward grad that itself has a forward gradient",
                "a `jvp` reads a saved input with its tangent: `unpack_dual(x).primal`",
                "10 Deeper: a jvp of a jvp, with the switch of forward mode (2 minutes)"),
        Message("must only return Tensors",
                "under `vmap`, a number too: `x.new_ones(())`",
                "10 Per-sample gradients: vmap(grad(loss))"),
        Message("attempting to call Tensor.requires_grad_()",
                "`torch.autograd` inside a transform (or `backward() called inside a "
                "functorch transform`): take `torch.func.grad`, "
                "`jacrev` or `hessian`",
                "10 Per-sample gradients: vmap(grad(loss))"),
        Message("to return a scalar Tensor",
                "`torch.func.grad` of a function with several elements: sum, or take "
                "`jacrev`; of one that returns a tuple (`to return a Tensor`): "
                "`has_aux=True`",
                "10 What a Jacobian costs: jacrev and jacfwd"),
        Message("Expected the vmap staticmethod to have two returns",
                "a rule returns the output and its dimension: `(y, 0)`; not beside "
                "`generate_vmap_rule=True` (`overridden vmap staticmethod`)",
                "10 A rule for vmap: generate_vmap_rule, or your own"),
        Message("would mutate a captured Tensor",
                "under `torch.func`, the function writes into a tensor that is not its "
                "argument, often a batch norm's counter: `eval()`, a group norm, or "
                "`torch.func.replace_all_batch_norm_modules_`",
                "10 Per-sample gradients: vmap(grad(loss))"),
        Message("You must implement the jvp function for custom autograd.Function",
                "forward mode needs a `jvp`",
                "10 Forward mode: dual numbers and jvp"),
        Message("don't yet support saved tensor hooks",
                "`saved_tensors_hooks`, `save_on_cpu` or `checkpoint` with `torch.func`, "
                "inside or around: leave them out, or take `torch.autograd.grad`",
                "12 Tickets instead of tensors: recompute"),
        Message("does not have vmap support",
                "no `vmap` method, and no `generate_vmap_rule = True`",
                "10 A rule for vmap: generate_vmap_rule, or your own"),
        Message("same size in the mapped dimension",
                "`vmap` maps over every argument, a dict of parameters, too: "
                "`in_dims=(None, 0)` for what has no batch",
                "10 Per-sample gradients: vmap(grad(loss))"),
        Message("Got in_dim=0 for",
                "a number, or a tensor without dimensions, among the arguments of "
                "`vmap`: `in_dims=(0, None)`",
                "10 Per-sample gradients: vmap(grad(loss))"),
        Message("We do not support batching operators that can",
                "`output dynamic shape`: a boolean mask, `nonzero` or `unique` under "
                "`vmap`: `torch.where(mask, x, 0)`",
                "10 A rule for vmap: generate_vmap_rule, or your own"),
        Message("attempting to use a Tensor in some data-dependent control flow",
                "an `if` on a tensor's elements under `vmap`: `torch.where`",
                "10 A rule for vmap: generate_vmap_rule, or your own"),
        Message("Cannot access data pointer of Tensor that doesn't have storage",
                "NumPy or C under `vmap`, or inside a compiler",
                "10 A rule for vmap: generate_vmap_rule, or your own"),
        Message("looks like you're calling .item() on a Tensor",
                "a number is taken out of a tensor under `vmap`: keep it a tensor",
                "10 A rule for vmap: generate_vmap_rule, or your own"),
        Message("Batching rule not implemented for",
                "an operator that takes a list or changes an argument, and has no "
                "rule: `register_vmap`",
                "09 Deeper: a rule for vmap, and none for forward mode (3 minutes)"),
        Message("There is a performance drop because we have not yet implemented",
                "a warning: `vmap` loops over the batch: `register_vmap` for an "
                "operator of your own",
                "09 Deeper: a rule for vmap, and none for forward mode (3 minutes)"),
        Message("is not possible because there exists a Tensor",
                "under `vmap`, a tensor without the batch is written into: make it "
                "with `x.new_zeros(…)`, or write out of place",
                "10 A rule for vmap: generate_vmap_rule, or your own"),
        Message("doesn't match the broadcast shape",
                "`z += x` would make `z` larger: `z = z + x`; under `vmap`, `z` lacks the "
                "batch: make it with `x.new_zeros(…)`",
                "10 A rule for vmap: generate_vmap_rule, or your own"),
        Message("Batch norm got a batched tensor",
                "`vmap` over a batch norm that updates its statistics: "
                "`torch.func.replace_all_batch_norm_modules_`, `eval()`, or a group norm",
                "10 Per-sample gradients: vmap(grad(loss))"),
        Message("called random operation while in randomness error mode",
                "`vmap(..., randomness=\"different\")`, or \"same\", or draw outside",
                "23 An operation with a random state of its own"),
    ],
    "Processes": [
        Message("Expected to have finished reduction in the prior iteration",
                "DDP: the loss did not reach a parameter: freeze it before DDP wraps "
                "the module, or `find_unused_parameters=True`",
                "14 Deeper: a gradient that is None, under DDP and AdamW (7 minutes)",
                short=True),
        Message("Expected to mark a variable ready only once",
                "DDP: `marked as ready twice`, by a backward pass inside of another, "
                "as that of `checkpoint`: `use_reentrant=False`",
                "24 A parameter that some steps do not use, under DDP"),
        Message("Grad strides do not match bucket view strides",
                "a warning of DDP: only the input is `channels_last`: "
                "`model.to(memory_format=torch.channels_last)` before DDP; of a Function, a transposed gradient with a size of 1: "
                "`g.t() @ x` for `(x.t() @ g).t()`",
                "14 The data, cut: DistributedDataParallel (DDP)"),
        Message("'DistributedDataParallel' object has no attribute",
                "the model is inside: `ddp.module.weight`; but `ddp.module(x)`, or "
                "another method that computes, does not average the gradients",
                "14 The data, cut: DistributedDataParallel (DDP)"),
        Message("FSDP expects uniform original parameter dtype",
                "keep all in float32, with a `MixedPrecisionPolicy`; or give the layer "
                "in 16 bits a `fully_shard` of its own, first",
                "14 Deeper: FSDP2, and which parameters are whole when (10 minutes)"),
        Message("Default process group has not been initialized",
                "`dist.init_process_group(\"gloo\")`, or \"nccl\", comes first, in each "
                "process that `torchrun` starts",
                "14 Two correct answers: the identity, or an all-reduce"),
        Message("Timed out waiting",
                "of NCCL `Watchdog caught collective operation timeout`: a process called "
                "another collective, or none: `TORCH_DISTRIBUTED_DEBUG=DETAIL` names it",
                "14 When one is missing: time-out, deadlock, mismatch"),
        Message("are out of bounds for storage of size 0",
                "FSDP2 freed the parameters between two derivatives: `unshard` them "
                "again",
                "14 A gradient penalty: gather the parameters again"),
        Message("are out of bounds for storage of size 0",
                "what an FSDP2 module returned is changed in place: `y = y + 1`",
                "14 Deeper: FSDP2, and which parameters are whole when (10 minutes)",
                "without a second derivative"),
        Message("appears to not have been used in the graph",
                "FSDP2's graph leads to the gathered parameters: `.backward()` in "
                "place of `torch.autograd.grad`",
                "14 Deeper: FSDP2, and which parameters are whole when (10 minutes)",
                "under FSDP2"),
        Message("does not have a sharding strategy registered",
                "a DTensor met an operator of your own: `register_sharding`",
                "24 Tell DTensor how an operator may be cut: register_sharding"),
        Message("fork-based multiprocessing",
                "a process was forked after a backward pass or a use of a GPU ("
                "`Cannot re-initialize CUDA in forked subprocess`): start it by \"spawn\"",
                "23 Copy and pickle a module that calls an operator or a Function"),
        Message("got mixed torch.Tensor and DTensor",
                "a plain tensor beside a cut one: a checkpoint that is loaded: "
                "`set_model_state_dict(model, sd, "
                "options=StateDictOptions(full_state_dict=True))`; a layer or `forward` called "
                "past its wrapper; a tied weight: one `fully_shard` for both; a mask or "
                "buffer under tensor parallel: `distribute_tensor(mask, mesh, "
                "weight.placements)`, before FSDP2's forward makes the weight plain",
                "14 module.forward() bypasses the wrapper"),
        Message("DistributedDataParallel is not needed",
                "all parameters are frozen: freeze after wrapping, or wrap what trains",
                "14 The data, cut: DistributedDataParallel (DDP)"),
        Message("expected, but not set",
                "`environment variable RANK`: start the program by `torchrun`, or pass "
                "`rank` and `world_size`",
                "14 Four processes: rank, group, collective"),
        Message("EADDRINUSE",
                "another run has the port: `torchrun --standalone`, or another "
                "`MASTER_PORT`",
                "14 Four processes: rank, group, collective"),
    ],
    "Compilers": [
        Message("Unsupported: Data-dependent branching",
                "an `if` on a tensor's elements, under `fullgraph=True` or a strict "
                "export: `torch.where`, or `torch.cond`",
                "23 A branch on a tensor's elements: torch.where, torch.cond",
                short=True),
        Message("returning intermediate with requires_grad_()",
                "in a compiled function: call it on the result outside; on an input "
                "(`Unsupported Tensor.requires_grad_() call`), before",
                "09 Breaks that you can remove: a print, an if"),
        Message("cannot be used as inputs to control flow",
                "`torch.fx.symbolic_trace` of an `if` on a tensor: `torch.where`, or "
                "`torch.export` with `torch.cond`",
                "23 A branch on a tensor's elements: torch.where, torch.cond"),
        Message("Encountered aliasing during higher order op",
                "a branch of `torch.cond` returns its input: `x.clone()`",
                "23 A branch on a tensor's elements: torch.where, torch.cond"),
        Message("Failed to trace builtin operator",
                "a `print` or another call of Python's own under `fullgraph=True`",
                "09 Breaks that you can remove: a print, an if"),
        Message("Could not guard on data-dependent expression",
                "`torch.export` of an `if` on a tensor's elements, or an `if` on a "
                "number from `.item()`: `torch.where`, or `torch.cond`",
                "23 A branch on a tensor's elements: torch.where, torch.cond"),
        Message("Could not guard on data-dependent expression",
                "the answer is always the same: `torch._check` promises it",
                "09 Deeper: a number from .item() in a graph (1 minute)",
                "of a size that depends on the data"),
        Message("expression zuf0",
                "a float from `.item()`, or one that NumPy draws, in an `if`, "
                "`math.exp` or `dropout`: keep it a tensor: `torch.where`, `t.exp()`",
                "09 Deeper: a number from .item() in a graph (1 minute)"),
        Message("SymFloat",
                "`Expected a value of type 'float'`: under a compiler, `.item()` meets "
                "an operator's `float`: take the `Tensor`, or annotate "
                "`torch.types.Number`",
                "09 Deeper: a number from .item() in a graph (1 minute)"),
        Message("Could not extract specialized integer from data-dependent expression",
                "`int()` of a tensor, often in a fake kernel: "
                "`torch.library.get_ctx().new_dynamic_size()`",
                "09 Deeper: an operator whose result has a size that depends on the "
                "data: new_dynamic_size (3 minutes)"),
        Message("Constraints violated",
                "`torch.export`: the code narrows a size that is named dynamic:"
                " take the message's range; or fixes it (`= 4`, or a `==` "
                "beside a multiple): mend the code, since `Dim.AUTO` exports "
                "that one size; if `= 1`, export with an example of 2 or more",
                "23 Export with dynamic shapes: Dim"),
        Message("to be a tuple of example positional inputs",
                "`torch.export.export(model, (x,))`",
                "09 Export: torch.export"),
        Message("its top-level keys must be the arg names",
                "`dynamic_shapes` names `forward`'s parameters; or it is a tuple",
                "23 Export with dynamic shapes: Dim"),
        Message("Guard failed",
                "an exported program got another size than its example had: name the size "
                "in `dynamic_shapes`",
                "23 Export with dynamic shapes: Dim"),
        Message("Unsupported input type",
                "`torch.export` of an object (of a result: `is not a known type`): "
                "`torch.export.register_dataclass`, or pass tensors, numbers, lists, "
                "dicts",
                "09 Export: torch.export"),
        Message("Calling train() is not supported yet",
                "or `eval()`, of an exported program: call it before, and export twice",
                "09 Export: torch.export"),
        Message("was assigned during export",
                "a warning: `self.h = …` in `forward`, which the export loses: "
                "`register_buffer(\"h\", …)` first",
                "06 Buffers: moved and saved, but not trained"),
        Message("BackendCompilerFailed",
                "the line below says what failed in the backend; with "
                "`backend=\"aot_eager\"` one sees whether inductor is to blame",
                "09 Deeper: the loops that inductor writes, counted (4 minutes)"),
        Message("LoweringException",
                "inductor has no code for what the line below names: make it an"
                " operator, or leave it eager",
                "09 A name and a promise: custom_op and register_fake"),
        Message("No working C++ compiler found",
                "inductor on a CPU needs one: install it, or name it, `CXX=g++`",
                "09 Deeper: the loops that inductor writes, counted (4 minutes)"),
        Message("Unsafe side effect",
                "a `backward`, or what `checkpoint` runs, writes into a list or an "
                "attribute: make it an operator, or leave `fullgraph` out",
                "09 Breaks that you can remove: a print, an if"),
        Message("trace_autograd_ops=False",
                "`torch.autograd.grad` (or `Unsupported Tensor.backward() call`) inside what "
                "is compiled: leave it outside, take `torch.func.vjp`, or switch it on",
                "09 Deeper: torch.autograd.grad in a compiled function, and "
                "trace_autograd_ops (4 minutes)"),
        Message("non-empty donated buffers",
                "two backward passes, or `create_graph=True`, through one compiled "
                "call: call it twice, or set "
                "`torch._functorch.config.donated_buffer = False`",
                "05 Deeper: a gradient penalty under torch.compile (7 minutes)"),
        Message("does not currently support double backward",
                "what `torch.compile` returned was differentiated twice: leave the "
                "derivative outside, or take `torch.func.grad` inside",
                "05 Deeper: a gradient penalty under torch.compile (7 minutes)"),
        Message("Unsupported custom jvp",
                "a compiler takes no Function with a `jvp`: while compiling, a "
                "wrapper calls its `forward`",
                "22 One Function with everything"),
        Message("duplicate tensor input",
                "a compiled Function got one tensor in two arguments: pass a clone, "
                "or use an operator",
                "09 Deeper: a Function that gets a tensor twice, or is "
                "differentiated twice (3 minutes)"),
        Message(".numpy() is not supported for tensor subclasses",
                "an export or a compiler meets NumPy: make it an operator; in eager "
                "mode, take the tensor inside",
                "09 A name and a promise: custom_op and register_fake"),
        Message("Please convert all Tensors to FakeTensors first",
                "a function that the compiler cannot follow made a tensor, or closes "
                "over one: make it inside, or pass it as an argument",
                "09 Deeper: what a compiler leaves alone: disable, allow_in_graph, "
                "nonstrict_trace, leaf_function (7 minutes)"),
        Message("Attempted to call function marked as skipped",
                "or `Dynamo does not know how to trace the builtin`: a function in C: make it an "
                "operator",
                "09 A name and a promise: custom_op and register_fake"),
        Message("accessing tensor output of CUDAGraphs that has been overwritten",
                "the next call reuses the memory: `.clone()` the output outside, or "
                "`torch.compiler.cudagraph_mark_step_begin()`",
                "15 Deeper: CUDA graphs, and what a capture forbids (4 minutes)"),
        Message("PendingUnbackedSymbolNotFound",
                "`.item()` inside a Function's `forward`: save the 0-dim tensor "
                "instead",
                "09 Deeper: a number from .item() in a graph (1 minute)"),
        Message("but its data is not allocated yet",
                "an export or a compiler ran a kernel in C++: make it an operator; "
                "or an FSDP2 module returns its tensors inside an object: return "
                "tensors, tuples, dicts or dataclasses",
                "09 A name and a promise: custom_op and register_fake"),
        Message("DataDependentOutputException",
                "or `DynamicOutputShapeException`: `.item()` or `nonzero` under a bare "
                "`FakeTensorMode`: `FakeTensorMode(shape_env=ShapeEnv())`",
                "09 Deeper: a number from .item() in a graph (1 minute)"),
        Message("Cannot access data pointer of Tensor (e.g. FakeTensor",
                "a compiler or an export ran code that reads memory, or a fake kernel "
                "did: make it an operator; of a `triton_op` under Triton's "
                "interpreter: a `custom_op`",
                "09 A name and a promise: custom_op and register_fake"),
        Message("Hard failure due to fullgraph=True",
                "`FailOnRecompileLimitHit`, or the warning `hit "
                "config.recompile_limit`: an "
                "argument, such as a float for an operator or `math`, or a number in a module, is "
                "new at each call: make it a tensor outside; a list's length: `torch.stack`; "
                "shapes: no `dynamic=False`; `TORCH_LOGS=recompiles` names it",
                "09 One graph for many shapes: dynamic=True"),
        Message("we encountered a tensor subclass where we guessed",
                "an output of a compiled function got no gradient, or a plain one: "
                "`.detach()` it inside that function",
                "18 Deeper: torch.compile and __tensor_flatten__ (3 minutes)"),
        Message("Failed to convert args/kwargs to proxy",
                "a `torch.Generator` in what is compiled: draw outside; or (`C-implemented special method`, "
                "`in C and Dynamo has no model for it`) a tensor subclass without `__tensor_flatten__`",
                "18 Deeper: torch.compile and __tensor_flatten__ (3 minutes)"),
        Message("Unsupported: call to a callable object",
                "`forward` or an argument is an object that the compiler cannot "
                "follow; what leaves it alone: `disable`, `allow_in_graph`, "
                "`nonstrict_trace`, `leaf_function`",
                "09 Deeper: what a compiler leaves alone: disable, allow_in_graph, "
                "nonstrict_trace, leaf_function (7 minutes)"),
    ],
    "Operators and packages": [
        Message("cannot pickle 'torch._C._DispatchModule' object",
                "a module keeps a `custom_op` as an attribute: call the operator in "
                "`forward`",
                "23 Copy and pickle a module that calls an operator or a Function"),
        Message("_OpNamespace",
                "no such operator in this process (`does not exist`, `failed to resolve`, "
                "`Unknown builtin op`, `ran into an error when deserializing`): import "
                "the module that defines it, or load its library, first; a "
                "`torchvision` must fit torch; keep a `Library` in a global name",
                "23 Export a model that holds an operator or a Function"),
        Message("Only a single TORCH_LIBRARY can be used to register the namespace",
                "two libraries define one namespace: take a name of your own; after "
                "an edit, restart Python",
                "08 The schema, the key and the build"),
        Message("Error building extension",
                "`Error compiling objects`, `ninja: build stopped`, `returned non-zero "
                "exit status`: the compiler's first error stands after `FAILED:`",
                "08 The schema, the key and the build"),
        Message("dynamic module does not define module export function",
                "`PyInit_…`: a library without `PYBIND11_MODULE`: "
                "`torch.ops.load_library`, or `load(…, is_python_module=False)`; with "
                "it, its name must be `TORCH_EXTENSION_NAME`",
                "08 pybind11 or TORCH_LIBRARY: what PyTorch knows"),
        Message("list index out of range",
                "no GPU is there to ask: `TORCH_CUDA_ARCH_LIST=\"9.0\"`, the target's",
                "16 Deeper: a wheel for each CUDA version (3 minutes)",
                "while a CUDA extension is built"),
        Message("No module named 'torch'",
                "pip builds in an empty environment: `pip install "
                "--no-build-isolation .`",
                "16 The wheel",
                "while pip builds a package"),
        Message("Expected the return from backward to be of the same structure",
                "the gradient of a list is a list: `([…], None)` if a second argument "
                "follows, `[…]` if the list is the only one",
                "23 An operator that takes or returns a list of tensors"),
        Message("not enough values to unpack (expected 2, got 1)",
                "the name of a `custom_op` needs a namespace: `ns::name`; in a "
                "`backward`: `ctx.saved_tensors` holds only what `save_for_backward` got",
                "09 A name and a promise: custom_op and register_fake"),
        Message("Expected a value of type",
                "an argument is not of the schema's type, such as a float for an `int`",
                "08 The schema, the key and the build"),
        Message("infer_schema(func)",
                "`custom_op` reads annotations: annotate each argument and the "
                "result, or pass `schema=`; `mutates_args` names arguments",
                "09 A name and a promise: custom_op and register_fake"),
        Message("kwarg-only Tensor args",
                "a tensor behind `*` in an operator's signature: put it before; numbers may "
                "stay, with `setup_context(ctx, inputs, keyword_only_inputs, output)`",
                "09 Its derivative: register_autograd"),
        Message("incompatible function arguments",
                "of pybind11: None, a number or an array for a tensor, a name, or too "
                "few; compare with the types that it lists",
                "08 pybind11 or TORCH_LIBRARY: what PyTorch knows"),
        Message("has unsupported type",
                "an operator takes tensors, numbers, strings and lists of them: keep "
                "another object in a dict, and pass its key, an int",
                "23 A handle or another object for an operator: its key, an int"),
        Message("Weights only load failed",
                "the file holds more than tensors: a whole model, a class, "
                "NumPy's numbers, a tensor subclass: save a `state_dict`; or "
                "trust what it names, `torch.serialization.safe_globals([…])`",
                "18 Deeper: a file with a tensor of your own: weights_only and "
                "safe_globals (2 minutes)"),
        Message("cannot be accessed from Triton",
                "the tensor is on another GPU than the current one: `with "
                "torch.cuda.device_of(x):`; or on the CPU: without a GPU, "
                "`TRITON_INTERPRET=1` before the import",
                "15 Deeper: a Triton kernel with a gradient: triton_op and "
                "register_autograd (2 minutes)"),
        Message("There was no fake impl registered for",
                "or `attempted to run this operator with Meta tensors`, `does not support "
                "running with fake tensors`: the compiler needs "
                "`torch.library.register_fake`",
                "09 A name and a promise: custom_op and register_fake",
                short=True),
        Message("when making fake tensor call",
                "an operation fails, as it would uncompiled: shapes, dtypes; or a fake "
                "kernel takes other arguments than its operator: `missing 1 required "
                "positional argument`",
                "09 What is promised must hold: opcheck"),
        Message("Multiple dispatch failed",
                "or `unsupported operand type(s)`: a tensor subclass, or a fake tensor, met an operation that is not in "
                "its table: `returned NotImplemented`",
                "18 A matrix that is never made"),
        Message("maximum recursion depth exceeded",
                "`__torch_dispatch__` calls `func` with tensors of its own class: take "
                "out what they hold first",
                "18 A matrix that is never made"),
        Message("requires that detach() returns an instance of the same type",
                "an `nn.Parameter` of a tensor subclass: wrap what `aten.detach` returns",
                "18 A parameter and an optimiser"),
        Message("no autograd formula was registered",
                "the operator needs `register_autograd`",
                "09 Its derivative: register_autograd"),
        Message("got an unexpected keyword argument 'ctx'",
                "or `'inputs'`: `register_autograd` passes by name: `setup_context(ctx, inputs, "
                "output)`",
                "09 Its derivative: register_autograd"),
        Message("c10d::allreduce_",
                "`dist.all_reduce` has no derivative, and the gradient is wrong: take "
                "a collective that has one",
                "14 Surprise: all_reduce under autograd"),
        Message("an autograd kernel was not registered to the Autograd key(s)",
                "an operator in C++ without a derivative: a warning, and no gradient "
                "or a wrong one: `register_autograd`",
                "08 A derivative for the C++ operator: register_autograd"),
        Message("is not defined as mutable but was mutated",
                "`opcheck`: the kernel changes an argument: name it in `mutates_args`, or "
                "clone it",
                "09 What is promised must hold: opcheck"),
        Message("most often comes from a incorrect fake",
                "`expected size … stride`, of `opcheck` `found mismatched tensor "
                "metadata`: the fake kernel promises another shape, stride or dtype than "
                "the kernel returns",
                "09 What is promised must hold: opcheck"),
        Message("Cannot register autograd formula for non-functional operator",
                "an operator that writes has no gradient: make one that returns a "
                "new tensor",
                "16 Deeper: an operator that writes into its argument, Tensor(a!) (4 "
                "minutes)"),
        Message("ConversionError",
                "`torch.onnx.export` meets an operator of your own: "
                "`custom_translation_table`",
                "23 Export to ONNX: which operators need a translation"),
        Message("Could not find schema for",
                "a package of AOTInductor calls an operator that is not in it: "
                "import its module, or define its schema in C++",
                "16 Deeper: AOTInductor, running a model without Python (10 minutes)"),
        Message("must not also be an input to this custom operator",
                "or `may not alias`: the kernel returns an argument, a view of "
                "one, or one tensor twice: `.clone()`; for one of "
                "`mutates_args`, from 2.13 on: `tags=torch.Tag.inplace`, or "
                "`torch.Tag.out`",
                "09 Deeper: a kernel that returns its input: custom_op, or define "
                "and impl (2 minutes)"),
        Message("undefined symbol",
                "the library was built for another torch, or another C++ ABI; a function "
                "of yours: a file is missing in `sources`; "
                "`THPVariableClass`, `type_caster`: not linked with `torch_python`; "
                "build it anew "
                "with `pip install --no-build-isolation --no-cache-dir "
                "--force-reinstall --no-deps .`",
                "16 Deeper: undefined symbol, a library that was built for another "
                "PyTorch (3 minutes)"),
        Message("cannot open shared object file",
                "`libc10.so`, or another of torch's: `import torch` comes first; "
                "`libcudart.so`: built for another CUDA",
                "16 Deeper: a wheel for each CUDA version (3 minutes)"),
        Message("Ninja is required to load C++ extensions",
                "`pip install ninja`; if `load` waits for ever, delete the file `lock` "
                "that a stopped build left in `TORCH_EXTENSIONS_DIR`",
                "08 The schema, the key and the build"),
        Message("CUDA_HOME environment variable is not set",
                "no CUDA toolkit was found: set it to the folder that holds "
                "`bin/nvcc`, or leave CUDA out, in the template with `USE_CUDA=0`",
                "16 The C++ and CUDA files"),
        Message("identifier \"torch_c10_cuda_check_msg\" is undefined",
                "the stable headers declare it under `USE_CUDA` only: "
                "`extra_cuda_cflags=[\"-DUSE_CUDA\"]`",
                "23 C++ in a string: load_inline"),
        Message("mismatches the version that was used to compile",
                "the toolkit is of another CUDA than torch: install the torch, or "
                "the toolkit, of the same major version",
                "16 Deeper: a wheel for each CUDA version (3 minutes)"),
        Message("Tried to register an operator",
                "two packages, or one loaded twice, define the same name; in a cell that "
                "runs again, a `custom_op` may, and a `Library(ns, \"FRAGMENT\")` that the "
                "cell binds; `torch.library.define` needs its `lib=`",
                "16 Two packages, one operator name"),
    ],
}  # fmt: skip
