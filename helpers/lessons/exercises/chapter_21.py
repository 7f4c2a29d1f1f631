"""Exercises of chapter 21: the backward that writes itself."""

import copy
import operator

import torch

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.numbers import alike
from helpers.lessons.judge.properties import each, random
from helpers.lessons.language import N_, _

OPERATIONS = {
    "add": operator.add,
    "mul": operator.mul,
    "matmul": operator.matmul,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "sum": torch.sum,
}
RULES = {
    "add": ["{g}", "{g}"],
    "mul": ["{g} * {b}", "{g} * {a}"],
    "matmul": ["{g} @ {b}.mT", "{a}.mT @ {g}"],
    "exp": ["{g} * {y}"],
    "sigmoid": ["{g} * {y} * (1 - {y})"],
    "sum": ["{g}.expand({a}.shape)"],
}


def write_backward(steps, rules):
    lines, seen = [], set()
    for y, op, *arguments in reversed(steps):
        g = "grad_output" if y == steps[-1][0] else f"grad_{y}"
        words = dict(zip("ab", arguments, strict=False), g=g, y=y)
        for argument, rule in zip(arguments, rules[op], strict=True):
            part = f"({rule.format(**words)}).sum_to_size({argument}.shape)"
            so_far = f"grad_{argument} + " if argument in seen else ""
            lines.append(f"grad_{argument} = {so_far}{part}")
            seen.add(argument)
    return lines


def run(steps, inputs):
    values = dict(inputs)
    for y, op, *arguments in steps:
        values[y] = OPERATIONS[op](*(values[a] for a in arguments))
    return values


STEPS = {
    N_("for a chain of two steps"): (
        [("h", "mul", "x", "w"), ("y", "exp", "h")],
        {"x": (4, 6), "w": (4, 6)},
    ),
    N_("where `h` is used by two steps"): (
        [("h", "mul", "x", "w"), ("e", "sigmoid", "h"), ("y", "mul", "h", "e")],
        {"x": (4, 6), "w": (4, 6)},
    ),
    N_("where a step takes `x` twice"): (
        [("s", "mul", "x", "x"), ("y", "sum", "s")],
        {"x": (4, 6)},
    ),
    N_("where `b` is broadcast"): (
        [("h", "matmul", "x", "w"), ("z", "add", "h", "b"), ("y", "sigmoid", "z")],
        {"x": (2, 4, 6), "w": (6, 3), "b": (3,)},
    ),
    N_("where `x` is used by three steps"): (
        [
            ("e", "exp", "x"),
            ("p", "mul", "e", "x"),
            ("s", "add", "p", "x"),
            ("y", "add", "s", "e"),
        ],
        {"x": (5,)},
    ),
}


def _writes(attempt, steps, shapes):
    inputs = {n: random(*s, seed=k) for k, (n, s) in enumerate(shapes.items())}
    lines = attempt(list(steps), copy.deepcopy(RULES))
    if not isinstance(lines, list | tuple) or not all(
        isinstance(line, str) for line in lines
    ):
        yield _("the result must be a list of lines, each a string.")
    leaves = {n: x.clone().requires_grad_() for n, x in inputs.items()}
    values = run(steps, leaves)
    y = values.pop(steps[-1][0])
    g = random(*y.shape, seed=9)
    gradients = torch.autograd.grad(y, list(values.values()), g)
    # The first to be known comes first: what is wrong there is wrong in all that follow.
    right = reversed([*zip(values, gradients, strict=True)])
    names = run(steps, inputs) | {"grad_output": g, "torch": torch}
    before = {}
    for line in lines:
        try:
            exec(line, names)
        except NameError as error:
            yield _(
                "`{line}` reads `{name}`, which no line above it makes. In which order "
                "do the gradients become known? The first of them is `grad_output`.",
                line=line,
                name=error.name,
            )
        except Exception as error:
            yield _("`{line}` cannot be run: {error}", line=line, error=error)
        name = line.partition(" = ")[0]
        before.setdefault(name, []).append(names.get(name))
    if not g.equal(random(*y.shape, seed=9)):
        yield _(
            "a line changes `grad_output` in place. Two names may hold one tensor: write "
            "`a = a + b`, not `a += b`."
        )
    for name, expected in right:
        given = names.get(f"grad_{name}")
        if not torch.is_tensor(given):
            yield _("no line makes `grad_{name}`.", name=name)
        if given.shape != expected.shape:
            yield _(
                "`grad_{name}` has the shape {given}, but `{name}` has {right}: what was "
                "broadcast must be summed.",
                name=name,
                given=tuple(given.shape),
                right=tuple(expected.shape),
            )
        if not alike(given, expected):
            made = before.get(f"grad_{name}", [])
            if len(made) > 1 and alike(sum(made), expected):
                yield _(
                    "`grad_{name}` is made {count} times, and only the last one counts. "
                    "What happens to the gradients of two uses?",
                    name=name,
                    count=len(made),
                )
            yield _("`grad_{name}` is wrong.", name=name)


EXERCISE_1 = Exercise(
    number="21.1",
    reference=write_backward,
    wrong=[
        (
            {"argument in seen": "False"},
            "only the last one counts",
        ),
        ({"in reversed(steps)": "in steps"}, "which no line above it makes"),
        (
            {".sum_to_size({argument}.shape)": ""},
            "what was broadcast must be summed",
        ),
        (
            {'{argument} + "': '{argument}.__iadd__"'},
            "changes `grad_output` in place",
        ),
    ],
    properties=[each(STEPS, _writes)],
    success="this is the whole of reverse mode: the rules, the reversed order, and a sum "
    "where a value was used more than once.",
    hints=(
        "The gradient of the last step is known: it is `grad_output`. Begin there.",
        "A name that was seen before has a gradient already: add to it.",
        "End each part with `.sum_to_size(...)`, so that it has the shape of its argument.",
    ),
    explanation="A gradient is complete when all steps that use the value have been "
    "visited. Reversed order guarantees it, since each step stands after what it uses.",
)


def may_drop(g, s, shape):
    return torch.broadcast_shapes(g, s) == tuple(shape)


DROPS = [
    ((4, 1), (4, 6), (4, 6)),
    ((4, 1), (6,), (4, 6)),
    ((4, 1), (4, 1), (4, 6)),
    ((), (6,), (4, 6)),
    ((1, 6), (4, 1), (4, 6)),
    ((), (), (4, 6)),
    ((4, 6), (), (4, 6)),
    ((3, 1, 1), (4, 6), (3, 4, 6)),
    ((3, 1, 1), (4, 1), (3, 4, 6)),
    ((6,), (6,), (1, 6)),
    ((1, 6), (0, 1), (0, 6)),
]


def _drops(attempt):
    for g, s, shape in DROPS:
        made, right = attempt(g, s, shape), may_drop(g, s, shape)
        if made not in (True, False):
            yield _("the result must be True or False, got {made}.", made=made)
        case = _("g {g}, s {s}, shape {shape}", g=g, s=s, shape=shape)
        if made and not right:
            product = tuple(torch.broadcast_shapes(g, s))
            yield _(
                "{case}: without the expand, the product has the shape {product}, and "
                "what is summed afterwards is too little.",
                case=case,
                product=product,
            )
        if right and not made:
            yield _("{case}: the product has the shape without the expand.", case=case)


EXERCISE_2 = Exercise(
    number="21.2",
    reference=may_drop,
    wrong=[
        ({"torch.broadcast_shapes(g, s) == tuple(shape)": "True"}, "too little"),
        (
            {"torch.broadcast_shapes(g, s) == tuple(shape)": "s == shape"},
            "has the shape without the expand",
        ),
        ({"torch.broadcast_shapes(g, s)": "g"}, "has the shape without the expand"),
    ],
    properties=[_drops],
    success="a simplification needs its condition, and the condition is about shapes.",
    hints=(
        "Which shape has `g * s`?",
        "`torch.broadcast_shapes(g, s)` says it without tensors.",
    ),
    explanation="The expand may go where the product has the full shape anyway.",
)


def again(steps, needed, saved):
    wanted, found = set(needed), []
    for y, _op, *arguments in reversed(steps):
        if y in wanted and y not in saved:
            found.append(y)
            wanted.update(arguments)
    return found[::-1]


GATE = [
    ("gate", "matmul", "x", "v"),
    ("s", "sigmoid", "gate"),
    ("up", "matmul", "x", "w"),
    ("silu", "mul", "gate", "s"),
    ("y", "mul", "silu", "up"),
]
NEEDED = ["x", "v", "w", "gate", "s", "up", "silu"]
CHOICES = {  # what backward needs, what is saved
    N_("with nothing but the inputs saved"): (NEEDED, set()),
    N_("with everything saved"): (NEEDED, {"gate", "s", "up", "silu"}),
    N_("with `gate` saved"): (NEEDED, {"gate"}),
    N_("with `s` saved"): (NEEDED, {"s"}),
    N_("where backward needs `silu` alone, and `gate` is saved"): (["silu"], {"gate"}),
    N_("where backward needs `silu` alone, and `silu` is saved"): (["silu"], {"silu"}),
}


def _again(attempt, needed, saved):
    given = attempt(list(GATE), list(needed), set(saved))
    if not isinstance(given, list | tuple):
        yield _("the result must be a list of names.")
    right, given = again(GATE, needed, saved), list(given)
    for name in right:
        if name not in given:
            yield _(
                "`{name}` is missing: backward, or a step that it computes, reads it.",
                name=name,
            )
    for name in given:
        if name in saved:
            yield _("`{name}` is saved, so it need not be computed again.", name=name)
        if name not in right:
            yield _("nobody reads `{name}`: leave it out.", name=name)
    if given != right:
        yield _(
            "each name once, and a step after what it reads: {given}.",
            given=", ".join(given),
        )


EXERCISE_3 = Exercise(
    number="21.3",
    reference=again,
    wrong=[
        ({" and y not in saved": ""}, "need not be computed again"),
        ({"            wanted.update(arguments)\n": ""}, "is missing"),
        ({"if y in wanted and": "if"}, "leave it out"),
        ({"found[::-1]": "found"}, "a step after what it reads"),
    ],
    properties=[each(CHOICES, _again)],
    success="a saved value is a wall: nothing behind it is computed for its sake.",
    hints=(
        "Walk the steps from the last to the first.",
        "A step that is computed again makes its arguments needed, too.",
        "A step that is saved does not.",
    ),
    explanation="It is the same walk as in 21.1, over needs in place of gradients.",
)
