"""Exercises of chapter 08: C and C++ extensions."""

import itertools

import torch

from helpers.lessons.exercise import Exercise
from helpers.lessons.judge.numbers import Difference, in_numbers, near_miss
from helpers.lessons.judge.properties import random, with_zeros
from helpers.lessons.language import N_, _, at, followed
from helpers.lessons.native import c_and_cpp
from helpers.ops.involution.compiler import find_compiler


def _compiled(cases, language, doors="", calls=""):
    """Compile an attempt and give the library to `cases`, first in a copied process."""

    def sentences(source):
        try:
            library = c_and_cpp.compile_library(source, language, doors, calls)
            yield c_and_cpp.crash_of(lambda: any(cases(library)))
            yield from cases(library)
        except c_and_cpp.NativeError as error:
            yield str(error)

    return sentences


DIGITS = N_("Does a constant have too few digits, or is something there a float?")
NO_GRAD_OUTPUT = N_("`backward` multiplies by `grad_output`.")


def _tried(where, right, library, name, arguments, result, says="", misses=()):
    """What is wrong with a native call's result, called `where`, or None.

    "y[1, 2] is …, but … is right." is said of the first wrong element.
    misses: {sentence: value}, what it may be instead
    """
    try:
        c_and_cpp.call(library, name, arguments, result, says)
    except c_and_cpp.NativeError as error:
        return at(where, str(error))
    given, exact = arguments[result], 1e-12 if right.dtype == torch.float64 else 1e-5
    wrong = ~torch.isclose(given, right, rtol=exact, atol=0)
    if not wrong.any():
        return None
    numbers = (tensor[wrong][0].item() for tensor in (given, right))
    said = in_numbers(
        Difference(*numbers, wrong.nonzero()[0].tolist()),
        _("{name}{place} is {given}, but {right} is right."),
        near=DIGITS,
        name=result,
    )
    return at(where, followed(said, near_miss(given, right, dict(misses))))


EXP_IN_C = """
#include <math.h>

void exp_forward(const double *x, double *y, int64_t count) {
    for (int64_t i = 0; i < count; ++i) y[i] = exp(x[i]);
}

void exp_backward(const double *grad_output, const double *y, double *grad_input, int64_t count) {
    for (int64_t i = 0; i < count; ++i) grad_input[i] = grad_output[i] * y[i];
}
"""


def _exp_cases(library):
    def forward(x):
        where = _("count {count}", count=len(x))
        arguments = {"x": x, "y": torch.empty_like(x), "count": len(x)}
        return _tried(where, x.exp(), library, "exp_forward", arguments, "y")

    for count in (6, 1, 40_000, 0):
        x = with_zeros(count)
        x[1::7] *= 100
        yield forward(x)
        yield forward(random(count + 7))  # backward must not remember its count
        grad_output, y = with_zeros(count, seed=1), x.exp()
        yield _tried(
            _("count {count}", count=count),
            grad_output * y,
            library,
            "exp_backward",
            {
                "grad_output": grad_output,
                "y": y,
                "grad_input": torch.empty_like(y),
                "count": count,
            },
            "grad_input",
            misses={
                _(NO_GRAD_OUTPUT): y,
                _("`y` is exp(x) already."): grad_output * y.exp(),
            },
        )


FOR = "for (int64_t i = 0; i < count; ++i)"
LINE_1, LINE_2 = "y[i] = exp(x[i]);", "grad_input[i] = grad_output[i] * y[i];"
EXERCISE_1 = Exercise(
    number="8.1",
    name="Exp in C",
    reference=EXP_IN_C,
    stub={
        f"{FOR} {LINE_1}": "// yours: y = exp(x)",
        f"{FOR} {LINE_2}": "// yours: the gradient, from the result that forward saved",
    },
    wrong=[
        ({"i < count; ++i) y": "i < count; i) y"}, "does not end"),
        (
            {f"{FOR} {LINE_1}": f"int64_t i = 0; do {LINE_1} while (++i < count);"},
            "count 0: `exp_forward` writes past the end of `y`.",
        ),
        ({"void exp_forward": "static void exp_forward"}, "static and inline hide it"),
        (
            {"const double *x": "double *x", LINE_1: "y[i] = x[i] = exp(x[i]);"},
            "changes `x`, which is an input",
        ),
        (
            {"exp(x[i])": "Exp(x[i])", "#include": "double Exp(double);\n#include"},
            "nowhere",
        ),
    ],
    needs=find_compiler,
    properties=[_compiled(_exp_cases, "c")],
    success="a Function in C, whose gradient is made of the result that forward saved.",
    hints=(
        "Two loops over count elements. An element is x[i].",
        "The derivative of exp(x) is exp(x), and that is y.",
        "backward multiplies what arrives, grad_output[i], by the derivative.",
    ),
    explanation="The Function around it calls contiguous() on both arrays first, so "
    "one loop over count elements is enough, whatever their shape.",
)


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

# C has one name for a function, C++ one for each type: these lines make names that
# ctypes finds.
_PRODUCT_DOOR = """
extern "C" void product_of_doubles(const double* x, const int64_t* xs, const double* w,
    const int64_t* ws, double* y, int64_t m, int64_t n) { product(x, xs, w, ws, y, m, n); }
extern "C" void product_of_floats(const float* x, const int64_t* xs, const float* w,
    const int64_t* ws, float* y, int64_t m, int64_t n) { product(x, xs, w, ws, y, m, n); }
"""
_TYPES = {"doubles": torch.float64, "floats": torch.float32}
_SHAPES = ((4, 4), (3, 5), (5, 3), (1, 7), (0, 3), (300, 2))


def _layouts(rows, columns, **options):
    """Matrices of one shape that lie in memory in different ways."""
    return {
        _("contiguous"): with_zeros(rows, columns, **options),
        _("transposed"): with_zeros(columns, rows, **options).t(),
        _("every fifth column"): with_zeros(rows, 5 * columns, **options)[:, ::5],
        _("one row, expanded"): with_zeros(1, columns, **options).expand(rows, columns),
        _("one column, expanded"): with_zeros(rows, 1, **options).expand(rows, columns),
    }


def _product_cases(library):
    for (types, dtype), (rows, columns) in itertools.product(_TYPES.items(), _SHAPES):
        xs = _layouts(rows, columns, dtype=dtype)
        ws = _layouts(rows, columns, dtype=dtype, seed=1)
        for (x_layout, x), (w_layout, w) in itertools.product(xs.items(), ws.items()):
            arguments = {
                "x": x,
                "x_strides": torch.tensor(x.stride()),
                "w": w,
                "w_strides": torch.tensor(w.stride()),
                "y": x.new_empty(rows, columns),
                "rows": rows,
                "columns": columns,
            }
            where = _(
                "{types}, shape ({rows}, {columns}), x {x_layout}, w {w_layout}",
                types=types,
                rows=rows,
                columns=columns,
                x_layout=x_layout,
                w_layout=w_layout,
            )
            call = f"product_of_{types}", arguments, "y", "product"
            yield _tried(where, x * w, library, *call)


EXERCISE_2 = Exercise(
    number="8.2",
    name="product",
    reference=PRODUCT,
    stub={"y[r * columns": "y[r * rows", "   * w[r * w_strides": "* w[r * x_strides"},
    wrong=[
        (
            {"w_strides[0] + c * w_strides[1]": "x_strides[0] + c * x_strides[1]"},
            "w transposed",
        ),
        ({"y[r * columns + c]": "y[r * rows + c]"}, "shape (3, 5)"),
        ({"c * x_strides[1]": "c"}, "x transposed"),
    ],
    needs=find_compiler,
    properties=[
        _compiled(
            _product_cases,
            "c++",
            _PRODUCT_DOOR,
            "product(x, x_strides, w, w_strides, y, rows, columns)",
        )
    ],
    success="each array is walked with its own strides, and the result with its own "
    "width.",
    hints=(
        "Two indices are wrong. Each works for two contiguous square matrices.",
        "y is contiguous: how many elements lie between the starts of two of its rows?",
        "x and w may lie differently in memory.",
    ),
    explanation="Contiguous square matrices hide both mistakes: rows equals columns, "
    "and all strides are the same. Test with shapes whose sizes differ, and with a "
    "transposed tensor.",
)


ENERGY_BACKWARD = """
template <class T>
void energy_backward(const T* grad_output, int64_t stride, const T* x, T* grad_input,
                     int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
            grad_input[r * columns + c] = grad_output[r * stride] * x[r * columns + c];
}
"""

_ENERGY_DOOR = """
extern "C" void energy_of_doubles(const double* g, int64_t s, const double* x, double* y, int64_t m,
                                  int64_t n) { energy_backward(g, s, x, y, m, n); }
extern "C" void energy_of_floats(const float* g, int64_t s, const float* x, float* y, int64_t m,
                                 int64_t n) { energy_backward(g, s, x, y, m, n); }
"""


def _energy_cases(library):
    for (types, dtype), (rows, columns) in itertools.product(_TYPES.items(), _SHAPES):
        x = with_zeros(rows, columns, dtype=dtype)
        some = with_zeros(5 * rows, dtype=dtype, seed=1)
        for grad, what in (
            (some[:rows].clone(), _("contiguous")),
            (some[: 2 * rows : 2], _("every second element of an array, stride 2")),
            (some[::5], _("every fifth element of an array, stride 5")),
            (some[:1].clone().expand(rows), _("the gradient of a sum, stride 0")),
        ):
            arguments = {
                "grad_output": grad,
                "stride": grad.stride(0),
                "x": x,
                "grad_input": torch.empty_like(x),
                "rows": rows,
                "columns": columns,
            }
            where = _(
                "{types}, x of shape ({rows}, {columns}), grad_output {what}",
                types=types,
                rows=rows,
                columns=columns,
                what=what,
            )
            yield _tried(
                where,
                grad[:, None] * x,
                library,
                f"energy_of_{types}",
                arguments,
                "grad_input",
                "energy_backward",
                {_(NO_GRAD_OUTPUT): x},
            )


EXERCISE_3 = Exercise(
    number="8.3",
    name="energy_backward",
    reference=ENERGY_BACKWARD,
    stub={"grad_output[r * stride] * ": ""},
    wrong=[
        (
            {"grad_output[r * stride]": "grad_output[r * columns + c]"},
            "index past the end",
        ),
        (
            {"const T* grad_output, int64_t stride": "const T* grad_output"},
            "in line 7 of the cell: ",
        ),
        (
            {"const T* x, T* grad_input": "const double* x, double* grad_input"},
            "the check calls energy_backward(grad_output, stride, x, grad_input, "
            "rows, columns)",
        ),
        ({"grad_input[r": "if (rows) throw 1; else grad_input[r"}, "Does an exception"),
        ({"grad_output[r * stride] * x": "1 * x"}, "multiplies by `grad_output`."),
    ],
    needs=find_compiler,
    properties=[
        _compiled(
            _energy_cases,
            "c++",
            _ENERGY_DOOR,
            "energy_backward(grad_output, stride, x, grad_input, rows, columns)",
        )
    ],
    success="each row gets its own element of grad_output, even when all rows share "
    "one.",
    hints=(
        "y has one element per row, and so does grad_output.",
        "Every element of row r is multiplied by the element of grad_output for this "
        "row.",
        "Each element of grad_output lies `stride` elements after the previous one.",
    ),
    explanation="x[r][c] appears in y[r] only, with derivative x[r][c]. The gradient "
    "of a sum has a stride of 0: one element in memory, read again for each row.",
)
