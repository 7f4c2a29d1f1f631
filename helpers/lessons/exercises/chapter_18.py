"""Exercises of chapter 18: a tensor of your own."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.compare import wrong_outputs
from helpers.lessons.judge.numbers import alike, changed_in_place, near_miss
from helpers.lessons.judge.properties import each, each_of, random
from helpers.lessons.language import N_, _
from helpers.lessons.torch_messages import raised

aten = torch.ops.aten


class Products(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (aten.mm, aten.addmm, aten.bmm):
            self.count += 1
        return func(*args, **(kwargs or {}))


def _is_mode(attempt):
    if not issubclass(attempt, TorchDispatchMode):
        yield _("it must derive from TorchDispatchMode, which stands below autograd.")


def _linear():
    weight = random(2, 3, seed=1).requires_grad_()
    F.linear(random(4, 3), weight).sum().backward()
    return weight.grad


def _with_bias():
    x = random(4, 3).requires_grad_()
    y = F.linear(x, random(2, 3, seed=1), random(2, seed=2))
    return torch.autograd.grad(y.sum(), x)[0]


A, B, C = random(2, 3, 4), random(2, 4, 5, seed=1), random(2, 3, 5, seed=2)
PROGRAMS = {  # and how many products each has
    N_("for a linear layer, forward and backward"): (_linear, 2),
    N_("for a linear layer with a bias, forward and backward"): (_with_bias, 2),
    N_("for `torch.bmm`"): (lambda: torch.bmm(A, B), 1),
    N_("for `torch.addmm` with beta and alpha"): (
        lambda: torch.addmm(C[0], A[0], B[0], beta=0.5, alpha=2),
        1,
    ),
    N_("for `torch.baddbmm`, none of the three"): (lambda: torch.baddbmm(C, A, B), 0),
    N_("for a program without a matrix product"): (lambda: A.square().sum(), 0),
}


def _counts(attempt, program, right):
    expected = program()
    try:
        with attempt() as products:
            given = program()
    except Exception as error:
        yield _("it raises {message}", message=raised(error))
    if not isinstance(products, attempt):
        yield _("`with Products() as products` must give the mode itself.")
    if not isinstance(given, Tensor) or not torch.equal(given, expected):
        yield _("the program computes something else inside the mode.")
    if program is _linear and not products.count:
        yield _(
            "it counts nothing. `func` is one overload, `aten.mm.default`; `aten.mm` "
            "is the packet of its overloads."
        )
    if products.count != right:
        yield _("it counts {given}; {right} ran.", given=products.count, right=right)


EXERCISE_1 = Exercise(
    number="18.1",
    reference=Products,
    stub="class Products(TorchDispatchMode):\n    count = 0\n    ...  # yours",
    wrong=[
        ({"(aten.mm, aten.addmm, aten.bmm)": "(aten.mm,)"}, "with a bias"),
        (
            {"(aten.mm, aten.addmm, aten.bmm)": "(aten.mm, aten.addmm)"},
            "for `torch.bmm`",
        ),
        (
            {
                "        return func(*args, **(kwargs or {}))": "        func(*args, **(kwargs or {}))"
            },
            "for a linear layer, forward and backward: it raises",
        ),
        ({"TorchDispatchMode": "torch.overrides.TorchFunctionMode"}, "below autograd"),
        ({"func.overloadpacket in": "func in"}, "the packet of its overloads"),
    ],
    kind=[_is_mode],
    properties=[each(PROGRAMS, _counts)],
    success="it counts the products of both passes: one of a linear layer in "
    "forward, and one for each gradient that is asked for in backward.",
    hints=(
        "The mode's method is `__torch_dispatch__(self, func, types, args=(), "
        "kwargs=None)`.",
        "`func` is one overload, such as `aten.mm.default`; `func.overloadpacket` is "
        "`aten.mm`.",
        "Count, run the operation with all its arguments, and return its result.",
    ),
    explanation="The mode stands below autograd, so one counter serves both passes. "
    "Here no input required a gradient but one, so each backward pass has one "
    "product.",
)


class RankOne(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, u, v):
        return Tensor._make_wrapper_subclass(
            cls, (len(u), len(v)), dtype=u.dtype, device=u.device
        )

    def __init__(self, u, v):
        self.u, self.v = u, v

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.mm.default:
            a, b = args
            if isinstance(a, cls) and not isinstance(b, cls):
                return a.u[:, None] * (a.v @ b)
            if isinstance(b, cls) and not isinstance(a, cls):
                return (a @ b.u)[:, None] * b.v
        if func is aten.t.default:
            return cls(args[0].v, args[0].u)
        if func is aten.detach.default:
            return cls(args[0].u, args[0].v)
        raise NotImplementedError(f"RankOne does not know {func}")


class _Largest(TorchDispatchMode):
    """Notes the largest plain tensor that was made inside."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if types:  # the attempt's turn, whose own operations then pass through here
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if type(result) is Tensor:
            self.numbers = max(self.numbers, result.numel())
        return result


def _multiplies(attempt):
    u, v = random(50), random(40, seed=1)
    dense = torch.outer(u, v)
    left, right = random(3, 50, seed=2), random(40, 2, seed=3)
    for name, function in (
        ("R @ b", lambda r: r @ right),
        ("a @ R", lambda r: left @ r),
        ("R.t() @ b", lambda r: r.t() @ left.t()),
        ("a @ R.t()", lambda r: right.t() @ r.t()),
        ("R.detach() @ b", lambda r: r.detach() @ right),
    ):
        try:
            with _Largest() as largest:
                given = function(attempt(u, v))
        except Exception as error:
            yield _("`{name}` raises {error}", name=name, error=raised(error))
        expected = function(dense)
        if isinstance(given, Tensor) and type(given) is not Tensor:
            yield _(
                "`{name}` is a {kind}, not a plain tensor.",
                name=name,
                kind=type(given).__name__,
            )
        yield wrong_outputs(given, expected, what=f"`{name}`")
        if largest.numbers >= dense.numel():
            yield _(
                "`{name}` is right, but it makes a tensor of {numbers:,} numbers.",
                name=name,
                numbers=largest.numbers,
            )
    r = attempt(u, v).requires_grad_()
    r.detach()
    if not r.requires_grad:
        yield _(
            "after `R.detach()`, R itself requires no gradient: return another one."
        )


def _refuses(attempt):
    r = attempt(random(3), random(3, seed=1))
    for name, operation, function in (
        ("R + 1", "add", lambda: r + 1),
        ("R.relu()", "relu", r.relu),
        ("R.mul_(2)", "mul_", lambda: r.mul_(2)),
        ("R.sum()", "sum", r.sum),
        ("R @ R", "mm", lambda: r @ r),
    ):
        try:
            function()
        except TypeError:
            yield _(
                "`{name}` raises a TypeError, as after `return NotImplemented`, which "
                "makes PyTorch ask the next class. Raise a NotImplementedError.",
                name=name,
            )
        except NotImplementedError as error:
            if operation not in str(error):
                yield _("the error of `{name}` does not name the operation.", name=name)
        else:
            yield _(
                "`{name}` raises no error; for what it does not know, it must.",
                name=name,
            )


EXERCISE_2 = Exercise(
    number="18.2",
    reference=RankOne,
    stub="""class RankOne(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # results keep their own type

    @staticmethod
    def __new__(cls, u, v):
        return Tensor._make_wrapper_subclass(cls, (len(u), len(v)), dtype=u.dtype, device=u.device)

    def __init__(self, u, v):
        self.u, self.v = u, v

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None): ...""",
    wrong=[
        (
            {"return a.u[:, None] * (a.v @ b)": "return torch.outer(a.u, a.v) @ b"},
            "2,000 numbers",
        ),
        (
            {"return cls(args[0].u, args[0].v)": "return args[0]"},
            "return another one",
        ),
        ({" {func}": ""}, "does not name the operation"),
        (
            {
                'raise NotImplementedError(f"RankOne does not know {func}")': "return NotImplemented"
            },
            "the next class. Raise a",
        ),
        (
            {
                'raise NotImplementedError(f"RankOne does not know {func}")': "a = torch.outer(args[0].u, args[0].v); "
                "return func(a, *args[1:], **(kwargs or {}))"
            },
            "raises no error",
        ),
    ],
    properties=[_multiplies, _refuses],
    success="right on both sides, and no tensor is larger than its operands and "
    "results.",
    hints=(
        "Which product comes first in u (vᵀ b), so that nothing of size m × n is made?",
        "`t` exchanges u and v. `mm` has two cases: `isinstance(args[0], cls)`, and "
        "args[1].",
        "End with `raise NotImplementedError`, with `func` in the sentence.",
    ),
    explanation="A product of three factors is computed from the side on which it "
    "stays small. The gradient of a plain factor asks for t and mm, which the table "
    "knows.",
)


def lerp_(d, end, weight):
    d.elements.lerp_(end.elements, weight)
    return d


def _moves(attempt, weight):
    start, end = random(4), random(4, seed=1)
    d, e = (SimpleNamespace(elements=x.clone()) for x in (start, end))
    shared = d.elements.detach()
    attempt(d, e, weight)
    yield changed_in_place(end=(e.elements, end))
    right = torch.lerp(start, end, weight)
    misses = {_("nothing moves."): start}
    yield near_miss(d.elements, right, misses, _("it moves to other numbers."))
    if not alike(shared, right):
        yield _(
            "`d.elements` is replaced, not changed: who shares the old one sees "
            "no change."
        )


EXERCISE_3 = Exercise(
    number="18.3",
    reference=lerp_,
    wrong=[
        ({"d.elements.lerp_(": "d.elements.lerp("}, "nothing moves"),
        (
            {
                "d.elements.lerp_(end.elements, weight)": "d.elements = d.elements.lerp(end.elements, weight)"
            },
            "`d.elements` is replaced",
        ),
        (
            {"d.elements.lerp_(": "d.elements.data = d.elements.lerp("},
            "`d.elements` is replaced",
        ),
        (
            {
                "d.elements.lerp_(end.elements, weight)": "end.elements.lerp_(d.elements, weight)"
            },
            "it changes `end`",
        ),
        (
            {", weight)\n    return d": ", 1 - weight)\n    return d"},
            "it moves to other numbers",
        ),
    ],
    properties=[
        each_of([(0.25,), (0.0,), (1.0,)], _moves, N_("with weight = {weight}"))
    ],
    success="the numbers moved in place. PyTorch gives its caller the tensor that was "
    "passed, whatever an entry returns; to return `d` is the convention.",
    hints=(
        "Which of the entries in this chapter writes, and what does that entry return?",
        "`elements` is a plain tensor, which has a `lerp_` of its own.",
        "`d.elements = ...` gives d another tensor; an operation that ends in `_` "
        "writes into it.",
    ),
    explanation="A view of d, such as that of detach, holds the same `elements`. Only "
    "a write into them reaches it.",
)


class Logged(Tensor):
    log = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.log.append(func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result.as_subclass(cls) if type(result) is Tensor else result


def _logs(attempt):
    plain = random(2, 3)
    w = plain.clone().as_subclass(attempt)
    for name, call in (
        ("torch.cat([w, w])", lambda w: torch.cat([w, w])),
        ("torch.stack([x, w])", lambda w: torch.stack([plain, w])),
        ("(w + 1).exp().exp()", lambda w: (w + 1).exp().exp()),
    ):
        attempt.log.clear()
        try:
            given = call(w)
        except (Exception, RecursionError) as error:
            yield _("`{name}` raises {error}", name=name, error=raised(error))
        yield wrong_outputs(given.as_subclass(Tensor), call(plain), what=f"`{name}`")
        called = name.split("(")[0].removeprefix("torch.") or "exp"
        if called not in attempt.log:
            yield _(
                "after `{name}` the log is {log}; `{called}` is missing.",
                name=name,
                log=attempt.log,
                called=called,
            )
        if called == "exp" and attempt.log.count("exp") != 2:
            yield _(
                "after `{name}` the log is {log}: `exp` was called twice.",
                name=name,
                log=attempt.log,
            )
        if not isinstance(given, attempt):
            yield _("the result of `{name}` has lost the class.", name=name)


def _is_trained(attempt):
    start = random(3)
    weight = nn.Parameter(start.clone().as_subclass(attempt))
    other = nn.Parameter(start.clone())
    for parameter in (weight, other):
        if not parameter.is_leaf:
            yield _(
                "a parameter of this class is no leaf: `as_subclass` makes a new tensor. "
                "Leave alone what has the class."
            )
        adam = torch.optim.Adam([parameter], lr=0.1, foreach=False)
        for _step in range(3):
            adam.zero_grad()
            parameter.square().sum().backward()
            adam.step()
    moved = weight.detach().as_subclass(Tensor)
    if alike(moved, start):
        yield _("after three steps of Adam the weight has not moved.")
    yield wrong_outputs(moved, other.detach(), what=_("the weight after Adam"))


EXERCISE_4 = Exercise(
    number="18.4",
    reference=Logged,
    stub="class Logged(Tensor):\n    log = []  # the names of functions, as they are "
    "called\n    ...  # yours",
    wrong=[
        (
            {"        with torch._C.DisableTorchFunctionSubclass():\n    ": ""},
            "RecursionError",
        ),
        ({"result.as_subclass(cls) if type(result) is Tensor else ": ""}, "lost the"),
        ({"type(result) is Tensor": "isinstance(result, Tensor)"}, "is no leaf"),
        ({"Logged.log.append(func.__name__)": "pass"}, "is missing"),
        (
            {"with": "if func is Tensor.addcdiv_: return args[0]\n        with"},
            "has not moved",
        ),
    ],
    properties=[_logs, _is_trained],
    success="it sees calls with a tensor in a list, and Adam trains it.",
    hints=(
        "Which of the two methods sees functions?",
        "`super().__torch_function__` runs the function and keeps the class.",
    ),
    explanation="The arguments pass on untouched, so a list of tensors is no special "
    "case.",
)
