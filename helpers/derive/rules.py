"""The table: for each operation, the gradient of its arguments, as text.

In a formula, `g` is the gradient of the result, `y` the result, `a`, `b` and `c` the
arguments. `G` and `Y` are `g` and `y` with the reduced dimensions there again, of size 1;
`DIM` is what the reduction was told, `N` the number of elements that it took together.
A formula may give less than the shape of the result, where it broadcasts, or more than
that of the argument: `backward.py` expands and sums.
"""

import math
import re

import torch


class Refused(ValueError):  # noqa: N818 - not an error: an answer
    """Why no backward is written, in one sentence."""


def shown(value):
    """A Python value, as its source."""
    infinite = isinstance(value, float) and not math.isfinite(value)
    written = f'float("{value}")' if infinite else repr(value)
    return "..." if value is ... else written


def table(text):
    """{name: a formula for each argument, None where there is none}."""
    rows = re.sub(r"\|\s+", "| ", text).strip().splitlines()
    return {
        name.strip(): [None if f == "-" else f for f in formulas.split(" | ")]
        for name, formulas in (row.split(": ") for row in rows)
    }


# softplus of torch.nn.functional is its argument above 20. At 0, the second derivative of
# elu is 0.
ELEMENTWISE = table("""
    abs: g * a.sign()
    acos: -g * torch.rsqrt(1 - a * a)
    add: g | g
    asin: g * torch.rsqrt(1 - a * a)
    atan: g / (1 + a * a)
    clone: g
    contiguous: g
    cos: -g * torch.sin(a)
    cosh: g * torch.sinh(a)
    div: g / b | -(g / b) * y
    elu: torch.where(a < 0, g * torch.exp(a.clamp(max=0)), g)
    erf: 2 / math.sqrt(math.pi) * g * torch.exp(-a * a)
    exp: g * y
    expm1: g * (y + 1)
    gelu: g * (0.5 * (1 + torch.erf(a / math.sqrt(2))) + \
        a * torch.exp(-0.5 * a * a) / math.sqrt(2 * math.pi))
    log: g / a
    log1p: g / (1 + a)
    logsigmoid: g * torch.sigmoid(-a)
    masked_fill: g.masked_fill(b, 0) | - | g.masked_fill(~b, 0)
    maximum: torch.where(a == b, g / 2, g).masked_fill(a < b, 0) |
        torch.where(a == b, g / 2, g).masked_fill(b < a, 0)
    minimum: torch.where(a == b, g / 2, g).masked_fill(a > b, 0) |
        torch.where(a == b, g / 2, g).masked_fill(b > a, 0)
    mul: g * b | g * a
    neg: -g
    reciprocal: -g * y * y
    relu: g.masked_fill(a <= 0, 0)
    rsqrt: -0.5 * g * y ** 3
    sigmoid: g * y * (1 - y)
    sign: -
    silu: g * torch.sigmoid(a) * (1 + a * (1 - torch.sigmoid(a)))
    sin: g * torch.cos(a)
    sinh: g * torch.cosh(a)
    softplus: torch.where(a > 20, g, g * torch.sigmoid(a))
    sqrt: g / (2 * y)
    square: 2 * g * a
    sub: g | -g
    tanh: g * (1 - y * y)
    where: - | g.masked_fill(~a, 0) | g.masked_fill(a, 0)
""")

REDUCTIONS = table("""
    amax: G * (a == Y) / (a == Y).sum(DIM, keepdim=True)
    amin: G * (a == Y) / (a == Y).sum(DIM, keepdim=True)
    cumsum: g.flip(DIM).cumsum(DIM).flip(DIM)
    log_softmax: g - y.exp() * g.sum(DIM, keepdim=True)
    logsumexp: G * a.softmax(DIM)
    mean: G / (N)
    norm: a * (G / Y.masked_fill(Y == 0, math.inf))
    vector_norm: a * (G / Y.masked_fill(Y == 0, math.inf))
    softmax: y * (g - (g * y).sum(DIM, keepdim=True))
    std: G / Y.masked_fill(Y == 0, math.inf) * (a - a.mean(DIM, keepdim=True)) / (N)
    sum: G
    var: 2 * G * (a - a.mean(DIM, keepdim=True)) / (N)
""")

# Whose g has to have all of its size.
WHOLE = table("""
    T: g.mT
    broadcast_to: g
    diagonal: g.diag_embed(REST)
    expand: g
    expand_as: g
    flatten: g.reshape(SIZES)
    flip: g.flip(REST)
    mT: g.mT
    reshape: g.reshape(SIZES)
    squeeze: g.unsqueeze(REST)
    t: g.mT
    tril: g.tril(REST)
    triu: g.triu(REST)
    unflatten: g.reshape(SIZES)
    unsqueeze: g.squeeze(REST)
    view: g.reshape(SIZES)
""")

# Without a gradient. What draws random numbers, or reads a tensor's numbers, is nowhere.
CONSTANT = set(
    "arange argmax argmin argsort detach eq eye full full_like ge gt le linspace "
    "logical_and logical_not logical_or lt ne new_full new_ones new_zeros ones ones_like "
    "tensor to zeros zeros_like and or xor invert".split()
)

OTHERS = {}


def rule(*names):
    def add(function):
        OTHERS.update(dict.fromkeys(names, function))
        return function

    return add


def options(node, **defaults):
    """The arguments after the first, by name, in PyTorch's order."""
    given = dict(zip(defaults, node.args[1:], strict=False)) | node.kwargs
    if set(given) - set(defaults) or len(node.args) - 1 > len(defaults):
        raise Refused(f"`{node.op}` with other arguments than {', '.join(defaults)}")
    return defaults | given


def fill(formula, **words):
    pattern = r"\b[gyabcGYN]\b|DIM|REST|SIZES"
    return re.sub(pattern, lambda match: str(words[match[0]]), formula)


def gradients(node, g, tape):
    """Pairs of an argument and the text of its gradient; `tape` writes sizes as text."""
    if node.op in REDUCTIONS:
        return reduction(node, g, tape)
    if node.op in OTHERS:
        return OTHERS[node.op](node, g, tape)
    if node.op == "squeeze" and node.shape == node.args[0].shape:
        raise Refused("`squeeze` of a size that is not 1")
    if node.op == "diagonal" and len(node.shape) > 1 and len(node.args) < 4:
        raise Refused("`diagonal` of a batch: write it as diagonal(0, -2, -1)")
    if node.op in CONSTANT:
        raise Refused(f"`{node.op}` of what has a gradient")
    args, formulas = [*map(tape.text, node.args)], ELEMENTWISE.get(node.op)
    if formulas and (node.kwargs or len(args) != len(formulas)):
        raise Refused(f"`{node.op}` with options: write out what it computes")
    rest = args[1:] + [f"{k}={tape.text(v)}" for k, v in node.kwargs.items()]
    words = dict(zip("abc", args, strict=False), g=g, y=node, REST=", ".join(rest))
    if not formulas:
        words["SIZES"] = tape.sizes(node.args[0])
    pairs = zip(node.args, formulas or WHOLE[node.op], strict=False)
    return [
        (argument, fill(formula, **words)) for argument, formula in pairs if formula
    ]


def reduction(node, g, tape, forwards=False):
    a, names = node.args[0], dict(dim=None, keepdim=False)
    if node.op in ("var", "std"):
        names = dict(dim=None, unbiased=None, keepdim=False, correction=1)
    elif node.op in ("norm", "vector_norm"):
        names = dict(p="fro", dim=None, keepdim=False)
    given = options(node, **names)
    dim = given["dim"]
    dims = dim if isinstance(dim, (tuple, list)) else () if dim is None else (dim,)
    if given.get("p") not in (None, "fro", 2) or isinstance(dim, bool):
        raise Refused(f"`{node.op}` with p other than 2, or without dim=")
    if len({d < 0 for d in dims}) > 1 or (
        not dims and node.op not in ("sum", "mean", "norm", "vector_norm")
    ):
        raise Refused(f"`{node.op}`: name its dimensions, all from one end")
    back = [f".unsqueeze({d})" for d in sorted(dims, key=abs)]
    back = "".join(back) * (not given["keepdim"])
    less = given.get("correction")
    if given.get("unbiased") is not None:
        less = int(given["unbiased"])
    count = tape.count(a, dims) + (f" - {less}" if less else "")
    words = dict(
        a=a, g=g, y=node, G=g + back, Y=f"{node}{back}", N=count, DIM=tape.text(dim)
    )
    (formula,) = REDUCTIONS[node.op]
    if not tape.at_zero and a.op == "input":  # or a zero may be where none is tried
        formula = formula.replace(".masked_fill(Y == 0, math.inf)", "")
    if forwards:
        rest = [tape.text(dim)] * (dim is not None) + ["keepdim=True"] * given[
            "keepdim"
        ]
        return f"({fill(formula, **words | {'G': g})}).sum({', '.join(rest)})"
    return [(a, fill(formula, **words))]


@rule("pow")
def power(node, g, tape):
    a, b = node.args
    if isinstance(b, type(node)):
        raise Refused("`pow` with a tensor as exponent: write exp(b * log(a))")
    plain = None if "_" in tape.text(b) else tape.plain(b)
    if plain is None:  # at 0, 0 * 0 ** -1 is nan
        tape.guards[f"({tape.text(b)} == 0)"] = tape.plain(b) == 0
    if plain == 0:
        return [(a, f"torch.zeros_like({a})")]
    less = plain - 1 if plain is not None else f"({tape.text(b)} - 1)"
    slope = {1: "1", 2: f"{a}"}.get(plain) or f"{a} ** {less}"
    return [(a, f"{tape.text(b)} * {g} * {slope}")]


@rule("leaky_relu")
def leaky_relu(node, g, tape):
    a, slope = node.args[0], options(node, negative_slope=0.01)["negative_slope"]
    return [(a, f"torch.where({a} > 0, {g}, {g} * {tape.text(slope)})")]


CLAMPS = {
    "clamp": ("min", "max"),
    "clamp_max": ("max",),
    "clamp_min": ("min",),
    "clip": ("min", "max"),
}


@rule(*CLAMPS)
def clamp(node, g, tape):
    a, given = node.args[0], options(node, **dict.fromkeys(CLAMPS[node.op]))
    bounds = given.get("min"), given.get("max")
    if any(isinstance(bound, type(node)) for bound in bounds):
        raise Refused("`clamp` with tensors as bounds: use maximum and minimum")
    edge = torch.zeros(1, requires_grad=True)
    (at_bound,) = torch.autograd.grad(edge.clamp(min=0.0), edge)  # 1 in older versions
    for sign, bound in zip("<>", bounds, strict=True):
        if bound is not None:
            sign += "=" * (at_bound.item() == 0)
            g = f"({g}).masked_fill({a} {sign} {tape.text(bound)}, 0)"
    return [(a, g)]


def last(node):
    """Whether it swaps the last two dimensions."""
    if node.op != "transpose":
        return node.op in ("T", "mT", "t")
    return {d % len(node.shape) - len(node.shape) for d in node.args[1:]} == {-1, -2}


def mt(node):
    return node.args[0] if last(node) else f"{node}.mT"


@rule("matmul", "mm", "bmm")
def matmul(node, g, tape):
    a, b = node.args
    left, right = len(a.shape), len(b.shape)
    if left == 1 or right == 1:
        if left > 2 or right > 2:
            raise Refused("`matmul` of a vector and a batch: unsqueeze the vector")
        if left == right:
            return [(a, f"{g} * {b}"), (b, f"{g} * {a}")]
        if right == 1:
            return [(a, f"{g}.unsqueeze(-1) * {b}"), (b, f"{mt(a)} @ {g}")]
        return [(a, f"{b} @ {g}"), (b, f"{a}.unsqueeze(-1) * {g}")]
    if left > right == 2:
        first = f"{a}.flatten(0, -2).mT @ {g}.flatten(0, -2)"
    else:
        first = f"{mt(a)} @ {g}"
    return [(a, f"{g} @ {mt(b)}"), (b, first)]


@rule("linear")
def linear(node, g, tape):
    x, weight, bias, _ = affine(node, tape)
    if len(x.shape) < 2:
        raise Refused("`linear` of a vector: unsqueeze it")
    rows = ".flatten(0, -2)" if len(x.shape) > 2 else ""
    product = f"{g}{rows}.mT @ {x}{rows}"
    return [(x, f"{g} @ {weight}"), (weight, product), (bias, f"{g}{rows}.sum(0)")]


@rule("einsum")
def einsum(node, g, tape):
    equation, *operands = node.args
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    inputs, found = inputs.split(","), []
    for i, operand in enumerate(operands):
        letters = [output, *inputs[:i], *inputs[i + 1 :]]
        others = ", ".join(map(str, [g, *operands[:i], *operands[i + 1 :]]))
        own = inputs[i].replace("...", "")
        alone = set(inputs[i]) - set("".join(letters))
        if not arrow or alone or len(set(own)) < len(own):
            raise Refused(
                f"`einsum` of {equation}: no -> or diagonal, or a sum of one operand"
            )
        found.append(
            (operand, f"torch.einsum('{','.join(letters)}->{inputs[i]}', {others})")
        )
    return found


@rule("transpose", "permute")
def transpose(node, g, tape):
    a, *dims = *node.args, *node.kwargs.values()
    if node.op == "permute":
        dims = dims[0] if isinstance(dims[0], tuple) else dims
        order = sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))
        return [(a, f"{g}.permute({', '.join(map(str, order))})")]
    return [(a, f"{g}.mT" if last(node) else f"{g}.transpose({dims[0]}, {dims[1]})")]


@rule("cat", "stack")
def join(node, g, tape):
    parts, dim = node.args[0], options(node, dim=0)["dim"]
    if node.op == "stack":
        before = ":, " * dim if dim >= 0 else "..., "
        after = ", :" * (-1 - dim)
        return [(part, f"{g}[{before}{i}{after}]") for i, part in enumerate(parts)]
    sizes = [tape.size(part, dim) for part in parts]
    for k, part in enumerate(parts):
        if sizes[k].isdigit() and part.name:
            sizes[k] = f"{part}.shape[{dim}]"
    sizes = ", ".join(sizes)
    return [(part, f"{g}.split([{sizes}], {dim})[{i}]") for i, part in enumerate(parts)]


@rule("chunk", "split", "unbind")
def pieces(node, g, tape):
    names = dict(dim=0) if node.op == "unbind" else dict(size=1, dim=0)
    joined = "stack" if node.op == "unbind" else "cat"
    return [
        (
            node.args[0],
            f"torch.{joined}([{', '.join(g)}], {options(node, **names)['dim']})",
        )
    ]


@rule("gather", "index_select")
def gather(node, g, tape):
    a, (dim, index) = node.args[0], options(node, dim=0, index=None).values()
    add = "scatter_add" if node.op == "gather" else "index_add"
    return [(a, f"torch.zeros_like({a}).{add}({dim}, {index}, {g})")]


@rule("index_add", "scatter_add")
def scattered(node, g, tape):
    dim, index, source = options(node, dim=0, index=None, source=None).values()
    a = node.args[0]
    if node.op == "index_add":
        return [(a, g), (source, f"{g}.index_select({dim}, {index})")]
    if source.shape != index.shape:
        raise Refused("`scatter_add` of a part: cut it to the shape of the index")
    return [(a, g), (source, f"{g}.gather({dim}, {index})")]


@rule("pad")
def pad(node, g, tape):
    given = options(node, pad=None, mode="constant", value=None)
    if tape.plain(given["mode"]) != "constant" or tape.plain(given["value"]):
        raise Refused("`pad` with other than zeros")
    back = tuple(-width for width in given["pad"])
    return [(node.args[0], f"F.pad({g}, {tape.text(back)})")]


@rule("cross")
def cross(node, g, tape):
    a, (b, dim) = node.args[0], options(node, other=None, dim=None).values()
    if dim is None and "linalg" not in node.source:
        raise Refused("`cross` without dim=")
    dim = -1 if dim is None else tape.text(dim)
    product = "torch.linalg.cross({}, {}, dim={})".format
    return [(a, product(b, g, dim)), (b, product(g, a, dim))]


@rule("roll")
def roll(node, g, tape):
    shifts, dims = options(node, shifts=None, dims=None).values()
    back = tuple(-s for s in shifts) if isinstance(shifts, tuple) else -shifts
    return [(node.args[0], f"{g}.roll({tape.text(back)}, {tape.text(dims)})")]


@rule("getitem")
def getitem(node, g, tape):
    a, index = node.args
    index = index if isinstance(index, tuple) else (index,)
    tensors = [i for i in index if isinstance(i, type(node))]
    zeros = f"torch.zeros_like({a})"
    if tensors and len(tensors) == len(index):
        return [(a, f"{zeros}.index_put({tape.text(index)}, {g}, accumulate=True)")]
    if tensors:
        at, dim = tensors[0], index.index(tensors[0])
        if [i for i in index if i != slice(None)] != [at] or not at.shape:
            raise Refused("an index of tensors and of something else: index twice")
        rows = f"{g}.flatten({dim}, {dim + len(at.shape) - 1})"
        places = f"{at}.flatten() % {tape.size(a, dim)}"  # which may be negative
        return [(a, f"{zeros}.index_add({dim}, {places}, {rows})")]
    taken = [
        k for k, i in enumerate(index) if i is not ... and i not in (None, slice(None))
    ]
    new = [k for k, i in enumerate(index) if i is None]
    if len(taken) + bool(new) != 1:
        raise Refused("an index that does nothing, or two things: index twice")
    dims = [k - len(index) if ... in index[:k] else k for k in taken or new]
    (k, *_), (dim, *_) = taken or new, dims
    if new:
        return [(a, f"{g}.squeeze({tuple(dims) if len(dims) > 1 else dim})")]
    if not isinstance(index[k], slice):
        return [
            (a, f"torch.select_scatter({zeros}, {g}, {dim}, {tape.text(index[k])})")
        ]
    given = dict(start=index[k].start, end=index[k].stop, step=index[k].step)
    bounds = "".join(f", {n}={tape.text(v)}" for n, v in given.items() if v is not None)
    return [(a, f"torch.slice_scatter({zeros}, {g}, {dim}{bounds})")]


AFFINE = dict(weight=None, bias=None, stride=1, padding=0, dilation=1, groups=1)


def affine(node, tape):
    """The input, the weight, the bias, and what else it was told, as text."""
    given = options(node, **AFFINE)
    weight, bias = given.pop("weight"), given.pop("bias")
    asked = [k for k in given if tape.plain(given[k]) != AFFINE[k]]
    more = "".join(f", {k}={tape.text(given[k])}" for k in asked)
    return node.args[0], weight, bias, more


@rule("conv1d", "conv2d")
def convolution(node, g, tape):
    x, weight, bias, more = affine(node, tape)
    if "padding='" in more or len(x.shape) != len(weight.shape):
        raise Refused(f"`{node.op}` with padding in words, or without a batch")
    name, rest = f"torch.nn.grad.{node.op}", tuple(range(2, len(x.shape)))
    return [
        (x, f"{name}_input({x}.shape, {weight}, {g}{more})"),
        (weight, f"{name}_weight({x}, {weight}.shape, {g}{more})"),
        (bias, f"{g}.sum({(0, *rest)})"),
    ]


KNOWN = CONSTANT.union(ELEMENTWISE, REDUCTIONS, WHOLE, OTHERS)
# Whose formula is right where g is smaller than the result, and broadcasts.
BROADCASTS = {"pow", "leaky_relu", "expand", *CLAMPS, *ELEMENTWISE}
# Where it is also right for one number.
SCALAR = {*REDUCTIONS} - {"cumsum", "log_softmax", "softmax"}
