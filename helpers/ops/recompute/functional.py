"""The function to call."""

import torch
from torch.utils.checkpoint import checkpoint

from .call import Call


def recompute(fn, /, *inputs, context_fn=None, **kwargs):
    """`fn(*inputs, **kwargs)`, whose intermediate results are not kept for backward.

    fn: a function or a module that does the same when called again with the same arguments.
    inputs, kwargs: anything; tensors may stand in tuples, lists and dicts. They are kept, and so
        is what `fn` closes over.
    context_fn: returns two contexts, for the first and for the second run, as
        `torch.utils.checkpoint.checkpoint` takes it. With a policy that says which operations keep
        their results, `partial(create_selective_checkpoint_contexts, policy)`, from there.
    Returns what `fn` returns: tensors in any structure, not all of which need a gradient.

    Backward calls `fn` once more, as soon as the first of its saved tensors is needed, up to the
    last, and frees each when it has been used. (So each further reading of `ctx.saved_tensors` in a
    Function costs another call: read them once.) The numbers are those of `fn(*inputs, **kwargs)`,
    to the last bit. The second run sees the autocast state of the first, and the states of all
    generators: PyTorch's (CPU and CUDA), Python's `random`, and each `torch.Generator` among the
    inputs; those of the program are left alone. But threads share generators: where several draw at
    once, hand each call a `torch.Generator` of its own and draw from that, or masks are wrong.

    If `fn` is a module, the second run has the parameters of the first, also those that
    `torch.func.functional_call` gave it, and copies of its buffers, so that these change once, not
    twice: a batch norm counts each batch once. Inside any other function it counts twice, and all
    other side effects happen twice; compiled with the backend "aot_eager", it raises in backward.
    Threads may share a module: they take turns in its second runs, and if it has buffers, in the
    first ones, too. In a second run a module has the parameters that it had in the first.

    Gradients to inputs, to parameters and to whatever `fn` closes over; derivatives of every order,
    `retain_graph`, calls within calls, DDP, FSDP2 around or inside a module. Under `torch.compile`
    it is `torch.utils.checkpoint`, which the compiler knows: the gradient is silently wrong there
    if what `fn` returns depends on a buffer that it changes, as in spectral norm. `fn` may be
    compiled: what its backend refuses, such as a second derivative, stays refused, and what the
    kernels of inductor read is not watched, so that a change there may pass unseen, as under
    `checkpoint`; inputs, and the parameters of a module, are watched as ever. Under `torch.func`
    and in forward mode it raises RuntimeError.

    Raises TypeError if `fn` or `context_fn` cannot be called. In backward, RuntimeError if

    - an input, or any tensor that an operation of `fn` takes, such as a buffer or one that it
      closes over, was changed in place after `fn` had read it, or replaced by another: a parameter
      too, unless `fn` is its module;
    - `fn` changed in place what it had saved;
    - `fn` is a module with buffers that differentiates what it computes, in another thread, as
      autograd does on a GPU;
    - the second run, up to the last tensor that the first one saved, saves fewer of them or others:
      from another operation, or of another shape, dtype or device. What would follow is not run,
      and no gradient needs it. That the numbers are the same is not checked.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    if context_fn is not None and not callable(context_fn):
        raise TypeError(f"context_fn must be callable, got {type(context_fn).__name__}")
    if torch.compiler.is_compiling():
        contexts = {"context_fn": context_fn} if context_fn else {}
        return checkpoint(fn, *inputs, use_reentrant=False, **contexts, **kwargs)
    if not torch.is_grad_enabled():
        return fn(*inputs, **kwargs)
    call = Call(fn, inputs, kwargs, context_fn)
    return call.first(inputs, kwargs, start=call.again)
