"""Wrong attempts at the exercises of chapter 08, each with words that the verdict must hold."""

from helpers.lessons.exercises.chapter_08 import ENERGY_BACKWARD, EXP_IN_C, PRODUCT


def changed(source, *replacements):
    for old, new in replacements:
        assert old in source
        source = source.replace(old, new)
    return source


def exp(*replacements):
    return changed(EXP_IN_C, *replacements)


def energy(*replacements):
    return changed(ENERGY_BACKWARD, *replacements)


def product(*replacements):
    return changed(PRODUCT, *replacements)


ATTEMPTS = {
    "8.1": [
        (exp(("grad_output[i] * y[i]", "y[i]")), "does not use grad_output"),
        (exp(("grad_output[i] * y[i]", "grad_output[i] * exp(y[i])")), "`exp_backward`, count 6"),
        (exp(("grad_output[i] * y[i]", "grad_output[i]")), "grad_input[0] is"),
        (exp(("grad_output[i] * y[i]", "grad_output[0] * y[i]")), "grad_input[1] is"),
        (exp(("grad_output[i] * y[i]", "grad_output[i] / y[i]")), "grad_input[0] is"),
        (exp(("y[i] = exp(x[i]);", "y[i] = exp(x[i])")), "in line 5 of the cell: expected"),
        (exp(("y[i] = exp(x[i]);", ";")), "leaves elements of `y` without a value"),
        (exp(("y[i] = exp", "y[i] += exp")), "as += does"),
        (exp(("grad_input[i] = grad_output[i] * y[i];", ";")), "leaves elements of `grad_input`"),
        (exp(("i < count; ++i) y", "i <= count; ++i) y")), "writes past the end of `y`"),
        (exp(("y[i] = exp(x[i]);", "y[i] = exp(x[i]), y[-1] = 0;")), "before the start of `y`"),
        (exp(("i < count; ++i) y", "i < 6; ++i) y")), "past the end"),
        (exp(("i < count; ++i) y", "i < 6000000000; ++i) y")), "Which index leaves its array?"),
        (exp(("i < count; ++i) y", "i < count; i) y")), "does not end"),
        (exp(("= exp(x", "= expf(x")), "Is something there a float?"),
        (exp(("i < count; ++i) y", "i < count && i < 100; ++i) y")), "leaves elements of `y`"),
        (exp(("exp(x[i])", "exp(x[i]) + 0 * x[i + 1]")), "an index past the end"),
        (exp(("void exp_forward", "static void exp_forward")), "static and inline hide it"),
        (exp(("void exp_forward", "int64_t n;\nvoid exp_forward"),
             (") y[i] = exp(x[i]);", ") y[i] = exp(x[i]);\n    n = count;"),
             ("i < count; ++i) grad_input", "i < n; ++i) grad_input")), "past the end"),
        (exp(("exp_backward", "exp_backwards")), "no function `exp_backward`"),
        (exp(("exp(x[i])", "Exp(x[i])")), "it does not compile in line 5 of the cell"),
        (exp(("exp(x[i])", "Exp(x[i])"), ("#include", "double Exp(double);\n#include")), "nowhere"),
        (exp(("#include <math.h>", "")), "it does not compile in line 5"),
        (exp(("const double *x", "double *x"), ("y[i] = exp(x[i]);", "y[i] = x[i] = exp(x[i]);")),
         "changes `x`, which is an input"),
        (exp(("#include <math.h>", "#include <math.h>\n#include <stdlib.h>"),
             ("y[i] = exp(x[i]);", "exit(0);")), "it ends the process"),
        (exp(("#include <math.h>", "#include <math.h>\n#include <stdlib.h>"),
             ("y[i] = exp(x[i]);", "abort();")), "does it call abort?"),
        (exp(("const double *x", "const float *x")), "is"),
        (3, "the source, a string"),
    ],
    "8.2": [
        (energy(("grad_output[r * stride] * ", "2 * ")), "(4, 4), grad_output contiguous"),
        (energy(("grad_output[r * stride]", "grad_output[r]")), "stride 2"),
        (energy(("grad_output[r * stride]", "grad_output[c * stride]")), "is right"),
        (energy(("grad_output[r * stride]", "grad_output[r * columns + c]")), "index past the end"),
        (energy(("grad_output[r * stride]", "grad_output[0]")), "is right"),
        (energy(("* x[r * columns + c]", "")), "is right"),
        (energy(("grad_input[r * columns + c]", "grad_input[r * rows + c]")), "(3, 5)"),
        (energy(("grad_output[r * stride]", "float(grad_output[r * stride])")), "a float?"),
        (energy(("grad_output[r * stride]", "grad[r * stride]")), "in line 7 of the cell: "),
        (energy(("const T* grad_output, int64_t stride", "const T* grad_output")),
         "in line 7 of the cell: "),
        (energy(("const T* x, T* grad_input", "const double* x, double* grad_input")),
         "the check calls energy_backward(grad_output, stride, x, grad_input, rows, columns)"),
        (energy(("energy_backward", "energy")), "that does not fit. Look at name"),
        (energy(("const T* x", "T* x"), ("grad_input[r * columns + c] =", "x[r * columns + c] =")),
         "the check calls energy_backward"),
        (energy(("grad_input[r", "if (rows) throw 1; else grad_input[r")), "Does an exception"),
        ("", "that does not fit"),
    ],
    "8.3": [
        (product(("w_strides[0] + c * w_strides[1]", "x_strides[0] + c * x_strides[1]")),
         "w transposed"),
        (product(("y[r * columns + c]", "y[r * rows + c]")), "shape (3, 5)"),
        (product(("w[r * w_strides[0]", "w[r * x_strides[0]")), "w transposed"),
        (product(("c * w_strides[1]", "c")), "w transposed"),
        (product(("c * x_strides[1]", "c")), "x transposed"),
        (product(("y[r * columns + c]", "y[r * x_strides[0] + c * x_strides[1]]")), "x transposed"),
        (product(("y[r * columns + c] = x[r * x_strides[0] + c * x_strides[1]]",
                  "y[r * columns + c] = x[r * columns + c]")), "x transposed"),
        (product(("c < columns", "c < rows")), "leaves elements of `y`"),
        (product(("    for (int64_t r", "    if (rows > columns) return;\n    for (int64_t r")),
         "shape (5, 3)"),
        (product(("    for (int64_t r", "    if (sizeof(T) == 4) return;\n    for (int64_t r")),
         "floats"),
        (product(("y[r * columns + c] =", "y[rows * columns + 200] = y[r * columns + c] =")),
         "`product` writes past the end of `y`"),
    ],
}  # fmt: skip
