"""Exercises of chapter 08: C and C++ extensions."""

import itertools

import torch
from torch.autograd import Function

from helpers.lessons import native
from helpers.lessons.checking import Exercise
from helpers.lessons.compare import finding

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


def _checked(cases, language, doors="", calls=""):
    """Compile an attempt, and give the library to `cases`: first in a copy of this process."""

    def check(source):
        if not isinstance(source, str):
            return f"give check the source, a string; got a value of type {type(source).__name__}."
        try:
            library = native.compile_library(source, language, doors, calls)
            return native.crash_of(lambda: cases(library)) or cases(library)
        except native.NativeError as error:
            return str(error)

    return check


def _random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _wrong(name, given, right):
    """ "y[1, 2] is …, but … is right." for the first wrong element, or None."""
    exact = 1e-12 if right.dtype == torch.float64 else 1e-5
    wrong = ~torch.isclose(given, right, rtol=exact, atol=0)
    if not wrong.any():
        return None
    where = wrong.nonzero()[0].tolist()
    one, other = given[tuple(where)].item(), right[tuple(where)].item()
    if abs(one - other) < 1e-6 * abs(other):
        return f"{name}{where} has about seven right digits. Is something there a float?"
    return f"{name}{where} is {one:.4g}, but {other:.4g} is right."


def _exp_cases(library):
    def forward(x):
        if x.dtype != torch.float64:  # the doctor asks for other types, too
            raise TypeError("x must be float64")
        arrays = {"x": x.contiguous(), "y": x.new_empty(x.shape), "count": x.numel()}
        native.call(library, "exp_forward", arrays, "y")
        return arrays["y"]

    def backward(grad_output, y):
        arrays = {"grad_output": grad_output.contiguous(), "y": y}
        arrays |= {"grad_input": torch.empty_like(y), "count": y.numel()}
        native.call(library, "exp_backward", arrays, "grad_input")
        return arrays["grad_input"]

    for count in (6, 1, 1000, 0):
        x = _random(count)
        wrong = _wrong("y", forward(x), x.exp())
        if wrong:
            return f"`exp_forward`, count {count}: {wrong}"
        forward(_random(count + 7))  # backward must not remember its count
        grad_output, y = _random(count, seed=1), x.exp()
        given = backward(grad_output, y)
        wrong = _wrong("grad_input", given, grad_output * y)
        if wrong and torch.allclose(given, y):
            return "`exp_backward` does not use grad_output, so it is right only for ones."
        if wrong:
            return f"`exp_backward`, count {count}: {wrong}"

    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            y = forward(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad_output):
            return backward(grad_output, *ctx.saved_tensors)

    return finding(Exp.apply, torch.exp, [_random(2, 3)])


# C has one name for a function, C++ one for each type: these lines make names that ctypes finds.
_ENERGY_DOOR = """
extern "C" void energy_of_doubles(const double* g, int64_t s, const double* x, double* y, int64_t m,
                                  int64_t n) { energy_backward(g, s, x, y, m, n); }
extern "C" void energy_of_floats(const float* g, int64_t s, const float* x, float* y, int64_t m,
                                 int64_t n) { energy_backward(g, s, x, y, m, n); }
"""
_PRODUCT_DOOR = """
extern "C" void product_of_doubles(const double* x, const int64_t* xs, const double* w,
    const int64_t* ws, double* y, int64_t m, int64_t n) { product(x, xs, w, ws, y, m, n); }
extern "C" void product_of_floats(const float* x, const int64_t* xs, const float* w,
    const int64_t* ws, float* y, int64_t m, int64_t n) { product(x, xs, w, ws, y, m, n); }
"""
_TYPES = {"doubles": torch.float64, "floats": torch.float32}
_SHAPES = ((4, 4), (3, 5), (5, 3))


def _tried(where, right, *call, **options):
    """What is wrong with the result of a native call, which goes by the name `where`, or None."""
    try:
        native.call(*call, **options)
    except native.NativeError as error:
        raise native.NativeError(f"{where}: {error}") from None
    _, _, arguments, result = call
    wrong = _wrong(result, arguments[result], right)
    return wrong and f"{where}: {wrong}"


def _energy_cases(library):
    for (types, dtype), (rows, columns) in itertools.product(_TYPES.items(), _SHAPES):
        x, some = _random(rows, columns, dtype=dtype), _random(2 * rows, dtype=dtype, seed=1)
        for grad, what in (
            (some[:rows], "contiguous"),
            (some[::2], "every second element of an array, stride 2"),
            (some[:1].clone().expand(rows), "the gradient of a sum, stride 0"),
        ):
            arguments = {"grad_output": grad, "stride": grad.stride(0), "x": x}
            arguments |= {"grad_input": torch.empty_like(x), "rows": rows, "columns": columns}
            where = f"{types}, x of shape ({rows}, {columns}), grad_output {what}"
            call = library, f"energy_of_{types}", arguments, "grad_input"
            wrong = _tried(where, grad[:, None] * x, *call, says="energy_backward")
            if wrong:
                return wrong
    return None


def _layouts(rows, columns, **options):
    """Matrices of one shape that lie in memory in different ways."""
    return {
        "contiguous": _random(rows, columns, **options),
        "transposed": _random(columns, rows, **options).t(),
        "every second column": _random(rows, 2 * columns, **options)[:, ::2],
        "one row, expanded": _random(1, columns, **options).expand(rows, columns),
        "one column, expanded": _random(rows, 1, **options).expand(rows, columns),
    }


def _product_cases(library):
    for (types, dtype), (rows, columns) in itertools.product(_TYPES.items(), _SHAPES):
        xs = _layouts(rows, columns, dtype=dtype)
        ws = _layouts(rows, columns, dtype=dtype, seed=1)
        for (x_layout, x), (w_layout, w) in itertools.product(xs.items(), ws.items()):
            arguments = {"x": x, "x_strides": torch.tensor(x.stride())}
            arguments |= {"w": w, "w_strides": torch.tensor(w.stride())}
            arguments |= {"y": x.new_empty(rows, columns), "rows": rows, "columns": columns}
            where = f"{types}, shape ({rows}, {columns}), x {x_layout}, w {w_layout}"
            call = library, f"product_of_{types}", arguments, "y"
            wrong = _tried(where, x * w, *call, says="product")
            if wrong:
                return wrong
    return None


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
        success="a Function of C, whose gradient is made of the result that forward saved.",
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
        finding=_checked(
            _energy_cases,
            "c++",
            _ENERGY_DOOR,
            "energy_backward(grad_output, stride, x, grad_input, rows, columns)",
        ),
        success="one number for each row, found by its stride, also when all rows share one.",
        hints=(
            "y has one element for each row, and so has grad_output.",
            "Every element of row r is multiplied by the grad_output of this row.",
            "From one element of grad_output to the next are `stride` elements of memory.",
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
        finding=_checked(
            _product_cases,
            "c++",
            _PRODUCT_DOOR,
            "product(x, x_strides, w, w_strides, y, rows, columns)",
        ),
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
