// What the CPU kernel and the CUDA kernel share: the loop over one row, and all that surrounds it.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <type_traits>

using torch::headeronly::ScalarType, torch::stable::Tensor;

// y[t] = decay[t] * y[t - 1] + x[t], or from the end with y[t + 1]; half precision sums in float.
template <class T>
C10_HOST_DEVICE void recur(const T* x, const T* decay, T* y, int64_t steps, bool reverse) {
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    Sum state = 0;
    for (int64_t i = 0; i < steps; ++i) {
        const int64_t t = reverse ? steps - 1 - i : i;
        state = static_cast<Sum>(decay[t]) * state + static_cast<Sum>(x[t]);
        y[t] = static_cast<T>(state);
    }
}

// Checks what the loop relies on, makes the result, and calls each_row(x, decay, y, rows, steps)
// with pointers of the type that the tensors have.
template <class EachRow>
Tensor recurrence(Tensor x, Tensor decay, EachRow each_row) {
    STD_TORCH_CHECK(
        x.dim() > 0 && x.sizes().equals(decay.sizes()) && x.device() == decay.device() &&
            x.scalar_type() == decay.scalar_type(),
        "x and decay must have one shape (..., steps), one dtype and one device");
    x = torch::stable::contiguous(x), decay = torch::stable::contiguous(decay);
    Tensor y = torch::stable::empty_like(x);
    if (y.numel() == 0) return y;
    const int64_t steps = x.size(-1), rows = x.numel() / steps;

    const auto run = [&](auto zero) {
        using T = decltype(zero);
        each_row(x.const_data_ptr<T>(), decay.const_data_ptr<T>(), y.mutable_data_ptr<T>(), rows,
                 steps);
    };
    switch (x.scalar_type()) {
        case ScalarType::Double: run(double()); break;
        case ScalarType::Float: run(float()); break;
        case ScalarType::BFloat16: run(torch::headeronly::BFloat16()); break;
        case ScalarType::Half: run(torch::headeronly::Half()); break;
        default: STD_TORCH_CHECK(false, "x must be floating-point");
    }
    return y;
}
