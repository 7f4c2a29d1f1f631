"""A tape, walked backwards: steps, and then lines that one can read."""

import ast
import math
import re

import torch

from .rules import BROADCASTS, gradients
from .tape import SIGNS, text

IDS = re.compile(r"\b_\d+\b")
SCOPE = {"torch": torch, "F": torch.nn.functional, "math": math}


class Backward:
    """`steps` is what can be computed, each by its id; `results` the gradients of inputs."""

    def __init__(self, tape, saved=()):
        self.tape, self.steps, self.made, self.results = tape, {}, {}, {}
        self.values = {str(n): n.value for n in tape.nodes}
        self.names, self.hints, taken = {}, {}, {"ctx", "torch", "F", "math"}
        for node in tape.nodes:
            if node.name:
                self.names[str(node)] = fresh(node.name, taken)
            if node.op != "input":
                self.steps[str(node)] = expression(node)
        self.given = {str(n) for n in tape.nodes if n.op == "input" or n in saved}
        self.parts, self.taken, self.grads = {}, taken, []
        for node in tape.outputs:
            step = self.new(torch.randn_like(node.value))
            of = "output" if tape.single else self.names.get(str(node), "output")
            self.names[step] = fresh(f"grad_{of}", taken)
            self.given.add(step)
            self.grads.append(step)
            self.parts[node] = [step]
        for node in reversed(tape.nodes):
            self.back(node)

    def new(self, value):
        step = f"_{len(self.values)}"
        self.values[step] = value
        return step

    def emit(self, source):
        """The id of a step that computes `source`; one that is there, if there is one."""
        if (
            source not in self.steps
            and source not in self.made
            and not IDS.fullmatch(source)
        ):
            values = {i: self.values[i] for i in IDS.findall(source)}
            step = self.new(eval(source, self.tape.globals | SCOPE, values))
            self.steps[step], self.made[source] = source, step
        return self.made.get(source, source)

    def back(self, node):
        if node.op == "piece":
            return
        if hasattr(node, "pieces"):
            if not any(piece in self.parts for piece in node.pieces):
                return
            g = [self.total(p) or f"torch.zeros_like({p})" for p in node.pieces]
        elif node in self.parts:
            # A gradient without dimensions would take the dtype of what it meets.
            tensors = [a.value for a in node.args if isinstance(a, type(node))]
            mixed = any(t.is_floating_point() and not t.requires_grad for t in tensors)
            g = self.total(node, whole=node.op not in BROADCASTS or mixed)
        else:
            return
        if node.op == "input":
            if g not in self.given and g not in self.results.values():
                self.names[g] = fresh(f"grad_{node.name}", self.taken)
            self.results[node] = g
            return
        for argument, source in gradients(node, g, self.tape):
            if isinstance(argument, type(node)) and argument.value.requires_grad:
                step = self.fit(self.emit(source), argument, node)
                self.parts.setdefault(argument, []).append(step)

    def total(self, node, whole=True):
        """The sum of what arrived, so that a tensor used twice gets both."""
        parts = self.parts.get(node)
        if not parts:
            return None
        terms = [
            f"{parts.count(p)} * {p}" if parts.count(p) > 1 else p
            for p in dict.fromkeys(parts)
        ]
        step = self.emit(" + ".join(terms))
        if whole and self.values[step].shape != node.shape:
            step = self.emit(f"{step}.expand({self.tape.sizes(node)})")
        name = self.names.get(str(node))
        if step not in self.given and step not in self.names:
            if name and node.op != "input":
                self.names[step] = fresh(f"grad_{name}", self.taken)
            self.hints.setdefault(step, f"grad_{name or CALLED.get(node.op, node.op)}")
        return step

    def fit(self, step, argument, node):
        """Summed over what the operation broadcast."""
        have, want = tuple(self.values[step].shape), argument.shape
        if want == (node.shape if node.op in BROADCASTS else have):
            return step
        if have != node.shape and node.op in BROADCASTS:
            step = self.emit(f"{step}.expand({self.tape.sizes(node)})")
            have = node.shape
        if node.op in ("sum", "mean") or len(have) < len(want):
            return step
        if not want:
            return self.emit(f"{step}.sum()")
        if argument.op == "input":
            return self.emit(f"{step}.sum_to_size({argument}.shape)")
        lead = len(have) - len(want)
        if lead:
            dims = 0 if lead == 1 else tuple(range(lead))
            step = self.emit(f"{step}.sum({dims})")
        kept = [d - len(want) for d, s in enumerate(want) if s != have[lead + d]]
        if kept:
            dims = kept[0] if len(kept) == 1 else tuple(kept)
            step = self.emit(f"{step}.sum({dims}, keepdim=True)")
        return step

    def lines(self):
        """(name, source, the gradients that need it, id), in order."""
        need = {}

        def mark(step, result):
            if step not in self.given and result not in need.setdefault(step, set()):
                need[step].add(result)
                for used in IDS.findall(self.steps[step]):
                    mark(used, result)

        for result in self.results.values():
            mark(result, result)
        order = sorted(need, key=lambda step: int(step[1:]))
        used = IDS.findall(" ".join(self.steps[step] for step in order))
        inline, lines = {}, []
        for step in order:
            tree = Inline(inline).visit(ast.parse(self.steps[step], mode="eval").body)
            short = len(ast.unparse(tree)) < 60 and used.count(step) < 2
            if short and step not in self.names:
                inline[step] = tree
            else:
                lines.append((step, tree))
        for step, _ in lines:
            if step not in self.names:
                nodes = {str(n): CALLED.get(n.op, n.op) for n in self.tape.nodes}
                hint = nodes.get(step) or self.hints.get(step, "grad_part")
                self.names[step] = fresh(hint, self.taken)
        kept = {step for step, tree in lines}
        pieces = {
            str(n): [str(p) for p in n.pieces]
            for n in self.tape.nodes
            if hasattr(n, "pieces")
        }
        together = {
            whole: parts for whole, parts in pieces.items() if kept.issuperset(parts)
        }
        apart = {part for parts in together.values() for part in parts}
        return [
            (
                ", ".join(self.names[s] for s in together.get(step, [step])),
                self.final(tree),
                need[step],
                step,
            )
            for step, tree in lines
            if step not in apart
        ]

    def final(self, tree):
        source = ast.unparse(Signs().visit(tree))
        return IDS.sub(lambda match: self.names[match[0]], source)


# What is not named in the forward.
CALLED = dict(
    add="total", sub="difference", mul="product", matmul="product", div="quotient"
)
CALLED |= dict(
    pow="power", sum="total", getitem="part", neg="minus", abs="size", max="most"
)


def fresh(name, taken):
    found, k = name, 2
    while found in taken:
        found, k = f"{name}{'_' * name[-1].isdigit()}{k}", k + 1
    taken.add(found)
    return found


LINEAR = set(
    "mT sum sum_to_size expand reshape squeeze unsqueeze transpose masked_fill".split()
)


def negative(tree):
    return isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub)


def minus(tree):
    return tree.operand if negative(tree) else ast.UnaryOp(ast.USub(), tree)


def times(number, tree):
    """2 * (0.5 * a / b) as a / b; None where `tree` begins with no number."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Mult, ast.Div)):
        if isinstance(tree.op, ast.Mult) and isinstance(tree.left, ast.Constant):
            number *= tree.left.value
            return (
                tree.right
                if number == 1
                else ast.BinOp(ast.Constant(number), ast.Mult(), tree.right)
            )
        left = times(number, tree.left)
        return left and ast.BinOp(left, tree.op, tree.right)
    return None


class Inline(ast.NodeTransformer):
    """What is used once, where it is used; and what a person does without thinking."""

    def __init__(self, sources):
        self.sources = sources

    def visit_Name(self, tree):  # noqa: N802
        return self.sources.get(tree.id, tree)

    def visit_UnaryOp(self, tree):  # noqa: N802
        tree = self.generic_visit(tree)
        return minus(tree.operand) if negative(tree) else tree

    def visit_Attribute(self, tree):  # noqa: N802
        tree = self.generic_visit(tree)
        inner = tree.value
        if tree.attr != "mT":
            return tree
        if isinstance(inner, ast.Attribute) and inner.attr == "mT":
            return inner.value
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.MatMult):
            sides = (
                ast.Attribute(s, "mT", ast.Load()) for s in (inner.right, inner.left)
            )
            left, right = map(self.visit_Attribute, sides)
            return ast.BinOp(left, ast.MatMult(), right)
        return tree

    def visit_Call(self, tree):  # noqa: N802
        tree = self.generic_visit(tree)
        method = tree.func
        if (
            isinstance(method, ast.Attribute)
            and method.attr in LINEAR
            and negative(method.value)
        ):
            method.value = method.value.operand
            return minus(tree)
        return tree

    def visit_BinOp(self, tree):  # noqa: N802
        tree = self.generic_visit(tree)
        left, right, op = tree.left, tree.right, tree.op
        if isinstance(op, (ast.Mult, ast.Div, ast.MatMult)):
            if negative(left):
                return minus(ast.BinOp(left.operand, op, right))
            if negative(right) and not isinstance(right.operand, ast.Constant):
                return minus(self.visit_BinOp(ast.BinOp(left, op, right.operand)))
        if isinstance(op, ast.Mult) and isinstance(left, ast.Constant):
            return times(left.value, right) or tree
        number = right.operand if negative(right) else right
        if isinstance(op, ast.Mult) and isinstance(number, ast.Constant):
            return ast.BinOp(right, op, left)
        if isinstance(op, (ast.Add, ast.Sub)) and negative(right):
            other = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            return ast.BinOp(left, other, right.operand)
        return tree


class Signs(ast.NodeTransformer):
    """-a * b for -(a * b)."""

    def visit_UnaryOp(self, tree):  # noqa: N802
        inner = tree.operand
        if negative(tree) and isinstance(inner, ast.BinOp):
            if isinstance(inner.op, (ast.Mult, ast.Div, ast.MatMult)):
                left = self.visit(ast.UnaryOp(ast.USub(), inner.left))
                return ast.BinOp(left, inner.op, self.visit(inner.right))
        return self.generic_visit(tree)


def expression(node):
    """A step of the forward, as one would write it."""
    args, op = [text(a) for a in node.args], node.op
    if op in ("piece", "getitem"):
        index = node.args[1]
        inside = ", ".join(map(text, index)) if isinstance(index, tuple) else args[1]
        return f"{args[0]}[{inside}]"
    if op in SIGNS and len(args) == 2 and not node.kwargs:
        if op == "mul" and not hasattr(node.args[1], "op"):
            args.reverse()
        return f"{args[0]} {SIGNS[op]} {args[1]}"
    if op in ("neg", "invert"):
        return ("-" if op == "neg" else "~") + args[0]
    if op in ("T", "mT"):
        return f"{args[0]}.{op}"
    args += [f"{k}={text(v)}" for k, v in node.kwargs.items()]
    name = node.call.__name__
    for module, prefix in ((torch, "torch"), (torch.nn.functional, "F")):
        if getattr(module, name, None) is node.call:
            return f"{prefix}.{name}({', '.join(args)})"
    return f"{args[0]}.{name}({', '.join(args[1:])})"
