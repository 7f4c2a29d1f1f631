"""The text of the Function: the forward as it stands, what it rests on, and the backward."""

import ast
import inspect
import re
import sys
import textwrap

from .rules import Refused, shown
from .simple import broken


def definition(function):
    """The function's own lines below its head, and what stands above them in its module."""
    if function.__closure__:
        raise Refused("a def without a closure is needed: pass what it closes over")
    try:
        source = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source).body[0]
    except (OSError, SyntaxError):
        tree = None
    if not isinstance(tree, ast.FunctionDef):
        raise Refused(
            "the source of the function cannot be read: write a def in a file"
        )
    first = tree.body[0]
    body = source.splitlines()[first.lineno - 1 : tree.end_lineno]
    body[0] = " " * first.col_offset + body[0][first.col_offset :]
    above = {"import torch"}
    parts = ast.Module([*tree.body, *map(ast.Expr, tree.args.defaults)], [])
    read = {node.id for node in ast.walk(parts) if isinstance(node, ast.Name)}
    for name in (read - set(function.__code__.co_varnames)) & set(function.__globals__):
        value = function.__globals__[name]
        called, module = getattr(value, "__name__", ""), inspect.ismodule(value)
        home = called if module else str(getattr(value, "__module__", ""))
        home = "torch.nn.functional" if "._C" in home else home
        found = value if module else getattr(sys.modules.get(home), called, None)
        alias = f" as {name}" * (called != name)
        if type(value) in (bool, int, float, str) and name not in CHECKED:
            above.add(f"{name} = {shown(value)}")
        elif home.split(".")[0] not in ("torch", "math") or found is not value:
            raise Refused(f"`{name}` is a global: pass it, or write it out")
        elif module:
            above.add(f"import {home}{alias}")
        else:
            above.add(f"from {home} import {called}{alias}")
    for argument in tree.args.args:
        argument.annotation = None
    tree.returns, tree.decorator_list = None, []
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    return tree, textwrap.dedent("\n".join(body)), above


CHECKED = "name", "tensor", "shape", "dtype"  # which the check binds
ALONE = bool, type(None)  # whose values are compared by `is`


def title_of(function):
    title = function.__name__.title().replace("_", "")
    return title if len(title) > 1 else f"{title}Function"  # F is torch.nn.functional


TEMPLATE = '''\
{above}


class {title}(torch.autograd.Function):
    """{name}: {kept}"""

    @staticmethod
    def forward({signature}):
{body}

{setup}    @staticmethod
    def backward(ctx, {outputs}):
{lines}
        return {returned}
{jvp}

def {head}:
    """What the backward rests on."""
{check}
'''
SETUP = """\
    @staticmethod
    def setup_context(ctx, inputs, output):
{store}

"""
ONCE = """\
if torch.is_grad_enabled():
    raise RuntimeError("no second derivative: what was saved has no history")
"""
CHECK = """\
for name, tensor, shape, dtype in [
{rows}
]:
    if tensor.shape != shape or tensor.dtype != dtype:
        got = f"{{tuple(tensor.shape)}} of {{tensor.dtype}}"
        raise ValueError(f"{{name}} must be {{shape}} of {{dtype}}, got {{got}}")
"""


JVP = """\

    @staticmethod
    def jvp(ctx, {tangents}):
        # Its own jvp is 0, silently: pytorch issue 197867.
{lines}
        return {returned}
"""


def indented(lines, by=8):
    return textwrap.indent("\n".join(lines), " " * by)


def listed(names):
    return ", ".join(names) if len(names) != 1 else f"({names[0]},)"


def write(function, walks, pattern, kept):
    backward, *forward = walks
    tape, saved = backward.tape, backward.saved
    tree, body, above = definition(function)
    if tree.args.kwonlyargs or tree.args.posonlyargs:
        raise Refused("a signature with * or /: a Function takes neither")
    names, signature = [*inspect.signature(function).parameters], ast.unparse(tree.args)
    text = " ".join(line[1] for walk in walks for line in walk.lines)
    body, head = body.splitlines(), f"check_{function.__name__}({', '.join(names)})"
    first = tree.body[0]
    at = first.end_lineno - first.lineno + 1 if ast.get_docstring(tree) else 0
    body.insert(at, head)
    keep = [n.name for n in tape.inputs if re.search(rf"\b{n.name}\b", text)]
    keep += [n.name for n in saved if n.name not in keep]
    kept_as = "*inputs" if keep == names else ", ".join(keep)
    store = [f"ctx.save_for_backward({kept_as})"] * bool(keep)
    store += [f"ctx.save_for_forward({kept_as})"] * bool(keep and forward)
    store += [f"ctx.{n} = {n}" for n in names if re.search(rf"\bctx\.{n}\b", text)]
    if saved:
        if not body[-1].startswith("return") or "return" in " ".join(body[:-1]):
            raise Refused(
                "to save an intermediate, the last line must be the one return"
            )
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
        bound = {n.id for n in found if isinstance(n.ctx, ast.Store)}
        if twice := sorted(bound & {*names}):
            raise Refused(f"to save an intermediate, `{twice[0]}` must stay the input")
        body[-1:] = [*store, body[-1]]
        signature = f"ctx, {signature}"
    elif store and keep != names:
        store.insert(0, f"{listed(names)} = inputs")
    fixed = [f"{n}={shown(v)}" for n, v in pattern.fixed().items()]
    out, check = ONCE.splitlines() * bool(saved), indented(pattern.check(), 4)
    if keep:
        arriving = {
            n.name: backward.names[str(n)] for n in saved
        }  # it may be bound again
        arriving = listed([arriving.get(name, name) for name in keep])
        out.append(f"{arriving} = ctx.saved_tensors")
    results = {
        n.name: backward.results[n] for n in tape.inputs if n in backward.results
    }
    out += shared_out(backward, results, names, pattern)
    returned = (backward.names[results[n]] if n in results else "None" for n in names)
    if re.search(r"\bF\.", text):
        above.add("import torch.nn.functional as F")
    if "math." in text + check:
        above.add("import math")
    return TEMPLATE.format(
        above="\n".join(sorted(above, key=lambda s: (not s.startswith("import"), s))),
        title=title_of(function),
        name=f"`{function.__name__}`{' with ' * bool(fixed)}{', '.join(fixed)}",
        kept=kept,
        signature=signature,
        head=head,
        body=indented(body),
        setup="" if saved else SETUP.format(store=indented(store or ["pass"])),
        outputs=", ".join(backward.names[g] for g in backward.grads),
        lines=indented(out),
        jvp="".join(written(walk, names, keep, pattern) for walk in forward),
        returned=", ".join(returned),
        check=check,
    )


def shared_out(walk, results, names, pattern):
    """First what several gradients need, then what one alone needs, under its `if`."""
    out, steps = [], [*results.values()]
    apart = {step: [] for step in steps if steps.count(step) == 1 < len(steps)}
    for name, source, need, step in walk.lines:
        home = apart.get(min(need), out) if len(need) == 1 else out
        width, line = 80 if home is out else 76, f"{name} = {source}"
        comment = "" if "," in name else pattern.comment(step, walk)
        home += broken(line + comment * (len(line + comment) <= width), width)
    lines, none, blocks, flags = [], [], [], ["_"] * len(names)
    for name, step in results.items():
        only, test = apart.get(step), f"if needs_{name}"
        if not only:
            continue
        flags[names.index(name)] = f"needs_{name}"
        short = f"{only[0].split('  #')[0]} {test} else None"
        if len(only) > 1 or len(short) > 80:
            none.append(f"{walk.names[step]} = ")
            blocks.append(f"{test}:\n{indented(only, 4)}")
        else:
            lines.append(short)
    if lines or blocks:
        asked = max(k for k, flag in enumerate(flags) if flag != "_") + 1
        flags[asked:] = ["*_"] * (asked < len(flags))
        out += broken(f"{listed(flags)} = ctx.needs_input_grad", 80)
    return [*out, *lines, *([f"{''.join(none)}None"] * bool(none)), *blocks]


def written(forward, names, keep, pattern):
    """The method `jvp`, as text."""
    out = [f"{listed(keep)} = ctx.saved_tensors"] * bool(keep)
    out += shared_out(forward, {}, names, pattern)
    moved = [(n, t) for n, t in forward.tangents.items() if n.op == "input"]
    arriving = {n.name: forward.names[t] for n, t in moved}
    return JVP.format(
        tangents=", ".join(arriving.get(name, f"_{name}") for name in names),
        lines=indented(out),
        returned=", ".join(forward.names[t] for t in forward.results.values()),
    )


class Pattern:
    """Which sizes belong together: a letter each, as the shapes of the inputs are written."""

    def __init__(self, tape, constants):
        self.tape, self.constants = tape, constants
        self.moving = next(n.name for n in tape.inputs if n.value.is_floating_point())
        self.lead, self.step, self.never = 0, {}, {}
        self.free = set()  # numbers, by name
        self.others = []  # pairs of {size: another}, and the walks there
        sizes = dict.fromkeys(s for node in tape.inputs for s in node.shape if s > 1)
        # Without letters, all sizes are those of the example.
        taken = {*tape.code.co_varnames, *tape.words}
        letters = [x for x in "NDKMLHPQRSTUVWXYZ" if x not in taken]
        self.letters = {} if tape.exact else dict(zip(sizes, letters, strict=False))

    def fixed(self):
        """The Python arguments that must stay as they are in the example."""
        return {n: v for n, v in self.constants.items() if n not in self.free}

    def size(self, size):
        bound = [s for s in self.letters if s not in self.step]
        if size in bound and size != min(bound):
            return f"{size // min(bound)} * {self.letters[min(bound)]}"
        return self.letters.get(size, str(size))

    def shape(self, shape):
        sizes = [self.size(s) for s in shape]
        if self.lead and shape and shape[0] == self.tape.inputs[0].shape[0]:
            sizes[0] = f"*{sizes[0]}"
        return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"

    def comment(self, step, walk):
        """The shape in letters, if it is that at the other sizes, too."""
        shape = tuple(getattr(walk.values[step], "shape", ()))
        known = shape and self.letters and {*shape} <= {1, *self.letters}
        for change, others in self.others:
            (other,) = (one for one in others if type(one) is type(walk))
            moved = tuple(change.get(s, s) for s in shape)
            known = known and moved == tuple(other.values[step].shape)
        return f"  # {self.shape(shape)}" if known else ""

    def check(self):
        """The lines of a function that refuses what the derivation does not hold for."""
        first, seen, rows, ranks, out = self.tape.inputs[0], set(), [], [], []
        for node in self.tape.inputs:
            sizes = self.shape(node.shape).strip("(,)").split(", ")
            known = [not s.strip("*").isalpha() or s.strip("*") in seen for s in sizes]
            new = [
                ("*_" if s[:1] == "*" else "_") if old else s
                for s, old in zip(sizes, known, strict=True)
            ]
            seen.update(s.strip("*") for s in sizes)
            if node.shape and not all(known):
                out.append(f"{listed(new)} = {node.name}.shape")
                rank = len(node.shape) - ("*" in sizes[0] and self.lead == 1)
                sign = "<" if "*" in sizes[0] else "!="
                ranks += [f"{node.name}.dim() {sign} {rank}"] * (rank > 0)
            dtype = node.value.dtype
            dtype = f"{self.moving}.dtype" if dtype.is_floating_point else dtype
            row = f'"{node.name}", {node.name}, {self.shape(node.shape)}, {dtype}'
            rows.append(f"({row}),")
        bad = [
            f"{n} {'is not' if isinstance(v, ALONE) else '!='} {shown(v)}"
            for n, v in self.fixed().items()
        ]
        for size, letter in self.letters.items():
            if self.step.get(size, 1) > 1:
                bad.append(f"{letter} % {self.step[size]} != 0")
            for small in self.never.get(size, ()):
                is_lead = self.lead and size == first.shape[0]  # its letter is a tuple
                bad.append(
                    f"{small} in {letter}" if is_lead else f"{letter} == {small}"
                )
        told = {f"not {rank.replace('!=', '==')}" for rank in ranks}
        bad += [test for test in self.tape.refusals() if test not in told]
        optional = (n.name for n in self.tape.inputs if n.name in self.tape.optional)
        ranks[:0] = [f"{name} is None" for name in optional]
        if ranks:
            words = " or ".join(ranks)
            out[:0] = [
                f"if {words}:",
                f'    raise ValueError("not derived for {words}")',
            ]
        tests = {" or ".join(bad): f"for {' or '.join(bad)}"} if bad else {}
        tests |= {
            f"type({n}) is not {type(v).__name__}": f"where {n} is no {type(v).__name__}"
            for n, v in self.constants.items()
            if not isinstance(v, ALONE)
        }
        tests[f"{self.moving}.is_complex()"] = "for complex numbers"
        tests[f"torch.is_autocast_enabled({first.name}.device.type)"] = "under autocast"
        for test, words in tests.items():
            out += [f"if {test}:", f'    raise ValueError("not derived {words}")']
        # Its names may be those of arguments, which nothing asks for after it.
        return out + CHECK.format(rows=indented(rows, 4)).splitlines()
