"""What a person does without thinking: numbers that cancel, a factor that is common.

Only lines of the backward come here, and what they repeat of the forward stays as it is:
terms in another order are another number. No rule divides by a tensor, or cancels one:
where it is zero, infinite or broadcast, the text says what it said.
"""

import ast
import re

AS_IS = "_as_is"  # around what the forward does
SUMS = {"sum", "sum_to_size"}
LINEAR = SUMS | set("expand reshape squeeze unsqueeze transpose".split())


def binary(left, op, right):
    return right if left is None else ast.BinOp(left, op(), right)


def number(value):
    is_whole = value % 1 == 0 and abs(value) < 1e9
    return ast.Constant(int(value) if is_whole else float(f"{value:.15g}"))


def over(term):
    return [ast.unparse(factor) for factor, under in term[2] if not under]


def transposed(tree):
    if getattr(tree, "attr", "") == "mT":
        return tree.value
    if isinstance(getattr(tree, "op", None), ast.MatMult):
        return binary(transposed(tree.right), ast.MatMult, transposed(tree.left))
    return ast.Attribute(tree, "mT", ast.Load())


def is_as_is(tree):
    return getattr(getattr(tree, "func", tree), "id", "") == AS_IS


class AsIs(ast.NodeTransformer):
    """Without the mark."""

    def visit_Call(self, tree):  # noqa: N802
        return self.visit(tree.args[0]) if is_as_is(tree) else self.generic_visit(tree)


class Simple(ast.NodeTransformer):
    """`value` gives what a tree is in the example."""

    def __init__(self, value):
        self.value = value

    def visit(self, tree):
        if is_as_is(tree) or isinstance(tree, ast.Compare):
            return tree
        tree = self.generic_visit(tree)
        if isinstance(tree, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Attribute)):
            return self.total(self.terms(tree))
        return tree

    def terms(self, tree, sign=1):
        """Of a sum: what multiplies, what divides, and pairs (factor, whether it divides)."""
        if isinstance(getattr(tree, "op", None), (ast.Add, ast.Sub)):
            other = -sign if isinstance(tree.op, ast.Sub) else sign
            return self.terms(tree.left, sign) + self.terms(tree.right, other)
        above, below, factors = self.parts(tree)
        return [(sign * above, below, factors)]

    def parts(self, tree):
        op, method = getattr(tree, "op", None), getattr(tree, "func", tree)
        if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
            if len(repr(tree.value)) < 6:  # a longer one is recognized by its digits
                return tree.value, 1, []
        if isinstance(op, ast.USub):
            above, below, factors = self.parts(tree.operand)
            return -above, below, factors
        if isinstance(op, (ast.Mult, ast.Div, ast.MatMult)):
            above, below, factors = self.parts(tree.left)
            top, bottom, more = self.parts(tree.right)
            if isinstance(op, ast.MatMult):
                above, left = self.signed(above, below, factors)
                top, right = self.signed(top, bottom, more)
                factors, more = [(binary(left, ast.MatMult, right), False)], []
                below = bottom = 1
            elif isinstance(op, ast.Div):
                top, bottom = bottom, top
                more = [(factor, not under) for factor, under in more]
            factors += more
            # Numbers of a smaller dtype are rounded where they stand.
            values = [self.value(factor) for factor, under in factors]
            dtypes = {v.dtype for v in values if hasattr(v, "dtype")}
            if len(dtypes) < 2 and all(d.is_floating_point for d in dtypes):
                return above * top, below * bottom, factors
            return 1, 1, [(tree, False)]
        if getattr(method, "attr", "") in (LINEAR if method is not tree else {"mT"}):
            # c * f(x) is f(c * x), but a sum may overflow where that of c * x does not.
            above, below, factors = self.parts(method.value)
            if method.attr in SUMS:
                above, method.value = self.signed(above, below, factors)
                below = 1
            else:
                method.value = self.product(1, 1, factors)
            tree = transposed(method.value) if method is tree else tree
            return above, below, [(tree, False)]
        return 1, 1, [(tree, False)]

    def signed(self, above, below, factors):
        """The sign, and the product without it."""
        sign = -1 if above * below < 0 else 1
        return sign, self.product(sign * above, below, factors)

    def product(self, above, below, factors):
        if below and 1 not in (abs(above), abs(below)):
            ratio = above / below
            whole = ratio and 1 / ratio % 1 == 0
            above, below = (1, 1 / ratio) if whole else (ratio, 1)
        self.cancel(factors)
        tree = None
        if abs(above) != 1 or not factors or factors[0][1]:
            tree = number(above)
        for factor, under in factors:
            if under and below != 1:
                factor, below = binary(number(below), ast.Mult, factor), 1
            if tree is None and above == -1:
                factor = ast.UnaryOp(ast.USub(), factor)
            tree = binary(tree, ast.Div if under else ast.Mult, factor)
        return tree if below == 1 else binary(tree, ast.Div, number(below))

    def cancel(self, factors):
        """A Python number above and below; the sum of all, divided by how many there are."""
        for under in [tree for tree, below in factors if below]:
            count = self.value(under)
            for tree in [tree for tree, below in factors if not below]:
                if not isinstance(count, (int, float)):
                    break
                summed = getattr(tree, "func", tree)
                if ast.unparse(tree) == ast.unparse(under):
                    factors.remove((tree, False))
                elif getattr(summed, "attr", "") == "sum" and isinstance(count, int):
                    all_, few = self.value(summed.value), self.value(tree)
                    if all_.dtype != few.dtype or all_.numel() != count * few.numel():
                        continue
                    summed.attr = "mean"
                else:
                    continue
                factors.remove((under, True))
                break

    def total(self, terms):
        """a * b + a * c is a * (b + c)."""
        texts = [text for term in terms for text in dict.fromkeys(over(term))]
        most = max(texts, key=texts.count, default="")
        if texts.count(most) > 1:
            group = [term for term in terms if most in over(term)]
            place = terms.index(group[0])
            for _, _, factors in group:
                pair = next(
                    p for p in factors if not p[1] and ast.unparse(p[0]) == most
                )
                factors.remove(pair)
            rest = [term for term in terms if term not in group]
            above, below, factors = self.parts(self.total(group))
            rest.insert(place, (above, below, [pair, *factors]))
            return self.total(rest)
        plain = [above / below for above, below, factors in terms if not factors]
        if len(plain) > 1 or plain == [0]:
            is_all = len(plain) == len(terms)
            rest = [(sum(plain), 1, [])] if sum(plain) or is_all else []
            terms = [term for term in terms if term[2]] + rest
        terms.sort(key=lambda term: term[0] * term[1] < 0)
        tree = None
        for above, below, factors in terms:
            less = above * below < 0 and tree is not None
            op = ast.Sub if less else ast.Add
            tree = binary(
                tree, op, self.product(-above if less else above, below, factors)
            )
        return tree


def broken(line, width):
    """As a formatter breaks what is too long: a term a line."""
    name, _, source = line.partition(" = ")
    terms = [""]
    for term in re.split(r" (?=[-+] )", source):
        if sum(map(terms[-1].count, "([")) == sum(map(terms[-1].count, ")]")):
            terms.append(f"    {term}")
        else:
            terms[-1] += f" {term}"
    if len(source) <= width - 4:
        terms[1:] = [f"    {source}"]
    return [line] if len(line) <= width else [f"{name} = (", *terms[1:], ")"]


def pretty(source):
    """As a formatter would have it: x**2, 1e-5, 1e9 and "ij"."""
    source = re.sub(r"\b(\d)(0{6,})\.0\b", lambda m: f"{m[1]}e{len(m[2])}", source)
    source = re.sub(r"\*\* \((-[\d.]+)\)", r"** \1", source)
    simple = r"(?<![\w.)\]])([\w.]+) \*\* (-?[\w.]+)(?![\w.(\[])"
    source = re.sub(simple, r"\1**\2", source)
    source = re.sub(r"(\de-)0", r"\1", source)
    return re.sub(r"'([^'\"]*)'", r'"\1"', source)
