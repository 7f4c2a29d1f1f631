"""Exercises of chapter 08: C and C++ extensions."""

import torch
from torch.autograd import Function

from helpers.lessons import native
from helpers.lessons.checking import Exercise
from helpers.lessons.compare import finding
from helpers.ops.involution.host import CompilerNotFoundError

EXP_IN_C = """
#include <math.h>

void exp_forward(const double *x, double *y, int64_t count) {
    for (int64_t i = 0; i < count; ++i) y[i] = exp(x[i]);
}

void exp_backward(const double *grad_output, const double *y, double *grad_input, int64_t count) {
    for (int64_t i = 0; i < count; ++i) grad_input[i] = grad_output[i] * y[i];
}
"""

ENERGY_BACKWARD = """
template <class T>
void energy_backward(const T* grad_output, int64_t stride, const T* x, T* grad_input,
                     int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
            grad_input[r * columns + c] = grad_output[r * stride] * x[r * columns + c];
}
"""

PRODUCT = """
template <class T>
void product(const T* x, const int64_t* x_strides, const T* w, const int64_t* w_strides,
             T* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
            y[r * columns + c] = x[r * x_strides[0] + c * x_strides[1]]
                               * w[r * w_strides[0] + c * w_strides[1]];
}
"""


def _checked(cases, language, doors=""):
    """Compile an attempt, and give the library to `cases`: first in a copy of this process."""

    def check(source):
        if not isinstance(source, str):
            return f"give check the source, a string; got a value of type {type(source).__name__}."
        try:
            library = native.compile_library(source + doors, language)
            return native.crash_of(lambda: cases(library)) or cases(library)
        except native.NativeError as error:
            return str(error)
        except CompilerNotFoundError as error:
            return f"it cannot be checked here: {error}"

    return check


def _exp_cases(library):
    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            x = x.contiguous()
            y = torch.full_like(x, torch.nan)
            native.call(library, "exp_forward", x, y, x.numel())
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad_output):
            (y,) = ctx.saved_tensors
            grad_output, grad_input = grad_output.contiguous(), torch.full_like(y, torch.nan)
            native.call(library, "exp_backward", grad_output, y, grad_input, y.numel())
            return grad_input

    x = torch.tensor([[-1.5, 0.0, 0.5], [1.0, 2.0, 3.0]], dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    y = Exp.apply(leaf)
    y.sum().backward()
    for name, array, values in (("exp_forward", "y", y), ("exp_backward", "grad_input", leaf.grad)):
        if values.isnan().any():
            return f"`{name}` leaves elements of `{array}` without a value."
    return finding(Exp.apply, torch.exp, [x])


# C has one name for a function, C++ one for each type: these lines make names that ctypes finds.
_ENERGY_DOOR = """
extern "C" void energy_of_doubles(const double* g, int64_t s, const double* x, double* y, int64_t m,
                                  int64_t n) { energy_backward(g, s, x, y, m, n); }
extern "C" void energy_of_floats(const float* g, int64_t s, const float* x, float* y, int64_t m,
                                 int64_t n) { energy_backward(g, s, x, y, m, n); }
"""
_PRODUCT_DOOR = """
extern "C" void product_of_doubles(const double* x, const int64_t* xs, const double* w,
                                   const int64_t* ws, double* y, int64_t m, int64_t n) {
    product(x, xs, w, ws, y, m, n);
}
"""


def _energy_cases(library):
    generator = torch.Generator().manual_seed(0)
    for dtype, name in ((torch.float64, "energy_of_doubles"), (torch.float32, "energy_of_floats")):
        for rows, columns in ((4, 4), (3, 5)):
            x = torch.randn(rows, columns, dtype=dtype, generator=generator)
            some = torch.randn(2 * rows, dtype=dtype, generator=generator)
            for grad, what in (
                (some[:rows], "contiguous"),
                (some[::2], "every second element of an array, stride 2"),
                (some[:1].clone().expand(rows), "the gradient of a sum, stride 0"),
            ):
                given = torch.full_like(x, torch.nan)
                native.call(library, name, grad, grad.stride(0), x, given, rows, columns)
                wrong = _worst(given, grad[:, None] * x)
                if wrong:
                    where = f"x of shape ({rows}, {columns}), grad_output {what}"
                    return f"{where}: grad_input{wrong}"
    return None


def _product_cases(library):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    for rows, columns in ((4, 4), (3, 5)):
        layouts = {
            "contiguous": lambda m=rows, n=columns: random(m, n),
            "transposed": lambda m=rows, n=columns: random(n, m).t(),
            "every second column": lambda m=rows, n=columns: random(m, 2 * n)[:, ::2],
            "one row, expanded": lambda m=rows, n=columns: random(1, n).expand(m, n),
        }
        for x_layout, make_x in layouts.items():
            for w_layout, make_w in layouts.items():
                x, w = make_x(), make_w()
                y = torch.full((rows, columns), torch.nan, dtype=torch.float64)
                strides = [torch.tensor(t.stride()) for t in (x, w)]
                arguments = (x, strides[0], w, strides[1], y, rows, columns)
                native.call(library, "product_of_doubles", *arguments)
                wrong = _worst(y, x * w)
                if wrong:
                    where = f"shape ({rows}, {columns}), x {x_layout}, w {w_layout}"
                    return f"{where}: y{wrong}"
    return None


def _worst(given, right):
    """ " [r, c] is …, but … is right." for the first wrong element, or None."""
    wrong = ~torch.isclose(given, right, rtol=1e-5, atol=1e-6)
    if not wrong.any():
        return None
    r, c = wrong.nonzero()[0].tolist()
    value = "never written" if given[r, c].isnan() else f"{given[r, c]:.4g}"
    return f"[{r}, {c}] is {value}, but {right[r, c]:.4g} is right."


EXERCISES = [
    Exercise(
        number="8.1",
        name="Exp in C",
        stub='''EXP_IN_C = """
#include <math.h>

void exp_forward(const double *x, double *y, int64_t count) {
    // yours: y = exp(x)
}

void exp_backward(const double *grad_output, const double *y, double *grad_input, int64_t count) {
    // yours: the gradient, from the result that forward saved
}
"""''',
        reference=EXP_IN_C,
        finding=_checked(_exp_cases, "c"),
        success="a Function of C, and its gradient needed no second call of exp.",
        hints=(
            "Two loops over count elements. An element is x[i].",
            "The derivative of exp(x) is exp(x), and that is y.",
            "backward multiplies what arrives, grad_output[i], by the derivative.",
        ),
        explanation="The Function around it calls contiguous() on both arrays first, so that one "
        "loop over count elements is enough whatever their shape.",
    ),
    Exercise(
        number="8.2",
        name="energy_backward",
        stub='''ENERGY_BACKWARD = """
template <class T>
void energy_backward(const T* grad_output, int64_t stride, const T* x, T* grad_input,
                     int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
            grad_input[r * columns + c] = x[r * columns + c];
}
"""''',
        reference=ENERGY_BACKWARD,
        finding=_checked(_energy_cases, "c++", _ENERGY_DOOR),
        success="one number for each row, found by its stride, also when all rows share one.",
        hints=(
            "y has one element for each row, and so has grad_output.",
            "Every element of row r is multiplied by the grad_output of this row.",
            "The grad_output of row r lies r * stride elements after the first.",
        ),
        explanation="x[r][c] appears in y[r] only, with derivative x[r][c]. A stride of 0 is what "
        "the gradient of a sum has: one number in memory, read again for each row.",
    ),
    Exercise(
        number="8.3",
        name="product",
        stub='''PRODUCT = """
template <class T>
void product(const T* x, const int64_t* x_strides, const T* w, const int64_t* w_strides,
             T* y, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
            y[r * rows + c] = x[r * x_strides[0] + c * x_strides[1]]
                            * w[r * x_strides[0] + c * w_strides[1]];
}
"""''',
        reference=PRODUCT,
        finding=_checked(_product_cases, "c++", _PRODUCT_DOOR),
        success="each array is walked with its own strides, and the result with its own width.",
        hints=(
            "Two indices are wrong. Each works for two contiguous square matrices.",
            "y is contiguous: how many elements lie between the starts of two of its rows?",
            "x and w may lie differently in memory.",
        ),
        explanation="Contiguous square matrices hide both mistakes: rows equals columns, and all "
        "strides are the same. Test with shapes whose sizes differ, and with a transposed tensor.",
    ),
]
