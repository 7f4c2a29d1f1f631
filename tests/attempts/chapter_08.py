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
        (exp(("grad_output[i] * y[i]", "y[i]")), "grad_output"),
        (exp(("grad_output[i] * y[i]", "grad_output[i] * exp(y[i])")), "is right"),
        (exp(("grad_output[i] * y[i]", "grad_output[i]")), "is right"),
        (exp(("y[i] = exp(x[i]);", "y[i] = exp(x[i])")), "it does not compile in line 4"),
        (exp(("y[i] = exp(x[i]);", ";")), "leaves elements of `y`"),
        (exp(("grad_input[i] = grad_output[i] * y[i];", ";")), "leaves elements of `grad_input`"),
        (exp(("i < count; ++i) y", "i <= count; ++i) y")), "past the end"),
        (exp(("i < count; ++i) y", "i < 6000000000; ++i) y")), "crashed the copy"),
        (exp(("i < count; ++i) y", "i < count; i) y")), "does not end"),
        (exp(("exp_backward", "exp_backwards")), "no function `exp_backward`"),
        (exp(("const double *x", "const float *x")), "`forward`"),
        (3, "the source, a string"),
    ],
    "8.2": [
        (energy(("grad_output[r * stride] * ", "2 * ")), "(4, 4), grad_output contiguous"),
        (energy(("grad_output[r * stride]", "grad_output[r]")), "stride 2"),
        (energy(("grad_output[r * stride]", "grad_output[c * stride]")), "is right"),
        (energy(("grad_output[r * stride]", "grad_output[r * columns + c]")), "is right"),
        (energy(("grad_output[r * stride]", "grad_output[0]")), "is right"),
        (energy(("* x[r * columns + c]", "")), "is right"),
        (energy(("grad_output[r * stride]", "grad[r * stride]")), "it does not compile in line 6"),
        (energy(("const T* grad_output, int64_t stride", "const T* grad_output")), "not compile"),
        (energy(("const T* x, T* grad_input", "const double* x, double* grad_input")), "compile"),
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
        (product(("c < columns", "c < rows")), "never written"),
    ],
}  # fmt: skip
