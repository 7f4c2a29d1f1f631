"""Run autograd code written for PyTorch 0.1.12 to 0.3 on today's PyTorch.

Change the imports to `from helpers.ops.legacy import Function, Variable`; the rest stays. In those
versions an operation was an *instance*: `__init__` took the arguments that are no tensors, a call
ran `forward(self, ...)`, and `backward(self, ...)` found in `self` what forward had left there.
Both worked on plain tensors, whose use is not recorded.

>>> import torch
>>> class Power(Function):
...     def __init__(self, exponent):
...         self.exponent = exponent
...
...     def forward(self, input):
...         self.save_for_backward(input)
...         return input**self.exponent
...
...     def backward(self, grad_output):
...         (input,) = self.saved_tensors
...         return grad_output * self.exponent * input ** (self.exponent - 1)
>>> x = Variable(torch.Tensor([1, 2, 3]), requires_grad=True)
>>> Power(3)(x).sum().backward()
>>> x.grad.data
tensor([ 3., 12., 27.])

A Variable is an ordinary tensor, so both generations mix: modern tensors, `nn.Parameter` and
`nn.Module` on either side of a legacy Function, and `torch.autograd.gradcheck` on a wrapper or on
an instance. Only a volatile Variable has a type of its own.

Stricter than it was: an instance that was called again with other inputs raises when the earlier
call is differentiated (the old gradient was silently wrong), and a second derivative raises, since
there is none through a backward on plain tensors.

Not provided:

- What changed in tensors: `loss.data[0]` is `loss.item()` since 0.4; `retain_variables` is
  `retain_graph`, and `sum(1)` drops the dimension, since 0.2. `y.creator` was the instance; it is
  `y.grad_fn.function`. `volatile` is fixed when a Variable is made, and asking another Variable
  for it gives False with a warning from PyTorch.
- `NestedIOFunction`, `StochasticFunction`, hooks on the instance (`y.grad_fn` takes them).
- Forward-mode derivatives and `torch.func`: they raise. `torch.compile` runs the call uncompiled
  between two graphs; `fullgraph=True` raises. Autocast does not reach backward.
- A `torch.autograd.Function` of today records even when one of its inputs is volatile.

Semantics: `torch/csrc/autograd/python_function.cpp` and `torch/autograd/function.py` in
https://github.com/pytorch/pytorch/tree/v0.3.0.
"""

import weakref

import torch


def _bare(values):
    """The values, with each tensor as one that has no history."""
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in values]


class _Edge(torch.autograd.Function):
    """An empty tensor that leads to the nodes of its inputs without keeping their memory."""

    @staticmethod
    def forward(ctx, *inputs):
        return torch.empty(0)


class _Backward(torch.autograd.Function):
    """Run a legacy backward. Under `create_graph=True` this is recorded, but cannot be passed.

    The edge makes each gradient depend on each input of the call. Without it, as with
    `once_differentiable`, a second derivative could leave this term out without a word.
    """

    @staticmethod
    def forward(ctx, call, edge, *grad_outputs):
        function = ctx.function = call.function
        name = type(function).__name__
        if call.inputs is not function._call_inputs:
            raise RuntimeError(
                f"Legacy autograd function object was called twice: this {name} has been called "
                "with other inputs since, and its state is of that call. "
                f"Make an instance for each call: {name}(...)(input)."
            )
        function._call_ctx = weakref.ref(call)
        function.needs_input_grad = call.needs_input_grad[1:]
        with torch.enable_grad():
            grads = function.backward(*_bare(grad_outputs))
        grads = grads if isinstance(grads, tuple) else (grads,)
        expected = len(call.inputs)
        if all(grad is None for grad in grads[expected:]):
            grads = grads[:expected]
        if len(grads) != expected:
            raise RuntimeError(
                f"{name} returned an invalid number of gradient tensors "
                f"(expected {expected}, but got {len(grads)})"
            )
        return grads

    @staticmethod
    def backward(ctx, *grad_outputs):
        raise RuntimeError(f"{type(ctx.function).__name__} is not differentiable twice")


class _Call(torch.autograd.Function):
    """The node of one call of a legacy Function."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function, ctx.inputs = function, function._call_inputs
        # Weak, because ctx owns the instance: a cycle would keep what is saved until Python's
        # garbage collector runs.
        function._call_ctx = weakref.ref(ctx)
        function.needs_input_grad = ctx.needs_input_grad[1:]
        bare = _bare(inputs)
        variable = {id(tensor): x for tensor, x in zip(bare, inputs, strict=True)}
        try:
            # Grad mode was not known yet: a Variable made inside forward or backward recorded.
            with torch.enable_grad():
                ctx.edge = _Edge.apply(*inputs)
                outputs = function.forward(*bare)
            single = not isinstance(outputs, tuple)
            outputs = (outputs,) if single else outputs
            for i, tensor in enumerate(outputs):
                if not isinstance(tensor, torch.Tensor) or tensor.requires_grad:
                    got = "Variable" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
                    raise TypeError(
                        f"{type(function).__name__}.forward: expected a tensor or a tuple of "
                        f"tensors without history, but got {got} for output {i}"
                    )
                # Another object gets the history, so that self.output = output makes no cycle. A
                # view has to stay one, or in-place changes of it would go unseen.
                variable.setdefault(id(tensor), tensor if tensor._is_view() else tensor.detach())
            for mark, tensors in (
                (ctx.save_for_backward, function.to_save),
                (ctx.mark_dirty, function.dirty_tensors),
                (ctx.mark_non_differentiable, function.non_differentiable),
            ):
                mark(*[variable.get(id(tensor), tensor) for tensor in tensors])
        finally:
            function.to_save = function.dirty_tensors = function.non_differentiable = ()
        outputs = tuple(variable[id(tensor)] for tensor in outputs)
        return outputs[0] if single else outputs

    @staticmethod
    def backward(ctx, *grad_outputs):
        return None, *_Backward.apply(ctx, ctx.edge, *grad_outputs)


class Function:
    """Base class of an operation in the style of PyTorch 0.1.12 to 0.3: an instance for each call.

    A subclass defines `forward(self, *inputs)`, which gets tensors of any shape and dtype (or
    None) and returns a tensor or a tuple of tensors, and `backward(self, *grad_outputs)`, which
    returns a gradient or None for each input; further Nones are dropped. To apply it, call the
    instance: `Linear()(input, weight, bias)`.

    Raises:
        TypeError: an argument is neither a tensor nor None, or an output of forward is no tensor.
        RuntimeError: in the backward pass: the number of gradients is wrong, the instance has been
            called with other inputs since, saved tensors were changed in place or are freed
            already; and for a second derivative.
    """

    _call_node = _Call
    _call_inputs = to_save = dirty_tensors = non_differentiable = needs_input_grad = ()

    def __init_subclass__(cls):
        cls._call_node = type(cls.__name__, (_Call,), {})  # so that grad_fn is a LinearBackward

    def __call__(self, *inputs):
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(self.__call__)(*inputs)
        for i, x in enumerate(inputs):
            if x is not None and not isinstance(x, torch.Tensor):
                raise TypeError(
                    f"{type(self).__name__}: expected a Variable argument, but got "
                    f"{type(x).__name__} at position {i}; what is no tensor goes to __init__"
                )
        # This tuple identifies the call. A repetition, as in gradcheck, is no other call.
        if len(self._call_inputs) != len(inputs) or not all(
            ref is None if x is None else ref is not None and ref() is x
            for ref, x in zip(self._call_inputs, inputs, strict=True)
        ):
            self._call_inputs = tuple(None if x is None else weakref.ref(x) for x in inputs)
        return _unless_volatile(self._call_node.apply, self, *inputs)

    @classmethod
    def apply(cls, *args):
        """Apply a Function with static methods, the style that 0.2 introduced."""
        if "_call_static" not in vars(cls):
            methods = {name: staticmethod(getattr(cls, name)) for name in ("forward", "backward")}
            cls._call_static = type(cls.__name__, (torch.autograd.Function,), methods)
        return _unless_volatile(cls._call_static.apply, *args)

    def __getstate__(self):
        return {key: value for key, value in vars(self).items() if not key.startswith("_call")}

    def _call_ctx(self):
        return None  # each call puts a weak reference to its ctx in this place

    @property
    def saved_variables(self):
        """What was saved, with its history."""
        ctx = self._call_ctx()
        return () if ctx is None else ctx.saved_tensors

    @property
    def saved_tensors(self):
        """What was saved, as plain tensors."""
        return tuple(_bare(self.saved_variables))

    def save_for_backward(self, *tensors):
        """Save inputs, outputs or None for backward. Call it once, in forward."""
        self.to_save = tensors

    def mark_dirty(self, *tensors):
        """Name the inputs that forward changes in place. Call it once, in forward."""
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors):
        """Name the outputs that have no gradient. Call it once, in forward."""
        self.non_differentiable = tensors

    def mark_shared_storage(self, *pairs):
        """Do nothing: PyTorch tracks shared storage by itself since 0.4."""

    def forward(self, *inputs):
        raise NotImplementedError

    def backward(self, *grad_outputs):
        raise NotImplementedError


class InplaceFunction(Function):
    """A Function with the flag `inplace`; it was in `torch.autograd.function`."""

    def __init__(self, inplace=False):
        self.inplace = inplace


class VolatileVariable(torch.Tensor):
    """A Variable for inference: what is computed from it is volatile too and has no history."""

    @property
    def volatile(self):
        return True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.data.__get__:  # the plain tensor inside is not volatile
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args)
        with torch.no_grad():
            return super().__torch_function__(func, types, args, kwargs)

    def backward(self, *args, **kwargs):
        raise RuntimeError("calling backward on a volatile variable")


def _unless_volatile(apply, *args):
    """Apply a Function; if an argument is volatile, unrecorded, and the outputs are volatile."""
    if not any(isinstance(x, VolatileVariable) for x in args):
        return apply(*args)
    with torch.no_grad():
        outputs = apply(*[x.data if isinstance(x, VolatileVariable) else x for x in args])
    if not isinstance(outputs, tuple):
        return outputs.as_subclass(VolatileVariable)
    return tuple(output.as_subclass(VolatileVariable) for output in outputs)


class _VariableType(type):
    def __instancecheck__(cls, instance):
        return isinstance(instance, torch.Tensor)


class Variable(metaclass=_VariableType):
    """Make a tensor that takes part in differentiation and shares its memory with `data`.

    Every tensor counts as an instance, `nn.Parameter` too.

    Args:
        data: tensor of any shape and dtype.
        requires_grad: whether to compute its gradient.
        volatile: for inference. One volatile input makes the result of an operation volatile,
            whatever the other inputs are.

    Raises:
        TypeError: data is no tensor, or is itself a Variable that requires grad or is volatile.
        ValueError: both requires_grad and volatile.
    """

    def __new__(cls, data, requires_grad=False, volatile=False):
        is_tensor = isinstance(data, torch.Tensor)
        if not is_tensor or data.requires_grad or isinstance(data, VolatileVariable):
            got = "Variable" if is_tensor else type(data).__name__
            raise TypeError(f"Variable data has to be a tensor, but got {got}")
        if volatile and requires_grad:
            raise ValueError("Variable can't be volatile and require_grad at the same time!")
        # .data, not .detach(): each Variable counts its own in-place changes, so the tensor that
        # was wrapped can be filled again.
        if volatile:
            return data.data.as_subclass(VolatileVariable)
        return data.data.requires_grad_(requires_grad)
