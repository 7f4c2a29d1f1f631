"""Run autograd code written for PyTorch 0.1.12 to 0.3 on today's PyTorch.

Change the imports to `from helpers.ops.legacy import Function, Variable`; the rest
stays, but where the code says `torch.autograd.Function` or `autograd.Variable` in full,
write `Function` and `Variable`. In those versions an operation was an *instance*:
`__init__` took the arguments that are no tensors, a call ran `forward(self, ...)`, and
`backward(self, ...)` found in `self` what forward had left there. Both worked on plain
tensors, whose use is not recorded.

Needs torch 2.10 or later.

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

A Variable is an ordinary tensor, so both generations mix: modern tensors,
`nn.Parameter` and `nn.Module` on either side of a legacy Function, and
`torch.autograd.gradcheck` on a wrapper or on an instance. Only a volatile Variable has
a type of its own.

Stricter than it was: an instance that was called again with other inputs raises when
the earlier call is differentiated (the old gradient was silently wrong); a second
derivative raises, since there is none through a backward on plain tensors; and so does
changing in place, with a volatile Variable, one that has a history.

Not provided:

- What changed in tensors: `loss.data[0]` is `loss.item()` since 0.4; `retain_variables`
  is `retain_graph`, and `sum(1)` drops the dimension, since 0.2. `y.creator` was the
  instance; it is `y.grad_fn.function`. `volatile` is fixed when a Variable is made, and
  asking another Variable for it gives False with a warning from PyTorch.
- Telling a Variable from a plain tensor: `isinstance(x, Variable)` is True for every
  tensor, inside forward as well, and so is `torch.is_tensor(x)`.
- Instances of 0.4 to 1.4: there, forward ran without recording; begin it with
  `torch.no_grad()`.
- `NestedIOFunction`, `StochasticFunction`, hooks on the instance (`y.grad_fn` takes
  them).
- Forward-mode derivatives and `torch.func`, threads that share an instance, copies of a
  volatile Variable, and `type(x) == Variable`. Autocast does not reach backward.
- A `torch.autograd.Function` of today records even when one of its inputs is volatile.

Semantics: `torch/csrc/autograd/python_function.cpp` and `torch/autograd/function.py` in
https://github.com/pytorch/pytorch/tree/v0.3.0.
"""

import weakref
from functools import partial

import torch


def _bare(values):
    """The values, with each tensor as one that has no history."""
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in values]


class _Edge(torch.autograd.Function):
    """An empty tensor that leads to the nodes of its inputs, and keeps none of them."""

    @staticmethod
    def forward(ctx, *inputs):
        return torch.empty(0)


def _forward(ctx, holder, forward, inputs):
    """Run forward on plain tensors. What it left in holder goes to ctx."""
    bare = _bare(inputs)
    variable = {id(tensor): x for tensor, x in zip(bare, inputs, strict=True)}
    # Grad mode was not known yet: a Variable made inside forward or backward recorded.
    with torch.enable_grad():
        outputs = forward(*bare)
    single = not isinstance(outputs, tuple)
    outputs = (outputs,) if single else outputs
    for i, tensor in enumerate(outputs):
        is_tensor = isinstance(tensor, torch.Tensor)
        if not is_tensor or tensor.requires_grad:
            got = "Variable" if is_tensor else type(tensor).__name__
            hint = ""
            if is_tensor:
                hint = (
                    "; code of 0.4 to 1.4 needs `with torch.no_grad():` inside forward"
                )
            raise TypeError(
                f"{ctx.name().removesuffix('Backward')}.forward: expected a tensor or "
                "a tuple of tensors without history, but got "
                f"{got} for output {i}{hint}"
            )
        # Another object gets the history, so that self.output = output makes no cycle.
        # A view of an input has to stay one, or in-place changes of it would go unseen.
        of_input = tensor._is_view() and any(tensor._base is x for x in bare)
        variable.setdefault(id(tensor), tensor if of_input else tensor.detach())
    for mark, name in (
        (ctx.save_for_backward, "to_save"),
        (ctx.mark_dirty, "dirty_tensors"),
        (ctx.mark_non_differentiable, "non_differentiable"),
    ):
        tensors = getattr(holder, name) or ()
        mark(*[variable.get(id(tensor), tensor) for tensor in tensors])
    outputs = tuple(variable[id(tensor)] for tensor in outputs)
    return outputs[0] if single else outputs


def _dense(grad):
    """A gradient that may be changed in place: not one number, expanded."""
    if grad.requires_grad or 0 in grad.stride():
        return grad.detach().clone()
    return grad


def _of_shape(grad, shape):
    """A gradient without history, and with the input's dimensions of size 1."""
    if not isinstance(grad, torch.Tensor) or shape is None:
        return grad
    # A copy, or x.grad would take over what the instance may keep.
    if grad.requires_grad:
        grad = grad.detach().clone()
    only_ones = [n for n in grad.shape if n != 1] == [n for n in shape if n != 1]
    return grad.reshape(shape) if only_ones and grad.shape != shape else grad


def _backward(call, grad_outputs):
    """Run the legacy backward of a call, and check what it returns."""
    function = call.function
    name = type(function).__name__
    if call.inputs is not function._call_inputs:
        raise RuntimeError(
            f"Legacy autograd function object was called twice: this {name} has been "
            "called with other inputs since, and its state is of that call. "
            f"Make an instance for each call: {name}(...)(input)."
        )
    function._call_ctx = weakref.ref(call)
    function.needs_input_grad = call.needs_input_grad[1:]
    with torch.enable_grad():
        grads = function.backward(*map(_dense, grad_outputs))
    grads = grads if isinstance(grads, tuple) else (grads,)
    expected = len(call.shapes)
    if all(grad is None for grad in grads[expected:]):
        grads = grads[:expected]
    if len(grads) != expected:
        raise RuntimeError(
            f"{name} returned an invalid number of gradient tensors "
            f"(expected {expected}, but got {len(grads)})"
        )
    return tuple(map(_of_shape, grads, call.shapes))


class _Backward(torch.autograd.Function):
    """A legacy backward under `create_graph=True`: recorded, but it cannot be passed.

    The edge makes each gradient depend on each input of the call. Without it, as with
    `once_differentiable`, a second derivative could silently leave this term out.
    """

    @staticmethod
    def forward(ctx, call, edge, *grad_outputs):
        ctx.function = call.function
        # Bare, or a tensor that the instance keeps would get this node as its history.
        return tuple(_bare(_backward(call, grad_outputs)))

    @staticmethod
    def backward(ctx, *grad_outputs):
        raise RuntimeError(f"{type(ctx.function).__name__} is not differentiable twice")


class _Call(torch.autograd.Function):
    """The node of one call of a legacy Function."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function, ctx.inputs = function, function._call_inputs
        ctx.shapes = [None if x is None else x.shape for x in inputs]
        # Weak, because ctx owns the instance: a cycle would wait for Python's garbage
        # collector.
        function._call_ctx = weakref.ref(ctx)
        function.needs_input_grad = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            ctx.edge = _Edge.apply(*inputs)
        try:
            return _forward(ctx, function, function.forward, inputs)
        finally:
            function.to_save = function.dirty_tensors = function.non_differentiable = ()

    @staticmethod
    def backward(ctx, *grad_outputs):
        if torch.is_grad_enabled():
            return None, *_Backward.apply(ctx, ctx.edge, *grad_outputs)
        return None, *_backward(ctx, grad_outputs)


class Function:
    """Base class of an operation in the style of 0.1.12 to 0.3: an instance a call.

    A subclass defines `forward(self, *inputs)`, which gets tensors of any shape and
    dtype (or None) and returns a tensor or a tuple of tensors, and
    `backward(self, *grad_outputs)`, which returns a gradient or None for each input;
    further Nones are dropped. To apply it, call the instance:
    `Linear()(input, weight, bias)`.

    Raises TypeError if an argument is neither a tensor nor None, or an output of
    forward is no tensor. The backward pass raises RuntimeError if the number of
    gradients is wrong, if the instance has been called with other inputs since, if
    saved tensors were changed in place or are freed already, and for a second
    derivative.
    """

    _call_node = _Call
    _call_inputs = to_save = dirty_tensors = non_differentiable = needs_input_grad = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # So that grad_fn is a LinearBackward.
        cls._call_node = type(cls.__name__, (_Call,), {})

    def __call__(self, *inputs):
        if torch.compiler.is_dynamo_compiling():  # it runs between two graphs
            return torch.compiler.disable(self.__call__)(*inputs)
        for i, x in enumerate(inputs):
            if x is not None and not isinstance(x, torch.Tensor):
                raise TypeError(
                    f"{type(self).__name__}: expected a Variable argument, but got "
                    f"{type(x).__name__} at position {i}; what is no tensor goes to "
                    "__init__"
                )
        # This tuple identifies the call. A repetition, as in gradcheck, is no other
        # call.
        before = [None if ref is None else ref() for ref in self._call_inputs]
        if len(before) != len(inputs) or any(
            x is not y for x, y in zip(before, inputs, strict=True)
        ):
            self._call_inputs = tuple(
                None if x is None else weakref.ref(x) for x in inputs
            )
        return _unless_volatile(self._call_node.apply, self, *inputs)

    @classmethod
    def apply(cls, *args):
        """Apply a Function with static methods, the style that 0.2 introduced."""
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(cls.apply)(*args)
        if "_call_static" not in vars(cls):

            def forward(ctx, *args):
                return _forward(ctx, ctx, partial(cls.forward, ctx), args)

            methods = {
                "forward": staticmethod(forward),
                "backward": staticmethod(cls.backward),
            }
            cls._call_static = type(cls.__name__, (torch.autograd.Function,), methods)
        return _unless_volatile(cls._call_static.apply, *args)

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
    """A Variable for inference: what is made of it is volatile and has no history."""

    @property
    def volatile(self):
        return True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.data.__get__:  # the plain tensor inside is not volatile
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args)
        values = [*args, *(kwargs or {}).values()]
        return _unrecorded(
            values, super().__torch_function__, func, types, args, kwargs
        )

    def backward(self, *args, **kwargs):
        raise RuntimeError("calling backward on a volatile variable")


def _unrecorded(values, call, *args):
    """Call without recording. What has a history may not change."""
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    others = [x for x in tensors if not isinstance(x, VolatileVariable)]
    watched = [x for x in others if torch.is_grad_enabled() and x.grad_fn is not None]
    versions = [x._version for x in watched]
    with torch.no_grad():
        result = call(*args)
    if versions != [x._version for x in watched]:
        raise RuntimeError(
            "a volatile Variable has changed one that has a history in place, and the "
            "history does not say so: write y = y * volatile, not y.mul_(volatile)"
        )
    return result


def _unless_volatile(apply, *args):
    """Apply a Function. If an argument is volatile, nothing is recorded."""
    if not any(isinstance(x, VolatileVariable) for x in args):
        return apply(*args)
    plain = [x.data if isinstance(x, VolatileVariable) else x for x in args]
    outputs = _unrecorded(plain, apply, *plain)
    if isinstance(outputs, tuple):
        return tuple(output.as_subclass(VolatileVariable) for output in outputs)
    return outputs.as_subclass(VolatileVariable)


class _VariableType(type):
    def __instancecheck__(cls, instance):
        return isinstance(instance, torch.Tensor)


class Variable(metaclass=_VariableType):
    """A tensor that takes part in differentiation and shares its memory with `data`.

    data: a tensor of any shape and dtype.
    requires_grad: whether to compute its gradient. Integers and booleans have none.
    volatile: for inference. One volatile input makes the result of an operation
        volatile, whatever the other inputs are.

    Raises TypeError if data is no tensor, or a Variable that requires grad or is
    volatile, and ValueError for both requires_grad and volatile.
    """

    def __new__(cls, data, requires_grad=False, volatile=False):
        is_tensor = isinstance(data, torch.Tensor)
        if not is_tensor or data.requires_grad or isinstance(data, VolatileVariable):
            got = "Variable" if is_tensor else type(data).__name__
            raise TypeError(f"Variable data has to be a tensor, but got {got}")
        if volatile and requires_grad:
            raise ValueError(
                "Variable can't be volatile and require_grad at the same time!"
            )
        # .data, not .detach(): each Variable counts its own in-place changes, so the
        # tensor that was wrapped can be filled again.
        if volatile:
            return data.data.as_subclass(VolatileVariable)
        differentiable = data.is_floating_point() or data.is_complex()
        return data.data.requires_grad_(requires_grad and differentiable)
