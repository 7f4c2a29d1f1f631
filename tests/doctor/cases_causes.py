"""What the doctor says of a gradient that is not the derivative: which factor, where, for whom."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from helpers.lessons.patients.numbers import ModuleWithTwoOutputs
from helpers.lessons.patients.patient import draw, matrix, vector
from tests.common import random
from tests.doctor.cases import Table, drawn

case = CASES = Table()
wrong = CASES.of_two

# --- numbers that were given ----------------------------------------------------------------------

wrong("a number that is the factor", "scaled", "multiplied by 0.333", inputs=(*vector(), 3.0),
      forward=lambda x, c: c * x, backward=lambda g, x, c: g)  # fmt: skip
wrong("a real factor of what is complex", "scaled", "multiplied by 0.5.", "ratio 0.5,",
      inputs=draw((3,), dtype=torch.complex128), forward=lambda z: z * z,
      backward=lambda g, z: g * z.conj())  # fmt: skip
wrong("a bound that was given, where 1 fits", "partly-right", "where `x` is above `high` = 0.8",
      inputs=(torch.tensor([0.2, -0.3, 0.7, 2.2, -1.2, 0.5, 1.6, -2.2, 0.4, 1.4]).double(), 0.8),
      forward=lambda x, high: x.clamp(max=high), backward=lambda g, x, high: g)  # fmt: skip
wrong(
    "the bound of a difference, and a factor with a name",
    "partly-right",
    "where the magnitude of `a` - `b` is below `beta` = 0.7, it is multiplied by 0.7 = `beta`.",
    inputs=(*draw((20,), (20,)), 0.7),
    forward=lambda a, b, beta: torch.where(
        (a - b).abs() < beta, (a - b) ** 2 / 2 / beta, (a - b).abs() - beta / 2
    ).sum(),
    backward=lambda g, a, b, beta: (
        g * torch.where((a - b).abs() < beta, a - b, (a - b).sign()),
        -g * torch.where((a - b).abs() < beta, a - b, (a - b).sign()),
    ),
)
wrong(
    "a factor in part, with a name",
    "partly-right", "where `x` is below 0, it is multiplied by 2 = `c`.",
    inputs=(*draw((20,)), 2.0),
    forward=lambda x, c: torch.where(x > 0, x, c * x),
    backward=lambda g, x, c: g * torch.where(x > 0, 1.0, c * c),
)  # fmt: skip


wrong(
    "a number that a size has is not taken for an argument", "scaled",
    inputs=lambda: (*drawn((2, 3), (3,)), 2),
    forward=lambda x, b, stride: stride * x + b,
    backward=lambda g, x, b, stride: (2 * g, g.mean(0)),
)  # fmt: skip


wrong(
    "a factor that is no size, though 1/4 is that of the columns", "scaled", "multiplied by 0.25.",
    inputs=draw((3, 4)), forward=lambda x: 2 * x.sin(), backward=lambda g, x: g * x.cos() / 2,
)  # fmt: skip

# --- places and bounds ----------------------------------------------------------------------------

wrong(
    "an error that shrinks has no bound", "derivative-wrong",
    inputs=(torch.linspace(-1, 1, 41, dtype=torch.float64),),
    forward=lambda x: x + x**8, backward=lambda g, x: g * (1 + x**7),
)  # fmt: skip
wrong(
    "places that hang on the values", "partly-right",
    "wrong at 3 of 7 elements: there it is zero",
    inputs=(*draw((7,)), torch.tensor([0.9, 2.95, 4.9], dtype=torch.float64)),
    forward=lambda table, at: (
        table[at.floor().long()] * (1 - at + at.floor())
        + table[at.floor().long() + 1] * (at - at.floor())
    ),
    backward=lambda g, table, at: (
        torch.zeros_like(table).index_add(0, at.floor().long(), (1 - at + at.floor()) * g),
        g * (table[at.floor().long() + 1] - table[at.floor().long()]),
    ),
)  # fmt: skip


def gated(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def of_gated(g, x, slope=1):
    a, b = x.chunk(2, -1)
    s = a.sigmoid()
    return g * b * s * (1 + a * (1 - s) * slope), g * a * s


wrong(
    "places of all elements, of which few are examined", "partly-right",
    "index 0 to 63 of dimension 1 it is wrong", inputs=draw((100, 128)), forward=gated,
    backward=lambda g, x: torch.cat(of_gated(g, x, 0), -1),
)  # fmt: skip

# --- for which grad_outputs it is right -----------------------------------------------------------

(M,) = draw((3, 3))
wrong(
    "ones", "right-only-for-ones", "right where grad_output is all ones, as it is after `.sum()`",
    inputs=draw((2, 3, 3)), forward=lambda x: x @ M,
    backward=lambda g, x: g.mean().expand_as(g) @ M.t(),
)  # fmt: skip
wrong(
    "a gradient that ones make zero, as of the weight before a normalisation", "gradient-wrong",
    "expected 0, grad_output ones", inputs=draw((4,)),
    forward=lambda x: x - x.mean(), backward=lambda g, x: g.sum().expand_as(g),
)  # fmt: skip
for name, codes, forward in (
    ("elementwise", "derivative-wrong", torch.sin),
    ("of a sum", "gradient-wrong", lambda x: x.sin().sum()),
):  # what holds of every wrong gradient is not said
    wrong(
        name, codes, inputs=draw((3, 4)), forward=lambda x, f=forward: f(x),
        backward=lambda g, x, f=forward: g * x.cos() * x.sigmoid(),
    )  # fmt: skip
wrong(
    "one factor for all elements, which is an input", "derivative-wrong",
    "off by a factor that changes with the inputs, whatever", inputs=lambda: drawn((4, 3), ()),
    forward=lambda x, rate: x + 0 * rate, backward=lambda g, x, rate: (-g * rate, 0 * rate),
)  # fmt: skip


def turned_solution(x, matrix, tolerance=1e-7):
    """A solution of y = x + y @ matrix by steps that end at an absolute tolerance."""
    y, step = x, x
    while step.abs().max() > tolerance:
        step = step @ matrix
        y = y + step
    return y


SMALL = M / (2 * torch.linalg.matrix_norm(M, 2))
wrong(
    "a solver whose tolerance is no power of grad_output", "jacobian-transposed",
    inputs=draw((3,)), forward=lambda x: turned_solution(x, SMALL, 1e-15),
    backward=lambda g, x: turned_solution(g, SMALL, 1e-5),
)  # fmt: skip
wrong(
    "how dimensions are to be permuted", "transposed",
    "permuted by permute(1, 2, 0), it is right",
    inputs=lambda: drawn((3, 3, 3)), forward=lambda x: x.permute(1, 2, 0).contiguous(),
    backward=lambda g, x: g.permute(1, 2, 0),
)  # fmt: skip
wrong(
    "a forgotten derivative, and an expanded input", "inner-derivative-forgotten",
    inputs=draw((4,)), forward=lambda x: (x**2).repeat(3, 1), backward=lambda g, x: g.sum(0),
)  # fmt: skip
wrong(
    "a gradient of another shape is not that of another input", "gradient-wrong",
    never=("that of `",),    inputs=lambda: drawn((4, 3), (3,)), forward=lambda x, b: x.sin() + b,
    backward=lambda g, x, b: (g.sum(0).expand(4, 3), g.sum(0)),
)  # fmt: skip


# --- through which output -------------------------------------------------------------------------


def through(name, codes, *words, of_sin=1, of_cos=1, of_square=1):
    wrong(
        name, codes, *words, inputs=(torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64),),
        forward=lambda x: (x.sin(), x.cos(), x**2),
        backward=lambda a, b, c, x: (
            of_sin * a * x.cos() - of_cos * b * x.sin() + of_square * c * 2 * x
        ),
    )  # fmt: skip


THROUGH = "The gradient of `x` through `output[{}]` is right, but {}."
through("the output is named", "negated", THROUGH.format(1, "negated"), of_cos=-1)
through("two outputs are named", "negated", THROUGH.format(0, "negated"),
        THROUGH.format(1, "negated"), of_sin=-1, of_cos=-1)  # fmt: skip
through("each by its own name", "negated scaled", THROUGH.format(0, "negated"),
        THROUGH.format(1, "multiplied by 2"), of_sin=-1, of_cos=2)  # fmt: skip
through("all together", "negated", "The gradient of `x` is right, but negated.",
        of_sin=-1, of_cos=-1, of_square=-1)  # fmt: skip
case("negated", "`offset`", inputs=vector, name="a module")(ModuleWithTwoOutputs())

# --- digits ---------------------------------------------------------------------------------------


def rounded(g, at_once=16, low=torch.bfloat16):
    """The sum over the rows, in bfloat16."""
    parts = g.to(low).split(at_once)
    return sum((part.sum(0) for part in parts), torch.zeros_like(g[0], dtype=low)).to(g.dtype)


def rounded_in_single(g, x, b, at_once):
    low = torch.bfloat16 if g.dtype == torch.float32 else g.dtype
    return g, rounded(g, at_once, low)


wrong(
    "sums that are always in bfloat16", "few-digits", inputs=lambda: (*drawn((3,)), 1024),
    forward=lambda b, n: b.expand(n, 3) * 1, backward=lambda g, b, n: rounded(g),
)  # fmt: skip
wrong(
    "an output beside which others are tiny", "partly-right", "at [1] it is multiplied by 2.",
    inputs=draw((3,)), forward=lambda x: x.sin() * torch.tensor([1, 1e-9, 2], dtype=x.dtype),
    backward=lambda g, x: g * x.cos() * torch.tensor([1, 2e-9, 2], dtype=x.dtype),
)  # fmt: skip

# The one shows where all of grad_output is positive, the other where it is not.
for rows, at_once in ((8192, 64), (1024, 32)):
    wrong(f"sums of {rows} in bfloat16", "low-precision", "`b`",
          inputs=(torch.ones(rows, 3), torch.ones(3), at_once),
          forward=lambda x, b, at_once: x + b, backward=rounded_in_single)  # fmt: skip


wrong(
    "some percent lost in float32", "low-precision", inputs=(torch.tensor([0.52, 1.27]),),
    forward=lambda x: x * x, backward=lambda g, x: g * 2 * ((x + 1e6) - 1e6),
)  # fmt: skip


class OfFewDigits(Function):
    """Two digits, of whatever is not of double precision."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        work = torch.float64 if x.dtype == torch.float64 else torch.bfloat16
        return g * x.to(work).exp().to(x.dtype)


class SavesHalf(OfFewDigits):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.bfloat16() if x.dtype != torch.float64 else x)
        return x.exp()


class HalfThroughout(OfFewDigits):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        work = torch.float64 if x.dtype == torch.float64 else torch.bfloat16
        return x.to(work).exp().to(x.dtype)


COARSE = "in bfloat16, forward computes in float32."
for fn, dtype, found in (
    (OfFewDigits, torch.float32, True), (OfFewDigits, torch.float64, False),
    (OfFewDigits, torch.bfloat16, False), (SavesHalf, torch.float32, False),
    (HalfThroughout, torch.float32, False),
):  # fmt: skip
    case("coarse-backward" if found else "", *[COARSE] * found, name=f"{fn.__name__}, {dtype}",
         inputs=lambda dtype=dtype: drawn((6,), dtype=dtype))(fn)  # fmt: skip

FAR = random(4, 5, seed=1).sign() * 800 ** random(4, 5, seed=1).frac().abs()

wrong(
    "one wrong element shows no reduction",
    "partly-right", "wrong at 1 of 20 elements: there it is zero.",
    inputs=(FAR,), forward=lambda x: x.sigmoid(),
    backward=lambda g, x: g * x.sigmoid() * (1 - x.sigmoid()) * (x.sigmoid() < 0.99),
)  # fmt: skip
wrong(
    "what is nearly zero is not called zero",
    "partly-right", "it should be nearly zero.",
    inputs=(FAR,), forward=lambda x: x.sigmoid(),
    backward=lambda g, x: g * x.sigmoid() * (1 - x.sigmoid()).clamp(min=1e-6),
)  # fmt: skip
wrong(
    "a product of two gradients",
    "gradient-zero", "is zero where no other output is used, but",
    inputs=vector, forward=lambda x: (x.sinh(), x.cosh()),
    backward=lambda a, b, x: a * b * x.sinh() * x.cosh(),
)  # fmt: skip

wrong(
    "other places through each output", "partly-right", "through `output[0]` is right in part",
    inputs=draw((4, 5)), forward=lambda x: (x.sin(), x.cos()),
    backward=lambda a, b, x: a * x.cos() * (x != x[1, 2]) - b * x.sin() * (x != x[2:, 3:].max()),
)  # fmt: skip

# --- where there is no Function, or another one is wrong ------------------------------------------


@case("term-missing gradient-none", ".detach()", never=("in backward",),
      inputs=lambda: (*matrix(), torch.tensor(0.7, dtype=torch.float64)))  # fmt: skip
def without_a_function_the_remedy_speaks_of_forward(x, scale):
    return (x - x.mean(-1, keepdim=True).detach()) / scale.item()


@case("gradient-zero", inputs=lambda: drawn((4,), (4,)))
class NoneThatIsAnsweredRightly(Function):
    """Of two gradients that arrive, the second is lost; of each alone, none is."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x.sum()

    @staticmethod
    def backward(ctx, g, g_sum):
        x, y = ctx.saved_tensors
        gx = gy = None
        if g is not None:
            gx, gy = g * y, g * x
        if g_sum is not None:
            gx = g_sum.expand_as(x) if gx is None else gx
        return gx, gy


wrong(
    "a lie on purpose may not ignore grad_output", "grad-output-ignored", inputs=draw((3, 4)),
    forward=lambda x: x.round(), backward=lambda g, x: torch.ones_like(g), faithful=False,
)  # fmt: skip
