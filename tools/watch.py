"""Names of PyTorch that the course neither tells of nor leaves out on purpose.

    python -m tools.watch

The public names of the modules that the course is about, the tags of operators, and the
attributes of a Function and of its `ctx`, in the torch that is installed. A name is told of
where a notebook or the index holds it. A new torch's new names end the command with 1: the
workflow `other-torch.yml` runs it each week on the newest one. What has no name to find, such
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
    "disable_saved_tensors_hooks register_multi_grad_hook set_grad_enabled debug_unwrap "
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
    files = [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("helpers/lessons/index/*.py")]
    told = {
        word for path in files for word in re.findall(r"\w+", path.read_text("utf-8"))
    }
    names = {*of_ctx(), *torch.Tag.__members__}.union(*map(public, MODULES))
    return sorted(names - told - {*" ".join(LEFT_OUT.values()).split()})


if __name__ == "__main__":
    found = unknown()
    print(torch.__version__, "| neither told of nor left out:", *found or ["nothing"])
    sys.exit(bool(found))
