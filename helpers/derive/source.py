"""The text of the Function: the forward as it stands, what it rests on, and the backward."""

import ast
import inspect
import re
import textwrap

from .rules import Refused
from .simple import broken


def definition(function):
    """The function's own lines below its head, and what stands above them in its module."""
    if not inspect.isfunction(function) or function.__closure__:
        raise Refused("a def without a closure is needed: pass what it closes over")
    try:
        raw = inspect.getsource(function)
        source = textwrap.dedent(raw)
        tree = ast.parse(source).body[0]
        tree.indent = len(raw) - len(raw.lstrip())
    except (OSError, SyntaxError):
        tree = None
    if not isinstance(tree, ast.FunctionDef):
        raise Refused(
            "the source of the function cannot be read: write a def in a file"
        )
    first = tree.body[0]
    body = source.splitlines()[first.lineno - 1 : tree.end_lineno]
    body[0] = " " * first.col_offset * (len(body) > 1) + body[0][first.col_offset :]
    above = {"import torch"}
    parts = ast.Module([*tree.body, *map(ast.Expr, tree.args.defaults)], [])
    read = {node.id for node in ast.walk(parts) if isinstance(node, ast.Name)}
    for name in (read - set(function.__code__.co_varnames)) & set(function.__globals__):
        value = function.__globals__[name]
        module = inspect.ismodule(value)
        home = value.__name__ if module else str(getattr(value, "__module__", ""))
        known = home.split(".")[0] in ("torch", "math")
        if module and known:
            above.add(f"import {home}" + ("" if home == name else f" as {name}"))
        elif type(value) in (bool, int, float, str):
            above.add(f"{name} = {value!r}")
        elif known and hasattr(value, "__name__"):
            home = "torch.nn.functional" if "._C" in home else home
            same = value.__name__ == name
            above.add(
                f"from {home} import {value.__name__}" + f" as {name}" * (not same)
            )
        else:
            raise Refused(f"`{name}` is a global: pass it, or write it out")
    return tree, textwrap.dedent("\n".join(body)), above


def title_of(function):
    title = function.__name__.title().replace("_", "")
    return title if len(title) > 1 else f"{title}Function"  # F is torch.nn.functional


def write(function, backward, pattern, saved, kept):
    tape, lines = backward.tape, backward.lines()
    tree, body, above = definition(function)
    if tree.args.kwonlyargs or tree.args.vararg or tree.args.kwarg:
        raise Refused("a Function takes neither *arguments nor arguments by name")
    for argument in tree.args.args:
        argument.annotation = None
    inputs = [n.name for n in tape.inputs]
    names = list(inspect.signature(function).parameters)
    signature, indent = ast.unparse(tree.args), " " * 8
    text = " ".join(source for _, source, _, _ in lines)
    used = [n for n in inputs if re.search(rf"\b{n}\b", text)]
    numbers = [n for n in names if re.search(rf"\bctx\.{n}\b", text)]
    keep = used + [n.name for n in saved if n.name not in used]
    save = f"ctx.save_for_backward({', '.join(keep)})"
    out = []
    title = title_of(function)
    out += [
        f"class {title}(torch.autograd.Function):",
        f'    """`{function.__name__}`: {kept}"""',
        "",
    ]
    head = f"check_{function.__name__}({', '.join(names)})"
    if saved:
        *first, last = body.splitlines()
        if not last.startswith("return") or "return" in " ".join(first):
            raise Refused(
                "to save an intermediate, the last line must be the one return"
            )
        body = "\n".join([*first, save, *(f"ctx.{n} = {n}" for n in numbers), last])
        signature = f"ctx, {signature}"
    out += ["    @staticmethod", f"    def forward({signature}):", f"        {head}"]
    out += textwrap.indent(body, indent).splitlines() + [""]
    if not saved:
        out += ["    @staticmethod", "    def setup_context(ctx, inputs, output):"]
        whole = used == names
        if not whole and (used or numbers):
            out.append(f"{indent}{', '.join(names)}{',' * (len(names) == 1)} = inputs")
        keep_line = "ctx.save_for_backward(*inputs)" if whole else save
        out += [indent + keep_line] * bool(used)
        out += [f"{indent}ctx.{n} = {n}" for n in numbers] or [f"{indent}pass"] * (
            not used
        )
        out.append("")
    outputs = ", ".join(backward.names[g] for g in backward.grads)
    out += ["    @staticmethod", f"    def backward(ctx, {outputs}):"]
    if saved:
        out += [
            f"{indent}if torch.is_grad_enabled():",
            f'{indent}    raise RuntimeError("no second derivative: the saved has no history")',
        ]
    if keep:
        left = f"({keep[0]},)" if len(keep) == 1 else ", ".join(keep)
        out.append(f"{indent}{left} = ctx.saved_tensors")
    results = {n: backward.results[n] for n in tape.inputs if n in backward.results}
    steps = list(results.values())
    apart = {step: [] for step in steps if steps.count(step) == 1 and len(steps) > 1}
    for name, source, need, step in lines:
        only = apart.get(next(iter(need))) if len(need) == 1 else None
        line = f"{indent}{'    ' * (only is not None)}{name} = {source}"
        comment = "" if "," in name else pattern.comment(step, backward)
        line += comment if len(line + comment) <= 88 else ""
        (out if only is None else only).extend(broken(line))
    owner = {backward.results[n]: n.name for n in results}
    if any(apart.values()):
        out.append(f"{indent}need = ctx.needs_input_grad")
    none, blocks = [], []
    for step, only in apart.items():
        test = f"if need[{names.index(owner[step])}]"
        line = "".join(only).split("  #")[0].strip()
        short = f"{indent}{line} {test} else None"
        if len(only) == 1 and len(short) <= 88:
            blocks.append(short)
        elif only:
            none.append(f"grad_{owner[step]}")
            blocks += [f"{indent}{test}:", *only]
    out += [f"{indent}{' = '.join(none)} = None"] * bool(none) + blocks
    apart = {owner[step]: only for step, only in apart.items() if only}
    for node, step in results.items():
        if node.name not in apart and backward.names[step] != f"grad_{node.name}":
            out.append(f"{indent}grad_{node.name} = {backward.names[step]}")
    by_name = {n.name: f"grad_{n.name}" for n in results}
    out += [
        f"{indent}return {', '.join(by_name.get(n, 'None') for n in names)}",
        "",
        "",
    ]
    out += pattern.check(f"def {head}:", names)
    text = "\n".join(out) + "\n"
    for wanted, line in (
        ("F.", "import torch.nn.functional as F"),
        ("math.", "import math"),
    ):
        if wanted in text:
            above.add(line)
    head = sorted(above, key=lambda line: not line.startswith("import"))
    return "\n".join([*head, "", "", text])


class Pattern:
    """Which sizes belong together: a letter each, as the shapes of the inputs are written."""

    def __init__(self, tape, constants):
        self.tape, self.constants = tape, constants
        self.lead, self.exact, self.step, self.never = 0, False, {}, {}
        self.free = set()
        self.others = []  # pairs of {size: another}, and the Backward there
        letters = iter("NDKMLHPQRSTUVWXYZ")
        self.letters = {}
        for node in tape.inputs:
            for size in node.shape:
                if size > 1 and size not in self.letters:
                    self.letters[size] = next(letters)

    def size(self, size):
        bound = [s for s in self.letters if self.step.get(s) is None]
        if self.exact or size not in self.letters:
            return str(size)
        if size in bound and size != min(bound):
            return f"{size // min(bound)} * {self.letters[min(bound)]}"
        return self.letters[size]

    def shape(self, shape):
        sizes = [self.size(s) for s in shape]
        if self.lead and shape and shape[0] == self.tape.inputs[0].shape[0]:
            sizes[0] = f"*{sizes[0]}"
        return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"

    def comment(self, step, backward):
        """The shape in letters, if it is that at the other sizes, too."""
        shape = tuple(getattr(backward.values[step], "shape", ()))
        known = shape and not self.exact and {*shape} <= {1, *self.letters}
        for change, other in self.others:
            moved = tuple(change.get(s, s) for s in shape)
            known = known and moved == tuple(other.values[step].shape)
        return f"  # {self.shape(shape)}" if known else ""

    def check(self, head, names):
        """A function that refuses what the derivation does not hold for."""
        out, first = (
            [head, '    """What the backward rests on."""'],
            self.tape.inputs[0].name,
        )
        seen = {}
        for node in self.tape.inputs:
            for k, size in enumerate(node.shape):
                if self.size(size) == self.letters.get(size) and size not in seen:
                    lead = self.lead and not k and size == self.tape.inputs[0].shape[0]
                    index = (
                        f":{1 - len(node.shape) or None}"
                        if lead
                        else k - len(node.shape)
                    )
                    seen[size] = f"{node.name}.shape[{index}]"
        if seen:
            left = ", ".join(self.letters[s] for s in seen)
            out.append(f"    {left} = {', '.join(seen.values())}")
        out.append("    for name, tensor, shape, dtype in [")
        for node in self.tape.inputs:
            dtype = (
                f"{first}.dtype" if node.value.requires_grad else str(node.value.dtype)
            )
            out.append(
                f'        ("{node.name}", {node.name}, {self.shape(node.shape)}, {dtype}),'
            )
        out += [
            "    ]:",
            "        if tensor.shape != shape or tensor.dtype != dtype:",
            '            got = f"{tuple(tensor.shape)} of {tensor.dtype}"',
            '            raise ValueError(f"{name} must be {shape} of {dtype}, got {got}")',
        ]
        bad = [f"{n} != {v!r}" for n, v in self.constants.items() if n not in self.free]
        for size, letter in self.letters.items():
            if (self.step.get(size) or 1) > 1:
                bad.append(f"{letter} % {self.step[size]} != 0")
            bad += [f"{letter} == {small}" for small in self.never.get(size, ())]
        for guard, held in self.tape.guards.items():
            for node in reversed(self.tape.nodes):
                known = f"({node.source})" if node.source else node.name
                guard = re.sub(rf"\b{node}\b", known.removeprefix("ctx."), guard)
            bad.append(ast.unparse(ast.parse(f"not {guard}" if held else guard)))
        if self.lead > 1:
            bad.append(f"{first}.dim() < {self.lead}")
        tests = {" or ".join(bad): f"for {' or '.join(bad)}"} if bad else {}
        tests[f"torch.is_autocast_enabled({first}.device.type)"] = "under autocast"
        for test, words in tests.items():
            out.append(f"    if {test}:")
            out.append(f'        raise ValueError("not derived {words}")')
        return out
