"""Names of PyTorch that the course neither tells of nor leaves out on purpose.

    python -m tools.watch

The public names of the modules that the course is about, the tags of operators, and the
attributes of a Function and of its `ctx`, in the torch that is installed. A new torch's new
names end the command with 1: the workflow `other-torch.yml` runs it each week on the newest one.
Whoever tells of one writes it down in `TOLD`. What has no name to find, such
as a class of one's own that an operator takes, is watched by hand.
"""

import re
import sys
from inspect import ismodule
from pathlib import Path

import torch
import torch.utils.checkpoint

ROOT = Path(__file__).parents[1]
MODULES = (
    torch.library,
    torch.autograd,
    torch.autograd.graph,
    torch.func,
    torch.utils.checkpoint,
)
TOLD = {  # in which chapter: names, in one string
    "01": "Function Variable next_functions saved_variables variable",
    "02": "apply backward forward mark_dirty mark_non_differentiable name needs_input_grad "
    "requires_grad save_for_backward saved_tensors",
    "03": "allow_mutation_on_saved_tensors materialize_grads no_grad save_on_cpu "
    "set_materialize_grads vjp",
    "04": "gradcheck",
    "05": "grad gradgradcheck hessian",
    "06": "functional_call",
    "08": "impl",
    "09": "custom_op get_ctx inplace opcheck out register_autograd register_fake "
    "register_kernel register_vmap",
    "10": "generate_vmap_rule jacfwd jacrev jvp linearize save_for_forward setup_context "
    "vmap",
    "11": "get_gradient_edge register_hook register_prehook set_detect_anomaly",
    "12": "checkpoint clear_saved_tensors_on_access create_selective_checkpoint_contexts "
    "enable_grad region_activation_memory_budget saved_tensors_hooks",
    "15": "triton_op wrap_triton",
    "16": "define increment_version register_autocast",
    "17": "set_output_grad_dtype",
    "18": "inference_mode",
    "19": "CheckpointError Library infer_schema replace_all_batch_norm_modules_",
    "22": "boxed_grads_call node_creation_hook register_torch_dispatch stack_module_state",
    "24": "input_grad_buffers queue_callback",
}
LEFT_OUT = {  # why: names, in one string
    "how torch.utils.checkpoint is made": "CheckpointFunction DefaultDeviceType "
    "GraphExecGroup SAC_IGNORED_OPS SelectiveCheckpointContext check_backward_validity "
    "detach_variable get_device_states noop_context_fn set_device_states",
    "options of checkpoint that its documentation tells": "CheckpointPolicy "
    "checkpoint_sequential set_checkpoint_debug_enabled set_checkpoint_early_stop",
    "old names of what the course tells": "NestedIOFunction impl_abstract detect_anomaly "
    "mark_shared_storage",
    "what PyTorch's own operators are marked with": "core data_dependent_output "
    "dynamic_output_shape generated inplace_view maybe_aliasing_or_mutating "
    "nondeterministic_bitwise nondeterministic_seeded out_variant pointwise "
    "pt2_compliant_tag reduction view_copy",
    "what inductor asks of strides, which a fake kernel says": "cudagraph_unsafe "
    "flexible_layout needs_contiguous_strides needs_exact_strides needs_fixed_stride_order",
    "how ctx is made": "apply_boxed apply_jvp dirty_tensors maybe_clear_saved_tensors "
    "non_differentiable saved_for_forward to_save output_grad_dtypes",
    "of the dispatcher, for whoever replaces PyTorch's own kernels": "fallthrough_kernel "
    "get_kernel",
    "of the engine's streams, in a CUDA graph or with several": "set_override_stale_capture_stream "
    "set_warn_on_accumulate_grad_stream_mismatch set_multithreading_enabled",
    "of the strides of .grad, which optimizers and reducers rely on": "enforce_grad_layout_policy",
    "beside what the course tells, and said by its documentation": "GradientEdge Node "
    "metadata disable_saved_tensors_hooks register_multi_grad_hook set_grad_enabled debug_unwrap "
    "functionalize grad_and_value rearrange",
}


def public(module):
    """The names of a module that are its own: no modules, nothing that it imports."""
    listed = getattr(module, "__all__", ())
    for name in {*dir(module), *listed}:
        value = getattr(module, name, None)
        owner = getattr(value, "__module__", None) or ""
        if ismodule(value):
            continue
        if name in listed or (name[0] != "_" and owner.startswith(module.__name__)):
            yield name


def of_ctx():
    """The public attributes of a Function and of the `ctx` that it gets."""
    seen = {*dir(torch.autograd.Function)}

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.update(dir(ctx))
            return x.clone()

    Looks.apply(torch.ones(1, requires_grad=True))
    return {name for name in seen if name[0] != "_"}


def unknown():
    """The names, sorted, that are neither told of nor left out."""
    names = {*of_ctx(), *torch.Tag.__members__}.union(*map(public, MODULES))
    return sorted(names - {*words(TOLD), *words(LEFT_OUT)})


def untold():
    """The names of `TOLD` that their chapter does not hold."""
    for chapter, names in TOLD.items():
        (path,) = ROOT.glob(f"notebooks/{chapter}_*.ipynb")
        held = {*re.findall(r"\w+", path.read_text("utf-8"))}
        yield from (f"{name} ({chapter})" for name in names.split() if name not in held)


def words(table):
    return " ".join(table.values()).split()


if __name__ == "__main__":
    found = unknown()
    print(torch.__version__, "| neither told of nor left out:", *found or ["nothing"])
    sys.exit(bool(found))
