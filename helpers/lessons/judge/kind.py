"""Is an attempt an answer of the kind that is asked for? Before it is called."""

import inspect

from torch.autograd import Function

from helpers.lessons.language import _


def wrong_kind(attempt, reference):
    """Why `attempt` is no answer of the kind that `reference` is, or None."""
    kind = type(attempt).__name__
    if inspect.isclass(reference) and not inspect.isclass(attempt):
        return _(
            "give check the class {name} itself, not its instance, its apply or "
            "a result; got a value of type {kind}.",
            name=reference.__name__,
            kind=kind,
        )
    if "\n" in str(reference) and not isinstance(attempt, str):  # a source in C
        return _(
            "give check the source, a string; got a value of type {kind}.", kind=kind
        )
    if inspect.isfunction(reference) and is_function_class(attempt):
        return _(
            "give check the function itself, got the class {kind}; call its apply.",
            kind=attempt.__name__,
        )
    if inspect.isfunction(reference) and not callable(attempt):
        return _(
            "give check the function itself, got a value of type {kind}.", kind=kind
        )
    if is_function_class(reference):
        return _misfit_of_function_class(attempt, reference)
    return None


def _misfit_of_function_class(attempt, reference):
    if not issubclass(attempt, Function):
        others = [base for base in attempt.__mro__ if base.__name__ == "Function"]
        if others:
            return _(
                "it must derive from torch.autograd.Function; its Function is that "
                "of {module}.",
                module=others[0].__module__,
            )
        return _("it must derive from torch.autograd.Function.")
    for name in ("forward", "backward"):
        method = inspect.getattr_static(attempt, name)
        if method is inspect.getattr_static(Function, name):
            if name == "backward" and vars(attempt).get("vjp"):
                continue
            return _(
                "it has no method `{name}`, nor inherits one. Look at spelling and "
                "indentation.",
                name=name,
            )
        if not _is_static(method, attempt, name):
            return _(
                "`{name}` must be a static method: @staticmethod, above any other "
                "decorator, and no self.",
                name=name,
            )
    names = [*inspect.signature(reference.forward).parameters]
    if reference.setup_context is Function.setup_context:
        names.remove("ctx")
    apart = attempt.setup_context is not Function.setup_context
    names = names if apart else ["ctx", *names]
    try:
        inspect.signature(attempt.forward).bind(*names)
    except TypeError:
        return (
            _("beside `setup_context`, `forward` must take ({names}).")
            if apart
            else _("`forward` must take ({names}).")
        ).format(names=", ".join(names))
    try:
        inspect.signature(attempt.setup_context).bind("ctx", "inputs", "output")
    except TypeError:
        return _("`setup_context` must take (ctx, inputs, output).")
    return None


def _is_static(method, cls, name):
    """Is it a method where it was written, not a function put there?"""
    if inspect.isfunction(method):
        (owner, *_) = (base for base in cls.__mro__ if name in vars(base))
        return not method.__qualname__.startswith(f"{owner.__qualname__}.")
    return isinstance(method, staticmethod)


def is_function_class(value):
    return inspect.isclass(value) and issubclass(value, Function)
