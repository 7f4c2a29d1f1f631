"""The same tape, walked forwards: a tangent for each step, as lines that one can read.

A Jacobian that is diagonal or symmetric is its own transpose: the formula of the backward
holds for tangents, too. What reduces adds the products up. All else is linear in each
argument by itself: the forward's own text, with a tangent in place of the argument.
"""

import re

from .backward import Backward
from .rules import (
    CLAMPS,
    ELEMENTWISE,
    SCALAR,
    WHOLE,
    affine,
    gradients,
    options,
    reduction,
)

OWN_TRANSPOSE = {*ELEMENTWISE, *CLAMPS, "pow", "leaky_relu", "softmax"}
SUMS = SCALAR - {"sum", "mean"}


class Forward(Backward):
    """`results` has the tangent of each output."""

    kind = "tangent"

    def walk(self):
        self.tangents = {}
        for node in self.tape.nodes:
            if node.op == "number" or node.pieces or not node.value.requires_grad:
                continue
            if node.op == "input":
                step = self.new(node.value.detach())
                self.given.add(step)
            else:
                terms = self.terms(node) or [f"torch.zeros_like({node})"]
                parts = [self.emit(term) for term in terms]
                step = self.whole(self.step(self.sum(parts)), node)
                # A sum with a constant of a larger dtype leaves the tangent as it was.
                self.values[step] = self.values[step].to(node.value.dtype)
            self.tangents[node] = step
            self.hints.setdefault(step, str(node))
            if step not in self.names and (node.name or node in self.tape.outputs):
                self.call(step, f"tangent_{self.names.get(str(node), 'output')}")
        self.results = {node: self.tangents[node] for node in self.tape.outputs}

    def terms(self, node):
        """What the tangent of each argument adds to that of the result."""
        if node.op == "piece":
            (whole,) = (n for n in self.tape.nodes if node in n.pieces)
            k = whole.pieces.index(node)
            return [f"({term})[{k}]" for term in self.terms(whole)]
        if node.op in ("cat", "stack"):
            zeros = {a: f"torch.zeros_like({a})" for a in node.args[0]}
            parts = ", ".join((zeros | self.tangents)[a] for a in node.args[0])
            return [f"torch.{node.op}([{parts}], {options(node, dim=0)['dim']})"]
        if node.op in ("index_add", "scatter_add"):
            a, dim, index, source = node.args
            zeros = {a: f"torch.zeros_like({a})", source: f"torch.zeros_like({source})"}
            there, more = ((zeros | self.tangents)[x] for x in (a, source))
            return [f"{there}.{node.op}({dim}, {index}, {more})"]
        if node.op in ("linear", "conv1d", "conv2d"):
            return self.affine(node)
        args = node.args[:1] if node.op in WHOLE else node.args
        terms = [self.term(node, k) for k, a in enumerate(args) if self.moves(a)]
        return [term for term in terms if term]

    def moves(self, argument):
        return any(argument is node for node in self.tangents)

    def term(self, node, k):
        a, tangent = node.args[k], self.tangents[node.args[k]]
        nth = node.args[:k].count(a)
        if node.op in OWN_TRANSPOSE:
            found = gradients(node, tangent, self.tape)
            return ([text for argument, text in found if argument is a] + [""])[nth]
        if node.op == "log_softmax":
            dim = options(node, dim=None)["dim"]
            return f"{tangent} - ({node}.exp() * {tangent}).sum({dim}, keepdim=True)"
        if node.op in SUMS:
            return reduction(node, tangent, self.tape, forwards=True)
        itself = rf"\b{a}\b(?!\.(shape|dim|numel|dtype|device)\b)"
        start, end = [*re.finditer(itself, node.source)][nth].span()
        return node.source[:start] + tangent + node.source[end:]

    def affine(self, node):
        """Linear in two arguments; the bias is moved by its own tangent."""
        x, weight, bias, more = affine(node, self.tape)
        channels = ".unsqueeze(-1)" * (len(node.shape) - 2) * (node.op != "linear")
        texts = {
            x: f"F.{node.op}({{}}, {weight}{more})",
            weight: f"F.{node.op}({x}, {{}}{more})",
            bias: f"{{}}{channels}",
        }
        return [t.format(self.tangents[a]) for a, t in texts.items() if self.moves(a)]
